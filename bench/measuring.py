"""What the Python benchmarks share: calls timed in turns, and their outcome as JSON, a page and a plot."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

Times = dict[str, dict[str, float]]


def in_turns(calls: dict[str, Callable[[], object]], seconds: float) -> Times:
    """Microseconds of each call: all in turns until the time is up, three times or more. Each turn has
    an order of its own, since a call takes up to a third longer after one that uses other libraries."""
    for call in calls.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in calls}
    order, shuffle = list(calls.items()), random.Random(0).shuffle
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or min(map(len, took.values())) < 3:
        shuffle(order)
        for name, call in order:
            begin = time.perf_counter()
            call()
            took[name].append((time.perf_counter() - begin) * 1e6)
    out = {}
    for name, times in took.items():
        low, median, high = statistics.quantiles(times, n=4)
        out[name] = {"median": median, "low": low, "high": high, "calls": len(times)}
    return out


def over(inputs: Sequence[Any], call: Callable[[Any], object]) -> Callable[[], object]:
    """Takes the next of the inputs each time: one alone would find its neurons in the caches."""
    turn = itertools.cycle(inputs)
    return lambda: call(next(turn))


def speed(times: Times, of: str = "sparse", against: Iterable[str] = ()) -> float:
    """How many times as fast as the fastest of the others."""
    others = [times[name]["median"] for name in against or times if name != of]
    return min(others) / times[of]["median"]


def duration(microseconds: float) -> str:
    if microseconds < 1e4:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1e3:.0f} ms" if microseconds < 1e7 else f"{microseconds / 1e6:.0f} s"


def spread(times: dict[str, float]) -> str:
    """The median and the quartiles."""
    return f"{duration(times['median'])} ({duration(times['low'])} to {duration(times['high'])})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def machine(threads: int | None = None) -> dict[str, Any]:
    import torch
    import twell

    return {
        "processor": twell.ops.processor_name(), "tier": twell.ops.cpu_tier(),
        "threads": threads or torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip


def described(machine: dict[str, Any]) -> str:
    m = machine
    return f"{m['processor']}, tier {m['tier']}, {m['threads']} threads, PyTorch {m['torch']}."


def write(folder: Path, name: str, result: dict[str, Any], page: list[str]) -> None:
    """FOLDER/NAME.json and FOLDER/NAME.md; whole, or as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in (("json", json.dumps(result, indent=1)), ("md", "\n".join(page))):
        part = folder / f"{name}.{ending}.part"
        part.write_text(text + "\n")
        part.replace(folder / f"{name}.{ending}")


def bars(
    file: Path, groups: Sequence[str], series: dict[str, Sequence[float | None]], label: str
) -> None:
    """A group of bars for each name, a bar for each series; a line where nothing is gained."""
    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.6 * len(groups) + 2), 4))
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
        axes.bar(places, [v or 0 for v in values], width, label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    axes.set_ylabel(label)
    axes.legend(ncols=len(series), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
