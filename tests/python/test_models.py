"""Models that exist, sparse: the outputs, gradients and checkpoints of the unchanged ones."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import twell
from layers import UNIT, let_screens_pay
from tiny_models import AMONG_OTHERS, EXPERTS, MODULES_OF_THEIR_OWN, ON_THE_HUB, STACKED, Tiny
from torch import Tensor, nn
from twell import _frozen
from twell.hf.experts import Experts

ALL = {**AMONG_OTHERS, **MODULES_OF_THEIR_OWN, **ON_THE_HUB, **EXPERTS}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*runs densely")


def run(tiny: Tiny, model: nn.Module) -> list[Tensor]:
    """The output, and the gradients of a loss."""
    model.zero_grad()
    out = tiny.call(model)
    out.square().mean().backward()
    return [out, *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())]


class Deviation(NamedTuple):
    """Norms, of the float64 result's unit."""

    error: float
    """From float64."""
    allowed: float
    from_plain: float
    """From the unchanged model; `allowed` and its own error bound it."""
    plain: float
    """The unchanged model's own error."""
    weight: float
    """Its norm over that of the largest of its like."""


def deviations(
    got: list[Tensor], plain: list[Tensor], exact: list[Tensor], unit: float
) -> list[Deviation]:
    """In float64's terms no further off than twice the unchanged model, and what rounding the results
    of layers once more may add: the same as in test_form_modules.py. A gradient that is a millionth of
    the largest is a sum of terms that cancel, and so has the error of these. One that is 0, as softmax
    does not see a bias of keys, is their error alone, which may well be three times as large by chance."""
    largest = max(want.norm() for want in exact)
    found = []
    for mine, theirs, want in zip(got, plain, exact, strict=True):
        size = torch.maximum(want.norm(), 2.0**-20 * largest)
        times = 8 if want.norm() < 2.0**-40 * largest else 2
        errors = [(mine.double() - want).norm(), (theirs.double() - want).norm()]
        between = (mine.double() - theirs.double()).norm()
        allowed = times * errors[1] + 16 * unit * size
        parts = (float(v / size) for v in (errors[0], allowed, between, errors[1]))
        found.append(Deviation(*parts, weight=float(want.norm() / largest)))
    return found


def assert_same(got: list[Tensor], plain: list[Tensor], exact: list[Tensor], unit: float) -> None:
    for found in deviations(got, plain, exact, unit):
        assert found.error <= found.allowed


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiny", ALL.values(), ids=ALL.keys())
def test_models(tiny: Tiny, kind: torch.dtype) -> None:
    for found in compared(tiny, kind).values():
        for each in found:
            assert each.error <= each.allowed


def compared(tiny: Tiny, kind: torch.dtype) -> dict[str, list[Deviation]]:
    """The output of a frozen model; output and gradients of one that trains; its output without."""
    model = tiny.model(kind)
    exact = copy.deepcopy(model).double()
    if tiny in STACKED.values():
        exact.set_experts_implementation("eager")  # the only one in float64
    frozen, trained = copy.deepcopy(model), copy.deepcopy(model)
    assert twell.sparsify(frozen) is frozen
    twell.sparsify(trained, freeze=False)
    for each in (frozen, trained):
        assert len(twell.sparse_layers(each)) == tiny.layers
    assert all(layer._special_child() is None for layer in twell.sparse_layers(trained).values())
    assert all(layer.frozen for layer in twell.sparse_layers(frozen).values())
    want, plain = run(tiny, exact), run(tiny, model)
    got = run(tiny, trained)
    unit = UNIT[kind]
    with torch.no_grad():
        return {
            "trained": deviations(got, plain, want, unit),
            "frozen": deviations([tiny.call(frozen)], plain[:1], want[:1], unit),
            "evaluated": deviations([tiny.call(trained)], plain[:1], want[:1], unit),
        }


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("tiny", ALL.values(), ids=ALL.keys())
def test_checkpoints_and_every_parameter(tiny: Tiny, freeze: bool) -> None:
    model = tiny.model()
    state = {name: v.clone() for name, v in model.state_dict().items()}
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    after = sparse.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(v, state[k]) for k, v in after.items())
    assert all(v.is_contiguous() for v in after.values())
    with torch.no_grad():
        want = tiny.call(sparse)
        # Of copies, and when all is loaded anew.
        for twin in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse))):
            assert torch.equal(tiny.call(twin), want)
            assert len(twell.sparse_layers(twin)) == tiny.layers
        twin.load_state_dict({k: v + 0.125 if v.is_floating_point() else v for k, v in state.items()})
        assert not torch.equal(tiny.call(twin), want) and torch.equal(tiny.call(sparse), want)
        twin.load_state_dict(state)
        assert torch.equal(tiny.call(twin), want)
        # Each parameter of a layer alone moves the output.
        own = layer_parameters(model, sparse)
        assert len(own) >= 2 * tiny.layers or tiny in STACKED.values()
        moved = set()
        for name in own:
            left = sparse.load_state_dict({name: state[name] + 0.5}, strict=False)
            assert not left.unexpected_keys and name not in left.missing_keys
            if not torch.equal(tiny.call(sparse), want):
                moved.add(name)
            sparse.load_state_dict({name: state[name]}, strict=False)
        if tiny not in EXPERTS.values():
            assert moved == set(own)
        else:  # experts that no token reaches have none
            assert len(moved) >= len(own) // 2
            model.load_state_dict(state)
            for name in set(own) - moved:
                model.load_state_dict({name: state[name] + 0.5}, strict=False)
                assert torch.allclose(tiny.call(model), want, rtol=1e-4, atol=1e-5), name
                model.load_state_dict({name: state[name]}, strict=False)
    lacks, has = ({*m.load_state_dict({}, strict=False).missing_keys} for m in (sparse, model))
    assert lacks == has  # which are missing there


def layer_parameters(model: nn.Module, sparse: nn.Module) -> list[str]:
    """Names in the checkpoint of all parameters of sparse layers."""
    places = [name.removesuffix(".sparse_ffn") for name in twell.sparse_layers(sparse)]
    places += [n for n, m in sparse.named_modules() if isinstance(m, Experts)]
    names = []
    for name, _ in model.named_parameters():
        for place in places:
            inside = place + "." if place else ""
            parts = name.removeprefix(inside).split(".")
            own = len(parts) == 1 + (".sparse" not in place and not place.endswith(".experts"))
            if name.startswith(inside) and own and not is_of_attention(parts[0]):
                names.append(name)
    return names


def is_of_attention(name: str) -> bool:
    """Beside the layer in the same module."""
    return "norm" in name and "sub_norm" not in name


@pytest.mark.parametrize("tiny", AMONG_OTHERS.values(), ids=AMONG_OTHERS.keys())
def test_samples(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    let_screens_pay(monkeypatch)
    model = tiny.model()
    with torch.no_grad():
        want = tiny.call(model)
        twell.sparsify(model.train(), sample=tiny.inputs())
        assert all(m.training for m in model.modules())
        layers = twell.sparse_layers(model).values()
        assert any(layer.screened for layer in layers)
        torch.testing.assert_close(tiny.call(model.eval()), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", ["torch encoder", "m2m100", "t5", "t5 with a gate", "gpt2"])
def test_dropout_in_training(name: str, freeze: bool) -> None:
    """The same random numbers drop the same hidden states: each layer asks for them as before."""
    tiny = ALL[name]
    model = tiny.model().train()
    for module in model.modules():
        if hasattr(module, "activation_dropout"):
            module.activation_dropout = 0.25
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    hidden = [layer.hidden_dropout for layer in twell.sparse_layers(sparse).values()]
    assert all(p > 0 for p in hidden) == (name != "gpt2")
    runs = []
    for each in (model, sparse):
        torch.manual_seed(3)
        runs.append(tiny.call(each).detach())
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-5)
    torch.manual_seed(4)
    assert not torch.allclose(tiny.call(sparse), runs[1])


@pytest.mark.parametrize("name", ["torch encoder", "m2m100", "t5"])
def test_dropout_and_the_l1_term(name: str) -> None:
    """Training with dropout counts what fires before it is dropped."""
    tiny = ALL[name]
    terms = []
    for share in (0.0, 0.25):
        model = twell.sparsify(tiny.model(), freeze=False).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for layer in twell.sparse_layers(model).values():
            layer.hidden_dropout = share
            layer.collect_l1 = True
        twell.collect_metrics(model)
        twell.set_l1(model, 0.5)
        tiny.call(model).square().mean().backward()
        first = next(iter(twell.sparse_layers(model).values()))
        terms.append((first.l1, twell.metrics(model)[0].nnz_mean))
        grads = [p.grad for p in first.parameters()]
        assert all(g.any() for g in grads)
    torch.testing.assert_close(terms[0][0], terms[1][0], rtol=1e-4, atol=1e-6)
    assert terms[0][1] == pytest.approx(terms[1][1], rel=0.01)


@pytest.mark.parametrize("tiny", [AMONG_OTHERS["opt"], AMONG_OTHERS["m2m100"], *EXPERTS.values()])
def test_files_of_transformers(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny.model()
    sparse = twell.sparsify(copy.deepcopy(model))
    sparse.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(v, again[k]) for k, v in model.state_dict().items())


def test_generation() -> None:
    pytest.importorskip("transformers")
    for name in ("opt", "m2m100", "t5", "switch"):
        tiny = ALL[name]
        model = tiny.model()
        options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}
        ids = tiny.inputs()["input_ids"]
        want = model.generate(ids, **options)
        assert torch.equal(twell.sparsify(model, sample=tiny.inputs()).generate(ids, **options), want)


LAYOUTS = ("phi3", "gpt2", "mixtral", "nemotron-h", "t5", "switch")


@pytest.mark.parametrize("name", LAYOUTS)
def test_freezing_that_fails_half_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ALL[name]
    model = tiny.model()
    with torch.no_grad():
        want = tiny.call(model)
    kinds = [(n, type(m)) for n, m in model.named_modules()]
    wanted = {n: p.requires_grad for n, p in model.named_parameters()}
    state = copy.deepcopy(model.state_dict())
    made, calls = _frozen.held_of, []

    def second(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError
        return made(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_frozen, "held_of", second)
        with pytest.raises(MemoryError):
            twell.sparsify(model)
    assert [(n, type(m)) for n, m in model.named_modules()] == kinds
    assert {n: p.requires_grad for n, p in model.named_parameters()} == wanted
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(tiny.call(model), want)
        torch.testing.assert_close(
            tiny.call(twell.sparsify(model)), want, rtol=1e-4, atol=1e-5
        )


def tied(model: nn.Module) -> None:
    blocks = model.model.layers  # type: ignore[union-attr]
    blocks[1].mlp.down_proj = blocks[0].mlp.down_proj


def hooked(model: nn.Module) -> None:
    child = model.model.layers[1].mlp.gate_up_proj  # type: ignore[union-attr,index]
    child.register_forward_hook(lambda m, a, y: y)


def smooth(model: nn.Module) -> None:
    for block in model.model.layers:  # type: ignore[union-attr]
        block.mlp.experts.act_fn = nn.SiLU()


def another(model: nn.Module) -> None:
    experts = model.model.layers[1].mlp.experts  # type: ignore[union-attr,index]

    class Capped(type(experts)):  # type: ignore[misc]
        def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
            return inspect.unwrap(super().forward.__func__)(self, x, chosen, weights).clamp(-1, 1)

    experts.__class__ = Capped


def with_bias(model: nn.Module) -> None:
    experts = model.model.layers[1].mlp.experts  # type: ignore[union-attr,index]
    experts.down_proj_bias = nn.Parameter(torch.zeros(4, 48))


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    ("name", "change", "message", "refused"),
    [
        ("phi3", tied, "model.layers.0.mlp.down_proj: another module has the same weight", (True,)),
        ("phi3", hooked, "model.layers.1.mlp.gate_up_proj has hooks, which a frozen", (True,)),
        ("mixtral", smooth, "model.layers.0.mlp.experts: its activation SiLU", (True, False)),
        ("mixtral", another, "model.layers.1.mlp.experts: Capped computes something else", (True, False)),
        ("mixtral", with_bias, "model.layers.1.mlp.experts has down_proj_bias of its", (True, False)),
    ],
)
def test_what_other_layouts_may_not_have(
    name: str, change: Any, message: str, refused: tuple[bool, ...], freeze: bool
) -> None:
    tiny = ALL[name]
    model = tiny.model()
    change(model)
    modules = dict(model.named_modules())
    with torch.no_grad():
        want = tiny.call(model)
        if freeze in refused:
            with pytest.raises(ValueError, match=f"^{message}"):
                twell.sparsify(model, freeze=freeze)
            assert dict(model.named_modules()) == modules
            assert torch.equal(tiny.call(model), want)
        else:
            torch.testing.assert_close(
                tiny.call(twell.sparsify(model, freeze=freeze)), want, rtol=1e-4, atol=1e-5
            )


def test_each_expert_alone_moves_the_output() -> None:
    for tiny in STACKED.values():
        model = twell.sparsify(tiny.model())
        state = model.state_dict()
        with torch.no_grad():
            want = tiny.call(model)
            for name, value in state.items():
                for expert in range(len(value)) if ".experts." in name else ():
                    changed = value.clone()
                    changed[expert] += 0.5
                    model.load_state_dict({name: changed}, strict=False)
                    assert not torch.equal(tiny.call(model), want), (name, expert)
                model.load_state_dict({name: value}, strict=False)
