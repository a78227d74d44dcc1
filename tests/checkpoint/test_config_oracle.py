"""config.json in both directions against `transformers`."""

import json

import pytest

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    ArceeConfig,
    AutoConfig,
    BitNetConfig,
    LlamaConfig,
    MistralConfig,
    NanoChatConfig,
    NemotronConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)

SMALL = dict(
    hidden_size=64,
    intermediate_size=172,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=512,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=128,
)
YARN_ROPE = dict(
    rope_type="yarn",
    rope_theta=10000.0,
    factor=4.0,
    original_max_position_embeddings=64,
    beta_slow=2.0,
    beta_fast=16.0,
    truncate=False,
    attention_factor=1.25,
)
BIASES = dict(attention_bias=True, mlp_bias=True)
OPT = {key: value for key, value in SMALL.items() if key not in ("intermediate_size", "num_key_value_heads")}

CASES = {
    "llama": LlamaConfig(**SMALL, rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
    "llama relu tied": LlamaConfig(**SMALL, hidden_act="relu", tie_word_embeddings=True),
    "llama relu2 biases": LlamaConfig(
        **SMALL, hidden_act="relu2", attention_bias=True, mlp_bias=True, head_dim=32
    ),
    "llama gelu": LlamaConfig(**SMALL, hidden_act="gelu_pytorch_tanh"),
    "llama linear": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    ),
    "llama llama3": LlamaConfig(**{**SMALL, "eos_token_id": [2, 3]}, rope_parameters=LLAMA3_ROPE),
    "llama yarn": LlamaConfig(**SMALL, rope_parameters=YARN_ROPE),
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2 no tokens": Qwen2Config(**{**SMALL, "bos_token_id": None, "eos_token_id": None}),
    "qwen3": Qwen3Config(**SMALL, head_dim=16, attention_bias=True),
    "mistral relu": MistralConfig(**SMALL, hidden_act="relu", sliding_window=None),
    "arcee": ArceeConfig(**SMALL, **BIASES),
    "nemotron": NemotronConfig(**SMALL, **BIASES, norm_eps=1e-4),
    "nemotron all rotated": NemotronConfig(**SMALL, partial_rotary_factor=1.0),
    "opt": OPTConfig(**OPT, ffn_dim=172),
    "opt bare": OPTConfig(**OPT, ffn_dim=172, enable_bias=False, do_layer_norm_before=False,
                          tie_word_embeddings=False),
    "bitnet": BitNetConfig(**SMALL, attention_bias=True),
    "nanochat": NanoChatConfig(**SMALL, attention_bias=True, final_logit_softcapping=7.0),
    "nanochat no cap": NanoChatConfig(**SMALL, final_logit_softcapping=None),
}


def rewrite(driver, source, target):
    """Reads with ours, writes with ours, reads with theirs."""
    driver("config", source, target)
    return AutoConfig.from_pretrained(target)


def assert_same(got, want):
    assert got.architectures == [type(want).__name__.replace("Config", "ForCausalLM")]
    assert str(got.dtype).removeprefix("torch.") == str(want.dtype or "float32").removeprefix("torch.")
    for key, value in want.to_dict().items():
        if key not in ("architectures", "dtype", "transformers_version", "_name_or_path"):
            assert getattr(got, key) == value, key


@pytest.mark.parametrize("name", CASES)
def test_what_transformers_writes(driver, tmp_path, name):
    want = CASES[name]
    want.save_pretrained(tmp_path / "in")
    assert_same(rewrite(driver, tmp_path / "in", tmp_path / "out"), want)
    # What we wrote reads as what we read.
    first = (tmp_path / "out" / "config.json").read_bytes()
    driver("config", tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == first


@pytest.mark.parametrize("name", CASES)
def test_older_spelling(driver, tmp_path, name):
    """rope_theta beside rope_scaling, torch_dtype: what transformers 4 writes."""
    want = CASES[name]
    document = want.to_dict()
    document["model_type"] = want.model_type
    if rope := document.pop("rope_parameters", None):
        document["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            document["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        document["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    document["torch_dtype"] = "bfloat16"
    document.pop("dtype", None)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(document))
    want = AutoConfig.from_pretrained(tmp_path / "in")
    assert_same(rewrite(driver, tmp_path / "in", tmp_path / "out"), want)


@pytest.mark.parametrize("base", [LlamaConfig, Qwen2Config])
def test_released_sparse_models(driver, tmp_path, base):
    """model_type says it is sparse, hidden_act still says silu: it is relu."""
    document = base(**SMALL).to_dict()
    document["model_type"] = base.model_type + "_sparse_relu"
    document["hidden_act"] = "silu"
    document["sparsity_gated_mlp"] = False
    document["sparsity_new_intermediate_size"] = 256
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(document))
    got = rewrite(driver, tmp_path / "in", tmp_path / "out")
    assert got.hidden_act == "relu"
    assert got.model_type == base.model_type
    assert got.intermediate_size == 256
    assert got.twell_gated is False
