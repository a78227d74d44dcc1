"""Loads checkpoints of transformers, and of the paper's SparseLM, as sparse models."""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twell import _attached
from twell.dense import FatRelu
from twell.hf.drelu import activate_up
from twell.hf.replace import sparsify

# SparseLM is the code released with the paper. Its model_type is llama_sparse_relu. Its code
# applies ReLU although the configuration says silu. Weights are called mlp.GATE, UP and DOWN, with
# or without ".weight", as rows of neurons or of inputs.
_SUFFIX = "_sparse_relu"
_TENSOR = re.compile(r"(.*\.mlp\.)(GATE|UP|DOWN)(\.weight)?$")
_PLAIN = {"GATE": "gate_proj.weight", "UP": "up_proj.weight", "DOWN": "down_proj.weight"}

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def require(module: str, what: str) -> Any:
    """Imports a module. Raises an ImportError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}: pip install {package} ({error})") from error


# Options of transformers' from_pretrained that say where files lie.
_PLACE = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Those of the model alone, although configurations have attributes of these names.
_OF_MODEL = ("dtype", "torch_dtype", "quantization_config", "adapter_kwargs")
_CODE = ("trust_remote_code", "code_revision")


def from_pretrained(
    path: str | os.PathLike[str],
    *,
    freeze: bool = True,
    sample: Tensor | Mapping[str, Any] | None = None,
    activation: str | None = None,
    threshold: float = 0.0,
    mlp: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Calls ``transformers.AutoModelForCausalLM.from_pretrained(path, **options)``, then
    :func:`sparsify` with the other arguments. Returns the model; with ``output_loading_info=True``, as
    transformers does, the model and what was missing.

    It also reads a directory in the layout of SparseLM (``model_type`` ends in ``_sparse_relu``).
    The activation is then ReLU, whatever ``hidden_act`` says, and the model's ``save_pretrained``
    writes the same layout. A directory whose ``hidden_act`` is ``fatrelu`` (ProSparse, MiniCPM-S in the
    layout of Llama), which transformers lacks, gets the threshold that its ``hidden_act_param`` says. One
    with ``drelu`` has a ReLU on up; on the gate it has ReLU or, with a ``hidden_act_param``, FATReLU.
    ``config=`` and options that replace a part of the configuration count in place of the file, and
    code of the directory's own (``trust_remote_code=True``) applies its activation itself.
    Raises what the two functions raise, ValueError for a threshold that is missing, and ImportError
    without transformers.
    """
    transformers = require("transformers", "twell.hf.from_pretrained")
    said = _said_by(transformers, path, options)
    own = None if said.runs_own_code(options) else _own_act_of(said)
    if said.is_sparse_lm:
        loaded = _read_sparse_lm(transformers, _folder_of(path, options), said.values, options)
        activation = activation or "relu"
    elif own is None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(path, **options)
    else:
        loaded = _read_own_act(transformers, path, said, own, options)
        if activation is None and not own.drelu:
            activation, threshold = "fat_relu", own.threshold or 0.0
    model, *info = loaded if isinstance(loaded, tuple) else (loaded,)
    model = sparsify(
        model, activation=activation, threshold=threshold, freeze=freeze, sample=sample, mlp=mlp
    )
    return (model, *info) if info else model


class _Said(NamedTuple):
    """What a configuration says."""

    where: str
    values: dict[str, Any]
    base: Any = None
    """The model that a directory of adapters is of."""

    @property
    def is_sparse_lm(self) -> bool:
        return str(self.values.get("model_type", "")).endswith(_SUFFIX)

    def runs_own_code(self, options: Mapping[str, Any]) -> bool:
        classes = self.values.get("auto_map") or {}
        return bool(options.get("trust_remote_code")) and "AutoModelForCausalLM" in classes


def _said_by(transformers: Any, path: Any, options: Mapping[str, Any]) -> _Said:
    """By config=, else by a directory's or repository's config.json and the options that replace parts
    of it. Empty where there is none: transformers then says what is missing."""
    config = options.get("config")
    if isinstance(config, transformers.PretrainedConfig):
        layout = _read_config(Path(path, options.get("subfolder") or ""))  # no option changes that
        return _Said("config", layout or config.to_dict())
    if options.get("gguf_file"):
        return _Said(str(path), {})
    place = {key: options[key] for key in _PLACE if options.get(key) is not None}
    file = str(Path(path, place.get("subfolder", ""), "config.json"))
    if (base := _base_of(path)) is not None:
        file, place = str(Path(base, "config.json")), {}
    try:
        values, _ = transformers.PretrainedConfig.get_config_dict(base or path, **place)
    except OSError:
        values = {}
    replaced = {k: v for k, v in options.items() if k in (*ACT_KEYS, *_OWN_ACTS.values())}
    return _Said(file, {**values, **replaced}, base)


def _base_of(path: Any) -> str | None:
    """Of a directory that has adapters of peft alone."""
    file = Path(path) / "adapter_config.json"
    if (file.parent / "config.json").is_file():
        return None
    said = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return said.get("base_model_name_or_path")


def _folder_of(path: Any, options: Mapping[str, Any]) -> Path:
    """Where a model's files lie, which are fetched if they lie elsewhere."""
    if not Path(path).is_dir():
        place = {k: options[k] for k in _PLACE if k not in ("subfolder", "proxies") and k in options}
        hub = require("huggingface_hub", "twell.hf.from_pretrained")
        path = hub.snapshot_download(str(path), allow_patterns=["*.json", "*.safetensors"], **place)
    return Path(path, options.get("subfolder") or "")


ACT_KEYS = ("hidden_act", "activation_function")
"""What configurations call their activation."""
_DRELU = "drelu"
# What transformers lacks, and the key of the threshold.
_OWN_ACTS = {
    "fatrelu": "hidden_act_param",
    "fat_relu": "twell_fat_relu_threshold",
    _DRELU: "hidden_act_param",
}


def say_activation(config: Any, name: str, threshold: float | None = None) -> None:
    """Writes an activation into a configuration, under the key that it has for it."""
    key = next((key for key in ACT_KEYS if hasattr(config, key)), ACT_KEYS[0])
    setattr(config, key, name)
    if threshold is not None:
        config.hidden_act_param = threshold


class _OwnAct(NamedTuple):
    """An activation that transformers lacks."""

    threshold: float | None
    """Of the gate's FATReLU; none: ReLU."""
    drelu: bool


def _own_act_of(config: _Said) -> _OwnAct | None:
    """What a configuration says of FATReLU or dReLU; None where it has another activation."""
    values = config.values
    said = next((values[name] for name in ACT_KEYS if values.get(name) in _OWN_ACTS), None)
    if said is None:
        return None
    key = _OWN_ACTS[said]
    threshold = values.get(key)
    if said == _DRELU and threshold is None:
        return _OwnAct(None, True)
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool):
        raise ValueError(
            f"{config.where}: {key}: expected the threshold of {said}, a number, got {threshold}"
        )
    return _OwnAct(float(threshold), said == _DRELU)


def _read_own_act(
    transformers: Any, path: Any, said: _Said, act: _OwnAct, options: Mapping[str, Any]
) -> Any:
    """The model with ReLU, as transformers loads it, whose configuration then says what it said."""
    rest = dict(options)
    of_model = {key: rest.pop(key) for key in _OF_MODEL if key in rest}
    config = rest.pop("config", None)
    if isinstance(config, transformers.PretrainedConfig):
        config = copy.deepcopy(config)
    else:
        of_model |= {key: rest[key] for key in (*_PLACE, *_CODE) if key in rest}
        if said.base is not None:
            rest = {k: v for k, v in rest.items() if k not in ("revision", "subfolder")}
        config, rest = transformers.AutoConfig.from_pretrained(
            said.base or path, return_unused_kwargs=True, **rest
        )
    key = next(name for name in ACT_KEYS if getattr(config, name, None) in _OWN_ACTS)
    name = getattr(config, key)
    setattr(config, key, "relu")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        path, config=config, **{**rest, **of_model}
    )
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    setattr(model.config, key, name)
    if act.drelu:
        gate = nn.ReLU() if act.threshold is None else FatRelu(act.threshold)
        activate_up("twell.hf.from_pretrained", model, nn.ReLU(), gate)
    return loaded


def sparse_lm_config(path: str | os.PathLike[str]) -> Any:
    """transformers' configuration of the plain model in a directory in the layout of SparseLM; None
    for any other directory. Raises ValueError for a model that is neither Llama nor Qwen2.
    """
    if (config := _read_config(path)) is None:
        return None
    return _plain_config(path, config)


def _plain_config(path: Any, config: Mapping[str, Any]) -> Any:
    base = config["model_type"].removesuffix(_SUFFIX)
    if base not in _CLASSES:
        raise ValueError(
            f"{path}: model_type {config['model_type']}: expected one of "
            + ", ".join(name + _SUFFIX for name in _CLASSES)
        )
    own = {
        key: value
        for key, value in config.items()
        if not key.startswith("sparsity_") and key not in ("architectures", "auto_map")
    }
    neurons = config.get("sparsity_new_intermediate_size", config["intermediate_size"])
    own.update(model_type=base, hidden_act="relu", intermediate_size=neurons)
    transformers = require("transformers", "twell.hf.from_pretrained")
    return transformers.AutoConfig.for_model(**own)


def _read_config(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The config.json of a directory in the layout of SparseLM; None for any other."""
    file = Path(path) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return config if str(config.get("model_type", "")).endswith(_SUFFIX) else None


def _read_sparse_lm(
    transformers: Any, path: Path, config: dict[str, Any], options: Mapping[str, Any]
) -> Any:
    own = (*_PLACE, *_CODE, "config")
    rest = {key: value for key, value in options.items() if key not in own}
    files, owner = _weight_files(path)
    safetensors = require("safetensors.torch", "twell.hf.from_pretrained")
    if (plain_config := options.get("config")) is None:
        plain_config = _plain_config(path, config)
        for key in [k for k in rest if k not in _OF_MODEL and hasattr(plain_config, k)]:
            setattr(plain_config, key, rest.pop(key))
    gated = config.get("sparsity_gated_mlp", True)
    shape = (plain_config.intermediate_size, plain_config.hidden_size)
    state: dict[str, Tensor] = {}
    layout: dict[str, tuple[str, bool]] = {}  # name in the model -> name in the files, transposed
    for file in files:
        for name, tensor in safetensors.load_file(file).items():
            if owner.get(name, file) != file:
                continue  # a stale copy: the index names another file
            if (match := _TENSOR.match(name)) is not None:
                plain = match[1] + _PLAIN[match[2]]
                want = shape[::-1] if match[2] == "DOWN" else shape
                turned = _is_turned(f"{file}: {name}", tensor, want)
                layout[plain] = (name, turned)
                name, tensor = plain, tensor.t().contiguous() if turned else tensor
            state[name] = tensor
    loaded = getattr(transformers, _CLASSES[plain_config.model_type]).from_pretrained(
        None,
        config=plain_config,
        state_dict=state if gated else _with_gates(state),
        **{"dtype": next(iter(state.values())).dtype, **rest},
    )
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    if not gated:
        for name, module in list(model.named_modules()):
            if name.endswith(".mlp"):
                model.set_submodule(name, _Ungated(module))
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    _save_as(model, config, layout)
    return loaded


class _Ungated(nn.Module):
    """An MLP of Llama or Qwen2 without its gate."""

    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.up_proj, self.down_proj, self.act_fn = mlp.up_proj, mlp.down_proj, mlp.act_fn
        self.train(mlp.training)
        _attached.take_over(self, mlp)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


def _weight_files(path: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files, and for each tensor that an index lists, the file to take it from."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return [single], {}
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        owner = {name: path / file for name, file in weight_map.items()}
        return sorted(set(owner.values())), owner
    if files := sorted(path.glob("*.safetensors")):
        return files, {}
    raise FileNotFoundError(f"{path}: has no *.safetensors")


def _is_turned(what: str, tensor: Tensor, shape: tuple[int, int]) -> bool:
    if tuple(tensor.shape) not in (shape, shape[::-1]):
        raise ValueError(
            f"{what}: expected shape {list(shape)} or its transpose, got {list(tensor.shape)}"
        )
    if shape[0] == shape[1]:
        raise ValueError(
            f"{what}: {list(shape)} does not tell rows of neurons from rows of inputs; write the "
            "checkpoint in the plain layout (model_type without _sparse_relu)"
        )
    return tuple(tensor.shape) != shape


def _with_gates(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds gates of zeros. The model is built with them, and loses them afterwards."""
    gates = {
        name.replace("up_proj", "gate_proj"): torch.zeros_like(tensor)
        for name, tensor in state.items()
        if name.endswith(".mlp.up_proj.weight")
    }
    return {**state, **gates}


def _save_as(model: Any, config: dict[str, Any], layout: dict[str, tuple[str, bool]]) -> None:
    """Makes save_pretrained write the names, layouts and configuration that were read."""

    def save_pretrained(self: Any, save_directory: Any, **options: Any) -> Any:
        state = {}
        for name, tensor in (options.pop("state_dict", None) or self.state_dict()).items():
            saved, turned = layout.get(name, (name, False))
            state[saved] = tensor.t().contiguous() if turned else tensor
        out = type(self).save_pretrained(self, save_directory, state_dict=state, **options)
        file = Path(save_directory) / "config.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        part.replace(file)
        return out

    model.save_pretrained = types.MethodType(save_pretrained, model)
