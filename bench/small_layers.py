#!/usr/bin/env python3
"""A small layer with biases, as many trained models have it (D = 256, H = 1024, 4 % of the neurons
firing): frozen by twell against PyTorch's separate operations ("eager") and those of its fused encoder
layer ("fast path"); and the same within a whole torch.nn.TransformerEncoderLayer.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/small_layers.py --threads 2 --out DIR

DIR/small.json, small.md and small.svg are the outcome. Neurons are as popular as in trained models: 30 %
never fire, the others' shares are lognormal.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import torch
import twell
from measuring import bars, described, in_turns, machine, over, speed, spread, table, write
from torch import Tensor, nn

POOL = 512


def layer_of(width: int, neurons: int, share: float, heads: int) -> nn.TransformerEncoderLayer:
    """Its feed-forward part sees inputs of unit variance, and is biased so that the share fires."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(width, heads, neurons, batch_first=True).eval()
    with torch.no_grad():
        shares = torch.empty(neurons).log_normal_(0, 1)
        shares[torch.randperm(neurons)[: int(0.3 * neurons)]] = 0
        for _ in range(20):  # what is cut off goes to the others
            shares = (shares * share / shares.mean()).clamp(max=0.9)
        nn.init.normal_(layer.linear1.weight, std=width**-0.5)
        layer.linear1.bias.copy_(-torch.special.ndtri(1 - shares.double()).clamp(max=12))
    return layer


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    width, neurons = options.width, options.neurons
    layer = layer_of(width, neurons, options.share, options.heads)
    pool = torch.nn.functional.layer_norm(torch.randn(1, POOL, width), (width,))
    sparse = twell.sparsify(copy.deepcopy(layer), sample=pool)
    (inner,) = twell.sparse_layers(sparse).values()
    first, second = layer.linear1, layer.linear2

    def fast(x: Tensor) -> Tensor:
        """The operators that the fused encoder layer calls."""
        h = torch._addmm_activation(first.bias, x, first.weight.t())
        return torch.addmm(second.bias, h, second.weight.t())

    def eager_layer(x: Tensor) -> Tensor:
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return layer(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    found = []
    seen = torch.relu(first(layer.norm1(pool[0])))
    for rows in options.rows:
        parts = pool[0].repeat(-(-rows // POOL), 1).split(rows)
        parts = [part.contiguous() for part in parts if len(part) == rows]
        whole = [part[None] for part in parts]
        calls = {
            "layer": {
                "eager": over(parts, lambda x: second(torch.relu(first(x)))),
                "fast path": over(parts, fast),
                "sparse": over(parts, inner),
            },
            "encoder layer": {
                "eager": over(whole, eager_layer),
                "fast path": over(whole, layer),
                "sparse": over(whole, sparse),
            },
        }
        for what, each in calls.items():
            times = in_turns(each, options.seconds)
            found.append({"what": what, "rows": rows, "us": times, "speed": speed(times)})
            print(f"{what}, {rows} rows: " + ", ".join(
                f"{name} {spread(t)}" for name, t in times.items()
            ) + f": {speed(times):.2f}x the fastest dense", flush=True)  # fmt: skip
    for each in found:
        each |= {"share": float((seen != 0).float().mean()), "screened": inner.screened}
    return found


def page(result: dict[str, Any]) -> list[str]:
    names = ["eager", "fast path", "sparse"]
    rows = [
        [r["what"], str(r["rows"]), *(spread(r["us"][name]) for name in names), f"{r['speed']:.2f}×"]
        for r in result["rows"]
    ]
    first = result["rows"][0]
    return [
        "# A small layer", "",
        (f"Written by `bench/small_layers.py`. D = {result['width']}, H = {result['neurons']}, float32, "
        f"biases; {first['share']:.1%} of the neurons"),
        f"fire. The gate is {'screened' if first['screened'] else 'packed'}. "
        + described(result["machine"]),
        "Medians of calls in turns, with quartiles. The last column is the speed against the faster of",
        "PyTorch's two.", "", *table(["what", "rows", *names, "faster"], rows), "",
        "![Speed of the sparse layer](small.svg)",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--neurons", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.04, help="of the neurons that fire")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=2.0, help="for each call that is timed")
    parser.add_argument("--out", type=Path, help="a folder for small.json, small.md, small.svg")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        rows = measure(options)
    if options.out:
        result = {"machine": machine(options.threads), "width": options.width,
                  "neurons": options.neurons, "rows": rows}  # fmt: skip
        groups = [str(rows) for rows in options.rows]
        series = {what: [r["speed"] for r in rows if r["what"] == what]
                  for what in ("layer", "encoder layer")}  # fmt: skip
        bars(options.out / "small.svg", groups, series, "times as fast as PyTorch's faster form")
        write(options.out, "small", result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
