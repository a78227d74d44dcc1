"""A layer that is to be frozen: its weights and findings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twell import _codes
from twell.form import Form

# A sample of fewer does not show in which direction inputs point.
FEWEST_INPUTS = 32


class Layer(NamedTuple):
    """Weights as a checkpoint has them, without a gate up in its place, and the form. Each is of numbers,
    or what join_codes makes of codes with scales of rows."""

    gate: Tensor  # [H, D]
    up: Tensor | None
    down: Tensor  # [D, H]
    form: Form
    dtype: torch.dtype  # of x, and of numbers

    @property
    def sizes(self) -> list[int]:
        """[H, D]."""
        return list(_codes.sizes(self.gate))

    def numbers(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """gate, up and down."""
        gate, up, down = (None if w is None else _codes.numbers(w, self.dtype) for w in self[:3])
        assert gate is not None and down is not None
        return gate, up, down

    @property
    def has_codes(self) -> bool:
        return any(w is not None and _codes.is_coded(w) for w in self[:3])

    @property
    def is_finite(self) -> bool:
        """Whether what does not fire may be skipped: 0 · ∞ is NaN. Numbers that are not there, on the
        meta device and of PyTorch's fake tensors, are."""
        skipped = (self.up, self.down, self.form.up_bias, self.form.norm_weight)
        there = [w for w in skipped if w is not None and not is_empty(w)]
        return all(bool(w.isfinite().all()) for w in there)


class Findings(NamedTuple):
    """What inputs showed of a layer (include/twell/findings.h). They are of the model: a layer decides
    by them on whatever device it is. Tensors are on the CPU but where torch.load put them
    elsewhere."""

    inputs: int
    """That were seen."""
    mean: Tensor
    """Of them, float32 [D]: the axis of the gate's screen."""
    fired: Tensor
    """Inputs that fired each neuron, by the checkpoint's numbers, int64 [H]."""
    candidates: float | None
    """The share of the pre-activations that a screen along the mean left; none where none was tried."""

    @property
    def lost(self) -> bool:
        """Where torch.load(map_location="meta") has left nothing of them."""
        return self.mean.is_meta or self.fired.is_meta


def is_empty(tensor: Tensor) -> bool:
    """Whether it has a shape and no numbers."""
    return tensor.is_meta or hasattr(tensor, "fake_mode")
