"""Gradients of the operators torch.ops.twell.*."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from twell import _codes, dense
from twell._block import unpack
from twell.autograd import in_forward_mode, matrix
from twell.form import VECTORS, Form

# Of torch.autograd.grad(is_grads_batched=True), whose vmap calls no operator that has lists.
_in_legacy_batch = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda _: False)

_library: torch.library.Library | None = None  # what it registers lives as long as it does


# keep(ctx, output, operands as in the schema) saves what backward(ctx, gradients of the output) reads.
# That returns the gradients of the tensors that the rule lists (_Rule.tensors).


def _with_defaults(rest: Sequence[Any]) -> list[Any]:
    """screen, form and hot. The dispatcher leaves out what is as the schema has it."""
    return [*rest, *(None, "relu", 0)[len(rest) :]]


def _of_layer(x: Tensor, weights: list[Any], *_: Any) -> tuple[Tensor | None, ...]:
    return x, *weights


def _densely(
    dy: Tensor,
    x: Tensor,
    weights: Sequence[Any],
    form: str,
    wanted: Sequence[bool],
    l1_grad: Tensor | None = None,
) -> list[Tensor | None]:
    """Gradients of x and the weights, of which vectors may be left out."""
    gate, up, down, *vectors = weights
    layer = Form.parse(form).with_vectors(vectors)
    of_all = [*wanted, *[False] * (4 + len(VECTORS) - len(wanted))]
    dx, *rest = dense.ffn_backward(matrix(dy), matrix(x), gate, up, down, layer, of_all, l1_grad)
    return [None if dx is None else dx.reshape(x.shape), *rest[: len(weights)]]


def _keep_ffn(ctx: Any, output: Any, x: Tensor, weights: list[Any], *rest: Any) -> None:
    ctx.save_for_backward(x, *weights)
    screen, ctx.form, _ = _with_defaults(rest)
    ctx.packed = screen is None


def _ffn_backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, gate, *others = ctx.saved_tensors
    if any(w is not None and not w.is_floating_point() for w in (gate, *others)):
        raise RuntimeError(
            "twell::ffn: has no gradient where weights are codes; make numbers of them first, or call "
            "it under torch.no_grad()"
        )
    rows = torch.ops.twell.unpack_weight(gate) if ctx.packed else gate
    needs = ctx.needs_input_grad[: 2 + len(others)]
    dx, dgate, *rest = _densely(dy, x, [rows, *others], ctx.form, needs)
    if dgate is not None and ctx.packed:
        dgate = torch.ops.twell.pack_weight(dgate)
    return dx, dgate, *rest


def _keep_block(ctx: Any, output: Tensor, x: Tensor, block: Tensor, *_: Any) -> None:
    ctx.save_for_backward(x, block)


def _run_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, block = ctx.saved_tensors
    return torch.ops.twell.layer_gradient(dy, x, block), None, None


def _input_gradient(dy: Tensor, x: Tensor, block: Tensor) -> Tensor:
    """dx, densely: differentiable in dy and x any number of times."""
    gate, up, down, *vectors = unpack(block)
    if any(w is not None and _codes.is_coded(w) for w in (gate, up, down)):
        raise RuntimeError(
            "twell::run_layer: has no gradient where weights are codes; make numbers of them first, or "
            "call it under torch.no_grad()"
        )
    assert down is not None
    form = torch.ops.twell.form_of_block(block)
    dx = _densely(dy, x, [gate, up, down.t(), *vectors], form, (True,))[0]
    assert dx is not None
    return dx


def _layer_gradient(dy: Tensor, x: Tensor, block: Tensor) -> Tensor:
    if torch.is_grad_enabled() and (dy.requires_grad or x.requires_grad):
        return _input_gradient(dy, x, block)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.twell.layer_gradient(dy, x, block)


def _keep_pattern(ctx: Any, output: Any, x: Tensor, weights: list[Any], *rest: Any) -> None:
    ctx.save_for_backward(x, *output[4:], *weights)
    _, ctx.form, ctx.hot = _with_defaults(rest)
    ctx.mark_non_differentiable(*output[2:])


def _train_backward(ctx: Any, dy: Tensor, dl1: Tensor, *_: Any) -> tuple[Any, ...]:
    x, offsets, neurons, values, *weights = ctx.saved_tensors
    if _in_legacy_batch(dy) or _in_legacy_batch(dl1):
        needs = ctx.needs_input_grad[: 1 + len(weights)]
        return tuple(_densely(dy, x, weights, ctx.form, needs, dl1))
    kept = [offsets, neurons, values]
    dx, *rest = torch.ops.twell.ffn_train_backward(dy, x, weights, kept, dl1, ctx.form, ctx.hot)
    return dx, *(None if weight is None else grad for weight, grad in zip(weights, rest))


def _of_backward(
    dy: Tensor, x: Tensor, weights: list[Any], kept: list[Tensor], l1_grad: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    return dy, l1_grad, x, *weights


def _keep_operands(ctx: Any, output: tuple[Tensor, ...], *operands: Any) -> None:
    ctx.save_for_backward(*_of_backward(*operands))
    ctx.form = operands[5] if len(operands) > 5 else "relu"
    ctx.set_materialize_grads(False)


def _train_backward_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    """The backward of ffn_train_backward, by its dense definition. That is differentiable itself, so
    gradients of any order follow from it, and torch.func's transforms go through."""
    saved = ctx.saved_tensors
    given = [i for i, tensor in enumerate(saved) if tensor is not None]
    # Of what is not there, the gradient is a tensor of no elements.
    of_all = [None if t is None else grad for t, grad in zip(saved[2:], grads)]
    wanted = [grad is not None for grad in of_all]

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        operands: list[Any] = [None] * len(saved)
        for i, tensor in zip(given, tensors):
            operands[i] = tensor
        dy, l1_grad, x, *weights = operands
        out = _densely(dy, x, weights, ctx.form, wanted, l1_grad)
        return tuple(t for t in out if t is not None)

    pull = torch.func.vjp(gradients, *(saved[i] for i in given))[1]
    found = dict(zip(given, pull(tuple(grad for grad in of_all if grad is not None))))
    return tuple(found.get(i) for i in range(len(saved)))


# Packing is a permutation with padding, so its gradient is the inverse permutation. A gradient may
# arrive expanded, and the packed layout needs contiguous memory: clone.
def _pack_backward(ctx: Any, dpacked: Tensor) -> tuple[Tensor]:
    packed = dpacked.clone(memory_format=torch.contiguous_format)
    return (torch.ops.twell.unpack_weight(packed),)


def _unpack_backward(ctx: Any, dweight: Tensor) -> tuple[Tensor]:
    return (torch.ops.twell.pack_weight(dweight.contiguous()),)


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


def _tensors(*operands: Any) -> tuple[Tensor, ...]:
    """All of a call."""
    each = (o if isinstance(o, list) else [o] for o in operands)
    return tuple(t for some in each for t in some if isinstance(t, Tensor))


def _wants_gradients(tensors: Sequence[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _adding(*operands: Any) -> Tensor:
    """ffn_train_backward_add, which changes tensors in place."""
    if _wants_gradients(_tensors(*operands)):
        raise RuntimeError(
            "twell::ffn_train_backward_add: is not differentiable; call it under torch.no_grad()"
        )
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.twell.ffn_train_backward_add(*operands)


class _Rule(NamedTuple):
    """How an operator is differentiated."""

    backward: Callable[..., Any]
    keep: Callable[..., None] = lambda *_: None
    tensors: Callable[..., Sequence[Tensor | None]] = _tensors


def _kernel(name: str, rule: _Rule) -> Callable[..., Any]:
    """What torch.library.register_autograd makes, for operators that have lists with None. It refuses
    forward-mode differentiation, where it would drop the tangents."""
    op = getattr(torch.ops.twell, name).default

    def below(keyset: Any, operands: Sequence[Any]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *operands)

    def forward(ctx: Any, *inputs: Any) -> Any:
        keyset, operands = inputs[-2:]
        output = below(keyset, operands)
        rule.keep(ctx, output, *operands)
        return output

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return *rule.backward(ctx, *grads), None, None

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"twell_{name}", (torch.autograd.Function,), members)

    def kernel(keyset: Any, *operands: Any) -> Any:
        if in_forward_mode() and any(
            forward_ad.unpack_dual(t).tangent is not None for t in _tensors(*operands)
        ):
            raise RuntimeError(
                f"twell::{name}: has no forward-mode derivative; twell.gated_ffn and layers have"
            )
        tensors = rule.tensors(*operands) if torch.is_grad_enabled() else ()
        if _wants_gradients(tensors):
            return function.apply(*tensors, keyset, operands)
        return below(keyset, operands)

    return kernel


def _one(operand: Any, dim: Any, i: int) -> Any:
    """The operand of one call, where ``dim`` is that of the batch."""
    if isinstance(operand, list):
        return [_one(entry, of_entry, i) for entry, of_entry in zip(operand, dim)]
    return operand if dim is None else operand.select(dim, i)


def _one_by_one(name: str) -> Callable[..., Any]:
    """What torch.vmap does where there is no rule, but not for operators that have lists."""
    op = getattr(torch.ops.twell, name).default

    def rule(info: Any, in_dims: Any, *operands: Any) -> Any:
        calls = [
            op(*(_one(operand, dim, i) for operand, dim in zip(operands, in_dims)))
            for i in range(info.batch_size)
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        return tuple(map(torch.stack, zip(*calls))), (0,) * len(calls[0])

    return rule


def register() -> None:
    """Registers the gradients. Call it once, after the library is loaded.

    ffn has a sparse forward pass and a dense backward. Both passes of ffn_train are sparse; the
    derivative of its backward is dense. The operators on the packed triple are for inspection and
    have no gradient.
    """
    global _library
    _library = torch.library.Library("twell", "FRAGMENT")
    rules = {
        "ffn": _Rule(_ffn_backward, _keep_ffn, _of_layer),
        "ffn_stats": _Rule(_ffn_backward, _keep_ffn, _of_layer),
        "run_layer": _Rule(_run_backward, _keep_block),
        "ffn_train": _Rule(_train_backward, _keep_pattern, _of_layer),
        "ffn_train_backward": _Rule(_train_backward_backward, _keep_operands, _of_backward),
        "pack_weight": _Rule(_pack_backward),
        "unpack_weight": _Rule(_unpack_backward),
        **{name: _Rule(_refusing(name)) for name in _WITHOUT},
    }
    for name, rule in rules.items():
        _library.impl(name, _kernel(name, rule), "Autograd", with_keyset=True)
        if rule.tensors is not _tensors:
            torch.library.register_vmap(f"twell::{name}", _one_by_one(name), lib=_library)
    _library.impl("ffn_train_backward_add", _adding, "Autograd")
    _library.impl("layer_gradient", _layer_gradient, "Autograd")
    _library.impl("layer_gradient", _input_gradient, "CPU")
