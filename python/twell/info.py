"""What is installed, what it runs on, and whether it computes correctly here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from twell import _library, dense, ops
from twell.autograd import gated_ffn
from twell.form import Form

TIERS = ("portable", "avx2", "avx512", "amx")
_PACKAGES = ("transformers", "accelerate", "peft", "lm_eval", "vllm")
_VARIABLES = ("TWELL_CPU_TIER", "TWELL_TORCH_LIBRARY", "TWELL_TORCH_CUDA_LIBRARY")


def collect() -> dict[str, Any]:
    """What ``python -m twell info`` shows, without the self-check. It holds only JSON's types."""
    from twell import __version__

    library = _library.path()
    gpu_library = _library.cuda_path(library)
    return {
        "twell": __version__,
        "library": str(library),
        "gpu_library": None if gpu_library is None else str(gpu_library),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "packages": dict(_versions()),
        "processor": ops.processor_name(),
        "tiers": [tier for tier in TIERS if ops.cpu_tier_available(tier)],
        "tier": ops.cpu_tier(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        for name in (package, f"{package}-cpu"):
            try:
                yield package, importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue


def self_check() -> list[str]:
    """Runs small layers of every kind on every tier and device. Returns a line for each wrong
    result.

    All inputs are small integers, so every sum is exact, and every result must equal that of the
    dense definition, bit for bit.
    """
    wrong = []
    for tier in TIERS:
        if ops.cpu_tier_available(tier):
            with forced(tier):
                for dtype in (torch.float32, torch.bfloat16):
                    wrong += _check_layers(f"{tier}, {dtype}", dtype, torch.device("cpu"))
    if _library.cuda_path(_library.path()) is not None:
        for index in range(torch.cuda.device_count()):
            device = torch.device("cuda", index)
            wrong += _check_layers(str(device), torch.bfloat16, device)
    return wrong


@contextmanager
def forced(tier: str) -> Iterator[None]:
    """Calls within run on this tier."""
    before = os.environ.get("TWELL_CPU_TIER")
    os.environ["TWELL_CPU_TIER"] = tier
    try:
        yield
    finally:
        if before is None:
            del os.environ["TWELL_CPU_TIER"]
        else:
            os.environ["TWELL_CPU_TIER"] = before


def _integers(rows: int, cols: int, seed: int) -> Tensor:
    """Eight entries of every row are 1 or -1, so the product of two rows is at most 8."""
    generator = torch.Generator().manual_seed(seed)
    where = torch.rand(rows, cols, generator=generator).argsort(1)[:, :8]
    signs = torch.randint(0, 2, (rows, 8), generator=generator).mul(2).sub(1).float()
    return torch.zeros(rows, cols).scatter_(1, where, signs)


def _check_layers(what: str, dtype: torch.dtype, device: torch.device) -> list[str]:
    tokens, width, neurons = 37, 48, 250  # no multiple of any tile
    x, dy = (_integers(tokens, width, seed).to(device, dtype) for seed in (0, 1))
    gate, up, down = (_integers(neurons, width, seed).to(device, dtype) for seed in (2, 3, 4))
    screen = ops.screen_weight(gate) if device.type == "cpu" else None
    wrong = []
    bias, down_bias = gate[:, 0].contiguous(), down[0].contiguous()
    for second in (up, None):
        forms: dict[str, dict[str, Any]] = {
            "relu": {},
            "fat_relu": {"activation": "fat_relu", "threshold": 2.0},
        }
        if device.type == "cpu":
            of_up = {} if second is None else {"up_activation": "relu", "up_bias": -bias}
            forms["biases"] = {"gate_bias": bias, "down_bias": down_bias, **of_up}
        for kind, form in forms.items():
            wide = None if second is None else second.double()
            want = dense.ffn(x.double(), gate.double(), wide, down.double(), Form(**form))
            packed = ops.pack_weight(gate)
            got = {"packed": ops.ffn(x, packed, second, down, **form)}
            if screen is not None:
                got["screened"] = ops.ffn(x, gate, second, down, screen, **form)
            else:  # a CPU counts for itself
                got["hot"] = ops.ffn(x, packed, second, down, hot=neurons, **form)
            got["dense"] = want[0].to(dtype)
            name = f"{what}, {kind}, {'with' if second is not None else 'without'} a gate"
            wrong += [f"{name}, {k}" for k, y in got.items() if not torch.equal(y, got["dense"])]
    one, two, three, four = leaves = [t.clone().requires_grad_() for t in (x, gate, up, down)]
    gated_ffn(one, two, three, four)[0].backward(dy)
    grads = dense.ffn_backward(
        dy.double(), x.double(), gate.double(), up.double(), down.double()
    )
    for leaf, grad in zip(leaves, grads):
        if leaf.grad is None or grad is None or not torch.equal(leaf.grad, grad.to(dtype)):
            wrong.append(f"{what}, gradient {list(leaf.shape)}")
    return wrong
