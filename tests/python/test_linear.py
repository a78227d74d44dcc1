"""linear against float64, and its mistakes."""

import pytest
import torch
import twell
from layers import UNIT, make_layer


@pytest.mark.parametrize("rows", [(0,), (1,), (17,), (3, 5)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_against_float64(dtype: torch.dtype, rows: tuple[int, ...], with_bias: bool) -> None:
    layer = make_layer(70, 90, dtype)
    x = layer.inputs(*rows)
    bias = layer.gate[:, 0].contiguous() if with_bias else None
    packed = twell.ops.pack_weight(layer.gate)
    exact = x.double() @ layer.gate.double().T
    magnitude = x.double().abs() @ layer.gate.double().abs().T
    if bias is not None:
        exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    # Sums of 71 terms in float32, one rounding to the dtype.
    found = [twell.ops.linear(x, packed, bias)]
    if bias is None:
        found.append(twell.ops.linear_as_stored(x, layer.gate))
    bound = 73 * 2.0**-24 * magnitude + UNIT[dtype] * exact.abs()
    for y in found:
        assert y.shape == (*rows, 90)
        assert ((y.double() - exact).abs() <= bound).all()
    sums = twell.ops.linear_as_stored(x, layer.gate, float_sums=True)
    assert sums.dtype == torch.float32
    if bias is None:
        assert ((sums.double() - exact).abs() <= 73 * 2.0**-24 * magnitude).all()


def test_mistakes_name_the_argument() -> None:
    layer = make_layer(32, 48)
    packed, x = twell.ops.pack_weight(layer.gate), layer.inputs(4)
    with pytest.raises(RuntimeError, match=r"linear: weight_packed: expected what pack_weight makes"):
        twell.ops.linear(x, layer.gate)
    with pytest.raises(RuntimeError, match=r"linear: x: expected f32 \[4, 32\], got f32 \[4, 31\]"):
        twell.ops.linear(x[:, 1:], packed)
    with pytest.raises(RuntimeError, match=r"linear.*bias: expected .*\[48\]"):
        twell.ops.linear(x, packed, torch.zeros(47))
    with pytest.raises(RuntimeError, match=r"linear.*bias"):
        twell.ops.linear(x, packed, torch.zeros(48, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match=r"linear_as_stored.*weight: expected"):
        twell.ops.linear_as_stored(x, layer.gate[:, :31])
