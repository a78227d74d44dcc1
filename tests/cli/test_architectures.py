"""One tiny random model of each architecture with zeros through the commands: its greedy text is that
of `transformers`, and a copy with its neurons in another order writes it too."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from bigram import tokenizer  # noqa: E402

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
