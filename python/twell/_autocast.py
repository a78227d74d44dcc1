"""Mixed precision: the operators under torch.autocast behave as nn.Linear does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library: torch.library.Library | None = None  # what it registers lives as long as it does


def _dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype(x.device.type)


def cast_operands(
    x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Casts to autocast's dtype if autocast is on for x's device. float64 stays as it is."""
    if not torch.is_autocast_enabled(x.device.type):
        return x, gate, up, down
    to = _dtype(x)

    def cast(t: Tensor) -> Tensor:
        return t if t.dtype == torch.float64 or not t.is_floating_point() else t.to(to)

    return cast(x), cast(gate), None if up is None else cast(up), cast(down)


# Each kernel casts, and calls the operator again below autocast. Weights as stored are cast. A
# weight that was prepared for a dtype (packed, or with its screen) is not: x is cast to that dtype,
# and y to the dtype that a linear layer would return.
def _of_stored(operation: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(x: Tensor, weights: list[Any], *rest: Any) -> Any:
        x, *matrices = cast_operands(x, *weights[:3])
        with torch.autocast(x.device.type, enabled=False):
            return operation(x, [*matrices, *weights[3:]], *rest)

    return kernel


def _dtype_beside(weight: Tensor, to: torch.dtype) -> torch.dtype:
    """Of x. Codes go with bfloat16 and float32."""
    if weight.is_floating_point():
        return weight.dtype
    return to if to == torch.bfloat16 else torch.float32


def _of_prepared(operation: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(x: Tensor, weights: Any, *rest: Any) -> Any:
        first = weights[0] if isinstance(weights, list) else weights
        to = _dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            out = operation(x.to(_dtype_beside(first, to)), weights, *rest)
        return out.to(to) if isinstance(out, Tensor) else (out[0].to(to), *out[1:])

    return kernel


def register() -> None:
    """Registers the kernels. Call it once, after the library is loaded."""
    global _library
    _library = torch.library.Library("twell", "FRAGMENT")
    rules = {
        "ffn": _of_prepared,
        "ffn_stats": _of_prepared,
        "linear": _of_prepared,
        "linear_as_stored": _of_prepared,
        "ffn_train": _of_stored,
    }
    for name, rule in rules.items():
        for key in ("AutocastCPU", "AutocastCUDA"):
            _library.impl(name, rule(getattr(torch.ops.twell, name)), key)
