"""Modules, parameters and keys keep their names: a layer that trains has the very parts of the model, and
one that is frozen refuses what it cannot have."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from tiny_models import AMONG_OTHERS, MODULES_OF_THEIR_OWN, ON_THE_HUB, STACKED, Tiny, of, text
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

MODELS = {
    **{name: AMONG_OTHERS[name] for name in ("torch encoder", "opt", "bart")},
    **{name: MODULES_OF_THEIR_OWN[name] for name in ("mistral", "phi3", "gpt2", "t5 with a gate")},
    # Of which a weight does not tell how it lies.
    "square gpt2": Tiny(
        of("GPT2LMHeadModel", "GPT2Config", {
            "vocab_size": 97, "n_embd": 24, "n_inner": 24, "n_layer": 2, "n_head": 2,
            "n_positions": 64, "activation_function": "relu",
        }), text, 2),
}  # fmt: skip
ALL = {**MODELS, **STACKED}
PARTS = {
    "torch encoder": ["linear1", "linear2"],
    "opt": ["fc1", "fc2"],
    "bart": ["fc1", "fc2"],
    "mistral": ["gate_proj", "up_proj", "down_proj"],
    "phi3": ["gate_up_proj", "down_proj"],
    "gpt2": ["c_fc", "c_proj"],
    "square gpt2": ["c_fc", "c_proj"],
    "t5 with a gate": ["wi_0", "wi_1", "wo"],
}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def part_names(model: nn.Module, name: str) -> list[str]:
    """Of the linear layers within sparse layers."""
    inside = [p.removesuffix(".sparse_ffn") for p in twell.sparse_layers(model)]
    return [n for n, _ in model.named_modules() for p in inside if n in [f"{p}.{c}" for c in PARTS[name]]]


def same(got: Tensor, want: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=atol)


# --- Layers that train ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_those_of_the_model(name: str) -> None:
    tiny = MODELS[name]
    model = tiny.model()
    before = dict(model.named_modules())
    parameters = [(n, id(p)) for n, p in model.named_parameters()]
    twell.sparsify(model, freeze=False)
    parts = part_names(model, name)
    assert len(parts) >= 2 * tiny.layers
    for part in parts:
        assert model.get_submodule(part) is before[part]
    assert [(n, id(p)) for n, p in model.named_parameters()] == parameters


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_reads_its_parts_when_it_is_called(name: str) -> None:
    tiny = MODELS[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=False).train().eval()
    for part in part_names(model, name):
        for each in (plain, model):
            with torch.no_grad():
                for p in each.get_submodule(part).parameters():
                    p.mul_(1.25).add_(0.01)
    same(tiny.call(model), tiny.call(plain))
    for each in (plain, model):
        tiny.call(each).square().mean().backward()
    for (key, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_square_weight_stays_as_it_lies(freeze: bool) -> None:
    tiny = MODELS["square gpt2"]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    with torch.no_grad():
        same(tiny.call(model), tiny.call(plain))
        state = {k: v + 0.01 * torch.randn(v.shape) for k, v in plain.state_dict().items()}
        for each in (plain, model):
            each.load_state_dict(state)
        same(tiny.call(model), tiny.call(plain))
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", MODELS)
def test_every_module_is_found_by_its_name(name: str) -> None:
    for freeze in (False, True):
        plain = MODELS[name].model()
        model = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
        for place, module in plain.named_modules():
            assert isinstance(model.get_submodule(place), nn.Module), place
            if not list(module.children()) and not list(module.parameters()):  # activations, dropout
                assert type(model.get_submodule(place)) is type(module)


ACTS = {"opt": "activation_fn", "mistral": "act_fn", "phi3": "activation_fn", "gpt2": "act"}


@pytest.mark.parametrize("name", ACTS)
def test_hooks_on_the_activation_fire(name: str) -> None:
    """They see what it computes, and may change it."""
    tiny = MODELS[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=False)
    frozen = twell.sparsify(copy.deepcopy(plain))
    calls = []
    for each in (plain, model, frozen):
        seen: list[Tensor] = []
        for place, module in each.named_modules():
            if place.endswith(f".{ACTS[name]}"):
                module.register_forward_hook(lambda m, v, g, seen=seen: seen.append(g) or 2 * g)
        if each is frozen:
            with pytest.raises(RuntimeError, match=f"{ACTS[name]} of a frozen layer has changed.*thaw"):
                tiny.call(each)
        else:
            calls.append([tiny.call(each), *seen])
    assert len(calls[0]) == len(calls[1]) == 1 + tiny.layers
    for got, want in zip(*reversed(calls), strict=True):
        same(got, want)


def test_a_threshold_that_a_hooked_activation_does_not_have() -> None:
    tiny = MODELS["mistral"]
    model = twell.sparsify(tiny.model(), freeze=False)
    layer = next(iter(twell.sparse_layers(model).values()))
    layer.act_fn.register_forward_hook(print)
    layer.activation, layer.threshold = "fat_relu", 0.5
    with pytest.raises(RuntimeError, match="act_fn has hooks, and computes another activation"):
        tiny.call(model)


def test_an_activation_that_was_given() -> None:
    """The module's own is not asked, in graphs neither."""
    tiny = STACKED["mixtral"]
    want = tiny.call(tiny.model())
    model = tiny.model()
    for module in experts_of(model).values():
        module.act_fn = nn.SiLU()
    assert not torch.allclose(tiny.call(model), want, atol=1e-2)
    twell.sparsify(model, activation="relu", freeze=False)
    torch._dynamo.reset()
    with torch.no_grad():
        for call in (model, torch.compile(model, backend="aot_eager")):
            same(tiny.call(call), want)


@pytest.mark.parametrize("name", ["torch encoder", "t5 with a gate", "gpt2"])
def test_dropout_is_that_of_the_modules(name: str) -> None:
    """Whatever is set there afterwards."""
    tiny = MODELS[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=False)
    for share in (0.0, 0.25):
        runs = []
        for each in (plain, model):
            for module in each.modules():
                if isinstance(module, nn.Dropout):
                    module.p = share
            torch.manual_seed(3)
            runs.append(tiny.call(each.train()).detach())
        same(*runs)
        if name != "gpt2":  # which drops outputs alone
            assert all(layer.drops == (share > 0) for layer in twell.sparse_layers(model).values())


# --- Layers that stay dense -----------------------------------------------------------------------


def test_a_class_of_linear_layers_that_stays_dense_says_so_once() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.FalconConfig(
        vocab_size=97, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, activation="relu",
        ffn_hidden_size=60, hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(3)
    plain = transformers.FalconForCausalLM(config).eval()
    model = copy.deepcopy(plain)
    with pytest.warns(UserWarning, match=r"h\.\*\.mlp \(FalconMLP\) computes densely: its dense_h_to") as told:
        twell.sparsify(model, freeze=False)
    assert len([w for w in told if "densely" in str(w.message)]) == 1
    ids = torch.arange(12)[None]
    same(model(ids).logits, plain(ids).logits)
    with pytest.raises(ValueError, match="dense_h_to_4h is FalconLinear, which does more than multiply"):
        twell.sparsify(plain)


# --- Adapters -------------------------------------------------------------------------------------


def adapters(name: str) -> dict[str, Any]:
    peft = pytest.importorskip("peft")
    parts = PARTS[name]
    return {
        "lora": peft.LoraConfig(r=2, target_modules=parts),
        "ia3": peft.IA3Config(target_modules=parts, feedforward_modules=parts[-1:]),
        "modules_to_save": peft.LoraConfig(r=2, target_modules=parts[:1], modules_to_save=parts[1:]),
    }


def adapted(model: nn.Module, config: Any) -> Any:
    peft = pytest.importorskip("peft")
    made = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in made.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return made


@pytest.mark.parametrize("kind", ["lora", "ia3", "modules_to_save"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "torch encoder"])
def test_adapters_are_those_of_the_plain_model(name: str, kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    tiny, config = MODELS[name], adapters(name)[kind]
    plain = adapted(tiny.model(), copy.deepcopy(config))
    model = adapted(twell.sparsify(tiny.model(), freeze=False), copy.deepcopy(config))
    with torch.no_grad():
        want = tiny.call(plain)
        assert not torch.allclose(want, tiny.call(tiny.model()), atol=1e-2)
        same(tiny.call(model), want)
    names = [[n for n, p in each.named_parameters() if p.requires_grad] for each in (plain, model)]
    assert names[0] == names[1]
    for writer, folder in ((plain, tmp_path / "plain"), (model, tmp_path / "sparse")):
        writer.save_pretrained(folder)
        for reader in (tiny.model(), twell.sparsify(tiny.model(), freeze=False)):
            read = peft.PeftModel.from_pretrained(reader, folder).eval()
            with torch.no_grad():
                same(tiny.call(read), want)
    if kind == "lora":  # merged, it is a layer like others
        merged = model.merge_and_unload()
        assert all(m._special_child() is None for m in twell.sparse_layers(merged).values())
        with torch.no_grad():
            # (W + B A) x for W x + B (A x): each weight is rounded once more, to 6e-8 of its size.
            same(tiny.call(merged), want, atol=1e-4)


@pytest.mark.parametrize("kind", ["lora", "ia3", "modules_to_save"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "torch encoder"])
def test_a_frozen_layer_refuses_an_adapter(name: str, kind: str) -> None:
    model = twell.sparsify(MODELS[name].model())
    with pytest.raises(ValueError, match=r"packed .*thaw\(\)") as told:
        adapted(model, adapters(name)[kind])
    assert "\n" not in str(told.value)


# --- What a frozen layer refuses ------------------------------------------------------------------

REFUSED = {
    "called": lambda part: part(torch.ones(1, 24)),
    "read": lambda part: part.weight.sum(),
    "compared": lambda part: part.weight > 0,
    "written": lambda part: part.weight.mul_(2),
    "set": lambda part: setattr(part, "weight", nn.Parameter(torch.ones(1))),
    "deleted": lambda part: delattr(part, "weight"),
    "pruned": lambda part: prune.l1_unstructured(part, "weight", 0.5),
    "parametrized": lambda part: parametrize.register_parametrization(part, "weight", nn.Identity()),
    "hooked before": lambda part: part.register_forward_pre_hook(print),
    "hooked": lambda part: part.register_forward_hook(print),
    "hooked backward": lambda part: part.register_full_backward_hook(print),
    "extended": lambda part: part.add_module("adapter", nn.Identity()),
    "given a child": lambda part: setattr(part, "adapter", nn.Identity()),
    "copied": copy.deepcopy,
}


@pytest.mark.parametrize("name", ["opt", "mistral", "phi3", "gpt2"])
@pytest.mark.parametrize("what", REFUSED)
def test_parts_of_a_frozen_layer_refuse(what: str, name: str) -> None:
    tiny = MODELS[name]
    model = twell.sparsify(tiny.model())
    with torch.no_grad():
        want = tiny.call(model)
    part = model.get_submodule(part_names(model, name)[-1])
    with pytest.raises(ValueError, match=r"is packed in a frozen layer .*thaw\(\)") as told:
        REFUSED[what](part)
    assert "\n" not in str(told.value)
    with torch.no_grad():
        assert torch.equal(tiny.call(model), want)
    assert list(model.state_dict()) == list(tiny.model().state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_a_frozen_layer_say_what_they_are(name: str) -> None:
    tiny = MODELS[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain))
    for place in part_names(model, name):
        part, was = model.get_submodule(place), plain.get_submodule(place)
        assert (part.weight.shape, part.weight.dtype) == (was.weight.shape, was.weight.dtype)
        assert part.weight.device == was.weight.device and not part.weight.requires_grad
        assert hasattr(part, "bias") == hasattr(was, "bias") or was.bias is None
        assert not list(part.parameters()) and not list(part.buffers())


@pytest.mark.parametrize("name", MODELS)
def test_thawing_gives_the_parts_back(name: str) -> None:
    tiny = MODELS[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain))
    for layer in twell.sparse_layers(model).values():
        layer.thaw()
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
    for place in part_names(model, name):
        assert type(model.get_submodule(place)) is type(plain.get_submodule(place))
    state = plain.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    same(tiny.call(model), tiny.call(plain))


# --- Experts whose weights are one parameter ------------------------------------------------------


def experts_of(model: nn.Module) -> dict[str, Any]:
    return {n: m for n, m in model.named_modules() if n.endswith(".experts")}


@pytest.mark.parametrize("name", STACKED)
def test_parameters_of_experts_stay(name: str) -> None:
    tiny = STACKED[name]
    plain = tiny.model()
    model = copy.deepcopy(plain)
    parameters = [(n, id(p)) for n, p in model.named_parameters()]
    modules = dict(model.named_modules())
    twell.sparsify(model, freeze=False)
    assert [(n, id(p)) for n, p in model.named_parameters()] == parameters
    for place, module in experts_of(model).items():
        assert module is modules[place] and type(module).__name__ == type(plain.get_submodule(place)).__name__
        assert isinstance(module, type(plain.get_submodule(place)))
    with torch.no_grad():
        for each in (plain, model):
            for p in each.parameters():
                p.mul_(0.75)
    same(tiny.call(model), tiny.call(plain))


@pytest.mark.parametrize("name", STACKED)
def test_adapters_of_experts(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    tiny = STACKED[name]
    into = "gate_up_proj" if name == "mixtral" else "up_proj"
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], target_parameters=[f"experts.{into}", "experts.down_proj"]
    )
    plain = adapted(tiny.model(), copy.deepcopy(config))
    model = adapted(twell.sparsify(tiny.model(), freeze=False), copy.deepcopy(config))
    names = [[n for n, p in each.named_parameters() if p.requires_grad] for each in (plain, model)]
    assert names[0] == names[1] and any("experts" in n for n in names[0])
    want = tiny.call(plain)
    same(tiny.call(model), want)
    for each in (plain, model):
        tiny.call(each).square().mean().backward()
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        assert p.grad is q.grad is None or torch.allclose(q.grad, p.grad, rtol=1e-3, atol=1e-5)
    for writer, folder in ((plain, tmp_path / "plain"), (model, tmp_path / "sparse")):
        writer.save_pretrained(folder)
        for reader in (tiny.model(), twell.sparsify(tiny.model(), freeze=False)):
            same(tiny.call(peft.PeftModel.from_pretrained(reader, folder).eval()), want)
    with pytest.warns(RuntimeWarning, match="no parameter was matched"):
        adapted(twell.sparsify(tiny.model()), config)


@pytest.mark.parametrize("name", STACKED)
def test_experts_freeze_and_thaw_together(name: str) -> None:
    tiny = STACKED[name]
    model = tiny.model()
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        want = tiny.call(model)
    twell.sparsify(model, freeze=False)
    place, experts = next(iter(experts_of(model).items()))
    layers = [m for n, m in twell.sparse_layers(model).items() if n.startswith(place)]
    layers[1].freeze()
    assert all(layer.frozen for layer in layers) and not list(experts.parameters())
    assert experts.down_proj.shape == state[f"{place}.down_proj"].shape
    with pytest.raises(ValueError, match=r"^down_proj: is packed in a frozen layer .*thaw\(\)"):
        experts.down_proj[0]
    for step in (layers[2].thaw, layers[0].freeze):
        with torch.no_grad():
            same(tiny.call(model), want)
        assert list(model.state_dict()) == list(state)
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
        step()
    layers[0].thaw()
    assert not any(layer.frozen for layer in layers)
    assert all(p.requires_grad for p in experts.parameters())


class Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, use_cache=False, return_dict=False)[0]


@pytest.mark.parametrize("how", ["export", "compile", "trace"])
@pytest.mark.parametrize("kind", ["trained", "eager", "thresholds", "frozen"])
def test_graphs_of_experts_hold_for_other_inputs(kind: str, how: str) -> None:
    tiny = STACKED["mixtral"]
    plain = tiny.model()
    if kind == "eager":  # the code that depends on numbers
        plain.set_experts_implementation("eager")
    model = twell.sparsify(copy.deepcopy(plain), freeze=kind == "frozen")
    if kind == "thresholds":  # of which the module's own code knows nothing
        for each in twell.sparse_layers(model).values():
            each.activation, each.threshold = "fat_relu", 0.0
    torch._dynamo.reset()
    ids = [torch.randint(3, 97, (1, 6), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    logits, want = Logits(model), Logits(plain)
    with torch.no_grad():
        if how == "export":
            graph: Any = torch.export.export(logits, (ids[0],), strict=False).module()
        elif how == "compile":
            graph = torch.compile(logits, fullgraph=True, backend="aot_eager")
        else:
            graph = torch.jit.trace(logits, (ids[0],), check_trace=False)
        for each in ids:
            same(graph(each), want(each))


@pytest.mark.parametrize("freeze", [False, True])
def test_export_of_experts_that_choose_tokens(freeze: bool) -> None:
    """How many tokens an expert gets is a symbol there."""
    plain = ON_THE_HUB["smallthinker"].model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    logits, want = Logits(model), Logits(plain)
    ids = [torch.randint(3, 97, (1, 6), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    with torch.no_grad():
        graph = torch.export.export(logits, (ids[0],), strict=False).module()
        for each in ids:
            same(graph(each), want(each))


def test_a_compiled_model_with_experts_has_its_l1_term() -> None:
    """The mean over the tokens that an expert gets, for which there is no single graph."""
    tiny, runs = STACKED["mixtral"], []
    for compiled in (False, True):
        model = twell.sparsify(tiny.model(), freeze=False).train()
        twell.set_l1(model, 0.5)
        torch._dynamo.reset()
        call = torch.compile(model, backend="aot_eager") if compiled else model
        call(**tiny.inputs(), use_cache=False).logits.square().mean().backward()
        runs.append([p.grad for p in model.parameters()])
    for got, want in zip(*runs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


# --- Copies and the tools of others ---------------------------------------------------------------


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_copies(name: str, freeze: bool) -> None:
    tiny = ALL[name]
    model = twell.sparsify(tiny.model(), freeze=freeze)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twins = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)
    with torch.no_grad():
        want = tiny.call(model)
        for twin in twins:
            assert torch.equal(tiny.call(twin), want)
            twin.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})
            assert not torch.equal(tiny.call(twin), want)
            assert torch.equal(tiny.call(model), want)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_distributed_checkpoints(name: str, freeze: bool) -> None:
    from torch.distributed.checkpoint import state_dict as dcp

    tiny = ALL[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    state = dcp.get_model_state_dict(model)
    assert list(state) == list(dcp.get_model_state_dict(plain))
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in state.items())
    other = {k: v * 0.5 for k, v in state.items()}
    for each in (plain, model):
        dcp.set_model_state_dict(each, other)
    with torch.no_grad():
        same(tiny.call(model), tiny.call(plain))


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "torch encoder"])
def test_accelerate_loads(name: str, freeze: bool, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    tiny = MODELS[name]
    tiny.model().save_pretrained(tmp_path)
    torch.manual_seed(11)
    plain = tiny.make().eval()
    model = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    before = tiny.call(plain).detach()
    for each in (plain, model):
        accelerate.load_checkpoint_in_model(each, str(tmp_path), device_map={"": "cpu"})
    assert not torch.allclose(tiny.call(plain), before, atol=1e-2)
    state = model.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in plain.state_dict().items())
    with torch.no_grad():
        same(tiny.call(model), tiny.call(plain))


@pytest.mark.parametrize("where", ["cpu", "disk"])
@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", [name for name in ALL if name != "torch encoder"])
def test_accelerate_offloads(name: str, freeze: bool, where: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    tiny = ALL[name]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    if where == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, str(tmp_path), execution_device="cpu")
    with torch.no_grad():
        got = model(**tiny.inputs())
        want = plain(**tiny.inputs())
    same(*(out if torch.is_tensor(out) else getattr(out, tiny.output) for out in (got, want)))
