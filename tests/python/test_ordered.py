"""Frozen layers whose neurons lie in the order of how many inputs fire them, as on a GPU.

A CPU takes the same operands and multiplies densely what it counts itself, so all but the speed
shows here: `gpu` has layers believe that the CPU is one.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from layers import Layer, assert_within, make_layer, python, reference
from torch import Tensor
from twell import _frozen


class Gpu:
    """What the layer asked of the GPU's plans, and what they answer."""

    expected = 0.012  # the share of candidates that plans count on

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.hot: Callable[[Tensor, int], int] = lambda rates, tokens: min(tokens, len(rates))
        self.limit = 0.0  # share of candidates up to which a screen pays

    def choose_hot(self, rates: Tensor, tokens: int, width: int, **rest: Any) -> int:
        self.asked.append({"rates": rates, "tokens": tokens, "width": width, **rest})
        return self.hot(rates, tokens)

    def screen_pays(
        self, tokens: int, width: int, neurons: int, candidates: float | None, *, device: torch.device
    ) -> bool:
        self.asked.append({"candidates": candidates, "of": (tokens, width, neurons)})
        return (self.expected if candidates is None else candidates) <= self.limit


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(_frozen, "on_gpu", lambda _: True)
    monkeypatch.setattr(twell.ops, "choose_hot", made.choose_hot)
    monkeypatch.setattr(twell.ops, "screen_pays", made.screen_pays)
    return made


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of hot neurons that calls of ffn had."""
    seen = []
    ffn = torch.ops.twell.ffn

    def spy(*arguments: Any) -> Tensor:
        seen.append(arguments[4])
        return ffn(*arguments)

    monkeypatch.setattr(torch.ops.twell, "ffn", spy)
    return seen


def weights_of(layer: Layer, gated: bool = True) -> list[Tensor]:
    down = layer.down.t().contiguous()
    return [layer.gate, layer.up, down] if gated else [layer.gate, down]


def module_of(layer: Layer, gated: bool = True, **options: Any) -> twell.modules.SparseFfn:
    return (twell.GatedFfn if gated else twell.Ffn).from_dense(*weights_of(layer, gated), **options)


def layer_of(dtype: torch.dtype = torch.float32, width: int = 300, neurons: int = 608) -> Layer:
    return make_layer(width, neurons, dtype, density=0.01)


def fired_by(layer: Layer, x: Tensor) -> Tensor:
    packed = twell.ops.pack_weight(layer.gate)
    return twell.ops.ffn_stats(x, packed, layer.up, layer.down)[2]


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_is_the_same_layer(gpu: Gpu, limit: float, dtype: torch.dtype, gated: bool) -> None:
    gpu.limit = limit
    layer = layer_of(dtype)
    module = module_of(layer, gated).freeze(layer.inputs(4, 100))
    assert module.ordered and module.screened == (limit > 0) and "ordered=True" in repr(module)
    for rows in (1, 40, 300):
        x = layer.inputs(rows, seed=1)
        want = reference(x, layer.gate, layer.up if gated else None, layer.down)
        with torch.no_grad():
            assert_within(module(x), want)
    fired = fired_by(layer, layer.inputs(400))
    counts = fired[module.order]
    assert (counts.diff() <= 0).all() and counts[0] > counts[-1]
    ties = counts.diff() == 0  # as the checkpoint has them
    assert (module.order.diff()[ties] > 0).all()
    rates = gpu.asked[-1]["rates"]
    assert rates.dtype == torch.float64 and torch.equal(rates, counts.double() / 400)
    gate = module.packed_gate if module.screened else twell.ops.unpack_weight(module.packed_gate)
    got = (module.packed_down, module.packed_up, gate)
    for stored, have in zip((layer.down, layer.up if gated else None, layer.gate), got):
        assert stored is None or torch.equal(have, stored[module.order])


def test_what_the_plan_is_asked(gpu: Gpu) -> None:
    layer = layer_of(width=320)
    module = module_of(layer, activation="relu_squared").freeze(layer.inputs(64))
    hot = [a for a in gpu.asked if "rates" in a]
    assert [a["tokens"] for a in hot] == [1 << power for power in range(17)]
    want = {"width": 320, "activation": "relu_squared", "gated": True, "joined": True}
    assert all({k: a[k] for k in want} == want for a in hot)
    assert hot[0]["device"] == layer.gate.device
    # Where up lies for one GEMM with the gate, and does where it can.
    assert module.packed_up.data_ptr() == module.packed_gate.data_ptr() + 608 * 320 * 4
    # A layer that is not ordered copies nothing for that.
    assert module_of(layer).freeze().packed_up.data_ptr() == layer.up.data_ptr()
    gpu.asked.clear()
    twin = module_of(layer_of(), gated=False).freeze(layer_of().inputs(64))
    assert twin.packed_up is None
    assert not gpu.asked[-1]["joined"] and not gpu.asked[-1]["gated"]


def test_screen_is_made_where_it_pays(gpu: Gpu) -> None:
    layer = layer_of()
    x = layer.inputs(100)
    gpu.limit = 0.5
    assert module_of(layer).freeze(x).screened
    first, second = (a["candidates"] for a in gpu.asked if "candidates" in a)
    assert first is None and all(a["of"] == (1, 300, 608) for a in gpu.asked if "of" in a)
    # Of every third input.
    screen = twell.ops.screen_weight(layer.gate, x.mean(0))
    seen = twell.ops.ffn_stats(x[::3][:32], layer.gate, layer.up, layer.down, screen)[3]
    assert second == int(seen) / (32 * 608) > 0.0
    gpu.limit = (gpu.expected + second) / 2
    assert second > gpu.expected and not module_of(layer).freeze(x).screened
    gpu.limit = second
    assert module_of(layer).freeze(x).screened
    # Inputs of which nearly all neurons fire leave nothing to rule out.
    gpu.limit = 0.5
    assert not module_of(layer).freeze(-x).screened


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_checkpoints_do_not_change(gpu: Gpu, limit: float, dtype: torch.dtype, gated: bool) -> None:
    gpu.limit = limit
    # Sizes with which gate and up are in one matrix, too.
    for layer in (layer_of(dtype), layer_of(dtype, 320)):
        module = module_of(layer, gated).freeze(layer.inputs(64))
        assert not torch.equal(module.order, torch.arange(608))
        for state in (module.state_dict(), module.thaw().state_dict()):
            for value, want in zip(state.values(), weights_of(layer, gated), strict=True):
                assert torch.equal(value, want) and value.is_contiguous()
                assert value.untyped_storage().nbytes() == value.nbytes  # shared with no other
        assert not module.frozen and not module.ordered


@pytest.mark.parametrize("width", [300, 320])
def test_load_state_dict_keeps_the_order_and_the_memory(gpu: Gpu, width: int) -> None:
    gpu.limit = 0.5
    layer, fresh = layer_of(width=width), make_layer(width, 608, density=0.01, seed=3)
    module = module_of(layer).freeze(layer.inputs(64))
    order = module.order.clone()
    held = {name: buffer.data_ptr() for name, buffer in module.named_buffers()}
    module.load_state_dict(module_of(fresh).state_dict())
    assert {name: buffer.data_ptr() for name, buffer in module.named_buffers()} == held
    assert torch.equal(module.order, order) and module.screened
    x = fresh.inputs(50)
    with torch.no_grad():
        assert_within(module(x), reference(x, fresh.gate, fresh.up, fresh.down))
    assert torch.equal(module.state_dict()["up_proj.weight"], fresh.up)


def test_conversions_and_copies(gpu: Gpu) -> None:
    gpu.limit = 0.5
    layer = layer_of(width=320)
    module = module_of(layer).freeze(layer.inputs(64))
    rounded = Layer(*(w.bfloat16() for w in (layer.gate, layer.up, layer.down)), layer.shift)
    twin = copy.deepcopy(module).to(torch.bfloat16)
    assert twin.ordered and twin.screened and torch.equal(twin.order, module.order)
    x = rounded.inputs(40)
    with torch.no_grad():
        assert_within(twin(x), reference(x, rounded.gate, rounded.up, rounded.down))
    assert torch.equal(twin.state_dict()["down_proj.weight"], rounded.down.t())
    # One memory for gate and up in the copy as well.
    assert twin.packed_up.data_ptr() == twin.packed_gate.data_ptr() + 608 * 320 * 2
    assert twin.packed_up.data_ptr() != module.packed_up.data_ptr()


def test_pickled(gpu: Gpu) -> None:
    gpu.limit = 0.5
    layer = layer_of()
    module = module_of(layer).freeze(layer.inputs(64))
    file = io.BytesIO()
    torch.save(module, file)
    for where in ("cpu", "meta"):
        file.seek(0)
        twin = torch.load(file, map_location=where, weights_only=False)
        if where == "meta":  # nothing is left of what the sample showed
            assert not twin.ordered and not twin.screened
            twin.load_state_dict(module.state_dict(), assign=True)
        assert twin.ordered == twin.screened == (where == "cpu")
        x = layer.inputs(30)
        with torch.no_grad():
            assert_within(twin(x), reference(x, layer.gate, layer.up, layer.down))


def test_each_device_decides_by_what_was_found(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.limit = 0.5
    layer = layer_of()
    module = module_of(layer).freeze(layer.inputs(64))
    assert module.ordered and module.screened
    found = module._findings
    # A CPU does not order, and has its own limit of candidates.
    monkeypatch.undo()
    elsewhere = module_of(layer).freeze(findings=found)
    assert not elsewhere.ordered
    assert elsewhere.screened == (found.candidates <= twell.ops.screen_limit())
    x = layer.inputs(30)
    with torch.no_grad():
        assert_within(elsewhere(x), reference(x, layer.gate, layer.up, layer.down))
    # Where no screen was tried, there is none.
    assert not module_of(layer).freeze(findings=found._replace(candidates=None)).screened
    with pytest.raises(ValueError, match=r"findings: expected those of \[H, D\]"):
        module_of(layer).freeze(findings=found._replace(fired=found.fired[1:]))


def test_freezes_anew(gpu: Gpu) -> None:
    layer = layer_of()
    module = module_of(layer).freeze(layer.inputs(64))
    first = module.order.clone()
    assert torch.equal(module.freeze().order, first)
    module.freeze(layer.inputs(64, seed=5))
    assert not torch.equal(module.order, first)
    assert torch.equal(module.state_dict()["gate_proj.weight"], layer.gate)
    twin = module_of(layer).freeze(layer.inputs(64, seed=5))
    assert torch.equal(module.order, twin.order)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_rows_that_are_not_finite_are_never_hot(gpu: Gpu, value: float) -> None:
    gpu.hot = lambda rates, tokens: len(rates)
    layer = layer_of()
    # The one that fires most and the one that fires least.
    ranks = fired_by(layer, layer.inputs(400)).argsort()
    layer.down[ranks[-1], 7] = value
    layer.down[ranks[0], 3] = value
    module = module_of(layer).freeze(layer.inputs(400))
    assert set(module.order[-2:].tolist()) == {int(ranks[-1]), int(ranks[0])}
    assert set(module._held.hot) == {606} and gpu.asked[-1]["rates"][-2:].tolist() == [0.0, 0.0]
    # Weights that come later are looked at, too.
    clean = layer_of()
    module.load_state_dict(module_of(clean).state_dict())
    assert set(module._held.hot) == {608} and module.order[0] == ranks[-1]
    module.load_state_dict(module_of(layer).state_dict())
    assert set(module._held.hot) == {606} and module.order[0] != ranks[-1]


def test_calls_pass_what_was_chosen_for_so_many_inputs(gpu: Gpu, passed: list[int]) -> None:
    layer = make_layer(24, 60, density=0.3)
    gpu.hot = lambda rates, tokens: tokens.bit_length()  # the power of two, and one
    module = module_of(layer).freeze(layer.inputs(64))
    rows = {0: 1, 1: 1, 2: 2, 3: 3, 5: 3, 6: 4, 10: 4, 11: 5, 1000: 11, 70000: 17, 200000: 17}
    with torch.no_grad():
        for count in rows:
            module(layer.inputs(1).expand(count, 24))
        assert passed == list(rows.values())
        passed.clear()
        module(layer.inputs(1)[0])
        module(layer.inputs(3, 4))
        module_of(layer).freeze()(layer.inputs(64))
    assert passed == [1, 5, 0]


@pytest.mark.parametrize(("chosen", "traced"), [(16, 16), (60, 59)])
def test_a_trace_has_one_number(gpu: Gpu, chosen: int, traced: int) -> None:
    layer = make_layer(24, 60, density=0.3)
    gpu.hot = lambda rates, tokens: chosen if tokens == 1024 else 1
    module = module_of(layer).freeze(layer.inputs(64))
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (2, 40, 300):
            x = layer.inputs(rows)
            torch.testing.assert_close(compiled(x), module(x))
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(module, (layer.inputs(300),), dynamic_shapes=({0: rows},))
    for graph in (*graphs, program.graph_module):
        (call,) = [n for n in graph.graph.nodes if "twell.ffn" in str(n.target)]
        assert call.args[4] == traced
    assert len(graphs) == 1


def test_counts_are_by_the_checkpoints_numbers(gpu: Gpu) -> None:
    layer = make_layer(24, 60, density=0.3)
    counts = []
    for module in (module_of(layer), module_of(layer).freeze(layer.inputs(64)).thaw()):
        module.requires_grad_()
        twell.collect_metrics(module)
        module(layer.inputs(50)).sum().backward()
        counts.append(module.activity.neurons)
    assert torch.equal(*counts) and counts[0].unique().numel() > 3


def test_gradients_and_tangents_of_the_input(gpu: Gpu) -> None:
    layer = make_layer(24, 60, density=0.3)
    plain, ordered = module_of(layer).freeze(), module_of(layer).freeze(layer.inputs(64))
    x = layer.inputs(40)
    gradients = []
    for module in (plain, ordered):
        leaf = x.clone().requires_grad_()
        module(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    (want, got) = (torch.func.jvp(m, (x,), (torch.ones_like(x),)) for m in (plain, ordered))
    torch.testing.assert_close(got, want)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
@pytest.mark.parametrize(
    "call", ["choose_hot(torch.ones(8), 64, 32{})", "screen_pays(1, 64, 32, 0.01{})"]
)
def test_without_a_gpu_is_one_line(call: str) -> None:
    name = call.partition("(")[0]
    for device, what in (
        ("", "libtwell_torch_cuda.so is not loaded"),
        ("cpu", "expected an NVIDIA GPU, got cpu"),
    ):
        code = call.format(f", device={device!r}" if device else "")
        run = python(f"import torch, twell; twell.ops.{code}", TWELL_TORCH_CUDA_LIBRARY="")
        line = run.stderr.splitlines()[-1]
        assert line.startswith(f"RuntimeError: twell::{name}: device: ") and what in line
