#!/usr/bin/env python3
"""One feed-forward layer in the shapes and at the densities of published models: PyTorch's fastest
dense form against sparse, and what --path auto makes of the two.

    bench/model_shapes.py --twell PROGRAM [--models NAME...] [--out DIR]

Weights and activity are synthetic (`twell bench ffn`); where a model's density is not published, three
are assumed. Each model is a process of its own, in which both sides take turns. DIR/shapes.json,
shapes.md and shapes.svg are the outcome.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import bars, duration, table, write


@dataclass(frozen=True)
class Model:
    name: str
    width: int
    neurons: int
    gated: bool
    biases: bool
    activation: str
    densities: tuple[float, ...]
    """Shares of the neurons that fire."""
    source: str


_ASSUMED = "assumed"
MODELS = (
    Model("opt-125m", 768, 3072, False, True, "relu", (0.03, 0.05), "Deja Vu (2310.17157)"),
    Model("opt-1.3b", 2048, 8192, False, True, "relu", (0.03, 0.05), "Deja Vu (2310.17157)"),
    Model("t5-base", 768, 3072, False, False, "relu", (0.03,), "The Lazy Neuron (2210.06313)"),
    Model("bitnet-2b", 2560, 6912, True, False, "relu_squared", (0.20,), "BitNet a4.8 (2411.04965)"),
    Model("prosparse-7b", 4096, 11008, True, False, "relu", (0.107,), "ProSparse (2402.13516)"),
    Model("minicpm-s-1b", 1536, 3840, True, False, "relu", (0.121,), "ProSparse (2402.13516)"),
    Model("afm-4.5b", 2560, 18432, False, False, "relu_squared", (0.05, 0.10, 0.20), _ASSUMED),
    Model("nemotron-4b", 3072, 9216, False, False, "relu_squared", (0.05, 0.10, 0.20), _ASSUMED),
    Model("jais-2-8b", 3328, 26624, False, True, "relu_squared", (0.05, 0.10, 0.20), _ASSUMED),
)  # fmt: skip


def measure(program: str, model: Model, tokens: str, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "layer.json"
        command = [
            program, "bench", "ffn", "--width", str(model.width), "--neurons", str(model.neurons),
            "--nnz", ",".join(f"{share * model.neurons:.0f}" for share in model.densities),
            "--tokens", tokens, "--activation", model.activation, "--repeats", str(repeats),
            "--gated" if model.gated else "--no-gated", "--json", str(out),
        ]  # fmt: skip
        if model.biases:
            command.append("--biases")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            sys.exit(f"model_shapes: error: {model.name}: {said[-1] if said else 'no word'}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def page(rows: list[dict[str, Any]], machine: dict[str, Any]) -> list[str]:
    cells = []
    for row in rows:
        m, r = row["model"], row["result"]
        dense = " d" if r["auto_path"] == "dense" else ""
        cells.append([
            m["name"], str(m["width"]), str(m["neurons"]), "yes" if m["gated"] else "no",
            m["activation"], f"{r['nnz_mean'] / m['neurons']:.1%}", str(r["tokens"]),
            duration(r["dense_us"]), duration(r["sparse_us"]), f"{r['speedup']:.2f}×",
            f"{r['auto_speedup']:.2f}×{dense}", m["source"],
        ])  # fmt: skip
    return [
        "# Layers in the shapes of published models", "",
        "Written by `bench/model_shapes.py`, which runs `twell bench ffn` on each, with weights and",
        "activity that are synthetic. The last column says who published the density, or that it is",
        "assumed. Speeds are against the fastest of PyTorch's dense forms; `d`: auto takes the dense one.",
        "", ", ".join([
            machine["processor"], f"tier {machine['cpu_tier']}", f"{machine['threads']} threads",
            machine["dtype"],
        ]) + ".", "",
        *table(["layer", "D", "H", "gate", "activation", "fire", "tokens", "dense", "sparse", "sparse",
                "auto", "source"], cells), "",
        "![Speed of the layers](shapes.svg)",
    ]  # fmt: skip


def plot(file: Path, rows: list[dict[str, Any]]) -> None:
    groups: dict[str, dict[int, float]] = {}
    for row in rows:
        share = row["result"]["nnz_mean"] / row["model"]["neurons"]
        name = f"{row['model']['name']}, {share:.0%}"
        groups.setdefault(name, {})[row["result"]["tokens"]] = row["result"]["auto_speedup"]
    tokens = sorted({row["result"]["tokens"] for row in rows})
    series = {f"{t} tokens": [of.get(t) for of in groups.values()] for t in tokens}
    bars(file, list(groups), series, "times as fast as PyTorch's fastest (auto)")


def main() -> None:
    names = [model.name for model in MODELS]
    parser = argparse.ArgumentParser(
        prog="model_shapes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--twell", default="twell", help="the program (default: of PATH)")
    parser.add_argument("--models", nargs="+", default=names, choices=names, help="default: all")
    parser.add_argument("--tokens", default="1,8,64,512", help="tokens of a call, a list")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each side")
    parser.add_argument("--out", type=Path, help="a folder for shapes.json, shapes.md, shapes.svg")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'layer':14}{'D':>6}{'H':>7}{'fire':>8}{'tokens':>8}{'dense':>11}{'sparse':>11}"
          f"{'sparse':>8}{'auto':>8}  source of the density")  # fmt: skip
    for model in (m for m in MODELS if m.name in options.models):
        found = measure(options.twell, model, options.tokens, options.repeats)
        machine = {**found["machine"], "dtype": found["dtype"]}
        for r in found["results"]:
            rows.append({"model": asdict(model), "result": r})
            share = r["nnz_mean"] / model.neurons
            print(f"{model.name:14}{model.width:6}{model.neurons:7}{share:8.1%}{r['tokens']:8}"
                  f"{r['dense_us']:8.0f} µs{r['sparse_us']:8.0f} µs{r['speedup']:7.2f}x"
                  f"{r['auto_speedup']:7.2f}x  {model.source}", flush=True)  # fmt: skip
        if options.out:
            write(options.out, "shapes", {"machine": machine, "rows": rows}, page(rows, machine))
            plot(options.out / "shapes.svg", rows)


if __name__ == "__main__":
    main()
