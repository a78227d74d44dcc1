"""PyTorch's switches for a whole process change nothing in a layer, nor what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
import twell
from layers import let_screens_pay, make_layer
from torch import Tensor
from twell._training import TrainingForm


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SWITCHES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "deterministic": deterministic,
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "meta by default": lambda: torch.device("meta"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}


def lived(module: twell.GatedFfn, sample: Tensor) -> Iterator[Tensor]:
    """What comes of training with the L1 term, of counts, of a screened and a packed frozen layer, of
    checkpoints and back."""
    twell.set_l1(module, 0.1)
    twell.collect_metrics(module)
    module(sample).square().mean().backward()
    yield from (p.grad for p in module.parameters())
    yield from module.activity
    for chosen in (sample, None):
        module.requires_grad_(False).freeze(chosen)
        leaf = sample.clone().requires_grad_()
        y = module(leaf)
        yield y.detach()
        yield torch.autograd.grad(y.sum(), leaf)[0]
        state = module.state_dict()
        yield from state.values()
        module.load_state_dict({name: 2 * value for name, value in state.items()})
        yield module(sample)
        module.thaw()


@pytest.mark.parametrize("switch", SWITCHES.values(), ids=SWITCHES.keys())
def test_no_bit_changes(
    switch: Callable[[], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_screens_pay(monkeypatch)
    layer = make_layer(24, 60, density=0.3)
    weights = (layer.gate, layer.up, layer.down.t().contiguous())
    found = []
    for context in (nullcontext, switch):
        module = twell.GatedFfn.from_dense(*(w.clone() for w in weights)).requires_grad_()
        sample = layer.inputs(64)
        with context():
            found.append(list(lived(module, sample)))
    assert all(map(torch.equal, *found)) and len(found[0]) == 20


def test_lists_are_not_touched_in_deterministic_mode() -> None:
    layer = make_layer(8, 4096, density=0.01)
    x = layer.inputs(4096)
    with deterministic():
        *_, offsets, neurons, values = torch.ops.twell.ffn_train(
            x, [layer.gate, layer.up, layer.down]
        )
    # PyTorch fills with the largest integer and NaN. Lists of 64 MB are fresh pages, of zeros.
    fired = int(offsets[-1])
    assert 0 < fired < neurons.numel() // 10
    assert not neurons[fired:].any() and not values[:, fired:].any()


def test_order_for_a_gpu_is_made_where_the_counts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twell.ops, "choose_training", lambda *_, **__: 2)
    form = TrainingForm()
    form._fired, form._tokens = torch.tensor([1, 5, 0, 9]), 10
    x = torch.zeros(10, 3)
    with torch.device("meta"):
        form._decide(x, "relu", True)
    assert form.form.order.tolist() == [3, 1, 0, 2] and form.form.places.tolist() == [2, 1, 3, 0]
