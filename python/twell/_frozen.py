"""What a frozen layer holds, and what inputs show of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twell import _codes, ops
from twell.form import Form

# A sample of fewer does not show in which direction inputs point.
FEWEST_INPUTS = 32
# Hot neurons are chosen for calls of so many inputs at most; a plan takes more in blocks of fewer.
_MOST_INPUTS_LOG2 = 16


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


class Operands(NamedTuple):
    """Of torch.ops.twell.ffn, and what they are to the checkpoint's weights."""

    gate: Tensor  # packed, or as stored where there is a screen
    up: Tensor | None
    down: Tensor  # [H, D]
    screen: Tensor | None
    order: Tensor | None
    """int64 [H]: the checkpoint's numbers of the neurons; none where they lie as there."""
    hot: tuple[int, ...]
    """How many of the first neurons are hot in a call of 1, 2, 4, … inputs; empty where neurons lie
    as in the checkpoint."""


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


def on_gpu(device: torch.device) -> bool:
    """Where neurons are ordered. Tests say yes of the CPU: its operators take the same operands."""
    return device.type == "cuda"


def check(layer: Layer) -> None:
    """Raises ValueError unless the weights are such that a layer can be frozen."""
    weights = [w for w in (layer.gate, layer.up, layer.down) if w is not None]
    dtypes = [layer.dtype if _codes.is_coded(w) else w.dtype for w in weights]
    have = list(dict.fromkeys(f"{of} on {w.device}" for of, w in zip(dtypes, weights)))
    if len(have) > 1:
        raise ValueError(f"expected weights of one dtype on one device, got {' and '.join(have)}")
    for name, vector in zip(Form._fields[3:7], layer.form.vectors):
        if vector is None:
            continue
        other = f"{vector.dtype} on {vector.device}"
        if other not in (have[0], f"{torch.float32} on {layer.gate.device}"):
            raise ValueError(f"{name}: expected {have[0]}, as the weights, or float32, got {other}")
    if on_gpu(layer.gate.device) and not layer.form.is_plain:
        raise ValueError(
            "expected neither biases, an activation of up nor a norm on a GPU, whose operators lack "
            "them; unfrozen, the layer runs densely"
        )
    if on_gpu(layer.gate.device) and layer.has_codes:
        raise ValueError("expected weights of numbers on a GPU, whose operators lack codes")
    try:
        torch.ops.twell.pack_weight(layer.gate.new_zeros(1, 1, dtype=layer.dtype))
    except RuntimeError as error:
        raise ValueError(
            "expected weights of bfloat16 or float32 on a CPU, or of bfloat16 or float16 on an NVIDIA "
            f"GPU, got {have[0]}; convert them first (.bfloat16(), or dtype= of from_pretrained)"
        ) from error


def examine(layer: Layer, sample: Tensor) -> tuple[Findings, Operands | None]:
    """What inputs like those to come show; with the operands, where they are there already. Raises
    ValueError."""
    check(layer)
    (neurons, width), device = layer.sizes, layer.gate.device
    if sample.shape[-1:] != (width,) or sample.numel() < FEWEST_INPUTS * width:
        raise ValueError(
            f"sample: expected {FEWEST_INPUTS} or more inputs of size {width}, "
            f"got shape {list(sample.shape)}"
        )
    if sample.device != device or not sample.is_floating_point():
        raise ValueError(
            f"sample: expected floating-point numbers on {device}, as the weights, got "
            f"{sample.dtype} on {sample.device}"
        )
    with torch.no_grad():
        x = sample.detach().reshape(-1, width).to(layer.dtype)
        if on_gpu(device):
            return _examine_on_gpu(layer, x), None
        mean = x.float().mean(0)
        tried = ops.screen_limit() > 0.0 and not _codes.is_coded(layer.gate)
        operands = _screened(layer, mean) if tried else _packed(layer)
        _, _, fired, candidates = _stats(layer, x, operands)
        share = int(candidates) / (x.shape[0] * neurons) if tried else None
        findings = Findings(x.shape[0], mean, fired, share)
        return findings, operands if _screen_pays(layer, findings) == tried else None


def _examine_on_gpu(layer: Layer, x: Tensor) -> Findings:
    neurons = layer.gate.shape[0]
    mean = x.float().mean(0)
    fired = _stats(layer, x, _packed(layer))[2]
    candidates = None
    if _screen_pays_on_gpu(layer, None):  # as plans expect
        # One by one: plans take a screen for some inputs alone, and others leave nothing to count.
        rows = x[:: x.shape[0] // FEWEST_INPUTS][:FEWEST_INPUTS].split(1)
        screened = _screened(layer, mean)
        left = sum(int(_stats(layer, row, screened)[3]) for row in rows)
        candidates = left / (FEWEST_INPUTS * neurons)
    return Findings(x.shape[0], mean.cpu(), fired.cpu(), candidates)


def _screen_pays(layer: Layer, findings: Findings) -> bool:
    """Whether the layer has a screen on the weights' device."""
    if findings.candidates is None or _codes.is_coded(layer.gate):
        return False
    if on_gpu(layer.gate.device):
        return _screen_pays_on_gpu(layer, findings.candidates)
    limit = ops.screen_limit() if layer.gate.device.type == "cpu" else 0.0
    return limit > 0.0 and findings.candidates <= limit


def _screen_pays_on_gpu(layer: Layer, candidates: float | None) -> bool:
    neurons, width = layer.gate.shape
    return ops.screen_pays(1, width, neurons, candidates, device=layer.gate.device)


def _stats(layer: Layer, x: Tensor, operands: Operands) -> tuple[Tensor, ...]:
    weights = layer.form.weights(*operands[:3])
    return torch.ops.twell.ffn_stats(x, weights, operands.screen, layer.form.text)


def operands_of(layer: Layer, findings: Findings | None) -> Operands:
    """The operands in the form that suits what was found, on the weights' device; packed where nothing
    was. Raises ValueError where check() does."""
    check(layer)
    if findings is None or findings.lost:
        return _packed(layer)
    sizes = [len(findings.fired), len(findings.mean)]
    if sizes != layer.sizes:
        raise ValueError(f"findings: expected those of [H, D] = {layer.sizes}, got {sizes}")
    mean = findings.mean if _screen_pays(layer, findings) else None
    if not on_gpu(layer.gate.device):
        return _packed(layer) if mean is None else _screened(layer, mean)
    return _ordered(layer, findings, mean)


def _packed(layer: Layer) -> Operands:
    return _as_they_lie(layer, torch.ops.twell.pack_weight(layer.gate.contiguous()), None)


def _screened(layer: Layer, mean: Tensor) -> Operands:
    screen = torch.ops.twell.screen_weight(layer.gate.contiguous(), mean.to(layer.gate.device))
    # A copy: who holds the checkpoint's tensor may change it, which no screen notices.
    return _as_they_lie(layer, layer.gate.clone(memory_format=torch.contiguous_format), screen)


def _as_they_lie(layer: Layer, gate: Tensor, screen: Tensor | None) -> Operands:
    up = None if layer.up is None else layer.up.contiguous()
    return Operands(gate, up, _codes.turned(layer.down, "row"), screen, None, ())


def _ordered(layer: Layer, findings: Findings, mean: Tensor | None) -> Operands:
    """Those of a GPU: neurons in the order of how many inputs fire them. ``mean``: of a screen."""
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
    return Operands(gate, up, down[order].contiguous(), screen, order, _hot(layer, popularity))


def is_finite(operands: Operands, form: Form) -> bool:
    """Whether what does not fire may be skipped: 0 · ∞ is NaN. Numbers that are not there, on the meta
    device and of PyTorch's fake tensors, are."""
    skipped = (operands.up, operands.down, form.up_bias, form.norm_weight)
    weights = [w for w in skipped if w is not None]
    there = [w for w in weights if not w.is_meta and not hasattr(w, "fake_mode")]
    return all(bool(w.isfinite().all()) for w in there)


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


def in_checkpoint_order(weight: Tensor, order: Tensor | None) -> Tensor:
    """Rows of neurons as the checkpoint numbers them."""
    return weight if order is None else torch.empty_like(weight).index_copy_(0, order, weight)
