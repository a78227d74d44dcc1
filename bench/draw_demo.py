#!/usr/bin/env python3
"""Draws what `twell demo` says at its end, as on a terminal, from the results.json that it wrote.
The picture is legible on light and dark pages.

    bench/draw_demo.py RESULTS --title TITLE --out demo.svg
"""

import argparse
import io
import json
import pathlib
import re

from rich.console import Console
from rich.text import Text


def summary(results: dict) -> str:
    """As summarise() of cli/cmd_demo.cc has it."""
    train, neurons = results["train"], results.get("neurons", results.get("hidden_units"))
    zeros = 100 - 100 * results["nnz_mean"] / neurons
    lines = [
        (
            f"A language model of {train['parameters'] / 1e6:.1f} million parameters read {train['tokens']} tokens; "
            "its surprise at the next"
        ),
        f"token (cross entropy) fell from {train['loss_first']:.2f} to {train['loss_last']:.2f}.",
        (
            f"It learnt to use {results['nnz_mean']:.1f} of {neurons} neurons per token and layer: "
            f"{zeros:.1f} % are exactly zero."
        ),
        "twell skips those. Same weights, same threads, against PyTorch's dense layers:",
    ]
    for what, key in (("reading a prompt", "prefill"), ("writing", "decode")):
        speed = results[key]
        dense, sparse = speed["dense_tokens_per_s"], speed["sparse_tokens_per_s"]
        lines.append(
            f"  {what:17}  {dense:>9.0f} tokens/s -> {sparse:>9.0f} tokens/s   {speed['speedup']:.2f}x"
        )
    lines += [
        (
            f"The outputs are the same up to {results['dtype']} rounding: they differ by "
            f"{results['max_rel_err']:.1e} of the largest;"
        ),
        f"{results['max_rel_err_bound']:.1e} is allowed.",
    ]
    return "\n".join(f"  {line}" for line in lines)


def picture(results: dict, title: str) -> str:
    text = Text("$ scripts/demo\n", style="dim")
    text.append("…\nWhat happened\n" + summary(results), style="not dim")
    text.highlight_regex(r"\d\.\d\dx", "bold green")
    console = Console(width=92, record=True, file=io.StringIO(), force_terminal=True)
    console.print(text, highlight=False)
    svg = console.export_svg(title=title, unique_id="demo")
    # Fonts are the reader's own: a page would fetch these from elsewhere.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.write_text(picture(json.loads(options.results.read_text()), options.title) + "\n")
