"""Gradients of the operators torch.ops.twell.*."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from twell import dense
from twell.autograd import in_forward_mode, matrix

try:
    from torch._library.autograd import Info, make_autograd_impl
except ImportError:  # not promised to stay: tangents are then dropped without a word
    make_autograd_impl = None  # type: ignore[assignment]

_library: torch.library.Library | None = None  # what it registers lives as long as it does


def _keep_ffn(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, gate, up, down, screen, ctx.activation, ctx.threshold, _ = inputs
    ctx.packed = screen is None
    ctx.save_for_backward(x, gate, up, down)


def _ffn_backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, gate, up, down = ctx.saved_tensors
    rows = torch.ops.twell.unpack_weight(gate) if ctx.packed else gate
    dx, dgate, dup, ddown = dense.ffn_backward(
        matrix(dy),
        matrix(x),
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


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, gate, up, down, _, _, _, l1_grad, ctx.activation, ctx.threshold, _ = inputs
    ctx.save_for_backward(dy, x, gate, up, down, l1_grad)
    ctx.set_materialize_grads(False)


def _train_backward_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    """Of ffn_train_backward, as of its dense definition, which is differentiable itself: gradients of
    any order follow from it, and torch.func's transforms go through."""
    saved = ctx.saved_tensors
    up = saved[3]
    given = [i for i, tensor in enumerate(saved) if tensor is not None]
    # Without a gate there is a tensor of no elements in dup's place.
    of_all = [None if i == 2 and up is None else grad for i, grad in enumerate(grads)]
    wanted = [grad is not None for grad in of_all]

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        operands: list[Any] = [None] * len(saved)
        for i, tensor in zip(given, tensors):
            operands[i] = tensor
        dy, x, gate, up, down, l1_grad = operands
        dx, *rest = dense.ffn_backward(
            matrix(dy), matrix(x), gate, up, down, ctx.activation, ctx.threshold, wanted, l1_grad
        )
        out = (None if dx is None else dx.reshape(x.shape), *rest)
        return tuple(t for t in out if t is not None)

    pull = torch.func.vjp(gradients, *(saved[i] for i in given))[1]
    found = dict(zip(given, pull(tuple(grad for grad in of_all if grad is not None))))
    *of_operands, of_l1_grad = (found.get(i) for i in range(len(saved)))
    return *of_operands, None, None, None, of_l1_grad, None, None, None


# Packing is a permutation with padding: its gradient is the inverse permutation. A gradient may
# arrive expanded, where the packed layout wants contiguous memory: clone.
def _pack_backward(ctx: Any, dpacked: Tensor) -> Tensor:
    packed = dpacked.clone(memory_format=torch.contiguous_format)
    return torch.ops.twell.unpack_weight(packed)


def _unpack_backward(ctx: Any, dweight: Tensor) -> Tensor:
    return torch.ops.twell.pack_weight(dweight.contiguous())


# What has no gradient, and what has one. Without a rule backward passes them over with a warning.
_WITHOUT = {
    "linear": "torch.nn.functional.linear",
    "linear_as_stored": "torch.nn.functional.linear",
    "twell_gated_ffn": "twell.gated_ffn",
    "twell_spmm": "twell.gated_ffn",
}


def _refusing(name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(f"twell::{name}: is not differentiable; {_WITHOUT[name]} is")

    return backward


def _adding(*operands: Any) -> Tensor:
    """ffn_train_backward_add, which changes tensors in place."""
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in operands):
        raise RuntimeError(
            "twell::ffn_train_backward_add: is not differentiable; call it under torch.no_grad()"
        )
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.twell.ffn_train_backward_add(*operands)


def _without_tangents(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that refuses forward-mode differentiation, whose tangents it would drop."""

    def call(keyset: Any, *operands: Any) -> Any:
        if in_forward_mode() and any(
            isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None
            for t in operands
        ):
            raise RuntimeError(
                f"twell::{name}: has no forward-mode derivative; twell.gated_ffn and layers have"
            )
        return kernel(keyset, *operands)

    return call


def register() -> None:
    """Once, after the library is loaded.

    The forward pass of ffn is sparse, its backward dense; of ffn_train both are sparse, and the
    derivative of the latter is dense. The operators on the packed triple are for inspection and have
    none.
    """
    global _library
    _library = torch.library.Library("twell", "FRAGMENT")
    rules: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
        "ffn": (_ffn_backward, _keep_ffn),
        "ffn_stats": (_ffn_backward, _keep_ffn),
        "ffn_train": (_train_backward, _keep_pattern),
        "ffn_train_backward": (_train_backward_backward, _keep_operands),
        "pack_weight": (_pack_backward, None),
        "unpack_weight": (_unpack_backward, None),
        **{name: (_refusing(name), None) for name in _WITHOUT},
    }
    for name, (backward, keep) in rules.items():
        if make_autograd_impl is None:
            torch.library.register_autograd(f"twell::{name}", backward, setup_context=keep)
            continue
        kernel = make_autograd_impl(getattr(torch.ops.twell, name).default, Info(backward, keep))
        _library.impl(name, _without_tangents(name, kernel), "Autograd", with_keyset=True)
    _library.impl("ffn_train_backward_add", _adding, "Autograd")
