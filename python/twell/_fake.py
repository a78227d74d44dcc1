"""Shapes and dtypes of the operators' results without data, for torch.compile and meta tensors.

The checks and their messages are those of the operators, so that a mistake is named alike where it
is found while tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PANEL = 16
# What the operators of a device take; a meta tensor stands for either.
_DTYPES = {
    "cpu": (torch.bfloat16, torch.float32),
    "cuda": (torch.bfloat16, torch.float16),
    "meta": (torch.bfloat16, torch.float16, torch.float32),
}
_EXPECTED = {
    "cpu": "bfloat16 or float32",
    "cuda": "bfloat16 or float16 on a GPU",
    "meta": "bfloat16, float16 or float32",
}


def _check(condition: Any, operation: str, argument: str, message: str) -> None:
    torch._check(condition, lambda: f"twell::{operation}: {argument}: {message}")


def _dtype(operation: str, argument: str, dtype: torch.dtype, like: Tensor) -> torch.dtype:
    device = like.device.type if like.device.type in _DTYPES else "cpu"
    _check(
        dtype in _DTYPES[device],
        operation,
        argument,
        f"expected dtype {_EXPECTED[device]}, got {dtype}",
    )
    return dtype


def _same_device(operation: str, argument: str, tensor: Tensor, like: Tensor) -> None:
    have, want = tensor.device, like.device
    kind = "CUDA" if want.type == "cuda" else "CPU" if want.type == "cpu" else want.type
    _check(
        have.type == want.type,
        operation,
        argument,
        f"expected a {kind} tensor, as the other arguments are; move it with .{want.type}()",
    )
    _check(
        have == want,
        operation,
        argument,
        f"expected a tensor on {want} as the first argument is, got {have}",
    )


def _same_dtype(operation: str, argument: str, tensor: Tensor, like: Tensor) -> None:
    _same_device(operation, argument, tensor, like)
    _dtype(operation, argument, tensor.dtype, tensor)
    _check(
        tensor.dtype == like.dtype,
        operation,
        argument,
        f"expected the dtype of the other arguments, {like.dtype}, got {tensor.dtype}",
    )


def _matrix(operation: str, argument: str, tensor: Tensor) -> tuple[Any, Any]:
    _dtype(operation, argument, tensor.dtype, tensor)
    _check(
        tensor.dim() == 2,
        operation,
        argument,
        f"expected a matrix [rows, columns], got shape {list(tensor.shape)}",
    )
    return tensor.shape[0], tensor.shape[1]


def _weight(operation: str, argument: str, tensor: Tensor, x: Tensor, rows: Any = None) -> Any:
    _same_dtype(operation, argument, tensor, x)
    have_rows, have_cols = _matrix(operation, argument, tensor)
    cols = x.shape[-1]
    expected = f"expected shape [{'*' if rows is None else rows}, {cols}], got {list(tensor.shape)}"
    _check(have_cols == cols, operation, argument, expected)
    if rows is not None:
        _check(have_rows == rows, operation, argument, expected)
    return have_rows


def _packed_shape(dtype: torch.dtype, rows: Any, cols: Any) -> list[Any]:
    panels = (rows + _PANEL - 1) // _PANEL
    if dtype == torch.float32:
        return [panels, cols, _PANEL]
    return [panels, (cols + 31) // 32 * 16, _PANEL, 2]


def _packed(
    operation: str, argument: str, tensor: Tensor, like: Tensor, rows: Any, cols: Any
) -> None:
    _same_dtype(operation, argument, tensor, like)
    shape = _packed_shape(like.dtype, rows, cols)
    message = (
        f"expected shape {shape}, as pack_weight makes of [{rows}, {cols}], "
        f"got {list(tensor.shape)}"
    )
    _check(tensor.dim() == len(shape), operation, argument, message)
    for have, want in zip(tensor.shape, shape):
        _check(have == want, operation, argument, message)


def _rows(operation: str, x: Tensor) -> None:
    _dtype(operation, "x", x.dtype, x)
    _check(x.dim() >= 1, operation, "x", "expected shape [..., columns], got a scalar")


def _slots(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.float32 else torch.int32


def _triple(
    like: Tensor, rows: Any, cols: Any, tile: int, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    tiles = (cols + tile - 1) // tile
    if like.device.type != "cuda":
        records = torch.library.get_ctx().new_dynamic_size()
    else:  # a place for each, since none waits for the GPU to count them
        records = rows * tiles if capacity < tile else 0
    slots = _slots(like.dtype)
    return (
        like.new_empty((rows, tiles), dtype=torch.int32),
        like.new_empty((rows, tiles, capacity), dtype=slots),
        like.new_empty((records, tile), dtype=slots),
    )


def _pack_weight(weight: Tensor) -> Tensor:
    rows, cols = _matrix("pack_weight", "weight", weight)
    return weight.new_empty(_packed_shape(weight.dtype, rows, cols))


def _unpack_weight(packed: Tensor, rows: Any, cols: Any) -> Tensor:
    _packed("unpack_weight", "packed", packed, packed, rows, cols)
    return packed.new_empty((rows, cols))


def _linear(x, weight_packed, rows, bias=None):
    _rows("linear", x)
    _packed("linear", "weight_packed", weight_packed, x, rows, x.shape[-1])
    if bias is not None:
        _same_dtype("linear", "bias", bias, x)
        expected = f"expected shape [{rows}], got {list(bias.shape)}"
        _check(bias.dim() == 1, "linear", "bias", expected)
        _check(bias.shape[0] == rows, "linear", "bias", expected)
    return x.new_empty((*x.shape[:-1], rows))


def _linear_as_stored(x: Tensor, weight: Tensor) -> Tensor:
    _rows("linear_as_stored", x)
    rows = _weight("linear_as_stored", "weight", weight, x)
    return x.new_empty((*x.shape[:-1], rows))


def _gated(operation: str, x: Tensor, gate_packed: Tensor, up: Tensor, down: Tensor) -> Any:
    _rows(operation, x)
    neurons = _weight(operation, "up", up, x)
    _weight(operation, "down", down, x, neurons)
    _packed(operation, "gate_packed", gate_packed, x, neurons, x.shape[-1])
    return neurons


def _plain(operation: str, x: Tensor, up_packed: Tensor, down: Tensor) -> Any:
    _rows(operation, x)
    neurons = _weight(operation, "down", down, x)
    _packed(operation, "up_packed", up_packed, x, neurons, x.shape[-1])
    return neurons


def _with_stats(x: Tensor, neurons: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        x.new_empty(x.shape[:-1], dtype=torch.int32),
        x.new_empty((neurons,), dtype=torch.int64),
    )


def _gated_ffn(x, gate_packed, up, down, activation="relu", threshold=0.0):
    _gated("gated_ffn", x, gate_packed, up, down)
    return x.new_empty(x.shape)


def _gated_ffn_stats(x, gate_packed, up, down, activation="relu", threshold=0.0):
    return _with_stats(x, _gated("gated_ffn_stats", x, gate_packed, up, down))


def _ffn(x, up_packed, down, activation="relu", threshold=0.0):
    _plain("ffn", x, up_packed, down)
    return x.new_empty(x.shape)


def _ffn_stats(x, up_packed, down, activation="relu", threshold=0.0):
    return _with_stats(x, _plain("ffn_stats", x, up_packed, down))


def _screen_bytes(rows: Any, cols: Any) -> Any:
    panels = (rows + _PANEL - 1) // _PANEL
    depth = (cols + 63) // 64 * 64
    panel = _PANEL * (depth + 4 * ((cols + 255) // 256))
    return panels * panel + 4 * (4 * panels * _PANEL + depth)


def _screen_weight(weight, axis=None):
    rows, cols = _matrix("screen_weight", "weight", weight)
    if axis is not None:
        expected = f"expected f32 [{cols}], got {list(axis.shape)}"
        _check(axis.dtype == torch.float32, "screen_weight", "axis", f"{expected} {axis.dtype}")
        _check(axis.dim() == 1, "screen_weight", "axis", expected)
        _check(axis.shape[0] == cols, "screen_weight", "axis", expected)
    return weight.new_empty((_screen_bytes(rows, cols),), dtype=torch.uint8)


def _screened(
    operation: str, x: Tensor, gate: Tensor, screen: Tensor, up: Tensor | None, down: Tensor
) -> Any:
    _rows(operation, x)
    neurons = _weight(operation, "gate", gate, x)
    size = _screen_bytes(neurons, x.shape[-1])
    expected = f"expected uint8 [{size}], as screen_weight makes, got {list(screen.shape)}"
    _check(screen.dtype == torch.uint8, operation, "screen", expected)
    _check(screen.dim() == 1, operation, "screen", expected)
    _check(screen.shape[0] == size, operation, "screen", expected)
    if up is not None:
        _weight(operation, "up", up, x, neurons)
    _weight(operation, "down", down, x, neurons)
    return neurons


def _screened_ffn(x, gate, screen, up, down, activation="relu", threshold=0.0):
    _screened("screened_ffn", x, gate, screen, up, down)
    return x.new_empty(x.shape)


def _screened_ffn_stats(x, gate, screen, up, down, activation="relu", threshold=0.0):
    neurons = _screened("screened_ffn_stats", x, gate, screen, up, down)
    return (*_with_stats(x, neurons), x.new_empty((), dtype=torch.int64))


def _gemm_relu_twell(
    x, weight_packed, rows, activation="relu", threshold=0.0, tile=256, capacity=32
):
    tokens, cols = _matrix("gemm_relu_twell", "x", x)
    _packed("gemm_relu_twell", "weight_packed", weight_packed, x, rows, cols)
    return _triple(x, tokens, rows, tile, capacity)


def _dense_to_twell(dense, tile=256, capacity=32):
    rows, cols = _matrix("dense_to_twell", "dense", dense)
    return _triple(dense, rows, cols, tile, capacity)


def _twell_to_dense(counts, slots, overflow, cols, dtype):
    _dtype("twell_to_dense", "dtype", dtype, counts)
    return counts.new_empty((counts.shape[0], cols), dtype=dtype)


def _twell_gated_ffn(x, counts, slots, overflow, up, down):
    _matrix("twell_gated_ffn", "x", x)
    neurons = _weight("twell_gated_ffn", "up", up, x)
    _weight("twell_gated_ffn", "down", down, x, neurons)
    return x.new_empty(x.shape)


def _twell_spmm(counts, slots, overflow, down):
    _, cols = _matrix("twell_spmm", "down", down)
    return down.new_empty((counts.shape[0], cols))


def register() -> None:
    """Registers all of them; once, after the library is loaded."""
    functions: dict[str, Callable[..., Any]] = {
        "pack_weight": _pack_weight,
        "unpack_weight": _unpack_weight,
        "linear": _linear,
        "linear_as_stored": _linear_as_stored,
        "gated_ffn": _gated_ffn,
        "gated_ffn_stats": _gated_ffn_stats,
        "ffn": _ffn,
        "ffn_stats": _ffn_stats,
        "screen_weight": _screen_weight,
        "screened_ffn": _screened_ffn,
        "screened_ffn_stats": _screened_ffn_stats,
        "gemm_relu_twell": _gemm_relu_twell,
        "dense_to_twell": _dense_to_twell,
        "twell_to_dense": _twell_to_dense,
        "twell_gated_ffn": _twell_gated_ffn,
        "twell_spmm": _twell_spmm,
    }
    for name, function in functions.items():
        torch.library.register_fake(f"twell::{name}", function)
