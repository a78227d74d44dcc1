"""Model directories of other people: what ends a text, which tensors count, what a copy keeps."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
pytest.importorskip("torch")
pytest.importorskip("safetensors")
import spm_like
from bigram import make_bigram
from safetensors.torch import load_file, save_file

WORDS = ["<|end_of_text|>", "<|eot|>"]
EOT = 257


def chain(text):
    """What follows what in a text that ends with <|eot|> and begins anew."""
    ids = [*text.encode(), EOT]
    after = dict(zip(ids, [*ids[1:], ids[0]]))
    return lambda token: after.get(token, ids[0])


def ids_of(twell, model, prompt="a", count=6, **more):
    done = twell("generate", "--model", model, "--prompt", prompt, "--temperature", 0, "--path", "dense",
                 "--max-tokens", count, json_name="other.json", **more)
    return done.json["sequences"][0]["token_ids"]


# --- what ends a text ---

@pytest.mark.parametrize(("config", "generation", "stops"), [
    (256, {"eos_token_id": [256, EOT]}, True),   # an instruct model: in generation_config.json alone
    (256, {"eos_token_id": EOT}, True),
    (None, {"eos_token_id": EOT}, True),
    (EOT, {"eos_token_id": 256}, False),         # generation_config.json wins
    ([256, EOT], {"temperature": 0.6}, True),    # and leaves what it does not name
    (EOT, {"eos_token_id": None}, True),
    (EOT, None, True),
    (None, None, False),
])
def test_ids_that_end_a_text(twell, tmp_path, config, generation, stops):
    make_bigram(tmp_path / "m", chain("abc"), WORDS, eos_token_id=config)
    if generation is not None:
        (tmp_path / "m/generation_config.json").write_text(json.dumps(generation))
    whole = [*b"bc", EOT, *b"abc"]
    assert ids_of(twell, tmp_path / "m") == (whole[:3] if stops else whole)
    # A copy ends texts as its model does.
    twell("convert", "--in", tmp_path / "m", "--out", tmp_path / "copy")
    assert ids_of(twell, tmp_path / "copy") == (whole[:3] if stops else whole)


# --- tokenizers that come from SentencePiece ---

def test_a_continuation_keeps_the_space_of_its_first_word(twell, tmp_path):
    """A text alone begins without one. Bytes are printed when the character is whole."""
    pieces = [*spm_like.BYTES, "▁", "a", "b", "▁a", "▁b"]
    names = [*spm_like.SPECIAL, *pieces]
    after = {"▁a": "▁b", "▁b": "<0xC3>", "<0xC3>": "<0xA9>", "<0xA9>": "▁a"}
    model = tmp_path / "m"
    make_bigram(model, lambda token: names.index(after.get(names[token], "</s>")), vocab=len(names), eos_token_id=2)
    document = spm_like.tokenizer(pieces, ["▁ a", "▁ b"])
    (model / "tokenizer.json").write_text(json.dumps(document))
    generate = ["generate", "--model", model, "--temperature", 0, "--path", "dense", "--max-tokens", 5]
    done = twell(*generate, "--prompt", "a", json_name="pieces.json")
    assert done.out.startswith("a bé a b\n")
    assert done.json["sequences"][0]["text"] == " bé a b"
    assert done.json["prompt_tokens"] == 2  # <s> in front, as the file says
    done = twell(*generate, "--prompt", "a", "--prompt", "b a", json_name="pieces.json")
    assert [s["text"] for s in done.json["sequences"]] == [" bé a b"] * 2
    assert "--- 2 ---\nb a bé a b\n" in done.out


# --- what a copy keeps ---

SIDES = {"generation_config.json": '{"eos_token_id": [257], "top_p": 0.9}', "LICENSE": "free",
         "README.md": "# A model", "chat_template.jinja": "{{ messages }}",
         "special_tokens_map.json": "{}", "tokenizer_config.json": '{"eos_token": "<|eot|>"}'}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    make_bigram(folder, chain("abc"), WORDS, eos_token_id=256, pad_token_id=256, license="free")
    for name, contents in SIDES.items():
        (folder / name).write_text(contents)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tools.jinja").write_text("{{ tools }}")
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    (folder / "onnx").mkdir()
    return folder


def has_sides(folder):
    for name, contents in {**SIDES, "additional_chat_templates/tools.jinja": "{{ tools }}"}.items():
        assert (folder / name).read_text() == contents, name
    config = json.loads((folder / "config.json").read_text())
    assert config["pad_token_id"] == 256 and config["license"] == "free"
    assert config["eos_token_id"] == 257


def notes(done):
    return [line for line in done.err.splitlines() if line.startswith("note: ")]


def test_convert_carries_what_lies_beside_the_weights(twell, model, tmp_path):
    done = twell("convert", "--in", model, "--out", tmp_path / "copy")
    has_sides(tmp_path / "copy")
    assert notes(done) == [f"note: {model}: not copied: onnx/, pytorch_model.bin"]
    assert not (tmp_path / "copy/pytorch_model.bin").exists()


def test_convert_with_another_tokenizer_leaves_what_is_of_the_old_one(twell, model, tmp_path):
    make_bigram(tmp_path / "words", chain("abc"), WORDS)
    (tmp_path / "words/chat_template.jinja").write_text("other")
    twell("convert", "--in", model, "--tokenizer", tmp_path / "words", "--out", tmp_path / "copy")
    left = {p.name for p in (tmp_path / "copy").iterdir()}
    assert left == {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja",
                    "LICENSE", "README.md"}
    assert (tmp_path / "copy/chat_template.jinja").read_text() == "other"


def test_checkpoints_carry_what_lies_beside_the_model(twell, model, text, tmp_path):
    run = tmp_path / "run"
    done = twell("train", "--model", model, "--data", text, "--out", run, "--steps", 1, "--context", 32,
                 "--batch", 1)
    has_sides(run / "step-00000001")
    assert len(notes(done)) == 1 and "onnx/" in notes(done)[0]
    done = twell("train", "--data", text, "--out", run, "--resume", "--extend-to", 2)
    has_sides(run / "step-00000002")
    assert not notes(done)
    twell("convert", "--in", run, "--out", tmp_path / "copy")
    has_sides(tmp_path / "copy")


def test_a_checkpoint_in_shards_is_resumed(twell, model, text, tmp_path):
    """As those of more than 5 GB are written."""
    train = ["train", "--data", text, "--out", tmp_path / "run"]
    twell(*train, "--model", model, "--steps", 1, "--context", 32, "--batch", 1)
    step = tmp_path / "run/step-00000001"
    tensors = load_file(step / "model.safetensors")
    (step / "model.safetensors").unlink()
    owner = {name: f"model-{1 + i % 2:05}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(owner.values()):
        save_file({n: t for n, t in tensors.items() if owner[n] == file}, step / file)
    index = {"metadata": {}, "weight_map": owner}
    (step / "model.safetensors.index.json").write_text(json.dumps(index))
    twell(*train, "--resume", "--extend-to", 2)
    assert (tmp_path / "run/step-00000002/config.json").exists()


def test_a_head_that_is_not_tied_is_copied_so(twell, text, tmp_path):
    make_bigram(tmp_path / "m", chain("abc"), WORDS, tie_word_embeddings=True)
    train = ["train", "--data", text, "--out", tmp_path / "run"]
    twell(*train, "--model", tmp_path / "m", "--steps", 1, "--context", 32, "--batch", 1, "--lr", 0)
    twell(*train, "--resume", "--extend-to", 2)
    assert ids_of(twell, tmp_path / "run") == [*b"bc", EOT, *b"abc"]
    done = twell("convert", "--in", tmp_path / "m", "--out", tmp_path / "copy")
    assert len(notes(done)) == 1 and "tie_word_embeddings" in notes(done)[0]
    assert json.loads((tmp_path / "copy/config.json").read_text())["tie_word_embeddings"] is False
    assert ids_of(twell, tmp_path / "m") == ids_of(twell, tmp_path / "copy") == [*b"bc", EOT, *b"abc"]


# --- vocabularies ---

def test_a_tokenizer_of_more_entries_than_the_model(twell, text, tmp_path):
    make_bigram(tmp_path / "m", chain("abc"), WORDS, vocab=256)
    assert bytes(ids_of(twell, tmp_path / "m", count=2)) == b"bc"
    error = twell("generate", "--model", tmp_path / "m", "--prompt", "a<|eot|>", ok=False).error_line()
    assert "257" in error and "256" in error
    train = ["train", "--model", tmp_path / "m", "--steps", 1, "--context", 16, "--batch", 1]
    error = twell(*train, "--data", text, "--out", tmp_path / "r", ok=False).error_line()
    assert "256" in error and "<|end_of_text|>" in error  # which ends every document
    # Without a token that ends documents, the text has none that the model lacks.
    make_bigram(tmp_path / "plain", chain("abc"), ["<pad>"], vocab=256)
    train[2] = tmp_path / "plain"
    done = twell(*train, "--data", text, "--out", tmp_path / "r")
    assert len(notes(done)) == 1 and "257 entries" in notes(done)[0]
    twell("convert", "--in", tmp_path / "r", "--out", tmp_path / "copy")


def test_a_tokenizer_of_fewer_entries_than_the_model(twell, text, tmp_path):
    make_bigram(tmp_path / "m", lambda t: ord("b") if t == ord("a") else 270, [], vocab=280)
    done = twell("generate", "--model", tmp_path / "m", "--prompt", "a", "--temperature", 0,
                 "--max-tokens", 3, json_name="fewer.json")
    assert done.json["sequences"][0]["token_ids"] == [ord("b"), 270, 270]
    assert done.json["text"] == "b"  # the others stand for nothing
    twell("train", "--model", tmp_path / "m", "--data", text, "--out", tmp_path / "r", "--steps", 1,
          "--context", 16, "--batch", 1)


def test_tokens_that_the_tokenizer_has_not(twell, tmp_path):
    make_bigram(tmp_path / "m", chain("abc"), WORDS)
    config = {"added_tokens_decoder": {"257": {"content": "<|eot|>"}, "258": {"content": "<pad>"}}}
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps(config))
    done = twell("generate", "--model", tmp_path / "m", "--prompt", "<pad>", "--max-tokens", 1)
    assert len(notes(done)) == 1 and '"<pad>"' in notes(done)[0]


@pytest.mark.parametrize(("tokenizer_config", "special_tokens_map", "ends"), [
    ({}, {"eos_token": {"content": "<|eot|>"}}, EOT),
    ({"eos_token": "<|end_of_text|>"}, {"eos_token": "<|eot|>"}, EOT),
    ({"eos_token": "<|end_of_text|>", "added_tokens_decoder": {}}, {"eos_token": "<|eot|>"}, 256),
])
def test_the_token_that_ends_a_document(twell, tmp_path, tokenizer_config, special_tokens_map, ends):
    """As AutoTokenizer takes it from the two files."""
    make_bigram(tmp_path / "m", chain("abc"), WORDS)
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (tmp_path / "m/special_tokens_map.json").write_text(json.dumps(special_tokens_map))
    (tmp_path / "a.txt").write_text("abc")
    twell("tokenize", "--text", tmp_path / "a.txt", "--tokenizer", tmp_path / "m", "--out", tmp_path / "t")
    assert (tmp_path / "t").read_bytes()[64:] == b"".join(i.to_bytes(2, "little") for i in [*b"abc", ends])
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "m")
    assert theirs.eos_token_id == ends


# --- what is refused ---

def test_weights_in_another_format_are_named(twell, tmp_path):
    make_bigram(tmp_path / "m", chain("abc"), WORDS)
    (tmp_path / "m/model.safetensors").rename(tmp_path / "m/pytorch_model.bin")
    error = twell("generate", "--model", tmp_path / "m", "--prompt", "a", ok=False).error_line()
    assert "pytorch_model.bin" in error and "save_pretrained" in error


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_files_that_were_not_fetched(twell, model, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:5f3a\nsize 52\n"
    (model / name).write_text(pointer)
    error = twell("generate", "--model", model, "--prompt", "a", ok=False).error_line()
    assert name in error and "git lfs pull" in error


def test_words_without_tokenizer_json(twell, tmp_path):
    """GPT-2's pair of files has its way of splitting a text; that of another model would be guessed."""
    make_bigram(tmp_path / "m", chain("abc"), [])
    words = json.loads((tmp_path / "m/tokenizer.json").read_text())
    (tmp_path / "m/tokenizer.json").unlink()
    (tmp_path / "m/vocab.json").write_text(json.dumps(words["model"]["vocab"]))
    (tmp_path / "m/merges.txt").write_text("#version: 0.2\n")
    assert bytes(ids_of(twell, tmp_path / "m", count=2)) == b"bc"
    config = tmp_path / "m/tokenizer_config.json"
    for name, good in (("GPT2Tokenizer", True), ("GPT2TokenizerFast", True), ("Qwen2Tokenizer", False)):
        config.write_text(json.dumps({"tokenizer_class": name}))
        if good:
            assert bytes(ids_of(twell, tmp_path / "m", count=2)) == b"bc"
        else:
            error = twell("generate", "--model", tmp_path / "m", "--prompt", "a", ok=False).error_line()
            assert "Qwen2Tokenizer" in error and "tokenizer.json" in error
    config.write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}))  # OPT's
    error = twell("generate", "--model", tmp_path / "m", "--prompt", "a", ok=False).error_line()
    assert "add_bos_token" in error and "tokenizer.json" in error
    config.unlink()
    (tmp_path / "m/added_tokens.json").write_text('{"<|im_start|>": 256}')
    error = twell("generate", "--model", tmp_path / "m", "--prompt", "a", ok=False).error_line()
    assert "added_tokens.json" in error
