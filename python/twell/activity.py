"""How much a layer's forward passes fired, summed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twell.autograd import Trained


class Activity(NamedTuple):
    """Sums over passes. They are tensors on the layer's device, so counting waits for nothing and
    can be part of a compiled graph."""

    neurons: Tensor  # int64 [H]: tokens that fired each neuron
    tokens: Tensor  # int64 []
    nnz: Tensor  # int64 [], of all tokens
    nnz_max: Tensor  # int32 [], of one token
    l1: Tensor  # float64 [], of all tokens

    @staticmethod
    def of(out: Trained) -> Activity:
        rows = out.row_nnz
        tokens = torch.full((), rows.numel(), dtype=torch.int64, device=rows.device)
        most = rows.max() if rows.numel() > 0 else rows.new_zeros(())
        return Activity(out.neuron_nnz, tokens, rows.sum(), most, out.l1.detach().double() * tokens)

    @staticmethod
    def none(neurons: int, device: torch.device) -> Activity:
        """The activity of no token."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        most, l1 = zeros(dtype=torch.int32), zeros(dtype=torch.float64)
        return Activity(zeros(neurons), zeros(), zeros(), most, l1)

    def plus(self, other: Activity) -> Activity:
        neurons, tokens, nnz, most, l1 = other
        return Activity(
            self.neurons + neurons,
            self.tokens + tokens,
            self.nnz + nnz,
            torch.maximum(self.nnz_max, most),
            self.l1 + l1,
        )
