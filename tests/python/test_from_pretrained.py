"""twell.hf.from_pretrained with the options of transformers', of each kind of directory that it reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from layers import tiny_llama
from test_hf import logits, write_sparse_lm
from tiny_models import MODULES_OF_THEIR_OWN
from torch import nn

transformers = pytest.importorskip("transformers")

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fatrelu": {"hidden_act": "fatrelu", "hidden_act_param": 0.01},
    "drelu": {"hidden_act": "drelu"},
    "drelu with a threshold": {"hidden_act": "drelu", "hidden_act_param": 0.01},
    "SparseLM": {},
}


def write(kind: str, folder: Path) -> Path:
    if kind == "SparseLM":
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_sparse_lm(folder, tiny_llama(), True, False, "")
    else:
        tiny_llama().save_pretrained(folder)
        say(folder, **KINDS[kind])
    return folder


def say(folder: Path, **keys: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


def the_same(model: nn.Module, folder: Path) -> bool:
    assert len(twell.sparse_layers(model)) == 2
    return torch.allclose(logits(model), logits(twell.hf.from_pretrained(folder)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_options_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = write(kind, tmp_path / "m" / "step-10")
    load = twell.hf.from_pretrained
    assert the_same(load(str(folder)), folder)
    assert the_same(load(tmp_path / "m", subfolder="step-10"), folder)
    assert the_same(load(str(tmp_path / "m"), subfolder="step-10", revision="main", local_files_only=True), folder)
    assert the_same(load(folder, trust_remote_code=True, code_revision="main"), folder)  # it has none
    assert the_same(load(folder, attn_implementation="eager", low_cpu_mem_usage=True, config=None), folder)
    model = load(folder, use_cache=False, freeze=False)
    assert model.config.use_cache is False and the_same(model, folder)
    model, info = load(folder, output_loading_info=True)
    assert the_same(model, folder) and not info["missing_keys"]
    for name in ("dtype", "torch_dtype"):
        assert load(folder, **{name: torch.bfloat16}).dtype == torch.bfloat16
        assert load(folder, **{name: "auto"}).dtype == torch.float32
    with pytest.raises(TypeError, match="no_such_option"):
        load(folder, no_such_option=1)
    with pytest.raises(ValueError, match=r"config\.json"):  # of transformers
        load(tmp_path / "m")
    with pytest.raises(OSError, match="cached files"):
        load("somebody/nothing", local_files_only=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_repository_of_the_hub(kind: str, tmp_path: Path) -> None:
    """As huggingface_hub keeps it, so that nothing is fetched."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--somebody--tiny"
    folder = write(kind, repository / "snapshots" / commit / "sub")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    place = {"cache_dir": tmp_path, "local_files_only": True, "subfolder": "sub"}
    assert the_same(twell.hf.from_pretrained("somebody/tiny", **place), folder)
    assert the_same(twell.hf.from_pretrained("somebody/tiny", revision=commit, **place), folder)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "SparseLM"])
def test_a_configuration_of_the_callers(kind: str, tmp_path: Path) -> None:
    folder = write(kind, tmp_path / "m")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.use_cache = False
    before = copy.deepcopy(config.to_dict())
    model = twell.hf.from_pretrained(folder, config=config)
    assert the_same(model, folder) and model.config.use_cache is False
    assert config.to_dict() == before
    assert getattr(model.config, "hidden_act", None) == KINDS[kind].get("hidden_act", "relu")
    # It counts, and not the file.
    config.hidden_act = "relu"
    plain = write("plain", tmp_path / "plain")
    assert the_same(twell.hf.from_pretrained(folder, config=config), plain)


def test_an_activation_as_an_option(tmp_path: Path) -> None:
    """What replaces a part of the file, as any key of a configuration may."""
    folder, plain = write("fatrelu", tmp_path / "fatrelu"), write("plain", tmp_path / "plain")
    assert the_same(twell.hf.from_pretrained(folder, hidden_act="relu"), plain)
    model = twell.hf.from_pretrained(folder, hidden_act_param=0.5)
    assert {m.threshold for m in twell.sparse_layers(model).values()} == {0.5}
    model = twell.hf.from_pretrained(plain, hidden_act="fatrelu", hidden_act_param=0.01)
    assert the_same(model, folder)
    with pytest.raises(ValueError, match=r"config.json: hidden_act_param: expected the threshold"):
        twell.hf.from_pretrained(plain, hidden_act="fatrelu")


def test_a_configuration_of_the_plain_model_of_sparse_lm(tmp_path: Path) -> None:
    folder = write("SparseLM", tmp_path / "m")
    config = twell.hf.models.sparse_lm_config(folder)
    config.use_cache = False
    model = twell.hf.from_pretrained(folder, config=config)
    assert the_same(model, folder) and model.config.use_cache is False


@pytest.mark.parametrize("kind", ["plain", "fatrelu", "drelu with a threshold"])
def test_adapters_of_such_a_directory(kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = write(kind, tmp_path / "m")
    base = transformers.LlamaForCausalLM(tiny_llama().config)
    lora = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    lora.peft_config["default"].base_model_name_or_path = str(folder)
    lora.save_pretrained(tmp_path / "adapter")
    try:
        transformers.integrations.peft.check_peft_version(transformers.integrations.peft.MIN_PEFT_VERSION)
    except ValueError as error:
        pytest.skip(str(error))
    model = twell.hf.from_pretrained(tmp_path / "adapter")
    assert not the_same(model, folder)
    sparse = twell.sparse_layers(model).values()
    assert {m.threshold for m in sparse} == {KINDS[kind].get("hidden_act_param", 0.0)}
    assert any("lora" in name for name, _ in model.named_parameters())
    model.disable_adapters()
    assert the_same(model, folder)


def test_adapters_of_sparse_lm_are_refused(tmp_path: Path) -> None:
    folder = write("SparseLM", tmp_path / "m")
    (tmp_path / "adapter").mkdir()
    said = {"base_model_name_or_path": str(folder), "peft_type": "LORA"}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match=r"adapters of .*m, which is in the layout of SparseLM"):
        twell.hf.from_pretrained(tmp_path / "adapter")


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_of_devices(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    folder = write(kind, tmp_path / "m")
    for devices in ("cpu", {"": "cpu"}):
        assert the_same(twell.hf.from_pretrained(folder, device_map=devices), folder)


def test_an_encoder_decoder(tmp_path: Path) -> None:
    """The class that was trained, with the options of any other, and those that Auto classes alone take."""
    model = MODULES_OF_THEIR_OWN["t5 with a gate"].model()
    model.config.feed_forward_proj, model.config.dense_act_fn = "gated-fatrelu", "fatrelu"
    model.config.hidden_act_param = 0.05
    model.save_pretrained(tmp_path / "m")
    options = {"subfolder": "m", "output_loading_info": True, "trust_remote_code": True, "code_revision": "main"}
    model, info = twell.hf.from_pretrained(tmp_path, use_cache=False, **options)
    assert type(model).__name__ == "T5ForConditionalGeneration" and not info["missing_keys"]
    assert {layer.threshold for layer in twell.sparse_layers(model).values()} == {0.05}
    assert model.config.use_cache is False


def test_parts_of_a_nested_configuration(tmp_path: Path) -> None:
    text = {**tiny_llama().config.to_dict(), "hidden_act": "fatrelu", "hidden_act_param": 0.05}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, **sizes}
    config = transformers.LlavaConfig(text_config={**text, "hidden_act": "relu"}, vision_config=vision)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    say(tmp_path, text_config=text)
    for options, threshold in (({}, 0.05), ({"text_config": {"hidden_act_param": 0.2}}, 0.2)):
        with pytest.warns(UserWarning, match="stay as they are"):
            model = twell.hf.from_pretrained(tmp_path, **options)
        assert {m.threshold for m in twell.sparse_layers(model).values()} == {threshold}


def test_on_its_way_to_relu(tmp_path: Path) -> None:
    say(write("plain", tmp_path / "m"), hidden_act="silu_to_relu_0.5")
    with pytest.warns(UserWarning, match="stay dense"):
        model, info = twell.hf.from_pretrained(tmp_path, subfolder="m", output_loading_info=True)
    assert not twell.sparse_layers(model) and not info["missing_keys"]


CODE = """
import torch
from transformers import LlamaForCausalLM

class Own(torch.nn.Module):
    def forward(self, x):
        return torch.where(x > 0.02, x, 0.0)

class OwnLlama(LlamaForCausalLM):
    def __init__(self, config):
        config.hidden_act = "relu"
        super().__init__(config)
        config.hidden_act = "fatrelu"
        for block in self.model.layers:
            block.mlp.act_fn = Own()
"""


def test_code_of_the_directory_applies_its_activation(tmp_path: Path) -> None:
    folder = write("fatrelu", tmp_path / "m")
    (folder / "own.py").write_text(CODE)
    say(folder, auto_map={"AutoModelForCausalLM": "own.OwnLlama"}, hidden_act_param=0.02)
    trusted = twell.hf.from_pretrained(folder, trust_remote_code=True)
    assert type(trusted).__name__ == "OwnLlama" and the_same(trusted, folder)  # ours has the same threshold
