"""torch.ops.twell.ffn_train and its backward against float64 autograd."""

from __future__ import annotations

import pytest
import torch
import twell  # noqa: F401  (registers the operators)
from layers import DTYPES, UNIT, activate, make_layer
from torch import Tensor

OPS = torch.ops.twell


def tensors(dtype: torch.dtype, gated: bool, rows: int = 7, density: float = 0.2) -> list[Tensor | None]:
    layer = make_layer(40, 70, dtype, density)
    down = layer.down.clone()
    return [layer.inputs(rows), layer.gate, layer.up if gated else None, down]


def in_float64(inputs: list[Tensor | None], activation: str, threshold: float, l1: float):
    """y, l1, gradients and the magnitudes of their sums."""
    wide = [None if t is None else t.double().requires_grad_() for t in inputs]
    x, gate, up, down = wide
    h = activate(x @ gate.t(), activation, threshold)
    if up is not None:
        h = h * (x @ up.t())
    y = h @ down
    penalty = h.abs().sum()
    dy = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
    leaves = [t for t in wide if t is not None]
    grads = torch.autograd.grad((y * dy).sum() + l1 * penalty, leaves)
    return y.detach(), penalty.detach(), dy, grads


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype: torch.dtype, density: float, gated: bool) -> None:
    inputs = tensors(dtype, gated, rows=90, density=min(max(density, 1e-6), 1 - 1e-6))
    y64, l1_64, dy, grads64 = in_float64(inputs, "relu", 0.0, 0.01)
    leaves = [None if t is None else t.requires_grad_() for t in inputs]
    x, gate, up, down = leaves
    y, l1, row_nnz, neuron_nnz, *_ = OPS.ffn_train(x, [gate, up, down])
    assert int(row_nnz.sum()) == int(neuron_nnz.sum())
    wanted = [t for t in leaves if t is not None]
    grads = torch.autograd.grad((y * dy.to(dtype)).sum() + 0.01 * l1, wanted)
    # Each gradient is a sum of products of rounded factors (g, u, dh, h and dy, and here and there
    # a place whose pre-activation is within rounding of 0): 40 roundings of its norm are ample.
    for name, got, want in zip("y l1 dx dgate dup ddown".split(), (y, l1, *grads), (y64, l1_64, *grads64)):
        error = (got.detach().double() - want).norm()
        assert float(error) <= 40 * UNIT[dtype] * float(want.norm()) + 1e-6, name


@pytest.mark.parametrize("gated", [True, False])
def test_adding_into_float32(gated: bool) -> None:
    inputs = tensors(torch.bfloat16, gated)
    x, gate, up, down = inputs
    y, _, _, _, *lists = OPS.ffn_train(x, [gate, up, down])
    dy = torch.ones_like(y)
    l1 = torch.tensor(0.5)
    _, *once = OPS.ffn_train_backward(dy, x, [gate, up, down], lists, l1)
    sums = [None if t is None else torch.ones_like(t, dtype=torch.float32) for t in (gate, up, down)]
    for _ in range(2):
        dx = OPS.ffn_train_backward_add(dy, x, [gate, up, down], lists, l1, sums)
    assert dx.shape == x.shape
    for got, want in zip(sums, once):
        if got is not None:
            torch.testing.assert_close(got, 1 + 2 * want.float(), rtol=2e-2, atol=2e-2)


def test_nothing_beyond_what_fires_is_touched() -> None:
    x, gate, up, down = tensors(torch.bfloat16, True)
    _, _, row_nnz, _, offsets, neurons, values = OPS.ffn_train(x, [gate, up, down])
    assert offsets.tolist() == [0, *row_nnz.cumsum(0).tolist()]
    assert neurons.numel() == x.shape[0] * gate.shape[0] and values.shape == (2, neurons.numel())


def test_opcheck() -> None:
    for gated in (True, False):
        x, gate, up, down = tensors(torch.float32, gated)
        leaves = [None if t is None else t.requires_grad_() for t in (x, gate, up, down)]
        # The lists are uninitialised past what fires: nothing there is compared.
        torch.library.opcheck(
            OPS.ffn_train.default, (leaves[0], leaves[1:]), test_utils=("test_schema", "test_faketensor")
        )
        plain = [None if t is None else t.detach() for t in leaves]
        y, _, _, _, *lists = OPS.ffn_train(plain[0], plain[1:])
        torch.library.opcheck(
            OPS.ffn_train_backward.default,
            (torch.ones_like(y), plain[0], plain[1:], lists, torch.tensor(0.5)),
        )


def test_a_weight_that_changed_is_an_error() -> None:
    x, gate, up, down = (t.requires_grad_() for t in tensors(torch.float32, True))
    y = OPS.ffn_train(x, [gate, up, down])[0]
    with torch.no_grad():
        gate.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_second_backward_is_an_error() -> None:
    x, gate, up, down = (t.requires_grad_() for t in tensors(torch.float32, True))
    y = OPS.ffn_train(x, [gate, up, down])[0]
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_errors_name_operation_and_argument() -> None:
    x, gate, up, down = tensors(torch.float32, True)
    y, _, _, _, offsets, neurons, values = OPS.ffn_train(x, [gate, up, down])
    with pytest.raises(RuntimeError, match=r"twell::ffn_train: .*activation: expected one of relu"):
        OPS.ffn_train(x, [gate, up, down], None, "silu")
    with pytest.raises(RuntimeError, match=r"ffn_train_backward: offsets: expected Long \[8\]"):
        OPS.ffn_train_backward(y, x, [gate, up, down], [offsets[1:], neurons, values], None)
    with pytest.raises(RuntimeError, match=r"ffn_backward: dy: expected f32 \[7, 40\]"):
        OPS.ffn_train_backward(y[1:], x, [gate, up, down], [offsets, neurons, values], None)
    wrong = neurons.clone()
    wrong[0] = 70
    with pytest.raises(RuntimeError, match="neurons: expected what ffn_train returned; row 0"):
        OPS.ffn_train_backward(y, x, [gate, up, down], [offsets, wrong, values], None)
    with pytest.raises(RuntimeError, match="offsets: expected what ffn_train returned; row 0"):
        OPS.ffn_train_backward(y, x, [gate, up, down], [offsets + 1, neurons, values], None)
    nan = torch.tensor(float("nan"))
    with pytest.raises(RuntimeError, match="l1: expected a finite gradient, got nan"):
        OPS.ffn_train_backward(y, x, [gate, up, down], [offsets, neurons, values], nan)
