"""An activation of up in modules whose code has none there: dReLU, with ReLU on the gate and on up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from twell.hf.kinds import KINDS, Kind, kind_of
from twell.hf.mlps import computes_nothing_else


def activate_up(
    operation: str, model: nn.Module, act: nn.Module, gate: nn.Module | None = None
) -> None:
    """Lets all feed-forward layers of a model compute down(act_fn(gate(x)) * act(up(x))), in place, with
    the hooks and linear layers that they have. ``gate`` takes the place of their act_fn. Raises
    ValueError, and changes nothing, if there is a layer without a gate or one that computes something
    else than that without ``act``; and if there is none.
    """
    found: list[tuple[Any, Kind]] = []
    for name, module in model.named_modules():
        kind = kind_of(module, KINDS)
        if kind is None:
            continue
        if kind.in_code or not kind.gated or not computes_nothing_else(name, module, kind):
            raise ValueError(
                f"{operation}: {name}: expected down(act(gate(x)) * up(x)) and nothing else, for an "
                f"activation of up, got {type(module).__name__}"
            )
        found.append((module, kind))
    if not found:
        raise ValueError(f"{operation}: {type(model).__name__} has no feed-forward layer with a gate")
    for module, kind in found:
        if gate is not None:
            setattr(module, kind.act(module), gate)
        own = type(module)
        forward = _forward(kind, kind.act(module), act)
        module.__class__ = type(own.__name__, (own,), {"forward": forward, "__module__": __name__})


def _forward(kind: Kind, act_name: str, act: nn.Module) -> Callable[..., Tensor]:
    *into, down = kind.linears

    def forward(self: Any, x: Tensor) -> Tensor:
        pre = [getattr(self, name)(x) for name in into]
        gate, up = pre[0].chunk(2, dim=-1) if kind.fused else pre
        return getattr(self, down)(getattr(self, act_name)(gate) * act(up))

    return forward
