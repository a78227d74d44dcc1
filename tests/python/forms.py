"""Layers with biases, an activation of up and a norm of the hidden state, for the tests."""

from __future__ import annotations

from typing import Any

import torch
import twell
from layers import make_layer
from torch import Tensor
from twell.form import VECTORS

WIDTH, NEURONS = 24, 60
ACTIVATIONS = [("relu", 0.0), ("relu_squared", 0.0), ("fat_relu", 0.2)]
KINDS = [twell.GatedFfn, twell.Ffn]


def vectors(dtype: torch.dtype, gated: bool = True, seed: int = 0) -> dict[str, Any]:
    """Of a form that has all."""
    generator = torch.Generator().manual_seed(100 + seed)

    def random(size: int, scale: float) -> Tensor:
        return (scale * torch.randn(size, generator=generator)).to(dtype)

    return {
        "gate_bias": random(NEURONS, 0.5),
        **({"up_bias": random(NEURONS, 0.5)} if gated else {}),
        "down_bias": random(WIDTH, 0.5),
        "norm_weight": 1 + random(NEURONS, 0.3),
        "norm_epsilon": 0.05,
    }


def weights(dtype: torch.dtype, gated: bool = True, seed: int = 0) -> list[Tensor | None]:
    """gate, up and down, as the operators take them."""
    layer = make_layer(WIDTH, NEURONS, dtype, density=0.4, seed=seed)
    return [layer.gate, layer.up if gated else None, layer.down]


def inputs(dtype: torch.dtype, *rows: int, seed: int = 0) -> Tensor:
    return make_layer(WIDTH, NEURONS, dtype, density=0.4).inputs(*rows, seed=seed)


SOME: list[tuple[str, ...]] = [
    (), ("gate_bias",), ("up_bias",), ("down_bias",), ("norm_epsilon",),
    ("norm_weight", "norm_epsilon"), (*VECTORS, "norm_epsilon"),
]  # fmt: skip
