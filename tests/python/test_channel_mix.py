"""The channel mix of RWKV-7 in the package flash-linear-attention. Its token shift is a Triton kernel, which
runs on GPUs alone: here a plain one stands in its place whenever the code runs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import twell
from tiny_models import features
from torch import Tensor, nn
from torch.nn import functional

WIDTH, NEURONS = 32, 96


@pytest.fixture
def rwkv7() -> Iterator[Any]:
    """The module with the layer; what it has compiled runs as it is written."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")  # of itself
        pytest.importorskip("fla")
        from fla.models.rwkv7 import modeling_rwkv7

        yield modeling_rwkv7


def plain_shift(x: Tensor, cu_seqlens: Any = None, cache: Any = None, output_cache: bool = False) -> Any:
    before = torch.zeros_like(x[:, :1]) if cache is None else cache.unsqueeze(1)
    delta = torch.cat([before, x[:, :-1]], 1) - x
    return (delta, x[:, -1]) if output_cache else delta


def mixes(module: Any) -> nn.ModuleList:
    torch.manual_seed(5)
    sizes = {"hidden_size": WIDTH, "intermediate_size": NEURONS, "num_hidden_layers": 2}
    made = [module.RWKV7FeedForward(**sizes, layer_idx=i) for i in range(2)]
    for mix in made:
        nn.init.normal_(mix.value.weight, std=0.2)  # 0 before training
    return nn.ModuleList(made)


def through(mixes: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for mix in mixes.children():
        y, _ = mix(x, mask)
        x = x + y
    return x


@pytest.mark.parametrize("freeze", [True, False])
def test_rwkv7(rwkv7: Any, freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = mixes(rwkv7)
    sparse = twell.sparsify(copy.deepcopy(plain), freeze=freeze)  # past the kernel
    layers = twell.sparse_layers(sparse)
    assert list(layers) == ["0.sparse_ffn", "1.sparse_ffn"]
    assert {layer.activation for layer in layers.values()} == {"relu_squared"}
    assert list(sparse.state_dict()) == list(plain.state_dict())

    monkeypatch.setattr(rwkv7, "token_shift", plain_shift)
    x, mask = features(2, 9, WIDTH), (torch.arange(9) > 2).float().expand(2, 9)
    runs = []
    for each in (plain, sparse):
        y = torch.cat([through(each, x), through(each, x, mask)])
        y.square().mean().backward()
        runs.append([y, *(p.grad for p in each.parameters() if not freeze)])
    for got, want in zip(runs[1], runs[0]):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for name, value in plain.state_dict().items():
            before = through(sparse, x)
            sparse.load_state_dict({name: value + 0.1}, strict=False)
            assert not torch.equal(through(sparse, x), before), name


def test_the_state_of_a_sequence(rwkv7: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token as all at once."""
    monkeypatch.setattr(rwkv7, "token_shift", plain_shift)
    mix, x = mixes(rwkv7)[0], features(2, 5, WIDTH)
    sparse = twell.sparsify(nn.ModuleList([mix]))[0]

    class State(dict[int, Any]):
        def update(self, ffn_state: Tensor, layer_idx: int, offset: int) -> None:  # type: ignore[override]
            self[layer_idx] = {"ffn_state": ffn_state}

    with torch.no_grad():
        want, _ = sparse(x)
        state = State({0: {"ffn_state": None}})
        got = torch.cat([sparse(x[:, i : i + 1], state=state)[0] for i in range(5)], 1)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


# --- Code that calls what cannot be followed ------------------------------------------------------


def opaque(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError("a kernel")
    return x.roll(1, 0)


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(WIDTH, NEURONS), nn.Linear(NEURONS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(functional.relu(self.key(opaque(x))).square())


class Between(Mix):
    def forward(self, x: Tensor) -> Tensor:
        return self.value(opaque(functional.relu(self.key(x)).square()))


class Beside(Mix):
    """The kernel might change what it reads."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.key(x)).square()
        return self.value(hidden) + opaque(hidden).mean()


def among(kind: type[Mix]) -> Mix:
    """Among other parts, where code is followed; a module alone is tried with numbers."""
    mix = kind()
    mix.norm = nn.LayerNorm(WIDTH)
    return mix


def test_past_a_kernel() -> None:
    torch.manual_seed(5)
    plain, x = nn.Sequential(among(Mix), among(Mix)), features(7, WIDTH)
    sparse = twell.sparsify(copy.deepcopy(plain))
    assert len(twell.sparse_layers(sparse)) == 2
    torch.testing.assert_close(sparse(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_module_alone_that_mixes_tokens(dim: int) -> None:
    """It is tried with numbers, and is something else whatever it mixes."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj, self.down_proj, self.act = nn.Linear(WIDTH, NEURONS), nn.Linear(NEURONS, WIDTH), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.down_proj(self.act(self.up_proj(x.roll(1, dim))))

    with pytest.raises(ValueError, match="Alone computes something else"):
        twell.sparsify(nn.Sequential(Alone()))


@pytest.mark.parametrize("kind", [Between, Beside])
def test_a_kernel_between(kind: type[Mix]) -> None:
    torch.manual_seed(5)
    plain, x = nn.Sequential(among(kind)), features(7, WIDTH)
    want = plain(x)
    with pytest.raises(ValueError, match=r"computes something else|could not be followed|has no MLP"):
        twell.sparsify(plain)
    assert torch.equal(plain(x), want)


# --- Names that attention has as well -------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.act = nn.ReLU()
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.key(x)) * self.value(x)


class Pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.value, self.act = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        self.q = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.key(x)) @ self.q * self.value(x)


class WithShift(Mix):
    """Whose only other part is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("mask", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.value(functional.relu(self.key(x + x.roll(1, 0) * self.x_k * self.mask)).square())


@pytest.mark.parametrize(
    "other",
    [
        Attention(),
        Attention(key=nn.Embedding(9, WIDTH), value=nn.LayerNorm(WIDTH)),
        Attention(key=nn.Sequential(nn.Linear(WIDTH, NEURONS)), value=nn.Sequential(nn.Linear(NEURONS, WIDTH))),
        Pooling(),
    ],
    ids=["attention", "embedding", "sequence", "pooling"],
)
def test_attention_is_not_meant(other: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = twell.sparsify(nn.ModuleList([other, WithShift()]))
    assert list(twell.sparse_layers(model)) == ["1.sparse_ffn"]


def test_a_mix_with_parameters_of_its_own() -> None:
    torch.manual_seed(5)
    plain, x = nn.Sequential(WithShift(), WithShift()), features(7, WIDTH)
    sparse = twell.sparsify(copy.deepcopy(plain))
    torch.testing.assert_close(sparse(x), plain(x), rtol=1e-4, atol=1e-5)


# --- What a function that was not followed might do -------------------------------------------------


class Kept:
    hidden: Any = None


class InAnObject(Mix):
    def forward(self, x: Tensor) -> Tensor:
        kept = Kept()
        x = opaque(x)
        kept.hidden = self.act(self.key(x))
        change(kept)
        return self.value(kept.hidden)


class ByAQuestion(Mix):
    def forward(self, x: Tensor) -> Tensor:
        nothing = opaque_nothing(x)
        hidden = self.act(self.key(x))
        y = self.value(hidden)
        return y + hidden.mean() if nothing is None else y


def change(kept: Kept) -> None:
    if isinstance(kept.hidden, Tensor):
        kept.hidden.add_(1)


def opaque_nothing(x: Tensor) -> None:
    opaque(x)


def with_act(kind: type[Mix]) -> Mix:
    mix = among(kind)
    mix.act = nn.ReLU()
    return mix


def test_a_kernel_after_the_layer_has_begun() -> None:
    with pytest.raises(ValueError, match=r"could not be followed|has no MLP"):
        twell.sparsify(nn.Sequential(with_act(InAnObject)))


def test_a_question_about_what_a_kernel_gave() -> None:
    model = twell.sparsify(nn.Sequential(with_act(ByAQuestion)))
    with pytest.raises(RuntimeError, match="of a sparse layer something has changed"):
        model(features(7, WIDTH))


# --- RWKV-4, which divides weights in its first pass ------------------------------------------------


def rwkv4() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 60, "num_hidden_layers": 4}
    model = transformers.RwkvForCausalLM(transformers.RwkvConfig(**sizes, rescale_every=1)).eval()
    for block in model.rwkv.blocks:
        nn.init.normal_(block.feed_forward.value.weight, std=0.3)
    return model


def test_rwkv4_before_its_first_pass() -> None:
    model, ids = rwkv4(), torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(1))
    weights = {name: p.clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        want = copy.deepcopy(model)(ids).logits
        assert len(twell.report(model, ids).layers) == 4
        assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
        for training in (False, True):
            for options in ({}, {"sample": ids}, {"freeze": False}):
                sparse = twell.sparsify(copy.deepcopy(model).train(training), **options).eval()
                torch.testing.assert_close(sparse(ids).logits, want, rtol=1e-3, atol=1e-4)
                for layer in twell.sparse_layers(sparse).values():
                    layer.thaw()
                torch.testing.assert_close(sparse(ids).logits, want, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(model(ids).logits, want)
