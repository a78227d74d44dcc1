"""A frozen layer on a CPU: the operators on its block, and how its calls run."""

from __future__ import annotations

import copy
import gc
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from layers import assert_within, make_layer, python, reference
from torch import Tensor
from twell import _block

ops = torch.ops.twell
NO_LAYER = torch.zeros(1, dtype=torch.int64)
BUILT_IN = [torch.empty(0, dtype=torch.float64)] * 4


def module_of(density: float, dtype: torch.dtype = torch.float32, **options: Any) -> twell.GatedFfn:
    layer = make_layer(64, 320, dtype, density=density)
    return twell.GatedFfn.from_dense(layer.gate, layer.up, layer.down.t().contiguous(), **options)


def block_of(dtype: torch.dtype = torch.float32, density: float = 0.1) -> tuple[Tensor, Tensor]:
    """A block and inputs [40, 64] of its layer."""
    layer = make_layer(64, 320, dtype, density=density)
    weights = [layer.gate, layer.up, layer.down.t().contiguous()]
    return ops.make_block(weights, "relu", dtype, []), layer.inputs(40)


@pytest.mark.parametrize("codes", [None, "int8", "int4"])
def test_unpacked_it_is_what_it_was_made_of(codes: str | None, dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(96, 160, dtype, density=0.3)
    weights = [layer.gate, *([layer.up] if gated else []), layer.down.t().contiguous()]
    if codes:
        low, high = (-128, 128) if codes == "int8" else (-8, 8)
        made = []
        for i, weight in enumerate(weights):
            by_group = codes == "int4" and i + 1 < len(weights)
            own = torch.randint(low, high, weight.shape, dtype=torch.int8)
            shape = [len(weight), weight.shape[1] // 32] if by_group else [len(weight)]
            made.append(twell.ops.join_codes(own, torch.full(shape, 0.5), "group" if by_group else "row"))
        weights = made
    vectors = [torch.randn(160), torch.randn(160) if gated else None, torch.randn(96), torch.rand(160)]
    form = f"fat_relu threshold=0.1{' up=relu' if gated else ''} norm=1e-05"
    first, *second, last = weights
    block = ops.make_block([first, second[0] if gated else None, last, *vectors], form, dtype, [])
    gate, up, down, *got = ops.unpack_block(block)
    assert all(torch.equal(a, b) for a, b in zip([gate, *([up] if gated else []), down], weights))
    assert all(torch.equal(a, b) if b is not None else a.numel() == 0 for a, b in zip(got, vectors))
    parsed = twell.form.Form.parse(ops.form_of_block(block))
    assert parsed.norm_epsilon == pytest.approx(1e-5) and parsed.threshold == pytest.approx(0.1)
    assert (parsed.activation, parsed.up_activation) == ("fat_relu", "relu" if gated else "identity")


def test_a_number_only_saves_time(dtype: torch.dtype) -> None:
    """A call gives the same without the number of an open layer, with another's and after it was closed."""
    block, x = block_of(dtype)
    want = ops.run_layer(x, block, NO_LAYER, 64)
    number = ops.open_layer(block, "sparse", [])
    assert torch.equal(ops.run_layer(x, block, number, 64), want)
    other, _ = block_of(dtype, density=0.5)
    of_other = ops.run_layer(x, other, NO_LAYER, 64)
    assert torch.equal(ops.run_layer(x, other, number, 64), of_other)
    assert not torch.equal(of_other, want)
    assert torch.equal(ops.run_layer(x, block.clone(), number, 64), want)
    ops.close_layer(number)
    ops.close_layer(number)
    assert torch.equal(ops.run_layer(x, block, number, 64), want)


def test_memory_at_odd_places() -> None:
    block, x = block_of()
    bytes_ = torch.zeros(block.numel() + 64, dtype=torch.uint8)
    at_8 = bytes_[8 : 8 + block.numel()].copy_(block)
    assert torch.equal(ops.run_layer(x, at_8, NO_LAYER, 64), ops.run_layer(x, block, NO_LAYER, 64))
    at_1 = bytes_[1 : 1 + block.numel()].copy_(block)
    with pytest.raises(RuntimeError, match="multiple of 8 bytes"):
        ops.run_layer(x, at_1, NO_LAYER, 64)


def test_wrong_arguments() -> None:
    block, x = block_of()
    gate, up, down = ops.unpack_block(block)[:3]
    wrong: list[tuple[str, Any]] = [
        ("y: expected", lambda: ops.run_layer(x, block, NO_LAYER, 63)),
        ("x: expected", lambda: ops.run_layer(x[:, 1:], block, NO_LAYER, 64)),
        ("block: expected contiguous Byte", lambda: ops.run_layer(x, block.char(), NO_LAYER, 64)),
        ("begin with 'twellblk'", lambda: ops.run_layer(x, block.flip(0), NO_LAYER, 64)),
        ("cut off", lambda: ops.run_layer(x, block[:-64], NO_LAYER, 64)),
        ("layer: expected contiguous Long", lambda: ops.run_layer(x, block, torch.zeros(2), 64)),
        ("path: expected auto, sparse or dense", lambda: ops.open_layer(block, "fast", [])),
        ("cost: expected tokens", lambda: ops.open_layer(block, "auto", BUILT_IN[:3])),
        ("down: expected a tensor", lambda: ops.make_block([gate], "relu", x.dtype, [])),
        ("down", lambda: ops.make_block([gate, up, down[:, 1:]], "relu", x.dtype, [])),
        ("findings: expected", lambda: ops.make_block([gate, up, down], "relu", x.dtype, [gate])),
        ("up_bias", lambda: ops.make_block([gate, up, down, None, x[0]], "relu", x.dtype, [])),
        ("32 or more", lambda: ops.examine_layer(x[:31], [gate, up, down], "relu")),
    ]
    for message, call in wrong:
        with pytest.raises(RuntimeError, match=message):
            call()
    with pytest.raises(ValueError, match='freeze: path: expected one of auto, sparse, dense, got "fast"'):
        module_of(0.1).freeze(path="fast")
    with pytest.raises(ValueError, match="sparsify: path: is that of frozen layers"):
        twell.sparsify(module_of(0.1), freeze=False, path="dense")


@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
def test_paths(path: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWELL_CALIBRATION", "")
    layer = make_layer(64, 320, dtype, density=0.9)
    module = module_of(0.9, dtype).freeze(path=path)
    want = reference(layer.inputs(300), layer.gate, layer.up, layer.down)
    for _ in range(3):  # the first ones count what fires
        # A dense product in bfloat16 rounds h once more.
        assert_within(module(layer.inputs(300)), want, 1.0 if dtype == torch.float32 else 2.0)
    words = module.describe(300)
    last = words.split("; ")[-1]
    assert last.startswith({"auto": "here: dense", "dense": "but every call is dense"}.get(path, "packed")), words
    assert ";" not in module.freeze(path="sparse").describe(300)
    assert torch.equal(module(layer.inputs(300)), module_of(0.9, dtype).freeze(path="sparse")(layer.inputs(300)))


def test_auto_takes_what_this_machine_was_measured_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = f"{twell.ops.processor_name()}, {twell.ops.cpu_tier()}, {torch.get_num_threads()} threads"
    sparse = [{"ns_per_weight": [1.0, 1.0]}]
    file = tmp_path / "calibration.json"
    monkeypatch.setenv("TWELL_CALIBRATION", str(file))
    layer = make_layer(64, 320, density=0.1)
    x = layer.inputs(64)
    want = module_of(0.1).freeze(path="sparse")(x)
    for dense, taken in ((0.01, "dense"), (100.0, "sparse")):
        figures = {"tokens": [1], "densities": [0, 1], "dense_ns_per_weight": [dense], "sparse": sparse}
        file.write_text(json.dumps({machine: figures, "another": {}}))
        module = module_of(0.1).freeze(path="auto")
        got = [module(x) for _ in range(3)][-1]
        assert torch.equal(got, want) == (taken == "sparse")
        torch.testing.assert_close(got, want)
        assert module.describe(64).endswith(f"measured on this machine; here: {taken}")
    file.write_text("{")
    module = module_of(0.1)
    with pytest.raises(ValueError, match=f"{file}: .*twell calibrate"):
        module.freeze(path="auto")
    assert not module.frozen and torch.isfinite(module(x)).all()


def test_weights_that_are_views(dtype: torch.dtype) -> None:
    layer = make_layer(64, 320, dtype)
    views = layer.gate.t().contiguous().t(), layer.up.t().contiguous().t(), layer.down.t()
    sample = layer.inputs(64)
    module = twell.GatedFfn.from_dense(*views).freeze(sample)
    whole = twell.GatedFfn.from_dense(*(w.contiguous() for w in views)).freeze(sample)
    assert torch.equal(module.block, whole.block) and torch.equal(module(sample), whole(sample))


def test_what_is_kept_of_a_layer_goes_with_it() -> None:
    module = module_of(0.1).freeze()
    opened = weakref.ref(module._opened)
    number = module._opened.number.clone()
    block, x = module.block, torch.randn(40, 64)
    assert "blocks of" in ops.describe_layer(block, number, 8)
    twin = copy.deepcopy(module)
    assert twin._opened is not module._opened and not torch.equal(twin._opened.number, number)
    assert torch.equal(twin(x), module(x))
    del module
    gc.collect()
    assert opened() is None
    assert torch.equal(ops.run_layer(x, block, number, 64), twin(x))


def test_no_graph_has_the_end_of_a_layer() -> None:
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def traced(number: Tensor) -> Tensor:
        torch.ops.twell.close_layer(number)
        return number + 1

    for close, expected in ((_block._close, 0), (traced, 1)):
        graphs.clear()
        torch.compile(close, backend=count)(module_of(0.1).freeze()._opened.number.clone())
        assert len(graphs) == expected


def test_threads_share_a_layer(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWELL_CALIBRATION", "")
    module, x = module_of(0.1, dtype).freeze(path="auto"), make_layer(64, 320, dtype, density=0.1).inputs(40)
    want, wrong = module_of(0.1, dtype).freeze()(x), []

    def run() -> None:
        for _ in range(50):
            if not torch.allclose(module(x).float(), want.float(), rtol=0.05, atol=0.05):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gradient_of_the_input(gated: bool) -> None:
    kind = twell.GatedFfn if gated else twell.Ffn
    layer = make_layer(64, 320, torch.float64, density=0.3)
    weights = [layer.gate, *([layer.up] if gated else []), layer.down.t().contiguous()]
    module = kind.from_dense(*(w.float() for w in weights)).freeze(path="auto")
    x = layer.inputs(7).float().requires_grad_()
    dense = kind.from_dense(*(w.float() for w in weights))
    got = torch.autograd.grad(module(x).square().sum(), x)[0]
    torch.testing.assert_close(got, torch.autograd.grad(dense(x).square().sum(), x)[0])
    codes = twell.ops.join_codes(torch.ones(320, 64, dtype=torch.int8), torch.ones(320))
    block = ops.make_block([codes, None, weights[-1].float()], "relu", torch.float32, [])
    with pytest.raises(RuntimeError, match="has no gradient where weights are codes"):
        ops.run_layer(x, block, NO_LAYER, 64).sum().backward()


def test_the_default_is_auto() -> None:
    assert Path(_block.__file__).read_text("utf-8").count('DEFAULT_PATH = "auto"') == 1


BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_the_benchmark_writes_its_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = python(BENCH / "frozen_layers.py", "--width", "64", "--density", "0.05", "--rows", "1", "33",
                  "--seconds", "0.001", "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "frozen.md").read_text().count("| 5 % |") == 8
