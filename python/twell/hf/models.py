"""Loads checkpoints of transformers, and of the paper's SparseLM, as sparse models."""

from __future__ import annotations

import importlib
import json
import os
import re
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twell import _attached
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


def from_pretrained(
    path: str | os.PathLike[str],
    *,
    freeze: bool = True,
    sample: Tensor | Mapping[str, Any] | None = None,
    activation: str | None = None,
    threshold: float = 0.0,
    mlp: Mapping[str, str] | None = None,
    **options: Any,
) -> nn.Module:
    """Calls ``transformers.AutoModelForCausalLM.from_pretrained(path, **options)``, then
    :func:`sparsify` with the other arguments.

    It also reads a directory in the layout of SparseLM (``model_type`` ends in ``_sparse_relu``).
    The activation is then ReLU, whatever ``hidden_act`` says, and the model's ``save_pretrained``
    writes the same layout. Where a configuration says ``fatrelu`` (ProSparse, MiniCPM-S in the layout of
    Llama), which transformers lacks, under whatever key, layers get the threshold that
    ``hidden_act_param`` says, for all or by the names of layers. ``drelu`` is a ReLU on up; on the gate
    ReLU or, with a ``hidden_act_param``, FATReLU. A model on its way to ReLU (AnnealingCallback) stays
    dense, with a warning.
    Raises what the two functions raise, ValueError for a threshold that is missing, and ImportError
    without transformers.
    """
    transformers = require("transformers", "twell.hf.from_pretrained")
    if (config := _read_config(path)) is None:
        model, sparse = _read(transformers, path, options)
        if not sparse:
            warnings.warn(
                f"{path}: the activation is on its way to ReLU, so that its layers stay dense; train it on "
                "(twell.hf.AnnealingCallback)",
                stacklevel=2,
            )
            return model
    else:
        model = _read_sparse_lm(transformers, Path(path), config, options)
        activation = activation or "relu"
    return sparsify(
        model, activation=activation, threshold=threshold, freeze=freeze, sample=sample, mlp=mlp
    )


def _read(transformers: Any, path: str | os.PathLike[str], options: dict[str, Any]) -> tuple[Any, bool]:
    """A model of transformers, and whether its activation is all that it is to become."""
    from twell.hf import said

    file = Path(path) / "config.json"
    given: Any = options.get("config")
    config = given.to_dict() if hasattr(given, "to_dict") else _json(file)
    kind = transformers.AutoModelForCausalLM
    if options.get("trust_remote_code"):  # whose code has the activation
        return kind.from_pretrained(path, **options), True
    with said.readable(config, str(file)) as own:
        if own:  # the class that was trained, of which an encoder-decoder has several
            kind = getattr(transformers, (config.get("architectures") or [""])[0], kind)
        model = kind.from_pretrained(path, **options)
    return model, said.finish(model)


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


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


def _read_sparse_lm(
    transformers: Any, path: Path, config: dict[str, Any], options: dict[str, Any]
) -> nn.Module:
    files, owner = _weight_files(path)
    safetensors = require("safetensors.torch", "twell.hf.from_pretrained")
    plain_config = sparse_lm_config(path)
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
    model = getattr(transformers, _CLASSES[plain_config.model_type]).from_pretrained(
        None,
        config=plain_config,
        state_dict=state if gated else _with_gates(state),
        **{"dtype": next(iter(state.values())).dtype, **options},
    )
    if not gated:
        for name, module in list(model.named_modules()):
            if name.endswith(".mlp"):
                model.set_submodule(name, _Ungated(module))
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    _save_as(model, config, layout)
    return model


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
