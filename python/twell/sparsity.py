"""The L1 term that training adds to the loss, and metrics of how many neurons fire."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twell.activity import Activity
from twell.modules import SparseFfn


def sparse_layers(model: nn.Module) -> dict[str, SparseFfn]:
    """The model's GatedFfn and Ffn layers by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, SparseFfn)}


def trained_layers(operation: str, model: nn.Module) -> dict[str, SparseFfn]:
    layers = {name: m for name, m in sparse_layers(model).items() if not m.frozen}
    if not layers:
        raise ValueError(
            f"{operation}: the model has no GatedFfn or Ffn layer that is not frozen; "
            "sparsify(model, freeze=False) makes them, thaw() frees a frozen one"
        )
    return layers


def set_l1(model: nn.Module, coefficient: float | Tensor, *, accumulation: int = 1) -> None:
    """Makes the model's backward pass add ``coefficient`` times the mean over its layers of their
    L1 terms, as if the loss had :func:`l1_term` in it. Unlike :func:`l1_term`, it works under
    activation checkpointing of either kind.

    A layer's term is the sum over neurons of ``|h|``, averaged over all tokens of the pass. Layers
    cannot tell padding, or tokens whose label is ignored, from other tokens, and count them too.

    The term does not pass through the loss. If an optimizer step adds up the gradients of several
    backward passes, give their number as ``accumulation``. The coefficient is then that of the mean
    over passes, and each pass weighs the same, however many tokens it has. If the last step of an
    epoch has fewer passes, call this again with their number. If gradients are averaged over
    processes (DDP, FSDP), do nothing: each process weighs the same. If you use a gradient scaler,
    multiply the coefficient by its factor.

    Call this again to change the coefficient; 0 ends it. If the coefficient is a tensor,
    torch.compile needs no new trace. The layers refuse a gradient that is to be differentiated
    again: every backward pass through them adds the term, also that of a second derivative. If the
    first derivative passes through none of them, as that of an output head does, add
    :func:`l1_term` to the loss instead.

    Raises ValueError if the model has no GatedFfn or Ffn layer that is trained, or if a number is
    negative or not finite.
    """
    layers = trained_layers("set_l1", model)
    if accumulation < 1:
        raise ValueError(f"set_l1: accumulation: expected 1 or more, got {accumulation}")
    if not isinstance(coefficient, Tensor) and not 0 <= coefficient < math.inf:
        raise ValueError(f"set_l1: coefficient: expected 0 or more, got {coefficient}")
    for layer in layers.values():
        layer.l1_weight = coefficient / (len(layers) * accumulation)


def l1_term(model: nn.Module) -> Tensor:
    """The mean over the model's layers of the L1 terms of their last forward passes. Layers keep
    them if their ``collect_l1`` is set. Training adds this, times a coefficient, to its loss.

    Raises RuntimeError if a layer that collects has no term, or if no layer collects.
    """
    collecting = {n: m for n, m in sparse_layers(model).items() if m.collect_l1 and not m.frozen}
    terms = {name or type(m).__name__: m.l1 for name, m in collecting.items()}
    missing = [name for name, l1 in terms.items() if l1 is None]
    if not collecting:
        raise RuntimeError(
            "l1_term: no layer holds an L1 term; set collect_l1 on the layers and run a forward pass"
        )
    if missing:
        raise RuntimeError(
            f"l1_term: {missing[0]} holds no L1 term of its last forward pass, which had no gradients; "
            "reentrant activation checkpointing runs it so: use set_l1, which works there"
        )
    return torch.stack([l1 for l1 in terms.values() if l1 is not None]).mean()


@dataclass(frozen=True)
class LayerMetrics:
    """How much one layer fired. See :func:`metrics`."""

    name: str
    tokens: int
    nnz_mean: float
    """Neurons that a token fires, on average."""
    nnz_max: int
    """Neurons that one token fired at most."""
    dead: float
    """The share of the layer's neurons that no token fired."""
    l1: float
    """The sum over neurons of ``|h|``, averaged over the tokens."""

    @staticmethod
    def of(name: str, seen: Activity) -> LayerMetrics:
        tokens, count = int(seen.tokens), max(int(seen.tokens), 1)
        dead = float((seen.neurons == 0).double().mean())
        return LayerMetrics(
            name, tokens, int(seen.nnz) / count, int(seen.nnz_max), dead, float(seen.l1) / count
        )


def collect_metrics(model: nn.Module) -> None:
    """Starts counting which neurons the model's forward passes with gradients fire. Recomputation under
    activation checkpointing counts a pass twice, which changes no mean. Raises ValueError if the
    model has no layer that is trained."""
    for layer in trained_layers("collect_metrics", model).values():
        layer.collect_activity = True
        layer.activity = None


def metrics(model: nn.Module) -> list[LayerMetrics]:
    """How much each layer fired in this process since :func:`collect_metrics`. Raises RuntimeError
    if nothing was counted."""
    layers = sparse_layers(model).items()
    out = [LayerMetrics.of(name, m.activity) for name, m in layers if m.activity is not None]
    if not out:
        raise RuntimeError(
            "metrics: nothing was counted; call twell.collect_metrics(model), then train"
        )
    return out
