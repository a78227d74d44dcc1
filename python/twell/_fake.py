"""Shapes and dtypes of the operators' results without data, for torch.compile and meta tensors.

Nothing is checked here: a mistake is named by the operator when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twell.dense import tokens_of
from twell.form import VECTORS

_PANEL = 16


class CodeType(NamedTuple):
    """WeightTraits of codes (twell/weight.h), by the dtype that holds them."""

    bits: int
    row_32: int
    unit: int
    head: int

    def cols(self, width: Any) -> Any:
        """Numbers of a row of so many bytes."""
        return width * 32 // self.row_32

    def width(self, cols: Any) -> Any:
        """The inverse."""
        return cols * self.row_32 // 32


CODE_TYPES = {
    torch.int8: CodeType(bits=8, row_32=32, unit=64, head=4),
    torch.uint8: CodeType(bits=4, row_32=17, unit=32, head=8),  # int4
}


# [rows, n, 1] of pack_weight: packed_extent() and packed_cols() in twell/packed.h.
def _packed_shape(dtype: torch.dtype, rows: Any, cols: Any) -> list[Any]:
    there, padded, unit = _packed_rows(dtype, rows)
    depth = row = (cols + unit - 1) // unit * unit
    if codes := CODE_TYPES.get(dtype):
        row = depth * codes.bits // 8 + codes.head * ((cols + 255) // 256) + 4
    return [rows, (padded * row + there - 1) // there + depth - cols, 1]


def _unpacked_shape(packed: Tensor) -> list[Any]:
    rows, n = packed.shape[:2]
    there, padded, unit = _packed_rows(packed.dtype, rows)
    if codes := CODE_TYPES.get(packed.dtype):
        block = 32 * codes.bits + codes.head  # bytes of 256 columns
        depth = ((n * there // padded - 4) // block * 256 + 256) // unit * unit
        while depth > 0 and _packed_shape(packed.dtype, rows, depth)[1] > n:
            depth -= unit
    else:
        depth = n * there // (padded * unit) * unit
    return [rows, depth - n + _packed_shape(packed.dtype, rows, depth)[1]]


def _packed_rows(dtype: torch.dtype, rows: Any) -> tuple[Any, Any, int]:
    there = torch.sym_max(rows, 1)
    padded = (there + _PANEL - 1) // _PANEL * _PANEL
    codes = CODE_TYPES.get(dtype)
    return there, padded, codes.unit if codes else 1 if dtype == torch.float32 else 32


def coded_extent(rows: int, cols: int, by: str) -> int:
    """Rows of a matrix of codes and scales: twell/coded_matrix.h."""
    scales = rows if by == "row" else cols
    return rows + (4 * scales + cols - 1 + (0 if cols % 4 == 0 else 3)) // cols


def coded_scales_at(rows: int, cols: int) -> int:
    """Where its scales begin, in bytes."""
    return (rows * cols + 3) // 4 * 4


def rows_of(weight: Tensor) -> Any:
    """Neurons of a weight that has a scale for each, if any."""
    extent, cols = weight.shape[:2]
    if weight.dtype not in CODE_TYPES or weight.dim() != 2:
        return extent
    rows = extent * cols // (cols + 4)
    while coded_extent(rows, cols, "row") > extent:
        rows -= 1
    return rows


def _triple(like: Tensor, rows: Any, cols: Any, tile: int, capacity: int) -> tuple[Tensor, ...]:
    tiles = (cols + tile - 1) // tile
    records: Any
    if like.device.type != "cuda":
        records = torch.library.get_ctx().new_dynamic_size()
    else:  # a place for each, since none waits for the GPU to count them
        records = rows * tiles if capacity < tile else 0
    slots = torch.int64 if like.dtype == torch.float32 else torch.int32
    return (
        like.new_empty((rows, tiles), dtype=torch.int32),
        like.new_empty((rows, tiles, capacity), dtype=slots),
        like.new_empty((records, tile), dtype=slots),
    )


def _screen_bytes(rows: Any, cols: Any, device: str) -> Any:
    if device != "cpu":  # cuda/ops/screen.cc
        groups, steps, runs = (rows + 31) // 32, (cols + 63) // 64, (cols + 255) // 256
        parts = (groups * steps * 2048, groups * runs * 128, groups * 384, runs * 512)
        return sum((part + 255) // 256 * 256 for part in parts)
    panels = (rows + _PANEL - 1) // _PANEL
    depth = (cols + 63) // 64 * 64
    panel = _PANEL * (depth + 4 * ((cols + 255) // 256))
    return panels * panel + 4 * (4 * panels * _PANEL + depth)


def _rows(x: Tensor, cols: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], cols))


# Of a layer's operators: weights are gate, up, down and vectors.


def _examine_layer(x: Tensor, weights: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    mean = x.new_empty(x.shape[-1:], dtype=torch.float32)
    fired = x.new_empty((rows_of(weights[0]),), dtype=torch.int64)
    return mean, fired, x.new_empty((2,), dtype=torch.float64)


def _make_block(weights: list[Tensor], *_: Any, **__: Any) -> Tensor:
    return weights[0].new_empty(0, dtype=torch.uint8)  # nothing asks for the size of one that is not there


def _ffn_stats(x: Tensor, weights: list[Any], *_: Any) -> tuple[Tensor, ...]:
    return (
        _rows(x, weights[2].shape[1]),
        x.new_empty(x.shape[:-1], dtype=torch.int32),
        x.new_empty((weights[0].shape[0],), dtype=torch.int64),
        x.new_empty((), dtype=torch.int64),
    )


# Elements of 2 bytes that ffn_train keeps on a GPU: most_kept_bytes() in twell/cuda_train.h.
def _kept_elements(rows: Any, hidden: Any, hot: int) -> Any:
    row_bytes = (
        4 * ((hot + 7) // 8 * 8) + 16 * ((hidden + 127) // 128) + 8 + 4 * ((hidden + 31) // 32)
    )
    return (rows * row_bytes + 2048) // 2


def _ffn_train(
    x: Tensor, weights: list[Any], screen: Tensor | None = None, form: str = "relu", hot: int = 0
) -> tuple[Tensor, ...]:
    gate, up, down = weights[:3]
    rows, neurons = tokens_of(x), gate.shape[0]
    sizes: tuple[tuple[Any, ...], ...]
    if x.device.type == "cpu":
        sizes = (rows + 1,), (rows * neurons,), (1 if up is None else 2, rows * neurons)
    else:
        sizes = (0,), (0,), (_kept_elements(rows, neurons, hot),)
    return (
        _rows(x, down.shape[1]),
        x.new_empty((), dtype=torch.float32),
        x.new_empty(x.shape[:-1], dtype=torch.int32),
        x.new_empty((neurons,), dtype=torch.int64),
        x.new_empty(sizes[0], dtype=torch.int64),
        x.new_empty(sizes[1], dtype=torch.int32),
        x.new_empty(sizes[2]),
    )


def _ffn_train_backward(dy: Tensor, x: Tensor, weights: list[Any], *_: Any) -> tuple[Tensor, ...]:
    def like(tensor: Tensor | None) -> Tensor:
        return x.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

    left_out = [None] * (3 + len(VECTORS) - len(weights))
    return _rows(x, weights[0].shape[1]), *map(like, [*weights, *left_out])


def _pack_weight(weight: Tensor) -> Tensor:
    codes = CODE_TYPES.get(weight.dtype)
    cols = codes.cols(weight.shape[1]) if codes else weight.shape[1]
    return weight.new_empty(_packed_shape(weight.dtype, rows_of(weight), cols))


def _unpack_weight(packed: Tensor) -> Tensor:
    rows, cols = _unpacked_shape(packed)
    if codes := CODE_TYPES.get(packed.dtype):
        cols = codes.width(cols)
        rows = coded_extent(rows, cols, "row")
    return packed.new_empty([rows, cols])


def _screen_weight(weight: Tensor, axis: Tensor | None = None) -> Tensor:
    size = _screen_bytes(weight.shape[0], weight.shape[1], weight.device.type)
    return weight.new_empty((size,), dtype=torch.uint8)


def _gemm_relu_twell(
    x: Tensor,
    weight_packed: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
    tile: int = 256,
    capacity: int = 32,
) -> tuple[Tensor, ...]:
    return _triple(x, x.shape[0], weight_packed.shape[0], tile, capacity)


def _dense_to_twell(dense: Tensor, tile: int = 256, capacity: int = 32) -> tuple[Tensor, ...]:
    return _triple(dense, dense.shape[0], dense.shape[1], tile, capacity)


def _twell_to_dense(
    counts: Tensor, slots: Tensor, overflow: Tensor, cols: Any, dtype: torch.dtype
) -> Tensor:
    return counts.new_empty((counts.shape[0], cols), dtype=dtype)


def _twell_spmm(counts: Tensor, slots: Tensor, overflow: Tensor, down: Tensor) -> Tensor:
    return down.new_empty((counts.shape[0], down.shape[1]))


# Columns of results that have x's rows, by operator and its operands.
_COLUMNS: dict[str, Callable[..., Any]] = {
    "ffn": lambda x, weights, *_: weights[2].shape[1],
    "run_layer": lambda x, block, layer, columns: columns,
    "layer_gradient": lambda dy, x, block: x.shape[-1],
    "ffn_train_backward_add": lambda dy, x, weights, *_: weights[0].shape[1],
    "linear": lambda x, weight_packed, *_: weight_packed.shape[0],
    "round_inputs": lambda x: x.shape[-1],
    "twell_gated_ffn": lambda x, counts, slots, overflow, up, down: down.shape[1],
}


def _linear_as_stored(x: Tensor, weight: Tensor, float_sums: bool = False) -> Tensor:
    y = _rows(x, rows_of(weight))
    return y.float() if float_sums else y


def _with_rows(columns: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda x, *rest: _rows(x, columns(x, *rest))


def register() -> None:
    """Registers all of them; once, after the library is loaded."""
    made: dict[str, Callable[..., Any]] = {name: _with_rows(columns) for name, columns in _COLUMNS.items()}
    for function in (
        _ffn_stats,
        _examine_layer,
        _make_block,
        _ffn_train,
        _ffn_train_backward,
        _pack_weight,
        _unpack_weight,
        _screen_weight,
        _gemm_relu_twell,
        _dense_to_twell,
        _twell_to_dense,
        _twell_spmm,
        _linear_as_stored,
    ):
        made[function.__name__.removeprefix("_")] = function
    for name, fake in made.items():
        torch.library.register_fake(f"twell::{name}", fake)
