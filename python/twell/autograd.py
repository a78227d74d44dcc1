"""Gradients: of the operators, and of the layer as training calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from twell import dense
from twell._autocast import cast_operands
from twell._training import Form


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x


class _Dense(torch.autograd.Function):
    """What Trained holds, of gate, up and down [H, D], densely: where the sparse operators have no
    kernels. Keeps its inputs alone and computes g and u again."""

    @staticmethod
    def forward(
        x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, activation: str, threshold: float
    ) -> tuple[Tensor, ...]:
        y, h, g = dense.ffn(x, gate, up, down, activation, threshold)
        return y, dense.l1(h), *dense.counts(g)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, gate, up, down, ctx.activation, ctx.threshold = inputs
        ctx.save_for_backward(x, gate, up, down)
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dl1: Tensor, *_: Any) -> tuple[Any, ...]:
        x, gate, up, down = ctx.saved_tensors
        grads = dense.ffn_backward(
            dy,
            x,
            gate,
            up,
            down,
            ctx.activation,
            ctx.threshold,
            ctx.needs_input_grad[:4],
            dl1 / max(x.shape[0], 1),
        )
        return *grads, None, None


class _WithL1(torch.autograd.Function):
    """Identity on y, whose backward hands ``weight`` to l1 as the gradient of a loss would."""

    @staticmethod
    def forward(y: Tensor, l1: Tensor, weight: Tensor) -> Tensor:
        return y.detach()  # not a view, which could not be changed in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        return dy, ctx.saved_tensors[0], None


def with_l1(y: Tensor, l1: Tensor, weight: float | Tensor) -> Tensor:
    """y, such that backward through it adds ``weight`` times l1 to the loss. It takes no other path
    than y's, so that activation checkpointing of either kind keeps it. ``weight`` is a number, or a
    tensor of one, whose changes need no new trace."""
    return _WithL1.apply(y, l1, torch.as_tensor(weight, dtype=l1.dtype, device=l1.device))


class Trained(NamedTuple):
    """One pass of a layer in training."""

    y: Tensor
    l1: Tensor
    """Sum over hidden units of |h|, averaged over the tokens; float32, float64 for float64."""
    row_nnz: Tensor
    """Neurons that each token fired: int32, x's shape without its last dimension."""
    neuron_nnz: Tensor
    """Tokens that fired each neuron: int64 [H]."""


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether forward-mode differentiation goes through one of them."""
    if forward_ad._current_level < 0:
        return False
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def trained_ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
    form: Form | None = None,
) -> Trained:
    """:func:`gated_ffn`, with counts; without an ``up`` the layer has no gate (dense.ffn). ``form``
    is for GPUs: without one they are dense."""
    dense.check_activation(activation, threshold)
    if has_tangent(x, gate, up, down):
        y, h, g = dense.ffn(x, gate, up, down, activation, threshold)
        return Trained(y, dense.l1(h), *dense.counts(g))
    x, gate, up, down = cast_operands(x, gate, up, down)
    on_cpu = x.device.type == "cpu"
    dtypes = (torch.bfloat16, torch.float32 if on_cpu else torch.float16)
    if x.dtype in dtypes and (on_cpu or (x.is_cuda and form is not None)):
        form = form or Form()
        gate, down = form.sorted(gate), form.sorted(down.contiguous())
        up = None if up is None else form.sorted(up)
        y, l1, row_nnz, neuron_nnz, *_ = torch.ops.twell.ffn_train(
            x, gate, up, down, None, activation, threshold, form.hot
        )
        neuron_nnz = form.by_checkpoint(neuron_nnz)
        return Trained(y, l1 / max(x.shape[:-1].numel(), 1), row_nnz, neuron_nnz)
    y, l1, row_nnz, neuron_nnz = _Dense.apply(_matrix(x), gate, up, down, activation, threshold)
    return Trained(y.reshape(x.shape), l1, row_nnz.reshape(x.shape[:-1]), neuron_nnz)


def gated_ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
    hot: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated layer for training: (y, l1), differentiable once in x and the three weights.

    x is [..., D]; gate, up and down are [H, D], down neuron-major (``down_proj.weight.t()`` of a
    checkpoint); any one floating dtype, or what torch.autocast makes one, with gradients in each
    operand's own. y is [..., D]. l1 is a float32 scalar (float64 for float64 inputs): the sum over
    hidden units of |h|, averaged over the tokens. Adding λ · l1 to a loss adds λ · sign(h) / M to the
    gradient of h. Raises ValueError for an activation that yields no zeros.

    On a CPU, in bfloat16 and float32, forward keeps where the gate fired (torch.ops.twell.ffn_train)
    and backward multiplies nothing else; elsewhere, and in forward-mode differentiation, both are
    dense. On a GPU, in bfloat16 and float16, they do the same where ``hot`` is given: so many of the
    first neurons are multiplied densely, those that more than about 1 % of the tokens fire. It pays
    up to some per cent of density, if neurons are ordered by popularity; no GPU has run it yet.
    """
    form = None if hot is None else Form(hot)
    return trained_ffn(x, gate, up, down, activation, threshold, form)[:2]


def _keep_ffn(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, gate, up, down, screen, ctx.activation, ctx.threshold, _ = inputs
    ctx.packed = screen is None
    ctx.save_for_backward(x, gate, up, down)


def _ffn_backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, gate, up, down = ctx.saved_tensors
    rows = torch.ops.twell.unpack_weight(gate, *down.shape) if ctx.packed else gate
    dx, dgate, dup, ddown = dense.ffn_backward(
        _matrix(dy),
        _matrix(x),
        rows,
        up,
        down,
        ctx.activation,
        ctx.threshold,
        ctx.needs_input_grad[:4],
    )
    if dx is not None:
        dx = dx.reshape(x.shape)
    if dgate is not None and ctx.packed:
        dgate = torch.ops.twell.pack_weight(dgate)
    return dx, dgate, dup, ddown, None, None, None, None


def _keep_pattern(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, gate, up, down, _, ctx.activation, ctx.threshold, ctx.hot = inputs
    ctx.save_for_backward(x, gate, up, down, *output[4:])
    ctx.mark_non_differentiable(*output[2:])


def _train_backward(ctx: Any, dy: Tensor, dl1: Tensor, *_: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing computes them at that moment
    dx, dgate, dup, ddown = torch.ops.twell.ffn_train_backward(
        dy, *saved, dl1, ctx.activation, ctx.threshold, ctx.hot
    )
    return dx, dgate, None if saved[2] is None else dup, ddown, None, None, None, None


def _keep_shape(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.rows, ctx.cols = inputs[0].shape


# Packing is a permutation with padding: its gradient is the inverse permutation. A gradient may
# arrive expanded, where the packed layout wants contiguous memory: clone.
def _pack_backward(ctx: Any, dpacked: Tensor) -> Tensor:
    packed = dpacked.clone(memory_format=torch.contiguous_format)
    return torch.ops.twell.unpack_weight(packed, ctx.rows, ctx.cols)


def _unpack_backward(ctx: Any, dweight: Tensor) -> tuple[Any, ...]:
    return torch.ops.twell.pack_weight(dweight.contiguous()), None, None


def register() -> None:
    """Gradients of the operators; once, after the library is loaded.

    The forward pass of an operator is sparse, its backward dense. The operators on the packed
    triple are for inspection and have none.
    """
    rules: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
        "ffn": (_ffn_backward, _keep_ffn),
        "ffn_stats": (_ffn_backward, _keep_ffn),
        "ffn_train": (_train_backward, _keep_pattern),
        "pack_weight": (_pack_backward, _keep_shape),
        "unpack_weight": (_unpack_backward, None),
    }
    for name, (backward, keep) in rules.items():
        torch.library.register_autograd(f"twell::{name}", backward, setup_context=keep)
