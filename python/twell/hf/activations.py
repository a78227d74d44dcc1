"""What a model's activation computes: only those with exact zeros leave something to skip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from twell import dense
from twell.hf.kinds import Stays
from twell.hf.unchanged import uncompiled

# transformers' class for x → relu(x)² ("relu2") by name, so that the package need not be installed.
_CLASSES = {"ReLU": "relu", "ReLUSquaredActivation": "relu_squared"}


def activation_of(name: str, act: object, config: object = None) -> tuple[str, float]:
    """An activation and its threshold. ``config`` is the model's. Raises Stays for one without exact
    zeros, and ValueError for one whose threshold cannot be told."""
    if isinstance(act, dense.FatRelu):
        return "fat_relu", act.threshold
    if isinstance(act, nn.Threshold) and act.value == 0 and act.threshold >= 0:
        return "fat_relu", float(act.threshold)
    if act is functional.relu or act is torch.relu:
        return "relu", 0.0
    kind = type(act).__name__
    if kind in _CLASSES:
        return _CLASSES[kind], 0.0
    if callable(act) and (found := _tried(name, act, config)):
        return found
    if not isinstance(act, nn.Module):
        kind = getattr(act, "__name__", kind)
    raise Stays(
        f"{name}: its activation {kind} yields no exact zeros, so there is nothing to skip; "
        f"expected ReLU, squared ReLU or twell.FatRelu. If the weights were trained with one "
        f"of these and the configuration does not say so, pass activation="
    )


def _tried(name: str, act: object, config: object) -> tuple[str, float] | None:
    """A class or function of a model's own, by what it computes: relu, its square, or FATReLU, whose
    threshold the class or the configuration (hidden_act_param) has."""
    thresholds = _thresholds(act, config)
    sides = [t + d for t in thresholds for d in (-1e-9, 0.0, 1e-9)]
    parts = [torch.linspace(-s, s, 4001, dtype=torch.float64, device="cpu") for s in (0.1, 4, 1e4)]
    v = torch.cat([*parts, torch.tensor([*sides, *(-t for t in thresholds)], dtype=torch.float64)])
    try:
        with torch.no_grad(), uncompiled():  # flash-linear-attention's are compiled
            got = act(v.clone()).double()  # type: ignore[operator]
    except Exception:  # whatever it is, it is none
        return None
    if not isinstance(got, Tensor) or got.shape != v.shape:
        return None
    if torch.equal(got, dense.activate(v, "relu")):
        return "relu", 0.0
    # In float64, or rounded to float32 on its way.
    squared = [dense.activate(each, "relu_squared").double() for each in (v, v.float())]
    if torch.allclose(got, squared[0], rtol=1e-12, atol=0) or torch.equal(got, squared[1]):
        return "relu_squared", 0.0
    for t in thresholds:
        if torch.equal(got, dense.activate(v, "fat_relu", t)):
            return "fat_relu", t
        if t > 0 and torch.equal(got, torch.where(v >= t, v, 0.0)):
            # It keeps the threshold itself: one below is the last that it does not.
            single = torch.tensor(t, dtype=torch.float32, device="cpu")
            return "fat_relu", float(torch.nextafter(single, torch.zeros_like(single)))
    if ((got == 0) | (got == v)).all() and (got[v < 0] == 0).all():
        raise ValueError(
            f"{name}: its activation {type(act).__name__} has a threshold that neither it nor the "
            "configuration (hidden_act_param) tells; pass activation= and threshold="
        )
    return None


def _thresholds(act: object, config: object) -> list[float]:
    """Numbers that may be it."""
    has = dict(vars(act)) if isinstance(act, nn.Module) else {}
    has |= {**has.get("_buffers", {}), **has.get("_parameters", {})}
    found = [v for v in has.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    found += [
        float(t)
        for t in has.values()
        if isinstance(t, Tensor) and t.numel() == 1 and not t.is_meta
    ]
    said = getattr(config, "hidden_act_param", None)
    if isinstance(said, (int, float)):
        found.append(said)
    return [float(v) for v in dict.fromkeys(found) if 0 <= v < float("inf")]


class Annealed(nn.Module):
    """(1 - share) · start(x) + share · end(x). At a share of 1 it is the end's own bits."""

    def __init__(self, start: Any, end: nn.Module, share: float = 0.0) -> None:
        super().__init__()
        self.start, self.end = start, end
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if self.share >= 1:
            return self.end(x)
        return torch.lerp(self.start(x), self.end(x), self.share)
