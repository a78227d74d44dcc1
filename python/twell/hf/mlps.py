"""Puts GatedFfn and Ffn in place of the MLPs of Hugging Face models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from twell import dense
from twell._frozen import FEWEST_INPUTS
from twell.modules import Ffn, GatedFfn, SparseFfn

# Children of an MLP: of Llama, Qwen2 and many others; and of Arcee and Nemotron, without a gate.
_GATED = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj", "act": "act_fn"}
_PLAIN = {"up": "up_proj", "down": "down_proj", "act": "act_fn"}


@dataclass(frozen=True)
class _Kind:
    """What the children of an MLP are called."""

    linears: tuple[str, ...]
    act: str

    @staticmethod
    def of(names: Mapping[str, str]) -> _Kind:
        if set(names) not in (set(_GATED), set(_PLAIN)):
            raise ValueError(
                f"mlp: expected names for {', '.join(_GATED)}, or for these without gate, "
                f"got {', '.join(names) or 'none'}"
            )
        return _Kind(tuple(names[k] for k in _GATED if k in names and k != "act"), names["act"])

    @property
    def gated(self) -> bool:
        return len(self.linears) == 3

    def __str__(self) -> str:
        return f"{', '.join(self.linears)} and {self.act}"

    def fits(self, module: nn.Module) -> bool:
        """Whether the module has these children. One without a gate must have no other layer: that
        would be a gate by another name."""
        if not hasattr(module, self.act):
            return False
        if not all(isinstance(getattr(module, name, None), nn.Linear) for name in self.linears):
            return False
        return self.gated or not self.others(module)

    def others(self, module: nn.Module) -> list[str]:
        """Children that the layer would not have."""
        names = {*self.linears, self.act}
        return [n for n, m in module.named_children() if n not in names and not _does_nothing(m)]


def _does_nothing(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0)


def _kinds(mlp: Mapping[str, str] | None) -> list[_Kind]:
    return [_Kind.of(_GATED), _Kind.of(_PLAIN)] if mlp is None else [_Kind.of(mlp)]


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
    mlp: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    name: str = "mlp",
    names: Mapping[str, str] | None = None,
) -> SparseFfn:
    """A layer that holds the weights of a module's linear layers without bias: a GatedFfn of one with
    gate_proj, up_proj and down_proj (Llama, Qwen2), an Ffn of one without gate_proj (Arcee), beside
    act_fn. ``names`` says what they are called elsewhere, under the keys gate, up, down and act.

    ``activation`` overrides what act_fn says. Raises ValueError for an activation that yields no
    zeros, for biases, for further layers in the module, and for another kind of module; ``name`` is
    how the message calls it.
    """
    kinds = _kinds(names)
    kind = next((k for k in kinds if k.fits(mlp)), None)
    if kind is None:
        raise ValueError(
            f"{name}: expected linear layers {', or '.join(map(str, kinds))}, got {type(mlp).__name__}"
        )
    if others := kind.others(mlp):
        raise ValueError(
            f"{name}: expected {kind} alone, got {', '.join(others)} too, which the layer would lack"
        )
    linears = [getattr(mlp, child) for child in kind.linears]
    for child, linear in zip(kind.linears, linears):
        if linear.bias is not None:
            raise ValueError(f"{name}.{child}: expected no bias, which the layer does not have")
    if activation is None:
        activation, threshold = _activation_of(name, getattr(mlp, kind.act))
    layer = (GatedFfn if kind.gated else Ffn).from_dense(
        *(linear.weight for linear in linears),
        activation=activation,
        threshold=threshold,
        names=kind.linears,
    )
    return layer.train(mlp.training)


def sparsify(
    model: nn.Module,
    *,
    activation: str | None = None,
    threshold: float = 0.0,
    freeze: bool = True,
    sample: Tensor | Mapping[str, Any] | None = None,
    mlp: Mapping[str, str] | None = None,
) -> nn.Module:
    """Replaces every MLP of a model by a :class:`GatedFfn` or :class:`Ffn` (:func:`from_mlp`), in
    place; returns the model. The result is the same up to rounding.

    With ``freeze`` the layers keep packed weights alone (inference); without, they stay trainable.
    ``sample`` is what the model is called with once, ids [batch, tokens] or a tokenizer's result,
    32 tokens or more of text like that to come: it lets :meth:`GatedFfn.freeze` take the faster form
    of each layer (on a GPU, 1,024 or more).
    ``activation`` (relu, relu_squared, fat_relu with ``threshold``) is for models whose
    configuration does not say what they were trained with; ``mlp`` for those that have other names,
    as in ``{"gate": "w1", "up": "w3", "down": "w2", "act": "act_fn"}``. Raises ValueError, with the
    model left as it was, where an MLP's activation yields no zeros (SiLU, GELU), where one has
    biases or further layers, where there is none, and where the sample is too short or comes without
    ``freeze``.
    """
    if sample is not None and not freeze:
        raise ValueError("sparsify: sample: chooses the form of frozen layers; expected freeze=True")
    kinds = _kinds(mlp)
    layers = {
        name: from_mlp(module, activation=activation, threshold=threshold, name=name, names=mlp)
        for name, module in model.named_modules()
        if name and any(kind.fits(module) for kind in kinds)
    }
    if not layers:
        raise ValueError(
            f"sparsify: {type(model).__name__} has no MLP with {', or '.join(map(str, kinds))}; mlp= "
            "says what its layers are called"
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
    layers: Mapping[str, SparseFfn], model: nn.Module, sample: Tensor | Mapping[str, Any]
) -> dict[str, Tensor]:
    """What the layers of the model see of the sample, those that see enough to choose by."""
    device = next(model.parameters()).device
    for tensor in sample.values() if isinstance(sample, Mapping) else (sample,):
        spread = hasattr(model, "hf_device_map")  # over several devices; it moves its inputs itself
        if isinstance(tensor, Tensor) and tensor.device != device and not spread:
            raise ValueError(
                f"sparsify: sample: expected it on {device}, as the model, got {tensor.device}"
            )
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str) -> Callable[..., None]:
        def hook(
            layer: SparseFfn, arguments: tuple[Any, ...], options: dict[str, Any], _: Any
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
