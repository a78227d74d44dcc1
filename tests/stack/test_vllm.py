"""vLLM with the plug-in twell.vllm: the text of its own dense layers, on one rank and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("vllm", reason="vLLM is not installed")
transformers = pytest.importorskip("transformers")
platforms = pytest.importorskip("vllm.platforms")
if not platforms.current_platform.is_cpu():
    pytest.skip("this vLLM is not the one for CPUs", allow_module_level=True)

from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32  # noqa: E402

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parent / "decoder")]
from conftest import ENTRY_POINT, tell_of_the_plugin  # noqa: E402
from logit_bound import logit_bound  # noqa: E402
from published_models import Published  # noqa: E402
from twell import ops  # noqa: E402
from vllm_probe import PROMPTS  # noqa: E402

LAYERS, NEURONS = 2, 352
KINDS = {
    "llama": "relu", "qwen2": "relu", "mistral": "relu", "qwen3": "relu", "nemotron": "relu2",
    "nemotron_h": "relu2", "opt": "relu", "minicpm": "fatrelu",
}  # fmt: skip

# What is packed beside the sparse layers: attention's (Nemotron-H's one, and one of Mamba), and the head.
OF_ATTENTION = Counter(QKVParallelLinear=LAYERS, RowParallelLinear=LAYERS)
PACKED = {"nemotron_h": Counter("QKVParallelLinear MergedColumnParallelLinear".split(), RowParallelLinear=2)}
# Of a form that no class of transformers has, so the bound of the logits is the engine's.
PUBLISHED = {"minicpm": "fatrelu"}


class Runs:
    """Runs tiny models in vLLM, once for the same arguments. What `pip install .` would tell vLLM of the
    plug-in is in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: dict[tuple, dict] = {}
        tell_of_the_plugin(root)

    def model(self, kind: str, act: str) -> Path:
        folder = self.root / f"{kind}-{act}"
        if not folder.exists():
            torch.manual_seed(5)
            _tiny(kind, act).save_pretrained(folder)
            _tokenizer().save_pretrained(folder)
            if kind in PUBLISHED:
                (folder / "configuration_tiny.py").write_text(_CONFIGURATION)
        return folder

    def quantised(self, kind: str, act: str, weights: str) -> Path:
        """The model in codes, or as the numbers that these stand for."""
        folder = self.root / f"{kind}-{act}-{weights.replace(' ', '-')}"
        if folder.exists():
            return folder
        if weights.startswith("numbers of "):
            codes = self.quantised(kind, act, weights.removeprefix("numbers of "))
            torch.manual_seed(5)
            model = _tiny(kind, act)
            model.load_state_dict(_numbers(load_file(codes / "model.safetensors")), strict=False)
            model.save_pretrained(folder)
        else:
            twell = os.environ.get("TWELL_CLI") or pytest.skip("TWELL_CLI names no twell")
            command = [twell, "quantize", "--model", self.model(kind, act), "--out", folder, "--type", weights]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        _tokenizer().save_pretrained(folder)
        return folder

    def __call__(
        self, kind: str, layers: str = "sparse", act: str = "relu", ranks: int = 1, mode: str = "eager",
        weights: str = "",
    ) -> dict:  # fmt: skip
        key = (kind, layers, act, ranks, mode, weights.replace(" ", "-"))
        if key in self.done:
            return self.done[key]
        root = self.root
        path = [str(root), str(HERE), str(HERE.parents[1] / "python"), os.environ.get("PYTHONPATH")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "VLLM_PLUGINS": "" if layers == "without" else "twell",
            "TWELL_VLLM": "dense" if layers == "dense" else "sparse",
            # One core for each rank: by itself vLLM wants a NUMA node for each.
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(ranks)),
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # of the functions of vllm_probe
            "VLLM_CACHE_ROOT": str(root / "cache"),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(root / "modules"),
        }
        out = root / f"{'-'.join(map(str, key))}.json"
        program = [
            sys.executable, HERE / "vllm_probe.py",
            self.quantised(kind, act, weights) if weights else self.model(kind, act), str(ranks), mode, out,
        ]  # fmt: skip
        if not out.exists():  # of an earlier run, in a directory that was kept
            result = subprocess.run(
                program, env=environment, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, f"{result.stdout[-8000:]}\n{result.stderr[-4000:]}"
            out.with_suffix(".log").write_text(result.stdout + result.stderr)
        self.done[key] = json.loads(out.read_text())
        self.done[key]["log"] = out.with_suffix(".log").read_text()
        return self.done[key]

    def deviation(
        self, result: dict, kind: str, act: str, weights: str = ""
    ) -> tuple[float, float]:
        """How far log-probabilities are from transformers' (or from those of the definition), and what
        logits off by their bound let them be off: as much once more for the sum of all."""
        torch.manual_seed(5)
        reference = _tiny(kind, act).eval()
        if weights:
            codes = self.quantised(kind, act, weights)
            reference.load_state_dict(_numbers(load_file(codes / "model.safetensors")), strict=False)
        worst = allowed = 0.0
        for prompt, text, steps in zip(PROMPTS, result["texts"], result["logprobs"], strict=True):
            with torch.no_grad():
                logits = reference(torch.tensor([prompt + text[:-1]])).logits[0, len(prompt) - 1 :]
            got = torch.tensor(steps, dtype=torch.float64)
            worst = max(worst, float((got - logits.double().log_softmax(-1)).abs().max()))
            length = len(prompt) + len(text)
            allowed = max(allowed, 2 * logit_bound(reference.config, logits, length))
        return worst, allowed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("vllm") / "runs")


_CONFIGURATION = """from transformers import PretrainedConfig


class Configuration(PretrainedConfig):
    model_type = "minicpm"
"""


def _tiny(kind: str, act: str):
    if kind in PUBLISHED:
        return Published(
            model_type=kind, architectures=["MiniCPMForCausalLM"],
            auto_map={"AutoConfig": "configuration_tiny.Configuration"}, vocab_size=300,
            hidden_size=128, intermediate_size=NEURONS, num_hidden_layers=LAYERS,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            initializer_range=0.2, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0,
            tie_word_embeddings=False, rope_theta=1e4, hidden_act=act, hidden_act_param=0.05,
            scale_emb=12, scale_depth=1.4, dim_model_base=16, num_experts=0,
        )  # fmt: skip
    names = {"activation_function": act, "ffn_dim": NEURONS, "word_embed_proj_dim": 128, "init_std": 0.2}
    if kind != "opt":
        names = {"hidden_act": act, "intermediate_size": NEURONS, "num_key_value_heads": 2,
                 "initializer_range": 0.2}  # fmt: skip
    layers: dict[str, object] = {"num_hidden_layers": LAYERS}
    if kind == "nemotron_h":
        names["mlp_hidden_act"] = names.pop("hidden_act")
        # vLLM wants a Mamba layer in it.
        layers = {
            "layers_block_type": ["mamba", "mlp", "attention", "mlp"], "head_dim": 32,
            "mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 2,
        }  # fmt: skip
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=300, hidden_size=128, num_attention_heads=4, max_position_embeddings=256,
        bos_token_id=0, eos_token_id=0, **layers, **names,
    )  # fmt: skip
    if kind == "mistral":
        config.sliding_window = None
    if act == "fatrelu":  # which transformers has not
        config.hidden_act = "relu"
    model = transformers.AutoModelForCausalLM.from_config(config)
    if act == "fatrelu":
        config.hidden_act, config.hidden_act_param = act, 0.05
        for layer in model.model.layers:
            layer.mlp.act_fn = torch.nn.Threshold(0.05, 0.0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # they are zeros
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def _numbers(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights in the place of their codes."""
    out = {}
    for name, tensor in stored.items():
        owner, _, own = name.rpartition(".weight")
        if own == "_packed":
            cols = int(stored[f"{owner}.weight_shape"][1])
            codes = unpack_from_int32(tensor, 32 * tensor.shape[1] // cols, torch.Size((len(tensor), cols)))
            scales = stored[f"{owner}.weight_scale"].float()
            out[f"{owner}.weight"] = codes * scales.repeat_interleave(cols // scales.shape[1], 1)
        elif own not in ("_scale", "_shape"):
            out[name] = tensor
    return out


def _tokenizer():
    """Which vLLM wants; prompts are ids."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(300)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model)


def test_installing_tells_vllm_of_the_plugin() -> None:
    project = (HERE.parents[1] / "pyproject.toml").read_text()
    name, _, function = ENTRY_POINT.partition(" = ")
    assert f'[project.entry-points."vllm.general_plugins"]\n{name} = "{function}"\n' in project


@pytest.mark.parametrize(
    ("kind", "act"), [*KINDS.items(), ("llama", "fatrelu"), ("qwen2", "fatrelu")]
)
def test_same_text_as_with_dense_layers(run: Runs, kind: str, act: str) -> None:
    dense, sparse = run(kind, "dense", act), run(kind, act=act)
    assert dense["ranks"][0]["frozen"] == []
    assert all(name.endswith("ParallelLinear") for name in dense["ranks"][0]["linears"])
    (rank,) = sparse["ranks"]
    assert rank["frozen"] == [True] * LAYERS
    # The dense weights are gone, so that nothing else can have computed the layers.
    assert rank["linears"] == ["_Passed", "_Whole"]
    assert dense["ranks"][0]["packed"] == []
    if ops.cpu_tier() != "amx":
        assert Counter(rank["packed"]) == PACKED.get(kind, OF_ATTENTION) + Counter(["ParallelLMHead"])
    assert min(rank["calls"]) >= 24
    assert "run sparsely, not prepared" in sparse["log"]
    assert sparse["texts"] == dense["texts"]
    worst, allowed = run.deviation(sparse, kind, act)
    assert worst <= allowed
    assert len({token for text in dense["texts"] for token in text}) > 20


def test_compiled(run: Runs) -> None:
    compiled = run("llama", mode="compiled")
    assert compiled["ranks"][0]["frozen"] == [True] * LAYERS
    assert compiled["texts"] == run("llama", "dense")["texts"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_hold_half_of_the_neurons_each(run: Runs) -> None:
    two = run("llama", ranks=2)
    assert [rank["neurons"] for rank in two["ranks"]] == [[NEURONS // 2] * LAYERS] * 2
    assert all(min(rank["calls"]) >= 24 for rank in two["ranks"])
    assert two["texts"] == run("llama")["texts"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_add_the_bias_of_down_once(run: Runs) -> None:
    assert run("opt", ranks=2)["texts"] == run("opt")["texts"]


def test_silu_is_left_to_vllm(run: Runs) -> None:
    with_plugin, without = run("llama", act="silu"), run("llama", "without", act="silu")
    (rank,) = with_plugin["ranks"]
    assert rank["frozen"] == [] and "twell: layers" not in with_plugin["log"]
    assert all(with_plugin[what] == without[what] for what in ("texts", "ranks"))


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "nemotron"])
def test_codes_are_multiplied_as_they_are_stored(run: Runs, kind: str, weights: str) -> None:
    act = KINDS[kind]
    codes = run(kind, act=act, weights=weights)
    numbers = run(kind, "dense", act, weights=f"numbers of {weights}")
    (rank,) = codes["ranks"]
    assert rank["frozen"] == [True] * LAYERS and rank["linears"] == ["_Passed", "_Whole"]
    assert rank["kernels"] and set(rank["kernels"]) == {"CodedLinearKernel"}
    assert set(rank["weights"]) <= {"torch.int8", "torch.uint8"}
    assert codes["texts"] == numbers["texts"]
    worst, allowed = run.deviation(codes, kind, act, weights)
    assert worst <= allowed


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_of_codes(run: Runs) -> None:
    two = run("llama", ranks=2, weights="int4")
    assert [rank["neurons"] for rank in two["ranks"]] == [[NEURONS // 2] * LAYERS] * 2
    assert two["texts"] == run("llama", weights="int4")["texts"]
