"""The dense definition of the layer in plain PyTorch, with its derivative.

Weights are as the operators take them: gate, up and down are [H, D]; down is neuron-major (a row
for each neuron).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from twell.form import PLAIN, Form

ACTIVATIONS = ("relu", "relu_squared", "fat_relu")
UP_ACTIVATIONS = ("identity", "relu", "relu_squared")


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


def check_form(form: Form, gated: bool) -> None:
    """Raises ValueError unless the form is one that the operators accept, but for sizes."""
    check_activation(form.activation, form.threshold)
    if form.up_activation not in UP_ACTIVATIONS:
        raise ValueError(
            f"up_activation: expected one of {', '.join(UP_ACTIVATIONS)}, "
            f'got "{form.up_activation}"'
        )
    if not gated and form.up_activation != "identity":
        raise ValueError(
            f'up_activation: expected identity, in a layer without a gate, got "{form.up_activation}"'
        )
    if not gated and form.up_bias is not None:
        raise ValueError("up_bias: expected none, in a layer without a gate; gate_bias is that of up")
    if form.norm_epsilon is None and form.norm_weight is not None:
        raise ValueError("norm_weight: expected norm_epsilon with it, got none")
    if form.norm_epsilon is not None and not form.norm_epsilon > 0:
        raise ValueError(f"norm_epsilon: expected more than 0, got {form.norm_epsilon}")


def activate(v: Tensor, activation: str, threshold: float = 0.0) -> Tensor:
    """g = act(v), elementwise. NaN passes through."""
    if activation == "identity":
        return v
    if activation == "relu":
        return torch.relu(v)
    if activation == "relu_squared":
        return torch.relu(v).square()
    return torch.where(v <= threshold, torch.zeros_like(v), v)


def activate_backward(dg: Tensor, v: Tensor, activation: str, threshold: float = 0.0) -> Tensor:
    """dv of g = act(v). The derivative at the kink is 0, as PyTorch's is."""
    if activation == "identity":
        return dg
    if activation == "relu_squared":
        return dg * (2 * torch.relu(v))
    # NaN <= threshold is false: its gradient passes, as in torch.relu.
    return torch.where(v <= threshold, torch.zeros_like(dg), dg)


def ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    form: Form = PLAIN,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (y, h, g) for x [..., D]: g [..., H] is the gate's activation, h its product with up's,
    before a norm, and y [..., D]. A layer without a gate passes its up projection as ``gate`` and no
    ``up``; then h = g. ``dropout`` is of what enters down."""
    g = activate(_linear(x, gate, form.gate_bias), form.activation, form.threshold)
    h = g if up is None else g * activate(_linear(x, up, form.up_bias), form.up_activation)
    z = normalise(h, form)
    if dropout > 0.0:
        z = functional.dropout(z, dropout)
    return _linear(z, down.t(), form.down_bias), h, g


def normalise(h: Tensor, form: Form) -> Tensor:
    """What the norm, if any, makes of h; in float32 or h's float64, and rounded to h's dtype."""
    if form.norm_epsilon is None:
        return h
    z = h.to(_wide(h)) * _factor(h, form.norm_epsilon)
    return (z if form.norm_weight is None else z * form.norm_weight).to(h.dtype)


def _factor(h: Tensor, epsilon: float) -> Tensor:
    """s [..., 1] of an RMSNorm."""
    return torch.rsqrt(h.to(_wide(h)).square().mean(-1, keepdim=True) + epsilon)


def _wide(t: Tensor) -> torch.dtype:
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return x @ weight.t()
    return functional.linear(x, weight, bias.to(x.dtype))


def l1(h: Tensor) -> Tensor:
    """The sum over neurons of ``|h|``, averaged over the tokens. In float32; in float64 if h is. The mean
    over no token is 0, not 0/0."""
    return over_tokens(h.abs().sum(dtype=_wide(h)), h)


def tokens_of(x: Tensor) -> int:
    """The rows of x [..., D]. While a graph is made they may be a symbol, of which torch.Size.numel() would
    make a constant."""
    return math.prod(x.shape[:-1])


def over_tokens(total: Tensor, x: Tensor) -> Tensor:
    """A total over the tokens of x as their mean; of none as it is."""
    tokens = tokens_of(x)
    return total / (torch.sym_max(tokens, 1) if isinstance(tokens, torch.SymInt) else max(tokens, 1))


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
    form: Form = PLAIN,
    wanted: Sequence[bool] = (True,) * 8,
    dh_sign: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Returns (dx, dgate, dup, ddown) of the layer, for matrices x and dy [M, D], and the gradients of
    the form's vectors; None for one that is not wanted or not there.

    It computes v and u again from x, so only the inputs need be kept. ``dh_sign``, a scalar, adds
    dh_sign · sign(h) to dh: the L1 term.
    """
    v = _linear(x, gate, form.gate_bias)
    g = activate(v, form.activation, form.threshold)
    u = None if up is None else _linear(x, up, form.up_bias)
    a = None if u is None else activate(u, form.up_activation)
    h = g if a is None else g * a
    dz = dy @ down.t()
    dh, dweight = _normalise_backward(dz, h, form)
    if dh_sign is not None:
        dh = dh + dh_sign.to(dh.dtype) * torch.sign(h)
    dv = activate_backward(dh if a is None else dh * a, v, form.activation, form.threshold)
    du = None if u is None else activate_backward(dh * g, u, form.up_activation)
    want_x, want_gate, want_up, want_down, *want_vectors = wanted
    dx = dv @ gate if want_x else None
    if dx is not None and du is not None and up is not None:
        dx = dx + du @ up
    return (
        dx,
        dv.t() @ x if want_gate else None,
        du.t() @ x if want_up and du is not None else None,
        normalise(h, form).t() @ dy if want_down else None,
        *(
            grad.sum(0, dtype=_wide(grad)).to(vector.dtype)
            if want and vector is not None and grad is not None
            else None
            for vector, grad, want in zip(form.vectors, (dv, du, dy, dweight), want_vectors)
        ),
    )


def _normalise_backward(dz: Tensor, h: Tensor, form: Form) -> tuple[Tensor, Tensor | None]:
    """dh of z = normalise(h), and what of the weight's gradient each row has."""
    if form.norm_epsilon is None:
        return dz, None
    s, wide, q = _factor(h, form.norm_epsilon), h.to(_wide(h)), dz.to(_wide(h))
    scaled = q if form.norm_weight is None else q * form.norm_weight
    dh = s * scaled - s**3 * (wide * scaled).mean(-1, keepdim=True) * wide
    return dh.to(h.dtype), s * wide * q


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
