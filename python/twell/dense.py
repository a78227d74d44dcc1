"""The dense definition of the layer in plain PyTorch, with its derivative.

Weights are as the operators take them: gate, up and down are [H, D]; down is neuron-major (a row
for each neuron).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS = ("relu", "relu_squared", "fat_relu")


def check_activation(activation: str, threshold: float) -> None:
    """Raises ValueError if the operators do not accept this activation with this threshold."""
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
    """g = act(v), elementwise. NaN passes through."""
    if activation == "relu":
        return torch.relu(v)
    if activation == "relu_squared":
        return torch.relu(v).square()
    return torch.where(v <= threshold, torch.zeros_like(v), v)


def activate_backward(dg: Tensor, v: Tensor, activation: str, threshold: float = 0.0) -> Tensor:
    """dv of g = act(v). The derivative at the kink is 0, as PyTorch's is."""
    if activation == "relu_squared":
        return dg * (2 * torch.relu(v))
    # NaN <= threshold is false: its gradient passes, as in torch.relu.
    return torch.where(v <= threshold, torch.zeros_like(dg), dg)


def ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (y, h, g) for x [..., D]: g = act(x gateᵀ), h = g ⊙ (x upᵀ) [..., H], y = h down
    [..., D]. A layer without a gate passes its up projection as ``gate`` and no ``up``; then h =
    g."""
    g = activate(x @ gate.t(), activation, threshold)
    h = g if up is None else g * (x @ up.t())
    return h @ down, h, g


def l1(h: Tensor) -> Tensor:
    """The sum over neurons of |h|, averaged over the tokens. In float32; in float64 if h is. The
    mean over no token is 0, not 0/0."""
    wide = torch.float64 if h.dtype == torch.float64 else torch.float32
    return h.abs().sum(dtype=wide) / max(h.shape[:-1].numel(), 1)


def counts(g: Tensor) -> tuple[Tensor, Tensor]:
    """How many neurons each row fires (int32), and how many rows fire each neuron (int64 [H])."""
    fired = g.detach() != 0
    return fired.sum(-1, dtype=torch.int32), fired.reshape(-1, g.shape[-1]).sum(0)


def ffn_backward(
    dy: Tensor,
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    activation: str,
    threshold: float,
    wanted: Sequence[bool] = (True, True, True, True),
    dh_sign: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Returns (dx, dgate, dup, ddown) of the layer, for matrices x and dy [M, D]; None for one that
    is not ``wanted``.

    It computes v and u again from x, so only the inputs need be kept. ``dh_sign``, a scalar, adds
    dh_sign · sign(h) to dh: the L1 term.
    """
    v = x @ gate.t()
    g = activate(v, activation, threshold)
    u = None if up is None else x @ up.t()
    h = g if u is None else g * u
    dh = dy @ down.t()
    if dh_sign is not None:
        dh = dh + dh_sign.to(dh.dtype) * torch.sign(h)
    dv = activate_backward(dh if u is None else dh * u, v, activation, threshold)
    du = None if u is None else dh * g
    want_x, want_gate, want_up, want_down = wanted
    dx = dv @ gate if want_x else None
    if dx is not None and du is not None and up is not None:
        dx = dx + du @ up
    return (
        dx,
        dv.t() @ x if want_gate else None,
        du.t() @ x if want_up and du is not None else None,
        h.t() @ dy if want_down else None,
    )


class FatRelu(nn.Module):
    """The activation v if v > threshold, else 0."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        check_activation("fat_relu", threshold)
        self.threshold = threshold

    def forward(self, v: Tensor) -> Tensor:
        return activate(v, "fat_relu", self.threshold)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}"
