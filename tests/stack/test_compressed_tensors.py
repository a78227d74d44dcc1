"""Quantised weights to and from the package compressed-tensors: the same bits on either side."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
transformers = pytest.importorskip("transformers")
from compressed_tensors.compressors import compress_module  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402

LINEAR = ("_proj.weight", "lm_head.weight")


def twell(*arguments: object) -> None:
    program = os.environ.get("TWELL_CLI") or pytest.skip("TWELL_CLI names no twell")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def read_by_twell(directory: Path, out: Path, dtype: str) -> dict[str, torch.Tensor]:
    twell("convert", "--in", directory, "--out", out, "--dtype", dtype)
    return load_file(out / "model.safetensors")


def read_by_transformers(directory: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    with torch.inference_mode():  # which decompresses
        model(torch.arange(8)[None])
    left_out = ("weight_scale", "weight_shape", "weight_packed")
    return {name: t for name, t in model.state_dict().items() if not name.endswith(left_out)}


@pytest.fixture(scope="module")
def plain(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in bf16, its output matrix tied to the embedding."""
    out = tmp_path_factory.mktemp("plain") / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.bfloat16)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(model_directory).save_pretrained(out)
    return out


WAYS = ["--type int8", "--type int4", "--type int8 --group 32", "--type int4 --head bf16",
        "--type int4 --head int4", "--type int8 --head int4"]


@pytest.mark.parametrize("options", WAYS)
def test_transformers_reads_what_twell_writes(plain: Path, tmp_path: Path, options: str) -> None:
    out = tmp_path / "quantised"
    twell("quantize", "--model", plain, "--out", out, *options.split())
    for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        ours = read_by_twell(out, tmp_path / name, name)
        theirs = read_by_transformers(out, dtype)
        if "bf16" in options:  # tied
            assert torch.equal(theirs.pop("lm_head.weight"), ours["model.embed_tokens.weight"])
        assert set(theirs) == set(ours)
        assert "lm_head.weight" in ours or "bf16" in options
        for key, tensor in ours.items():
            assert tensor.dtype == dtype and torch.equal(theirs[key], tensor), key


SCHEMES = {
    "int8 rows": dict(num_bits=8, strategy="channel"),
    "int8 groups": dict(num_bits=8, strategy="group", group_size=128),
    "int4 groups": dict(num_bits=4, strategy="group", group_size=32),
    "int4 groups of 64, reordered while calibrated": dict(num_bits=4, strategy="group", group_size=64,
                                                          actorder="weight"),
    "int4 rows": dict(num_bits=4, strategy="channel"),
}  # fmt: skip


def compressed(directory: Path, out: Path, args: dict, layout: str, scale: torch.dtype) -> None:
    """The model as compressed-tensors stores it: absolute maxima as scales, down and head kept."""
    arguments = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=layout)
    tensors = load_file(directory / "model.safetensors")
    for name, weight in list(tensors.items()):
        if not name.endswith(LINEAR) or "down_proj" in name or "lm_head" in name:
            continue
        module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        module.weight.data.copy_(weight)
        groups = weight.shape[1] // arguments.group_size if arguments.group_size else 1
        largest = weight.float().view(weight.shape[0], groups, -1).abs().amax(-1)
        scales = (largest / (2 ** (arguments.num_bits - 1) - 0.5)).to(scale)
        module.register_parameter("weight_scale", torch.nn.Parameter(scales, requires_grad=False))
        module.quantization_scheme = scheme
        compress_module(module)
        del tensors[name]
        for key, tensor in module.state_dict().items():
            tensors[name.removesuffix("weight") + key] = tensor
    out.mkdir()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = dict(
        quant_method="compressed-tensors", format=layout, quantization_status="compressed",
        config_groups={"group_0": scheme.model_dump()}, ignore=["re:.*down_proj", "lm_head"],
    )  # fmt: skip
    (out / "config.json").write_text(json.dumps(config))
    transformers.AutoTokenizer.from_pretrained(directory).save_pretrained(out)


@pytest.mark.parametrize("scale", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, "pack-quantized") for name in SCHEMES]
    + [(name, "int-quantized") for name in SCHEMES if "int8" in name],
)
def test_twell_reads_what_compressed_tensors_writes(
    plain: Path, tmp_path: Path, name: str, layout: str, scale: torch.dtype
) -> None:
    out = tmp_path / "compressed"
    compressed(plain, out, SCHEMES[name], layout, scale)
    ours = read_by_twell(out, tmp_path / "ours", "bf16")
    theirs = read_by_transformers(out, torch.bfloat16)
    theirs.pop("lm_head.weight")  # tied
    assert set(theirs) == set(ours)
    for key, tensor in ours.items():
        assert torch.equal(theirs[key], tensor), key
