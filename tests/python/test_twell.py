"""The packed triple: the format, and the layer step by step."""

from __future__ import annotations

import pytest
import torch
import twell
from layers import assert_within, make_layer, reference
from torch import Tensor

ops = twell.ops


def sparse_matrix(
    rows: int, cols: int, dtype: torch.dtype, density: float, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, cols, generator=generator).to(dtype)
    return dense * (torch.rand(rows, cols, generator=generator) < density)


def words(slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(column, value) of each word, as ops.Twell describes them."""
    if dtype == torch.float32:
        return slots & 0xFFFFFFFF, (slots >> 32).to(torch.int32).view(torch.float32)
    return slots & 0xFFFF, (slots >> 16).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("density", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("layout", [(16, 1), (16, 16), (64, 5), (256, 32)])
@pytest.mark.parametrize("cols", [1, 16, 63, 64, 65, 300])
def test_round_trip(cols: int, layout: tuple[int, int], density: float, dtype: torch.dtype) -> None:
    tile, capacity = layout
    dense = sparse_matrix(9, cols, dtype, density)
    triple = ops.dense_to_twell(dense, tile, capacity)
    assert torch.equal(ops.twell_to_dense(*triple, cols, dtype), dense)


def test_layout_of_the_words(dtype: torch.dtype) -> None:
    tile, capacity, cols = 16, 4, 40
    dense = sparse_matrix(20, cols, dtype, 0.3)
    counts, slots, overflow = ops.dense_to_twell(dense, tile, capacity)
    assert counts.dtype == torch.int32 and counts.shape == (20, 3)
    assert slots.dtype == (torch.int64 if dtype == torch.float32 else torch.int32)
    assert slots.shape == (20, 3, capacity)
    assert overflow.shape == (int((counts > capacity).sum()), tile) and overflow.shape[0] > 0
    record = 0
    for row in range(20):
        for t in range(3):
            part = dense[row, t * tile : (t + 1) * tile]
            columns = part.nonzero().flatten()
            assert int(counts[row, t]) == len(columns)
            if len(columns) > capacity:
                assert int(slots[row, t, 0]) == record
                stored, record = overflow[record], record + 1
            else:
                stored = slots[row, t]
            got_columns, got_values = words(stored, dtype)
            assert torch.equal(got_columns[: len(columns)].long(), columns)
            assert torch.equal(got_values[: len(columns)], part[columns])
            if len(columns) <= capacity:
                assert not stored[len(columns) :].any()
    assert record == overflow.shape[0]


def test_what_is_stored(dtype: torch.dtype) -> None:
    dense = torch.tensor([[0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0]], dtype=dtype)
    triple = ops.dense_to_twell(dense, 16, 4)
    assert int(triple[0].sum()) == 4
    back = ops.twell_to_dense(*triple, 6, dtype)
    assert torch.equal(back.isnan(), dense.isnan())
    assert torch.equal(back[:, 3:], dense[:, 3:]) and not back[:, :2].any()


@pytest.mark.parametrize("per_tile", [0, 1, 4, 5, 6, 15, 16])
def test_gate_around_the_capacity(per_tile: int, dtype: torch.dtype) -> None:
    """Exactly `per_tile` non-zeros in every tile of 16, capacity 5: the identity as weight."""
    cols = 48
    generator = torch.Generator().manual_seed(per_tile)
    x = torch.zeros(11, cols)
    for row in range(11):
        for t in range(3):
            chosen = torch.randperm(16, generator=generator)[:per_tile] + 16 * t
            x[row, chosen] = torch.rand(per_tile, generator=generator) + 0.5
    x = x.to(dtype)
    packed = ops.pack_weight(torch.eye(cols, dtype=dtype))
    counts, slots, overflow = ops.gemm_relu_twell(x, packed, tile=16, capacity=5)
    assert torch.equal(counts, torch.full((11, 3), per_tile, dtype=torch.int32))
    assert overflow.shape[0] == (33 if per_tile > 5 else 0)
    assert torch.equal(ops.twell_to_dense(counts, slots, overflow, cols, dtype), x)
    for got, want in zip((counts, slots, overflow), ops.dense_to_twell(x, 16, 5)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("rows", [0, 1, 30])
@pytest.mark.parametrize("layout", [(16, 1), (256, 32), (512, 512)])
def test_steps_give_the_layer(rows: int, layout: tuple[int, int], dtype: torch.dtype) -> None:
    layer = make_layer(50, 300, dtype, density=0.2)
    x = layer.inputs(rows)
    packed = ops.pack_weight(layer.gate)
    triple = ops.gemm_relu_twell(x, packed, "relu", 0.0, *layout)
    gated = ops.twell_gated_ffn(x, *triple, layer.up, layer.down)
    assert_within(gated, reference(x, layer.gate, layer.up, layer.down))
    plain = ops.twell_spmm(*triple, layer.down)
    assert_within(plain, reference(x, layer.gate, None, layer.down))


def broken(triple: twell.ops.Twell) -> dict[str, twell.ops.Twell]:
    counts, slots, overflow = (t.clone() for t in triple)

    def with_count(value: int) -> Tensor:
        changed = counts.clone()
        changed[0, 0] = value
        return changed

    wild = slots.clone()
    wild[counts > slots.shape[2]] = 1 << 20
    descending = slots.flip(2)
    beyond = slots.clone()
    beyond[0, 2, 0] = (1 << (32 if slots.dtype == torch.int64 else 16)) | 15
    return {
        "negative count": (with_count(-1), slots, overflow),
        "count beyond the tile": (with_count(17), slots, overflow),
        "record out of range": (counts, wild, overflow),
        "columns descending": (counts, descending, overflow),
        "column beyond the matrix": (
            with_count(0).index_fill(1, torch.tensor(2), 1),
            beyond,
            overflow,
        ),
        "rows differ": (counts[1:], slots, overflow),
        "tiles differ": (counts[:, :1].contiguous(), slots, overflow),
        "no tile": (counts, slots, overflow[:, :0]),
        "dtype": (counts.long(), slots, overflow),
        "strided": (counts, slots, torch.stack([overflow, overflow], 1)[:, 0]),
    }


def test_broken_triples_are_refused(dtype: torch.dtype) -> None:
    dense = sparse_matrix(12, 40, dtype, 0.4)
    triple = ops.dense_to_twell(dense, 16, 4)
    down = torch.randn(40, 8).to(dtype)
    ops.twell_spmm(*triple, down)
    for bad in broken(triple).values():
        with pytest.raises(RuntimeError, match=r"^twell::(twell_spmm|TwellLayout|validate): "):
            ops.twell_spmm(*bad, down)
