"""Weights that several processes share out: FSDP2's DTensors and DeepSpeed's ZeRO-3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(weight: Tensor) -> bool:
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


def of_all_processes(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows of all processes one behind another: of each process as many as the one with the
    fewest has. Every process has the same keys, and gets the same."""
    if processes() == 1:
        return values
    sizes = [len(v) for v in values.values()]
    device = next(iter(values.values())).device
    fewest = torch.tensor(sizes, dtype=torch.int64, device=device)
    torch.distributed.all_reduce(fewest, torch.distributed.ReduceOp.MIN)
    out = {}
    for (name, mine), rows in zip(values.items(), fewest.tolist()):
        mine = mine[:rows].contiguous()
        parts = [torch.empty_like(mine) for _ in range(processes())]
        torch.distributed.all_gather(parts, mine)
        out[name] = torch.cat(parts)
    return out
