"""Gradients of the operators torch.ops.twell.*."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from twell import dense
from twell._block import input_gradient
from twell.autograd import in_forward_mode, keep, kept, matrix
from twell.form import PLAIN, Form

try:
    from torch._library.autograd import Info, make_autograd_impl
except ImportError:  # PyTorch may remove it: then tangents are dropped without a word
    make_autograd_impl = None  # type: ignore[assignment]

_library: torch.library.Library | None = None  # what it registers lives as long as it does


def _grads(of_vectors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """In the places of a form's arguments, those too that a call left out: from 2.15 on PyTorch refuses
    fewer."""
    left_out = (None,) * (len(PLAIN.vectors) - len(of_vectors))
    return None, None, None, None, *of_vectors, *left_out, None


def _keep_ffn(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, gate, up, down, screen, *form = inputs
    ctx.packed = screen is None
    keep(ctx, (x, gate, up, down), Form.of_operands(*form))


def _ffn_backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    (x, gate, up, down), form = kept(ctx)
    if any(w is not None and not w.is_floating_point() for w in (gate, up, down)):
        raise RuntimeError(
            "twell::ffn: has no gradient where weights are codes; make numbers of them first, or call "
            "it under torch.no_grad()"
        )
    rows = torch.ops.twell.unpack_weight(gate) if ctx.packed else gate
    needs = ctx.needs_input_grad
    dx, dgate, dup, ddown, *of_vectors = dense.ffn_backward(
        matrix(dy), matrix(x), rows, up, down, form, (*needs[:4], *needs[9:13])
    )
    if dx is not None:
        dx = dx.reshape(x.shape)
    if dgate is not None and ctx.packed:
        dgate = torch.ops.twell.pack_weight(dgate)
    return dx, dgate, dup, ddown, None, *_grads(of_vectors)


def _keep_block(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _run_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, block = ctx.saved_tensors
    return torch.ops.twell.layer_gradient(dy, x, block), None, None, None


def _layer_gradient(dy: Tensor, x: Tensor, block: Tensor) -> Tensor:
    if torch.is_grad_enabled() and (dy.requires_grad or x.requires_grad):
        return input_gradient(dy, x, block)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.twell.layer_gradient(dy, x, block)


def _keep_pattern(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, gate, up, down, _, *form = inputs
    keep(ctx, (x, gate, up, down, *output[4:]), Form.of_operands(*form))
    ctx.hot = form[2]
    ctx.mark_non_differentiable(*output[2:])


def _train_backward(ctx: Any, dy: Tensor, dl1: Tensor, *_: Any) -> tuple[Any, ...]:
    saved, form = kept(ctx)
    dx, dgate, *rest = torch.ops.twell.ffn_train_backward(
        dy, *saved, dl1, *form.operands(ctx.hot)
    )
    there = (saved[2], saved[3], *form.vectors)
    dup, ddown, *of_vectors = (None if t is None else grad for t, grad in zip(there, rest))
    return dx, dgate, dup, ddown, None, *_grads(of_vectors)


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, gate, up, down, _, _, _, l1_grad, *form = inputs
    keep(ctx, (dy, x, gate, up, down, l1_grad), Form.of_operands(*form))
    ctx.set_materialize_grads(False)


def _train_backward_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    """The backward of ffn_train_backward, by its dense definition. That is differentiable itself, so
    gradients of any order follow from it, and torch.func's transforms go through."""
    tensors, form = kept(ctx)
    saved = (*tensors, *form.vectors)
    given = [i for i, tensor in enumerate(saved) if tensor is not None]
    # Of what is not there, the gradient is a tensor of no elements.
    differentiated = (*saved[1:5], *form.vectors)
    of_all = [None if t is None else grad for t, grad in zip(differentiated, grads)]
    wanted = [grad is not None for grad in of_all]

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        operands: list[Any] = [None] * len(saved)
        for i, tensor in zip(given, tensors):
            operands[i] = tensor
        dy, x, gate, up, down, l1_grad, *vectors = operands
        of_operands = form.with_vectors(vectors)
        dx, *rest = dense.ffn_backward(
            matrix(dy), matrix(x), gate, up, down, of_operands, wanted, l1_grad
        )
        out = (None if dx is None else dx.reshape(x.shape), *rest)
        return tuple(t for t in out if t is not None)

    pull = torch.func.vjp(gradients, *(saved[i] for i in given))[1]
    found = dict(zip(given, pull(tuple(grad for grad in of_all if grad is not None))))
    *of_operands, of_l1_grad = (found.get(i) for i in range(6))
    of_vectors = [found.get(i) for i in range(6, len(saved))]
    return *of_operands, None, None, None, of_l1_grad, *_grads(of_vectors)


# Packing is a permutation with padding, so its gradient is the inverse permutation. A gradient may
# arrive expanded, and the packed layout needs contiguous memory: clone.
def _pack_backward(ctx: Any, dpacked: Tensor) -> Tensor:
    packed = dpacked.clone(memory_format=torch.contiguous_format)
    return torch.ops.twell.unpack_weight(packed)


def _unpack_backward(ctx: Any, dweight: Tensor) -> Tensor:
    return torch.ops.twell.pack_weight(dweight.contiguous())


# Operators without a gradient, and what has one instead. Without a rule backward would ignore them,
# with a warning.
_WITHOUT = {
    "linear": "torch.nn.functional.linear",
    "linear_as_stored": "torch.nn.functional.linear",
    "round_inputs": "torch.round",
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
    """A kernel that refuses forward-mode differentiation, because it would drop the tangents."""

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


class _Remembering:
    """Something with some of its attributes looked up once."""

    def __init__(self, of: Any, **known: Any) -> None:
        self.__dict__.update(known, _of=of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _operator(name: str) -> Any:
    """An operator for make_autograd_impl, which looks at the arguments of the schema for each of them
    in every call; PyTorch makes a new list of them at every look."""
    op = getattr(torch.ops.twell, name).default
    schema = _Remembering(op._schema, arguments=list(op._schema.arguments))
    return _Remembering(op, _schema=schema)


def register() -> None:
    """Registers the gradients. Call it once, after the library is loaded.

    ffn has a sparse forward pass and a dense backward. Both passes of ffn_train are sparse; the
    derivative of its backward is dense. The operators on the packed triple are for inspection and
    have no gradient.
    """
    global _library
    _library = torch.library.Library("twell", "FRAGMENT")
    rules: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
        "ffn": (_ffn_backward, _keep_ffn),
        "ffn_stats": (_ffn_backward, _keep_ffn),
        "run_layer": (_run_backward, _keep_block),
        "ffn_train": (_train_backward, _keep_pattern),
        "ffn_train_backward": (_train_backward_backward, _keep_operands),
        "pack_weight": (_pack_backward, None),
        "unpack_weight": (_unpack_backward, None),
        **{name: (_refusing(name), None) for name in _WITHOUT},
    }
    for name, (backward, setup) in rules.items():
        if make_autograd_impl is None:
            torch.library.register_autograd(f"twell::{name}", backward, setup_context=setup)
            continue
        kernel = make_autograd_impl(_operator(name), Info(backward, setup))
        _library.impl(name, _without_tangents(name, kernel), "Autograd", with_keyset=True)
    _library.impl("ffn_train_backward_add", _adding, "Autograd")
    _library.impl("layer_gradient", _layer_gradient, "Autograd")
    _library.impl("layer_gradient", input_gradient, "CPU")
