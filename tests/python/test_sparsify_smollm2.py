"""examples/sparsify_smollm2 on a model of two small layers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import twell
from recipe import (
    EXAMPLE,
    TWO,
    TWO_AS_GPUS,
    compare,
    compare_lines,
    lines,
    make_dense,
    resume,
    run,
    train,
    transformers,
)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dense(tmp_path_factory.mktemp("dense"))


def test_both_parts(dense: Path, tmp_path: Path) -> None:
    text = dense / "text.txt"
    arguments = (
        "--model", dense, "--data", text, "--held_out", text, "--context", 32, "--output_dir", tmp_path,
        "--anneal_steps", 4, "--relu_steps", 6, "--max_steps", 16, "--share", 0.1, "--l1", 1e-4,
        "--per_device_train_batch_size", 4, "--learning_rate", 1e-3, "--logging_steps", 2,
        "--report_to", "none", "--disable_tqdm", "true", "--use_cpu", "true", "--save_steps", 8,
    )  # fmt: skip
    out = run("train.py", *arguments)
    assert "windows of 32 tokens" in out.splitlines()[0]
    for part, act in (("relu", "relu"), ("sparse", "fatrelu")):
        config = json.loads((tmp_path / part / "config.json").read_text())
        assert config["hidden_act"] == act
        assert (tmp_path / part / "tokenizer.json").is_file()
    log = [json.loads(line) for line in (tmp_path / "sparse.jsonl").read_text().splitlines()]
    assert log[0]["eval_loss"] > 0 and log[-1]["eval_loss"] > 0
    shares = [line["sparsity/share"] for line in log if "sparsity/share" in line]
    # 128 tokens of 96 neurons in two layers: to within 0.007, and what four steps change.
    assert shares[0] > 0.3 and shares[-1] == pytest.approx(0.1, abs=0.03)
    run("plot.py", tmp_path / "sparse.jsonl", "--out", tmp_path / "sparse.svg")
    assert "<svg" in (tmp_path / "sparse.svg").read_text()
    # Started again, it has nothing to do; after a stop it goes on behind its last checkpoint.
    assert len(run("train.py", *arguments).splitlines()) == 1
    (tmp_path / "sparse" / "tokenizer.json").unlink()
    shutil.rmtree(tmp_path / "sparse" / "checkpoint-16")
    again = run("train.py", *arguments)
    steps = [int(line.split()[1]) for line in again.splitlines()[1:]]
    assert steps == [8, 10, 12, 14, 16, 16, 16], again
    frozen = twell.hf.from_pretrained(tmp_path / "sparse")
    assert len(twell.sparse_layers(frozen)) == 2


def test_dialogues(dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "dialogues.txt"
    said = run(
        "dialogues.py", "--model", dense, "--out", out, "--batch", 3, "--rounds", 2, "--question", 4,
        "--answer", 6,
    )  # fmt: skip
    text = out.read_text()
    count = text.count("<|im_start|>user\n")
    assert 0 < count <= 6 and text.count("<|im_start|>assistant\n") == count
    assert f"{count} dialogues" in said.splitlines()[-1]


def test_drelu(dense: Path, tmp_path: Path) -> None:
    """Through both parts, and in the engine."""
    train(dense, tmp_path, "--drelu", "--use_cpu", "true", "--share", 0.2)
    for part, activation in (("relu", "relu"), ("sparse", "fat_relu")):
        config = json.loads((tmp_path / part / "config.json").read_text())
        assert config["hidden_act"] == "drelu"
        assert ("hidden_act_param" in config) == (part == "sparse")
        model = twell.hf.from_pretrained(tmp_path / part, freeze=False)
        layers = twell.sparse_layers(model).values()
        assert {(m.activation, m.up_activation) for m in layers} == {(activation, "relu")}
        if cli := os.environ.get("TWELL_CLI"):
            assert perplexity(cli, tmp_path / part, dense / "text.txt", tmp_path) == pytest.approx(
                perplexity_of(model, tmp_path / part, dense / "text.txt"), rel=1e-4
            )
    shares = [line.get("sparsity/share") for line in lines(tmp_path, "sparse")]
    # As test_both_parts, of 256 tokens.
    assert [share for share in shares if share][-1] == pytest.approx(0.2, abs=0.03)


def perplexity(cli: str, directory: Path, text: Path, scratch: Path) -> float:
    """As evaluate.py asks for it, of one window."""
    out = scratch / "eval.json"
    command = [cli, "eval", "--task", "perplexity", "--data", text, "--window", "64", "--limit", "64"]
    more = ["--model", directory, "--dtype", "f32", "--json", out]
    subprocess.run([*command, *more], check=True, capture_output=True)
    return float(json.loads(out.read_text())["perplexity"])


def perplexity_of(model: torch.nn.Module, directory: Path, text: Path) -> float:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    ids = torch.tensor([tokenizer(text.read_text())["input_ids"][:64]])
    with torch.no_grad():
        return float(model(ids, labels=ids).loss.exp())


@pytest.fixture(scope="module")
def alone(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of it."""
    out = tmp_path_factory.mktemp("alone")
    train(dense, out, "--use_cpu", "true")
    return out


TWO_PROCESSES = {
    "DDP": (TWO, ("--use_cpu", "true")),
    "FSDP2": (TWO_AS_GPUS, ("--fsdp", "--fsdp_config", EXAMPLE / "fsdp2.json")),
}


@pytest.mark.parametrize("how", TWO_PROCESSES)
def test_two_processes_train_as_one(how: str, dense: Path, alone: Path, tmp_path: Path) -> None:
    if not torch.distributed.is_gloo_available():
        pytest.skip("PyTorch has no Gloo here")
    launcher, options = TWO_PROCESSES[how]
    train(dense, tmp_path, *options, launcher=launcher)
    in_shards = (tmp_path / "sparse" / "checkpoint-8" / "pytorch_model_fsdp.bin").is_file()
    assert in_shards == (how == "FSDP2")
    compare(tmp_path, alone, dense)
    before = len(lines(tmp_path, "sparse"))
    resume(dense, tmp_path, *options, launcher=launcher)
    compare_lines(lines(tmp_path, "sparse")[before + 1 :], lines(alone, "sparse")[9:])
    compare(tmp_path, alone, dense, logs=False)
    assert len(twell.sparse_layers(twell.hf.from_pretrained(tmp_path / "sparse"))) == 2
