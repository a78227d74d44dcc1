"""A small Llama and a text of random tokens, for tests that train in transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def llama(act: str, **changes: Any) -> nn.Module:
    """Random weights, the same in every call, and so large that the activation counts for something."""
    torch.manual_seed(7)
    sizes: dict[str, Any] = {
        "vocab_size": 61, "hidden_size": 48, "intermediate_size": 160, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**sizes, **changes}, hidden_act=act)
    )


class Text(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.ids = torch.randint(0, 61, (64, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def arguments(out: Path, steps: int, **options: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(out), max_steps=steps, lr_scheduler_type="constant", use_cpu=True, seed=3,
        **{"report_to": "none", "save_strategy": "no", "disable_tqdm": True,
           "per_device_train_batch_size": 8, **options},
    )  # fmt: skip


def lines(run: Any) -> list[dict[str, float]]:
    """The Trainer's logs of steps."""
    return [line for line in run.state.log_history if "loss" in line]
