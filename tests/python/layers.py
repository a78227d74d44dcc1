"""Inputs, the reference and other helpers that the tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from twell._weights import Findings

# Unit roundoff, 2^-p with p bits of precision.
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
DTYPES = (torch.bfloat16, torch.float32)


@dataclass
class Layer:
    """Random weights of one layer; biased down so that about `density` of the gate is non-zero."""

    gate: Tensor  # [H, D]
    up: Tensor  # [H, D]
    down: Tensor  # [H, D], neuron-major
    shift: Tensor  # [D]: every input contains it, every gate row opposes it

    @property
    def neurons(self) -> int:
        return self.gate.shape[0]

    @property
    def width(self) -> int:
        return self.gate.shape[1]

    def inputs(self, *rows: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(1000 + seed)
        x = torch.randn(*rows, self.width, generator=generator)
        return (x + self.shift.float()).to(self.gate.dtype)


def make_layer(
    width: int,
    neurons: int,
    dtype: torch.dtype = torch.float32,
    density: float = 0.1,
    seed: int = 0,
) -> Layer:
    generator = torch.Generator().manual_seed(seed)

    def weight() -> Tensor:
        return torch.randn(neurons, width, generator=generator) / width**0.5

    # x·w has about unit variance; along the unit direction e every input has the component 2 and
    # every gate row -quantile/2, which moves the mean to the normal distribution's quantile.
    direction = torch.full((width,), width**-0.5)
    quantile = float(torch.erfinv(torch.tensor(1 - 2 * density)) * 2**0.5)
    gate = weight() - quantile / 2 * direction
    return Layer(gate.to(dtype), weight().to(dtype), weight().to(dtype), 2 * direction)


def activate(v: Tensor, activation: str, threshold: float) -> Tensor:
    if activation == "fat_relu":
        return torch.where(v <= threshold, torch.zeros_like(v), v)
    g = torch.where(v <= 0, torch.zeros_like(v), v)
    return g * g if activation == "relu_squared" else g


@dataclass
class Reference:
    """The layer in float64, with a bound on the operator's error derived from magnitudes."""

    y: Tensor
    bound: Tensor


def reference(
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    activation: str = "relu",
    threshold: float = 0.0,
    up_activation: str = "identity",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_epsilon: float | None = None,
) -> Reference:
    """Float64 result and an elementwise bound: for any summation order, float32 accumulation
    (roundoff e), the activation and h (where many rows fire its neuron) rounded once to the dtype
    (roundoff r), u not, y once.

    A sum of n products has an error of at most 1.01·(n + 2)·e·Σ|a·b|, the 2 for instructions that
    round a pair of products once more. The relu's error is at most its argument's, squared relu's
    (2v + δv)·δv, and fat relu's jumps by the threshold where the argument is within its error of
    it. Non-gated: u = 1 without error. A bias is one more term of its sum. A norm's factor lies
    between those of the ends of Σ h²; h times its weight is rounded once more, and so is y times
    the factor.
    """
    e, r = UNIT[torch.float32], UNIT[x.dtype]
    tiny = 2.0**-120  # float32 results below the normal range
    x, gate, down = x.double(), gate.double(), down.double()
    width, neurons = gate.shape[1], gate.shape[0]

    def sum_error(n: int, magnitude: Tensor) -> Tensor:
        return 1.01 * (n + 2) * e * magnitude + tiny

    def linear(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        product, magnitude = x @ weight.t(), x.abs() @ weight.abs().t()
        if bias is None:
            return product, sum_error(width, magnitude)
        return product + bias.double(), sum_error(width + 1, magnitude + bias.double().abs())

    v, dv = linear(gate, gate_bias)
    g = activate(v, activation, threshold)
    if activation == "relu_squared":
        dg = (2 * v.clamp(min=0) + dv) * dv + 2 * e * (g + tiny)
    else:
        dg = dv
    if activation == "fat_relu":
        dg = dg + torch.where((v - threshold).abs() <= dv + e * threshold, threshold, 0.0)
    # A gate of 0 within an error of 0 is 0 on both sides or at most dg on one.
    dg = torch.where((v < threshold - dv - e * threshold), torch.zeros_like(dg), dg + r * (g + dg))
    if up is None:
        u, du = torch.ones_like(v), torch.zeros_like(v)
    else:
        u, du = linear(up.double(), up_bias)
        if up_activation == "relu_squared":
            du = (2 * u.clamp(min=0) + du) * du + 2 * e * (u * u + tiny)
        if up_activation != "identity":
            u = activate(u, up_activation, 0.0)
    h = g * u
    dh = g.abs() * du + u.abs() * dg + dg * du
    dh = dh + (e if up is None else r) * (h.abs() + dh)
    s, ds = torch.ones(1), torch.zeros(1)
    if norm_epsilon is not None:
        squares, dsquares = h.square().mean(-1, keepdim=True), (2 * h.abs() + dh) * dh
        off = dsquares.mean(-1, keepdim=True) + (neurons + 2) * 2.0**-53 * squares
        s, low, high = (
            (squares + d + norm_epsilon).rsqrt() for d in (0, off, -torch.minimum(off, squares))
        )
        ds = torch.maximum(s - low, high - s) + 4 * e * high
        if norm_weight is not None:
            w = norm_weight.double()
            h, dh = w * h, w.abs() * dh
            dh = dh + r * (h.abs() + dh)
    y = h @ down
    dy = dh @ down.abs() + sum_error(neurons, (h.abs() + dh) @ down.abs())
    if norm_epsilon is not None:
        y, dy = s * y, s * dy + ds * (y.abs() + dy) + 2 * e * s * (y.abs() + dy)
    if down_bias is not None:
        y = y + down_bias.double()
        dy = dy + e * (y.abs() + dy)
    return Reference(y, dy + r * (y.abs() + dy))


def assert_within(got: Tensor, want: Reference, slack: float = 1.0) -> None:
    error = (got.double() - want.y).abs()
    worst = (error / (want.bound * slack)).max() if error.numel() else torch.tensor(0.0)
    assert bool((error <= want.bound * slack).all()), f"error is {float(worst):.3g} × the bound"


TINY_SIZES = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 130, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def tiny_llama(**options: object) -> torch.nn.Module:
    """A Llama of transformers with ReLU, always the same."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**{**TINY_SIZES, "hidden_act": "relu", **options})
    return transformers.LlamaForCausalLM(config).eval()


def in_two_processes(file: str, folder: Path, **environment: str) -> list[dict[str, str]]:
    """Runs a test's file as a program with `folder`, as rank 0 and 1; what each wrote there into
    RANK.json."""
    processes = [
        subprocess.Popen(
            [sys.executable, file, str(folder)],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "localhost", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1",
                 "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        said = [p.communicate(timeout=300)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    assert [p.returncode for p in processes] == [0, 0], said[0][-3000:] + said[1][-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def python(
    code: str | Path, *arguments: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program of its own, given or in a file, with the package and this directory to import from."""
    import twell

    places = [Path(twell.__file__).resolve().parents[1], Path(__file__).resolve().parent]
    path = os.pathsep.join(map(str, places))
    return subprocess.run(
        [sys.executable, *([] if isinstance(code, Path) else ["-c"]), code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def screening(x: Tensor, neurons: int) -> Findings:
    """Findings by which a layer of so many neurons has a screen, along the mean of x. Skips the test
    where the processor's tier has none."""
    # Not above: conftest.py is read before pytest's handler of signals is there, which would take the
    # place of that by which tests have AMX.
    import twell
    from twell._weights import Findings

    if twell.ops.screen_limit() == 0.0:
        pytest.skip(f"{twell.ops.cpu_tier()} screens no gate")
    return Findings(
        len(x), x.float().mean(0), torch.zeros(neurons, dtype=torch.int64), 0.0
    )


def let_screens_pay(patch: pytest.MonkeyPatch, limit: float = 1.0) -> None:
    """Up to this share of candidates. Skips the test where the processor's tier has no screens."""
    import twell
    from twell import _block

    if limit > 0.0 and twell.ops.screen_limit() == 0.0:
        pytest.skip(f"{twell.ops.cpu_tier()} screens no gate")
    examine = _block.examine

    def shown(*arguments: Any) -> Findings:
        found = examine(*arguments)
        pays = found.candidates is not None and found.candidates <= limit
        return found._replace(candidates=0.0 if pays else 1.0)

    patch.setattr(_block, "examine", shown)
