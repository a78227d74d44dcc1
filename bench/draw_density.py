#!/usr/bin/env python3
"""Draws the picture of README.md: the time of a layer by the share of neurons that fire, dense and
sparse, from what `twell bench ffn --grid cpu --json GRID` measured. It is legible on light and dark
pages.

    bench/draw_density.py GRID --tokens 64 --out density.svg
"""

import argparse
import json
import pathlib

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

GREY, COLOURS = "#808891", {"dense": "#3b82f6", "sparse": "#ef4444"}
SETTINGS = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "twell",  # the same bytes from the same figures
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
    ),
}


def draw(grid: dict, tokens: int, out: pathlib.Path) -> None:
    rows = [row for row in grid["results"] if row["tokens"] == tokens]
    share = [100 * row["nnz_mean"] / grid["ffn"] for row in rows]
    with mpl.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(7.2, 2.9), layout="constrained")
        for side, colour in COLOURS.items():
            times = [row[f"{side}_us"] / 1e3 for row in rows]
            axes.plot(share, times, color=colour, linewidth=2.2, marker="o", markersize=4)
            axes.annotate(
                side,
                (share[0], times[0]),
                (0, 8),
                textcoords="offset points",
                color=colour,
                weight="bold",
                size=12,
            )
        axes.set_xscale("symlog", linthresh=0.5, linscale=0.4)
        ticks = [0, 0.5, 1, 2, 5, 10, 20, 50, 100]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("neurons that fire, %")
        axes.set_ylabel(f"ms for {tokens} tokens")
        axes.grid(axis="y", color=GREY, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(out, transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    draw(json.loads(options.grid.read_text()), options.tokens, options.out)
