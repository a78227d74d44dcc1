"""The learnt tokenizer is the one the package `tokenizers` learns from the same text."""

import json
import os
import random
import subprocess

import pytest
from shared_data import data_path

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture
def learn(tmp_path):
    program = os.environ.get("TWELL_BPE_DRIVER")
    if not program:
        pytest.skip("TWELL_BPE_DRIVER does not name the driver program")

    def run(text, vocab_size, min_frequency):
        (tmp_path / "text.txt").write_bytes(text.encode())
        out = tmp_path / "tokenizer.json"
        arguments = [vocab_size, min_frequency, tmp_path / "text.txt", out]
        subprocess.run([program, *map(str, arguments)], check=True)
        return out

    return run


def oracle(text, vocab_size, min_frequency):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        [text],
        tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def pairs(merges):
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]


def compare(path, text, vocab_size, min_frequency):
    expected = oracle(text, vocab_size, min_frequency)
    model = json.loads(expected.to_str())["model"]
    ours = json.loads(path.read_text())["model"]
    assert pairs(ours["merges"]) == pairs(model["merges"])
    assert ours["vocab"] == model["vocab"]
    # The package reads the file, and both give the same ids and the text back.
    loaded = tokenizers.Tokenizer.from_file(str(path))
    sample = text[:200_000]
    ids = loaded.encode(sample).ids
    assert ids == expected.encode(sample).ids
    assert loaded.decode(ids) == sample


def made_up(seed):
    chance = random.Random(seed)
    words = ["".join(chance.choice("abcé—1 ") for _ in range(chance.randint(1, 9))) for _ in range(60)]
    return " ".join(chance.choice(words) for _ in range(3000)) + "\n\n  end\t"


@pytest.mark.parametrize("seed", range(8))
def test_made_up_words(learn, seed):
    text = made_up(seed)
    compare(learn(text, 600, seed % 3), text, 600, seed % 3)


def test_repeated_letters(learn):
    text = "aaaa aaaaaaa aa aaaaa aaaaaaaaaaaa bababab abababa " * 50
    compare(learn(text, 400, 0), text, 400, 0)


@pytest.mark.parametrize("vocab_size", [300, 4096])
def test_real_text(learn, vocab_size):
    text = data_path("corpora/tinyshakespeare.txt").read_text()
    compare(learn(text, vocab_size, 2), text, vocab_size, 2)
