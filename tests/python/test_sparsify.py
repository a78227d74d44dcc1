"""sparsify changes all MLPs or none, and what hangs on one stays in force or is the reason."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from layers import let_screens_pay, python, tiny_llama
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from twell import _frozen

transformers = pytest.importorskip("transformers")


def ids() -> Tensor:
    return torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(1))


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(ids()).logits


def second(model: nn.Module) -> nn.Module:
    """The MLP of the second of two blocks: the first is in order."""
    return model.model.layers[1].mlp


def three_times(*arguments: Any) -> Tensor:
    return 3 * arguments[-1]


class Scaled(transformers.models.llama.modeling_llama.LlamaMLP):
    """As Falcon-H1's, and others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0.5


class Cropped(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :-1]


class Pair(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return super().forward(x) * scale


class Normed(transformers.models.llama.modeling_llama.LlamaMLP):
    """As BitNet's: the norm becomes a child as the class is taken."""

    NORM: Callable[..., nn.Module] = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.inner(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


class LayerNormed(Normed):
    NORM = nn.LayerNorm


class NormedBefore(Normed):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.inner(self.act_fn(self.gate_proj(x))) * self.up_proj(x))


class Doubly(transformers.models.llama.modeling_llama.LlamaMLP):
    """As TurboSparse's, dReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.act_fn(self.up_proj(x)))


def another_class(kind: type[nn.Module]) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        second(model).__class__ = kind
        if issubclass(kind, Normed):
            second(model).inner = kind.NORM(130, eps=1e-4)
            nn.init.normal_(second(model).inner.weight)

    return change


def replaced_forward(child: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        module = second(model).get_submodule(child)
        plain = module.forward
        module.forward = lambda x: 2 * plain(x)

    return change


def put(child: str, make: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        name = f"model.layers.1.mlp{'.' * bool(child)}{child}"
        model.set_submodule(name, make(model.get_submodule(name)))

    return change


def adapter(model: nn.Module) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=["gate_proj"], layers_to_transform=[1], init_lora_weights=False
    )
    torch.manual_seed(3)
    peft.inject_adapter_in_model(config, model)


def quantized(model: nn.Module) -> None:
    from torch.ao.quantization import quantize_dynamic

    model.set_submodule("model.layers.1.mlp", quantize_dynamic(second(model), {nn.Linear}))


def tied_weight(model: nn.Module) -> None:
    second(model).up_proj.weight = model.model.layers[0].mlp.up_proj.weight


def tied_layer(model: nn.Module) -> None:
    second(model).up_proj = model.model.layers[0].mlp.up_proj


def identity_with_a_hook(model: nn.Module) -> None:
    second(model).drop = nn.Identity()
    second(model).drop.register_forward_hook(three_times)


MLP, LINEAR = "model.layers.1.mlp", "model.layers.1.mlp."
NEVER, FROZEN = (True, False), (True,)  # with which freeze it is refused

# What is done to a model, how the refusal begins, and when it is refused.
CHANGES: dict[str, tuple[Callable[[nn.Module], object], str, tuple[bool, ...]]] = {
    "hook": (lambda m: second(m).register_forward_hook(three_times), "", ()),
    "hook with options": (
        lambda m: second(m).register_forward_pre_hook(
            lambda _, a, o: ((2 * a[0],), o), with_kwargs=True
        ),
        "",
        (),
    ),
    "hook on a linear layer": (
        lambda m: second(m).gate_proj.register_forward_hook(three_times),
        LINEAR + "gate_proj has hooks",
        FROZEN,
    ),
    "hook on the activation": (
        lambda m: second(m).act_fn.register_forward_hook(three_times),
        LINEAR + "act_fn has hooks",
        NEVER,
    ),
    "hook on what does nothing": (identity_with_a_hook, LINEAR + "drop has hooks", NEVER),
    "hook on the state": (
        lambda m: second(m).register_state_dict_pre_hook(lambda *_: None),
        MLP + " has hooks on its state_dict",
        NEVER,
    ),
    "hook on a linear layer's state": (
        lambda m: second(m).up_proj.register_load_state_dict_pre_hook(lambda *_: None),
        LINEAR + "up_proj has hooks on its state_dict",
        FROZEN,
    ),
    "forward": (replaced_forward(""), MLP + " has another forward", NEVER),
    "forward of a linear layer": (
        replaced_forward("down_proj"), LINEAR + "down_proj has another forward", FROZEN
    ),
    "weight norm": (
        lambda m: parametrizations.weight_norm(second(m).up_proj),
        LINEAR + "up_proj is ParametrizedLinear, which does more than multiply",
        FROZEN,
    ),
    "weight norm, the old one": (
        lambda m: nn.utils.weight_norm(second(m).up_proj), LINEAR + "up_proj has hooks", FROZEN
    ),
    "pruning": (
        lambda m: prune.l1_unstructured(second(m).up_proj, "weight", amount=0.5),
        LINEAR + "up_proj has hooks",
        FROZEN,
    ),
    "adapter": (adapter, LINEAR + "gate_proj is Linear, which does more.*merge_and_unload", FROZEN),
    "quantized": (quantized, LINEAR + "gate_proj is Linear, which does more", FROZEN),
    "buffer": (
        lambda m: second(m).register_buffer("mask", torch.ones(3)), MLP + " has mask of its own", NEVER
    ),
    "parameter": (
        lambda m: second(m).register_parameter("scale", nn.Parameter(torch.ones(3))),
        MLP + " has scale of its own",
        NEVER,
    ),
    "buffer of a linear layer": (
        lambda m: second(m).up_proj.register_buffer("mask", torch.ones(3)),
        LINEAR + "up_proj has mask of its own",
        FROZEN,
    ),
    "compiled": (put("", lambda m: torch.compile(m, backend="eager")), MLP + ": is compiled", NEVER),
    "compiled in place": (
        lambda m: second(m).compile(backend="eager"), MLP + " has a compiled call", NEVER
    ),
    "scripted": (put("", torch.jit.script), MLP + " has another forward", NEVER),
    "scripted linear layer": (
        put("gate_proj", torch.jit.script), LINEAR + "gate_proj is RecursiveScriptModule", FROZEN
    ),
    "no linear layer": (
        put("gate_proj", nn.Sequential),
        LINEAR + "gate_proj: expected a linear layer, got Sequential",
        NEVER,
    ),
    "bias": (put("up_proj", lambda m: nn.Linear(48, 130)), "", ()),
    "biases": (
        lambda m: [
            put(name, lambda old: nn.Linear(old.in_features, old.out_features))(m)
            for name in twell.GatedFfn.NAMES
        ],
        "",
        (),
    ),
    "norm before down": (another_class(Normed), "", ()),
    "norm of another kind": (
        another_class(LayerNormed), MLP + ": expected gate_proj.*got inner too", NEVER
    ),
    "norm in another place": (
        another_class(NormedBefore), MLP + r": NormedBefore computes something else than .*inner\(", NEVER
    ),
    "activation on up": (another_class(Doubly), "", ()),
    "activation on up that up may not have": (
        lambda m: put("act_fn", lambda _: twell.FatRelu(0.1))(m) or another_class(Doubly)(m),
        MLP + ": applies fat_relu to up as well, which may have identity, relu, relu_squared",
        NEVER,
    ),
    "other sizes": (
        put("up_proj", lambda m: nn.Linear(48, 131, bias=False)),
        MLP + ": gate, up, down: expected shapes",
        NEVER,
    ),
    "further layer": (
        lambda m: second(m).add_module("norm", nn.LayerNorm(48)),
        MLP + ": expected gate_proj.*got norm too",
        NEVER,
    ),
    "activation": (put("act_fn", lambda m: nn.SiLU()), MLP + ": its activation SiLU", NEVER),
    "factor": (another_class(Scaled), MLP + ": Scaled computes something else than down_proj", NEVER),
    "shape": (another_class(Cropped), MLP + ": Cropped computes something else", NEVER),
    "argument": (another_class(Pair), MLP + ": Pair takes or needs more than one tensor", NEVER),
    "weight of another block": (
        tied_weight, "model.layers.0.mlp.up_proj: another module has the same weight", FROZEN
    ),
    "layer of another block": (
        tied_layer, "model.layers.0.mlp.up_proj: another module has the same weight", FROZEN
    ),
    "weight of an embedding": (
        lambda m: setattr(m.model.embed_tokens, "weight", nn.Parameter(torch.randn(130, 48)))
        or setattr(second(m).up_proj, "weight", m.model.embed_tokens.weight),
        LINEAR + "up_proj: another module has the same weight",
        FROZEN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(("change", "message", "refused"), CHANGES.values(), ids=CHANGES.keys())
def test_what_hangs_on_an_mlp(
    change: Callable[[nn.Module], object], message: str, refused: tuple[bool, ...], freeze: bool
) -> None:
    model = tiny_llama()
    change(model)
    broken = any(word in message for word in ("Pair", "Cropped", "expected shapes"))
    want = None if broken else logits(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    state = {
        name: value.clone() for name, value in model.state_dict().items() if torch.is_tensor(value)
    }
    if freeze in refused:
        with pytest.raises(ValueError, match=f"^{message}") as error:
            twell.sparsify(model, freeze=freeze)
        assert "\n" not in str(error.value)
        assert dict(model.named_modules(remove_duplicate=False)) == modules
        assert want is None or torch.equal(logits(model), want)
    else:
        twell.sparsify(model, freeze=freeze)
        assert len(twell.sparse_layers(model)) == 2
        torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)
        after = model.state_dict()
        assert set(state) <= set(after) and all(torch.equal(after[k], v) for k, v in state.items())


@pytest.mark.parametrize("freeze", [True, False])
def test_hooks_can_still_be_removed_and_are_told_of_the_layer(freeze: bool) -> None:
    model, seen = tiny_llama(), []
    want = logits(model)
    handle = second(model).register_forward_hook(lambda m, a, y: seen.append(m) or 3 * y)
    twell.sparsify(model, freeze=freeze)
    assert not torch.allclose(logits(model), want) and seen == [second(model)]
    handle.remove()
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)


def test_backward_hooks_fire() -> None:
    model, seen = tiny_llama(), []
    second(model).register_full_backward_hook(lambda m, into, out: seen.append(out[0].shape))
    twell.sparsify(model, freeze=False)
    model(ids(), labels=ids()).loss.backward()
    assert seen == [(2, 40, 48)]


@pytest.mark.parametrize("freeze", [True, False])
def test_blocks_that_share_an_mlp_share_the_layer(freeze: bool) -> None:
    model = tiny_llama()
    model.model.layers[1].mlp = model.model.layers[0].mlp
    want = logits(model)
    twell.sparsify(model, freeze=freeze)
    assert second(model) is model.model.layers[0].mlp and second(model).frozen == freeze
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)


def test_children_stay_the_same_modules() -> None:
    model = tiny_llama()
    gate = second(model).gate_proj
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    twell.sparsify(model, freeze=False)
    assert second(model).gate_proj is gate
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [
        id(p) for p in model.parameters()
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_dtypes_that_the_operators_lack(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_llama()
    second(model).to(dtype)
    modules = dict(model.named_modules())
    with pytest.raises(
        ValueError, match=f"^{MLP}: expected weights of bfloat16 or float32.*got {dtype}"
    ):
        twell.sparsify(model)
    assert dict(model.named_modules()) == modules
    # Unfrozen it is dense.
    model.to(dtype)
    want = logits(model)
    torch.testing.assert_close(logits(twell.sparsify(model, freeze=False)), want)
    tiny_llama().to(dtype).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f"^model.layers.0.mlp: expected weights.*got {dtype}.*dtype= of"
    ):
        twell.hf.from_pretrained(tmp_path)
    assert twell.hf.from_pretrained(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_weights_without_data() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(tiny_llama().config)
    with pytest.raises(ValueError, match=r"^model.layers.0.mlp.gate_proj: its weight has no data"):
        twell.sparsify(model)
    # To be loaded afterwards.
    twell.sparsify(model, freeze=False)
    model.load_state_dict(tiny_llama().state_dict(), assign=True)
    assert not any(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("part", ["", "model.layers.1"])
def test_what_is_compiled_around_an_mlp_sees_the_layer(part: str, freeze: bool) -> None:
    torch._dynamo.reset()
    model = tiny_llama()
    want = logits(model)
    compiled = torch.compile(model.get_submodule(part), backend="aot_eager")
    if part:
        model.set_submodule(part, compiled)
    else:
        model = compiled
    logits(model)
    twell.sparsify(model, freeze=freeze)
    assert len(twell.sparse_layers(model)) == 2
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)


SHARDED = """
import sys, torch, twell
from layers import tiny_llama
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
ids = torch.arange(40).view(1, 40)
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
plain = tiny_llama()
want = plain(ids, labels=ids)
want.loss.backward()
mesh = init_device_mesh("cpu", (1,))
for units in ("ddp", "", "self_attn mlp", "mlp.gate_proj mlp.up_proj mlp.down_proj"):
    model = tiny_llama()
    if units == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        for block in model.model.layers:
            for unit in units.split():
                fully_shard(block.get_submodule(unit), mesh=mesh)
        fully_shard(model, mesh=mesh)
        try:
            twell.sparsify(model)
            raise SystemExit("frozen, though in shards")
        except ValueError as error:
            assert "model.layers.0.mlp.gate_proj" in str(error)
    twell.sparsify(model, freeze=False)
    assert len(twell.sparse_layers(model)) == 2
    out = model(ids, labels=ids)
    out.loss.backward()
    torch.testing.assert_close(out.logits, want.logits, rtol=1e-4, atol=1e-5)
    for got, p in zip(model.parameters(), plain.parameters(), strict=True):
        got = got.grad.full_tensor() if hasattr(got.grad, "full_tensor") else got.grad
        torch.testing.assert_close(got, p.grad, rtol=1e-3, atol=1e-6)
torch.distributed.destroy_process_group()
"""


def test_models_that_are_in_shards_already(tmp_path: Path) -> None:
    run = python(SHARDED, str(tmp_path / "store"))
    assert run.returncode == 0, run.stderr[-3000:]


# --- accelerate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("where", ["disk", "cpu"])
def test_offloaded_weights(where: str, freeze: bool, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = tiny_llama()
    want = logits(model)
    if where == "cpu":
        accelerate.cpu_offload(second(model), execution_device=torch.device("cpu"))
    else:
        accelerate.disk_offload(second(model), tmp_path, execution_device=torch.device("cpu"))
    assert second(model).gate_proj.weight.is_meta and torch.equal(logits(model), want)
    modules = dict(model.named_modules())
    try:
        twell.sparsify(model, freeze=freeze)
    except ValueError as error:
        assert str(error).startswith(MLP) and "hooks of accelerate" in str(error)
        assert dict(model.named_modules()) == modules and torch.equal(logits(model), want)
    else:
        assert not freeze
        torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("freeze", [True, False])
def test_hooks_that_move_inputs_alone(freeze: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = tiny_llama()
    want = logits(model)
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert "forward" in second(model).gate_proj.__dict__
    twell.sparsify(model, freeze=freeze)
    layer = second(model)
    assert layer.frozen == freeze and "forward" in layer.__dict__
    assert freeze or layer._special_child() is None  # sparse in training
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)
    called = []
    layer._hf_hook.pre_forward = lambda m, *a, **o: called.append(m) or (a, o)
    logits(model)
    assert called == [layer]


# --- Half way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [None, ids()])
def test_freezing_that_fails_half_way(
    sample: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_screens_pay(monkeypatch)
    model = tiny_llama()
    second(model).up_proj.weight.requires_grad_(False)
    handle = second(model).register_forward_hook(three_times)
    want = logits(model)
    kinds = [(name, type(module)) for name, module in model.named_modules()]
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    made = _frozen.held_of
    calls = []

    def twice(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError
        return made(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_frozen, "held_of", twice)
        with pytest.raises(MemoryError):
            twell.sparsify(model, sample=sample)
    assert [(name, type(module)) for name, module in model.named_modules()] == kinds
    assert {name: p.requires_grad for name, p in model.named_parameters()} == wanted
    assert torch.equal(logits(model), want)
    twell.sparsify(model, sample=sample)
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-5)
    handle.remove()


def test_what_a_layer_lets_go_is_free_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    first = weakref.ref(model.model.layers[0].mlp.gate_proj.weight)
    freeze, seen = twell.modules.SparseFfn.freeze, []
    monkeypatch.setattr(
        twell.modules.SparseFfn, "freeze", lambda *a, **k: seen.append(first() is None) or freeze(*a, **k)
    )
    twell.sparsify(model)
    assert seen == [False, True]


def test_from_mlp_changes_nothing() -> None:
    model = tiny_llama()
    mlp, want = second(model), logits(model)
    modules = dict(model.named_modules())
    layer = twell.from_mlp(mlp).freeze()
    assert layer.frozen and dict(model.named_modules()) == modules
    assert torch.equal(logits(model), want)
    state = torch.get_rng_state()
    twell.from_mlp(copy.deepcopy(mlp))
    assert torch.equal(torch.get_rng_state(), state)
