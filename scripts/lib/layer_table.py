"""How fast a layer is on GPUs: the block "gpu-layers" of docs/gpu-status.md, and what cuda/bench/predictions.md has
measured.

    layer_table.py [--check] [ROOT [RESULTS_DIR]]

Made of the results of scripts/gpu_check: gpu-h100-80gb-hbm3.json and gpu-h200.json. --check changes nothing and fails
where a page says something else.
"""

import json
import pathlib
import sys
from typing import Any

import gpu_model_table
import markdown_block
from gpu_results import by_variant, dense_training_us

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPUS = {"H100": "gpu-h100-80gb-hbm3.json", "H200": "gpu-h200.json"}
TOKENS, NNZ = (1, 4, 16, 64, 256, 1024, 4096, 16384), (29, 113, 563)
TRAINED = {28: "0.5 %", 56: "1 %", 113: "2 %", 282: "5 %"}
EARLIER = "†"
Results = dict[str, dict[str, Any]]


def load(folder: pathlib.Path) -> Results:
    return {gpu: json.loads((folder / file).read_text()) for gpu, file in GPUS.items()}


def ratio(line: dict[str, Any]) -> str:
    return f"{line['speedup']:.2f}" + (EARLIER if line.get("earlier_plan") else "")


def both(cells: list[str]) -> str:
    """Of both GPUs; what was not measured on one is a dash."""
    return " / ".join(cell or "–" for cell in cells) if any(cells) else ""


def microseconds(us: float) -> str:
    return f"{us:,.1f} µs" if us < 100 else f"{us:,.0f} µs"


def inference(results: Results) -> str:
    every = {gpu: by_variant(found) for gpu, found in results.items()}

    def cell(tokens: int, nnz: int) -> str:
        cells = []
        for lines in every.values():
            line = lines.get(f"ffn/{tokens}/{nnz}")
            us = f" ({microseconds(line['us'])})" if line and nnz == NNZ[0] else ""
            cells.append(ratio(line) + us if line else "")
        return both(cells)

    first, *others = NNZ
    rows = [["tokens", f"{first} of 5,632 fire", *(f"{nnz} fire" for nnz in others)]]
    rows += [[f"{tokens:,}", *(cell(tokens, nnz) for nnz in NNZ)] for tokens in TOKENS]
    return markdown_block.table(rows)


def training(results: Results) -> str:
    every = {gpu: by_variant(found) for gpu, found in results.items()}

    def cell(tokens: int, nnz: int) -> str:
        cells = []
        for gpu, found in results.items():
            line = every[gpu].get(f"train/{tokens}/{nnz}")
            if line is None:
                cells.append("")
                continue
            dense = dense_training_us(found, tokens)
            spread = f" ({dense[0] / line['us']:.2f} to {dense[-1] / line['us']:.2f})" if len(dense) > 1 else ""
            cells.append(ratio(line) + spread)
        return both(cells)

    rows = [["tokens of a training step", *(f"{share} fire" for share in TRAINED.values())]]
    rows += [[f"{tokens:,}", *(cell(tokens, nnz) for nnz in TRAINED)] for tokens in (2048, 16384)]
    return markdown_block.table(rows)


def operators(results: Results) -> str:
    """Beside the lower of the dense medians at these tokens: the dense layer does not know how many fire."""
    rows = [["tokens", *(f"{nnz} fire: {path}" for nnz in (29, 563) for path in ("sparse", "`auto`"))]]
    for tokens in (1, 16, 512):
        cells: list[list[str]] = [[], [], [], []]
        for found in results.values():
            every = found.get("bench-ffn", {}).get("results", [])
            lines = {line["nnz_target"]: line for line in every if line["tokens"] == tokens}
            dense = min((line["dense_us"] for line in lines.values()), default=0.0)
            figures = [lines.get(nnz, {}).get(f"{path}_us") for nnz in (29, 563) for path in ("sparse", "auto")]
            for cell, us in zip(cells, figures):
                cell.append(f"{dense / us:.2f}" if us else "")
        rows.append([f"{tokens:,}", *map(both, cells)])
    return markdown_block.table(rows)


def block(results: Results) -> str:
    return "\n\n".join([
        inference(results),
        "Training, compared with the nine GEMMs of dense training; a range is that of several runs:",
        training(results),
        "Through PyTorch's operators, compared with `at::linear`; `auto` is the engine, choosing its path:",
        operators(results),
    ])  # fmt: skip


def main() -> int:
    names = [pathlib.Path(name) for name in sys.argv[1:] if name != "--check"]
    root = names[0] if names else ROOT
    results = load(names[1] if len(names) > 1 else ROOT / "bench/results")
    check = "--check" in sys.argv
    model = root / "cuda/bench/predictions.md"
    table, _ = gpu_model_table.fill(model.read_text(), by_variant(results["H100"]), all_of_it=True)
    measured = table.split(gpu_model_table.BEGIN)[1].split(gpu_model_table.END)[0]
    wrong = [markdown_block.update(root / "docs/gpu-status.md", "gpu-layers", block(results), check),
             markdown_block.update(model, "gpu-model", measured, check)]  # fmt: skip
    for message in filter(None, wrong):
        print(f"error: {message}; run scripts/lib/layer_table.py", file=sys.stderr)
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
