"""Every figure of a GPU on a page comes from a results file.

Tables are generated: here they are generated again. What stands in sentences and in other tables has to be in a results
file, to the digits given: of the GPU that the sentence, the cell or its column names; where none is named, of either
GPU or of the paper. A figure that nobody measured has its reason below.
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

GENERATED = {"gpu-status.md": ("gpu-layers", "paper"), "gpu-model.md": ()}
# Words of a page whose figures were not measured, and why they may stand there.
NOT_MEASURED = {
    "gpu-status.md": {
        "the data sheet says 4.8 TB/s": "data sheet",
        "1.0 times the 32-byte sectors": "counted by the emulation",
        "more than 1.3 times": "a limit",
    },
    "gpu-model.md": {
        "take 1.5 times as long as the mean": "176 blocks for 132 SMs",
        "costs 13 ps a token; gathered, it costs 2.5 ns a firing": "the formula's",
        "58 ns each": "fitted, the formula's",
        "in gathers and packing, 3.3 TB/s": "the formula's",
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
    if re.fullmatch(r"(?:\w+_)?(?:speedup|ratio)(?:_min|_max|_eager)?", key):
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


def source_of(file, found):
    """The GPU of a results file, or the paper; nothing for a CPU's."""
    if file.name == "paper.json":
        return "paper"
    gpu = re.search(r"H[12]00", found.get("gpu", ""))
    return gpu[0] if gpu else None


def measured():
    """The values of all results files, by their source and what they are."""
    sources = {}
    for file in [*(ROOT / "bench/results").glob("gpu-*.json"), *(ROOT / "bench/results").glob("paper*.json")]:
        found = json.loads(file.read_text())
        if source := source_of(file, found):
            for kind, value in values_in(found):
                sources.setdefault(source, {}).setdefault(kind, []).append(value)
    return sources


def named(text):
    return {*re.findall(r"H[12]00", text)}


def gpus_of(lines, place, column):
    """Those that a cell or its column names, or the sentence that has this place of this line."""
    line = lines[place]
    if line.startswith("|"):
        head = place
        while head and lines[head - 1].startswith("|"):
            head -= 1
        cell = line[:column].count("|")
        rows = (line, lines[head])
        return next(filter(None, (named(row.split("|")[cell]) for row in rows if row.count("|") > cell)), named(line))
    # A paragraph, or an item of a list.
    first = last = place
    while first and lines[first - 1].strip() and not re.match(r"\s*- |\||#", lines[first]):
        first -= 1
    while last + 1 < len(lines) and lines[last + 1].strip() and not re.match(r"\s*- |\||#", lines[last + 1]):
        last += 1
    text = " ".join(lines[first:last + 1])
    at = sum(len(one) + 1 for one in lines[first:place]) + column
    ends = [found.end() for found in re.finditer(r"[.!?]\**\s+(?=[A-Z*`])", text)]
    begin = max((end for end in ends if end <= at), default=0)
    return named(text[begin:min((end for end in ends if end > at), default=len(text))])


def is_in(figure, unit, sources, gpus):
    """One of the values of these GPUs, of all sources where it is none, is this, rounded to the digits given."""
    kind, scale = UNITS[unit]
    decimals = len(figure.partition(".")[2])
    wanted = float(figure.replace(",", ""))
    values = [value for source in gpus or sources for value in sources.get(source, {}).get(kind, [])]
    return any(abs(value / scale - wanted) <= 0.5000001 * 10**-decimals for value in values)


def unfounded(name, text, sources, not_measured):
    """(line number, figure) of those that no results file has."""
    for words in not_measured:
        assert words in text, f"{name} does not say '{words}' any more: take it from the list"
        # A figure in other words of the same line is looked for.
        text = text.replace(words, " " * len(words))
    found = []
    lines = text.splitlines()
    for place, line in enumerate(lines):
        for match in FIGURES.finditer(line):
            figures, unit = match.groups()
            before = re.search(r"(H[12]00): $", line[:match.start()])
            gpus = {before[1]} if before else gpus_of(lines, place, match.start())
            for gpu, figure in re.findall(rf"(?:(H[12]00): )?({NUMBER})", figures):
                if not is_in(figure.rstrip(","), unit, sources, {gpu} if gpu else gpus):
                    found.append((place + 1, f"{figure.rstrip(',')} {unit}"))
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
    found = unfounded("page", text, {"H100": values}, ["the data sheet says 3.35 TB/s"])
    assert found == [(1, "23.5 µs"), (2, "2.74 TB/s"), (2, "1.64 times"), (3, "7.85 mJ"), (3, "326 mJ")]
    with pytest.raises(AssertionError, match="does not say"):
        unfounded("page", text, {"H100": values}, ["the data sheet says 4.8"])


def test_a_figure_is_of_the_gpu_that_is_named():
    sources = {"H100": {"us": [23.4]}, "H200": {"us": [20.9]}, "paper": {"mJ": [6.51]}}
    text = (
        "On the H100 a layer takes 23.4 µs or\n20.9 µs. It takes 20.9 µs, at 6.51 mJ.\n"
        "- the H200 takes 23.4 µs, at 6.51 mJ\n- 23.4 µs\n\n"
        "| what | H100 | H200 | any |\n| --- | --- | --- | --- |\n| one | 20.9 µs | 20.9 µs | 20.9 µs |\n"
        "\nA token takes (H100: 20.9 µs), H200: 20.9 µs; of both the H100 and the H200 20.9 µs.\n"
    )
    found = unfounded("page", text, sources, [])
    assert found == [(2, "20.9 µs"), (3, "23.4 µs"), (3, "6.51 mJ"), (8, "20.9 µs"), (10, "20.9 µs")]


def test_what_a_value_is():
    values = {"speedup": 1.2, "dense_energy_mj_per_token": 3, "peak_bytes_ratio": 0.9, "speedup_us": 5, "sms": 132}
    assert [*values_in(values)] == [("ratio", 1.2), ("mJ", 3), ("ratio", 0.9), ("us", 5)]
    assert source_of(pathlib.Path("paper-c.json"), {"device": "cpu", "processor": "C"}) is None
    assert source_of(pathlib.Path("paper-h200.json"), {"gpu": "NVIDIA H200"}) == "H200"
    assert source_of(pathlib.Path("paper.json"), {"hardware": "8 × H100 PCIe"}) == "paper"
