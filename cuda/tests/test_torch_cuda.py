"""torch.ops.twell on CUDA tensors: registered wherever PyTorch has CUDA, run where a GPU is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

OPERATORS = (
    "pack_weight",
    "unpack_weight",
    "screen_weight",
    "ffn",
    "ffn_stats",
    "ffn_train",
    "ffn_train_backward",
    "ffn_train_backward_add",
    "gemm_relu_twell",
    "twell_gated_ffn",
    "twell_spmm",
    "dense_to_twell",
    "twell_to_dense",
)


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    torch.ops.load_library(os.environ["TWELL_TORCH_LIBRARY"])
    torch.ops.load_library(os.environ["TWELL_TORCH_CUDA_LIBRARY"])


@pytest.fixture(scope="module")
def twell(libraries: None) -> ModuleType:
    """The package on top of the same libraries."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    import twell

    return twell


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")


@pytest.mark.parametrize("name", OPERATORS)
def test_is_registered_for_cuda_and_leaves_the_cpu_alone(name: str) -> None:
    for key in ("CUDA", "CPU"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"twell::{name}", key)


@pytest.mark.parametrize("name", ["choose_hot", "choose_training", "screen_pays"])
def test_plans_are_of_no_tensor(name: str) -> None:
    key = "CompositeExplicitAutograd"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"twell::{name}", key)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_such_gpu_is_one_line(twell: ModuleType, dtype: torch.dtype) -> None:
    none = "ordinal: expected 0 to" if torch.cuda.is_available() else "no NVIDIA GPU or driver"
    for device in ("cuda:99", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(RuntimeError, match=f"^twell::cuda::device: .*{none}"):
            twell.ops.choose_hot(torch.ones(8, dtype=dtype), 64, 32, device=device)
        with pytest.raises(RuntimeError, match=f"^twell::cuda::device: .*{none}"):
            twell.ops.screen_pays(1, 64, 32, 0.01, device=device)
        with pytest.raises(RuntimeError, match=f"^twell::cuda::device: .*{none}"):
            twell.ops.choose_training(torch.ones(8, dtype=dtype), 64, 32, device=device)


def layer(tokens: int, depth: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype).cuda()

    x = normal(tokens, depth, scale=1.0)
    gate = normal(hidden, depth, scale=depth**-0.5)
    x[:, 0] = 1.0
    gate[:, 0] = -1.5
    return x, gate, normal(hidden, depth, scale=depth**-0.5), normal(hidden, depth, scale=0.1)


def expected(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    x, gate, up, down = (t.double() for t in (x, gate, up, down))
    return (torch.relu(x @ gate.T) * (x @ up.T)) @ down


# bf16 rounds g and y by 2⁻⁹ at most each, f16 by 2⁻¹²; sums in f32 are far more exact.
@needs_gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
@pytest.mark.parametrize("tokens", [1, 3, 17, 40, 300])
@pytest.mark.parametrize("depth", [13, 72])
def test_gated_layer(dtype: torch.dtype, bound: float, tokens: int, depth: int) -> None:
    x, gate, up, down = layer(tokens, depth, 300, dtype)
    packed = torch.ops.twell.pack_weight(gate)
    assert torch.equal(torch.ops.twell.unpack_weight(packed), gate)
    y, row_nnz, neurons, _ = torch.ops.twell.ffn_stats(x, [packed, up, down])
    exact = expected(x, gate, up, down)
    assert (y.double() - exact).norm() <= bound * exact.norm()
    assert row_nnz.sum() == neurons.sum()
    assert torch.equal(y, torch.ops.twell.ffn(x, [packed, up, down]))


# A plan takes the screen for few tokens; the layer is the same.
@needs_gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
@pytest.mark.parametrize("tokens", [1, 8, 40])
@pytest.mark.parametrize("depth", [13, 1024])
def test_screened_gate(dtype: torch.dtype, bound: float, tokens: int, depth: int) -> None:
    x, gate, up, down = layer(tokens, depth, 300, dtype)
    screen = torch.ops.twell.screen_weight(gate, x.float().mean(0))
    y, row_nnz, neurons, candidates = torch.ops.twell.ffn_stats(x, [gate, up, down], screen)
    exact = expected(x, gate, up, down)
    assert (y.double() - exact).norm() <= bound * exact.norm()
    assert row_nnz.sum() == neurons.sum() and candidates <= tokens * 300


# u and h are rounded too where neurons are hot.
@needs_gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
@pytest.mark.parametrize("tokens", [1, 64, 300])
@pytest.mark.parametrize("hot", [16, 300])
def test_hot_neurons(dtype: torch.dtype, bound: float, tokens: int, hot: int) -> None:
    x, gate, up, down = layer(tokens, 72, 300, dtype)
    packed = torch.ops.twell.pack_weight(gate)
    y, row_nnz, neurons, _ = torch.ops.twell.ffn_stats(x, [packed, up, down], hot=hot)
    exact = expected(x, gate, up, down)
    assert (y.double() - exact).norm() <= bound * exact.norm()
    assert row_nnz.sum() == neurons.sum()
    assert torch.equal(y, torch.ops.twell.ffn(x, [packed, up, down], hot=hot))


@needs_gpu
@pytest.mark.parametrize("training", [False, True])
def test_choice_of_hot_neurons(twell: ModuleType, training: bool) -> None:
    popular = (torch.arange(10, 5642).double().reciprocal() * 4).clamp(max=1)  # 26 a token
    hot = twell.ops.choose_hot(popular, 16384, 2048, joined=not training, training=training)
    assert 0 < hot < 5632 and hot % 64 == 0
    assert twell.ops.choose_hot(popular, 1, 2048) == 0
    assert twell.ops.choose_hot(torch.zeros(5632), 16384, 2048, training=training) == 0
    assert twell.ops.choose_hot(torch.ones(5632), 16384, 2048, training=training) == 5632
    with pytest.raises(RuntimeError, match="rates: expected the highest first"):
        twell.ops.choose_hot(popular.flip(0), 64, 2048)


@needs_gpu
def test_where_training_is_sparse(twell: ModuleType) -> None:
    popular = (torch.arange(10, 5642).double().reciprocal() * 4).clamp(max=1)  # 26 a token
    hot = twell.ops.choose_training(popular, 16384, 2048)
    assert hot is not None and hot == twell.ops.choose_hot(popular, 16384, 2048, training=True)
    assert twell.ops.choose_training(torch.full((5632,), 0.5), 16384, 2048) is None
    with pytest.raises(RuntimeError, match="rates: expected the highest first"):
        twell.ops.choose_training(popular.flip(0), 64, 2048)


# A layer that is trained takes the sparse form after its first step.
@needs_gpu
@pytest.mark.parametrize("gated", [False, True])
def test_trained_layer(twell: ModuleType, gated: bool) -> None:
    rows, depth, hidden = 8192, 2048, 5632
    x, gate, up, down = layer(rows, depth, hidden, torch.bfloat16)
    bias = torch.linspace(1.0, 7.0, hidden, device=x.device)[torch.randperm(hidden)]
    x[:, 0] = 1.0
    gate[:, 0] = -bias.to(gate)  # of different rates; 1.4 % of all fire
    weights = [gate, up, down.t().contiguous()] if gated else [gate, down.t().contiguous()]
    module = (twell.GatedFfn if gated else twell.Ffn).from_dense(
        *(torch.nn.Parameter(w) for w in weights)
    )
    dy = torch.randn_like(x)
    results = []
    for _ in range(2):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        module.zero_grad()
        y.backward(dy)
        results.append([y.detach(), inputs.grad, *(w.grad for w in module.parameters())])
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(0.0)
    form = module._train_form.form
    assert form is not None and 0 < form.hot < hidden and form.order is not None
    for dense, sparse in zip(*results):  # both round to bfloat16 in other places
        assert (dense.double() - sparse.double()).norm() <= 2**-6 * dense.double().norm()


@needs_gpu
def test_where_a_screen_does_not_pay(twell: ModuleType) -> None:
    assert not twell.ops.screen_pays(1, 2048, 5632, 1.0)
    assert not twell.ops.screen_pays(33, 2048, 5632, 0.01)


# Layers of Python that are frozen with a sample: ordered, hot for many inputs, screened for few.
@needs_gpu
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
@pytest.mark.parametrize(("depth", "hidden"), [(2048, 5632), (72, 300)])
def test_frozen_layer(
    twell: ModuleType, gated: bool, dtype: torch.dtype, bound: float, depth: int, hidden: int
) -> None:
    x, gate, up, down = layer(1024, depth, hidden, dtype)
    x[:, 1] = 2.0
    gate[: hidden // 8, 1] = 1.0  # an eighth fires often
    gate[hidden // 8 :, 1] = -1.0
    weights = [gate, up, down.t().contiguous()] if gated else [gate, down.t().contiguous()]
    module = (twell.GatedFfn if gated else twell.Ffn).from_dense(*weights)
    module.freeze(x)
    assert module.ordered and (module.order[: hidden // 16] < hidden // 8).all()
    assert all(map(torch.equal, module.state_dict().values(), weights))
    wide = [t.double() for t in (x, gate, up, down)]
    exact = torch.relu(wide[0] @ wide[1].T) * (wide[0] @ wide[2].T if gated else 1) @ wide[3]
    with torch.inference_mode():
        for rows in (1, 8, 64, 1024):
            y = module(x[:rows]).double()
            assert (y - exact[:rows]).norm() <= bound * exact[:rows].norm()
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
        for rows in (2, 100):
            y = compiled(x[:rows]).double()
            assert (y - exact[:rows]).norm() <= bound * exact[:rows].norm()
    if depth == 2048:
        assert module._hot[10] > 0
    there_and_back = module.cpu() if dtype == torch.bfloat16 else module
    assert there_and_back.ordered == (dtype == torch.float16)
    assert module.cuda().ordered


# Gradients of the exact layer at the same inputs; g, u, dh, du, dv, h and y may be rounded.
@needs_gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-5), (torch.float16, 2**-8)])
@pytest.mark.parametrize("tokens", [3, 300])
@pytest.mark.parametrize("hot", [0, 64, 300])
def test_training(dtype: torch.dtype, bound: float, tokens: int, hot: int) -> None:
    x, *weights = operands = layer(tokens, 72, 300, dtype)
    dy = torch.randn(tokens, 72, device="cuda").to(dtype)
    l1_grad = torch.tensor(0.25, device="cuda")
    y, l1, row_nnz, neurons, *kept = torch.ops.twell.ffn_train(x, weights, hot=hot)
    gradients = torch.ops.twell.ffn_train_backward(dy, x, weights, kept, l1_grad, hot=hot)
    exact = [t.double().requires_grad_() for t in operands]
    x, gate, up, down = exact
    h = torch.relu(x @ gate.T) * (x @ up.T)
    ((h @ down) * dy.double()).sum().add(0.25 * h.abs().sum()).backward()
    for got, leaf in zip(gradients, exact):
        assert (got.double() - leaf.grad).norm() <= bound * leaf.grad.norm()
    assert (y.double() - h.detach() @ down.detach()).norm() <= bound * y.double().norm()
    assert abs(l1.item() - h.abs().sum().item()) <= bound * l1.item()
    assert row_nnz.sum() == neurons.sum()
    sums = [torch.ones(300, 72, device="cuda") for _ in range(3)]
    dx = torch.ops.twell.ffn_train_backward_add(dy, x, weights, kept, l1_grad, sums, hot=hot)
    assert torch.equal(dx, gradients[0])
    for got, sum_ in zip(gradients[1:], sums):
        assert ((sum_ - 1).double() - got.double()).norm() <= bound * got.double().norm()


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "capacity"), [(1, 4), (5, 1), (40, 64), (200, 8)])
def test_step_by_step(dtype: torch.dtype, tokens: int, capacity: int) -> None:
    ops = torch.ops.twell
    x, gate, up, down = layer(tokens, 64, 300, dtype)
    packed = ops.pack_weight(gate)
    triple = ops.gemm_relu_twell(x, packed, tile=64, capacity=capacity)
    dense = ops.twell_to_dense(*triple, 300, dtype)
    assert (triple[0].sum() == dense.count_nonzero()) and (triple[0].max() > capacity or capacity > 1)
    for made, again in zip(triple, ops.dense_to_twell(dense, tile=64, capacity=capacity)):
        assert torch.equal(made, again)
    # The same gate to the same gather: the layer and its steps agree within y's rounding.
    y = ops.twell_gated_ffn(x, *triple, up, down)
    whole = ops.ffn(x, [packed, up, down])
    bound = 2**-7 if dtype == torch.bfloat16 else 2**-10
    assert (y.double() - whole.double()).norm() <= bound * whole.double().norm()
    h = ops.twell_spmm(*triple, down)
    exact = dense.double() @ down.double()
    assert (h.double() - exact).norm() <= bound * exact.norm()


@needs_gpu
def test_triples_travel_between_devices() -> None:
    ops = torch.ops.twell
    dense = torch.randn(7, 100).relu().bfloat16()
    on_cpu = ops.dense_to_twell(dense, tile=32, capacity=4)
    on_gpu = ops.dense_to_twell(dense.cuda(), tile=32, capacity=4)
    assert torch.equal(ops.twell_to_dense(*(t.cuda() for t in on_cpu), 100, torch.bfloat16).cpu(), dense)
    assert torch.equal(ops.twell_to_dense(*(t.cpu() for t in on_gpu), 100, torch.bfloat16), dense)


@needs_gpu
def test_runs_on_the_current_stream_and_in_a_graph() -> None:
    x, gate, up, down = layer(4, 64, 256, torch.bfloat16)
    packed = torch.ops.twell.pack_weight(gate)
    direct = torch.ops.twell.ffn(x, [packed, up, down])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.ops.twell.ffn(x, [packed, up, down])
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(direct, captured)


@needs_gpu
def test_errors_name_the_argument() -> None:
    x, gate, up, down = layer(4, 64, 256, torch.bfloat16)
    packed = torch.ops.twell.pack_weight(gate)
    with pytest.raises(RuntimeError, match="ffn: down: expected a CUDA tensor"):
        torch.ops.twell.ffn(x, [packed, up, down.cpu()])
    with pytest.raises(RuntimeError, match=r"ffn: up: expected bf16 \[.*\], got f16"):
        torch.ops.twell.ffn(x, [packed, up.half(), down])
    with pytest.raises(RuntimeError, match="pack_weight: weight: expected dtype bfloat16 or float16"):
        torch.ops.twell.pack_weight(gate.float())


@needs_gpu
def test_out_of_memory_names_the_output() -> None:
    x, gate, up, down = layer(1 << 18, 64, 256, torch.bfloat16)
    packed = torch.ops.twell.pack_weight(gate)
    torch.cuda.empty_cache()
    try:
        # Less than there is in use already: whatever the allocator has no block for is refused.
        torch.cuda.set_per_process_memory_fraction(1e-6)
        with pytest.raises(RuntimeError, match=f"twell::ffn: y: no memory for {x.nbytes} bytes on cuda:0"):
            torch.ops.twell.ffn(x, [packed, up, down])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.ops.twell.ffn(x, [packed, up, down]).shape == x.shape
