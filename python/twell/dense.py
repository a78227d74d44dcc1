"""The dense definition of the layer in plain PyTorch, with its derivative.

Weights as the operators take them: gate, up and down are [H, D], down neuron-major.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS = ("relu", "relu_squared", "fat_relu")


def check_activation(activation: str, threshold: float) -> None:
    """Raises ValueError unless the pair is one that the operators accept."""
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation: expected one of {', '.join(ACTIVATIONS)}, the ones that yield zeros, "
            f'got "{activation}"'
        )
    if not 0 <= threshold < float("inf"):
        raise ValueError(f"threshold: expected 0 or more, got {threshold}")
    if activation != "fat_relu" and threshold != 0:
        raise ValueError(f"threshold: expected 0, since {activation} has none, got {threshold}")


def activate(v: Tensor, activation: str, threshold: float = 0.0) -> Tensor:
    """g = act(v), elementwise; NaN passes."""
    if activation == "relu":
        return torch.relu(v)
    if activation == "relu_squared":
        return torch.relu(v).square()
    return torch.where(v <= threshold, torch.zeros_like(v), v)


def activate_backward(dg: Tensor, v: Tensor, activation: str, threshold: float = 0.0) -> Tensor:
    """dv of g = act(v); the derivative at the kink is 0, as PyTorch's is."""
    if activation == "relu_squared":
        return dg * (2 * torch.relu(v))
    # NaN <= threshold is false: its gradient passes, as in torch.relu.
    return torch.where(v <= threshold, torch.zeros_like(dg), dg)


def gated_ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(y, h) of x [..., D]: h = act(x gateᵀ) ⊙ (x upᵀ) [..., H], y = h down [..., D]."""
    h = activate(x @ gate.t(), activation, threshold) * (x @ up.t())
    return h @ down, h


def ffn(
    x: Tensor, up: Tensor, down: Tensor, activation: str = "relu", threshold: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(y, h) of the non-gated layer: h = act(x upᵀ), y = h down."""
    h = activate(x @ up.t(), activation, threshold)
    return h @ down, h


def gated_ffn_backward(
    dy: Tensor,
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str,
    threshold: float,
    wanted: Sequence[bool] = (True, True, True, True),
    dh_sign: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """(dx, dgate, dup, ddown) of the gated layer, for matrices x and dy [M, D]; None if not wanted.

    v and u are computed again from x, so that only the inputs need be kept. `dh_sign`, a scalar,
    adds dh_sign · sign(h) to dh: the L1 term.
    """
    v = x @ gate.t()
    g = activate(v, activation, threshold)
    u = x @ up.t()
    h = g * u
    dh = dy @ down.t()
    if dh_sign is not None:
        dh = dh + dh_sign.to(dh.dtype) * torch.sign(h)
    dv = activate_backward(dh * u, v, activation, threshold)
    du = dh * g
    want_x, want_gate, want_up, want_down = wanted
    return (
        dv @ gate + du @ up if want_x else None,
        dv.t() @ x if want_gate else None,
        du.t() @ x if want_up else None,
        h.t() @ dy if want_down else None,
    )


def ffn_backward(
    dy: Tensor,
    x: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str,
    threshold: float,
    wanted: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, ...]:
    """(dx, dup, ddown) of the non-gated layer, for matrices x and dy [M, D]; None if not wanted."""
    v = x @ up.t()
    dv = activate_backward(dy @ down.t(), v, activation, threshold)
    want_x, want_up, want_down = wanted
    return (
        dv @ up if want_x else None,
        dv.t() @ x if want_up else None,
        activate(v, activation, threshold).t() @ dy if want_down else None,
    )


class FatRelu(nn.Module):
    """v > threshold ? v : 0."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        check_activation("fat_relu", threshold)
        self.threshold = threshold

    def forward(self, v: Tensor) -> Tensor:
        return activate(v, "fat_relu", self.threshold)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}"
