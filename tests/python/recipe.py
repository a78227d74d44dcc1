"""examples/sparsify_smollm2 as programs, and a model of two small layers for them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import twell

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("accelerate")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sparsify_smollm2"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_dense(directory: Path) -> Path:
    """Writes a model of SiLU and a chat template, and a text beside it."""
    text = "".join(f"{i} times {j} is {i * j}.\n\n" for i in range(40) for j in range(40))
    (directory / "text.txt").write_text(text)
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(
        [text],
        tokenizers.trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=alphabet
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=special[0], eos_token=special[1]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=512, initializer_range=0.2,
        tie_word_embeddings=True, eos_token_id=1, bos_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def run(
    script: str | Path, *arguments: object, launcher: tuple[object, ...] = (), **environment: str
) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, (*launcher, EXAMPLE / script, *arguments))],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(twell.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- Two processes against one ----------------------------------------------------------------------

STEPS = {"relu": 6, "sparse": 16}
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
# accelerate starts FSDP2 and DeepSpeed on GPUs alone.
TWO_AS_GPUS = (*TWO, Path(__file__).with_name("cpus_for_gpus.py"))


def train(
    dense: Path, out: Path, *options: object, launcher: tuple[object, ...] = (), **environment: str
) -> str:
    """Both parts. A step has eight windows of 32 tokens, whoever computes them. Adam's epsilon is
    larger than the gradients: otherwise it would divide by some that are rounding alone."""
    text = dense / "text.txt"
    return run(
        "train.py", "--model", dense, "--data", text, "--held_out", text, "--context", 32,
        "--output_dir", out, "--anneal_steps", 4, "--relu_steps", STEPS["relu"], "--max_steps",
        STEPS["sparse"], "--share", 0.1, "--l1", 1e-4, "--per_device_train_batch_size",
        4 if launcher else 8, "--learning_rate", 2e-3, "--adam_epsilon", 0.01, "--logging_steps", 1,
        "--report_to", "none", "--disable_tqdm", "true", "--save_steps", 8, *options,
        launcher=launcher, **environment,
    )  # fmt: skip


def lines(out: Path, part: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / f"{part}.jsonl").read_text().splitlines()]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    safetensors = pytest.importorskip("safetensors.torch")
    return safetensors.load_file(directory / "model.safetensors")


def resume(dense: Path, out: Path, *options: object, **launched: Any) -> None:
    """As if it had been stopped in the second part, behind step 8."""
    (out / "sparse" / "tokenizer.json").unlink()
    shutil.rmtree(out / "sparse" / "checkpoint-16")
    train(dense, out, *options, **launched)


def compare(got: Path, want: Path, dense: Path, logs: bool = True) -> None:
    """Logs of every step, and weights by how far training took them."""
    start = weights(dense)
    for part in STEPS:
        if logs:
            compare_lines(lines(got, part), lines(want, part))
        mine, theirs = (weights(out / part) for out in (got, want))
        # FSDP2's files have tied weights twice.
        assert set(mine) - {"lm_head.weight"} == set(theirs) == set(start)
        for name, value in theirs.items():
            way = float((value - start[name]).norm())
            assert float((mine[name] - value).norm()) <= 0.01 * way + 1e-6, (part, name)
    of_one, of_other = (settings(out / "sparse") for out in (got, want))
    assert of_one["hidden_act"] == of_other["hidden_act"] in ("fatrelu", "drelu")
    assert of_one["hidden_act_param"] == pytest.approx(of_other["hidden_act_param"], rel=1e-3)


def compare_lines(got: list[dict[str, float]], want: list[dict[str, float]]) -> None:
    """Sums are of another order, and off by 1e-6 or so of their size. Of 400,000 values that are compared
    with a threshold a few may then fall on its other side, and each is one of the 49,152 that a step's
    loss is made of: 1e-3 has room for what follows. An evaluation's last batch weighs as the others, and
    is another window."""
    assert [line["step"] for line in got] == [line["step"] for line in want]
    for mine, theirs in zip(got, want):
        for key, value in theirs.items():
            if key != "seconds" and not re.search("runtime|per_second|flos|train_loss", key):
                assert mine[key] == pytest.approx(value, rel=1e-3, abs=1e-6), (key, mine)


def settings(directory: Path) -> Any:
    return json.loads((directory / "config.json").read_text())
