#!/usr/bin/env python3
"""How far layers and linear layers of codes are from float64 on the numbers that the codes stand for, on
every tier, and how far the same layers in floating point are.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/quantised_errors.py --out DIR

A floating-point layer has these numbers, rounded to x's type: in f32 they are exact, in bf16 those of
int4 are. Each is measured against float64 on its own matrix. DIR/errors.json and errors.md are the
outcome. Where a linear layer is farther off than it may be, this fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import twell
from measuring import machine, table, write
from quantised_layers import Layer, int4_of, int8_of
from torch import Tensor
from twell.info import TIERS, forced

KINDS = {"int8": (int8_of, "row"), "int4": (int4_of, "group")}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}  # relative, of a number's rounding


class Weight:
    """Codes as the operators take them, and float64 of what they stand for."""

    def __init__(self, kind: str, weight: Tensor, turned: bool = False) -> None:
        make, by = KINDS[kind]
        codes, scales = make(weight)
        scales = scales.float().view(len(codes), -1)
        each = codes.shape[1] // scales.shape[1]
        self.exact = codes.double() * scales.double().repeat_interleave(each, 1)
        if turned:  # of down, whose columns are outputs
            self.coded = twell.ops.join_codes(codes.t(), scales[:, 0], "column")
            self.exact = self.exact.t()
        else:
            self.coded = twell.ops.join_codes(codes, scales[:, 0] if by == "row" else scales, by)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        return self.exact.to(dtype).contiguous()


def relative(got: Tensor, exact: Tensor) -> float:
    """Root mean square of the error over that of the result."""
    return float((got.double() - exact).norm() / exact.norm())


def linear_errors(x: Tensor, weight: Weight) -> dict[str, float]:
    """And of the largest bound, the share that the worst number uses: sums in f32, one rounding, and
    what the terms of x leave out of the largest input of a block of 256."""
    exact, wide = x.double() @ weight.exact.T, x.double().abs()
    left = 2.0 ** (-15 if x.dtype == torch.bfloat16 else -22)
    bound = (x.shape[1] + 3) * 2.0**-24 * (wide @ weight.exact.abs().T) + 1.01 * UNIT[x.dtype] * exact.abs()
    bound += left * wide.amax(1, keepdim=True) * weight.exact.abs().sum(1)
    got = twell.ops.linear(x, twell.ops.pack_weight(weight.coded))
    used = float(((got.double() - exact).abs() / bound).max())
    if not used <= 1:
        sys.exit(f"quantised_errors: a linear layer of {len(x)} rows is {used:.2f} times as far off as it may be")
    numbers = weight.numbers(x.dtype)
    plain = twell.ops.linear(x, twell.ops.pack_weight(numbers))
    return {
        "codes": relative(got, exact), "numbers": relative(plain, x.double() @ numbers.double().T),
        "of the bound": used,
    }  # fmt: skip


def layer_errors(x: Tensor, gate: Weight, up: Weight, down: Weight) -> dict[str, float]:
    def exact(weights: tuple[Tensor, ...]) -> Tensor:
        of_gate, of_up, of_down = (w.double() for w in weights)
        return ((x.double() @ of_gate.T).relu() * (x.double() @ of_up.T)) @ of_down

    pack = twell.ops.pack_weight
    got = twell.ops.ffn(x, pack(gate.coded), up.coded, down.coded)
    numbers = [w.numbers(x.dtype) for w in (gate, up, down)]
    plain = twell.ops.ffn(x, pack(numbers[0]), *numbers[1:])
    return {
        "codes": relative(got, exact((gate.exact, up.exact, down.exact))),
        "numbers": relative(plain, exact(tuple(numbers))),
    }


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    made = Layer(options.width, options.neurons, options.density)
    found = []
    for kind in KINDS:
        gate, up = (Weight(kind, w) for w in (made.gate, made.up))
        down = Weight("int8", made.down, turned=True)
        for rows in options.rows:
            wide = made.inputs(rows, torch.float32)
            for label, dtype in DTYPES.items():
                x = wide.to(dtype)
                for tier in TIERS:
                    if not twell.ops.cpu_tier_available(tier):
                        continue
                    with forced(tier):
                        case = {"tier": tier, "weights": kind, "x": label, "rows": rows}
                        found.append({**case, "linear": linear_errors(x, up),
                                      "layer": layer_errors(x, gate, up, down)})  # fmt: skip
                    print(f"{kind}, {rows} rows of {label}, {tier}", file=sys.stderr)
    return found


def page(result: dict[str, Any]) -> list[str]:
    skipped = [t for t in TIERS if not twell.ops.cpu_tier_available(t)]
    rows = []
    for f in result["cases"]:
        unit = UNIT[DTYPES[f["x"]]]
        rows.append([f["tier"], f["weights"], f["x"], str(f["rows"]), *(
            f"{f[what][side] / unit:.3f}" for what in ("linear", "layer") for side in ("codes", "numbers")),
            f"{100 * f['linear']['of the bound']:.2g} %"])  # fmt: skip
    rows.sort(key=lambda row: (TIERS.index(row[0]), row[1], row[2]))
    return [
        "# Errors of layers of codes", "",
        f"Written by `bench/quantised_errors.py`. {result['machine']['processor']}.",
        f"D = {result['width']}, H = {result['neurons']}, {100 * result['density']:g} % fire.",
        *([f"Tiers that this machine lacks: {', '.join(skipped)}."] if skipped else []), "",
        "Root mean squares of errors over those of results, in units of what rounding takes from one",
        "number (2⁻²⁴ in f32, 2⁻⁸ in bf16). Codes against float64 on code times scale; numbers, which are",
        "those rounded to the type of x, against float64 on these. Largest error: of a linear layer of",
        "codes, as a share of its bound.", "",
        *table(["tier", "weights", "x", "rows", "linear: codes", "numbers", "layer: codes", "numbers",
                "largest error"], rows),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--neurons", type=int, default=5632)
    parser.add_argument("--density", type=float, default=0.02)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 64, 512])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with torch.inference_mode():
        cases = measured(options)
    result = {"machine": machine(), "width": options.width, "neurons": options.neurons,
              "density": options.density, "cases": cases}  # fmt: skip
    write(options.out, "errors", result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
