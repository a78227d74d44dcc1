"""examples/russian_stress.py on the weights of a real model, where its package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import twell

FILE = Path(__file__).resolve().parents[2] / "examples" / "russian_stress.py"


@pytest.fixture(scope="module")
def example() -> Any:
    pytest.importorskip("ruaccent", reason="pip install --no-deps ruaccent-predictor==1.2.0")
    spec = importlib.util.spec_from_file_location("russian_stress", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("StressAccentTransformer: 8 feed-forward layers, 5")
    assert lines[-1] == "5 of 5 answers are the same"
    assert sum(line.startswith("transformer.") for line in lines) == 8


def test_layers(example: Any) -> None:
    """Of each of the eight layers: few neurons fire, and what the logits are off by."""
    accentor = example.load()
    sample = example.sample_of(accentor)
    found = twell.report(accentor.model, sample)
    assert [layer.taken for layer in found.layers] == [True] * 8
    assert all(0 < layer.share < 0.1 for layer in found.layers)
    with torch.no_grad():
        want = accentor.model.double()(*sample)
        plain = accentor.model.float()(*sample)
        state = accentor.model.state_dict()
        twell.sparsify(accentor.model, sample=sample)
        got = accentor.model(*sample)
    # No further off than twice what PyTorch's own float32 is.
    assert (got - want).abs().max() <= 2 * (plain - want).abs().max()
    assert all(torch.equal(v, state[k]) for k, v in accentor.model.state_dict().items())
