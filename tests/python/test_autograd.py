"""Gradients: finite differences in float64, and the operators' against float64 autograd."""

from __future__ import annotations

import pytest
import torch
import twell
from layers import UNIT, activate, make_layer
from torch import Tensor
from twell import _rules

# (activation, threshold)
ACTIVATIONS = [("relu", 0.0), ("relu_squared", 0.0), ("fat_relu", 0.2)]


def leaves(dtype: torch.dtype, rows: int = 6, seed: int = 0) -> list[Tensor]:
    layer = make_layer(9, 20, torch.float32, density=0.4, seed=seed)
    tensors = (layer.inputs(rows), layer.gate, layer.up, layer.down)
    return [t.to(dtype).requires_grad_() for t in tensors]


def away_from_kinks(tensors: list[Tensor], threshold: float, distance: float) -> bool:
    x, gate = tensors[0], tensors[1]
    return bool(((x @ gate.t() - threshold).abs() > distance).all())


@pytest.mark.parametrize(("activation", "threshold"), ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 6])
def test_gradcheck(activation: str, threshold: float, rows: int) -> None:
    # gradcheck moves each input by 1e-6, the gate's argument thus by at most 1e-6 · (|x| + |w|).
    seed = next(
        s for s in range(100) if away_from_kinks(leaves(torch.float64, rows, s), threshold, 1e-4)
    )
    tensors = leaves(torch.float64, rows, seed)
    assert torch.autograd.gradcheck(
        lambda *t: twell.gated_ffn(*t, activation, threshold), tensors, eps=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(("activation", "threshold"), ACTIVATIONS)
def test_training_function_is_autograd_of_the_definition(activation: str, threshold: float) -> None:
    tensors = leaves(torch.float64)
    x, gate, up, down = tensors
    h = activate(x @ gate.t(), activation, threshold) * (x @ up.t())
    want_l1 = h.abs().sum() / x.shape[0]
    y, l1 = twell.gated_ffn(*tensors, activation, threshold)
    torch.testing.assert_close(y, h @ down)
    torch.testing.assert_close(l1, want_l1)
    coefficient = 0.3
    got = torch.autograd.grad(y.square().sum() + coefficient * l1, tensors)
    want = torch.autograd.grad((h @ down).square().sum() + coefficient * want_l1, tensors)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


def test_l1_gradient_of_h() -> None:
    """λ·sign(h)/M, seen through y = h with down the identity and an up of ones."""
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.0]], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    gate = eye.clone().requires_grad_()
    ones = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    _, l1 = twell.gated_ffn(x, gate, ones, eye)
    # h = relu(x)·x = [1, 0], [9, 16], [0, 0]: Σ|h| = 26 over 3 tokens.
    assert float(l1.detach()) == pytest.approx(26 / 3)
    (0.5 * l1).backward()
    # dv = λ·sign(h)/M·u on active units; dgate = dvᵀ x.
    dv = 0.5 / 3 * torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gate.grad, dv.t() @ x)


def test_no_rows() -> None:
    tensors = leaves(torch.float32, rows=0)
    y, l1 = twell.gated_ffn(*tensors)
    assert y.shape == (0, 9) and float(l1.detach()) == 0
    for grad in torch.autograd.grad(y.sum() + l1, tensors):
        assert not grad.any()


def operator(tensors: list[Tensor], gated: bool, activation: str, threshold: float) -> Tensor:
    x, gate, up, down = tensors
    packed = twell.ops.pack_weight(gate)
    return twell.ops.ffn(x, packed, up if gated else None, down, None, activation, threshold)


@pytest.mark.parametrize(("activation", "threshold"), ACTIVATIONS)
def test_operator_gradients(
    activation: str, threshold: float, gated: bool, dtype: torch.dtype
) -> None:
    """Against float64 autograd of the definition on the same (rounded) inputs.

    Every gradient is a chain of at most 4 roundings to the dtype and sums whose float32 error
    (at most 20 terms) is below one such rounding in bf16; in float32 each of 4 sums of up to 20
    terms costs 22 roundings. The bound is relative to the same chain on magnitudes.
    """
    seed = next(
        s
        for s in range(100)
        if away_from_kinks(
            [t.to(dtype).double() for t in leaves(torch.float32, 6, s)], threshold, 1e-3
        )
    )
    tensors = [t.detach().to(dtype).requires_grad_() for t in leaves(torch.float32, 6, seed)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    x, gate, *_ = exact

    def definition(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        g = activate(x @ gate.t(), activation, threshold)
        return (g * (x @ up.t()) if gated else g) @ down

    dy = torch.randn(6, 9, generator=torch.Generator().manual_seed(5)).to(dtype)
    used = [0, 1, 2, 3] if gated else [0, 1, 3]
    got = torch.autograd.grad(
        operator(tensors, gated, activation, threshold), [tensors[i] for i in used], dy
    )
    want = torch.autograd.grad(definition(*exact), [exact[i] for i in used], dy.double())
    # All of the chain is a polynomial of the magnitudes where the gate is open: its value on
    # absolute values, with the same pattern, bounds what every rounding is relative to.
    pattern = (activate(x @ gate.t(), activation, threshold) != 0).double()
    mags = [t.detach().abs().requires_grad_() for t in exact]
    v = mags[0] @ mags[1].t()
    g = pattern * (v * v if activation == "relu_squared" else v)
    bound = (g * (mags[0] @ mags[2].t()) if gated else g) @ mags[3]
    magnitude = torch.autograd.grad(bound, [mags[i] for i in used], dy.double().abs())
    roundings = 8 if dtype == torch.bfloat16 else 4 * 22
    for a, b, m in zip(got, want, magnitude):
        assert a.dtype == dtype
        assert bool(((a.double() - b).abs() <= roundings * UNIT[dtype] * m).all())


@pytest.mark.parametrize("index", range(4))
def test_only_wanted_gradients(index: int, gated: bool) -> None:
    if index == 2 and not gated:
        pytest.skip("a non-gated layer has no second weight")
    tensors = leaves(torch.float32)
    (want,) = torch.autograd.grad(operator(tensors, gated, "relu", 0.0).sum(), tensors[index])
    alone = [t.detach().requires_grad_(i == index) for i, t in enumerate(tensors)]
    (got,) = torch.autograd.grad(operator(alone, gated, "relu", 0.0).sum(), alone[index])
    assert torch.equal(got, want)
    if gated:
        (trained,) = torch.autograd.grad(twell.gated_ffn(*alone)[0].sum(), alone[index])
        torch.testing.assert_close(trained, want)


def test_statistics_have_no_gradient() -> None:
    x, gate, up, down = leaves(torch.float32)
    y, row_nnz, counts, _ = twell.ops.ffn_stats(x, twell.ops.pack_weight(gate), up, down)
    assert y.requires_grad and not row_nnz.requires_grad and not counts.requires_grad
    want = torch.autograd.grad(operator([x, gate, up, down], True, "relu", 0.0).sum(), gate)
    got = torch.autograd.grad(y.sum(), gate)
    assert torch.equal(got[0], want[0])


def test_packing_is_a_permutation_for_gradients(dtype: torch.dtype) -> None:
    weight = torch.randn(37, 21).to(dtype).requires_grad_()
    scale = torch.randn(37, 21).to(dtype)
    back = twell.ops.unpack_weight(twell.ops.pack_weight(weight))
    (grad,) = torch.autograd.grad(back, weight, scale)
    assert torch.equal(grad, scale)


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match=r'activation: expected one of relu.*got "silu"'):
        twell.gated_ffn(*leaves(torch.float32), "silu")
    with pytest.raises(ValueError, match="threshold: expected 0, since relu"):
        twell.gated_ffn(*leaves(torch.float32), "relu", 0.5)


@pytest.mark.parametrize("vectors", [0, 2, 4])
def test_a_gradient_for_each_tensor_of_a_call(vectors: int) -> None:
    """PyTorch 2.15 refuses fewer, and older ones do not tell."""
    found = []

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *weights):
            y = torch.ops.twell.ffn(x, list(weights))
            _rules._keep_ffn(ctx, y, x, list(weights))
            return y

        @staticmethod
        def backward(ctx, dy):
            found.append(_rules._ffn_backward(ctx, dy))
            return found[0]

    x, up, down = (torch.randn(size, 16, requires_grad=True) for size in (3, 32, 32))
    weights = (torch.ops.twell.pack_weight(up), None, down, *(None,) * vectors)
    Call.apply(x, *weights).sum().backward()
    assert [g is not None for g in found[0]] == [True, True, False, True, *(False,) * vectors]
