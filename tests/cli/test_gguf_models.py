"""--model file.gguf: the file's blocks are what is multiplied, and everything else is in the file too."""

import pathlib
import random
import tempfile

import pytest
from gguf_models import LAYERS, NEURONS, gguf, unit_blocks, write_model

FORMATS = ["Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


@pytest.fixture(scope="module")
def words(work):
    path = work / "words.txt"
    chosen = random.Random(5)
    path.write_text("".join(f"t{chosen.randrange(3, 64)}" for _ in range(200)))
    return path


def nats(twell, words, *arguments):
    return twell("eval", "--task", "perplexity", "--data", words, "--window", 100, *arguments,
                 json_name="eval.json").json["nats_per_token"]  # fmt: skip


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "arcee"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_the_model_that_its_numbers_are(twell, words, tmp_path, kind, architecture):
    file = tmp_path / "m.gguf"
    write_model(file, kind, architecture, tied=kind == "Q4_K", blocks=unit_blocks)
    twell("convert", file, tmp_path / "m", "--dtype", "f32")
    expected = nats(twell, words, "--model", tmp_path / "m", "--path", "dense")
    # Inputs of products are rounded to 8 bits (tests/decoder/test_gguf.py compares the logits).
    assert nats(twell, words, "--model", file) == pytest.approx(expected, abs=0.02)
    assert nats(twell, words, "--model", file, "--activations", "exact") == pytest.approx(expected, abs=1e-5)
    assert nats(twell, words, "--model", file, "--activations", "int8") == nats(twell, words, "--model", file)
    # As numbers of one type they are those of the directory.
    assert nats(twell, words, "--model", file, "--dtype", "f32", "--path", "dense") == expected


def explained(twell, file):
    return twell("explain", "--model", file, json_name="explain.json").json["layers"]


def test_types_are_kept_as_they_are_mixed(twell, words, tmp_path):
    file = tmp_path / "m.gguf"
    kinds = {"ffn_down": "Q6_K", "attn_v": "Q5_1", "attn_k": "F16", "token_embd": "Q5_0", "output": "Q4_1"}
    write_model(file, "Q4_K", "arcee", kinds=kinds, blocks=unit_blocks)
    layers = explained(twell, file)
    assert len(layers) == LAYERS
    assert all(layer.startswith("auto: relu2; up Q4_K, down Q6_K; down reads what fired") for layer in layers)
    done = twell("generate", "--model", file, "--prompt", "t5t9", "--max-tokens", 4, json_name="g.json")
    assert done.json["path"] == "sparse" and done.json["tokens"] == 4
    assert "floating-point numbers" in done.err  # Q5_1 and Q4_1 have no product
    twell("convert", file, tmp_path / "m", "--dtype", "f32")
    expected = nats(twell, words, "--model", tmp_path / "m", "--path", "dense")
    assert nats(twell, words, "--model", file) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_an_embedding_in_blocks_alone(twell, words, tmp_path, kind):
    file = tmp_path / "m.gguf"
    write_model(file, kind, "arcee", kinds={"token_embd": "Q8_0"}, blocks=unit_blocks)
    twell("convert", file, tmp_path / "m")
    expected = nats(twell, words, "--model", tmp_path / "m")  # the embedding rounded to the type
    assert nats(twell, words, "--model", file) == pytest.approx(expected, abs=2e-3)
    assert "down reads" not in explained(twell, file)[0]  # a layer as of a directory


def test_memory_is_the_files(twell, tmp_path):
    file = tmp_path / "m.gguf"
    write_model(file, "Q8_0", "arcee", blocks=unit_blocks)
    bench = twell("bench", "model", "--model", file, "--prompt-tokens", 16, "--decode-tokens", 4, "--batch", 1,
                  "--repeats", 1, "--seconds", 0.01, json_name="bench.json")  # fmt: skip
    stored = sum(tensor.n_bytes for tensor in gguf.GGUFReader(file).tensors)
    for side in ("dense", "sparse"):
        assert stored <= bench.json["weight_bytes"][side] < 1.1 * stored, side
    assert bench.json["max_rel_err"] < 1e-2 and bench.json["max_rel_err_bound"] is None
    assert 0 < bench.json["nnz_mean"] < NEURONS and "in the same blocks" in bench.out


def test_layers_beside_blocks_are_sparse_too(twell, words, tmp_path):
    file = tmp_path / "m.gguf"
    write_model(file, "F32", "arcee", kinds={"output": "Q6_K"}, blocks=unit_blocks)
    done = twell("generate", "--model", file, "--prompt", "t5", "--max-tokens", 2, "--path", "sparse",
                 json_name="g.json")  # fmt: skip
    assert done.json["path"] == "sparse"
    twell("convert", file, tmp_path / "m", "--dtype", "f32")
    expected = nats(twell, words, "--model", tmp_path / "m")
    assert nats(twell, words, "--model", file) == pytest.approx(expected, abs=0.02)
    write_model(file, "Q4_K", "arcee", kinds={"ffn_down": "Q5_1"}, blocks=unit_blocks)
    line = twell("generate", "--model", file, "--prompt", "t5", "--path", "sparse", ok=False).error_line()
    assert "blk.0.ffn_down.weight" in line and "--path auto" in line
    assert "down reads all neurons" in explained(twell, file)[0]


def test_chat_has_the_files_template(twell, tmp_path):
    file = tmp_path / "m.gguf"
    write_model(file, "Q4_0", template="{% for m in messages %}{{ m.content }}{% endfor %}", blocks=unit_blocks)
    left = set(pathlib.Path(tempfile.gettempdir()).glob("*twell*"))
    done = twell("chat", "--model", file, "--max-tokens", 3, "--temperature", 0, text="t7\n", json_name="c.json")
    assert [m["role"] for m in done.json["messages"]] == ["user", "assistant"]
    assert set(pathlib.Path(tempfile.gettempdir()).glob("*twell*")) == left


def test_wrong_use_is_one_line(twell, words, tmp_path):
    file = tmp_path / "m.gguf"
    write_model(file, "Q4_K", blocks=unit_blocks)
    whole = file.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    tensor = {t.name: t for t in gguf.GGUFReader(file).tensors}["blk.1.ffn_up.weight"]
    at = int(tensor.data_offset)
    (tmp_path / "inf.gguf").write_bytes(whole[:at] + b"\x00\x7c" + whole[at + 2 :])
    write_model(tmp_path / "vector.gguf", "BF16", "qwen2", kinds={"attn_q.bias": "Q8_0"})
    ask = ("--prompt", "t5", "--max-tokens", 1)
    for arguments, parts in {
        ("generate", "--model", tmp_path / "cut.gguf", *ask): ("cut.gguf", "truncated"),
        ("generate", "--model", tmp_path / "absent.gguf", *ask): ("absent.gguf", "does not exist"),
        ("generate", "--model", tmp_path / "inf.gguf", *ask): ("inf.gguf", "blk.1.ffn_up.weight", "not finite"),
        ("generate", "--model", file, "--path", "sparse", *ask): ("m.gguf", "yields no zeros"),
        ("generate", "--model", file, "--activations", "int8", "--dtype", "f32", *ask): ("m.gguf", "quantised"),
        ("generate", "--model", tmp_path / "vector.gguf", *ask): ("vector.gguf", "attn_q.bias", "a vector in Q8_0"),
        ("convert", tmp_path / "vector.gguf", tmp_path / "v"): ("vector.gguf", "attn_q.bias", "a vector in Q8_0"),
        ("chat", "--model", file): ("m.gguf", "chat template", "there is none"),
        ("bench", "model", "--model", file): ("m.gguf", "yields no zeros"),
        ("quantize", "--model", file, "--type", "int8", "--out", tmp_path / "q"): ("m.gguf", "twell convert"),
        ("prepare", "--model", file, "--text", words): ("m.gguf", "twell convert"),
    }.items():
        line = twell(*arguments, ok=False).error_line()
        assert all(part in line for part in parts), line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gguf", "inf.gguf", "m.gguf", "vector.gguf"]
    write_model(file, "BF16", "arcee")
    line = twell("generate", "--model", file, "--activations", "int8", *ask, ok=False).error_line()
    assert "quantised type" in line
    write_model(file, "Q8_0", "arcee")
    for arguments in (("--reference",), ("--dtype", "f32")):  # numbers are made in several threads
        twell("bench", "model", "--model", file, "--prompt-tokens", 16, "--decode-tokens", 2, "--batch", 1,
              "--repeats", 1, "--seconds", 0.01, "--threads", 2, *arguments)  # fmt: skip
