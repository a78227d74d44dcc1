"""What a results file of scripts/gpu_check (bench/results/gpu-<model>.json) has, by the names of what was measured."""

import re
from typing import Any

Line = dict[str, Any]
PARTS = ("ceilings", "bench", "train", "probe-gate", "probe-rows", "probe-graph")
# An H100 was measured with several numbers of rows at a time, in a part of its own. Plans take this one since then;
# in the other parts they took 2,048.
ROWS_SINCE, ROWS_BEFORE = 4096, 2048
# What that part calls by a mean, the others call by what was asked for.
NNZ_OF = {"ffn": {28.7: 29, 28.6: 29, 112.5: 113, 112.3: 113}, "train": {27.6: 28, 112.3: 113}}


def lines_of_rows_at_a_time(found: dict[str, Any]) -> list[Line]:
    lines: list[Line] = []
    for one in found.get("rows_at_a_time", []):
        if one["rows"] != ROWS_SINCE:
            continue
        what, tokens = one["what"], one["tokens"]
        nnz = NNZ_OF[what][one["nnz"]]
        us, dense = (one["us"], one["dense_us"]) if what == "ffn" else (one["train_us"], one["gemms_us"])
        lines.append({"kind": what, "variant": f"{what}/{tokens}/{nnz}", "us": us, "tokens": tokens,
                      "speedup": dense / us})  # fmt: skip
        name = f"dense/{tokens}/{nnz}" if what == "ffn" else f"train_dense/{tokens}"
        lines.append({"kind": "dense", "variant": name, "us": dense})
    return [{**line, "part": "rows_at_a_time"} for line in lines]


def is_of_an_earlier_plan(line: Line) -> bool:
    rows = re.search(r"rows in blocks of (\d+)", line.get("impl", ""))
    return rows is not None and line.get("tokens", 0) > ROWS_BEFORE == int(rows[1])


def by_variant(found: dict[str, Any]) -> dict[str, Line]:
    """Every line with a name, and the part that it is of.

    Every part of the benchmark but the probes begins with the ceilings, and the last one is taken. Nothing is left of
    an earlier plan where a later one was measured; other lines of it have "earlier_plan".
    """
    lines = {
        line["variant"]: {**line, "part": part}
        for part in PARTS
        for line in found.get(part, {}).get("results", [])
        if "variant" in line
    }
    for name, line in lines.items():
        if is_of_an_earlier_plan(line):
            line["earlier_plan"] = True
            if (rest := name.replace("ffn/", "gather/")) != name and rest in lines:
                lines[rest]["earlier_plan"] = True
    for line in lines_of_rows_at_a_time(found):
        lines[line["variant"]] = line
        lines.pop(line["variant"].replace("ffn/", "gather/") if line["kind"] == "ffn" else "", None)
    return lines


def dense_training_us(found: dict[str, Any], tokens: int) -> list[float]:
    """Medians of the GEMMs of dense training, one a run."""
    results = found.get("train", {}).get("results", [])
    medians = {line["us"] for line in results if line.get("variant") == f"train_dense/{tokens}"}
    return sorted(medians | {one["gemms_us"] for one in found.get("rows_at_a_time", [])
                             if one["what"] == "train" and one["tokens"] == tokens})  # fmt: skip
