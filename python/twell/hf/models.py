"""Loads checkpoints of transformers, and of the paper's SparseLM, as sparse models."""

from __future__ import annotations

import importlib
import json
import os
import re
import types
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twell import _attached
from twell.hf import said
from twell.hf.replace import sparsify

# SparseLM is the code released with the paper. Its model_type is llama_sparse_relu. Its code
# applies ReLU although the configuration says silu. Weights are called mlp.GATE, UP and DOWN, with
# or without ".weight", as rows of neurons or of inputs.
_SUFFIX = "_sparse_relu"
_TENSOR = re.compile(r"(.*\.mlp\.)(GATE|UP|DOWN)(\.weight)?$")
_PLAIN = {"GATE": "gate_proj.weight", "UP": "up_proj.weight", "DOWN": "down_proj.weight"}

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}

# Options of transformers' from_pretrained that say where files lie, and which code is run.
_PLACE = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_CODE = ("trust_remote_code", "code_revision")


def require(module: str, what: str) -> Any:
    """Imports a module. Raises an ImportError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}: pip install {package} ({error})") from error


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
    writes the same layout. If a configuration says ``fatrelu`` (ProSparse, MiniCPM-S in the layout of
    Llama) under whatever key, which transformers does not know, layers get the threshold of
    ``hidden_act_param``, for all or by the names of layers. ``drelu`` is a ReLU on up, and on the gate
    ReLU or, with a ``hidden_act_param``, FATReLU. ``config=``, or options that replace parts of the
    configuration, count in place of the file. The directory's own code (``trust_remote_code=True``)
    applies its activation itself. A model on its way to ReLU (AnnealingCallback) stays dense, with a
    warning.
    Raises what the two functions raise, ValueError for a threshold that is missing, and ImportError
    without transformers.
    """
    transformers = require("transformers", "twell.hf.from_pretrained")
    of = _said_by(transformers, path, options)
    if of.is_sparse_lm:
        sparse, loaded = True, _read_sparse_lm(transformers, of, path, options)
        activation = activation or "relu"
    else:
        sparse, loaded = _read(transformers, of, path, options)
    model, *info = loaded if isinstance(loaded, tuple) else (loaded,)
    if sparse:
        model = sparsify(
            model, activation=activation, threshold=threshold, freeze=freeze, sample=sample, mlp=mlp
        )
    else:
        warnings.warn(
            f"{path}: the activation is on its way to ReLU, so that its layers stay dense; train it on "
            "(twell.hf.AnnealingCallback)",
            stacklevel=2,
        )
    return (model, *info) if info else model


class _Said(NamedTuple):
    """What is said of a model before it is loaded."""

    where: str
    file: dict[str, Any]
    """The config.json; empty where there is none: transformers then says what is missing."""
    counts: dict[str, Any]
    """That, or config=, with the options that replace parts."""
    base: str | None
    """The model that a directory of adapters is for."""

    @property
    def is_sparse_lm(self) -> bool:
        return str(self.file.get("model_type", "")).endswith(_SUFFIX)


def _said_by(transformers: Any, path: Any, options: Mapping[str, Any]) -> _Said:
    base = _base_of(transformers, path, options)
    where = path if base is None else base
    file: dict[str, Any] = {}
    if where is not None and not options.get("gguf_file"):
        place = {key: options[key] for key in _PLACE if options.get(key) is not None}
        with suppress(OSError):
            file, _ = transformers.PretrainedConfig.get_config_dict(where, **place)
    if isinstance(config := options.get("config"), transformers.PretrainedConfig):
        replaced = {key: options[key] for key in said.PARAMS if key in options}
        return _Said("config", file, config.to_dict() | replaced, base)
    nested = [k for k, v in options.items() if isinstance(v, dict) and isinstance(file.get(k), dict)]
    parts = {key: file[key] | options[key] for key in nested}
    name = str(Path(str(where), options.get("subfolder") or "", "config.json"))
    return _Said(name, file, {**file, **options, **parts}, base)


def _base_of(transformers: Any, path: Any, options: Mapping[str, Any]) -> str | None:
    """Of a directory or repository that has adapters of peft alone."""
    place = {key: options[key] for key in _PLACE if key != "subfolder" and options.get(key) is not None}
    place |= options.get("adapter_kwargs") or {}
    if path is None or Path(path, "config.json").is_file():
        return None
    file = transformers.utils.find_adapter_config_file(path, **place)
    return None if file is None else _json(Path(file))["base_model_name_or_path"]


def _read(
    transformers: Any, of: _Said, path: Any, options: Mapping[str, Any]
) -> tuple[bool, Any]:
    """Whether a model's activation is all that it is to become, and what transformers loads."""
    kind = transformers.AutoModelForCausalLM
    if options.get("trust_remote_code") and kind.__name__ in (of.file.get("auto_map") or {}):
        return True, kind.from_pretrained(path, **options)  # whose code has the activation
    with said.readable(of.counts, of.where) as own:
        if not own:
            return True, kind.from_pretrained(path, **options)
        # The class that was trained, of which an encoder-decoder has several.
        kind = getattr(transformers, (of.counts.get("architectures") or [""])[0], kind)
        rest = {key: v for key, v in options.items() if key not in (*_CODE, *said.PARAMS)}
        loaded = kind.from_pretrained(path, **rest)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    for key in said.PARAMS:
        if key in options:
            setattr(model.config, key, options[key])
    return said.finish(model), loaded


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _folder_of(path: Any, options: Mapping[str, Any]) -> Path:
    """Where a model's files lie, which are fetched if they lie elsewhere."""
    folder = options.get("subfolder") or ""
    if not Path(path).is_dir():
        hub = require("huggingface_hub", "twell.hf.from_pretrained")
        place = {key: options[key] for key in _PLACE if key in options and key not in ("subfolder", "proxies")}
        wanted = [str(Path(folder, ending)) for ending in ("*.json", "*.safetensors")]
        path = hub.snapshot_download(str(path), allow_patterns=wanted, **place)
    return Path(path, folder)


def sparse_lm_config(path: str | os.PathLike[str]) -> Any:
    """transformers' configuration of the plain model in a directory in the layout of SparseLM; None
    for any other directory. Raises ValueError for a model that is neither Llama nor Qwen2.
    """
    if (config := _read_config(path)) is None:
        return None
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
    config = _json(file)
    return config if str(config.get("model_type", "")).endswith(_SUFFIX) else None


def _read_sparse_lm(transformers: Any, of: _Said, path: Any, options: Mapping[str, Any]) -> Any:
    if of.base is not None:
        raise ValueError(
            f"{path}: adapters of {of.base}, which is in the layout of SparseLM; expected a base in the plain "
            "layout (model_type without _sparse_relu)"
        )
    path, config = _folder_of(path, options), of.file
    files, owner = _weight_files(path)
    safetensors = require("safetensors.torch", "twell.hf.from_pretrained")
    plain_config = options.get("config")
    rest = {key: v for key, v in options.items() if key not in (*_PLACE, *_CODE, "config")}
    dtype = rest.pop("dtype", None) or rest.pop("torch_dtype", None)
    if plain_config is None:
        plain_config = sparse_lm_config(path)
        plain_config, rest = type(plain_config).from_dict(
            plain_config.to_dict(), return_unused_kwargs=True, **rest
        )
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
        dtype=dtype or next(iter(state.values())).dtype,
        **rest,
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
