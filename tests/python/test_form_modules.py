"""Modules with biases, an activation of up and a norm of the hidden state; and models of them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from forms import KINDS, NEURONS, VECTORS, WIDTH, inputs, vectors, weights
from layers import TINY_SIZES, UNIT, assert_within, let_screens_pay, reference, screening
from test_second_derivatives import TRANSFORMS, square
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from twell import _frozen, _training

# --- Modules --------------------------------------------------------------------------------------


def layer_of(
    kind: type[twell.modules.SparseFfn], dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any
) -> twell.modules.SparseFfn:
    """A layer with everything; its norm is called as BitNet's."""
    gated = kind is twell.GatedFfn
    given = vectors(dtype, gated, seed)
    norm = nn.RMSNorm(NEURONS, eps=given["norm_epsilon"], dtype=dtype)
    norm.weight.data = given["norm_weight"]
    gate, up, down = weights(dtype, gated, seed)
    tensors = [gate, *([up] if gated else []), down.t().contiguous()]
    biases = [given[name] for name in VECTORS[:3] if name in given]
    options = {"up_activation": "relu" if gated else "identity", **options}
    return kind.from_dense(
        *tensors, biases=biases, norm=norm, norm_name="ffn_sub_norm", **options
    ).requires_grad_()


def by_children(module: twell.modules.SparseFfn, x: Tensor) -> Tensor:
    *into, down = (getattr(module, name) for name in module.names)
    h = torch.relu(into[0](x))
    h = h if len(into) == 1 else h * torch.relu(into[1](x))
    return down(module.ffn_sub_norm(h))


def bound_of(module: twell.modules.SparseFfn, x: Tensor) -> Any:
    gated = module.NAMES == twell.GatedFfn.NAMES
    layers = [getattr(module, name) for name in module.names]
    given = dict(zip((VECTORS[:3] if gated else VECTORS[:3:2]), (child.bias for child in layers)))
    norm = {"norm_weight": module.ffn_sub_norm.weight, "norm_epsilon": module.ffn_sub_norm.eps}
    up = layers[1].weight if gated else None
    up_activation = module.up_activation
    with torch.no_grad():
        return reference(
            x, layers[0].weight, up, layers[-1].weight.t(), up_activation=up_activation, **given, **norm
        )


@pytest.mark.parametrize("screened", [False, True])
@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_module(
    kind: type[Any], rows: int, screened: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_screens_pay(monkeypatch)
    module, x = layer_of(kind, dtype), inputs(dtype, rows)
    assert module._special_child() is None
    want = bound_of(module, x)
    # PyTorch's dense operations round each result once more; a norm's twice.
    assert_within(module(x).detach(), want)
    with torch.no_grad():
        assert_within(module.eval()(x), want, 1.0 if dtype == torch.float32 else 3.0)
    keys, state = list(module.state_dict()), copy.deepcopy(module.state_dict())
    module.freeze(inputs(dtype, 64) if screened else None)
    assert module.screened == screened and not list(module.parameters())
    assert not any(list(child.buffers()) for child in module.children())
    assert_within(module(x), want)
    assert list(module.state_dict()) == keys
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert not module(x).requires_grad
    module.thaw()
    assert list(module.state_dict()) == keys and type(module.ffn_sub_norm) is nn.RMSNorm
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert all(p.requires_grad for p in module.parameters())
    assert len(list(module.parameters())) == 2 * len(kind.NAMES) + 1
    assert_within(module.train()(x).detach(), want)


@pytest.mark.parametrize("kind", KINDS)
def test_training_a_module(kind: type[Any]) -> None:
    module, twin = layer_of(kind), layer_of(kind)
    x = inputs(torch.float32, 40)
    module(x).square().mean().backward()
    by_children(twin, x).square().mean().backward()
    for (name, p), q in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert p.grad.any(), name
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
    # One vector alone wants a gradient.
    for p in module.parameters():
        module.requires_grad_(False)
        p.requires_grad_(True)
        want, p.grad = p.grad, None
        module(x).square().mean().backward()
        torch.testing.assert_close(p.grad, want)


@pytest.mark.parametrize("reentrant", [False, True])
def test_l1_and_activation_checkpointing(reentrant: bool) -> None:
    module = layer_of(twell.GatedFfn)
    twell.set_l1(module, 0.25)
    x = inputs(torch.float32, 40).requires_grad_()
    module(x).square().mean().backward()
    want = [p.grad for p in module.parameters()]
    module.zero_grad()
    checkpoint(module, x, use_reentrant=reentrant).square().mean().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), want))
    # The term is that of h before the norm.
    module.collect_l1 = True
    module(x)
    h = torch.relu(module.gate_proj(x)) * torch.relu(module.up_proj(x))
    torch.testing.assert_close(module.l1, h.abs().sum().detach() / 40)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms(transform: Callable[..., object], kind: type[Any], freeze: bool) -> None:
    twin = layer_of(kind)
    module = layer_of(kind).freeze() if freeze else layer_of(kind)
    x = inputs(torch.float32, 1)[0]
    want = transform(lambda x: by_children(twin, x), x)
    torch.testing.assert_close(transform(module, x), want, rtol=1e-3, atol=1e-4)


def test_transforms_of_the_parameters() -> None:
    module, twin = layer_of(twell.GatedFfn), layer_of(twell.GatedFfn)
    x = inputs(torch.float32, 2)
    given = {name: p.detach() for name, p in module.named_parameters()}

    def by(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda p, x: square(lambda x: function(p, x))(x)

    def layers(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, p, (x,))

    def children(p: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(twin, p):
            return by_children(twin, x)

    for transform in (
        lambda f: torch.func.grad(f)(given, x),
        lambda f: torch.func.vmap(torch.func.grad(f), (None, 0))(given, x),
    ):
        got, want = transform(by(layers)), transform(by(children))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.fixture
def own_traces() -> Iterator[None]:
    """PyTorch counts traces of one function over all layers, up to a limit."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("own_traces")
@pytest.mark.parametrize("form", ["trained", "frozen", "screened"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_exported_and_copied(kind: type[Any], form: str, tmp_path: Path) -> None:
    module, x = layer_of(kind), inputs(torch.float32, 77)
    if form != "trained":
        module.freeze(findings=screening(x, module.neurons) if form == "screened" else None)
        assert module.screened == (form == "screened")
    module.eval()
    with torch.no_grad():
        want = module(x)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), want)
    if form == "trained":
        compiled(x).square().mean().backward()
        got = [p.grad for p in module.parameters()]
        module.zero_grad()
        module(x).square().mean().backward()
        for a, p in zip(got, module.parameters()):
            torch.testing.assert_close(a, p.grad)
        module.requires_grad_(False)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "layer.pt2")
    again = torch.export.load(tmp_path / "layer.pt2").module()
    torch.testing.assert_close(again(x), want)
    if form != "trained":
        assert "twell.run_layer" in str(program.graph) and "linear" not in str(program.graph)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    twins = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
    ]
    for twin in twins:
        with torch.no_grad():
            torch.testing.assert_close(twin(x), want, rtol=1e-5, atol=1e-6)
            if twin.frozen:
                twin.thaw()
            for p in twin.parameters():  # a copy shares nothing
                p.zero_()
            assert torch.equal(module(x), want)


@pytest.mark.parametrize("form", ["packed", "screened"])
@pytest.mark.parametrize("assign", [False, True])
def test_loading_into_a_frozen_layer(assign: bool, form: str, dtype: torch.dtype) -> None:
    module, x = layer_of(twell.GatedFfn, dtype), inputs(dtype, 40)
    module.freeze(findings=screening(x, module.neurons) if form == "screened" else None)
    memory = [b.data_ptr() for b in module.buffers()]
    state = layer_of(twell.GatedFfn, dtype, seed=3).state_dict()
    module.load_state_dict(state, assign=assign)
    assert module.screened == (form == "screened")
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert_within(module(x), bound_of(layer_of(twell.GatedFfn, dtype, seed=3), x))
    assert assign or [b.data_ptr() for b in module.buffers()] == memory
    # Each alone moves the output.
    for name, value in state.items():
        before = module(x)
        left = module.load_state_dict({name: value + 0.5}, strict=False)
        assert not left.unexpected_keys and len(left.missing_keys) == len(state) - 1
        assert not torch.equal(module(x), before), name
    with pytest.raises(RuntimeError, match=r"size mismatch for ffn_sub_norm.weight"):
        module.load_state_dict({**state, "ffn_sub_norm.weight": torch.ones(3)})
    with pytest.raises(RuntimeError, match=r'Missing key.*"up_proj.bias"'):
        module.load_state_dict({k: v for k, v in state.items() if k != "up_proj.bias"})


def test_conversions_of_a_frozen_layer() -> None:
    module, x = layer_of(twell.GatedFfn).freeze(), inputs(torch.float32, 40)
    before, state = module(x), copy.deepcopy(module.state_dict())
    with pytest.raises(RuntimeError, match="expected dtype"):
        module.half()
    made = _frozen.held_of

    def fails(*_: Any) -> Any:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:  # half way
        patch.setattr(_frozen, "held_of", fails)
        with pytest.raises(MemoryError):
            module.bfloat16()
    assert _frozen.held_of is made
    assert torch.equal(module(x), before)
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    module.bfloat16()
    assert {b.dtype for b in module.buffers()} == {torch.uint8, torch.bfloat16}
    want = layer_of(twell.GatedFfn).bfloat16().freeze()
    assert torch.equal(module(x.bfloat16()), want(x.bfloat16()))
    with pytest.raises(RuntimeError, match=r"frozen and stays as it was.*gate_bias: expected"):
        module.load_state_dict(
            {k: v.half() if k == "gate_proj.bias" else v for k, v in module.state_dict().items()},
            assign=True,
        )
    assert torch.equal(module(x.bfloat16()), want(x.bfloat16()))


@pytest.mark.parametrize("freeze", [False, True])
def test_autocast(freeze: bool) -> None:
    module, x = layer_of(twell.GatedFfn), inputs(torch.float32, 40)
    exact = copy.deepcopy(module).double()(x.double()).detach()
    if freeze:
        module.freeze()
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    assert (y.double() - exact).norm() <= 2.0**-6 * exact.norm()
    if not freeze:
        y.float().square().mean().backward()
        assert all(p.grad.dtype == torch.float32 and p.grad.any() for p in module.parameters())
        with torch.autocast("cpu", torch.float16):  # densely
            y = module(x)
            y.float().sum().backward()
        assert y.dtype == torch.float16
        assert (y.double() - exact).norm() <= 2.0**-8 * exact.norm()


@pytest.mark.filterwarnings("ignore:.*runs densely")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", VECTORS)
def test_not_finite(name: str, value: float) -> None:
    module, x = layer_of(twell.GatedFfn), inputs(torch.float32, 40)
    children = dict(zip(VECTORS, (*module.names, "ffn_sub_norm")))
    parameter = getattr(module, children[name]).get_parameter(
        "weight" if name == "norm_weight" else "bias"
    )
    with torch.no_grad():
        parameter[7] = value
        want = by_children(module, x)
    assert not want.isfinite().all()
    for y in (module(x).detach(), module.freeze()(x)):
        assert torch.equal(y.isnan(), want.isnan())
        assert torch.equal(y.isposinf(), want.isposinf())
    # Skipping is right where only what fires is reached.
    assert module._held.finite != (name in ("up_bias", "norm_weight"))


def test_children_that_do_more() -> None:
    module, x = layer_of(twell.GatedFfn), inputs(torch.float32, 40)
    want = module(x).detach()
    calls: list[int] = []
    handle = module.ffn_sub_norm.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(module(x).detach(), want, rtol=1e-4, atol=1e-5)
    assert calls == [1] and module._special_child() == "ffn_sub_norm"
    with pytest.raises(ValueError, match="freeze: ffn_sub_norm has hooks, which a frozen layer"):
        module.freeze()
    handle.remove()
    nn.utils.parametrizations.weight_norm(module.ffn_sub_norm, dim=None)
    assert module._special_child() == "ffn_sub_norm"
    torch.testing.assert_close(module(x).detach(), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="freeze: ffn_sub_norm is ParametrizedRMSNorm"):
        module.freeze()


def test_a_bias_may_come_and_go() -> None:
    module, x = twell.GatedFfn(WIDTH, NEURONS, bias=True), inputs(torch.float32, 40)
    assert all(getattr(module, name).bias is not None for name in module.names)
    for name in module.names:
        before = module(x).detach()
        getattr(module, name).bias = None
        assert not torch.equal(module(x).detach(), before)
    module.up_proj.bias = nn.Parameter(torch.ones(NEURONS))
    with torch.no_grad():
        want = module(x)
        torch.testing.assert_close(module.freeze()(x), want, rtol=1e-4, atol=1e-5)
    assert list(module.state_dict()) == [
        "gate_proj.weight", "up_proj.weight", "up_proj.bias", "down_proj.weight"
    ]  # fmt: skip


class Own(nn.Module):
    """A model's own RMSNorm, without a weight if it says so."""

    def __init__(self, weight: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(NEURONS)) if weight else None
        self.variance_epsilon = 1e-3

    def forward(self, h: Tensor) -> Tensor:
        z = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return z if self.weight is None else self.weight * z


class Derived(nn.RMSNorm):
    pass


@pytest.mark.parametrize(
    "norm",
    [
        Own,
        lambda: nn.RMSNorm(NEURONS),
        lambda: nn.RMSNorm(NEURONS, 1e-3, elementwise_affine=False),
        lambda: nn.RMSNorm(NEURONS, 1e-3, dtype=torch.float64),
        lambda: Derived(NEURONS, 1e-3),
    ],
)
def test_norms(norm: Callable[[], nn.Module]) -> None:
    made = norm()
    dtype = torch.float32 if made.weight is None else made.weight.dtype
    module = twell.GatedFfn(WIDTH, NEURONS, norm=made, norm_name="inner", dtype=dtype)
    x = inputs(torch.float32, 40).to(dtype)
    with torch.no_grad():
        want = module(x)
    torch.testing.assert_close(module(x).detach(), want, rtol=1e-4, atol=1e-5)
    module.float().freeze()
    torch.testing.assert_close(module(x.float()), want.float(), rtol=1e-4, atol=1e-5)
    assert type(module.thaw().inner) is type(made)


class Shifted(Own):
    """As Gemma's."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) + super().forward(h) / self.weight


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": nn.LayerNorm(NEURONS)}, "norm: expected an RMSNorm, got LayerNorm"),
        ({"norm": nn.Linear(NEURONS, NEURONS)}, "norm: expected an RMSNorm, got Linear"),
        ({"norm": Shifted(), "norm_name": "inner"}, "inner: expected an RMSNorm, got Shifted"),
        ({"norm": nn.RMSNorm(NEURONS, 0.0)}, "norm: expected an RMSNorm"),
        ({"norm": nn.RMSNorm(7)}, r"norm: expected a weight of shape \[60\], got \[7\]"),
        ({"norm": Own(), "norm_name": "up_proj"}, "norm_name: expected one that the layer does not"),
        ({"up_activation": "fat_relu"}, "up_activation: expected one of identity, relu, relu_sq"),
        ({"biases": [None]}, r"biases: expected none or shapes \[60\], \[60\], \[24\], got none"),
        ({"biases": [torch.ones(60)] * 3}, r"biases: expected none or shapes .*\[60\]$"),
        ({"biases": [torch.ones(60).half(), None, None]}, "gate, up, down: expected one dtype"),
    ],
)
def test_modules_refuse(options: dict[str, Any], message: str) -> None:
    gate, up, down = weights(torch.float32)
    with pytest.raises(ValueError, match=f"^{message}"):
        twell.GatedFfn.from_dense(gate, up, down.t(), **options)


def test_a_layer_without_a_gate_refuses_an_activation_of_up() -> None:
    with pytest.raises(ValueError, match="up_activation: expected identity, in a layer without a"):
        twell.Ffn(WIDTH, NEURONS, up_activation="relu")


def test_on_a_gpu_it_is_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """`on_gpu` of the CPU, whose operators would do it."""
    monkeypatch.setattr(_frozen, "on_gpu", lambda _: True)
    monkeypatch.setattr(_training, "on_gpu", lambda _: True)
    module, x = layer_of(twell.GatedFfn), inputs(torch.float32, 40)
    for sample in (None, inputs(torch.float32, 64)):
        with pytest.raises(ValueError, match=r"expected neither biases.*on a GPU.*runs densely$"):
            module.freeze(sample)
        assert not module.frozen
    module(x).sum().backward()
    assert module._train_form.form is None and module._train_form._fired is None


# --- Models ---------------------------------------------------------------------------------------


def llama_with_biases() -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(**TINY_SIZES, hidden_act="relu", mlp_bias=True)
    return transformers.LlamaForCausalLM(config), {}


def bitnet() -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BitNetConfig(
        **TINY_SIZES, num_key_value_heads=2, hidden_act="relu2", rms_norm_eps=1e-3
    )
    return transformers.BitNetForCausalLM(config), {}


def phi() -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.PhiConfig(**TINY_SIZES, hidden_act="relu")
    names = {"up": "fc1", "down": "fc2", "act": "activation_fn"}
    return transformers.PhiForCausalLM(config), {"mlp": names}


def ids() -> Tensor:
    return torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [llama_with_biases, bitnet, phi])
def test_models(
    make: Callable[[], tuple[nn.Module, dict[str, Any]]], kind: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(7)
    model, options = make()
    model = model.eval()
    for name, p in model.named_parameters():
        if name.endswith(".bias") or "norm" in name:
            nn.init.normal_(p, std=0.3)
    exact = copy.deepcopy(model.to(kind)).double()
    frozen, trained = copy.deepcopy(model), copy.deepcopy(model)
    twell.sparsify(frozen, sample=ids(), **options)
    twell.sparsify(trained, freeze=False, **options)
    assert len(twell.sparse_layers(frozen)) == 2
    assert all(layer._special_child() is None for layer in twell.sparse_layers(trained).values())
    runs = []
    for each in (exact, model, trained):
        out = each(ids(), labels=ids())
        out.loss.backward()
        runs.append([out.logits, *(p.grad for p in each.parameters())])
    with torch.no_grad():
        quick = frozen(ids()).logits
    unit = UNIT[kind]
    for want, plain, got in zip(*runs, strict=True):
        allowed = 2 * (plain.double() - want).norm() + 16 * unit * want.norm()
        assert want.any() and (got.double() - want).norm() <= allowed
    want, plain = (run[0].detach() for run in runs[:2])
    assert (quick.double() - want).norm() <= 2 * (plain.double() - want).norm() + 16 * unit * want.norm()
    # The checkpoint is the same, and every parameter of a layer counts.
    frozen.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=kind).state_dict()
    assert all(torch.equal(v, again[k]) for k, v in model.state_dict().items())
    layer = next(iter(twell.sparse_layers(frozen)))
    for name, value in model.state_dict().items():
        if name.startswith(layer):
            frozen.load_state_dict({name: value + 0.5}, strict=False)
            with torch.no_grad():
                assert not torch.equal(frozen(ids()).logits, quick), name
            frozen.load_state_dict({name: value}, strict=False)


@pytest.mark.parametrize("make", [llama_with_biases, bitnet])
def test_freezing_a_model_that_fails_half_way(
    make: Callable[[], tuple[nn.Module, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(7)
    model = make()[0].eval()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    modules = [(name, type(m)) for name, m in model.named_modules()]
    with torch.no_grad():
        want = model(ids()).logits
    made, calls = _frozen.held_of, []

    def twice(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError
        return made(*arguments)

    monkeypatch.setattr(_frozen, "held_of", twice)
    with pytest.raises(MemoryError):
        twell.sparsify(model)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == wanted
    assert [(name, type(m)) for name, m in model.named_modules()] == modules
    with torch.no_grad():
        assert torch.equal(model(ids()).logits, want)


def test_revived_neurons_have_no_bias() -> None:
    pytest.importorskip("transformers")
    module = layer_of(twell.GatedFfn)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.0)
    module(inputs(torch.float32, 40)).square().mean().backward()
    optimizer.step()
    callback = twell.hf.SparsityCallback(reinit_every=1, dead_window=5)
    callback._idle = {"mlp": torch.where(torch.arange(NEURONS) == 7, 9, 0)}
    callback._may_revive = {"mlp"}  # as it finds before the first step
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    callback._revive({"mlp": module}, optimizer, 1)
    linear, dead = module.gate_proj, torch.arange(NEURONS) == 7
    assert linear.bias[7] == 0 and not torch.equal(linear.weight[7], before["gate_proj.weight"][7])
    for p in linear.parameters():
        moments = [m for m in optimizer.state[p].values() if m.shape == p.shape]
        assert len(moments) == 2
        assert all(not m[7].any() and m[~dead].any() for m in moments)
    for name, p in module.named_parameters():
        kept = ~dead if name.startswith("gate_proj") else torch.ones(len(p), dtype=torch.bool)
        assert torch.equal(p[kept], before[name][kept]), name
