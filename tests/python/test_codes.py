"""int8 and int4 weights with scales, against float64 on the numbers they stand for."""

from __future__ import annotations

import pytest
import torch
import twell
from layers import UNIT
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

SIZES = [(1, 1), (3, 5), (70, 90), (64, 48), (257, 33), (7, 300), (32, 1), (288, 40), (544, 17)]


def coded(rows: int, cols: int, by: str, seed: int) -> tuple[Tensor, Tensor]:
    """A weight as the operators take it, and its numbers."""
    generator = torch.Generator().manual_seed(seed)
    if by == "group":
        codes = torch.randint(-8, 8, (rows, cols), generator=generator, dtype=torch.int8)
        codes[0, :32] = 0
        scales = torch.randint(16, 32, (rows, cols // 32), generator=generator).float()
        scales *= 2.0 ** torch.randint(-16, -1, scales.shape, generator=generator)
        scales[0, 0] = 7e-9  # of codes that are all zero
        numbers = codes.double() * scales.double().repeat_interleave(32, 1)
        return twell.ops.join_codes(codes, scales, by), numbers
    codes = torch.randint(-128, 128, (rows, cols), generator=generator, dtype=torch.int8)
    scales = torch.rand(rows if by == "row" else cols, generator=generator) / 100 + 1e-3
    scale = scales[:, None] if by == "row" else scales
    return twell.ops.join_codes(codes, scales, by), codes.double() * scale.double()


def inputs(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9)).to(dtype)


@pytest.mark.parametrize(("width", "neurons"), SIZES)
@pytest.mark.parametrize("rows", [(0,), (1,), (2, 3), (40,)])
@pytest.mark.parametrize("by", ["row", "group"])
def test_linear(
    dtype: torch.dtype, width: int, neurons: int, rows: tuple[int, ...], by: str
) -> None:
    if by == "group" and width % 32 != 0:
        return
    weight, numbers = coded(neurons, width, by, 1)
    x = inputs(dtype, *rows, width)
    exact = x.double() @ numbers.T
    magnitude = x.double().abs() @ numbers.abs().T
    # Sums in float32, one rounding, and what the terms of x leave out.
    left_out = 2.0 ** (-15 if dtype == torch.bfloat16 else -22) * x.double().abs()
    bound = (width + 3) * 2.0**-24 * magnitude + 1.01 * UNIT[dtype] * exact.abs() + 1e-30
    if x.numel() > 0:
        bound = bound + left_out.amax(-1, keepdim=True) * numbers.abs().sum(1)
    packed = twell.ops.pack_weight(weight)
    for y in (twell.ops.linear(x, packed), twell.ops.linear_as_stored(x, weight)):
        assert y.shape == (*rows, neurons)
        assert y.dtype == dtype
        assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize(("width", "neurons"), SIZES)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("by", ["row", "group"])
def test_layers(dtype: torch.dtype, width: int, neurons: int, gated: bool, by: str) -> None:
    if by == "group" and width % 32 != 0:
        return
    (gate, wg), (up, wu) = coded(neurons, width, by, 1), coded(neurons, width, by, 2)
    down, wd = coded(neurons, width, "column", 3)
    x = inputs(dtype, 11, width)
    g = (x.double() @ wg.T).relu()
    h = g * (x.double() @ wu.T) if gated else g
    y = twell.ops.ffn(x, twell.ops.pack_weight(gate), up if gated else None, down)
    # Of g, u and y, and of h where many rows fire a neuron: four roundings; sums of float32.
    g_size = x.double().abs() @ wg.abs().T
    h_size = g_size * (x.double().abs() @ wu.abs().T) if gated else g_size
    unit = 4 * UNIT[dtype] + (2 * width + neurons + 8) * 2.0**-24
    unit += 2.0**-15 if dtype == torch.bfloat16 else 2.0**-21  # of the terms of x
    assert ((y.double() - h @ wd).abs() <= unit * (h_size @ wd.abs()) + 1e-30).all()
    counts = twell.ops.ffn_stats(x, twell.ops.pack_weight(gate), up if gated else None, down)[2]
    assert counts.shape == (neurons,)


def test_shapes_without_data() -> None:
    sizes = [(w, n, "row") for w in range(1, 70) for n in (1, 2, 15, 16, 17, 33)]
    sizes += [(w, n, "group") for w in range(32, 600, 32) for n in (1, 15, 16, 17, 33)]
    for width, neurons, by in sizes:
        weight, _ = coded(neurons, width, by, 1)
        down, _ = coded(neurons, width, "column", 1)
        packed = twell.ops.pack_weight(weight)
        with FakeTensorMode() as fake:
            x, w, d = (fake.from_tensor(t) for t in (torch.zeros(2, width), weight, down))
            p = twell.ops.pack_weight(w)
            assert p.shape == packed.shape
            assert twell.ops.linear(x, p).shape == (2, neurons)
            assert twell.ops.linear_as_stored(x, w).shape == (2, neurons)
            assert twell.ops.ffn_stats(x, p, w, d)[0].shape == (2, width)
            assert twell.ops.ffn_stats(x, p, w, d)[2].shape == (neurons,)


def test_mistakes_name_the_argument() -> None:
    weight, _ = coded(48, 32, "row", 1)
    down, _ = coded(48, 32, "column", 1)
    packed, x = twell.ops.pack_weight(weight), torch.zeros(2, 32)
    with pytest.raises(RuntimeError, match=r"ffn: up: expected codes and, behind them, the scales of "):
        twell.ops.ffn(x, packed, weight[:46], down)
    with pytest.raises(RuntimeError, match=r"ffn: down: .*scales of their columns, as join_codes"):
        twell.ops.ffn(x, packed, weight, down[:4])
    with pytest.raises(RuntimeError, match=r"ffn: gate: expected what pack_weight makes"):
        twell.ops.ffn(x, weight, weight, down)
    with pytest.raises(RuntimeError, match=r"linear: x: expected bf16 or f32 \[2, 32\]"):
        twell.ops.linear(x[:, 1:], packed)
    with pytest.raises(RuntimeError, match=r"contiguous memory"):
        twell.ops.pack_weight(torch.zeros(54, 64, dtype=torch.int8)[:, ::2])
    with pytest.raises(ValueError, match=r"scales: expected shape \[3\], got \[4\]"):
        twell.ops.join_codes(torch.zeros(3, 4, dtype=torch.int8), torch.zeros(4))
    codes = torch.ones(3, 64, dtype=torch.int8)
    for wrong in (0.0, -1.0, float("nan"), 1 + 2.0**-5, 2.0**-16):
        scales = torch.ones(3, 2)
        scales[2, 1] = wrong
        with pytest.raises(ValueError, match=r"scales: expected 5 significant bits.*row 2, group 1"):
            twell.ops.join_codes(codes, scales, "group")
    with pytest.raises(ValueError, match=r"codes: expected -8 to 7"):
        twell.ops.join_codes(9 * codes, torch.ones(3, 2), "group")
    coded_down = twell.ops.join_codes(codes, torch.ones(3, 2), "group")
    with pytest.raises(RuntimeError, match=r"ffn: down: expected scales of its columns"):
        twell.ops.ffn(torch.zeros(1, 64), twell.ops.pack_weight(coded_down), coded_down, coded_down)
    with pytest.raises(ValueError, match=r"codes: expected int8 \[H, D\]"):
        twell.ops.join_codes(torch.zeros(3, 4), torch.zeros(3))
    with pytest.raises(ValueError, match=r"by: expected"):
        twell.ops.join_codes(torch.zeros(3, 4, dtype=torch.int8), torch.zeros(3), "rows")


def test_codes_may_have_any_strides() -> None:
    codes = torch.randint(-8, 8, (64, 96), dtype=torch.int8)
    for by, scales in (("row", torch.ones(96)), ("group", torch.ones(96, 2))):
        joined = twell.ops.join_codes(codes.t(), scales, by)
        assert torch.equal(joined, twell.ops.join_codes(codes.t().contiguous(), scales, by))


@pytest.mark.parametrize("by", ["row", "group"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("cols", [32, 64, 96, 256, 288, 1056])
def test_packing_is_undone(by: str, rows: int, cols: int) -> None:
    for width in (cols,) if by == "group" else (cols, cols - 1, cols - 29, cols - 30):
        weight, _ = coded(rows, width, by, 3)
        packed = twell.ops.pack_weight(weight)
        again = twell.ops.unpack_weight(packed)
        assert torch.equal(again, weight)
        with FakeTensorMode() as mode:
            fake = twell.ops.unpack_weight(mode.from_tensor(packed))
        assert fake.shape == weight.shape and fake.dtype == weight.dtype


def test_gradients_are_refused() -> None:
    weight, _ = coded(48, 32, "row", 1)
    down, _ = coded(48, 32, "column", 1)
    x = torch.randn(2, 32, requires_grad=True)
    y = twell.ops.ffn(x, twell.ops.pack_weight(weight), weight, down)
    with pytest.raises(RuntimeError, match="ffn: has no gradient where weights are codes"):
        y.sum().backward()
