"""Layers under torch.autocast: as nn.Linear, with gradients in the parameters' own dtype."""

from __future__ import annotations

import pytest
import torch
import twell
from layers import make_layer
from torch import Tensor, nn


def layer_of(dtype: torch.dtype, gated: bool = True) -> twell.GatedFfn | twell.Ffn:
    layer = make_layer(40, 100, dtype, density=0.3)
    down = layer.down.t().contiguous()
    if gated:
        out = twell.GatedFfn.from_dense(layer.gate, layer.up, down)
    else:
        out = twell.Ffn.from_dense(layer.gate, down)
    return out.requires_grad_()


def inputs(rows: int = 300) -> Tensor:
    return make_layer(40, 100, torch.float32, density=0.3).inputs(rows)


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    assert all(p.grad.dtype == p.dtype for p in module.parameters())
    return [p.grad.float() for p in module.parameters()]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_training(kind: torch.dtype, gated: bool) -> None:
    module, x = layer_of(torch.float32, gated), inputs().to(kind).requires_grad_()
    got = gradients(module, x)
    assert x.grad.dtype == kind
    # What autocast computes is the bf16 layer.
    want = gradients(layer_of(torch.float32, gated).bfloat16(), x.detach().bfloat16())
    for a, b in zip(got, want):
        assert torch.equal(a.bfloat16(), b.bfloat16())


def test_behind_a_linear_layer_without_gradients(gated: bool) -> None:
    # As in a model: the linear layer before it hands over bf16.
    for freeze in (False, True):
        for rows in (5, 300):
            module = layer_of(torch.float32, gated)
            exact = layer_of(torch.float64, gated)
            model = nn.Sequential(nn.Linear(40, 40), module.freeze() if freeze else module)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                x = model[0](inputs(rows))
                y = model(inputs(rows))
            assert x.dtype == y.dtype == torch.bfloat16
            want = exact(x.double())
            assert (y.double() - want).norm() <= 2.0**-6 * want.norm()


@pytest.mark.parametrize("screen", [False, True])
def test_operators(screen: bool) -> None:
    layer = make_layer(40, 100, torch.float32, density=0.3)
    x = layer.inputs(9)
    gate = layer.gate if screen else twell.ops.pack_weight(layer.gate)
    operands = (gate, layer.up, layer.down, twell.ops.screen_weight(layer.gate) if screen else None)
    packed = twell.ops.pack_weight(layer.gate)
    with torch.autocast("cpu", torch.bfloat16):
        y = twell.ops.ffn(x.bfloat16(), *operands)
        stats, row_nnz, *_ = twell.ops.ffn_stats(x, *operands)
        z = twell.ops.linear(x.bfloat16(), packed)
        trained, l1, *_ = twell.ops.ffn_train(x, layer.gate, layer.up, layer.down)
    assert y.dtype == stats.dtype == z.dtype == trained.dtype == torch.bfloat16
    assert l1.dtype == torch.float32 and row_nnz.dtype == torch.int32
    # What is packed stays in its dtype, and is not rounded.
    assert torch.equal(stats, twell.ops.ffn(x, *operands).bfloat16())
    wide = (layer.gate.bfloat16(), layer.up.bfloat16(), layer.down.bfloat16())
    assert torch.equal(trained, twell.ops.ffn_train(x.bfloat16(), *wide)[0])


def test_disabled_and_other_dtypes() -> None:
    module, x = layer_of(torch.float32), inputs()
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert module(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):  # float64 is left alone, as by nn.Linear
        assert layer_of(torch.float64)(x.double()).dtype == torch.float64
    with torch.autocast("cpu", torch.float16):
        y = module(x)
        y.float().sum().backward()
    assert y.dtype == torch.float16 and module.gate_proj.weight.grad.dtype == torch.float32
    with pytest.raises(RuntimeError, match="x: expected f32"):
        module(x.bfloat16())


def test_compiled(gated: bool) -> None:
    module, x = layer_of(torch.float32, gated), inputs()
    want = gradients(module, x)
    got = gradients(torch.compile(module, backend="aot_eager", fullgraph=True), x)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=2.0**-6, atol=1e-6)
