"""What a frozen layer holds: a block on a CPU (_block.py), ordered operands on a GPU (_ordered.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from twell import _block, _codes, _ordered
from twell._block import Block
from twell._ordered import Operands
from twell._weights import FEWEST_INPUTS, Findings, Layer
from twell.form import VECTORS

Held = Block | Operands


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
    for name, vector in zip(VECTORS, layer.form.vectors):
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


def examine(layer: Layer, sample: Tensor) -> Findings:
    """What typical inputs show. Raises ValueError."""
    check(layer)
    (_, width), device = layer.sizes, layer.gate.device
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
        return (_ordered if on_gpu(device) else _block).examine(layer, x)


def held_of(layer: Layer, findings: Findings | None) -> Held:
    """What a layer is frozen to, in the form that suits what was found, on the weights' device. Raises
    ValueError where check() does."""
    check(layer)
    if findings is not None and findings.lost:
        findings = None
    if findings is not None:
        sizes = [len(findings.fired), len(findings.mean)]
        if sizes != layer.sizes:
            raise ValueError(f"findings: expected those of [H, D] = {layer.sizes}, got {sizes}")
    with torch.no_grad():
        return (_ordered if on_gpu(layer.gate.device) else _block).make(layer, findings)
