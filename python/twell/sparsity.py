"""How much a model fires: what training adds to its loss for it, and what it reports."""

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
    """Backward of the model adds ``coefficient`` times the mean over its layers of their L1 terms, as
    if the loss held :func:`l1_term`; unlike that, also under activation checkpointing of either kind.

    A layer's term is the sum over hidden units of |h|, averaged over all tokens of the pass. Layers
    cannot tell padding, nor tokens whose label is ignored: these count as any other.

    The term does not pass through the loss. So where an optimizer step adds up the gradients of
    several backward passes, ``accumulation`` is their number, and the coefficient is that of the mean
    over passes; each weighs the same, however many tokens it has. Where the last step of an epoch has
    fewer passes, call it again with their number. Where gradients are averaged over processes (DDP,
    FSDP), nothing is to be done, and each process weighs the same. A gradient scaler's factor has to
    be in the coefficient. 0 ends it. Call it again to change it: where the coefficient is a tensor,
    torch.compile then needs no new trace. A gradient that is to be differentiated again is refused
    where it passes the layers: every backward pass through them adds the term, so that of a second
    derivative would too. Where the first passes none of them, as that of an output head alone, add
    :func:`l1_term` to the loss instead.

    Raises ValueError where the model has no such layer that is trained, and where a number is
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
    """The mean over the model's layers of the L1 terms that their last forward passes left
    (``collect_l1``): times a coefficient, what training adds to its loss.

    Raises RuntimeError where a layer that collects has none, or none does.
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
    """What one layer fired. See :func:`metrics`."""

    name: str
    tokens: int
    nnz_mean: float
    """Hidden units that fire, of a token."""
    nnz_max: int
    dead: float
    """The share of its hidden units that no token fired."""
    l1: float
    """Sum over hidden units of |h|, averaged over the tokens."""

    @staticmethod
    def of(name: str, seen: Activity) -> LayerMetrics:
        tokens, count = int(seen.tokens), max(int(seen.tokens), 1)
        dead = float((seen.neurons == 0).double().mean())
        return LayerMetrics(
            name, tokens, int(seen.nnz) / count, int(seen.nnz_max), dead, float(seen.l1) / count
        )


def collect_metrics(model: nn.Module) -> None:
    """From here on, forward passes with gradients are counted, from nothing. Recomputation under
    activation checkpointing counts them twice, which changes no mean. Raises ValueError where the
    model has no layer that is trained."""
    for layer in trained_layers("collect_metrics", model).values():
        layer.collect_activity = True
        layer.activity = None


def metrics(model: nn.Module) -> list[LayerMetrics]:
    """Of the forward passes since :func:`collect_metrics`, layer by layer; of this process. Raises
    RuntimeError where nothing was counted."""
    layers = sparse_layers(model).items()
    out = [LayerMetrics.of(name, m.activity) for name, m in layers if m.activity is not None]
    if not out:
        raise RuntimeError(
            "metrics: nothing was counted; call twell.collect_metrics(model), then train"
        )
    return out
