"""vLLM with the plug-in twell.vllm: the text of its own dense layers, on one rank and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")
transformers = pytest.importorskip("transformers")
platforms = pytest.importorskip("vllm.platforms")
if not platforms.current_platform.is_cpu():
    pytest.skip("this vLLM is not the one for CPUs", allow_module_level=True)

HERE = Path(__file__).resolve().parent
ENTRY_POINT = 'twell = "twell.vllm:register"'
LAYERS, NEURONS = 2, 352
NOT_GATED = {"nemotron": "relu2", "opt": "relu"}

Run = Callable[..., dict]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a tiny model in vLLM, once for the same arguments. What `pip install .` would tell vLLM of
    the plug-in is in a directory of its own."""
    root = tmp_path_factory.mktemp("vllm")
    metadata = root / "twell_tests-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: twell-tests\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{ENTRY_POINT.replace(chr(34), '')}\n"
    )
    done: dict[tuple, dict] = {}

    def run(
        kind: str, layers: str = "sparse", act: str = "relu", ranks: int = 1, mode: str = "eager"
    ) -> dict:
        key = (kind, layers, act, ranks, mode)
        if key in done:
            return done[key]
        model = root / f"{kind}-{act}"
        if not model.exists():
            torch.manual_seed(5)
            _tiny(kind, act).save_pretrained(model)
            transformers.PreTrainedTokenizerFast(tokenizer_object=_words(300)).save_pretrained(
                model
            )
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
        }
        out = root / f"{'-'.join(map(str, key))}.json"
        program = [
            sys.executable, str(HERE / "vllm_probe.py"), str(model), str(ranks), mode, str(out)
        ]  # fmt: skip
        result = subprocess.run(
            program, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{result.stdout[-8000:]}\n{result.stderr[-4000:]}"
        done[key] = json.loads(out.read_text())
        return done[key]

    return run


def _tiny(kind: str, act: str):
    sizes = {"ffn_dim": NEURONS, "activation_function": act, "word_embed_proj_dim": 128,
             "init_std": 0.2} if kind == "opt" else {
             "intermediate_size": NEURONS, "num_key_value_heads": 2, "hidden_act": act,
             "initializer_range": 0.2}  # fmt: skip
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=300, hidden_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        max_position_embeddings=256, bos_token_id=0, eos_token_id=0, **sizes,
    )  # fmt: skip
    if kind == "mistral":
        config.sliding_window = None
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # they are zeros
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def _words(count: int):
    """A tokenizer, which vLLM wants; prompts are ids."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(count)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))


def test_installing_tells_vllm_of_the_plugin() -> None:
    project = (HERE.parents[1] / "pyproject.toml").read_text()
    assert f'[project.entry-points."vllm.general_plugins"]\n{ENTRY_POINT}\n' in project


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "qwen3", *NOT_GATED])
def test_same_text_as_with_dense_layers(run: Run, kind: str) -> None:
    act = NOT_GATED.get(kind, "relu")
    dense, sparse = run(kind, "dense", act), run(kind, act=act)
    assert dense["ranks"][0]["frozen"] == []
    assert all(name.endswith("ParallelLinear") for name in dense["ranks"][0]["linears"])
    (rank,) = sparse["ranks"]
    assert rank["frozen"] == [True] * LAYERS
    # The dense weights are gone, so that nothing else can have computed the layers.
    assert rank["linears"] == ["_Passed", "_Whole"]
    assert min(rank["calls"]) >= 24
    assert sparse["texts"] == dense["texts"]
    assert len({token for text in dense["texts"] for token in text}) > 20


def test_compiled(run: Run) -> None:
    compiled = run("llama", mode="compiled")
    assert compiled["ranks"][0]["frozen"] == [True] * LAYERS
    assert compiled["texts"] == run("llama", "dense")["texts"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_hold_half_of_the_neurons_each(run: Run) -> None:
    two = run("llama", ranks=2)
    assert [rank["neurons"] for rank in two["ranks"]] == [[NEURONS // 2] * LAYERS] * 2
    assert all(min(rank["calls"]) >= 24 for rank in two["ranks"])
    assert two["texts"] == run("llama")["texts"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_add_the_bias_of_down_once(run: Run) -> None:
    assert run("opt", ranks=2)["texts"] == run("opt")["texts"]


def test_silu_is_left_to_vllm(run: Run) -> None:
    with_plugin, without = run("llama", act="silu"), run("llama", "without", act="silu")
    (rank,) = with_plugin["ranks"]
    assert rank["frozen"] == []
    assert with_plugin == without
