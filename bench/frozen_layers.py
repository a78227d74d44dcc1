#!/usr/bin/env python3
"""Frozen PyTorch layers by path (auto, sparse) against PyTorch's own dense layer of the same numbers.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/frozen_layers.py --threads 2 --out DIR

DIR/frozen.json and frozen.md are the outcome. Times are of calls of the module, with all that Python adds.
Gated layers with random weights, whose neurons fire by lognormal shares; each layer is frozen with 1,024
inputs. `auto` has seen three calls of the size that is timed.
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
from quantised_layers import Layer, int4_of, int8_of
from torch import Tensor, nn
from twell import _codes

KINDS = ("bf16", "f32", "int8", "int4")
CALLS = ("dense", "sparse", "auto")


def linears_of(layer: Layer, kind: str) -> list[nn.Linear]:
    """gate, up and down, of numbers or of codes as compressed-tensors has them."""
    weights = layer.gate, layer.up, layer.down
    if kind in ("bf16", "f32"):
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        made = [nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta") for w in weights]
        for linear, weight in zip(made, weights):
            linear.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        return made
    of = int8_of if kind == "int8" else int4_of
    codes = [of(w) for w in weights[:2]] + [int8_of(layer.down)]
    return [_codes.linear_of(_codes.Codes(c, s.view(len(c), -1), torch.bfloat16)) for c, s in codes]


def calls_of(layer: Layer, kind: str) -> dict[str, Callable[[Tensor], Tensor]]:
    plain = linears_of(layer, "bf16" if kind.startswith("int") else kind)
    out: dict[str, Callable[[Tensor], Tensor]] = {
        "dense": lambda x: plain[2](torch.relu(plain[0](x)).mul_(plain[1](x)))
    }
    for path in CALLS[1:]:
        frozen = twell.GatedFfn._of_linears(linears_of(layer, kind))
        sample = layer.inputs(1024, plain[0].weight.dtype)
        out[path] = frozen.freeze(None if kind.startswith("int") else sample, path=path)
    return out


def page(result: dict[str, Any]) -> list[str]:
    rows = []
    for found in result["grid"]:
        us = {name: found["us"][name]["median"] for name in CALLS}
        rows.append([
            found["kind"], str(found["width"]), f"{100 * found['density']:g} %", str(found["rows"]),
            *(duration(us[name]) for name in CALLS), f"{min(us['dense'], us['sparse']) / us['auto']:.2f}",
            found["taken"],
        ])  # fmt: skip
    worst = sorted(rows, key=lambda row: float(row[-2]))[: max(1, len(rows) // 20)]
    return [
        "# Frozen layers in PyTorch", "",
        f"Written by `bench/frozen_layers.py`. {described(result['machine'])}",
        "Medians of calls in turns. Dense: three nn.Linear of PyTorch, of codes in bf16. Better: how many",
        "times as fast as the better of dense and sparse `auto` is.", "",
        f"Least: {worst[0][-2]}; all but one in twenty: {worst[-1][-2]} or more.", "",
        *table(["weights", "D", "fire", "rows", *CALLS, "better", "auto takes"], rows),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, nargs="+", default=[256, 768, 2048], help="H is 2.75 times D")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--density", type=float, nargs="+", default=[0.01, 0.05, 0.1, 0.2, 0.4, 0.5])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each call and case")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    grid = []
    with torch.inference_mode():
        for width in options.width:
            for density in options.density:
                layer = Layer(width, width * 11 // 4, density)
                for kind in options.kind:
                    calls = calls_of(layer, kind)
                    dtype = torch.float32 if kind == "f32" else torch.bfloat16
                    for rows in options.rows:
                        pool = [layer.inputs(rows, dtype) for _ in range(max(2, min(64, 2048 // rows)))]
                        for x in pool[:2] * 2:
                            calls["auto"](x)
                        times = in_turns({n: over(pool, f) for n, f in calls.items()}, options.seconds)
                        taken = calls["auto"].describe(rows).rsplit("here: ", 1)  # type: ignore[attr-defined]
                        grid.append({"kind": kind, "width": width, "density": density, "rows": rows,
                                     "us": times, "taken": taken[1] if len(taken) > 1 else "sparse"})  # fmt: skip
                        print(f"{kind}, D {width}, {100 * density:g} %, {rows} rows: " + ", ".join(
                            f"{n} {duration(t['median'])}" for n, t in times.items()), file=sys.stderr)  # fmt: skip
    result = {"machine": machine(), "grid": grid}
    write(options.out, "frozen", result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
