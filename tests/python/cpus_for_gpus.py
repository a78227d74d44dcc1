"""Runs a program as rank of several, with accelerate taking CPUs for GPUs: on CPUs it starts neither FSDP2
nor DeepSpeed, which run there. All else is as on GPUs.

    python -m torch.distributed.run --nproc_per_node 2 cpus_for_gpus.py PROGRAM ARGUMENT...
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
import transformers
from accelerate.state import DistributedType, PartialState


def backend(*_: Any, **__: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


def set_device(state: Any) -> None:
    state.device = torch.device("cpu")


if __name__ == "__main__":
    PartialState._prepare_backend = backend
    PartialState.set_device = set_device
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
