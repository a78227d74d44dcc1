"""Experts whose weights are one parameter for all (Mixtral, Nemotron-H). The parameters stay where they
are, and each expert is a layer that reads its share of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from twell import _attached
from twell._children import is_wrapped
from twell._kept import Kept, sizes_of
from twell.autograd import traced
from twell.hf.activations import activation_of
from twell.hf.kinds import Kind, Stays
from twell.hf.mlps import made_of
from twell.modules import Ffn, GatedFfn, SparseFfn


class Slice:
    """An expert's share of a parameter, as a linear layer."""

    bias = None
    _parameters: dict[str, Any] = {}  # noqa: RUF012  (none of its own)

    def __init__(self, whole: Tensor, expert: int) -> None:
        self.whole = whole
        self.weight = whole[expert]
        self.out_features, self.in_features = self.weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class _Expert(SparseFfn):
    """One of the experts of a module, that has the weights of all. They are frozen and thawed together."""

    expert: int

    def part(self, name: str) -> Any:
        found = getattr(self._holder, name)
        return found if name == self.act_name or self.frozen else Slice(found, self.expert)

    def is_ordinary(self, name: str) -> bool:
        return not is_wrapped(self.part(name).whole)

    def part_parameters(self) -> dict[str, nn.Parameter]:
        """Those of all experts."""
        return {n: p for n, p in self.holder._parameters.items() if p is not None}

    def of_neurons(self) -> Any:
        whole = self.part(self.names[0]).whole
        yield whole, lambda t: t[self.expert, : self.neurons]

    def freeze(self: Any, *arguments: Any, **options: Any) -> Any:
        super().freeze(*arguments, **options)
        return self.holder.freeze_all(options.get("path"), self)

    def thaw(self: Any) -> Any:
        if self.frozen:
            self.holder.thaw()
        return self

    def _check_children(self, where: str) -> None:
        super()._check_children(where)
        if hangs := _attached.what(self.holder, own=self.names, hooks=False):
            raise ValueError(f"{where}experts: has {hangs}, which frozen layers would lose; remove that first")
        if missing := set(self.names) - self.holder._parameters.keys():
            raise ValueError(f"{where}{min(missing)} is no parameter of its own now; merge or remove what made it")

    def _keep(self, parts: Any) -> None:
        """The module does, when all are frozen."""

    def _strange_part(self) -> str | None:
        return None

    def _save_to_state_dict(self, *_: Any) -> None:
        """The module does."""


class GatedExpert(_Expert, GatedFfn):
    pass


class Expert(_Expert, Ffn):
    pass


class Experts(nn.Module):
    """What a module of experts is besides its own class: tokens are grouped by expert, as it does that, and
    sums over experts are float32."""

    _own: Any

    @property
    def layers(self) -> list[Any]:
        return [m for m in self._modules.values() if isinstance(m, _Expert)]

    @property
    def frozen(self) -> bool:
        return isinstance(self._buffers, Kept)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        # A graph holds for other inputs too, which choose other experts. Where layers count what fires,
        # each needs its own tokens, and torch.compile makes two graphs.
        if traced() or (torch.compiler.is_compiling() and not self._counts()):
            if self._does_as_before():
                y: Tensor = super().forward(hidden_states, top_k_index, top_k_weights)
                return y
            return self._every_expert(hidden_states, top_k_index, top_k_weights)
        with parametrize.cached():  # an adapter adds to the parameters of all experts: once
            return self._by_expert(hidden_states, top_k_index, top_k_weights)

    def _by_expert(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        chosen, layers = top_k_index.reshape(-1), self.layers
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=len(layers)).tolist()
        weights = top_k_weights.reshape(-1)
        y = torch.zeros_like(x, dtype=_wide(x, weights))
        # Numbers beyond the last expert are of tokens that none of these serves.
        for expert, places in zip(layers, order.split(counts)):
            if len(places):
                tokens = places // top_k_index.shape[-1]
                y = y.index_add(0, tokens, (expert(x[tokens]) * weights[places, None]).to(y.dtype))
        return y.to(x.dtype)

    def _does_as_before(self) -> bool:
        """Whether the module's own code, in a form that depends on no numbers, computes what the layers do."""
        how = getattr(getattr(self, "config", None), "_experts_implementation", "eager")
        says = all((m.activation, m.threshold) == m._act_says for m in self.layers)
        return how in ("grouped_mm", "batched_mm") and says and not self.frozen

    def _counts(self) -> bool:
        """Whether layers are asked for an L1 term, or for what fires."""
        return any(
            m.collect_l1 or m.collect_activity or isinstance(m.l1_weight, Tensor) or m.l1_weight != 0
            for m in self.layers
        )

    def _every_expert(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Each expert of all tokens, of which those count that are sent to it."""
        y = torch.zeros_like(x, dtype=_wide(x, weights))
        for i, expert in enumerate(self.layers):
            is_sent = chosen == i
            share = (weights * is_sent).sum(-1, keepdim=True)
            z = (expert(x) * share).to(y.dtype)
            y = y + torch.where(is_sent.any(-1, keepdim=True), z, torch.zeros_like(z))
        return y.to(x.dtype)

    # --- Freezing -------------------------------------------------------------------------------

    def freeze_all(self, path: str | None, first: Any) -> Any:
        """Freezes those that are not, and lets the parameters go; returns the first."""
        try:
            for layer in self.layers:
                if not layer.frozen:
                    SparseFfn.freeze(layer, path=path)
            self.let_go()
        except BaseException:
            if not self.frozen:
                self.thaw()
            raise
        return first

    def let_go(self) -> None:
        """Keeps what the layers have packed alone."""
        if self.frozen:
            return
        like = sizes_of(self)
        self._parameters.clear()
        self._stand(like)

    def _stand(self, like: dict[str, Tensor]) -> None:
        self.__dict__["_buffers"] = Kept("", like, lambda: self.layers[0].device, self.load_part)

    def thaw(self) -> None:
        """Makes the parameters anew, which want gradients, if they have gone."""
        found = {n: nn.Parameter(w) for n, w in self._whole().items()} if self.frozen else {}
        for layer in self.layers:
            if layer.frozen:
                layer._release()
        self.__dict__["_buffers"] = {}
        self._parameters.update(found)

    def _whole(self) -> dict[str, Tensor]:
        """The parameters of frozen layers."""
        weights = [layer._linears() for layer in self.layers]
        return {name: torch.stack([each[name][0] for each in weights]) for name in weights[0]}

    def load_part(self, name: str, tensor: Tensor) -> None:
        """One tensor of a checkpoint, into frozen layers. Raises RuntimeError as load_state_dict does."""
        self.load_state_dict({name: tensor}, strict=False)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.frozen:
            destination.update({f"{prefix}{name}": w for name, w in self._whole().items()})

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if not self.frozen:
            super()._load_from_state_dict(state_dict, prefix, *rest)
            return
        twin: Any = object.__new__(nn.Module)
        parameters = {name: nn.Parameter(w, False) for name, w in self._whole().items()}
        twin.__dict__.update(self.__dict__, _parameters=parameters, _buffers={})
        nn.Module._load_from_state_dict(twin, state_dict, prefix, *rest)
        try:
            for layer in self.layers:
                parts = {n: Slice(p.detach(), layer.expert) for n, p in twin._parameters.items()}
                layer._pack_in_place(parts, assign=rest[0].get("assign_to_params_buffers", False))
        except ValueError as error:
            rest[-1].append(f"{prefix[:-1]} is frozen and stays as it was: {error}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["_kept"]
        super().__setstate__({k: v for k, v in state.items() if k != "_kept"})
        if kept is not None:
            self._stand(kept)

    def __reduce_ex__(self, _: Any) -> Any:  # pickle looks classes up, and this one has no place
        kept = cast(Kept, self._buffers).like if self.frozen else None
        return _empty, (self._own,), {**self.__dict__, "_buffers": {}, "_kept": kept}


@cache
def _class(own: Any) -> Any:
    about = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    return type(own.__name__, (Experts, own), about | {"_own": own})


def _empty(own: Any) -> Any:
    made = _class(own)
    return made.__new__(made)


def _wide(x: Tensor, weights: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(x.dtype, weights.dtype), torch.float32)


def put(module: Any, layers: list[SparseFfn]) -> Callable[[], None]:
    """Makes the layers experts of the module; what takes them back, with the parameters that they were
    frozen with."""
    own: Any = type(module)
    module.__class__ = _class(own)
    module._modules.update({str(i): layer for i, layer in enumerate(layers)})

    def take_back() -> None:
        module.thaw()
        for i in range(len(layers)):
            del module._modules[str(i)]
        module.__class__ = own

    return take_back


def from_experts(
    module: nn.Module,
    kind: Kind,
    activation: str | None,
    threshold: float,
    name: str,
    config: object = None,
) -> list[SparseFfn]:
    """The layers of experts whose weights are 3-D parameters. Raises ValueError as twell.from_mlp does."""
    into, down = kind.weights(module)
    count, width, neurons = down.shape
    expected = [count, neurons * (2 if kind.gated else 1), width]
    if list(into.shape) != expected:
        raise Stays(f"{name}: {kind.linears[0]}: expected shape {expected}, got {list(into.shape)}")
    says = activation is None
    if activation is None:
        activation, threshold = activation_of(name, kind.act_of(module), config)
    if hangs := _attached.what(module, own=kind.linears):
        raise ValueError(f"{name} has {hangs}, which the layers would lose; remove that first")
    children = [n for n, m in module.named_children() if n != kind.act(module)]
    if children:
        raise ValueError(f"{name}: has {', '.join(children)} too, which the layers would lack")
    _try_forward(name, module, kind)
    options = {"activation": activation, "threshold": threshold, "holder": module}
    layers = []
    for expert in range(count):
        parts = {n: Slice(w, expert) for n, w in zip(kind.linears, (into, down))}
        layer: Any = made_of(name, module, kind, parts, says, (GatedExpert, Expert), **options)
        layer.expert = expert
        layers.append(layer)
    return layers


def _try_forward(name: str, module: Any, kind: Kind) -> None:
    """Raises ValueError unless the module's code computes what the layers will: with a few small experts
    of random weights."""
    count, width, neurons = 3, 6, 10
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    gated, act = kind.gated, kind.act_of(module)
    into = random(count, neurons * (2 if gated else 1), width)
    down = random(count, width, neurons)
    twin: Any = object.__new__(type(module))
    parameters = dict(zip(kind.linears, map(nn.Parameter, (into, down))))
    twin.__dict__.update(module.__dict__, _parameters=parameters, num_experts=count)
    for known, size in (("hidden_dim", width), ("intermediate_dim", neurons)):
        if known in twin.__dict__:
            twin.__dict__[known] = size
    x, weights = random(7, width), random(7, 2).abs()
    chosen = torch.tensor([[0, 2], [2, 0], [0, 1], [2, 1], [1, 2], [0, 2], [0, 1]], device="cpu")
    want = torch.zeros_like(x)
    with torch.no_grad():
        for token in range(len(x)):
            for place in range(2):
                e = int(chosen[token, place])
                v = into[e] @ x[token]
                g, *u = v.chunk(2) if gated else [v]
                h = act(g) * (u[0] if u else 1)
                want[token] += weights[token, place] * (down[e] @ h)
        try:
            got = inspect.unwrap(type(module).forward)(twin, x, chosen, weights)
        except Exception as error:
            raise ValueError(
                f"{name}: {type(module).__name__} could not be tried: "
                f"{(str(error) or type(error).__name__).splitlines()[0]}"
            ) from error
    same = isinstance(got, Tensor) and got.shape == want.shape
    if not same or not torch.allclose(got.double(), want, rtol=1e-4, atol=1e-6):
        hidden = f"{kind.act(module)}({'gate) * up' if gated else kind.linears[0] + ')'}"
        raise ValueError(
            f"{name}: {type(module).__name__} computes something else than each expert's "
            f"{kind.linears[1]}({hidden}), times the token's weight"
        )
