"""Hugging Face models: puts GatedFfn in place of their MLPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from twell import dense
from twell.modules import FEWEST_INPUTS, GatedFfn

_NAMES = ("gate_proj", "up_proj", "down_proj")


def _is_gated_mlp(module: nn.Module) -> bool:
    return hasattr(module, "act_fn") and all(
        isinstance(getattr(module, name, None), nn.Linear) for name in _NAMES
    )


def _activation_of(name: str, act_fn: object) -> tuple[str, float]:
    if isinstance(act_fn, dense.FatRelu):
        return "fat_relu", act_fn.threshold
    # transformers has its own class for x → relu(x)² (hidden_act "relu2"); by name, so that the
    # package need not be installed.
    known = {"ReLU": "relu", "ReLUSquaredActivation": "relu_squared"}
    kind = type(act_fn).__name__
    if kind not in known:
        raise ValueError(
            f"{name}: its activation {kind} yields no exact zeros, so there is nothing to skip; "
            f"expected ReLU, squared ReLU or twell.FatRelu. If the weights were trained with one "
            f"of these and the configuration does not say so, pass activation="
        )
    return known[kind], 0.0


def from_mlp(
    mlp: nn.Module, *, activation: str | None = None, threshold: float = 0.0, name: str = "mlp"
) -> GatedFfn:
    """A GatedFfn that holds the weights of a Llama or Qwen2 MLP: children gate_proj, up_proj and
    down_proj (nn.Linear without bias) and act_fn.

    ``activation`` overrides what act_fn says. Raises ValueError for an activation that yields no
    zeros, for biases, and for another kind of module; ``name`` is how the message calls it.
    """
    if not _is_gated_mlp(mlp):
        raise ValueError(
            f"{name}: expected linear layers {', '.join(_NAMES)} and act_fn, "
            f"got {type(mlp).__name__}"
        )
    linears = [getattr(mlp, child) for child in _NAMES]
    for child, linear in zip(_NAMES, linears):
        if linear.bias is not None:
            raise ValueError(f"{name}.{child}: expected no bias, which the layer does not have")
    if activation is None:
        activation, threshold = _activation_of(name, mlp.act_fn)
    layer = GatedFfn.from_dense(
        *(linear.weight for linear in linears), activation=activation, threshold=threshold
    )
    return layer.train(mlp.training)


def sparsify(
    model: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    freeze: bool = True,
    sample: Tensor | Mapping[str, Any] | None = None,
) -> nn.Module:
    """Replaces every gated MLP of a Llama or Qwen2 model by a :class:`GatedFfn`, in place; returns
    the model. The result is the same up to rounding.

    With ``freeze`` the layers keep packed weights alone (inference); without, they stay trainable.
    ``sample`` is what the model is called with once, ids [batch, tokens] or a tokenizer's result,
    32 tokens or more of text like that to come: on a CPU it lets :meth:`GatedFfn.freeze` take the
    faster form of each layer.
    ``activation`` (relu, relu_squared, fat_relu with ``threshold``) is for models whose
    configuration does not say what they were trained with. Raises ValueError, with the model left
    as it was, where an MLP's activation yields no zeros (SiLU, GELU), where one has biases, where
    there is none, and where the sample is too short or comes without ``freeze``.
    """
    if sample is not None and not freeze:
        raise ValueError("sparsify: sample: chooses the form of frozen layers; expected freeze=True")
    layers = {
        name: from_mlp(module, activation=activation, threshold=threshold, name=name)
        for name, module in model.named_modules()
        if name and _is_gated_mlp(module)
    }
    if not layers:
        raise ValueError(
            f"sparsify: {type(model).__name__} has no gated MLP ({', '.join(_NAMES)}, act_fn)"
        )
    replaced = {name: model.get_submodule(name) for name in layers}
    for name, layer in layers.items():
        model.set_submodule(name, layer)
    try:
        inputs = {} if sample is None else _inputs_of(layers, model, sample)
    except BaseException:
        for name, module in replaced.items():
            model.set_submodule(name, module)
        raise
    del replaced  # what freezing lets go should go
    if freeze:
        for name, layer in layers.items():
            layer.freeze(inputs.pop(name, None))
    return model


def _inputs_of(
    layers: Mapping[str, GatedFfn], model: nn.Module, sample: Tensor | Mapping[str, Any]
) -> dict[str, Tensor]:
    """What the layers of the model see of the sample, those that see enough to choose by."""
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str) -> Callable[..., None]:
        def hook(
            layer: GatedFfn, arguments: tuple[Any, ...], options: dict[str, Any], _: Any
        ) -> None:
            x = arguments[0] if arguments else options["x"]
            seen[name].append(x.detach().reshape(-1, layer.hidden_size).clone())

        return hook

    hooks = [
        layer.register_forward_hook(keep(name), with_kwargs=True) for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            model(**sample) if isinstance(sample, Mapping) else model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    inputs = {name: torch.cat(rows) for name, rows in seen.items() if rows}
    most = max((len(x) for x in inputs.values()), default=0)
    if most < FEWEST_INPUTS:
        raise ValueError(
            f"sparsify: sample: expected {FEWEST_INPUTS} or more tokens, of which the MLPs saw {most}"
        )
    return {name: x for name, x in inputs.items() if len(x) >= FEWEST_INPUTS}
