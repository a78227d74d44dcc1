"""The layer as training calls it, with gradients of any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from twell import dense
from twell._autocast import cast_operands
from twell._training import HotNeurons
from twell.form import PLAIN, VECTORS, Additions, Form

if TYPE_CHECKING:
    from typing_extensions import Unpack


def matrix(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x


class _Dense(torch.autograd.Function):
    """What Trained holds, of gate, up and down [H, D], densely: where the sparse operators have no
    kernels. Keeps its inputs alone and computes g and u again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, *form: Any
    ) -> tuple[Tensor, ...]:
        y, h, g = dense.ffn(x, gate, up, down, Form(*form))
        return y, dense.l1(h), *dense.counts(g)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        form = Form(*inputs[4:])
        ctx.save_for_backward(*inputs[:4], *form.vectors)
        ctx.text = form.text
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dl1: Tensor, *_: Any) -> tuple[Any, ...]:
        # Read once: activation checkpointing computes them at that moment.
        x, gate, up, down, *vectors = ctx.saved_tensors
        form = Form.parse(ctx.text).with_vectors(vectors)
        needs = ctx.needs_input_grad
        first = len(needs) - len(VECTORS)  # behind the scalars
        grads = dense.ffn_backward(
            dy, x, gate, up, down, form, (*needs[:4], *needs[first:]), dl1 / max(x.shape[0], 1)
        )
        return *grads[:4], *[None] * (first - 4), *grads[4:]


class _WithL1(torch.autograd.Function):
    """Identity on y, whose backward hands ``weight`` to l1 as the gradient of a loss would. It does so
    in every backward pass, so it cannot tell the gradient of a gradient from that of a loss."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, l1: Tensor, weight: Tensor) -> Tensor:
        return y.detach()  # not a view, which could not be changed in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "twell: the L1 term of set_l1 cannot be differentiated again (create_graph, "
                "torch.func.grad): call set_l1(model, 0), set collect_l1 on the layers, and add "
                "coefficient * twell.l1_term(model) to the loss"
            )
        return dy, ctx.saved_tensors[0], None


class _WithL1AndTangents(_WithL1):
    """The same in forward-mode differentiation. torch.compile takes no function that has a jvp."""

    @staticmethod
    def jvp(ctx: Any, dy: Tensor, *_: Any) -> Tensor:
        return dy.clone()


def with_l1(y: Tensor, l1: Tensor, weight: float | Tensor) -> Tensor:
    """y, such that backward through it adds ``weight`` times l1 to the loss. It takes no other path
    than y's, so that activation checkpointing of either kind keeps it. ``weight`` is a number, or a
    tensor of one, whose changes need no new trace. Backward raises RuntimeError where its result is
    to be differentiated again."""
    function = _WithL1AndTangents if in_forward_mode() else _WithL1
    return function.apply(y, l1, torch.as_tensor(weight, dtype=l1.dtype, device=l1.device))


class Trained(NamedTuple):
    """One pass of a layer in training."""

    y: Tensor
    l1: Tensor
    """The sum over neurons of ``|h|``, averaged over the tokens; float32, or float64 for float64."""
    row_nnz: Tensor
    """The number of neurons that each token fired: int32, x's shape without its last dimension."""
    neuron_nnz: Tensor
    """The number of tokens that fired each neuron: int64 [H]."""


def in_forward_mode() -> bool:
    """Whether there is forward-mode differentiation. A tensor of torch.func does not show its tangent
    while a gradient is taken within (torch.func.hessian)."""
    return forward_ad._current_level >= 0


def transformed() -> bool:
    """Whether calls are differentiated in forward mode, or by torch.func, or are vectorized: the
    operators have no rules for that, and PyTorch's own have."""
    return in_forward_mode() or (
        not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    )


def traced() -> bool:
    """Whether torch.jit.trace() records the call."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def trained_ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    form: Form = PLAIN,
    hot: HotNeurons | None = None,
) -> Trained:
    """:func:`gated_ffn`, with counts; without an ``up`` the layer has no gate (dense.ffn). ``hot`` is
    for GPUs: without it, and of a form that is not plain, they are dense."""
    dense.check_form(form, up is not None)
    # A trace knows no operand that is a list of weights some of which are None.
    if transformed() or traced():
        y, h, g = dense.ffn(x, gate, up, down, form)
        return Trained(y, dense.l1(h), *dense.counts(g))
    x, gate, up, down = cast_operands(x, gate, up, down)
    on_cpu = x.device.type == "cpu"
    dtypes = (torch.bfloat16, torch.float32 if on_cpu else torch.float16)
    sparse_on_gpu = x.is_cuda and hot is not None and form.is_plain
    if x.dtype in dtypes and (on_cpu or sparse_on_gpu):
        hot = hot or HotNeurons()
        gate, down = hot.sorted(gate), hot.sorted(down.contiguous())
        up = None if up is None else hot.sorted(up)
        y, l1, row_nnz, neuron_nnz, *_ = torch.ops.twell.ffn_train(
            x, form.weights(gate, up, down), None, form.text, hot.hot
        )
        neuron_nnz = hot.by_checkpoint(neuron_nnz)
        return Trained(y, dense.over_tokens(l1, x), row_nnz, neuron_nnz)
    y, l1, row_nnz, neuron_nnz = _Dense.apply(matrix(x), gate, up, down, *form)
    return Trained(
        y.reshape(*x.shape[:-1], y.shape[-1]), l1, row_nnz.reshape(x.shape[:-1]), neuron_nnz
    )


def gated_ffn(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
    hot: int | None = None,
    **additions: Unpack[Additions],
) -> tuple[Tensor, Tensor]:
    """The gated layer for training: (y, l1), differentiable in x, the three weights and the vectors
    among ``additions`` (:class:`twell.form.Additions`: up's activation, biases, a norm), any number of
    times: derivatives of gradients are computed densely.

    x is [..., D]; gate, up and down are [H, D], down neuron-major (``down_proj.weight.t()`` of a
    checkpoint). All have one floating dtype, or torch.autocast gives them one; gradients have each
    operand's own. y is [..., D]. l1 is a float32 scalar (float64 for float64 inputs): the sum over
    neurons of ``|h|``, averaged over the tokens. Adding λ · l1 to a loss adds λ · sign(h) / M to the
    gradient of h. Raises ValueError for an activation that yields no zeros.

    On a CPU, in bfloat16 and float32, forward keeps where the gate fired (torch.ops.twell.ffn_train)
    and backward multiplies nothing else; elsewhere, in forward-mode differentiation and under
    torch.func both are dense. On a GPU, in bfloat16 and float16, they do the same if ``hot`` is
    given, and no additions. The first ``hot`` neurons, which should be those that more than about 1 % of the tokens
    fire, are then multiplied densely. This pays up to some per cent of density, if neurons are
    ordered by popularity.
    """
    form = Form(activation, threshold, **additions)
    return trained_ffn(x, gate, up, down, form, None if hot is None else HotNeurons(hot))[:2]
