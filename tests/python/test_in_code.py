"""Feed-forward layers whose activation is no part of the module: its code calls torch.relu."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import twell
from tiny_models import features
from torch import Tensor, nn
from torch.nn import functional

WIDTH, NEURONS = 24, 60


def linears(layer: nn.Module, *names: str, bias: bool = True) -> None:
    """The last of them narrows again."""
    for name in names[:-1]:
        setattr(layer, name, nn.Linear(WIDTH, NEURONS, bias=bias))
    setattr(layer, names[-1], nn.Linear(NEURONS, WIDTH, bias=bias))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linears(self, "fc_1", "fc_2")
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_2(self.dropout(torch.relu(self.fc_1(x))))


class Method(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linears(self, "w_1", "w_2")

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.w_1(x).relu())


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linears(self, "c_fc", "c_proj", bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.relu(self.c_fc(x)).square())


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linears(self, "w1", "w3", "w2", bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.relu(self.w1(x)) * self.w3(x))


class Both(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.relu(self.w1(x)) * functional.relu(self.w3(x)))


class Child(nn.Module):
    """Of another name than activation."""

    def __init__(self) -> None:
        super().__init__()
        linears(self, "fc1", "fc2")
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))


class Smooth(Squared):
    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.gelu(self.c_fc(x)))


class Clamped(Squared):
    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.relu6(self.c_fc(x)))


class ClampedLate(Squared):
    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.relu(self.c_fc(x)).clamp(max=20))


class Leaky(Squared):
    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.leaky_relu(self.c_fc(x), 1e-3))


class Two(Squared):
    """As a head of two inputs."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.c_proj(functional.relu(self.c_fc(x + y)))


class Bare(Squared):
    """Of two linear layers: a matrix of low rank."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x))


class Residual(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.ffn = kind()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


def model(kind: type[nn.Module], blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(Residual(kind) for _ in range(blocks))).eval()


TAKEN: dict[type[nn.Module], tuple[str, str]] = {
    Plain: ("relu", "identity"),
    Method: ("relu", "identity"),
    Squared: ("relu_squared", "identity"),
    Gated: ("relu", "identity"),
    Both: ("relu", "relu"),
    Child: ("relu", "identity"),
}


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("kind", TAKEN)
def test_same_outputs_and_gradients(kind: type[nn.Module], freeze: bool) -> None:
    plain, x = model(kind), features(7, WIDTH)
    sparse = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    layers = twell.sparse_layers(sparse)
    assert list(layers) == ["0.ffn", "1.ffn"]
    for layer in layers.values():
        assert (layer.activation, layer.up_activation) == TAKEN[kind]
        assert layer.hidden_dropout == (0.1 if kind is Plain else 0)
    torch.testing.assert_close(sparse(x), plain(x), rtol=1e-5, atol=1e-5)
    assert list(sparse.state_dict()) == list(plain.state_dict())
    if not freeze:
        for each in (sparse, plain):
            each(x).square().mean().backward()
        for name, p in plain.named_parameters():
            got = sparse.get_parameter(name).grad
            torch.testing.assert_close(got, p.grad, rtol=1e-4, atol=1e-6)
    for name, value in plain.state_dict().items():
        before = sparse(x)
        sparse.load_state_dict({name: value + 0.5}, strict=False)
        assert not torch.equal(sparse(x), before), name


# --- Among other parts ----------------------------------------------------------------------------


class Within(nn.Module):
    """As TimesFM's: a norm before, a mask and the residual."""

    def __init__(self) -> None:
        super().__init__()
        linears(self, "gate_proj", "down_proj")
        self.layer_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: Tensor, paddings: Tensor | None = None) -> Tensor:
        y = self.down_proj(self.hidden(self.gate_proj(self.layer_norm(x))))
        if paddings is not None:
            y = y * (1.0 - paddings[..., None])
        return y + x

    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v)


class InPlace(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v, inplace=True)


class MethodWithin(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return v.relu()


class Drops(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return self.dropout(torch.relu(v))


class DropsByFunction(Within):
    p = 0.25

    def hidden(self, v: Tensor) -> Tensor:
        return functional.dropout(functional.relu(v), p=self.p, training=self.training)


class Later(Within):
    """Whose code may be changed."""

    then: Callable[[Tensor], Tensor] = staticmethod(functional.relu)

    def hidden(self, v: Tensor) -> Tensor:
        return type(self).then(v)


class SquaredWithin(Within):
    """As RWKV's channel mix."""

    def hidden(self, v: Tensor) -> Tensor:
        return torch.square(torch.relu(v))


class SquaredByMethods(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return self.dropout(v.relu().square())


class SecondPower(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v) ** 2


class TimesItself(Within):
    def hidden(self, v: Tensor) -> Tensor:
        v = functional.relu(v)
        return v * v


WITHIN = [Within, InPlace, MethodWithin, Drops, DropsByFunction, Later]
SQUARED = [SquaredWithin, SquaredByMethods, SecondPower, TimesItself]


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("kind", WITHIN + SQUARED)
def test_among_other_parts(kind: type[Within], freeze: bool) -> None:
    torch.manual_seed(5)
    plain = nn.Sequential(kind(), kind())
    sparse = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    layers = twell.sparse_layers(sparse)
    assert list(layers) == ["0.sparse_ffn", "1.sparse_ffn"]
    assert {layer.activation for layer in layers.values()} == {"relu_squared" if kind in SQUARED else "relu"}
    assert list(sparse.state_dict()) == list(plain.state_dict())
    x, mask = features(3, 7, WIDTH), (torch.arange(7) < 3).float().expand(3, 7)
    for training in (True, False):
        runs = []
        for each in (plain.train(training), sparse.train(training)):
            each.zero_grad()
            torch.manual_seed(4)  # which drops the same
            y = torch.cat([each(x), each[0](x, mask), each[1](x, paddings=mask)])
            y.square().mean().backward()
            runs.append([y, *(p.grad for p in each.parameters() if not freeze)])
        for got, want in zip(runs[1], runs[0]):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert torch.equal(sparse[0](x, mask)[:, :3], x[:, :3])


@pytest.mark.parametrize("freeze", [True, False])
def test_an_input_that_changes_after_it_was_read(freeze: bool) -> None:
    class InPlaceOf(Within):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layer_norm(x)
            hidden = self.hidden(self.gate_proj(y))
            y += x
            return y + self.down_proj(hidden)

    torch.manual_seed(5)
    plain, x = nn.Sequential(InPlaceOf(), InPlaceOf()), features(7, WIDTH)
    sparse = twell.sparsify(copy.deepcopy(plain), freeze=freeze)
    assert len(twell.sparse_layers(sparse)) == 2
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), plain(x), rtol=1e-4, atol=1e-5)


class Cubed(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v) ** 3


class TimesUp(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v) * v


class SquaredAfterDropout(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return self.dropout(functional.relu(v)).square()


class SquaredAfterNoDropout(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.dropout(functional.relu(v), 0.0, self.training).square()


class SquaredInto(Within):
    """Another tensor, which is read later."""

    def hidden(self, v: Tensor) -> Tensor:
        return torch.square(functional.relu(v), out=v)


class SquaredAlone(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return v.square()


class SmoothWithin(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.gelu(v)


class Used(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v) + v.mean()


class Before(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(self.dropout(v))


class Twice(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(functional.relu(v))


class Unfollowed(Within):
    def hidden(self, v: Tensor) -> Tensor:
        return functional.relu(v) if len(v) > 1 else v


ELSE = [
    Cubed, TimesUp, SquaredAfterDropout, SquaredAfterNoDropout, SquaredInto, SquaredAlone, SmoothWithin, Used, Before,
    Twice, Unfollowed,
]  # fmt: skip


@pytest.mark.parametrize("kind", ELSE)
def test_what_else_stands_among_other_parts_stays(kind: type[Within]) -> None:
    torch.manual_seed(5)
    plain = nn.Sequential(Within(), kind()).eval()
    x = features(7, WIDTH)
    with torch.no_grad():
        want = plain(x)
        with pytest.warns(UserWarning, match=rf"\* \({kind.__name__}\) stay as they are: 1: ") as told:
            twell.sparsify(plain)
        assert len(told) == 1 and list(twell.sparse_layers(plain)) == ["0.sparse_ffn"]
        torch.testing.assert_close(plain(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("act", [nn.ReLU(), nn.SiLU(), None])
def test_gated_layers_of_other_names_are_not_found(act: nn.Module | None) -> None:
    class Gated(Within):
        def __init__(self) -> None:
            super().__init__()
            self.value_proj = nn.Linear(WIDTH, NEURONS)
            if act is not None:
                self.act_fn = act

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer_norm(x)
            return self.down_proj((act or functional.silu)(self.gate_proj(x)) * self.value_proj(x))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = twell.sparsify(nn.Sequential(Within(), Gated()))
    assert list(twell.sparse_layers(model)) == ["0.sparse_ffn"]


def test_what_narrows_first_is_not_found() -> None:
    """As a squeeze or an adapter; it is nothing to be warned of."""

    class Narrow(Within):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.down_proj = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH)

    with pytest.raises(ValueError, match="Sequential has no MLP with"):
        twell.sparsify(nn.Sequential(Narrow()))


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        functional.gelu,
        torch.square,
        lambda v: v * 2,
        lambda v: v,
        lambda v: functional.relu(functional.relu(v)),
        lambda v: functional.relu(v).square(),
        lambda v: functional.dropout(functional.relu(v), 0.5),
        lambda v: torch.zeros(3, NEURONS),
    ],
)  # fmt: skip
def test_what_changes_afterwards_is_noticed(
    change: Callable[[Tensor], Tensor], freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a wrong answer in silence."""
    model = twell.sparsify(nn.Sequential(Later(), nn.Identity()), freeze=freeze)
    monkeypatch.setattr(Later, "then", staticmethod(change))
    with pytest.raises((RuntimeError, TypeError), match=r"sparse layer something has changed|_Hidden"):
        model(features(3, WIDTH))


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        functional.relu,
        lambda v: functional.relu(v) ** 3,
        lambda v: functional.relu(v) * v,
        lambda v: functional.relu(v).square().square(),
        lambda v: functional.relu(v).square() * 2,
        lambda v: v.square().relu(),
        lambda v: functional.dropout(functional.relu(v), 0.0).square(),
    ],
)  # fmt: skip
def test_squares_that_change_afterwards_are_noticed(
    change: Callable[[Tensor], Tensor], freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Later, "then", staticmethod(lambda v: v.relu().square()))
    model = twell.sparsify(nn.Sequential(Later(), nn.Identity()), freeze=freeze)
    model(features(3, WIDTH))
    monkeypatch.setattr(Later, "then", staticmethod(change))
    with pytest.raises((RuntimeError, TypeError), match=r"sparse layer something has changed|_Hidden"):
        model(features(3, WIDTH))


def test_dropout_that_changes_is_noticed() -> None:
    model = twell.sparsify(nn.Sequential(DropsByFunction(), nn.Identity()), freeze=False).train()
    model[0].p = 0.5
    with pytest.raises(RuntimeError, match="between gate_proj and down_proj of a sparse layer something"):
        model(features(3, WIDTH))
    model.eval()(features(3, WIDTH))


def test_names_of_the_caller_among_other_parts() -> None:
    class Own(Within):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = self._modules.pop("gate_proj"), self._modules.pop("down_proj")

        def forward(self, x: Tensor) -> Tensor:
            return x + self.out(functional.relu(self.into(self.layer_norm(x))))

    plain, x = nn.Sequential(Own(), Own()).eval(), features(7, WIDTH)
    sparse = twell.sparsify(copy.deepcopy(plain), mlp={"up": "into", "down": "out"})
    assert len(twell.sparse_layers(sparse)) == 2
    torch.testing.assert_close(sparse(x), plain(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"^mlp: expected gate_proj, down_proj alone, got layer_norm too"):
        twell.from_mlp(Within())


def test_report_counts_them() -> None:
    for kind, (activation, _) in TAKEN.items():
        layers = twell.report(model(kind), features(7, WIDTH)).layers
        assert [layer.taken for layer in layers] == [True, True]
        assert {layer.activation for layer in layers} == {"ReLU" if kind is Child else activation}
        assert all(0 < layer.share < 1 for layer in layers)
    said = str(twell.report(model(Smooth), features(7, WIDTH)))
    assert "2 Smooth: not taken: Smooth computes something else than c_proj(relu(c_fc(x)))" in said
    assert "in its code" in said and "there is nothing to gain" in said


@pytest.mark.parametrize("kind", [Smooth, Clamped, ClampedLate, Leaky, Two, Bare])
def test_what_computes_something_else_stays(kind: type[nn.Module]) -> None:
    """It was not found before, and names may be those of anything."""
    both = nn.Sequential(*model(Squared, 1), *model(kind, 1))
    with pytest.warns(UserWarning, match=rf"\*.ffn \({kind.__name__}\) stay as they are: 1.ffn: "):
        twell.sparsify(both)
    assert list(twell.sparse_layers(both)) == ["0.ffn"]
    with pytest.raises(ValueError, match=f"^0.ffn: {kind.__name__} "):
        twell.sparsify(model(kind))


def test_names_that_the_caller_gives() -> None:
    class Own(Squared):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            linears(self, "into", "out")

        def forward(self, x: Tensor) -> Tensor:
            return self.out(functional.relu(self.into(x)).square())

    with pytest.raises(ValueError, match="Sequential has no MLP with"):
        twell.sparsify(model(Own))
    names = {"up": "into", "down": "out"}
    plain, x = model(Own), features(7, WIDTH)
    sparse = twell.sparsify(copy.deepcopy(plain), mlp=names)
    torch.testing.assert_close(sparse(x), plain(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="expected names for gate, up, down, act, or for these"):
        twell.sparsify(model(Own), mlp={"up": "into"})


def compiled(block: Residual) -> None:
    block.ffn = torch.compile(block.ffn, backend="eager")  # type: ignore[assignment]


def scripted(block: Residual) -> None:
    block.ffn = torch.jit.script(block.ffn)


def hooked(block: Residual) -> None:
    block.ffn.register_buffer("scale", torch.ones(1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (compiled, "^1.ffn: is compiled"),
        (hooked, "^1.ffn has scale of its own"),
    ],
)
def test_what_would_be_lost(change: Callable[[Residual], None], message: str) -> None:
    blocks, x = model(Squared), features(7, WIDTH)
    change(blocks[1])  # type: ignore[arg-type]
    want = blocks(x)
    with pytest.raises(ValueError, match=message):
        twell.sparsify(blocks)
    assert torch.equal(blocks(x), want) and not twell.sparse_layers(blocks)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_scripted_is_not_found() -> None:
    blocks, x = model(Squared), features(7, WIDTH)
    want = blocks(x)
    scripted(blocks[1])  # type: ignore[arg-type]
    twell.sparsify(blocks)
    assert list(twell.sparse_layers(blocks)) == ["0.ffn"]
    torch.testing.assert_close(blocks(x), want, rtol=1e-5, atol=1e-5)
