"""Trained models in packages of PyPI, as bench/pypi_models.py loads them, where they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import twell

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
from pypi_models import WITH_ZEROS, Loaded, Real, load_or_why  # noqa: E402

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
