"""Logs of trainings as a picture: the divergence from the teacher, and the share of neurons that fire.

python plot.py LOG.jsonl... --out FILE.svg
"""

from __future__ import annotations

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def read(log: pathlib.Path) -> tuple[list[int], list[float], list[float]]:
    """Steps, divergences and percentages; no percentages where thresholds are not trained."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [line for line in lines if "distill/divergence" in line]  # others are of held-out text
    return (
        [line["step"] for line in lines],
        [line["distill/divergence"] for line in lines],
        [100 * line.get("sparsity/share", float("nan")) for line in lines],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=pathlib.Path, help="as train.py writes them")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the picture, an SVG")
    given = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for log in given.logs:
        steps, divergence, share = read(log)
        left.plot(steps, divergence, label=log.stem)
        right.plot(steps, share, label=log.stem)
    left.set(xlabel="step", ylabel="divergence, nats a token", ylim=(0, None))
    right.set(xlabel="step", ylabel="neurons that fire, %", ylim=(0, None))
    if len(given.logs) > 1:
        left.legend()
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
