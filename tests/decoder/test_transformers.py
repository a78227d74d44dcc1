"""Logits against `transformers` on small random models and a trained one, and against definitions of
those that it does not have.

Tolerances. fp32: both sides compute the same sums in different orders: logit_bound.py.
bf16: both are compared with `transformers` in fp32 on the same weights. Ours rounds at the same
places or fewer, so its root mean square error may exceed theirs by chance only; the quotient of two
root mean squares over more than 5,000 logits with perhaps a hundred independent errors varies by
about 10 %: at most 1.25.
"""

import os
import pathlib
import subprocess

import pytest
from shared_data import data_path

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
transformers = pytest.importorskip("transformers")
from llama2c_reference import Llama2c, Tokenizer, greedy  # noqa: E402
from logit_bound import logit_bound  # noqa: E402
from published_models import Published  # noqa: E402

VOCABULARY, LENGTH = 211, 48
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "beta_slow": 0.25, "beta_fast": 4.0, "original_max_position_embeddings": 16}
COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=128,
    initializer_range=0.08,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)
CASES = {
    "llama": ("Llama", {}),
    "llama-gqa-tied": ("Llama", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "llama-mqa-wide-heads": ("Llama", dict(num_key_value_heads=1, head_dim=32)),
    "llama-linear-scaling": ("Llama", dict(rope_scaling={"rope_type": "linear", "factor": 4.0})),
    "llama-llama3-scaling": ("Llama", dict(rope_scaling=LLAMA3, rope_theta=500000.0)),
    "llama-yarn": ("Llama", dict(rope_scaling=YARN, head_dim=32)),
    "llama-yarn-mscale": ("Llama", dict(rope_scaling=dict(YARN, mscale=2.0, mscale_all_dim=1.0, truncate=False))),
    "llama-biases": ("Llama", dict(attention_bias=True, mlp_bias=True)),
    "llama-relu": ("Llama", dict(hidden_act="relu")),
    "llama-relu2": ("Llama", dict(hidden_act="relu2")),
    "llama-gelu": ("Llama", dict(hidden_act="gelu")),
    "llama-gelu-tanh": ("Llama", dict(hidden_act="gelu_pytorch_tanh")),
    "qwen2": ("Qwen2", dict(num_key_value_heads=2)),
    "qwen2-tied-relu": ("Qwen2", dict(tie_word_embeddings=True, hidden_act="relu")),
    "llama-relu-biases": ("Llama", dict(hidden_act="relu", attention_bias=True, mlp_bias=True)),
    "qwen3": ("Qwen3", dict(num_key_value_heads=2, head_dim=16)),
    "qwen3-relu": ("Qwen3", dict(hidden_act="relu", head_dim=32, attention_bias=True)),
    "mistral": ("Mistral", dict(num_key_value_heads=2, sliding_window=None)),
    "mistral-relu": ("Mistral", dict(hidden_act="relu", sliding_window=128, head_dim=32)),
    "arcee-relu2": ("Arcee", dict(num_key_value_heads=2)),
    "arcee-biases": ("Arcee", dict(attention_bias=True, mlp_bias=True)),
    "nemotron-relu2": ("Nemotron", dict(num_key_value_heads=2)),
    "nemotron-biases": ("Nemotron", dict(attention_bias=True, mlp_bias=True, partial_rotary_factor=0.25)),
    "opt": ("OPT", dict(ffn_dim=176)),
    "opt-norm-behind": ("OPT", dict(ffn_dim=176, do_layer_norm_before=False)),
    "opt-bare": ("OPT", dict(ffn_dim=176, enable_bias=False, layer_norm_elementwise_affine=False)),
    "bitnet-relu2": ("BitNet", dict(num_key_value_heads=2)),
    "bitnet-biases": ("BitNet", dict(attention_bias=True, tie_word_embeddings=True)),
    "nanochat-relu2": ("NanoChat", dict(num_key_value_heads=2, final_logit_softcapping=1.5)),
    "nanochat-biases": ("NanoChat", dict(attention_bias=True, final_logit_softcapping=None)),
    # Of other_architectures.h: what the engine's block can be besides.
    "stablelm": ("StableLm", dict(num_key_value_heads=2, use_qkv_bias=True)),
    "stablelm-parallel": ("StableLm", dict(use_parallel_residual=True)),
}
LLAMA_LIKE = dict(COMMON, num_key_value_heads=2, tie_word_embeddings=False, rope_theta=10000.0)
FATRELU = dict(hidden_act="fatrelu", hidden_act_param=0.05)
MINICPM = dict(model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=16)
SMALLTHINKER = dict(
    model_type="smallthinker",
    head_dim=16,
    moe_ffn_hidden_size=176,
    moe_num_primary_experts=6,
    moe_num_active_primary_experts=2,
    rope_layout=[1, 1, 1],
    sliding_window_layout=[0, 0, 0],
)
PUBLISHED = {
    "prosparse": dict(model_type="sparsellama", **FATRELU),
    "prosparse-llama": dict(model_type="llama", **FATRELU),
    "minicpm-s": dict(MINICPM, **FATRELU),
    "minicpm-tied": dict(MINICPM, hidden_act="relu", tie_word_embeddings=True),
    "bamboo": dict(model_type="bamboo", hidden_act="relu", sliding_window=None),
    "smallthinker": dict(SMALLTHINKER, moe_primary_router_apply_softmax=False),
    "smallthinker-softmax": dict(SMALLTHINKER, moe_primary_router_apply_softmax=True, rope_layout=[0, 1, 0]),
    "bamboo-squared": dict(model_type="bamboo", hidden_act="relu2", sliding_window=4096),
}


class Driver:
    """The program beside this file. Called with its arguments it gives its numbers."""

    def __init__(self, program):
        self.program = program

    def __call__(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return np.frombuffer(done.stdout, np.float32)

    def logits(self, directory, paths, ids):
        """{(path, how): [len(ids), vocabulary]}, uncached and cached for each path."""
        keys = [(path, how) for path in paths.split(",") for how in ("forward", "cached")]
        rows = self(directory, paths, *ids).reshape(len(keys), len(ids), -1)
        return dict(zip(keys, rows))


@pytest.fixture(scope="session")
def driver():
    program = os.environ.get("TWELL_DECODER_DRIVER")
    if not program and os.environ.get("TWELL_BUILD_DIR"):
        program = pathlib.Path(os.environ["TWELL_BUILD_DIR"], "tests/decoder/twell_decoder_driver")
    if not program or not pathlib.Path(program).exists():
        pytest.skip("TWELL_DECODER_DRIVER does not name the driver program")
    return Driver(program)


def make_model(case, dtype):
    """A random model whose biases and norms are no longer zeros and ones."""
    torch.manual_seed(7)
    if case in PUBLISHED:
        return Published(**{**LLAMA_LIKE, **PUBLISHED[case]}).eval().to(dtype)
    kind, changes = CASES[case]
    config = getattr(transformers, kind + "Config")(**{**COMMON, **changes})
    model = getattr(transformers, kind + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.1)
            elif "norm" in name:
                p.normal_(1, 0.1)
    return model.to(dtype)


def ids_of(length=LENGTH):
    return np.random.default_rng(3).integers(0, VOCABULARY, length).tolist()


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def paths_of(config):
    act = getattr(config, "hidden_act", None) or getattr(config, "activation_function", "relu")
    return "dense,sparse" if act in ("relu", "relu2", "fatrelu") else "dense"


def rms(logits, exact):
    return np.sqrt(np.mean((logits - exact) ** 2))


@pytest.mark.parametrize("case", [*CASES, *PUBLISHED])
def test_fp32(case, driver, tmp_path):
    model = make_model(case, torch.float32)
    model.save_pretrained(tmp_path)
    ids = ids_of()
    expected = logits_of(model, ids)
    bound = logit_bound(model.config, expected, LENGTH)
    for key, got in driver.logits(tmp_path, paths_of(model.config), ids).items():
        worst = np.abs(got - expected).max()
        assert worst <= bound, f"{key}: {worst} > {bound}"


IN_BF16 = ["llama-gqa-tied", "llama-llama3-scaling", "llama-relu", "llama-relu-biases", "qwen2", "qwen3-relu",
           "qwen2-tied-relu", "mistral-relu", "arcee-relu2", "nemotron-relu2", "opt", "bitnet-relu2", "nanochat-relu2",
           "stablelm-parallel", *PUBLISHED]


@pytest.mark.parametrize("case", IN_BF16)
def test_bf16(case, driver, tmp_path):
    model = make_model(case, torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids = ids_of()
    theirs = logits_of(model, ids)
    exact = logits_of(model.float(), ids)
    for key, ours in driver.logits(tmp_path, paths_of(model.config), ids).items():
        print(f"{case} {key}: ours {rms(ours, exact):.3e}, transformers {rms(theirs, exact):.3e}")
        assert rms(ours, exact) <= 1.25 * rms(theirs, exact), key


def test_sharded(driver, tmp_path):
    model = make_model("llama", torch.float32)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="200KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").exists()
    ids = ids_of(9)
    one = driver(tmp_path / "one", "dense", *ids)
    assert np.array_equal(one, driver(tmp_path / "many", "dense", *ids))


def stories(name):
    return data_path(f"models/stories260K/{name}")


# What llama2.c's own test expects of stories260K at temperature 0.
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


def test_stories(driver, tmp_path):
    """A trained model: ours, `transformers` and an oracle that knows neither tell one story."""
    oracle = Llama2c(stories("stories260K.bin"))
    words = Tokenizer(stories("tok512.bin"), oracle.vocab)
    prompt = words.encode("")
    story = greedy(oracle, prompt, 200)
    assert words.decode(story).startswith(STORY)
    oracle.save_pretrained(tmp_path)
    ids = prompt + story[:-1]
    for key, logits in driver.logits(tmp_path, "dense", ids).items():
        assert logits.argmax(-1).tolist() == story, key
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert logits_of(model, ids).argmax(-1).tolist() == story
