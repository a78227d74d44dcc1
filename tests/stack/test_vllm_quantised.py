"""What `twell quantize` writes is read by vLLM to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("vllm", reason="vLLM is not installed")
HERE = Path(__file__).resolve().parent
# vLLM's layers, and those of the checkpoint whose rows they hold in order.
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}


def run(*command: object, **environment: str) -> None:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("options", ["--type int8", "--type int4", "--type int4 --head bf16"])
def test_vllm_reads_the_same_bits(model_directory: Path, tmp_path: Path, options: str) -> None:
    twell = os.environ.get("TWELL_CLI") or pytest.skip("TWELL_CLI names no twell")
    model, quantised, plain = (tmp_path / name for name in ("model", "quantised", "plain"))
    run(twell, "convert", "--in", model_directory, "--out", model, "--dtype", "bf16")
    run(twell, "quantize", "--model", model, "--out", quantised, *options.split())
    run(twell, "convert", "--in", quantised, "--out", plain)
    config = quantised / "config.json"  # vLLM's Llama has no other activation
    config.write_text(config.read_text().replace('"relu"', '"silu"'))
    run(
        sys.executable, HERE / "vllm_weights.py", quantised, tmp_path / "vllm.safetensors",
        VLLM_PLUGINS="", VLLM_CPU_OMP_THREADS_BIND="0", VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1", VLLM_CACHE_ROOT=str(tmp_path / "cache"), HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
    )  # fmt: skip
    ours, theirs = load_file(plain / "model.safetensors"), load_file(tmp_path / "vllm.safetensors")
    expected = {
        f"model.layers.{layer}.{name}": [f"model.layers.{layer}.{part}.weight" for part in parts]
        for layer in (0, 1)
        for name, parts in FUSED.items()
    }
    if "bf16" not in options:
        expected["lm_head"] = ["lm_head.weight"]
    assert set(theirs) == set(expected)
    for name, parts in expected.items():
        weight = torch.cat([ours[part] for part in parts])
        got = theirs[name][: weight.shape[0]]  # a head has rows for ids that are not there
        assert got.dtype == torch.bfloat16 and torch.equal(got, weight), name
