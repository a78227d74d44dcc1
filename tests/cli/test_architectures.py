"""One tiny random model of each architecture with zeros through the commands: its greedy text is that
of `transformers`, and a copy with its neurons in another order writes it too."""

import json
import pathlib
import sys

import pytest

for folder in ("support", "decoder"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / folder))
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from bigram import tokenizer  # noqa: E402
from published_models import Published  # noqa: E402

SIZES = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=None,
)
CASES = {
    "Llama": dict(hidden_act="relu", mlp_bias=True),
    "Qwen3": dict(hidden_act="relu", head_dim=16),
    "Mistral": dict(hidden_act="relu", sliding_window=None),
    "Arcee": {},
    "Nemotron": dict(mlp_bias=True),
    "OPT": dict(ffn_dim=160, init_std=0.2),
    "BitNet": {},
    "NanoChat": dict(pad_token_id=0),
}
PROMPT, COUNT = "Once upon", 12


def make(kind, folder):
    torch.manual_seed(3)
    config = getattr(transformers, kind + "Config")(**{**SIZES, **CASES[kind]})
    model = getattr(transformers, kind + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return model


def greedy(model):
    ids = list(PROMPT.encode())
    with torch.no_grad():
        for _ in range(COUNT):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("kind", CASES)
def test_greedy_text(twell, tmp_path, text, kind):
    model = make(kind, tmp_path / "m")
    expected = greedy(model)

    def written(folder, path):
        done = twell("generate", "--model", folder, "--prompt", PROMPT, "--temperature", 0, "--path", path,
                     "--max-tokens", COUNT, json_name="architecture.json")
        return done.json["sequences"][0]["token_ids"]

    for path in ("dense", "sparse", "auto"):
        assert written(tmp_path / "m", path) == expected, path
    twell("prepare", "--model", tmp_path / "m", "--text", text)
    assert written(tmp_path / "m", "sparse") == expected
    twell("convert", "--in", tmp_path / "m", "--out", tmp_path / "other", "--reorder", "--text", text,
          "--max-tokens", 512)
    assert written(tmp_path / "other", "sparse") == expected
    again = getattr(transformers, kind + "ForCausalLM").from_pretrained(tmp_path / "other", dtype=torch.float32)
    assert greedy(again.eval()) == expected


THINKER = dict(
    SIZES,
    model_type="smallthinker",
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    tie_word_embeddings=True,
    moe_ffn_hidden_size=96,
    moe_num_primary_experts=6,
    moe_num_active_primary_experts=2,
    moe_primary_router_apply_softmax=False,
    rope_layout=[0, 1],
    sliding_window_layout=[0, 0],
)


def test_experts(twell, tmp_path, text):
    torch.manual_seed(3)
    model = Published(**THINKER).eval()
    model.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(tokenizer()))
    expected = greedy(model)

    def written(folder, *options):
        done = twell("generate", "--model", folder, "--prompt", PROMPT, "--temperature", 0, "--max-tokens", COUNT,
                     *options, json_name="experts.json")
        return done.json["sequences"][0]["token_ids"]

    for path in ("dense", "sparse", "auto"):
        assert written(tmp_path / "m", "--path", path) == expected, path
    twell("convert", "--in", tmp_path / "m", "--out", tmp_path / "again")
    assert written(tmp_path / "again") == expected
    done = twell("stats", "--model", tmp_path / "m", "--text", text, "--max-tokens", 256, json_name="stats.json")
    assert done.json["neurons"] == 2 * 96
    assert 0.2 < done.json["nnz_mean"] / 192 < 0.8, "half of the pre-activations are positive"
    done = twell("explain", "--model", tmp_path / "m")
    assert "2 of 6 experts for each token, one of them" in done.out
    # Codes on the sparse path, numbers on the dense one: the same matrix.
    done = twell("quantize", "--model", tmp_path / "m", "--type", "int8", "--out", tmp_path / "codes",
                 json_name="quantize.json")
    assert sum(part["tensors"] for part in done.json["parts"]) == 2 * (4 + 6 * 3) + 1, "no router"
    assert written(tmp_path / "codes", "--path", "sparse") == written(tmp_path / "codes", "--path", "dense")

    out = tmp_path / "none"
    for refused in (
        ["prepare", "--model", tmp_path / "m", "--text", text],
        ["convert", "--in", tmp_path / "m", "--out", out, "--reorder", "--text", text],
        ["stats", "--model", tmp_path / "m", "--text", text, "--trace", out],
        ["stats", "--model", tmp_path / "m", "--text", text, "--popularity"],
        ["train", "--model", tmp_path / "m", "--data", text, "--out", out, "--context", 64, "--steps", 1],
    ):
        done = twell(*refused, ok=False)
        assert done.err.count("\n") == 1 and "experts" in done.err, done.err
    assert not (tmp_path / "m" / "twell_prepared.json").exists()
    assert not out.is_file() and not (out / "model.safetensors").exists()
