#!/usr/bin/env python3
"""A gated layer of codes (D = 2048, H = 5632) at several densities and numbers of rows, against the best
dense variants that PyTorch has for such weights, and against twell's own in bf16.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/quantised_layers.py --threads 2 --out DIR

DIR/layers.json and layers.md are the outcome. Dense forms: three products by ATen's
_weight_int8pack_mm or _weight_int4pack_mm_for_cpu, with what is between them, and GEMMs of the
numbers, in bf16 and in f32. Neurons are as popular as in trained models: shares are lognormal. Products of one row are
shown beside what reading memory gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import twell
from measuring import described, duration, in_turns, machine, over, table, write
from torch import Tensor

GROUP = 32
DENSE = ("int8, ATen", "int4, ATen", "bf16, dense", "f32, dense")
OWN = ("bf16", "int8", "int4")


class Layer:
    """Random weights whose neurons fire by their shares: every input contains a direction that rows of
    the gate oppose."""

    def __init__(self, width: int, neurons: int, density: float) -> None:
        torch.manual_seed(5)
        shares = torch.empty(neurons).log_normal_(0, 1.2)
        for _ in range(20):  # what is cut off goes to the others
            shares = (shares * density / shares.mean()).clamp(max=0.9)
        self.direction = torch.nn.functional.normalize(torch.randn(width), dim=0)
        oppose = torch.special.ndtri(1 - shares.double()).float() / 4
        self.gate = torch.randn(neurons, width) / width**0.5 - oppose[:, None] * self.direction
        self.up = torch.randn(neurons, width) / width**0.5
        self.down = torch.randn(width, neurons) / neurons**0.5

    def inputs(self, rows: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return (torch.randn(rows, len(self.direction)) + 4 * self.direction).to(dtype)


def int8_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = (weight.abs().amax(1) / 127).bfloat16()
    return (weight / scales.float()[:, None]).round().clamp(-128, 127).to(torch.int8), scales


def int4_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.view(len(weight), -1, GROUP)
    mantissa, exponent = (groups.abs().amax(2) / 7.5).frexp()
    scales = torch.ldexp((mantissa * 32).round() / 32, exponent)
    codes = (groups / scales[..., None]).round().clamp(-8, 7).to(torch.int8)
    return codes.view(weight.shape), scales


def forms_of(layer: Layer) -> dict[str, Callable[[Tensor], Tensor]]:
    aten, join, pack = torch.ops.aten, twell.ops.join_codes, torch.ops.twell.pack_weight
    made = [w.bfloat16() for w in (layer.gate, layer.up, layer.down)]
    frozen = twell.GatedFfn.from_dense(*made).requires_grad_(False)
    frozen.freeze(layer.inputs(1024))
    eight = [int8_of(w) for w in (layer.gate, layer.up, layer.down)]
    four = [int4_of(w) for w in (layer.gate, layer.up, layer.down)]
    gate8, up8 = (join(*w) for w in eight[:2])
    down8 = join(eight[2][0].t(), eight[2][1], "column")
    packed8 = pack(gate8)
    packed4, up4 = pack(join(*four[0], "group")), join(*four[1], "group")

    def sparse(gate: Tensor, up: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.ops.twell.ffn(x, [gate, up, down8])

    def dense(product: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: product(product(x, 0).relu_().mul_(product(x, 1)), 2)

    in_f32 = [w.float() for w in made]
    wide = dense(lambda x, i: torch.nn.functional.linear(x, in_f32[i]))
    # ATen wants int4 as numbers from 0 to 15, and scales and zeros by group.
    words = [aten._convert_weight_to_int4pack_for_cpu((w + 8).int(), 2) for w, _ in four]
    about = [torch.stack([s.t(), torch.zeros_like(s.t())], -1).bfloat16().contiguous() for _, s in four]
    return {
        "bf16": frozen,
        "int8": sparse(packed8, up8),
        "int4": sparse(packed4, up4),
        "int8, ATen": dense(lambda x, i: aten._weight_int8pack_mm(x, *eight[i])),
        "int4, ATen": dense(
            lambda x, i: aten._weight_int4pack_mm_for_cpu(x, words[i], GROUP, about[i])
        ),
        "bf16, dense": dense(lambda x, i: torch.nn.functional.linear(x, made[i])),
        "f32, dense": lambda x: wide(x.float()).bfloat16(),
    }


def check(forms: dict[str, Callable[[Tensor], Tensor]], x: Tensor) -> None:
    """That each computes the layer: codes round the weights by a part of their size."""
    want = forms["bf16, dense"](x).float()
    for name, form in forms.items():
        error = float((form(x).float() - want).norm() / want.norm())
        if not error < 0.3:
            sys.exit(f"quantised_layers: {name} is off by {error:.2f} of the layer")


def one_row(rows: int, seconds: float) -> dict[str, Any]:
    """Bytes a second of products of one row with weights that no cache holds, beside a sum over the
    same bytes: on a virtual machine some memory is half as fast as other."""
    cols = 2048
    weight = torch.randn(rows, cols)
    made = {
        "int8": twell.ops.join_codes(*int8_of(weight)),
        "int4": twell.ops.join_codes(*int4_of(weight), "group"),
        "bf16": weight.bfloat16(),
    }
    packed = {n: torch.ops.twell.pack_weight(w) for n, w in made.items()}
    x = torch.randn(1, cols).bfloat16()
    calls: dict[str, Callable[[], object]] = {}
    for name, w in packed.items():
        calls[f"read {name}"] = w.view(-1).view(torch.float32).sum
        calls[name] = lambda w=w: torch.ops.twell.linear(x, w)
    times = in_turns(calls, seconds)

    def speed(name: str, call: str) -> float:
        return packed[name].nbytes / times[call]["median"] / 1e3

    return {n: {"us": times[n], "gb_per_s": speed(n, n), "reading_gb_per_s": speed(n, f"read {n}")}
            for n in packed}  # fmt: skip


def page(result: dict[str, Any]) -> list[str]:
    rows = []
    for found in result["grid"]:
        us = {name: found["us"][name]["median"] for name in (*OWN, *DENSE)}
        numbers = min(us["bf16, dense"], us["f32, dense"])
        best = {kind: min(us[f"{kind}, ATen"], numbers) for kind in ("int8", "int4")}
        rows.append([
            f"{100 * found['density']:g} %", f"{found['rows']}", *(duration(us[n]) for n in (*OWN, *DENSE)),
            *(f"{best[kind] / us[kind]:.2f}x" for kind in best),
            *(f"{us['bf16'] / us[kind]:.2f}x" for kind in best),
        ])  # fmt: skip
    speeds = result["one row"]
    return [
        "# A layer of codes", "",
        f"Written by `bench/quantised_layers.py`. {described(result['machine'])}",
        f"D = {result['width']}, H = {result['neurons']}. Medians of calls in turns.", "",
        *table(["fire", "rows", *OWN, *DENSE, "int8 / best dense", "int4 / best dense",
                "int8 / bf16", "int4 / bf16"], rows), "",
        "Best dense: the fastest of ATen's form of these bits and GEMMs of the numbers, in bf16 and",
        "in f32, which take two and four times the memory of int8.", "",
        "## One row", "",
        *table(["", "GB/s", "reading, GB/s", "of reading"], [
            [n, *(f"{s[of]:.1f}" for of in ("gb_per_s", "reading_gb_per_s")),
             f"{s['gb_per_s'] / s['reading_gb_per_s']:.2f}"] for n, s in speeds.items()]),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--neurons", type=int, default=5632)
    parser.add_argument("--density", type=float, nargs="+", default=[0.005, 0.01, 0.02, 0.05, 0.2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 512, 2048])
    parser.add_argument("--long", type=int, default=131072, help="rows of the weights of one-row products")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each form and case")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    grid = []
    with torch.inference_mode():
        for density in options.density:
            layer = Layer(options.width, options.neurons, density)
            forms = forms_of(layer)
            check(forms, layer.inputs(32))
            for rows in options.rows:
                pool = [layer.inputs(rows) for _ in range(max(2, min(64, 2048 // rows)))]
                times = in_turns({n: over(pool, f) for n, f in forms.items()}, options.seconds)
                grid.append({"density": density, "rows": rows, "us": times})
                print(f"{100 * density:g} %, {rows} rows: " + ", ".join(
                    f"{n} {duration(t['median'])}" for n, t in times.items()), file=sys.stderr)  # fmt: skip
        speeds = one_row(options.long, options.seconds)
    result = {"machine": machine(), "width": options.width, "neurons": options.neurons,
              "grid": grid, "one row": speeds}  # fmt: skip
    write(options.out, "layers", result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
