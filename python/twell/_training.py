"""How a layer is trained on a GPU: densely, or sparsely with hot neurons."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from twell import dense, ops
from twell._frozen import on_gpu

# Steps between decisions. A decision waits for the GPU once.
_EVERY = 32


class HotNeurons(NamedTuple):
    """Those that the sparse passes on a GPU multiply densely."""

    hot: int = 0
    """How many, the first ones (ops.ffn_train)."""
    order: Tensor | None = None
    """int64 [H] on the device: the checkpoint's numbers of the neurons, the most active first. None
    if the order does not matter."""
    places: Tensor | None = None
    """The inverse of the order."""

    def sorted(self, weight: Tensor) -> Tensor:
        """Rows [H, D] in this order. Gradients come back in the checkpoint's order."""
        return weight if self.order is None else _Rows.apply(weight, self.order, self.places)

    def by_checkpoint(self, counts: Tensor) -> Tensor:
        return counts if self.places is None else counts[self.places]


class _Rows(torch.autograd.Function):
    """weight[order]. PyTorch's own gradient of that is slower: it adds rows to zeros."""

    @staticmethod
    def forward(weight: Tensor, order: Tensor, places: Tensor) -> Tensor:
        return weight.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class TrainingForm:
    """Decides after the first step, and after every 32nd from there, by what the newest pass fired.
    Early in training half of all neurons fire, and dense operations are faster. It decides only
    between two steps, which it tells by changes of a weight: activation checkpointing runs passes
    again and needs the same bits. It does not decide while a graph is captured or a trace is made;
    these use the form that holds then."""

    def __init__(self) -> None:
        self.form: HotNeurons | None = None  # none: dense
        self._fired: Tensor | None = None
        self._tokens = 0
        self._version = -1
        self._steps = 0

    def of_pass(self, x: Tensor, weight: Tensor, activation: str, gated: bool) -> HotNeurons | None:
        """For a pass of x [..., D] through a layer with this first weight [H, D]."""
        if not on_gpu(x.device) or _recorded(x) or weight.is_inference():
            return self.form if on_gpu(x.device) else None
        if weight._version != self._version:
            self._version = weight._version
            if self._fired is not None:
                if self._steps % _EVERY == 0:
                    self._decide(x, activation, gated)
                self._steps += 1
        return self.form

    def saw(self, x: Tensor, neuron_nnz: Tensor) -> None:
        """Notes how many tokens of x fired each neuron, by the checkpoint's numbers."""
        if on_gpu(x.device) and not _recorded(x) and x.numel() > 0:
            self._fired, self._tokens = neuron_nnz, dense.tokens_of(x)

    def _decide(self, x: Tensor, activation: str, gated: bool) -> None:
        fired = self._fired
        assert fired is not None
        counts, order = fired.cpu().sort(descending=True, stable=True)
        hot = ops.choose_training(
            counts.double() / self._tokens,
            self._tokens,
            x.shape[-1],
            device=x.device,
            activation=activation,
            gated=gated,
        )
        if hot is None:
            self.form = None
        elif hot in (0, len(order)):
            self.form = HotNeurons(hot)
        else:
            places = torch.empty_like(order)
            places[order] = torch.arange(len(order), device=order.device)
            self.form = HotNeurons(hot, order.to(fired.device), places.to(fired.device))


def _recorded(x: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
