"""FATReLU: thresholds that leave a model as few active neurons as one asks for."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from twell._children import does_more
from twell.hf import shards
from twell.hf.models import require, say_activation
from twell.modules import SparseFfn
from twell.sparsity import sparse_layers, trained_layers

require("transformers", "twell.hf.ThresholdCallback")
from transformers import TrainerCallback  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402

# Inputs of a layer that its threshold is fitted to. With 1,536 neurons they give 786,432 values, of
# which a share of 5 % is known to within 0.025 points.
_ROWS = 512
# A layer whose threshold is 0 takes the model's, times this, with weights as much smaller.
_LEAST = 2.0**-10
# Of a FATReLU in config.json, by the activation of up.
_NAMES = {"identity": "fatrelu", "relu": "drelu"}


class ThresholdCallback(TrainerCallback, ExportableState):
    """Raises the thresholds of a ReLU model's layers while transformers' Trainer trains it, until
    ``share`` of its neurons fire: v stays v above the threshold and is 0 below (FATReLU, Kurtz et
    al. 2020; ProSparse, Song et al. 2024). The weights learn what the neurons below can no longer say.

    Over the first ``steps`` optimizer steps the share that fires falls in a straight line from what
    it is to ``share``, a mean over layers. Each layer falls in proportion to what it fires. Every
    ``every`` steps a layer's threshold is set to the quantile of what its gate (up, without a gate)
    yields for up to 512 tokens, of all processes together. Later, thresholds stay.

    The layers are those of ``twell.sparsify(model, freeze=False)``, with relu or fat_relu. When
    training ends, :func:`fold_thresholds` gives all layers one threshold, for a file that has one.
    The Trainer's state holds the thresholds, for a run that resumes. Weights may be in shards (FSDP2,
    ZeRO-3). Raises ValueError for numbers out of range, and where a layer has another activation or a
    linear layer that is no ordinary one (an adapter, a parametrization, a hook).
    """

    def __init__(self, share: float, steps: int, every: int = 8) -> None:
        if not 0 < share < 1:
            raise ValueError(
                f"ThresholdCallback: share: expected more than 0 and less than 1, got {share}"
            )
        for name, value in (("steps", steps), ("every", every)):
            if value < 1:
                raise ValueError(f"ThresholdCallback: {name}: expected 1 or more, got {value}")
        self.share, self.steps, self.every = share, steps, every
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.thresholds: dict[str, float] = {}
        self.first_shares: dict[str, float] = {}
        """Of neurons that fired in the first step, by layer."""
        self._values: dict[str, Tensor] = {}
        self._hooks: list[Any] = []

    # --- Trainer's events -----------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._begin_anew()
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if state.global_step > 0 and isinstance(saved, dict):  # resumed
            self.thresholds = saved["attributes"]["thresholds"]
            self.first_shares = saved["attributes"]["first_shares"]
        for name, layer in self._layers(given["model"]).items():
            if layer.activation not in ("relu", "fat_relu"):
                raise ValueError(
                    f"ThresholdCallback: {name}: expected relu or fat_relu, got {layer.activation}"
                )
            layer.activation = "fat_relu"
            layer.threshold = self.thresholds.get(name, layer.threshold)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        step = state.global_step + 1
        if step <= self.steps and (step == self.steps or step % self.every == 1 or self.every == 1):
            self._hooks = [
                layer.register_forward_pre_hook(partial(self._see, name))
                for name, layer in self._layers(given["model"]).items()
            ]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        values, self._values = shards.of_all_processes(self._values), {}
        layers = self._layers(given["model"])
        if not self.first_shares:
            shares = {n: (v > layers[n].threshold).double().mean() for n, v in values.items()}
            self.first_shares = _numbers(shares)
        mean = sum(self.first_shares.values()) / len(self.first_shares)
        # As a share of what fired first: it falls from 1 to that.
        end = min(1.0, self.share / mean)
        kept = 1 - (1 - end) * min(1.0, state.global_step / self.steps)
        found = {n: _upper(v, self.first_shares[n] * kept) for n, v in values.items()}
        self.thresholds = _numbers(found)
        for name, threshold in self.thresholds.items():
            layers[name].threshold = threshold

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if logs is not None and "loss" in logs and self.thresholds:
            found = {"sparsity/threshold": sum(self.thresholds.values()) / len(self.thresholds)}
            logs.update(found)
            if state.log_history:
                state.log_history[-1].update(found)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        fold_thresholds(given["model"])

    # --- Its parts ------------------------------------------------------------------------------

    @staticmethod
    def _layers(model: nn.Module) -> dict[str, SparseFfn]:
        layers = trained_layers("ThresholdCallback", model)
        for name, layer in layers.items():
            for child in layer._child_names:
                if not _is_ordinary(getattr(layer, child), layer._expected_type(child)):
                    raise ValueError(
                        f"ThresholdCallback: {name}: its {child} is no ordinary linear layer"
                    )
        return layers

    @torch.no_grad()
    def _see(self, name: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
        if not layer.training:
            return
        x = given[0].detach().flatten(0, -2)
        first = getattr(layer, layer.names[0])  # type: ignore[arg-type, index]
        # An odd stride: an even one may fall on the same positions of every sequence.
        x = x[:: max(1, math.ceil(len(x) * shards.processes() / _ROWS)) | 1]
        self._values[name] = first(x).float()  # under the autocast of the pass

    # --- Saved with the Trainer's state -----------------------------------------------------------

    def state(self) -> dict[str, Any]:
        arguments = {name: getattr(self, name) for name in ("share", "steps", "every")}
        kept = {"thresholds": self.thresholds, "first_shares": self.first_shares}
        return {"args": arguments, "attributes": kept}


@torch.no_grad()
def fold_thresholds(model: nn.Module) -> float:
    """Gives all fat_relu layers of a model that is trained one threshold, the largest one's, and
    returns it: where v > t of a layer, c·v > c·t, so the first linear layer is multiplied by
    c = largest / t and what it meets (up, or down without a gate) is divided by it. The model
    computes the same, up to the rounding of its weights. The configuration, if there is one, gets
    ``hidden_act`` (OPT's ``activation_function``) fatrelu and ``hidden_act_param``, as the files of
    ProSparse have them; with a ReLU on up drelu, and the same number for the gate.

    Raises ValueError if the model has no such layer, for one without a gate but with a norm of its
    hidden state, whose epsilon would count for another size, and for a squared ReLU on up.
    """
    layers = {n: m for n, m in sparse_layers(model).items() if not m.frozen}
    layers = {n: m for n, m in layers.items() if m.activation == "fat_relu"}
    if not layers:
        raise ValueError("fold_thresholds: the model has no fat_relu layer that is trained")
    for name, layer in layers.items():
        if len(layer.names) == 2 and layer.norm_name is not None:
            raise ValueError(
                f"fold_thresholds: {name}: has no gate, and a norm behind its activation"
            )
    ups = {layer.up_activation for layer in layers.values()}
    if len(ups) > 1 or not ups <= set(_NAMES):
        raise ValueError(
            f"fold_thresholds: up: expected one of {', '.join(_NAMES)} in all layers, "
            f"got {', '.join(sorted(ups))}"
        )
    largest = max(layer.threshold for layer in layers.values())
    for layer in layers.values():
        factor = largest / max(layer.threshold, largest * _LEAST) if largest > 0 else 1.0
        first, second = (getattr(layer, name) for name in layer.names[:2])
        larger = [first.weight, first.bias]
        # Down's bias is added to the sum, and stays.
        smaller = [second.weight, second.bias if len(layer.names) == 3 else None]
        with shards.writable(model, [p for p in (*larger, *smaller) if p is not None]):
            for parameter in larger:
                if parameter is not None:
                    parameter.mul_(factor)
            for parameter in smaller:
                if parameter is not None:
                    parameter.div_(factor)
        layer.threshold = largest
    config = getattr(model, "config", None)
    if config is not None:
        say_activation(config, _NAMES[ups.pop()], largest)
    return largest


def _is_ordinary(child: nn.Module, kind: type[nn.Module]) -> bool:
    weight = child._parameters.get("weight")
    # What gathers shards hangs hooks on a linear layer, and changes nothing of what it computes.
    if weight is not None and shards.is_sharded(weight):
        return isinstance(child, kind)
    return not does_more(child, kind)


def _numbers(values: dict[str, Tensor]) -> dict[str, float]:
    return dict(zip(values, torch.stack(list(values.values())).double().tolist()))


def _upper(values: Tensor, share: float) -> Tensor:
    """The largest threshold, not below 0, above which the share of the values is."""
    flat = values.flatten()
    rank = flat.numel() - max(1, min(flat.numel() - 1, round(share * flat.numel())))
    return flat.kthvalue(rank).values.clamp_min(0)
