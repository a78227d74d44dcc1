"""Weights that several processes share out: FSDP2's DTensors and DeepSpeed's ZeRO-3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(weight: Tensor | None) -> bool:
    """Whether this process may lack a part of it."""
    return hasattr(type(weight), "full_tensor") or hasattr(weight, "ds_id")


@contextmanager
def writable(model: nn.Module, parameters: list[Any]) -> Iterator[None]:
    """Parameters that may be multiplied in place meanwhile, by the same factor in every process. All
    processes take part."""
    for module in model.modules():
        if hasattr(module, "reshard"):  # of FSDP2: what it gathered is a copy that will be dropped
            module.reshard()  # type: ignore[operator]
    of_deepspeed = [p for p in parameters if hasattr(p, "ds_id")]
    if not of_deepspeed:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(of_deepspeed, modifier_rank=0):
        yield


def processes() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


def of_all_processes(
    values: dict[str, Tensor], widths: dict[str, int], device: torch.device
) -> dict[str, Tensor]:
    """The rows [rows, width] of all processes one behind another, by name. A process may lack some, and
    have none; every process has the same names of ``widths``, and gets the same."""
    if processes() == 1:
        return values
    mine = [len(values[name]) if name in values else 0 for name in widths]
    sizes = [torch.zeros(len(mine), dtype=torch.int64, device=device) for _ in range(processes())]
    torch.distributed.all_gather(sizes, torch.tensor(mine, dtype=torch.int64, device=device))
    out = {}
    for (name, width), rows in zip(widths.items(), torch.stack(sizes, 1).tolist()):
        if max(rows) == 0:
            continue
        padded = torch.zeros(max(rows), width, dtype=torch.float32, device=device)
        if name in values:
            padded[: len(values[name])] = values[name]
        parts = [torch.empty_like(padded) for _ in rows]
        torch.distributed.all_gather(parts, padded)
        out[name] = torch.cat([part[:count] for part, count in zip(parts, rows)])
    return out
