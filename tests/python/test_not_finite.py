"""NaN and infinities, in inputs and weights: outputs have them where the dense layer's have."""

from __future__ import annotations

import copy
import io
import math
import warnings

import pytest
import torch
import twell
from torch import Tensor

VALUES = [math.nan, math.inf, -math.inf]
NEURON = 7


def dense(x: Tensor, weights: list[Tensor], activation: str) -> Tensor:
    first, *up, down = weights
    v = x @ first.t()
    g = {
        "relu": torch.relu(v),
        "relu_squared": torch.relu(v).square(),
        "fat_relu": torch.where(v <= 0.5, 0.0, v),
    }[activation]
    return (g if not up else g * (x @ up[0].t())) @ down.t()


def cases(gated: bool, value: float) -> list[tuple[str, Tensor, list[Tensor]]]:
    """Where the value stands, the input, and the weights as a checkpoint has them."""
    torch.manual_seed(0)
    x = torch.randn(40, 32)
    # 64 neurons: where that is no multiple of 32, oneDNN's tiles multiply what follows a row of bf16,
    # the next row, by zeros.
    weights = [torch.randn(64, 32) for _ in range(2 if gated else 1)] + [torch.randn(32, 64)]
    out = []
    for at in range(len(weights)):
        changed = [w.clone() for w in weights]
        rows = changed[at] if at < len(weights) - 1 else changed[at].t()
        rows[NEURON, 3:5] = value
        out.append((("gate", "up", "down")[at if gated else at + 1], x, changed))
    wrong = x.clone()
    wrong[3, 5] = value
    return [("x", wrong, weights), *out]


def layer_of(weights: list[Tensor], activation: str) -> twell.Ffn | twell.GatedFfn:
    kind = twell.GatedFfn if len(weights) == 3 else twell.Ffn
    threshold = 0.5 if activation == "fat_relu" else 0.0
    copies = [w.clone() for w in weights]
    return kind.from_dense(*copies, activation=activation, threshold=threshold).requires_grad_(False)


def expect_same_kinds(got: Tensor, want: Tensor) -> None:
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())
    assert torch.equal(got.isneginf(), want.isneginf())


@pytest.mark.filterwarnings("ignore:.*runs densely")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["relu", "relu_squared", "fat_relu"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("value", VALUES)
def test_outputs_have_them_where_dense_ones_have(
    value: float, gated: bool, activation: str, dtype: torch.dtype
) -> None:
    for where, x, weights in cases(gated, value):
        x, weights = x.to(dtype), [w.to(dtype) for w in weights]
        want = dense(x, weights, activation)
        frozen = layer_of(weights, activation).freeze()
        expect_same_kinds(frozen(x), want)
        sampled = layer_of(weights, activation).freeze(sample=x.nan_to_num(0, 0, 0))
        expect_same_kinds(sampled(x), want)
        for rows in (x[3:4], x[4:5]):
            expect_same_kinds(frozen(rows), dense(rows, weights, activation))
        trained = layer_of(weights, activation).requires_grad_().train()
        expect_same_kinds(trained(x).detach(), want)
        assert not want.isfinite().all(), where


def test_a_layer_is_told_and_follows_its_weights() -> None:
    (_, x, good), _, (_, _, bad), _ = cases(True, math.nan)
    x = x.nan_to_num()
    layer = layer_of(good, "relu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.freeze()
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    before = layer(x)
    with pytest.warns(UserWarning, match="runs densely"):
        layer.load_state_dict(dict(zip(names, bad)))
    expect_same_kinds(layer(x), dense(x, bad, "relu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        other = copy.deepcopy(layer)
        expect_same_kinds(other(x), dense(x, bad, "relu"))
        expect_same_kinds(other.to(torch.bfloat16)(x.bfloat16()), dense(x, bad, "relu"))
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        expect_same_kinds(torch.load(buffer, weights_only=False)(x), dense(x, bad, "relu"))
        layer.load_state_dict(dict(zip(names, good)))
    assert torch.equal(layer(x), before)


def test_a_warning_names_the_line_that_froze() -> None:
    _, _, (_, _, bad), _ = cases(True, math.inf)
    with pytest.warns(UserWarning, match="up, down or what lies between has NaN or infinities") as said:
        layer_of(bad, "relu").freeze()
    assert said[0].filename == __file__


def test_no_neuron_fires_and_u_is_infinite() -> None:
    """0 times it is NaN, although there is nothing to add up."""
    gate, up, down = torch.full((4, 8), -1.0), torch.ones(4, 8), torch.ones(8, 4)
    x = torch.ones(2, 8)
    x[1, 2] = math.inf
    layer = twell.GatedFfn.from_dense(gate, up, down).requires_grad_(False)
    assert torch.equal(layer.freeze()(x)[0], torch.zeros(8))
    assert layer(x)[1].isnan().all()
    layer.thaw().train()
    y = layer(x)
    assert torch.equal(y[0], torch.zeros(8))
    assert y[1].isnan().all()
