"""examples/sparsify_smollm2 with DeepSpeed's ZeRO on two processes trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import twell
from recipe import (
    EXAMPLE,
    TWO_AS_GPUS,
    compare,
    compare_lines,
    lines,
    make_dense,
    resume,
    train,
)

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dense(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def alone(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of it."""
    out = tmp_path_factory.mktemp("alone")
    train(dense, out, "--use_cpu", "true")
    return out


@pytest.mark.parametrize("stage", [2, 3])
def test_two_processes_train_as_one(stage: int, dense: Path, alone: Path, tmp_path: Path) -> None:
    options = ("--deepspeed", EXAMPLE / f"zero{stage}.json")
    how = {"launcher": TWO_AS_GPUS, "DS_ACCELERATOR": "cpu"}
    train(dense, tmp_path, *options, **how)
    assert (tmp_path / "sparse" / "checkpoint-8" / "global_step8").is_dir()  # DeepSpeed's own
    compare(tmp_path, alone, dense)
    before = len(lines(tmp_path, "sparse"))
    resume(dense, tmp_path, *options, **how)
    compare_lines(lines(tmp_path, "sparse")[before + 1 :], lines(alone, "sparse")[9:])
    compare(tmp_path, alone, dense, logs=False)
    assert len(twell.sparse_layers(twell.hf.from_pretrained(tmp_path / "sparse"))) == 2
