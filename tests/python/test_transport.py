"""Layers that are compiled, exported, copied, sent elsewhere, and called from several places."""

from __future__ import annotations

import copy
import io
import multiprocessing
import threading
from pathlib import Path

import pytest
import torch
import twell
from layers import make_layer, screening
from torch import Tensor, nn
from twell import _frozen

KINDS = [twell.GatedFfn, twell.Ffn]
FORMS = ["trained", "frozen", "screened", "ordered"]


@pytest.fixture(autouse=True)
def no_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twell.ops, "choose_hot", lambda *_, **__: 16)


def layer_of(kind: type[nn.Module], form: str) -> nn.Module:
    layer = make_layer(40, 100, density=0.1)
    weights = [layer.gate, layer.up, layer.down.t().contiguous()]
    module = kind.from_dense(*weights[3 - len(kind.NAMES) :]).requires_grad_()
    if form == "screened":
        module.freeze(findings=screening(inputs(64), 100))
        assert module.screened
    if form == "ordered":  # as on a GPU
        findings = _frozen.Findings(64, inputs(64).mean(0), torch.arange(100) % 7, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_frozen, "on_gpu", lambda _: True)
            module.freeze(findings=findings)
        assert module.ordered and module._hot_in(inputs(1)) == 16
    return module.freeze() if form == "frozen" else module


def inputs(rows: int) -> Tensor:
    return make_layer(40, 100, density=0.1).inputs(rows)


def test_inductor() -> None:
    model = nn.Sequential(layer_of(twell.GatedFfn, "trained"), nn.Tanh())
    compiled = torch.compile(model, fullgraph=True)
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        y = run(inputs(300))
        y.square().mean().backward()
        gradients.append([y.detach(), *(p.grad for p in model.parameters())])
    for got, want in zip(*gradients):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    frozen = nn.Sequential(layer_of(twell.GatedFfn, "screened"), nn.Tanh())
    with torch.inference_mode():
        got = torch.compile(frozen, fullgraph=True)(inputs(7))
        torch.testing.assert_close(got, frozen(inputs(7)), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trace_of_a_layer_that_trains(kind: type[nn.Module], train: bool, dtype: torch.dtype) -> None:
    module = kind(40, 100).to(dtype).train(train)
    module.l1_weight = 0.1
    x = torch.randn(6, 40, dtype=dtype)
    traced = torch.jit.trace(module, x, check_trace=False)
    for rows in (6, 9):
        x = torch.randn(rows, 40, dtype=dtype)
        torch.testing.assert_close(traced(x), module(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_export(kind: type[nn.Module], form: str, tmp_path: Path) -> None:
    module = layer_of(kind, form).eval().requires_grad_(False)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(module, (inputs(300),), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "layer.pt2")
    again = torch.export.load(tmp_path / "layer.pt2").module()
    for count in (2, 77):
        torch.testing.assert_close(again(inputs(count)), module(inputs(count)), rtol=1e-5, atol=1e-6)
    if form != "trained":  # no dense product is left in it
        operator = "twell.ffn" if form == "ordered" else "twell.run_layer"
        assert operator in str(program.graph) and "linear" not in str(program.graph)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_copies(kind: type[nn.Module], form: str) -> None:
    module, x = layer_of(kind, form), inputs(300)
    with torch.no_grad():
        want = module(x)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    empty = kind(40, 100)
    empty.load_state_dict(module.state_dict())
    copies = {
        "deepcopy": copy.deepcopy(module),
        "pickle": torch.load(buffer, weights_only=False),
        "state_dict": empty,
        "to": copy.deepcopy(module).to(torch.float64).to(torch.float32) if form == "trained"
        else copy.deepcopy(module).to("cpu", torch.float32),
    }  # fmt: skip
    for name, twin in copies.items():
        with torch.no_grad():
            torch.testing.assert_close(twin(x), want, rtol=1e-5, atol=1e-6, msg=name)
            if form == "trained":  # a copy shares nothing
                twin.down_proj.weight.zero_()
            else:
                twin.thaw() if twin.frozen else twin
                twin.down_proj.weight.zero_()
            assert torch.equal(module(x), want), name


@pytest.mark.parametrize("form", FORMS)
def test_threads(form: str) -> None:
    module = layer_of(twell.GatedFfn, form)
    rows = [3, 300, 17, 400]
    with torch.no_grad():
        want = [module(inputs(r)) for r in rows]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            with torch.no_grad():
                if not torch.equal(module(inputs(rows[i])), want[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def in_child(module: nn.Module, rows: int, queue: object) -> None:
    torch.set_num_threads(1)  # as DataLoader's workers do
    with torch.no_grad():
        queue.put(module(inputs(rows)).numpy())


@pytest.mark.parametrize("form", FORMS)
def test_forked_workers(form: str) -> None:
    module = layer_of(twell.GatedFfn, form)
    with torch.no_grad():
        want = module(inputs(300))  # the parent's threads have started
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=in_child, args=(module, 300, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    got = [torch.from_numpy(queue.get(timeout=60)) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    for y in got:
        torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-6)
