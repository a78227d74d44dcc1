"""Layers among the parts of a module: PyTorch's encoder and its nested tensors, what is refused, and
what happens half way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from tiny_models import AMONG_OTHERS, features
from torch import Tensor, nn
from torch.nn import functional
from twell import _frozen
from twell.hf import inline

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def encoder(layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(24, 2, 60, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, layers, nn.LayerNorm(24)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn(p.shape))
    return model


def padding(*lengths: int) -> Tensor:
    return torch.arange(20) >= torch.tensor(lengths)[:, None]


@pytest.fixture
def fast_layers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether inputs of the fused layer of PyTorch were nested."""
    calls: list[bool] = []
    fused = torch._transformer_encoder_layer_fwd

    def counted(x: Tensor, *rest: Any) -> Tensor:
        calls.append(x.is_nested)
        return fused(x, *rest)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    return calls


@pytest.mark.parametrize("freeze", [True, False])
def test_nested_tensors_of_the_encoder(freeze: bool, fast_layers: list[bool]) -> None:
    """Padding becomes zeros (before the last norm), and no layer computes it."""
    model, x = encoder(), features(3, 20, 24)
    with torch.no_grad():
        want = model(x, src_key_padding_mask=padding(20, 7, 12))
        assert fast_layers == [True, True]  # else this shows nothing
        twell.sparsify(model, freeze=freeze)
        rows: list[int] = []
        for layer in twell.sparse_layers(model).values():
            layer.register_forward_hook(lambda m, a, y: rows.append(a[0].shape[:-1].numel()))
        for layer in model.layers:
            assert not layer.activation_relu_or_gelu
        fast_layers.clear()
        got = model(x, src_key_padding_mask=padding(20, 7, 12))
        assert fast_layers == [] and rows == [39, 39]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        # Not aligned to the left, and no padding at all.
        for mask in (padding(20, 7, 12).flip(1), None):
            plain = encoder()(x, src_key_padding_mask=mask)
            torch.testing.assert_close(
                model(x, src_key_padding_mask=mask), plain, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_as_inputs(freeze: bool, layout: torch.layout) -> None:
    parts = [features(n, 24) for n in (5, 9, 1)]
    model = encoder(1).layers[0]
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    x = torch.nested.nested_tensor(parts, layout=layout)
    with torch.no_grad():
        want = [model(part[None])[0] for part in parts]
        if layout == torch.strided:
            got = sparse(x).unbind()
        else:
            layer = twell.sparse_layers(sparse)["sparse_ffn"]
            got = inline._seen(sparse)._ff_block(x).unbind()  # without attention, which has no such layout
            want = [layer(part) for part in parts]
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_want_no_nested_tensor() -> None:
    model, x = encoder(dropout=0.0), features(3, 20, 24)
    sparse = twell.sparsify(copy.deepcopy(model), freeze=False)
    for each in (model, sparse):
        real = ~padding(20, 7, 12)[..., None]
        (each(x, src_key_padding_mask=~real[..., 0]) * real).square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), sparse.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["opt", "bart", "torch encoder", "timesfm"])
def test_parts_stay_what_and_where_they_were(name: str) -> None:
    tiny = AMONG_OTHERS[name]
    model = tiny.model()
    modules = dict(model.named_modules())
    parameters = [(n, id(p)) for n, p in model.named_parameters()]
    twell.sparsify(model, freeze=False)
    layers = twell.sparse_layers(model)
    assert all(place.endswith(".sparse_ffn") for place in layers)
    for place, module in modules.items():
        assert model.get_submodule(place) is module
    assert {n for n, _ in model.named_modules()} == {*modules, *layers}
    # In their order, so that an optimizer's state fits.
    assert [(n, id(p)) for n, p in model.named_parameters()] == parameters
    assert not any(list(layer.parameters()) for layer in layers.values())
    with pytest.raises(ValueError, match=f"{type(model).__name__} has no MLP"):
        twell.sparsify(model)


def test_what_changes_afterwards_is_noticed() -> None:
    """Never a wrong answer in silence."""
    tiny = AMONG_OTHERS["m2m100"]
    plain = tiny.model()
    model = twell.sparsify(copy.deepcopy(plain), freeze=False).train()
    tiny.call(model)
    block = model.model.encoder.layers[1]
    block.activation_dropout = 0.25
    with pytest.raises(RuntimeError, match="between fc1 and fc2 of a sparse layer something has ch"):
        tiny.call(model)
    tiny.call(model.eval())
    other = nn.Linear(24, 60)
    block.fc1 = plain.model.encoder.layers[1].fc1 = other
    torch.testing.assert_close(tiny.call(model), tiny.call(plain), rtol=1e-4, atol=1e-5)
    block.activation_fn = plain.model.encoder.layers[1].activation_fn = nn.SiLU()
    torch.testing.assert_close(tiny.call(model), tiny.call(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["fc1", "activation_fn"])
def test_a_frozen_layer_notices_what_takes_a_place(what: str) -> None:
    tiny = AMONG_OTHERS["m2m100"]
    model = twell.sparsify(tiny.model())
    block = model.model.encoder.layers[1]
    setattr(block, what, nn.Linear(24, 60) if what == "fc1" else nn.SiLU())
    with pytest.raises(RuntimeError, match=f"{what} of a frozen layer has changed, which it would pass"):
        tiny.call(model)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", ["torch encoder", "opt", "torch decoder", "timesfm"])
def test_compiled(name: str, freeze: bool) -> None:
    torch._dynamo.reset()
    tiny = AMONG_OTHERS[name]
    model = tiny.model()
    with torch.no_grad():
        want = tiny.call(model)
        twell.sparsify(model, freeze=freeze)
        torch.testing.assert_close(
            tiny.call(torch.compile(model, backend="aot_eager")), want, rtol=1e-4, atol=1e-5
        )


def test_exported() -> None:
    model = encoder(1).layers[0]
    x = features(3, 20, 24)
    with torch.no_grad():
        want = model(x)
        program = torch.export.export(twell.sparsify(model), (x,))
        torch.testing.assert_close(program.module()(x), want, rtol=1e-4, atol=1e-5)


# --- What is refused ------------------------------------------------------------------------------


class Block(nn.Module):
    """A user's own, with the names of OPT."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(24, 24)
        self.fc1 = nn.Linear(24, 60)
        self.fc2 = nn.Linear(60, 24)
        self.activation_fn = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(60))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        a, _ = self.attention(x), mask
        return a + self.ffn(a)

    def ffn(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation_fn(self.fc1(x)))


class Scaled(Block):
    def ffn(self, x: Tensor) -> Tensor:
        return self.fc2(self.scale * self.activation_fn(self.fc1(x)))


class Twice(Block):
    def ffn(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        return self.fc2(self.activation_fn(h)) + h[..., :24]


class ActivationTwice(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.activation_fn(super().forward(x))


class Residual(Block):
    def ffn(self, x: Tensor) -> Tensor:
        h = self.activation_fn(self.fc1(x))
        return self.fc2(h) + h.sum()


class DropsBefore(Block):
    def ffn(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation_fn(self.drop(self.fc1(x))))


class Function(Block):
    def ffn(self, x: Tensor) -> Tensor:
        return self.fc2(functional.relu(self.fc1(x)))


class OtherDropout(Block):
    def ffn(self, x: Tensor) -> Tensor:
        h = self.activation_fn(self.fc1(x))
        return self.fc2(functional.alpha_dropout(h, 0.5, self.training))


class Lengths(Block):
    def ffn(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation_fn(self.fc1(x))) if len(x) > 3 else x


class Converted(Block):
    def ffn(self, x: Tensor) -> Tensor:
        h = self.activation_fn(self.fc1(x))
        return self.fc2(h.to(x.dtype) if h.dtype != x.dtype else h)


class Never(Block):
    def ffn(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Scaled, "0: Scaled computes something else than fc2\\(activation_fn\\(fc1\\(x\\)\\)\\)"),
        (Twice, "0: Twice computes something else"),
        (ActivationTwice, "0: ActivationTwice computes something else"),
        (Residual, "0: Residual computes something else"),
        (DropsBefore, "0: DropsBefore computes something else"),
        (Function, "0: Function computes something else"),
        (OtherDropout, "0: OtherDropout computes something else"),
        (Lengths, "0: the code of Lengths could not be followed: 'len' is not supported"),
        (Converted, "0: Converted computes something else"),
        (Never, "0: Never computes something else"),
    ],
)
def test_code_that_does_more(kind: type[Block], message: str, freeze: bool) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(kind(), Block()).eval()
    modules, x = dict(model.named_modules()), features(5, 24)
    want = model(x)
    with pytest.raises(ValueError, match=f"^{message}") as error:
        twell.sparsify(model, freeze=freeze)
    assert "\n" not in str(error.value)
    assert dict(model.named_modules()) == modules
    assert torch.equal(model(x), want)


class DropsAfter(Block):
    def ffn(self, x: Tensor) -> Tensor:
        return self.fc2(functional.dropout(self.activation_fn(self.fc1(x)), training=self.training))


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("kind", [Block, DropsAfter])
def test_blocks_of_ones_own(kind: type[Block], freeze: bool) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(kind(), kind())
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    assert len(twell.sparse_layers(sparse)) == 2
    x = features(5, 24)
    for training in (True, False):
        runs = []
        for each in (model, sparse):
            torch.manual_seed(4)
            runs.append(each.train(training)(x).detach())
        torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-5)


def three_times(*arguments: Any) -> Tensor:
    return 3 * arguments[-1]


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str, tuple[bool, ...]]] = {
    "hook": (lambda b: b.register_forward_hook(three_times), "", ()),
    "hook on fc1": (lambda b: b.fc1.register_forward_hook(three_times), "1.fc1 has hooks", (True,)),
    "hook on the activation": (
        lambda b: b.activation_fn.register_forward_hook(three_times),
        "1.activation_fn has hooks, which the layer would lose",
        (True, False),
    ),
    "forward": (
        lambda b: setattr(b, "forward", lambda x: x), "1 has another forward, which", (True, False)
    ),
    "weight norm": (
        lambda b: nn.utils.parametrizations.weight_norm(b.fc2), "1.fc2 is Parametrized", (True,)
    ),
    "tied": (
        lambda b: setattr(b.fc1, "weight", nn.Parameter(b.fc2.weight.t().contiguous())), "", ()
    ),
    "other sizes": (
        lambda b: setattr(b, "fc2", nn.Linear(61, 24)), "1: up, down: expected shapes", (True, False)
    ),
    "silu": (lambda b: setattr(b, "activation_fn", nn.SiLU()), "1: its activation SiLU", (True, False)),
    "half": (lambda b: b.half(), "1: expected weights of bfloat16 or float32", (True,)),
    "two dtypes": (
        lambda b: b.fc2.double(), "1: up, down: expected one dtype", (True, False)
    ),
    "no linear layer": (
        lambda b: setattr(b, "fc1", nn.Sequential(b.fc1)), "1.fc1: expected a linear layer", (True, False)
    ),
}  # fmt: skip


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(("change", "message", "refused"), CHANGES.values(), ids=CHANGES.keys())
def test_what_hangs_on_a_block(
    change: Callable[[nn.Module], object], message: str, refused: tuple[bool, ...], freeze: bool
) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(Block(), Block()).eval()
    change(model[1])
    modules, x = dict(model.named_modules()), features(5, 24)
    attributes = [dict(m.__dict__) for m in model.modules()]
    broken = "sizes" in message or "shapes" in message or "dtype" in message or "half" in message
    want = None if broken or "bfloat16" in message else model(x)
    if freeze in refused:
        with pytest.raises(ValueError, match=f"^{message}"):
            twell.sparsify(model, freeze=freeze)
        assert dict(model.named_modules()) == modules
        assert [m.__dict__.keys() for m in model.modules()] == [a.keys() for a in attributes]
        assert want is None or torch.equal(model(x), want)
    else:
        twell.sparsify(model, freeze=freeze)
        assert len(twell.sparse_layers(model)) == 2
        assert want is None or torch.allclose(model(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sample", [True, False])
def test_freezing_that_fails_half_way(sample: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = AMONG_OTHERS["m2m100"]
    model = tiny.model()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
    with torch.no_grad():
        want = tiny.call(model)
    kinds = [(name, type(module)) for name, module in model.named_modules()]
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    state = copy.deepcopy(model.state_dict())
    made, calls = _frozen.held_of, []

    def third(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError
        return made(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_frozen, "held_of", third)
        with pytest.raises(MemoryError):
            twell.sparsify(model, sample=tiny.inputs() if sample else None)
    short = {k: v[:, :4] for k, v in tiny.inputs().items()}
    with pytest.raises(ValueError, match="sample: expected 32 or more tokens"):
        twell.sparsify(model, sample=short)
    assert [(name, type(module)) for name, module in model.named_modules()] == kinds
    assert {name: p.requires_grad for name, p in model.named_parameters()} == wanted
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(tiny.call(model), want)
        twell.sparsify(model)
        torch.testing.assert_close(tiny.call(model), want, rtol=1e-4, atol=1e-5)


def test_blocks_that_share_a_layer() -> None:
    torch.manual_seed(3)
    block = Block()
    model = nn.Sequential(block, nn.ReLU(), block).eval()
    x = features(5, 24)
    want = model(x)
    twell.sparsify(model)
    assert model[0] is model[2] and len(twell.sparse_layers(model)) == 1
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)


def test_what_has_no_zeros_stays_with_a_line() -> None:
    class Smooth(Block):
        def __init__(self) -> None:
            super().__init__()
            self.activation_fn = nn.GELU()

    torch.manual_seed(3)
    model = nn.Sequential(Smooth(), Block(), Smooth()).eval()
    x = features(5, 24)
    want = model(x)
    with pytest.warns(UserWarning, match=r"sparsify: \* \(Smooth\) stay as they are: 0: its") as told:
        twell.sparsify(model)
    assert len(told) == 1 and list(twell.sparse_layers(model)) == ["1.sparse_ffn"]
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"^0: its activation GELU yields no exact zeros"):
        twell.sparsify(nn.Sequential(Smooth()))


# --- By structure ---------------------------------------------------------------------------------


def in_sequence(*parts: nn.Module) -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ff = nn.Sequential(*parts)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.ff(x)

    return nn.Sequential(Residual())


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("dropout", [False, True])
def test_sequences(dropout: bool, freeze: bool) -> None:
    torch.manual_seed(3)
    parts = [nn.Linear(24, 60), nn.ReLU(), nn.Dropout(0.5), nn.Linear(60, 24), nn.Dropout(0.25)]
    model = in_sequence(*[p for p in parts if dropout or not isinstance(p, nn.Dropout)])
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    (layer,) = twell.sparse_layers(sparse).values()
    shares = (0.5, 0.25) if dropout else (0.0, 0.0)
    assert (layer.hidden_dropout, layer.output_dropout) == shares
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in sparse.state_dict().items())
    x = features(5, 24)
    for training in (True, False):
        runs = []
        for each in (model, sparse):
            torch.manual_seed(4)
            runs.append(each.train(training)(x).detach())
        torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "parts",
    [
        [nn.Linear(24, 60), nn.ReLU(), nn.Linear(60, 3)],
        [nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 24)],
        [nn.Linear(24, 60), nn.ReLU(), nn.LayerNorm(60), nn.Linear(60, 24)],
        [nn.Linear(24, 60), nn.Linear(60, 60), nn.Linear(60, 24)],
        [nn.ReLU(), nn.Linear(24, 24)],
    ],
)
def test_sequences_that_are_something_else(parts: list[nn.Module]) -> None:
    with pytest.raises(ValueError, match="has no MLP with"):
        twell.sparsify(in_sequence(*parts))


def test_stacks_of_one_class_in_two_places() -> None:
    """As CLIP's, whose text and image blocks may have different activations."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text = nn.Sequential(Block(), Block())
            self.image = nn.Sequential(Block(), Block())
            for block in self.image:
                block.activation_fn = nn.SiLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.text(x) + self.image(x)

    torch.manual_seed(3)
    model, x = Two().eval(), features(5, 24)
    want = model(x)
    with pytest.warns(UserWarning, match=r"sparsify: image.\* \(Block\) stay as they are: image.0: its"):
        twell.sparsify(model)
    assert list(twell.sparse_layers(model)) == ["text.0.sparse_ffn", "text.1.sparse_ffn"]
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
    model = Two()
    model.text[1].activation_fn = nn.SiLU()
    with pytest.raises(ValueError, match=r"^text.1: its activation SiLU yields no exact zeros"):
        twell.sparsify(model)


# --- In the PyTorch stack -------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("kind", [Block, DropsAfter])
def test_transforms(kind: type[Block], freeze: bool) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(kind()).eval()
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    x = features(5, 24)
    for transform in (
        lambda f: torch.func.grad(lambda x: f(x).square().mean())(x),
        lambda f: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f: torch.func.vmap(f)(x),
        lambda f: torch.func.vmap(torch.func.jacrev(f))(x[:2]),
    ):
        want, got = (transform(each).detach() for each in (model, sparse))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("freeze", [True, False])
def test_autocast(freeze: bool) -> None:
    tiny = AMONG_OTHERS["m2m100"]
    model = tiny.model()
    exact = tiny.call(copy.deepcopy(model).double())
    sparse = twell.sparsify(copy.deepcopy(model), freeze=freeze)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want, got = tiny.call(model), tiny.call(sparse)
    assert got.dtype == want.dtype == torch.bfloat16
    assert (got - exact).norm() <= 2 * (want - exact).norm() + 2.0**-8 * exact.norm()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_activation_checkpointing(dropout: float, reentrant: bool) -> None:
    tiny = AMONG_OTHERS["m2m100"]
    runs = []
    for checkpointing in (True, False):
        model = tiny.model().train()
        for module in model.modules():
            for name in ("activation_dropout", "dropout", "attention_dropout"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, dropout if name == "activation_dropout" else 0.0)
        twell.sparsify(model, freeze=False)
        twell.set_l1(model, 0.5)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(3)
        tiny.call(model).square().mean().backward()
        runs.append([p.grad for p in model.parameters() if p.grad is not None])
    for got, want in zip(*runs, strict=True):
        if reentrant:  # which adds up what decoders say of the encoder in another order
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(got, want)


def test_adapters() -> None:
    peft = pytest.importorskip("peft")
    tiny = AMONG_OTHERS["opt"]
    model = tiny.model()
    sparse = twell.sparsify(copy.deepcopy(model), freeze=False)
    config = peft.LoraConfig(r=4, target_modules=["fc1", "fc2"], init_lora_weights=False)
    runs = []
    for each in (model, sparse):
        torch.manual_seed(3)
        peft.inject_adapter_in_model(config, each)
        runs.append(tiny.call(each.eval()).detach())
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-5)


def test_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    tiny = AMONG_OTHERS["opt"]
    model = twell.sparsify(tiny.model())
    with torch.no_grad():
        want = tiny.call(model)

    def call(_: int) -> bool:
        with torch.no_grad():
            return all(torch.equal(tiny.call(model), want) for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))
