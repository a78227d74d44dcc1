"""Predictions beside what was measured: the table of cuda/bench/predictions.md.

Between two markers stands a table in markdown with the columns variant, predicted and measured, in any order and with
others beside them; a column "part" gets the part of gpu_check that a line is of. A variant is the stable name of a line
that twell_gpu_bench reports; a prediction is a number or a range with its unit ("2.1 ms", "3.0–3.4 TB/s", "1.3 ×"), and
the measurement is written in that unit.
"""

import dataclasses
import re
from typing import Any

BEGIN, END = "<!-- gpu-model:begin -->", "<!-- gpu-model:end -->"
# A prediction that is further off is an assumption that does not hold.
FACTOR = 1.3
# Unit: the field of a reported line, and how much of the field's unit it is.
UNITS = {
    "ns": ("us", 1e-3),
    "µs": ("us", 1.0),
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "s": ("us", 1e6),
    "GB/s": ("bytes_per_s", 1e9),
    "TB/s": ("bytes_per_s", 1e12),
    "GFLOP/s": ("flops_per_s", 1e9),
    "TFLOP/s": ("flops_per_s", 1e12),
    "PFLOP/s": ("flops_per_s", 1e15),
    "×": ("speedup", 1.0),
    "x": ("speedup", 1.0),
}
# What one case of twell_gpu_bench measures in turns: of two runs, gate and gather do not add up to the layer.
OF_A_CASE = ("ffn", "dense", "gate", "gather")
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = "|".join(map(re.escape, sorted(UNITS, key=len, reverse=True)))
PREDICTION = re.compile(rf"({NUMBER})(?:\s*(?:–|-|to)\s*({NUMBER}))?\s*({UNIT})(?![\w/])")


@dataclasses.dataclass
class Prediction:
    low: float
    high: float
    unit: str

    def measured(self, line: dict[str, Any]) -> float | None:
        """What the line has of this, in the prediction's unit."""
        field, scale = UNITS[self.unit]
        value = line.get(field)
        return None if value is None else value / scale

    def off_by(self, measured: float) -> float:
        """1 within the range, else how many times as large or small."""
        if measured <= 0:
            return float("inf")
        return max(measured / self.high, self.low / measured, 1.0)


def prediction_of(cell: str) -> Prediction | None:
    # GPU documents have both code points of µ.
    found = PREDICTION.search(cell.replace("\u03bc", "µ"))
    if not found:
        return None
    low = float(found[1].replace(",", ""))
    high = float((found[2] or found[1]).replace(",", ""))
    if low <= 0 or high < low:
        return None
    return Prediction(low, high, found[3])


def number(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1e-3 else f"{value:.2g}"


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def case_of(variant: str) -> str | None:
    kind, _, case = variant.partition("/")
    return case if kind in OF_A_CASE else None


def written(row: str, columns: dict[str, int], values: dict[str, str]) -> str:
    """The row with these cells, of columns that it has."""
    pieces = row.split("|")  # the first is what stands before the table's edge
    for column, value in values.items():
        if column in columns:
            pieces[1 + columns[column]] = f" {value} " if value else " "
    return "|".join(pieces)


def fill(text: str, lines: dict[str, dict[str, Any]], all_of_it: bool = False) -> tuple[str, list[str]]:
    """The text with what was measured, and a message for each prediction that does not hold.

    `lines` has the reported lines by variant. Text without markers stays as it is; so do rows whose variant was not
    measured, or not in the dimension that was predicted. The cells of such rows become empty if the lines are
    `all_of_it`, and where the case was measured otherwise: what stood there is of another run. Raises ValueError where
    the table is not one.
    """
    if BEGIN not in text or END not in text:
        return text, []
    before, rest = text.split(BEGIN, 1)
    table, after = rest.split(END, 1)
    rows = table.splitlines(keepends=True)
    columns: dict[str, int] = {}
    messages = []
    cases = {case_of(variant) for variant in lines} - {None}
    for i, row in enumerate(rows):
        if not row.lstrip().startswith("|"):
            continue
        cells = cells_of(row)
        if not columns:
            columns = {name.lower(): place for place, name in enumerate(cells)}
            missing = {"variant", "predicted", "measured"} - columns.keys()
            if missing:
                raise ValueError(f"the table between {BEGIN} and {END} has no column {', '.join(sorted(missing))}")
            continue
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        if len(cells) != len(columns):
            raise ValueError(f"expected {len(columns)} cells: {row.strip()}")
        variant = cells[columns["variant"]].strip("`")
        prediction = prediction_of(cells[columns["predicted"]])
        line = lines.get(variant, {})
        measured = prediction.measured(line) if prediction else None
        of_another_run = variant not in lines and case_of(variant) in cases
        if prediction is None or measured is None:
            if all_of_it or (prediction is not None and of_another_run):
                rows[i] = written(row, columns, {"measured": "", "part": ""})
            continue
        shown = f"{number(measured)} {prediction.unit}"
        part = line.get("part", "") + (", earlier plan" if line.get("earlier_plan") else "")
        rows[i] = written(row, columns, {"measured": shown, "part": part})
        off = prediction.off_by(measured)
        if off > FACTOR:
            messages.append(
                f"assumption failed: {variant}: predicted {cells[columns['predicted']]}, "
                f"measured {shown} ({off:.2f} times off)"
            )
    if not columns:
        raise ValueError(f"there is no table between {BEGIN} and {END}")
    return before + BEGIN + "".join(rows) + END + after, messages
