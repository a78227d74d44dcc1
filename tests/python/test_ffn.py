"""The whole layer against a float64 reference, at tail sizes, any density, any strides."""

from __future__ import annotations

import math

import pytest
import torch
import twell
from layers import Layer, Reference, activate, assert_within, make_layer, reference
from torch import Tensor

# Below, at and above the panel (16), the bf16 depth step (32) and the default tile (256).
WIDTHS = (1, 2, 15, 31, 32, 33, 96)
NEURONS = (1, 15, 16, 17, 100, 256, 257)
ROWS = (0, 1, 2, 7, 16, 33)


def run(
    layer: Layer, x: Tensor, gated: bool, activation: str = "relu", threshold: float = 0.0
) -> Tensor:
    packed = twell.ops.pack_weight(layer.gate)
    up = layer.up if gated else None
    return twell.ops.ffn(x, packed, up, layer.down, None, activation, threshold)


def expected(
    layer: Layer, x: Tensor, gated: bool, activation: str = "relu", threshold: float = 0.0
) -> Reference:
    return reference(x, layer.gate, layer.up if gated else None, layer.down, activation, threshold)


@pytest.mark.parametrize("neurons", NEURONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_tail_sizes(width: int, neurons: int, dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(width, neurons, dtype, density=0.3)
    for rows in ROWS:
        x = layer.inputs(rows)
        y = run(layer, x, gated)
        assert y.shape == x.shape and y.dtype == dtype
        assert_within(y, expected(layer, x, gated))


@pytest.mark.parametrize("density", [0.0, 0.005, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("activation", ["relu", "relu_squared", "fat_relu"])
def test_density(activation: str, density: float, dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(64, 600, dtype, density=min(max(density, 1e-6), 1 - 1e-6))
    x = layer.inputs(40)
    if density in (0.0, 1.0):  # the direction alone: every gate has the same sign
        x = layer.shift.to(dtype).repeat(40, 1)
        layer.gate = (layer.shift * (1 if density else -1)).to(dtype).repeat(600, 1)
    threshold = 0.25 if activation == "fat_relu" else 0.0
    y, row_nnz, counts, candidates = twell.ops.ffn_stats(
        x,
        twell.ops.pack_weight(layer.gate),
        layer.up if gated else None,
        layer.down,
        None,
        activation,
        threshold,
    )
    assert int(candidates) == 0
    assert_within(y, expected(layer, x, gated, activation, threshold))
    assert torch.equal(y, run(layer, x, gated, activation, threshold))
    assert row_nnz.shape == (40,) and counts.shape == (600,)
    assert int(row_nnz.sum()) == int(counts.sum())
    if density == 0:
        assert int(counts.sum()) == 0 and torch.count_nonzero(y) == 0
    if density == 1:
        assert torch.equal(counts, torch.full((600,), 40))


def test_statistics_count_the_gate(dtype: torch.dtype) -> None:
    # Small integers: every product and sum is exact, so the pattern is known exactly.
    generator = torch.Generator().manual_seed(3)
    x, gate = (
        torch.randint(-3, 4, shape, generator=generator).to(dtype)
        for shape in ((2, 9, 24), (70, 24))
    )
    up, down = make_layer(24, 70, dtype).up, make_layer(24, 70, dtype).down
    fired = x.double() @ gate.double().t() > 0
    _, row_nnz, counts, _ = twell.ops.ffn_stats(x, twell.ops.pack_weight(gate), up, down)
    assert row_nnz.dtype == torch.int32 and torch.equal(row_nnz.long(), fired.sum(-1))
    assert counts.dtype == torch.int64 and torch.equal(counts, fired.flatten(0, 1).sum(0))


def test_error_is_at_most_that_of_dense_bf16() -> None:
    # The dense path rounds v, u, g ⊙ u and y; this one rounds g and y.
    layer = make_layer(256, 1024, torch.bfloat16, density=0.05)
    x = layer.inputs(64)
    exact = expected(layer, x, True).y
    dense = twell.dense.ffn(x, layer.gate, layer.up, layer.down)[0]
    sparse = run(layer, x, True)

    def relative(y: Tensor) -> float:
        return float((y.double() - exact).norm() / exact.norm())

    assert relative(sparse) <= relative(dense)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3), (1, 1, 1), (2, 3, 4, 5)])
def test_leading_dimensions(shape: tuple[int, ...], dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(40, 90, dtype)
    x = layer.inputs(*shape)
    y = run(layer, x, gated)
    assert y.shape == x.shape
    flat = run(layer, x.reshape(-1, 40), gated)
    assert torch.equal(y.reshape(-1, 40), flat)


def strided(x: Tensor) -> dict[str, Tensor]:
    """Views with x's values, none of them contiguous."""
    rows, width = x.shape
    wide = torch.full((rows, width + 5), float("nan"), dtype=x.dtype)
    wide[:, 2 : 2 + width] = x
    every_other = torch.full((rows * 2, width), float("nan"), dtype=x.dtype)
    every_other[::2] = x
    return {
        "columns of a wider matrix": wide[:, 2 : 2 + width],
        "every other row": every_other[::2],
        "transposed": x.t().contiguous().t(),
        "every other column": torch.stack([x, x], -1).flatten(1)[:, ::2],
        "expanded": x[:1].expand(rows, width),
        "permuted": x.reshape(2, rows // 2, width).transpose(0, 1).contiguous().transpose(0, 1),
    }


def test_strided_inputs(dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(40, 90, dtype)
    x = layer.inputs(12)
    for name, view in strided(x).items():
        assert torch.equal(run(layer, view, gated), run(layer, view.contiguous(), gated)), name


def test_strided_weights(dtype: torch.dtype) -> None:
    layer = make_layer(40, 90, dtype)
    x = layer.inputs(12)
    want = run(layer, x, True)
    names = ("columns of a wider matrix", "every other row")
    for gate, up, down in (
        [strided(w)[name] for w in (layer.gate, layer.up, layer.down)] for name in names
    ):
        assert torch.equal(twell.ops.ffn(x, twell.ops.pack_weight(gate), up, down), want)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_in_x(value: float, dtype: torch.dtype, gated: bool) -> None:
    """Only the row that holds the value takes part in it. In it a gate of NaN or Inf is a non-zero,
    and an up value is evaluated only where the gate is not zero."""
    layer = make_layer(32, 50, dtype, density=0.4)
    clean = layer.inputs(6)
    x = clean.clone()
    x[3, 5] = value
    y = run(layer, x, gated)
    others = [0, 1, 2, 4, 5]
    assert_within(y[others], expected(layer, clean[others], gated))
    wide = x[3].double()
    g = activate(layer.gate.double() @ wide, "relu", 0.0)
    u = layer.up.double() @ wide if gated else torch.ones_like(g)
    h = torch.where(g == 0, torch.zeros_like(g), g * u)
    # 0 · Inf does not arise: only the stored neurons' rows of down enter the sum.
    want = (h.unsqueeze(1) * layer.down.double())[h != 0].sum(0)
    assert torch.equal(y[3].isnan(), want.isnan())
    assert torch.equal(y[3].isinf(), want.isinf())
    assert torch.equal(y[3][want.isinf()].sign(), want[want.isinf()].sign().to(dtype))


def test_nan_in_weights_stays_with_its_neuron(dtype: torch.dtype) -> None:
    layer = make_layer(32, 50, dtype, density=0.4)
    x = layer.inputs(20)
    fired = activate(x.double() @ layer.gate.double().t(), "relu", 0.0)[:, 7] > 0
    assert 0 < int(fired.sum()) < 20
    layer.up[7] = math.nan
    rows = run(layer, x, True).isnan().any(1)
    assert torch.equal(rows, fired)


def test_same_bits_every_time(dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(64, 700, dtype, density=0.2)
    for rows in (1, 50):
        x = layer.inputs(rows)
        first = run(layer, x, gated)
        assert all(torch.equal(run(layer, x, gated), first) for _ in range(5))


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (17, 33), (100, 70), (5, 2048), (0, 8)])
def test_pack_weight(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, cols = shape
    weight = torch.randn(shape).to(dtype)
    packed = twell.ops.pack_weight(weight)
    assert torch.equal(twell.ops.unpack_weight(packed), weight)
    depth = cols if dtype == torch.float32 else (cols + 31) // 32 * 32
    padded = torch.zeros((rows + 15) // 16 * 16, depth, dtype=dtype)
    padded[:rows, :cols] = weight
    panels = padded.reshape(-1, 16, depth)
    if dtype == torch.float32:
        want = panels.transpose(1, 2)  # [panels, D, 16]
    else:
        want = panels.reshape(-1, 16, depth // 2, 2).transpose(1, 2)  # [panels, D/2, 16, 2]
    # In front, and zeros behind: none where there is no padding.
    assert packed.shape[0] == rows and packed.shape[2] == 1 and packed.dtype == dtype
    assert torch.equal(packed.flatten()[: want.numel()], want.flatten())
    assert not packed.flatten()[want.numel() :].any()
    if want.numel() == weight.numel() > 0:
        assert packed.shape[1] == cols


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("with_axis", [False, True])
def test_screened(width: int, with_axis: bool, dtype: torch.dtype, gated: bool) -> None:
    layer = make_layer(width, 257, dtype, density=0.1)
    axis = layer.inputs(40).float().mean(0) if with_axis else None
    screen = twell.ops.screen_weight(layer.gate, axis)
    for rows in ROWS:
        x = layer.inputs(rows)
        up = layer.up if gated else None
        y = twell.ops.ffn(x, layer.gate, up, layer.down, screen)
        assert y.shape == x.shape and y.dtype == dtype
        assert_within(y, expected(layer, x, gated))


def test_screened_statistics(dtype: torch.dtype) -> None:
    # Small integers, as above: the pattern is exact.
    generator = torch.Generator().manual_seed(4)
    x, gate = (
        torch.randint(-3, 4, shape, generator=generator).to(dtype)
        for shape in ((2, 30, 70), (300, 70))
    )
    layer = make_layer(70, 300, dtype)
    fired = x.double() @ gate.double().t() > 0
    y, row_nnz, counts, candidates = twell.ops.ffn_stats(
        x, gate, layer.up, layer.down, twell.ops.screen_weight(gate)
    )
    assert torch.equal(y, twell.ops.ffn(x, twell.ops.pack_weight(gate), layer.up, layer.down))
    assert torch.equal(row_nnz.long(), fired.sum(-1))
    assert torch.equal(counts, fired.flatten(0, 1).sum(0))
    assert int(fired.sum()) <= int(candidates) < 0.6 * fired.numel()


def test_output_is_as_wide_as_down(dtype: torch.dtype) -> None:
    layer = make_layer(40, 90, dtype)
    x = layer.inputs(2, 5)
    packed = twell.ops.pack_weight(layer.gate)
    down = layer.down[:, :24].contiguous()
    narrow = twell.ops.ffn(x, packed, layer.up, down)
    assert narrow.shape == (2, 5, 24)
    assert_within(narrow, reference(x, layer.gate, layer.up, down))


def at_offset(t: Tensor, elements: int) -> Tensor:
    """The same values at an address that begins no cache line, as torch.export.load() has them."""
    memory = torch.empty(t.numel() + 64, dtype=t.dtype)
    begin = -memory.data_ptr() % 64 // t.element_size() + elements
    out = memory[begin : begin + t.numel()].view(t.shape)
    assert out.data_ptr() % 64 == elements * t.element_size()
    return out.copy_(t)


@pytest.mark.parametrize("tier", ["portable", "avx2", "avx512", "amx"])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_addresses_change_no_bit(
    tier: str, rows: int, dtype: torch.dtype, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWELL_CPU_TIER", tier)
    layer = make_layer(70, 300, dtype, 0.05)
    x = layer.inputs(rows)
    packed, screen = twell.ops.pack_weight(layer.gate), None
    try:
        twell.ops.ffn(x, packed, layer.up, layer.down)
    except RuntimeError as error:
        pytest.skip(str(error).splitlines()[0])
    screen = twell.ops.screen_weight(layer.gate)
    rest = (layer.up if gated else None, layer.down)
    moved = [at_offset(w, 2 if dtype == torch.bfloat16 else 1) for w in (x, packed, layer.gate)]
    odd = [None if w is None else at_offset(w, 1) for w in rest]
    for gate, other, guard in ((packed, moved[1], None), (layer.gate, moved[2], screen)):
        want = twell.ops.ffn(x, gate, *rest, guard)
        guard = None if guard is None else at_offset(guard, 4)
        assert torch.equal(twell.ops.ffn(moved[0], other, *odd, guard), want)
