"""An activation of up in modules whose code has none there: dReLU, with ReLU on the gate and on up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from twell.hf.kinds import Kind, kinds_in
from twell.hf.mlps import computes_nothing_else


def gated_layers(
    operation: str, model: nn.Module, of: Callable[[str], Any] = lambda _: True
) -> dict[str, tuple[Any, Kind]]:
    """The feed-forward layers of a model, those that ``of`` has something for, where each computes
    down(act(gate(x)) * up(x)). Raises ValueError if one computes something else, or there is none."""
    found: dict[str, tuple[Any, Kind]] = {}
    for name, (module, kind) in kinds_in(model).items():
        if of(name) is None:
            continue
        mlp = kind.gated and not kind.stacked and not kind.in_code
        if not mlp or not computes_nothing_else(name, module, kind):
            raise ValueError(
                f"{operation}: {name}: expected down(act(gate(x)) * up(x)) and nothing else, for an "
                f"activation of up, got {type(module).__name__}"
            )
        found[name] = (module, kind)
    if not found:
        raise ValueError(f"{operation}: {type(model).__name__} has no feed-forward layer with a gate")
    return found


def activate_up(operation: str, model: nn.Module, of: Callable[[str], Any]) -> None:
    """Lets the feed-forward layers of a model compute down(act_fn(gate(x)) * act(up(x))), in place, with
    the hooks and linear layers that they have: those that ``of`` has an ``act`` for, by name. Raises
    ValueError, and changes nothing, as :func:`gated_layers` does."""
    for name, (module, kind) in gated_layers(operation, model, of).items():
        module.__class__ = _class(type(module), kind, kind.act(module))
        # No child, which sparsify would take for more than a layer has; of the module, so that a copy of
        # it has one of its own.
        module.__dict__["up_act"] = of(name)


def _class(own: Any, kind: Kind, act_name: str) -> Any:
    def reduced(self: Any, _: int) -> Any:  # pickle looks classes up, and this one has no place
        return _empty, (own, kind, act_name), self.__dict__

    members = {"forward": _forward(kind, act_name), "__reduce_ex__": reduced, "__module__": __name__}
    return type(own.__name__, (own,), members)


def _empty(own: Any, kind: Kind, act_name: str) -> Any:
    made = _class(own, kind, act_name)
    return made.__new__(made)


def _forward(kind: Kind, act_name: str) -> Callable[..., Tensor]:
    *into, down = kind.linears

    def forward(self: Any, x: Tensor) -> Tensor:
        pre = [getattr(self, name)(x) for name in into]
        gate, up = pre[0].chunk(2, dim=-1) if kind.fused else pre
        return getattr(self, down)(getattr(self, act_name)(gate) * self.up_act(up))

    return forward
