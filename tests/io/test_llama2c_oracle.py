"""The shared stories260K: converted here, run by `transformers`, it tells llama2.c's story."""

import pathlib
import shutil
import struct

import pytest
from shared_data import data_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# What llama2.c's own test expects of this checkpoint at temperature 0 in 200 steps.
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
    'Lily\'s mom said, "Lily, let\'s go to the park." Lily was sad and didn\'t know what to do. '
    'She said, "I want to play with your ball, but I can\'t find it."\n'
    'Lily was sad and didn\'t know what to do. She said, "I\'m sorry, Lily. I didn\'t know what '
    'to do."\nLily didn\'t want to help her mom, so she'
)


@pytest.fixture
def model_directory(driver, tmp_path):
    folder = data_path("models/stories260K")
    driver("llama2c", folder / "stories260K.bin", tmp_path)
    shutil.copy(folder / "tok512.bin", tmp_path / "tokenizer.bin")
    return tmp_path


def test_story(driver, model_directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_directory)
    assert model.config.model_type == "llama" and model.config.tie_word_embeddings
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([[1]]), attention_mask=torch.ones(1, 1, dtype=torch.long),
            max_length=201, do_sample=False, pad_token_id=0,
        )[0].tolist()  # fmt: skip
    (text,) = driver.decode(model_directory, [ids], "decode-skip")
    assert text == STORY
    (streamed,) = driver.decode(model_directory, [ids[1:]], "stream")
    assert streamed.lstrip(" ") == STORY


def test_encoding(driver, model_directory):
    """llama2.c's encoder, written down in the plainest way."""
    data = pathlib.Path(model_directory / "tokenizer.bin").read_bytes()
    tokens, at = [], 4
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        tokens.append((score, data[at + 8 : at + 8 + length]))
        at += 8 + length
    index = {}
    for i, (_, content) in enumerate(tokens):
        index.setdefault(content, i)

    def encode(text):
        if not text:
            return [1]
        ids = [index[b" "]]
        for char in text:
            char = char.encode()
            ids += [index[char]] if char in index else [b + 3 for b in char]
        while True:
            best = None
            for i in range(len(ids) - 1):
                merged = index.get(tokens[ids[i]][1] + tokens[ids[i + 1]][1])
                if merged is not None and (best is None or tokens[merged][0] > best[0]):
                    best = (tokens[merged][0], i, merged)
            if best is None:
                return [1, *ids]
            ids[best[1] : best[1] + 2] = [best[2]]

    story = data_path("corpora/tinystories_sample.txt").read_text(encoding="utf-8")
    texts = [story[i : i + 300] for i in range(0, 60_000, 300)]
    texts += ["", " ", "a", "é", "中文 text", "\U0001f600!", "\n\n", "  two  spaces ", STORY, "\x7f\x01"]
    got = driver.encode(model_directory, texts, special=True)
    for text, ids in zip(texts, got):
        assert ids == encode(text), repr(text)
    # Back to the text, byte for byte.
    assert driver.decode(model_directory, got, "decode-skip") == texts
