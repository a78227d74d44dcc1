"""examples/sparsify_smollm2 on a model of two small layers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import twell

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("accelerate")

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of SiLU and a chat template, and a text beside it."""
    directory = tmp_path_factory.mktemp("dense")
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


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "sparsify_smollm2" / script, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(twell.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    # Started again, it has nothing to do; after a stop it goes on behind its last checkpoint.
    assert len(run("train.py", *arguments).splitlines()) == 1
    (tmp_path / "sparse" / "tokenizer.json").unlink()
    shutil.rmtree(tmp_path / "sparse" / "checkpoint-16")
    again = run("train.py", *arguments)
    steps = [int(line.split()[1]) for line in again.splitlines()[1:]]
    assert steps == [0, 10, 12, 14, 16, 16, 16], again
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
