"""A training's log as a picture: the divergence from the teacher, and the share of neurons that fire.

python plot.py results/cpu-share.jsonl cpu-share.svg
"""

from __future__ import annotations

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main(log: str, out: str) -> None:
    lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
    lines = [line for line in lines if "distill/divergence" in line]  # others are of held-out text
    steps = [line["step"] for line in lines]
    figure, left = plt.subplots(figsize=(7, 3.5), layout="constrained")
    left.plot(steps, [line["distill/divergence"] for line in lines], color="tab:red")
    left.set(xlabel="step", ylabel="divergence, nats a token (red)", ylim=(0, None))
    right = left.twinx()
    right.plot(steps, [100 * line["sparsity/share"] for line in lines], color="tab:blue")
    right.set(ylabel="neurons that fire, % (blue)", ylim=(0, None))
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
