"""The paper's figures beside what twell measured: the block "paper" of docs/gpu-status.md.

    paper_table.py [--check] [PAGE.md [RESULTS_DIR]]

Made of bench/results/paper.json, which has the paper's figures, and of every paper-*.json beside it (gpu_paper.py). A
cell for which there is no result is empty. --check changes nothing and fails where the page has another block.
"""

import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import markdown_block

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ("2b", "1.5b", "1b", "0.5b")
Found = dict[str, Any]
ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError)  # of JSON that is another
# What a row is, the paper's cell, the step that has ours, and how that is shown.
Row = tuple[str, str, str, Callable[[str, Found], str]]


def number(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    return f"{value:+.1f} %".replace("-", "−")


def gain(ratio: float) -> str:
    return percent(100 * (ratio - 1))


def pair(dense: float, sparse: float, unit: str = "") -> str:
    return f"{number(dense)} → {number(sparse)}{unit}"


def joined(first: str, second: str) -> str:
    return f"{first} ({second})" if first and second else first or second


def sides(found: Found) -> tuple[Found, Found]:
    """The best dense one, and the sparse one."""
    by_name = {side["name"]: side for side in found["sides"]}
    others = [side for name, side in by_name.items() if name != "sparse"]
    named = found.get("dense_impl", "dense")
    dense = by_name[named] if named in by_name else min(others, key=lambda side: side.get("us", side.get("step_us")))
    return dense, by_name["sparse"]


def phase_of(kind: str, found: Found) -> Found:
    """What has the sides of a step."""
    return found if kind == "train" else dict(found["decode" if kind == "decode" else "prefill"])


def fewer_layers(found: Found) -> str:
    run, of = found.get("layers_run"), found.get("layers_of_model")
    return "" if run == of or run is None else f"; {run} of {of} layers"


def conditions(kind: str, found: Found) -> str:
    """How many tokens, where a forward pass or a training step has not as many as the paper's."""
    if kind == "train":
        tokens, context = found.get("tokens"), found.get("context")
        windows, length, usual = (tokens / context, context, (16, 2048)) if tokens and context else (0, 0, (0, 0))
    elif kind in ("prefill", "layers"):
        windows, length, usual = found.get("batch", 0), found.get("prompt_tokens", 0), (8, 2048)
    else:
        return ""
    return "" if not length or (windows, length) == usual else f"; {windows:g} × {length:,.0f} tokens"


def speed_cell(kind: str, found: Found) -> str:
    phase = phase_of(kind, found)
    dense, sparse = sides(phase)
    eager = phase.get("speedup_eager")
    than_eager = f"; than eager {gain(eager)}" if eager else ""
    return (f"{pair(dense['tokens_per_ms'], sparse['tokens_per_ms'])} "
            f"({gain(phase['speedup'])}{than_eager}{fewer_layers(found)}{conditions(kind, found)})")  # fmt: skip


def energy_cell(kind: str, found: Found) -> str:
    dense, sparse = (side.get("energy_mj_per_token") for side in sides(phase_of(kind, found)))
    return f"{pair(dense, sparse, ' mJ')} ({gain(sparse / dense)}{conditions(kind, found)})" if dense and sparse else ""


def peak_cell(kind: str, found: Found) -> str:
    dense, sparse = sides(phase_of(kind, found))
    if not (dense.get("peak_bytes") and sparse.get("peak_bytes")):
        return ""
    batches = [side.get("micro_batch") for side in (dense, sparse)]
    note = f"; micro-batch {batches[0]} → {batches[1]}" if batches[0] != batches[1] else ""
    return f"{pair(dense['peak_bytes'] / 1e9, sparse['peak_bytes'] / 1e9, ' GB')}{note}{conditions(kind, found)}"


def correlation_cell(kind: str, found: Found) -> str:
    correlation = found["by_layer"]["correlation"]
    return "" if correlation is None else f"{correlation:.3f}".replace("-", "−") + conditions(kind, found)


def kind_of(step: str) -> str:
    """Of a step's name, which is what the results file has."""
    first = step.split("/")[0]
    return {"train": "train", "recompute": "train", "decode": "decode", "layers": "layers", "positions": "stats",
            "model": "model"}.get(first, "prefill")  # fmt: skip


def positions_cell(_kind: str, found: Found) -> str:
    return f"{found['positions'][0]['nnz_mean']:.1f}; {found['nnz_mean']:.1f}"


def in_a_line(kind: str, found: Found) -> str:
    """What a step gave, for who waits for it. An error where the JSON is not what a table needs."""
    if kind in ("prefill", "decode", "train"):
        peak_cell(kind, found)
        energy = energy_cell(kind, found)
        return f"{speed_cell(kind, found)} tokens/ms, {energy or 'no energy here'}"
    if kind == "layers":
        return f"correlation {correlation_cell(kind, found) or 'none'}"
    if kind == "stats":
        return f"non-zeros at the first position, of all: {positions_cell(kind, found)}"
    return f"{found['nnz_measured']:.1f} non-zeros"


def shown(step: Found) -> str:
    """in_a_line() of a step of a results file that is done; an error where the file has something odd."""
    name, date, commit = step["name"], step["date"], step["commit"]
    if not (isinstance(date, str) and isinstance(commit, str) and len(name.split("/")) > 1):
        raise ValueError(f"a step {name!r} of {date!r}, commit {commit!r}")
    place_of(name)
    return in_a_line(kind_of(name), step["result"])


def done_steps(result: Found) -> dict[str, Found]:
    return {step["name"]: step["result"] for step in result["steps"] if step["outcome"] == "done" and step["result"]}


def papers_speed(one: Found) -> str:
    speeds = pair(one["dense_tokens_per_ms"], one["sparse_tokens_per_ms"]) if "dense_tokens_per_ms" in one else ""
    return joined(speeds, percent(one["percent"]))


def paper_rows(paper: Found) -> list[Row]:
    rows: list[Row] = []
    for model in MODELS:
        own, name = paper["models"][model], model.upper()
        forward, energy, training, peak = (own[key] for key in ("forward", "energy", "training", "peak"))

        mj = pair(energy["dense_mj"], energy["sparse_mj"], " mJ") if "dense_mj" in energy else ""
        gb = pair(peak["dense_gb"], peak["sparse_gb"], " GB") + (f"; {peak['note']}" if "note" in peak else "")
        rows += [
            (f"{name}, forward, tokens/ms", papers_speed(forward), f"table1/{model}", speed_cell),
            (f"{name}, energy a token", joined(mj, percent(energy["percent"])), f"table1/{model}", energy_cell),
            (f"{name}, training, tokens/ms", papers_speed(training), f"train/{model}", speed_cell),
            (f"{name}, peak of training", gb, f"train/{model}", peak_cell),
        ]
    no_gate, layers = paper["no_gate"], paper["layers"]
    rows += [
        ("1.5B without a gate, forward", percent(no_gate["percent"]), "no-gate/1.5b", speed_cell),
        ("a layer's non-zeros and speedup: correlation", f"{layers['correlation']}".replace("-", "−"), "layers/1.5b",
         correlation_cell),
    ]  # fmt: skip
    return rows


def other_rows(names: list[str]) -> list[Row]:
    """What the paper has no figure of, or none in numbers."""
    rows: list[Row] = []
    for name in names:
        first, model, *more = name.split("/")
        batch = "".join(f", batch {part[5:]}" for part in more if part.startswith("batch"))
        batch += "".join(f", prompts of {part[6:]}" for part in more if part.startswith("prompt"))
        upper = model.upper()
        if first == "recompute":
            rows.append((f"{upper}, training with recomputation, tokens/ms", "", name, speed_cell))
            rows.append((f"{upper}, its peak", "", name, peak_cell))
        elif first == "decode":
            rows.append((f"{upper}, decoding{batch}, tokens/ms", "", name, speed_cell))
        elif first == "nnz":
            rows.append((f"{upper}, {more[0]} non-zeros{batch}, forward, tokens/ms", "", name, speed_cell))
            rows.append((f"{upper}, {more[0]} non-zeros{batch}, energy a token", "", name, energy_cell))
        elif first == "layers":
            rows.append((f"{upper}{batch}, correlation of layers", "", name, correlation_cell))
        elif first == "positions":
            rows.append((f"{upper}, non-zeros at the first position; of all", "", name, positions_cell))
        elif first in ("table1", "no-gate"):
            gate = " without a gate" if first == "no-gate" else ""
            rows.append((f"{upper}{gate}{batch}, forward, tokens/ms", "", name, speed_cell))
            rows.append((f"{upper}{gate}{batch}, energy a token", "", name, energy_cell))
    return rows


def place_of(name: str) -> tuple[int, float]:
    """In the order of the paper; levels of activity by themselves."""
    first, _, *more = name.split("/")
    order = ("table1", "recompute", "decode", "no-gate", "layers", "nnz", "positions")
    return (order.index(first) if first in order else len(order)), -float(more[0]) if first == "nnz" else 0.0


def tables(results: list[Found], paper: Found | None = None) -> str:
    """In markdown; of no result, the paper's figures alone."""
    if paper is None:
        paper = json.loads((ROOT / "bench/results/paper.json").read_text())
    found = [done_steps(result) for result in results]
    columns = [result.get("gpu") or result["processor"] for result in results] or ["twell"]
    rows = paper_rows(paper)
    known = {step for _, _, step, _ in rows}
    names: list[str] = []
    for steps in found:
        names += [name for name in steps if name not in known and name not in names]
    lines = [["dense → sparse", f"paper, {paper['hardware']}", *columns]]
    for place, (what, cell, step, show) in enumerate([*rows, *other_rows(sorted(names, key=place_of))]):
        ours = [show(kind_of(step), steps[step]) if step in steps else "" for steps in found] or [""]
        if place < len(rows) or any(ours):
            lines.append([what, cell, *ours])
    return markdown_block.table(lines)


def runs(result: Found) -> str:
    """Where and when the steps of a file were measured."""
    done = [step for step in result["steps"] if step["outcome"] == "done" and step["result"]]
    dates = sorted({step["date"][:10] for step in done})
    commits = sorted({step["commit"] for step in done if step["commit"]})
    driver = f", driver {result['driver']}" if "driver" in result else ""
    return (f"{result.get('gpu') or result['processor']}{driver}: {', '.join(dates)}"
            + (f", commit {', '.join(commits)}" if commits else "") + ".")  # fmt: skip


def read(file: pathlib.Path) -> Any:
    """Raises ValueError, which names the file."""
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"{file.name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is damaged: {error}") from None


def load(folder: pathlib.Path, paper: Found) -> list[Found]:
    """The results that have any; GPUs first. Raises ValueError, which names the file."""
    every = []
    for file in sorted(folder.glob("paper-*.json")):
        one = read(file)
        try:
            for step in one["steps"]:
                if step["outcome"] == "done" and step["result"]:
                    shown(step)
            tables([one], paper)
            runs(one)
            place = one["device"] != "cuda"
        except ODD as error:
            raise ValueError(f"{file.name} is not what gpu_paper.py writes: {error!r}") from None
        if done_steps(one):
            every.append((place, one))
    return [one for _, one in sorted(every, key=lambda pair: pair[0])]


def block(folder: pathlib.Path) -> str:
    """Raises ValueError, which names a file that is not what it should be."""
    paper = read(folder / "paper.json")
    try:
        tables([], paper)
    except ODD as error:
        raise ValueError(f"paper.json is not what it should be: {error!r}") from None
    results = load(folder, paper)
    return "\n\n".join([tables(results, paper), *map(runs, results)])


def main() -> int:
    names = [name for name in sys.argv[1:] if name != "--check"]
    page = pathlib.Path(names[0]) if names else ROOT / "docs/gpu-status.md"
    folder = pathlib.Path(names[1]) if len(names) > 1 else ROOT / "bench/results"
    try:
        wrong = markdown_block.update(page, "paper", block(folder), check="--check" in sys.argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {page.name}: {error.strerror}", file=sys.stderr)
        return 1
    if wrong:
        print(f"error: {wrong}; run scripts/lib/paper_table.py", file=sys.stderr)
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main())
