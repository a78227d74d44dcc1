"""twell convert from and to GGUF files, against the package gguf that llama.cpp's own tools use."""

import json

import numpy
import pytest
import torch
import transformers
from gguf_models import as_in_transformers, gguf, write_model
from safetensors.torch import load_file, save_file
from spm_like import BYTES, SPACE, SPECIAL
from spm_like import tokenizer as spm_tokenizer
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
SYMMETRIC = ("Q8_0", "Q4_0", "Q5_0")
FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
TEXTS = ["The old cat, 2024.", "  two  spaces\n\nand\ta tab", "don't stop", "é 中文 \U0001f642", "<s> a </s>", ""]


def tensors_of(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def decoded(tensors):
    """Codes of 8 bits, four to a word and each with 128 more, times scales of 32."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight_packed"):
            module = name.removesuffix("_packed")
            codes = torch.from_numpy(tensor.numpy().view(numpy.uint8).astype(numpy.int32) - 128)
            scales = tensors[module + "_scale"].double().repeat_interleave(32, 1)
            out[module] = (codes * scales).float()
        elif not name.endswith(("_scale", "_shape")):
            out[name] = tensor
    return out


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_has_the_packages_numbers(twell, tmp_path, kind):
    numbers = as_in_transformers(write_model(tmp_path / "m.gguf", kind))
    twell("convert", tmp_path / "m.gguf", tmp_path / "f32", "--dtype", "f32")
    got = load_file(tmp_path / "f32" / "model.safetensors")
    assert set(got) == set(numbers)
    for name, tensor in got.items():
        assert torch.equal(tensor, numbers[name]), name

    done = twell("convert", "--in", tmp_path / "m.gguf", "--out", tmp_path / "auto", json_name="gguf.json")
    stored = load_file(tmp_path / "auto" / "model.safetensors")
    got = decoded(stored)
    assert set(got) == set(numbers)
    kept = kind in SYMMETRIC
    assert any(name.endswith("_packed") for name in stored) is kept
    rounded = "float32" if kept or kind == "F32" else "float16" if kind == "F16" else "bfloat16"
    assert json.loads((tmp_path / "auto" / "config.json").read_text())["torch_dtype"] == rounded
    for name, tensor in got.items():  # once, to the nearest
        assert torch.equal(tensor, numbers[name].to(getattr(torch, rounded))), name
    assert done.json["rounded"] is (not kept and kind not in ("F32", "F16", "BF16"))
    assert ("rounded to bfloat16" in done.err) is done.json["rounded"]


def test_codes_are_the_same_model_in_transformers(twell, tmp_path):
    write_model(tmp_path / "m.gguf", "Q4_0")
    for name, more in (("codes", []), ("floats", ["--dtype", "f32"])):
        twell("convert", tmp_path / "m.gguf", tmp_path / name, *more)
    ids = torch.arange(64)[None]
    with torch.no_grad():
        logits = [AutoModelForCausalLM.from_pretrained(tmp_path / name).eval()(ids).logits
                  for name in ("codes", "floats")]  # fmt: skip
    assert torch.equal(*logits)
    said = [twell("generate", "--model", tmp_path / name, "--prompt", "t", "--max-tokens", 8, "--temperature", 0,
                  "--dtype", "f32", json_name="g.json").json["sequences"] for name in ("codes", "floats")]  # fmt: skip
    assert said[0] == said[1]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_directory_and_back(twell, tmp_path, architecture, tied):
    numbers = write_model(tmp_path / "m.gguf", "BF16", architecture, tied)
    twell("convert", tmp_path / "m.gguf", tmp_path / "one")
    twell("convert", tmp_path / "one", tmp_path / "again.gguf")
    read = {name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            for name, tensor in tensors_of(tmp_path / "again.gguf").items()}  # fmt: skip
    assert set(read) == set(numbers)
    norms = {name for name, data in numbers.items() if data.ndim == 1}
    for name, data in read.items():  # norms were rounded to the model's type
        expected = numbers[name] if name not in norms else torch.from_numpy(numbers[name]).bfloat16().float().numpy()
        assert numpy.array_equal(data, expected), name
    twell("convert", tmp_path / "again.gguf", tmp_path / "two")
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    # The same bytes each time.
    (tmp_path / "x").mkdir()
    twell("convert", tmp_path / "one", tmp_path / "x" / "again.gguf")
    assert (tmp_path / "x" / "again.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_written_types_are_the_packages(twell, tmp_path, kind):
    numbers = write_model(tmp_path / "m.gguf", "F32")
    twell("convert", tmp_path / "m.gguf", tmp_path / "m")
    twell("convert", tmp_path / "m", tmp_path / "o.gguf", "--dtype", kind)
    quant = gguf.GGMLQuantizationType[kind.upper()]
    for name, tensor in tensors_of(tmp_path / "o.gguf").items():
        source = numbers[name]
        if source.ndim == 1:
            assert tensor.tensor_type.name == "F32" and numpy.array_equal(tensor.data, source)
            continue
        assert tensor.tensor_type == quant
        expected = gguf.quants.quantize(source, quant)
        assert numpy.array_equal(tensor.data.view(numpy.uint8).ravel(), expected.view(numpy.uint8).ravel()), name


def test_codes_become_q8_0_as_they_are(twell, tmp_path):
    write_model(tmp_path / "m.gguf", "Q8_0", tied=True)
    twell("convert", tmp_path / "m.gguf", tmp_path / "m")
    twell("convert", tmp_path / "m", tmp_path / "o.gguf")
    before, after = (tensors_of(tmp_path / name) for name in ("m.gguf", "o.gguf"))
    for name, tensor in after.items():
        if name.startswith("blk.") and "norm" not in name:
            assert tensor.tensor_type.name == "Q8_0"
            assert numpy.array_equal(tensor.data, before[name].data), name


# What llama.cpp has besides: model, what differs from SIZES, general.architecture.
SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=64, max_position_embeddings=16384, bos_token_id=0, eos_token_id=1)  # fmt: skip
LLAMA3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=5e5,
              original_max_position_embeddings=8192)  # fmt: skip
YARN = dict(rope_type="yarn", factor=4.0, rope_theta=1e4, original_max_position_embeddings=4096)
MODELS = {
    "biases": ("Llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), "llama"),
    "llama3": ("Llama", dict(rope_parameters=LLAMA3, head_dim=32), "llama"),
    "linear": ("Llama", dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=1e4)), "llama"),
    "yarn": ("Llama", dict(rope_parameters=YARN), "llama"),
    "mistral": ("Mistral", dict(sliding_window=None), "llama"),
    "qwen2": ("Qwen2", {}, "qwen2"),
    "qwen3": ("Qwen3", dict(head_dim=32), "qwen3"),
    "arcee": ("Arcee", {}, "arcee"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_there_and_back(twell, tmp_path, name):
    kind, more, architecture = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases
            torch.nn.init.normal_(parameter, 0.5)
    model.save_pretrained(tmp_path / "m")
    write_model(tmp_path / "t.gguf", "F32")
    twell("convert", tmp_path / "t.gguf", tmp_path / "words")
    done = twell("convert", tmp_path / "m", tmp_path / "o.gguf", "--tokenizer", tmp_path / "words", json_name="m.json")
    assert done.json["architecture"] == architecture
    twell("convert", tmp_path / "o.gguf", tmp_path / "back")
    ids = torch.arange(64)[None]
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()(ids).logits, expected)


def ids_of(directory):
    mine = Tokenizer.from_file(str(directory / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(directory)
    out = []
    for text in TEXTS:
        ids = mine.encode(text).ids
        assert theirs(text)["input_ids"] == ids
        out.append((ids, mine.decode(ids)))
    return out


def test_what_is_trained_here_runs_in_llama_cpp_where_it_knows_the_activation(twell, text, tmp_path):
    train = ["train", "--data", text, "--layers", 2, "--width", 64, "--neurons", 256, "--heads", 2, "--bpe-vocab", 320,
             "--steps", 2, "--context", 32, "--batch", 2]  # fmt: skip
    twell(*train, "--out", tmp_path / "relu")
    line = twell("convert", tmp_path / "relu", tmp_path / "no.gguf", ok=False).error_line()
    assert "a llama with relu" in line and not (tmp_path / "no.gguf").exists()

    twell(*train, "--out", tmp_path / "run", "--activation", "relu_squared", "--no-gated")
    done = twell("convert", tmp_path / "run", tmp_path / "run.gguf", json_name="arcee.json")
    assert done.json["architecture"] == "arcee"
    twell("convert", tmp_path / "run.gguf", tmp_path / "back")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert type(model).__name__ == "ArceeForCausalLM"
    assert ids_of(tmp_path / "back") == ids_of(tmp_path / "run" / "latest")
    first, second = (load_file(p / "model.safetensors") for p in (tmp_path / "run" / "latest", tmp_path / "back"))
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    told = [twell("generate", "--model", p, "--prompt", "The cat", "--max-tokens", 8, "--temperature", 0,
                  json_name="g.json").json["sequences"] for p in (tmp_path / "run", tmp_path / "back")]  # fmt: skip
    assert told[0] == told[1]


# What SentencePiece would have learned: each piece by every pair of its parts, side by side.
PIECES = ["th", "the", f"{SPACE}the", f"{SPACE}c", f"{SPACE}ca", f"{SPACE}cat", "ol", "old", SPACE * 2]


def test_a_tokenizer_of_characters_there_and_back(twell, tmp_path):
    characters = sorted(set("".join(PIECES) + "acdehlot2.,"))
    vocabulary = {*characters, *PIECES}
    merges = [[piece[:at], piece[at:]] for piece in PIECES for at in range(len(piece) - 1, 0, -1)
              if {piece[:at], piece[at:]} <= vocabulary]  # fmt: skip
    document = spm_tokenizer([*BYTES, *PIECES, *characters], merges)
    size = len(document["model"]["vocab"])
    write_model(tmp_path / "m.gguf", "BF16", vocabulary=size)
    twell("convert", tmp_path / "m.gguf", tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[1], "eos_token": SPECIAL[2],
         "chat_template": "{{ messages[0].content }}"}))  # fmt: skip
    twell("convert", tmp_path / "m", tmp_path / "o.gguf")
    values = gguf.GGUFReader(tmp_path / "o.gguf").fields
    assert values["tokenizer.ggml.model"].contents() == "llama"
    assert values["tokenizer.chat_template"].contents() == "{{ messages[0].content }}"
    types = values["tokenizer.ggml.token_type"].contents()
    assert types[:3] == [2, 3, 3] and types[3:259] == [6] * 256 and set(types[259:]) == {1}
    twell("convert", tmp_path / "o.gguf", tmp_path / "back")
    assert ids_of(tmp_path / "back") == ids_of(tmp_path / "m")
    again = json.loads((tmp_path / "back" / "tokenizer.json").read_text())
    assert again["model"]["merges"] == merges
    document["model"]["merges"] = [merge for merge in merges if merge != ["th", "e"]]
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(document))
    assert "llama.cpp has no tokenizer" in twell("convert", tmp_path / "m", tmp_path / "p.gguf", ok=False).error_line()


def test_the_other_tokenizer(twell, trained, tmp_path):
    write_model(tmp_path / "m.gguf", "F32", vocabulary=320)
    twell("convert", tmp_path / "m.gguf", tmp_path / "m", "--tokenizer", trained[0])
    assert (tmp_path / "m/tokenizer.json").read_bytes() == (trained[0] / "latest/tokenizer.json").read_bytes()


def test_wrong_use_is_one_line_and_leaves_nothing(twell, trained, tmp_path):
    write_model(tmp_path / "m.gguf", "F32")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "not.gguf").write_bytes(b"weights")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for arguments, parts in {
        (tmp_path / "cut.gguf", tmp_path / "o"): ("cut.gguf", "truncated"),
        (tmp_path / "not.gguf", tmp_path / "o"): ("not.gguf", "no GGUF file"),
        (tmp_path / "absent.gguf", tmp_path / "o"): ("absent.gguf", "No such file"),
        (tmp_path / "m.gguf", tmp_path / "full"): ("full", "not empty"),
        (tmp_path / "m.gguf", tmp_path / "o", "--dtype", "q8_0"): ("--dtype q8_0", "GGUF"),
        (tmp_path / "m.gguf", tmp_path / "o.gguf"): ("m.gguf", "is a GGUF file already"),
        (tmp_path / "m.gguf", tmp_path / "o", "--reorder", "--text", tmp_path / "not.gguf"): ("--reorder", "GGUF"),
        (trained[0], tmp_path / "m.gguf"): ("m.gguf", "is there already"),
        (trained[0], tmp_path / "o", "--dtype", "f16"): ("--dtype f16", "GGUF"),
    }.items():
        line = twell("convert", *arguments, ok=False).error_line()
        assert all(part in line for part in parts), line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gguf", "full", "m.gguf", "not.gguf"]


def test_numbers_that_no_type_holds_are_one_line(twell, tmp_path):
    write_model(tmp_path / "m.gguf", "F32")
    twell("convert", tmp_path / "m.gguf", tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = 1e6
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    line = twell("convert", tmp_path / "m", tmp_path / "o.gguf", "--dtype", "f16", ok=False).error_line()
    assert name in line and "F16" in line and not (tmp_path / "o.gguf").exists()
