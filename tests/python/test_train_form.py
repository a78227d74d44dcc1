"""Which form training takes on a GPU. `gpu` has layers believe that the CPU is one: its operators
ignore hot neurons. Weights and inputs are whole numbers, so that sums are exact in any order."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from twell import _training

WIDTH, NEURONS, ROWS = 16, 96, 40


class Gpu:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.hot: int | None = 32

    def choose_training(self, rates: Tensor, tokens: int, width: int, **rest: Any) -> int | None:
        self.asked.append({"rates": rates, "tokens": tokens, "width": width, **rest})
        return self.hot


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(_training, "on_gpu", lambda _: True)
    monkeypatch.setattr(twell.ops, "choose_training", made.choose_training)
    return made


def whole(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).float()


def layer_of(gated: bool) -> twell.modules.SparseFfn:
    # Neurons fire at different rates: of the n-th, n of 16 inputs count.
    reach = torch.arange(WIDTH) <= torch.arange(NEURONS)[:, None] % WIDTH
    first = whole(NEURONS, WIDTH, seed=1) * reach
    down = whole(WIDTH, NEURONS, seed=3)
    if not gated:
        return twell.Ffn.from_dense(*(torch.nn.Parameter(w) for w in (first, down)))
    weights = (first, whole(NEURONS, WIDTH, seed=2), down)
    return twell.GatedFfn.from_dense(*(torch.nn.Parameter(w) for w in weights))


def new_step(layer: torch.nn.Module) -> None:
    """What an optimizer does to each weight; this one nothing more."""
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.0)


def run(layer: torch.nn.Module, seed: int, call: Callable[..., Tensor] | None = None) -> list[Tensor]:
    """y, dx and the weights' gradients."""
    x = whole(ROWS, WIDTH, seed=seed).requires_grad_()
    y = layer(x) if call is None else call(x)
    layer.zero_grad()
    y.backward(whole(ROWS, WIDTH, seed=seed + 1))
    return [y.detach(), x.grad, *(weight.grad for weight in layer.parameters())]


def assert_equal(got: list[Tensor], want: list[Tensor]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gated", [True, False])
def test_order_changes_nothing_but_the_work(gpu: Gpu, gated: bool) -> None:
    layer, plain = layer_of(gated), layer_of(gated)
    plain._train_form.saw = lambda *_: None  # type: ignore[method-assign]
    for each in (layer, plain):
        each.collect_activity = True
    for step in range(3):
        assert_equal(run(layer, 10 * step), run(plain, 10 * step))
        for each in (layer, plain):
            new_step(each)
    form = layer._train_form.form
    assert form.hot == 32 and plain._train_form.form is None
    assert not torch.equal(form.order, torch.arange(NEURONS)), "nothing was put in order"
    assert torch.equal(form.order[form.places], torch.arange(NEURONS))
    for got, want in zip(layer.activity, plain.activity):
        assert torch.equal(got, want)


def test_what_is_asked(gpu: Gpu) -> None:
    layer = layer_of(True)
    run(layer, 0)
    assert not gpu.asked, "nothing was seen before the first pass"
    fired = (whole(ROWS, WIDTH, seed=0) @ layer.gate_proj.weight.detach().t() > 0).sum(0)
    new_step(layer)
    run(layer, 10)
    (asked,) = gpu.asked
    counts, order = fired.sort(descending=True, stable=True)
    assert torch.equal(asked.pop("rates"), counts.double() / ROWS)
    device = layer.gate_proj.weight.device
    assert asked == {
        "tokens": ROWS, "width": WIDTH, "device": device, "activation": "relu", "gated": True
    }  # fmt: skip
    assert torch.equal(layer._train_form.form.order, order)


def test_decides_after_the_first_step_and_every_32nd(gpu: Gpu) -> None:
    layer = layer_of(True)
    when = []
    for step in range(70):
        before = len(gpu.asked)
        for _ in range(2):  # micro-batches
            run(layer, step)
        if len(gpu.asked) > before:
            assert len(gpu.asked) == before + 1
            when.append(step)
        new_step(layer)
    assert when == [1, 33, 65]


@pytest.mark.parametrize("hot", [None, 0, NEURONS])
def test_without_hot_neurons_or_with_all_nothing_moves(gpu: Gpu, hot: int | None) -> None:
    layer, plain = layer_of(True), layer_of(True)
    gpu.hot = hot
    for step in range(2):
        assert_equal(run(layer, step), run(plain, step))
        new_step(layer)
    form = layer._train_form.form
    assert form is None if hot is None else (form.hot == hot and form.order is None)


@pytest.mark.parametrize("reentrant", [True, False])
def test_passes_that_run_again_have_the_same_form(gpu: Gpu, reentrant: bool) -> None:
    layer, plain = layer_of(True), layer_of(True)

    def call(x: Tensor) -> Tensor:
        return checkpoint(layer, x, use_reentrant=reentrant)

    for step in range(3):
        got = run(layer, step, call)
        assert_equal(got, run(plain, step))
        new_step(layer)
    assert len(gpu.asked) == 1


def test_a_trace_takes_what_holds_and_decides_nothing(gpu: Gpu) -> None:
    layer, plain = layer_of(True), layer_of(True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert_equal(run(layer, 0, compiled), run(plain, 0))
    new_step(layer)
    assert_equal(run(layer, 1, compiled), run(plain, 1))
    assert not gpu.asked
    for step in (2, 3):
        run(layer, step)
        new_step(layer)
    assert len(gpu.asked) == 1 and layer._train_form.form.hot == 32
    assert_equal(run(layer, 4, compiled), run(plain, 4))
    assert len(gpu.asked) == 1


def test_copies_begin_anew(gpu: Gpu) -> None:
    layer = layer_of(True)
    for step in range(2):
        run(layer, step)
        new_step(layer)
    assert layer._train_form.form is not None
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin._train_form.form is None
        assert_equal(run(twin, 5), run(layer, 5))


def test_dense_on_other_devices() -> None:
    layer = layer_of(True)
    for step in range(2):
        run(layer, step)
        new_step(layer)
    assert layer._train_form.form is None and layer._train_form._fired is None
