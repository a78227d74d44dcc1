"""The modules that a layer has as children: linear layers, and a norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twell import _attached


def does_more(child: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it does more, or other, than an ordinary module of that class."""
    return bool(
        type(child) is not kind
        or child._forward_pre_hooks
        or child._forward_hooks
        or child._backward_pre_hooks
        or child._backward_hooks
        or "forward" in child.__dict__  # accelerate's hooks
        or any(map(_is_wrapped, child._parameters.values()))
    )


def check(where: str, child: nn.Module, kind: type[nn.Module]) -> None:
    """Raises ValueError if the child has what a frozen layer would lose; ``where`` names it."""
    if type(child) is not kind:
        raise ValueError(
            f"{where} is {type(child).__name__}, which does more than multiply by its weight; merge "
            "it first (merge_and_unload() of peft, remove_parametrizations() of PyTorch)"
        )
    hangs = _attached.what(child, own=("weight", "bias"))
    wrapped = [type(p).__name__ for p in child._parameters.values() if _is_wrapped(p)]
    if hangs is None and wrapped:
        hangs = f"a {wrapped[0]}"
    if hangs is not None:
        raise ValueError(f"{where} has {hangs}, which a frozen layer would lose; remove that first")


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer that holds the weight [rows, cols] and the bias themselves."""
    rows, cols = weight.shape
    linear = nn.Linear(cols, rows, bias=False, device="meta", dtype=weight.dtype)
    linear.weight = _parameter_of(weight)
    linear.register_parameter("bias", None if bias is None else _parameter_of(bias))
    return linear


def trainable(tensor: Tensor) -> nn.Parameter:
    """The tensor itself, but for what was made in inference mode: that is read-only outside."""
    return nn.Parameter(tensor.clone() if is_read_only(tensor) else tensor)


def is_read_only(tensor: Tensor) -> bool:
    return tensor.is_inference() and not torch.is_inference_mode_enabled()


def _parameter_of(tensor: Tensor) -> nn.Parameter:
    """One that wants a gradient where the tensor does."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor.detach(), tensor.requires_grad)


def _is_wrapped(tensor: Tensor | None) -> bool:
    return hasattr(type(tensor), "__tensor_flatten__")  # DTensor, torchao
