"""Logits in float32, of a model whose weights are narrower.

A bfloat16 has eight bits, so the two largest logits of a token often become one number: in 4.7 % of 4,096
tokens of a text, with SmolLM2-135M. Greedy decoding then takes the first of them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from twell import _attached, _children
from twell.autograd import matrix, transformed

_NARROW = (torch.bfloat16, torch.float16)
# Rows of a weight that are made float32 at a time, where no product of its dtype yields its sums.
_PIECE = 4096


def float_logits(model: Any) -> Any:
    """Makes the output layer of a model of transformers yield its float32 sums, which are not rounded to the
    model's dtype. Its parameters and their names stay, and so does a weight that it shares with the
    embedding. Logits take twice the memory; in backward their gradients are rounded to the weight's dtype, as
    they were. Returns the model. Call it again after ``resize_token_embeddings``, which may make another
    output layer. A model whose code reads the layer's weight (MobileBERT) does not change.

    Raises ValueError where the output layer is no plain ``nn.Linear``: quantised ones, adapters, shards.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if head is None:
        raise ValueError(f"float_logits: {type(model).__name__} has no output layer (get_output_embeddings)")
    if isinstance(head, FloatLogits):
        return model
    if "forward" in head.__dict__:
        raise ValueError(f"float_logits: the output layer has {_attached.what(head)}; remove that first")
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
        kinds = (type(each) for each in (head, getattr(head, "weight", None)))
        kind = " with ".join(f"{k.__module__}.{k.__qualname__}" for k in kinds)
        raise ValueError(f"float_logits: expected an output layer nn.Linear with an nn.Parameter, got {kind}")
    head.__class__ = FloatLogits
    return model


class FloatLogits(nn.Linear):
    """An output layer that yields its sums in float32; under autocast, too."""

    def forward(self, x: Tensor) -> Tensor:
        weight, device = self.weight, x.device.type
        plain = not _children.is_wrapped(weight)  # codes, shards
        cast = device != "meta" and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if cast and weight.dtype != torch.float64 else weight.dtype
        if not plain or dtype not in _NARROW or (x.dtype != dtype and not cast):
            y: Tensor = functional.linear(x, weight, self.bias)
            return y.float() if y.dtype in _NARROW and not plain else y
        with torch.autocast(device, enabled=False) if cast else nullcontext():
            y = _of(x.to(dtype), weight.to(dtype))
            return y if self.bias is None else y + self.bias.float()


def _of(x: Tensor, weight: Tensor) -> Tensor:
    if transformed():
        return functional.linear(x.float(), weight.float())
    y: Tensor = _Sums.apply(x, weight)
    return y


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _sums(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wanted_x, wanted_weight = ctx.needs_input_grad
        dy = dy.to(weight.dtype)
        dx = dy @ weight if wanted_x else None
        return dx, matrix(dy).t() @ matrix(x) if wanted_weight else None


def _sums(x: Tensor, weight: Tensor) -> Tensor:
    if x.device.type == "cpu" and x.dtype == torch.bfloat16:
        return torch.ops.twell.linear_as_stored(x, weight.contiguous(), True)
    rows = matrix(x)
    if x.device.type == "cuda":
        y = torch.mm(rows, weight.t(), out_dtype=torch.float32)
    else:
        rows = rows.float()
        y = torch.cat([rows @ piece.float().t() for piece in weight.split(_PIECE)], -1)
    return y.view(*x.shape[:-1], weight.shape[0])
