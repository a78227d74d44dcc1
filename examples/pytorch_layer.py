#!/usr/bin/env python3
"""One feed-forward layer in PyTorch: it learns to fire little, is frozen, and is timed beside dense.

    python examples/pytorch_layer.py      # half a minute on two cores

The layer learns to answer 64 noisy patterns, while twell.set_l1 makes activity cost.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import twell
from torch import Tensor, nn


class Patterns:
    """Noisy copies of 64 vectors, as words recur in a text, and what the layer should make of each."""

    def __init__(self, width: int) -> None:
        self.inputs, self.outputs = torch.randn(64, width), torch.randn(64, width)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        which = torch.randint(64, (count,))
        inputs = self.inputs[which]
        return inputs + 0.3 * torch.randn_like(inputs), self.outputs[which]


def train(layer: twell.GatedFfn, patterns: Patterns, steps: int, l1: float) -> None:
    """Forward and backward multiply only what fires."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-3)
    for step in range(steps + 1):
        twell.set_l1(layer, l1 * min(1, 2 * step / steps))
        twell.collect_metrics(layer)  # anew, so that they are of this step
        x, want = patterns.draw(256)
        loss = (layer(x) - want).square().mean()
        loss.backward()  # of the L1 term too
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // 8) == 0:
            (seen,) = twell.metrics(layer)
            print(
                f"step {step:4}   loss {loss.item():6.4f}   fire {seen.nnz_mean:6.1f}", flush=True
            )


class Dense(nn.Module):
    """The same weights in PyTorch's operations."""

    def __init__(self, layer: twell.GatedFfn) -> None:
        super().__init__()
        self.gate, self.up, self.down = copy.deepcopy(
            [layer.gate_proj, layer.up_proj, layer.down_proj]
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.gate(x)) * self.up(x))


def microseconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Median of 21 calls."""
    seconds = []
    for _ in range(21):
        begin = time.perf_counter()
        call(x)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=512, help="D, of inputs and outputs")
    parser.add_argument("--neurons", type=int, default=2048, help="H")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--l1", type=float, default=1e-3, help="what activity costs at the end")
    given = parser.parse_args()

    torch.manual_seed(0)
    patterns = Patterns(given.width)
    layer = twell.GatedFfn(given.width, given.neurons, activation="relu", bias=True)
    train(layer, patterns, given.steps, given.l1)

    layer.requires_grad_(False).to(torch.bfloat16)
    dense = Dense(layer)
    x = patterns.draw(1024)[0].bfloat16()
    want = dense(x)
    layer.freeze(sample=x)
    far = (layer(x) - want).abs().max() / want.abs().max()
    print(
        f"\nfrozen: differs from dense by {far:.1e} of the largest output (bfloat16 rounds to 4e-03)"
    )
    print("inputs   dense us   sparse us   times as fast")
    for rows in (1, 16, 256, 1024):
        slow, fast = microseconds(dense, x[:rows]), microseconds(layer, x[:rows])
        print(f"{rows:6}   {slow:8.0f}   {fast:9.0f}   {slow / fast:13.1f}")


if __name__ == "__main__":
    main()
