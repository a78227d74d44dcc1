#!/usr/bin/env python3
"""Real trained models with and without sparse layers, in the same process, in turns.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/real_models.py --threads 2 --json real.json

So far `ruaccent-predictor` 1.2.0 (examples/russian_stress.py says what it is): one layer on its real
inputs, the encoder against PyTorch's fused layers ("fast path") and its separate operations, and texts
from end to end. Times are medians of calls in turns, with quartiles; answers are compared first. Where
the package is not installed, it says so and skips.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import twell
from torch import Tensor, nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[1]


def example() -> Any:
    spec = importlib.util.spec_from_file_location("stress", ROOT / "examples" / "russian_stress.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_turns(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds of each call: all in turns until the time is up, three times or more."""
    for call in calls.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or min(map(len, took.values())) < 3:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            took[name].append((time.perf_counter() - begin) * 1e6)
    out = {}
    for name, times in took.items():
        low, median, high = statistics.quantiles(times, n=4)
        out[name] = {"median": median, "low": low, "high": high, "calls": len(times)}
    return out


def inputs_of(model: nn.Module, sample: Any) -> dict[str, Tensor]:
    """What enters linear1 of each layer."""
    seen: dict[str, Tensor] = {}
    hooks = [
        module.linear1.register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: given[0].reshape(-1, given[0].shape[-1])})
        )
        for name, module in model.named_modules()
        if hasattr(module, "linear1")
    ]
    try:
        with torch.no_grad():
            model(*sample)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def measure_layers(model: nn.Module, sparse: nn.Module, sample: Any, seconds: float) -> list[Any]:
    results = []
    report = {layer.name: layer for layer in twell.report(model, sample).layers}
    for name, x in inputs_of(model, sample).items():
        owner, layer = model.get_submodule(name), sparse.get_submodule(f"{name}.sparse_ffn")
        packed = copy.deepcopy(layer).thaw().freeze()
        for rows in (1, 8, 64, 512):
            part = x.repeat(-(-rows // len(x)), 1)[:rows].contiguous()
            calls = {
                "torch": lambda o=owner, p=part: o.linear2(functional.relu(o.linear1(p))),
                "sparse": lambda layer=layer, p=part: layer(p),
                "packed": lambda layer=packed, p=part: layer(p),
            }
            results.append({
                "layer": name, "rows": rows, "share": report[name].share,
                "screened": layer.screened, "us": in_turns(calls, seconds),
            })  # fmt: skip
    return results


def measure_encoder(
    model: Any, sparse: Any, source: Tensor, batches: list[int], seconds: float
) -> list[Any]:
    results = []
    for batch in batches:
        x = model.embed(source.repeat(-(-batch // len(source)), 1)[:batch])

        def eager(x: Tensor = x) -> Tensor:
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                return model.transformer.encoder(x)
            finally:
                torch.backends.mha.set_fastpath_enabled(True)

        calls = {
            "fast path": lambda x=x: model.transformer.encoder(x),
            "eager": eager,
            "sparse": lambda x=x: sparse.transformer.encoder(x),
        }
        results.append({"batch": batch, "tokens": x.shape[1], "us": in_turns(calls, seconds)})
    return results


def measure_texts(example: Any, batches: list[int], seconds: float) -> list[Any]:
    dense, sparse = example.load(), example.load()
    twell.sparsify(sparse.model, sample=example.sample_of(sparse))
    results = []
    for batch in batches:
        texts = (example.TEXTS * -(-batch // len(example.TEXTS)))[:batch]
        same = example.marked(dense, texts) == example.marked(sparse, texts)

        def run(accentor: Any, texts: list[str] = texts) -> list[str]:
            accentor._cache.clear()
            return accentor._predict_batch(texts)

        calls = {"torch": lambda: run(dense), "sparse": lambda: run(sparse)}
        results.append({"batch": batch, "same": same, "us": in_turns(calls, seconds)})
    return results


def show(result: dict[str, Any]) -> None:
    for part in ("layers", "encoder", "texts"):
        for row in result[part]:
            what = ", ".join(f"{k} {v}" for k, v in row.items() if k not in ("us", "share"))
            times = {name: t["median"] for name, t in row["us"].items()}
            base = min(t for name, t in times.items() if name not in ("sparse", "packed"))
            took = ", ".join(f"{name} {t:.0f} us" for name, t in times.items())
            print(f"{part}: {what}: {took}: {base / times['sparse']:.2f}x the fastest dense")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each call that is timed")
    parser.add_argument("--batches", default="1,8,64", help="64 texts take minutes a call")
    parser.add_argument("--json", help="a file for the results")
    arguments = parser.parse_args()
    stress = example()
    try:
        accentor = stress.load()
    except ImportError as error:
        print(f"skipped: {error} (pip install ruaccent-predictor==1.2.0)")
        return 0
    torch.set_num_threads(arguments.threads)
    batches = [int(batch) for batch in arguments.batches.split(",")]
    sample = stress.sample_of(accentor)
    model = accentor.model
    sparse = twell.sparsify(copy.deepcopy(model), sample=sample)
    with torch.no_grad():
        result = {
            "model": "ruaccent-predictor 1.2.0", "threads": arguments.threads,
            "processor": twell.ops.processor_name(), "tier": twell.ops.cpu_tier(),
            "torch": torch.__version__, "report": twell.report(model, sample).to_dict(),
            "layers": measure_layers(model, sparse, sample, arguments.seconds),
            "encoder": measure_encoder(model, sparse, sample[0], batches, arguments.seconds),
            "texts": measure_texts(stress, batches, arguments.seconds),
        }  # fmt: skip
    show(result)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
