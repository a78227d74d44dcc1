"""A wrong argument is a RuntimeError that names operation and argument, eager or tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from conftest import make_layer
from torch._subclasses.fake_tensor import FakeTensorMode

LAYER = make_layer(24, 40)
PACKED = twell.ops.pack_weight(LAYER.gate)
X = LAYER.inputs(5)
OK: dict[str, Any] = {"x": X, "gate_packed": PACKED, "up": LAYER.up, "down": LAYER.down}

# What is wrong, and what the message must hold. Tracing knows neither strides' cost nor addresses
# nor the activation's name: those are found when the call runs.
SHAPE_ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "x is a scalar": ({"x": torch.tensor(1.0)}, "gated_ffn: x: expected shape .*got a scalar"),
    "x is double": ({"x": X.double()}, "gated_ffn: x: expected dtype bfloat16 or float32, got"),
    "x is half": ({"x": X.half()}, "gated_ffn: x: expected dtype"),
    "x is narrower": (
        {"x": X[:, :23]},
        r"gated_ffn: up: expected shape \[\*, 23\], got \[40, 24\]",
    ),
    "up is bf16": ({"up": LAYER.up.bfloat16()}, "gated_ffn: up: expected the dtype of the other"),
    "up is a vector": ({"up": LAYER.up[0]}, "gated_ffn: up: expected a matrix"),
    "down is not neuron-major": (
        {"down": LAYER.down.t().contiguous()},
        r"gated_ffn: down: expected shape \[40, 24\], got \[24, 40\]",
    ),
    "down has a neuron less": ({"down": LAYER.down[1:]}, "gated_ffn: down: expected shape"),
    "gate is not packed": (
        {"gate_packed": LAYER.gate},
        r"gated_ffn: gate_packed: expected shape \[3, 24, 16\], as pack_weight makes",
    ),
    "gate is bf16": (
        {"gate_packed": twell.ops.pack_weight(LAYER.gate.bfloat16())},
        "gated_ffn: gate_packed: expected the dtype",
    ),
    "gate of fewer neurons": (
        {"gate_packed": twell.ops.pack_weight(LAYER.gate[:30])},
        "gated_ffn: gate_packed: expected shape",
    ),
}
VALUE_ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown activation": (
        {"activation": "silu"},
        "activation: expected relu, relu_squared or fat",
    ),
    "negative threshold": (
        {"activation": "fat_relu", "threshold": -1.0},
        "threshold: expected 0 or more, got -1",
    ),
    "NaN threshold": ({"activation": "fat_relu", "threshold": float("nan")}, "threshold"),
    "infinite threshold": ({"activation": "fat_relu", "threshold": float("inf")}, "threshold"),
    "threshold without use": ({"threshold": 0.5}, "threshold: expected 0, since relu has none"),
    "up is transposed": (
        {"up": LAYER.up.t().contiguous().t()},
        r"up: expected rows of adjacent elements.*strides \[1, 40\]; call .contiguous",
    ),
    "down is expanded": (
        {"down": LAYER.down[:1].expand(40, 24)},
        "down: expected rows of adjacent",
    ),
    "gate is misaligned": (
        {"gate_packed": torch.zeros(PACKED.numel() + 1)[1:].view(PACKED.shape)},
        "gate_packed: expected contiguous memory aligned to 64 bytes.*clone",
    ),
    "gate is strided": (
        {"gate_packed": torch.stack([PACKED, PACKED], -1)[..., 0]},
        "gate_packed: expected contiguous",
    ),
}


@pytest.mark.parametrize("case", [*SHAPE_ERRORS, *VALUE_ERRORS])
def test_eager(case: str) -> None:
    changed, message = {**SHAPE_ERRORS, **VALUE_ERRORS}[case]
    with pytest.raises(RuntimeError, match=message):
        torch.ops.twell.gated_ffn(**{**OK, **changed})


@pytest.mark.parametrize("case", SHAPE_ERRORS)
def test_traced(case: str) -> None:
    changed, message = SHAPE_ERRORS[case]
    with FakeTensorMode() as mode:
        arguments = {
            name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in {**OK, **changed}.items()
        }
        with pytest.raises(RuntimeError, match=message):
            torch.ops.twell.gated_ffn(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: twell.ops.pack_weight(LAYER.gate[0]), "pack_weight: weight: expected a matrix"),
        (lambda: twell.ops.pack_weight(LAYER.gate.t()), "pack_weight: weight: expected rows of"),
        (lambda: twell.ops.pack_weight(LAYER.gate.int()), "pack_weight: weight: expected dtype"),
        (lambda: twell.ops.unpack_weight(PACKED, 40, 25), "unpack_weight: packed: expected shape"),
        (
            lambda: twell.ops.unpack_weight(PACKED, -1, 24),
            "unpack_weight: rows: expected 0 or more",
        ),
        (lambda: twell.ops.ffn(X, PACKED, LAYER.down[:7]), "ffn: up_packed: expected shape"),
        (lambda: twell.ops.screen_weight(LAYER.gate[:0]), "screen_weight: weight: expected at least"),
        (lambda: twell.ops.screen_weight(LAYER.gate, X[0, :3]), "screen_weight: axis: expected f32"),
        (
            lambda: twell.ops.screened_ffn(
                X, LAYER.gate[:0], torch.empty(256, dtype=torch.uint8), None, LAYER.down[:0]
            ),
            "screened_ffn: gate: expected at least one",
        ),
        (
            lambda: twell.ops.screened_ffn(X, LAYER.gate, PACKED, LAYER.up, LAYER.down),
            "screened_ffn: screen: expected uint8",
        ),
        (
            lambda: twell.ops.screened_ffn(
                X, LAYER.gate, twell.ops.screen_weight(LAYER.gate), LAYER.up[:7], LAYER.down
            ),
            "screened_ffn: up: expected",
        ),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, 0), "gemm_relu_twell: rows: expected 1"),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, 40, tile=0), "tile: expected 1 to 65536"),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, 40, tile=17), "tile"),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, 40, capacity=300), "capacity"),
        (lambda: twell.ops.gemm_relu_twell(X[0], PACKED, 40), "x: expected a matrix"),
        (lambda: twell.ops.dense_to_twell(LAYER.up, tile=1 << 40), "tile: expected 1 to 65536"),
        (
            lambda: twell.ops.twell_to_dense(*twell.ops.dense_to_twell(LAYER.up), 24, torch.half),
            "twell_to_dense: dtype: expected dtype bfloat16 or float32",
        ),
        (
            lambda: twell.ops.twell_to_dense(
                *twell.ops.dense_to_twell(LAYER.up), 24, torch.bfloat16
            ),
            "twell_to_dense: slots: expected a contiguous CPU tensor",
        ),
        (
            lambda: twell.ops.twell_gated_ffn(
                X[:3], *twell.ops.dense_to_twell(torch.ones(5, 40)), LAYER.up, LAYER.down
            ),
            "twell_gated_ffn: counts: expected the 3 rows of x",
        ),
    ],
)
def test_other_operators(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


def test_an_error_leaves_the_operator_usable() -> None:
    before = torch.ops.twell.gated_ffn(**OK)
    with pytest.raises(RuntimeError):
        torch.ops.twell.gated_ffn(**{**OK, "activation": "gelu"})
    assert torch.equal(torch.ops.twell.gated_ffn(**OK), before)
