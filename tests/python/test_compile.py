"""torch.compile(fullgraph), aot_eager backend: same bits, no graph break, dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from layers import let_screens_pay, make_layer
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from twell import _frozen, _ordered


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_operator(dynamic: bool, dtype: torch.dtype) -> None:
    layer = make_layer(40, 100, dtype)
    packed = twell.ops.pack_weight(layer.gate)

    def call(x: Tensor) -> Tensor:
        return twell.ops.ffn(x * 2, packed, layer.up, layer.down) + x

    fast = compiled(call, dynamic)
    for rows in (1, 3, 17):
        x = layer.inputs(2, rows)
        assert torch.equal(fast(x), call(x))


@pytest.mark.parametrize("trained", [False, True])
def test_dynamic_rows_compile_once(trained: bool) -> None:
    layer = make_layer(40, 100)
    packed = twell.ops.pack_weight(layer.gate)
    weights = [w.requires_grad_() for w in (layer.gate, layer.up, layer.down)]
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def call(x: Tensor) -> Any:
        return twell.gated_ffn(x, *weights) if trained else twell.ops.ffn(x, packed, layer.up, layer.down)

    fast = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for rows in (5, 6, 50):
        fast(layer.inputs(rows))
    assert len(graphs) == 1


def test_data_dependent_size(dtype: torch.dtype) -> None:
    layer = make_layer(40, 100, dtype, density=0.5)
    packed = twell.ops.pack_weight(layer.gate)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        triple = twell.ops.gemm_relu_twell(x, packed, tile=16, capacity=4)
        return triple[2], twell.ops.twell_gated_ffn(x, *triple, layer.up, layer.down)

    x = layer.inputs(9)
    for got, want in zip(compiled(call)(x), call(x)):
        assert torch.equal(got, want)


def test_gradients_of_the_operator() -> None:
    layer = make_layer(20, 50)
    weights = [w.requires_grad_() for w in (layer.gate, layer.up, layer.down)]

    def call(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return twell.ops.ffn(x, twell.ops.pack_weight(gate), up, down).square().sum()

    x = layer.inputs(6).requires_grad_()
    want = torch.autograd.grad(call(x, *weights), [x, *weights])
    got = torch.autograd.grad(compiled(call)(x, *weights), [x, *weights])
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_function(dynamic: bool) -> None:
    layer = make_layer(20, 50)
    weights = [w.requires_grad_() for w in (layer.gate, layer.up, layer.down)]

    def call(x: Tensor) -> Tensor:
        y, l1 = twell.gated_ffn(x, *weights)
        return y.square().sum() + 0.1 * l1

    fast = compiled(call, dynamic)
    for rows in (3, 8):
        x = layer.inputs(2, rows)
        want = torch.autograd.grad(call(x), weights)
        for a, b in zip(torch.autograd.grad(fast(x), weights), want):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("freeze", ["no", "packed", "screened"])
def test_module(freeze: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    let_screens_pay(monkeypatch)
    layer = make_layer(40, 100, dtype)
    module = twell.GatedFfn.from_dense(layer.gate, layer.up, layer.down.t().contiguous())
    if freeze != "no":
        module.freeze(layer.inputs(32) if freeze == "screened" else None)
    assert module.screened == (freeze == "screened")
    fast = compiled(module, True)
    with torch.no_grad():
        for rows in (2, 5):
            x = layer.inputs(rows)
            got = fast(x)
            if freeze != "no":
                assert torch.equal(got, module(x))
            else:
                dense = twell.dense.ffn(x, layer.gate, layer.up, layer.down)[0]
                torch.testing.assert_close(got, dense)


def fake_cuda(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """A tensor without data that says it is on a GPU; inside FakeTensorMode."""
    return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_shapes_on_a_gpu_without_one(half: torch.dtype) -> None:
    with FakeTensorMode():
        x, weight = fake_cuda(3, 5, 40, dtype=half), fake_cuda(100, 40, dtype=half)
        packed = twell.ops.pack_weight(weight)
        assert packed.device.type == "cuda" and packed.shape == (100, 96, 1)
        # As cuda/tests/train_test.cc has it, in elements of 2 bytes.
        y, l1, *_, offsets, neurons, values = torch.ops.twell.ffn_train(x, [weight] * 3)
        assert y.shape == x.shape and l1.shape == () and l1.dtype == torch.float32
        assert (offsets.shape, neurons.shape, values.shape) == ((0,), (0,), (2648 // 2,))
        assert values.dtype == half
        dx, dgate, dup, ddown, *of_vectors = torch.ops.twell.ffn_train_backward(
            y, x, [weight] * 3, [offsets, neurons, values], l1
        )
        assert dx.shape == x.shape and dgate.shape == dup.shape == ddown.shape == weight.shape
        assert [tuple(t.shape) for t in of_vectors] == [(0,)] * 4
        # As cuda/tests/screen_test.cc has it.
        assert twell.ops.screen_weight(weight).shape == (10752,)
        leaf = weight.clone().requires_grad_()
        for hot in (None, 0, 16):
            y, l1 = twell.gated_ffn(x, leaf, weight, weight, hot=hot)
            assert y.shape == x.shape and l1.dtype == torch.float32
            # Dense unless a number of hot neurons is given.
            assert ("ffn_train" in y.grad_fn.name()) == (hot is not None)
        assert twell.ops.unpack_weight(packed).shape == (100, 40)
        y, row_nnz, neurons, _ = twell.ops.ffn_stats(x, packed, weight, weight)
        assert (y.shape, y.dtype, y.device) == (x.shape, half, x.device)
        assert (row_nnz.shape, neurons.shape) == ((3, 5), (100,))
        # Every (row, tile) has a record of its own: no size depends on data.
        triple = twell.ops.gemm_relu_twell(x[0], packed, tile=32, capacity=8)
        assert [tuple(t.shape) for t in triple] == [(5, 4), (5, 4, 8), (20, 32)]
        full = twell.ops.dense_to_twell(x[0], tile=32, capacity=32)
        assert tuple(full[2].shape) == (0, 32)
        assert twell.ops.twell_gated_ffn(x[0], *triple, weight, weight).shape == (5, 40)
        assert twell.ops.twell_spmm(*triple, weight).dtype == half
        assert twell.ops.twell_to_dense(*triple, 100, half).shape == (5, 100)


@pytest.mark.parametrize("screened", [False, True])
def test_ordered_layer_on_a_gpu_without_one(
    screened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeTensorMode():
        module = twell.GatedFfn(40, 100, dtype=torch.float16, device="cuda")
        gate, up, down = (fake_cuda(100, 40) for _ in range(3))
        screen = twell.ops.screen_weight(gate) if screened else None
        gate = gate if screened else twell.ops.pack_weight(gate)
        order = fake_cuda(100, dtype=torch.int64)
        held = _ordered.Operands(gate, up, down, screen, order, (0,) * 6 + (64,) * 11)
        monkeypatch.setattr(_frozen, "held_of", lambda *_: held)
        module.freeze()
        x = fake_cuda(3, 40, 40)
        y = module(x)
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        shapes = [(100, 40), (100, 40), (40, 100)]
        assert [tuple(w.shape) for w in module.state_dict().values()] == shapes
        assert [tuple(p.shape) for p in module.thaw().parameters()] == shapes
