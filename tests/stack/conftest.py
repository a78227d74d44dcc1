"""The tests that need the heavier packages: `scripts/test stack`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "python"), str(HERE.parents[1] / "python")]

VOCABULARY = 300
ENTRY_POINT = "twell = twell.vllm:register"


def tell_of_the_plugin(path: Path) -> None:
    """Makes a directory of Python's path tell vLLM what an installed twell would."""
    metadata = path / "twell_tests-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: twell-tests\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{ENTRY_POINT}\n")


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with ReLU and random weights in float32, and a tokenizer learnt for it."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    out = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        hidden_act="relu", bos_token_id=0, eos_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(out)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([HERE.read_text()] * 4, trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    ).save_pretrained(out)
    return out
