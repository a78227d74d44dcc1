"""A wrong argument is a RuntimeError that names operation and argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from layers import make_layer, python

LAYER = make_layer(24, 40)
PACKED = twell.ops.pack_weight(LAYER.gate)
X = LAYER.inputs(5)
SCREEN = twell.ops.screen_weight(LAYER.gate)
OK: dict[str, Any] = {"x": X, "gate": PACKED, "up": LAYER.up, "down": LAYER.down}

# What is wrong, and what the message must hold.
ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "x is a scalar": ({"x": torch.tensor(1.0)}, "x: expected shape .*got a scalar"),
    "x is double": ({"x": X.double()}, "x: expected dtype bfloat16 or float32, got"),
    "x is half": ({"x": X.half()}, "x: expected dtype"),
    "x is narrower": (
        {"x": X[:, :23]},
        r"x: expected f32 \[5, 24\], got f32 \[5, 23\]",
    ),
    "up is bf16": (
        {"up": LAYER.up.bfloat16()},
        r"up: expected f32 \[40, 24\], got bf16 \[40, 24\]",
    ),
    "up is a vector": ({"up": LAYER.up[0]}, "up: expected a matrix"),
    "down has a neuron less": (
        {"down": LAYER.down[1:]},
        r"down: expected f32 \[40, 24\], got f32 \[39, 24\]",
    ),
    "down is not neuron-major": (
        {"down": LAYER.down.t().contiguous()},
        r"down: expected f32 \[40, 40\], got f32 \[24, 40\]",
    ),
    "gate is not packed": (
        {"gate": LAYER.gate},
        r"gate: expected what pack_weight makes, got shape \[40, 24\]",
    ),
    "gate is bf16": (
        {"gate": twell.ops.pack_weight(LAYER.gate.bfloat16())},
        r"x: expected bf16 \[5, 24\], got f32 \[5, 24\]",
    ),
    "gate of fewer neurons": (
        {"gate": twell.ops.pack_weight(LAYER.gate[:30])},
        r"up: expected f32 \[30, 24\], got f32 \[40, 24\]",
    ),
    "screen of a packed gate": (
        {"screen": SCREEN},
        "screen: expected none of a packed gate",
    ),
    "up is packed": ({"up": PACKED}, "up: expected a weight as stored, got a packed one"),
    "screen is none": (
        {"gate": LAYER.gate, "screen": X},
        "screen: expected uint8",
    ),
    "screen of another gate": (
        {"gate": LAYER.gate, "screen": twell.ops.screen_weight(LAYER.gate[:8])},
        "screen: expected uint8",
    ),
    "up beside a screen": (
        {"gate": LAYER.gate, "screen": SCREEN, "up": LAYER.up[:7]},
        r"up: expected f32 \[40, 24\], got f32 \[7, 24\]",
    ),
    "no neurons": (
        {
            "gate": LAYER.gate[:0],
            "screen": torch.empty(256, dtype=torch.uint8),
            "up": None,
            "down": LAYER.down[:0],
        },
        "gate: expected at least one",
    ),
    "unknown activation": (
        {"activation": "silu"},
        "activation: expected one of relu, relu_squared, fat_relu",
    ),
    "negative threshold": (
        {"activation": "fat_relu", "threshold": -1.0},
        "threshold: expected 0 or more, got -1",
    ),
    "NaN threshold": ({"activation": "fat_relu", "threshold": float("nan")}, "threshold"),
    "infinite threshold": ({"activation": "fat_relu", "threshold": float("inf")}, "threshold"),
    "hot below none": ({"hot": -1}, "hot: expected 0 to 40, got -1"),
    "hot above all": ({"hot": 41}, "hot: expected 0 to 40, got 41"),
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
        {
            "gate": torch.frombuffer(
                bytearray(4 * PACKED.numel() + 2), dtype=torch.float32, offset=2
            ).view(PACKED.shape)
        },
        "gate: expected contiguous memory at a multiple of 4 bytes.*clone",
    ),
    "gate is strided": (
        {"gate": torch.stack([PACKED, PACKED], -1)[..., 0]},
        "gate: expected contiguous",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.parametrize("name", ["ffn", "ffn_stats"])
def test_ffn(name: str, case: str) -> None:
    changed, message = ERRORS[case]
    # What libtwell finds is of its one function.
    with pytest.raises(RuntimeError, match=f"twell::(ffn|{name}): {message}"):
        getattr(twell.ops, name)(**{**OK, **changed})


def test_a_mistake_in_a_traced_call_is_named_when_it_runs() -> None:
    up = LAYER.up.bfloat16()
    call = torch.compile(
        lambda x: torch.ops.twell.ffn(x, [PACKED, up, LAYER.down]), backend="aot_eager"
    )
    with pytest.raises(RuntimeError, match="ffn: up: expected f32"):
        call(X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: twell.ops.pack_weight(LAYER.gate[0]), "pack_weight: weight: expected a matrix"),
        (lambda: twell.ops.pack_weight(LAYER.gate.t()), "pack_weight: weight: expected rows of"),
        (lambda: twell.ops.pack_weight(LAYER.gate.int()), "pack_weight: weight: expected dtype"),
        (lambda: twell.ops.unpack_weight(LAYER.gate), "unpack_weight: packed: expected what"),
        (lambda: twell.ops.unpack_weight(PACKED[:, :, [0, 0]]), "packed: expected a matrix or what"),
        (lambda: twell.ops.screen_weight(LAYER.gate[:0]), "make_screen: w: expected at least"),
        (lambda: twell.ops.screen_weight(LAYER.gate, X[0, :3]), "screen_weight: axis: expected f32"),
        (lambda: twell.ops.gemm_relu_twell(X, X), "gemm_relu_twell: weight_packed: expected what"),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, tile=0), "tile: expected 1 to 65536"),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, tile=17), "tile"),
        (lambda: twell.ops.gemm_relu_twell(X, PACKED, capacity=300), "capacity"),
        (lambda: twell.ops.gemm_relu_twell(X[0], PACKED), "x: expected a matrix"),
        (lambda: twell.ops.dense_to_twell(LAYER.up, tile=1 << 40), "tile: expected 1 to 65536"),
        (
            lambda: twell.ops.twell_to_dense(*twell.ops.dense_to_twell(LAYER.up), 24, torch.half),
            "twell_to_dense: dtype: expected dtype bfloat16 or float32",
        ),
        (
            lambda: twell.ops.twell_to_dense(
                *twell.ops.dense_to_twell(LAYER.up), 24, torch.bfloat16
            ),
            "twell_to_dense: slots: expected a contiguous tensor",
        ),
        (
            lambda: twell.ops.twell_gated_ffn(
                X[:3], *twell.ops.dense_to_twell(torch.ones(5, 40)), LAYER.up, LAYER.down
            ),
            r"twell_gated_ffn: x: expected f32 \[5, 24\], got f32 \[3, 24\]",
        ),
    ],
)
def test_other_operators(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


def test_an_error_leaves_the_operator_usable() -> None:
    before = twell.ops.ffn(**OK)
    with pytest.raises(RuntimeError):
        twell.ops.ffn(**{**OK, "activation": "gelu"})
    assert torch.equal(twell.ops.ffn(**OK), before)


@pytest.mark.parametrize("package", ["transformers", "safetensors", "lm_eval"])
def test_a_missing_package_is_named(package: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama_sparse_relu"}')
    (tmp_path / "model.safetensors").touch()
    use = {"lm_eval": "import twell.lm_eval"}.get(package, "twell.hf.from_pretrained(sys.argv[1])")
    run = python(
        "import sys, runpy, twell\n"
        f"sys.modules['{package}'] = None\n"
        f"sys.argv.append({str(tmp_path)!r})\n{use}"
    )
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode != 0 and f"needs {package}: pip install {package} (" in last, run.stderr
    if package == "lm_eval":
        run = python(
            "import sys, runpy, twell\nsys.modules['lm_eval'] = None\n"
            "runpy.run_module('twell.lm_eval', run_name='__main__')"
        )
        assert run.returncode == 1 and run.stderr.count("\n") == 1, run.stderr
