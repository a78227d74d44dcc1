"""Shapes and dtypes of the operators' results without data, for torch.compile and meta tensors.

Nothing is checked here: a mistake is named by the operator when it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PANEL = 16


def _packed_shape(dtype: torch.dtype, rows: Any, cols: Any) -> list[Any]:
    panels = (rows + _PANEL - 1) // _PANEL
    if dtype == torch.float32:
        return [panels, cols, _PANEL]
    return [panels, (cols + 31) // 32 * 16, _PANEL, 2]


def _triple(like: Tensor, rows: Any, cols: Any, tile: int, capacity: int) -> tuple[Tensor, ...]:
    tiles = (cols + tile - 1) // tile
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


def _ffn(x, gate, up, down, screen=None, activation="relu", threshold=0.0, hot=0):
    return _rows(x, down.shape[1])


def _ffn_stats(x, gate, up, down, screen=None, activation="relu", threshold=0.0, hot=0):
    return (
        _rows(x, down.shape[1]),
        x.new_empty(x.shape[:-1], dtype=torch.int32),
        x.new_empty((down.shape[0],), dtype=torch.int64),
        x.new_empty((), dtype=torch.int64),
    )


# Elements of 2 bytes that ffn_train keeps on a GPU: most_kept_bytes() in twell/cuda_train.h.
def _kept_elements(rows, hidden, hot):
    row_bytes = (
        4 * ((hot + 7) // 8 * 8) + 16 * ((hidden + 127) // 128) + 8 + 4 * ((hidden + 31) // 32)
    )
    return (rows * row_bytes + 2048) // 2


def _ffn_train(x, gate, up, down, screen=None, activation="relu", threshold=0.0, hot=0):
    rows, neurons = x.shape[:-1].numel(), gate.shape[0]
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


def _ffn_train_backward(
    dy, x, gate, up, down, offsets, neurons, values, l1_grad, activation="relu", threshold=0.0,
    hot=0,
):  # fmt: skip
    def like(weight):
        return weight.new_empty(weight.shape)

    return _rows(x, gate.shape[1]), like(gate), x.new_empty(0) if up is None else like(up), like(down)


def _ffn_train_backward_add(
    dy, x, gate, up, down, offsets, neurons, values, l1_grad, dgate, dup, ddown,
    activation="relu", threshold=0.0, hot=0,
):  # fmt: skip
    return _rows(x, gate.shape[1])


def _pack_weight(weight):
    return weight.new_empty(_packed_shape(weight.dtype, *weight.shape))


def _unpack_weight(packed, rows, cols):
    return packed.new_empty((rows, cols))


def _screen_weight(weight, axis=None):
    size = _screen_bytes(*weight.shape, weight.device.type)
    return weight.new_empty((size,), dtype=torch.uint8)


def _linear(x, weight_packed, rows, bias=None):
    return _rows(x, rows)


def _linear_as_stored(x, weight):
    return _rows(x, weight.shape[0])


def _gemm_relu_twell(
    x, weight_packed, rows, activation="relu", threshold=0.0, tile=256, capacity=32
):
    return _triple(x, x.shape[0], rows, tile, capacity)


def _dense_to_twell(dense, tile=256, capacity=32):
    return _triple(dense, *dense.shape, tile, capacity)


def _twell_to_dense(counts, slots, overflow, cols, dtype):
    return counts.new_empty((counts.shape[0], cols), dtype=dtype)


def _twell_gated_ffn(x, counts, slots, overflow, up, down):
    return _rows(x, down.shape[1])


def _twell_spmm(counts, slots, overflow, down):
    return down.new_empty((counts.shape[0], down.shape[1]))


def register() -> None:
    """Registers all of them; once, after the library is loaded."""
    for function in (
        _ffn,
        _ffn_stats,
        _ffn_train,
        _ffn_train_backward,
        _ffn_train_backward_add,
        _pack_weight,
        _unpack_weight,
        _screen_weight,
        _linear,
        _linear_as_stored,
        _gemm_relu_twell,
        _dense_to_twell,
        _twell_to_dense,
        _twell_gated_ffn,
        _twell_spmm,
    ):
        torch.library.register_fake(f"twell::{function.__name__.removeprefix('_')}", function)
