"""Every figure of a GPU on a page comes from a results file.

Tables are generated: here they are generated again. What stands in sentences and in other tables has to be in a results
file, to the digits given. A figure that nobody measured has its reason below.
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))
import layer_table  # noqa: E402
import markdown_block  # noqa: E402
from gpu_results import by_variant  # noqa: E402

GENERATED = {"gpu-status.md": ("gpu-layers", "paper"), "gpu-model.md": ("gpu-model",)}
# Words of a page whose figures were not measured, and why they may stand there.
NOT_MEASURED = {
    "gpu-status.md": {
        "the data sheet says 4.8 TB/s": "data sheet",
        "1.0 times the 32-byte sectors": "counted by the emulation",
        "more than 1.3 times": "a limit",
    },
    "gpu-model.md": {
        "more than 1.3 times": "a limit",
        "take 1.5 times as long as the mean": "176 blocks for 132 SMs",
        "costs 13 ps a token, gathered 2.5 ns a firing": "the formula's",
        "one after the other, 58 ns each": "fitted, the formula's",
        "70 % of 1,071 TFLOP/s": "data sheet",
        "78 % of 3.35 TB/s": "data sheet",
        "clock and SM: 3.3 TB/s": "the formula's",
        "| 1.2 µs |": "the formula's",
        "| 9.5 µs |": "the formula's",
        "| 10 µs, 58 ns a candidate |": "the formula's",
        "| 8 µs |": "the formula's",
        "bytes of L2, + 9.5 µs, both": "the formula",
        "transpose = 15 µs + M·(H − K)/4 bytes of memory + 15 µs for each turn": "the formula",
        "+ 14 µs     (rows of Wd, Wg, Wu)": "the formula",
        "at 1.5 times the gather's rate": "the formula",
        "bytes of memory + 9.5 µs": "the formula",
    },
}
NUMBER = r"\d[\d,]*(?:\.\d+)?"
# Unit on a page: what is measured, and how much of its unit.
UNITS = {
    "ps": ("us", 1e-6),
    "ns": ("us", 1e-3),
    "µs": ("us", 1.0),
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "GB/s": ("bytes/s", 1e9),
    "TB/s": ("bytes/s", 1e12),
    "GFLOP/s": ("flops/s", 1e9),
    "TFLOP/s": ("flops/s", 1e12),
    "tokens/s": ("tokens/s", 1.0),
    "tokens/ms": ("tokens/s", 1e3),
    "mJ": ("mJ", 1.0),
    "times": ("ratio", 1.0),
}
FIGURES = re.compile(
    rf"(?<![\w.,])((?:{NUMBER}(?:,? (?:and|to|or|of|instead of)|,|;| /|:) (?:H[12]00: )?)*{NUMBER})\)?\s+"
    rf"({'|'.join(map(re.escape, sorted(UNITS, key=len, reverse=True)))})(?![\w/])"
)


def kind_of(path):
    """What a value of a results file is, by its keys."""
    key = path[-1]
    if "bytes_per_s" in key or "flops_per_s" in key:
        return key.split("_")[0] + "/s"
    if "tokens_per_" in key:
        return "tokens/s"
    if any("_mj" in one for one in path):
        return "mJ"
    if "speedup" in key:
        return "ratio"
    if "us" in key.split("_"):
        return "us"
    return None


def values_in(node, path=()):
    """(what it is, value) of every number of a results file."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from values_in(value, (*path, key))
    elif isinstance(node, list):
        for value in node:
            yield from values_in(value, path)
    elif isinstance(node, (int, float)) and not isinstance(node, bool) and (kind := kind_of(path)):
        yield kind, node * 1e3 if path[-1] == "tokens_per_ms" else node


def measured():
    """The values of all results files, by what they are."""
    found = {}
    for file in [*(ROOT / "bench/results").glob("gpu-*.json"), *(ROOT / "bench/results").glob("paper*.json")]:
        for kind, value in values_in(json.loads(file.read_text())):
            found.setdefault(kind, []).append(value)
    return found


def is_in(figure, unit, values):
    """One of the values is this, rounded to the digits given."""
    kind, scale = UNITS[unit]
    decimals = len(figure.partition(".")[2])
    wanted = float(figure.replace(",", ""))
    return any(abs(value / scale - wanted) <= 0.5000001 * 10**-decimals for value in values.get(kind, []))


def unfounded(name, text, values, not_measured):
    """(line number, figure) of those that no results file has."""
    for words in not_measured:
        assert words in text, f"{name} does not say '{words}' any more: take it from the list"
        # A figure in other words of the same line is looked for.
        text = text.replace(words, " " * len(words))
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for figures, unit in FIGURES.findall(line):
            for figure in re.findall(NUMBER, re.sub("H[12]00:", "", figures)):
                if not is_in(figure.rstrip(","), unit, values):
                    found.append((number, f"{figure.rstrip(',')} {unit}"))
    return found


@pytest.mark.parametrize("name", GENERATED)
def test_every_figure_is_in_a_results_file(name):
    text = (ROOT / "docs" / name).read_text()
    for block in GENERATED[name]:
        text = markdown_block.without(text, block)
    found = unfounded(name, text, measured(), NOT_MEASURED[name])
    assert not found, "\n".join(f"docs/{name}:{line}: {figure} is in no results file" for line, figure in found)


@pytest.mark.parametrize("program", ["layer_table.py", "paper_table.py"])
def test_the_tables_are_what_the_results_give(program):
    done = subprocess.run([sys.executable, ROOT / "scripts/lib" / program, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def gpu_rows():
    """Rows of the README's tables that have figures of a GPU."""
    for number, line in enumerate((ROOT / "README.md").read_text().splitlines(), 1):
        if line.startswith("|") and re.search(r"H[12]00", line) and re.search(r"\d\.\d", line):
            yield number, line


def test_the_readme_has_what_the_results_have():
    results = {gpu: by_variant(found) for gpu, found in layer_table.load(ROOT / "bench/results").items()}
    rows = list(gpu_rows())
    assert rows
    for number, line in rows:
        row = re.fullmatch(r"\| a layer, (H[12]00), ([\d, /]+) tokens \| ([\d. /]+) \|", line)
        assert row, f"README.md:{number}: no row that this test knows"
        tokens, ratios = ([one.replace(",", "") for one in row[part].split(" / ")] for part in (2, 3))
        ours = [f"{results[row[1]][f'ffn/{one}/29']['speedup']:.2f}" for one in tokens]
        assert ratios == ours, f"README.md:{number}: {ratios}, the results have {ours}"


def test_what_no_file_has_is_found():
    values = {"us": [23.36, 1167.7], "bytes/s": [2.442e12], "ratio": [1.4534], "tokens/s": [88_100.0], "mJ": [6.51]}
    text = (
        "It takes 23.4 µs, 23.5 µs, 1,168 µs or 1.2 ms.\n"
        "It reads 2.44 to 2.74 TB/s, 2.4 TB/s; is 1.45 and 1.64 times as fast: 88.1 tokens/ms\n"
        "at 6.51 mJ instead of 7.85 mJ, 326 mJ (the data sheet says 3.35 TB/s), in 2048 x 5632.\n"
    )
    found = unfounded("page", text, values, ["the data sheet says 3.35 TB/s"])
    assert found == [(1, "23.5 µs"), (2, "2.74 TB/s"), (2, "1.64 times"), (3, "7.85 mJ"), (3, "326 mJ")]
    with pytest.raises(AssertionError, match="does not say"):
        unfounded("page", text, values, ["the data sheet says 4.8"])
