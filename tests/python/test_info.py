"""python -m twell info."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import twell
from layers import python
from twell import info


def run(*arguments: str, **environment: str):
    line = ", ".join(map(repr, ("twell", "info", *arguments)))
    code = f"import runpy, sys; sys.argv = [{line}]; runpy.run_module('twell', run_name='__main__')"
    return python(code, **environment)


def test_shows_versions_tiers_and_a_passed_check(tmp_path: Path) -> None:
    done = run("--json", str(tmp_path / "info.json"))
    assert done.returncode == 0, done.stderr
    known = json.loads((tmp_path / "info.json").read_text())
    assert [p.name for p in tmp_path.iterdir()] == ["info.json"]
    assert known["twell"] == twell.__version__ and known["torch"] == torch.__version__
    assert known["tier"] in known["tiers"] and "portable" in known["tiers"]
    assert known["wrong"] == [] and "passed" in done.stdout
    for value in (known["twell"], known["library"], known["processor"], known["tier"]):
        assert value in done.stdout


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = twell.ops.ffn

    def wrong(*arguments: object, **form: object) -> torch.Tensor:
        y = right(*arguments, **form)
        y[0, 0] += 1
        return y

    assert info.self_check() == []
    monkeypatch.setattr(info.ops, "ffn", wrong)
    found = info.self_check()
    tiers = sum(twell.ops.cpu_tier_available(tier) for tier in info.TIERS)
    assert len(found) == tiers * 2 * 2 * 3 * 2  # dtypes, gates, forms, forms of the gate
    assert found[0] == "portable, torch.float32, relu, with a gate, packed"


def test_errors_are_one_line(tmp_path: Path) -> None:
    for done, needle in (
        (run(TWELL_CPU_TIER="sse9"), "sse9"),
        (run("--json", str(tmp_path / "no" / "info.json")), "cannot be written"),
    ):
        assert done.returncode == 1 and needle in done.stderr
        assert done.stderr.startswith("python -m twell: error: ") and done.stderr.count("\n") == 1
