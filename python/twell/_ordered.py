"""A frozen layer on a GPU: its neurons in the order of how many inputs fire them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from twell import ops
from twell._weights import FEWEST_INPUTS, Findings, Layer

# Hot neurons are chosen for calls of so many inputs at most; a plan takes more in blocks of fewer.
_MOST_INPUTS_LOG2 = 16


class Operands(NamedTuple):
    """Of torch.ops.twell.ffn, and what they are to the checkpoint's weights."""

    packed_gate: Tensor  # packed, or as stored where there is a screen
    packed_up: Tensor | None
    packed_down: Tensor  # [H, D]
    screen: Tensor | None
    order: Tensor | None
    """int64 [H]: the checkpoint's numbers of the neurons; none where they lie as there."""
    hot: tuple[int, ...]
    """How many of the first neurons are hot in a call of 1, 2, 4, … inputs; empty where neurons lie
    as in the checkpoint."""
    finite: bool = True
    """Layer.is_finite"""

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in OPERANDS}

    def holding(self, tensors: dict[str, Tensor]) -> Operands:
        """The same of other memory."""
        own: Any = {name: tensors[name] for name in OPERANDS}
        return self._replace(**own)

    @property
    def screened(self) -> bool:
        return self.screen is not None

    def unpacked(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """gate, up and down as a checkpoint has them."""
        gate, up = self.packed_gate, self.packed_up
        gate = gate if self.screened else torch.ops.twell.unpack_weight(gate)
        gate, down = (_in_checkpoint_order(w, self.order) for w in (gate, self.packed_down))
        up = None if up is None else _in_checkpoint_order(up, self.order)
        return gate, up, down.t().contiguous()


OPERANDS = Operands._fields[:5]


class Popularity(NamedTuple):
    """Neurons in the order of how many inputs fire them, those that most do first; last are those
    whose row of down is not finite, which must not be hot: 0 · ∞ would reach inputs that did not
    fire them."""

    order: Tensor  # int64 [H], on the CPU
    rates: Tensor  # float64 [H], in that order
    finite: int

    @staticmethod
    def of(fired: Tensor, inputs: int, finite: Tensor) -> Popularity:
        counts = torch.where(finite, fired, -1)
        counts, order = counts.sort(descending=True, stable=True)
        return Popularity(order, counts.clamp(min=0).double() / inputs, int(finite.sum()))


def examine(layer: Layer, x: Tensor) -> Findings:
    neurons = layer.gate.shape[0]
    mean = x.float().mean(0)
    fired = _stats(layer, x, _packed(layer))[2]
    candidates = None
    if _screen_pays(layer, None):  # as plans expect
        # One by one: plans take a screen for some inputs alone, and others leave nothing to count.
        rows = x[:: x.shape[0] // FEWEST_INPUTS][:FEWEST_INPUTS].split(1)
        screened = _screened(layer, mean)
        left = sum(int(_stats(layer, row, screened)[3]) for row in rows)
        candidates = left / (FEWEST_INPUTS * neurons)
    return Findings(x.shape[0], mean.cpu(), fired.cpu(), candidates)


def _screen_pays(layer: Layer, candidates: float | None) -> bool:
    neurons, width = layer.gate.shape
    return ops.screen_pays(1, width, neurons, candidates, device=layer.gate.device)


def _stats(layer: Layer, x: Tensor, operands: Operands) -> tuple[Tensor, ...]:
    weights = layer.form.weights(*operands[:3])
    return torch.ops.twell.ffn_stats(x, weights, operands.screen, layer.form.text)


def make(layer: Layer, findings: Findings | None) -> Operands:
    """In the order of what was found, with a screen where that calls for one; packed as they lie where
    nothing was."""
    if findings is None:
        return _packed(layer)
    pays = findings.candidates is not None and _screen_pays(layer, findings.candidates)
    return _ordered(layer, findings, findings.mean if pays else None)


def _packed(layer: Layer) -> Operands:
    return _as_they_lie(layer, torch.ops.twell.pack_weight(layer.gate.contiguous()), None)


def _screened(layer: Layer, mean: Tensor) -> Operands:
    screen = torch.ops.twell.screen_weight(layer.gate.contiguous(), mean.to(layer.gate.device))
    return _as_they_lie(layer, layer.gate.contiguous(), screen)


def _as_they_lie(layer: Layer, gate: Tensor, screen: Tensor | None) -> Operands:
    up = None if layer.up is None else layer.up.contiguous()
    return Operands(gate, up, layer.down.t().contiguous(), screen, None, (), layer.is_finite)


def _ordered(layer: Layer, findings: Findings, mean: Tensor | None) -> Operands:
    """``mean``: the axis of a screen."""
    down = layer.down.t()
    popularity = Popularity.of(findings.fired.cpu(), findings.inputs, down.isfinite().all(1).cpu())
    order = popularity.order.to(layer.gate.device)
    rows = layer.gate[order].contiguous()
    up = None if layer.up is None else layer.up[order].contiguous()
    screen = None
    gate = rows
    if mean is None:
        gate = torch.ops.twell.pack_weight(rows)
    else:
        screen = torch.ops.twell.screen_weight(rows, mean.to(rows.device))
    if up is not None and _joins(layer):
        both = torch.cat([gate.view(up.shape), up])
        gate, up = both[: up.shape[0]].view(gate.shape), both[up.shape[0] :]
    hot = _hot(layer, popularity)
    return Operands(gate, up, down[order].contiguous(), screen, order, hot, layer.is_finite)


def _joins(layer: Layer) -> bool:
    """Whether up is to lie right behind gate in memory: one GEMM then multiplies with the gate and
    with hot neurons' rows of up (docs/gpu-model.md). On a GPU a packed gate of these sizes is not
    padded."""
    neurons, width = layer.gate.shape
    return layer.up is not None and neurons % 16 == 0 and width % 32 == 0


def _hot(layer: Layer, popularity: Popularity) -> tuple[int, ...]:
    return tuple(
        min(
            popularity.finite,
            ops.choose_hot(
                popularity.rates,
                1 << power,
                layer.gate.shape[1],
                device=layer.gate.device,
                activation=layer.form.activation,
                gated=layer.up is not None,
                joined=_joins(layer),
            ),
        )
        for power in range(_MOST_INPUTS_LOG2 + 1)
    )


def nearest_power(rows: int) -> int:
    """Where Operands.hot has a call of so many inputs, rounded to a power of two as in the engine."""
    rows = max(rows, 1)
    return min((rows + rows // 2).bit_length() - 1, _MOST_INPUTS_LOG2)


def _in_checkpoint_order(weight: Tensor, order: Tensor | None) -> Tensor:
    """Rows of neurons as the checkpoint numbers them."""
    return weight if order is None else torch.empty_like(weight).index_copy_(0, order, weight)
