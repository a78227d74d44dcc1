"""Experts whose weights are one parameter for all (Mixtral, Nemotron-H): each becomes a layer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from twell import _attached
from twell._children import linear_of
from twell.hf.activations import activation_of
from twell.hf.kinds import Stays
from twell.hf.layout import Stacked
from twell.modules import Ffn, GatedFfn, SparseFfn

_DOWN, _FUSED, _UP = "down_proj", "gate_up_proj", "up_proj"


class Experts(nn.ModuleList):
    """Layers of which each token is sent to some. Tokens are grouped by expert, as the module does that
    this one replaces; sums over experts are float32."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        x, chosen = hidden_states, top_k_index.reshape(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=len(self)).tolist()
        weights = top_k_weights.reshape(-1)
        wide = torch.promote_types(torch.promote_types(x.dtype, weights.dtype), torch.float32)
        y = torch.zeros_like(x, dtype=wide)
        # Numbers beyond the last expert are of tokens that none of these serves.
        for expert, places in zip(self, order.split(counts)):
            if len(places):
                tokens = places // top_k_index.shape[-1]
                y = y.index_add(0, tokens, (expert(x[tokens]) * weights[places, None]).to(wide))
        return y.to(x.dtype)


def is_experts(module: nn.Module) -> bool:
    weights = [getattr(module, name, None) for name in (_into(module), _DOWN)]
    stacked = all(isinstance(w, nn.Parameter) and w.dim() == 3 for w in weights)
    return stacked and callable(getattr(module, "act_fn", None))


def _into(module: nn.Module) -> str:
    return _FUSED if isinstance(getattr(module, _FUSED, None), nn.Parameter) else _UP


def per_expert(module: Any) -> tuple[bool, tuple[int, int]]:
    """Whether an expert has a gate; width and neurons."""
    return _into(module) == _FUSED, (module.down_proj.shape[1], module.down_proj.shape[2])


def from_experts(
    module: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    name: str = "experts",
    config: object = None,
) -> Experts:
    """Makes layers of experts whose weights are 3-D parameters. Raises ValueError as twell.from_mlp
    does."""
    into, down = module._parameters[_into(module)], module._parameters[_DOWN]
    assert into is not None and down is not None
    gated, (width, neurons) = per_expert(module)
    expected = [len(down), neurons * (2 if gated else 1), width]
    if list(into.shape) != expected:
        raise Stays(f"{name}: {_into(module)}: expected shape {expected}, got {list(into.shape)}")
    if activation is None:
        activation, threshold = activation_of(name, module.act_fn, config)
    if hangs := _attached.what(module, own=(_into(module), _DOWN)):
        raise ValueError(f"{name} has {hangs}, which the layers would lose; remove that first")
    children = [n for n, m in module.named_children() if n != "act_fn"]
    if children:
        raise ValueError(f"{name}: has {', '.join(children)} too, which the layers would lack")
    _try_forward(name, module, gated)
    experts = Experts(
        _layer(into[i], down[i], gated, activation, threshold, (into, down))
        for i in range(len(down))
    )
    Stacked(_into(module), _DOWN, gated).attach(experts)
    return experts.train(module.training)


def _layer(
    into: Tensor, down: Tensor, gated: bool, activation: str, threshold: float, wanted: Any
) -> SparseFfn:
    def linear(weight: Tensor, parameter: Tensor) -> nn.Module:
        return linear_of(nn.Parameter(weight.detach(), parameter.requires_grad))

    options: dict[str, Any] = {"activation": activation, "threshold": threshold}
    if not gated:
        return Ffn._of_linears([linear(into, wanted[0]), linear(down, wanted[1])], **options)
    gate, up = into.chunk(2)
    # up is copied, since a view would keep the whole parameter in memory.
    linears = [linear(gate, wanted[0]), linear(up.clone(), wanted[0]), linear(down, wanted[1])]
    return GatedFfn._of_linears(linears, **options)


def _try_forward(name: str, module: Any, gated: bool) -> None:
    """Raises ValueError unless the module's code computes what the layers will: with a few small experts
    of random weights."""
    count, width, neurons = 3, 6, 10
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    into = random(count, neurons * (2 if gated else 1), width)
    down = random(count, width, neurons)
    twin: Any = object.__new__(type(module))
    parameters = {_into(module): nn.Parameter(into), _DOWN: nn.Parameter(down)}
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
                h = module.act_fn(g) * (u[0] if u else 1)
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
        up = " * up" if gated else ""
        raise ValueError(
            f"{name}: {type(module).__name__} computes something else than each expert's "
            f"{_DOWN}(act_fn({'gate' if gated else _UP}){up}), times the token's weight"
        )
