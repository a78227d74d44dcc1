"""Trained models in packages of PyPI, as bench/pypi_models.py loads them, where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import twell

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
from pypi_models import REAL, WITH_ZEROS, Loaded, Real, load_or_why  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
# Of the layers' neurons, the most that fire in one.
MOST = {"ruaccent-predictor": 0.1, "annalog": 0.12, "lemmaturk": 0.3, "metatronnanoguard": 0.45}


def loaded(real: Real) -> Loaded:
    found = load_or_why(real)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.mark.parametrize("real", WITH_ZEROS, ids=lambda real: real.name)
def test_the_answers_stay_the_same(real: Real) -> None:
    model = loaded(real)
    found = model.report()
    assert all(layer.taken for layer in found.layers)
    assert all(0 < layer.share < MOST[real.name] for layer in found.layers)
    state = {name: v.clone() for name, v in model.state_dict().items()}
    with torch.no_grad():
        want = model(model.texts)
        twell.sparsify(model, sample=(model.texts,))
        assert len(twell.sparse_layers(model)) == len(found.layers)
        assert model(model.texts) == want
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def program(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(twell.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(BENCH / name), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_reports_as_the_program_prints_them(tmp_path: Path) -> None:
    """Of one that is in no package; what is not there is skipped, with a reason."""
    pytest.importorskip("transformers")
    done = program("model_reports.py", "stories260K", "--page", tmp_path / "a.md")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == "stories260K"
    page = (tmp_path / "a.md").read_text()
    assert second in page and "## stories260K" in page
    if not second.startswith("skipped: "):
        assert second == "LlamaForCausalLM: 5 feed-forward layers, 63% of the parameters"
        assert "Where every neuron fires there is nothing to gain. Training with ReLU" in page
    done = program("model_reports.py", "none")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        f"no model none; there are {', '.join(real.name for real in REAL)}"
    )


def test_small_layers_writes_its_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = program("small_layers.py", "--rows", 1, 8, "--seconds", 0.001, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"small.json", "small.md", "small.svg"}
    page = (tmp_path / "small.md").read_text()
    assert "4.0% of the neurons" in page and page.count("| layer |") == 2
