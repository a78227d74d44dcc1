"""FATReLU: thresholds that leave a model as few active neurons as one asks for."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from twell._children import is_wrapped
from twell.hf import shards
from twell.hf.said import Computed, Sayings
from twell.hf.schedule import Schedule
from twell.modules import SparseFfn
from twell.sparsity import sparse_layers, trained_layers

# Inputs of a layer that its threshold is fitted to. With 1,536 neurons they give 786,432 values, of
# which a share of 5 % is known to within 0.025 points.
_ROWS = 512
# A layer whose threshold is 0 takes the model's, times this, with weights as much smaller.
_LEAST = 2.0**-10


class ThresholdCallback(Schedule):
    """Raises the thresholds of a ReLU model's layers while transformers' Trainer trains it, until
    ``share`` of its neurons fire: v stays v above the threshold and is 0 below (FATReLU, Kurtz et
    al. 2020; ProSparse, Song et al. 2024). The weights learn to make up for the neurons below.

    Over the first ``steps`` optimizer steps the share that fires, a mean over layers, falls linearly from
    its first value to ``share``. The share of each layer falls in proportion. Every ``every`` steps a
    layer's threshold is set to a quantile of the pre-activations of its gate (up, without a gate) for up
    to 512 tokens, of all processes together. If no token reaches the layer in that step, this happens in
    the next step in which one does. After that, thresholds stay.

    The layers are those of ``twell.sparsify(model, freeze=False)``, with relu or fat_relu. The
    configuration says at any time which thresholds they have: each layer's, while they differ. When
    training ends, :func:`fold_thresholds` gives all layers one, as other readers expect. The Trainer's
    checkpoints hold the thresholds, for a run that resumes. Weights may be in shards (FSDP2, ZeRO-3).

    Raises ValueError for numbers out of range and, before the first step, if the run is shorter than
    ``steps``; where a layer has another activation, a linear layer that is no ordinary one (an adapter, a
    parametrization, a hook), weights that do not train or that another module has too, or an activation
    that the configuration cannot say. In a model that is compiled (torch.compile) its layers are not,
    while it is trained.
    """

    ARGUMENTS = ("share", "steps", "every")
    KEPT = ("thresholds", "first_shares")

    def __init__(self, share: float, steps: int, every: int = 8) -> None:
        if not 0 < share < 1:
            raise ValueError(
                f"ThresholdCallback: share: expected more than 0 and less than 1, got {share}"
            )
        for name, value in (("steps", steps), ("every", every)):
            if value < 1:
                raise ValueError(f"ThresholdCallback: {name}: expected 1 or more, got {value}")
        self.share, self.steps, self.every = share, steps, every
        self._hooks: list[Any] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        self.thresholds: dict[str, float] = {}
        self.first_shares: dict[str, float] = {}
        """Of neurons that fired when the layer was seen first, by layer."""
        self._layers: dict[str, SparseFfn] = {}
        self._due: set[str] = set()
        self._values: dict[str, Tensor] = {}
        self._sayings: Sayings | None = None
        self._compiled = False
        self._unhook()

    def look(self, model: nn.Module, args: Any, state: Any) -> None:
        self._layers = trained_layers("ThresholdCallback", model)
        self.look_at_adapters(model)
        for name, layer in self._layers.items():
            if layer.activation not in ("relu", "fat_relu"):
                raise self.refuse(f"{name}: expected relu or fat_relu, got {layer.activation}")
        _check_foldable("ThresholdCallback", model, self._layers)
        for name, layer in self._layers.items():
            for child, parameter in _scaled(layer):
                if not parameter.requires_grad:
                    raise self.refuse(
                        f"{name}: its {child} does not train (requires_grad=False), and would be scaled in "
                        "the end; expected weights that train"
                    )
        self.look_at_path(self.steps, state)
        compiled = [m for m in model.modules() if m._compiled_call_impl is not None or hasattr(m, "_orig_mod")]
        self._compiled = bool(compiled) or getattr(args, "torch_compile", False)
        self._sayings = Sayings(model, list(sparse_layers(model)))
        self._sayings.check("ThresholdCallback", model, _computed(model))

    def begin(self, model: nn.Module, step: int) -> None:
        for layer in self._layers.values() if self._compiled else ():
            # What is traced knows neither the hooks of later steps nor their thresholds.
            layer.forward = torch.compiler.disable(layer.forward)  # type: ignore[method-assign]
        self._go_on(model)

    def _go_on(self, model: nn.Module) -> None:
        for name, layer in self._layers.items():
            layer.activation = "fat_relu"
            layer.threshold = self.thresholds.get(name, layer.threshold)
        if self._sayings is not None:
            self._sayings.write(_computed(model))

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        step = state.global_step + 1
        if step <= self.steps and (step == self.steps or step % self.every == 1 or self.every == 1):
            self._due = set(self._layers)
        self._hooks = [
            layer.register_forward_pre_hook(partial(self._see, name), with_kwargs=True)
            for name, layer in self._layers.items()
            if name in self._due
        ]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not self._due:
            return
        self._unhook()
        sizes = {n: m.neurons for n, m in self._layers.items() if n in self._due}
        some = next(iter(self._layers.values()))
        device = some.part(some.names[0]).weight.device
        values, self._values = shards.of_all_processes(self._values, sizes, device), {}
        if not values:
            return
        shares = {n: (v > self._layers[n].threshold).double().mean() for n, v in values.items()}
        self.first_shares = {**_numbers(shares), **self.first_shares}
        mean = sum(self.first_shares.values()) / len(self.first_shares)
        # As a share of what fired first: it falls from 1 to that.
        end = min(1.0, self.share / max(mean, 1e-12))
        kept = 1 - (1 - end) * min(1.0, state.global_step / self.steps)
        self.thresholds |= _numbers({n: _upper(v, self.first_shares[n] * kept) for n, v in values.items()})
        self._due -= set(values)
        self._go_on(given["model"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if logs is not None and "loss" in logs and self.thresholds:
            found = {"sparsity/threshold": sum(self.thresholds.values()) / len(self.thresholds)}
            logs.update(found)
            if state.log_history:
                state.log_history[-1].update(found)

    def end(self, model: nn.Module, step: int) -> None:
        self._unhook()
        for layer in self._layers.values():
            layer.__dict__.pop("forward", None)
        if step < self.steps:
            warnings.warn(
                f"ThresholdCallback: the model is that of step {step} of {self.steps}: more than the share "
                f"{self.share} of its neurons fires",
                stacklevel=2,
            )
        fold_thresholds(model)

    # --- Its parts ------------------------------------------------------------------------------

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.no_grad()
    def _see(self, name: str, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = (given[0] if given else named["x"]).detach().flatten(0, -2)
        if not layer.training or len(x) == 0:
            return
        # An odd stride: an even one may fall on the same positions of every sequence.
        x = x[:: max(1, math.ceil(len(x) * shards.processes() / _ROWS)) | 1]
        self._values[name] = self._layers[name].before_activation(x).float()  # under the autocast of the pass


@torch.no_grad()
def fold_thresholds(model: nn.Module) -> float:
    """Gives all fat_relu layers of a model that is trained one threshold, the largest, and returns it.
    Since v > t exactly if c·v > c·t, the first linear layer is multiplied by c = largest / t, and the
    one whose result meets it (up, or down without a gate) is divided by c. The model computes the same,
    up to the rounding of its weights. The configuration, if there is one, says fatrelu under the key
    that it has for the activation, and ``hidden_act_param``, as the files of ProSparse have them. With a
    ReLU on up it says drelu, and the same number for the gate.

    Raises ValueError, and changes nothing, if the model has no such layer; for one without a gate but with
    a norm of its hidden state, whose epsilon would count for another size; for a squared ReLU on up; and
    for weights that another module has too, or that are those of an adapter or a parametrization.
    """
    layers = {n: m for n, m in sparse_layers(model).items() if not m.frozen}
    layers = {n: m for n, m in layers.items() if m.activation == "fat_relu"}
    if not layers:
        raise ValueError("fold_thresholds: the model has no fat_relu layer that is trained")
    _check_foldable("fold_thresholds", model, layers)
    sayings = Sayings(model, list(sparse_layers(model)))
    sayings.check("fold_thresholds", model, _computed(model))
    largest = max(layer.threshold for layer in layers.values())
    for layer in layers.values():
        factor = largest / max(layer.threshold, largest * _LEAST) if largest > 0 else 1.0
        with shards.writable(model, [p for _, p in _scaled(layer)]):
            _scale(layer, factor)
        layer.threshold = largest
    sayings.write(_computed(model))
    return largest


def _scale(layer: SparseFfn, factor: float) -> None:
    first = layer.part(layer.names[0])
    if layer.fused and is_wrapped(first.weight):  # in shards, of which no half is a view
        from torch.distributed.tensor import distribute_tensor

        halves = torch.tensor([factor, 1 / factor]).repeat_interleave(layer.neurons)
        for p in first.parameters():
            rows = halves.to(p.device, p.dtype).view(-1, *[1] * (p.dim() - 1))
            p.mul_(distribute_tensor(rows, p.device_mesh))
        return
    gate, up, down = layer._weights()
    gate_bias, up_bias, *_ = layer._vectors()
    for grown in (gate, gate_bias):
        if grown is not None:
            grown.mul_(factor)
    for shrunk in (up, up_bias) if layer.gated else (down,):
        if shrunk is not None:
            shrunk.div_(factor)


def _computed(model: nn.Module) -> Any:
    """Of all layers; None of what no configuration can say."""
    return {name: Computed.by(layer) for name, layer in sparse_layers(model).items()}


def _scaled(layer: SparseFfn) -> list[tuple[str, Any]]:
    """The parameters that folding scales, with the names of their linear layers. Down's bias is added to
    the sum, and stays."""
    out: list[tuple[str, Any]] = []
    for name in layer.names[: 1 if layer.fused else 2]:
        part = layer.part(name)
        out.append((name, getattr(part, "whole", part.weight)))  # of all experts
        if part.bias is not None and (name == layer.names[0] or layer.gated):
            out.append((name, part.bias))
    return out


def _check_foldable(operation: str, model: nn.Module, layers: dict[str, SparseFfn]) -> None:
    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    ups = {layer.up_activation for layer in layers.values()}
    if len(ups) > 1 or not ups <= {"identity", "relu"}:
        raise ValueError(
            f"{operation}: up: expected one of identity, relu in all layers, got {', '.join(sorted(ups))}"
        )
    for name, layer in layers.items():
        for child in layer._child_names:
            if not _is_ordinary(layer, child):
                raise ValueError(f"{operation}: {name}: its {child} is no ordinary linear layer")
        if not layer.gated and layer.norm_name is not None:
            raise ValueError(f"{operation}: {name}: has no gate, and a norm behind its activation")
        for child, parameter in _scaled(layer):
            if owners[id(parameter)] > 1:
                raise ValueError(
                    f"{operation}: {name}: another module has the weight of its {child} too, and would be "
                    "scaled with it; untie them"
                )


def _is_ordinary(layer: SparseFfn, name: str) -> bool:
    part = layer.part(name)
    # What gathers shards hangs hooks on a linear layer, and changes nothing of what it computes.
    if isinstance(part, nn.Module) and shards.is_sharded(part._parameters.get("weight")):
        return isinstance(part, layer._expected_type(name))
    return layer.is_ordinary(name)


def _numbers(values: dict[str, Tensor]) -> dict[str, float]:
    return dict(zip(values, torch.stack(list(values.values())).double().tolist()))


def _upper(values: Tensor, share: float) -> Tensor:
    """The largest threshold, not below 0, above which the share of the values is."""
    flat = values.flatten()
    rank = flat.numel() - max(1, min(flat.numel() - 1, round(share * flat.numel())))
    return flat.kthvalue(rank).values.clamp_min(0)
