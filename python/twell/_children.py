"""The parts that a layer is made of: linear layers, and a norm. They stay the modules that they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twell import _attached, _codes


def is_turned(module: object) -> bool:
    """Whether the module is transformers' Conv1D, a linear layer whose weight is [in, out]. By name, so
    that the package need not be installed."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and hasattr(module, "nx")


def as_rows(part: object, weight: Tensor) -> Tensor:
    """A part's weight as nn.Linear has it, or the inverse: a view."""
    return weight.t() if is_turned(part) else weight


def does_more(child: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it does more, or other, than an ordinary module of that class."""
    return bool(
        type(child) is not kind
        or has_hooks(child)
        or ("forward" in child.__dict__ and not _attached.moves_inputs_alone(child))
        or any(map(is_wrapped, child._parameters.values()))
    )


def has_hooks(child: nn.Module) -> bool:
    """Whether it has some of a forward pass or of its backward."""
    return bool(
        child._forward_pre_hooks
        or child._forward_hooks
        or child._backward_pre_hooks
        or child._backward_hooks
    )


def check(where: str, child: nn.Module, kind: type[nn.Module]) -> None:
    """Raises ValueError if the child has what a frozen layer would lose; ``where`` names it."""
    coded = _codes.is_quantised(child)
    if type(child) is not kind:
        raise ValueError(
            f"{where} is {type(child).__name__}, which does more than multiply by its weight; merge "
            "it first (merge_and_unload() of peft, remove_parametrizations() of PyTorch)"
        )
    own = ("bias", *(_codes.own_parameters(child) if coded else ("weight",)))
    moved = _attached.moves_inputs_alone(child)
    hangs = _attached.what(child, own=own, forward=not coded and not moved)
    wrapped = [type(p).__name__ for p in child._parameters.values() if is_wrapped(p) and not coded]
    if hangs is None and wrapped:
        hangs = f"a {wrapped[0]}"
    if hangs is not None:
        raise ValueError(f"{where} has {hangs}, which a frozen layer would lose; remove that first")


def linears_of(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None
) -> list[nn.Linear]:
    """Linear layers that hold the tensors themselves: of gate, up and down, or of up and down. Raises
    ValueError."""
    kinds, shapes = described_weights(len(weights))
    if any(w.dim() != 2 for w in weights):
        got = ", ".join(str(list(w.shape)) for w in weights)
        raise ValueError(f"{kinds}: expected shapes {shapes}, got {got}")
    biases = (None,) * len(weights) if biases is None else tuple(biases)
    sizes = [[w.shape[0]] for w in weights]
    if len(biases) != len(weights) or any(
        b is not None and list(b.shape) != size for b, size in zip(biases, sizes)
    ):
        got = ", ".join("none" if b is None else str(list(b.shape)) for b in biases)
        wanted = ", ".join(map(str, sizes))
        raise ValueError(f"biases: expected none or shapes {wanted}, got {got}")
    return [linear_of(w, b) for w, b in zip(weights, biases)]


def check_fit(linears: Sequence[Any], fused: bool = False) -> None:
    """Raises ValueError unless the linear layers' sizes and dtypes go together: gate, up and down, or up
    and down; ``fused``: gate and up in one, and down."""
    if wrong := misfit(linears, fused):
        raise ValueError(wrong)
    known = [m for m in linears if type(m) is nn.Linear or is_turned(m)]
    dtypes = [p.dtype for m in known if not _codes.is_quantised(m) for p in m.parameters()]
    if any(dtype != dtypes[0] for dtype in dtypes):
        kinds, _ = described_weights(len(linears) + fused)
        raise ValueError(f"{kinds}: expected one dtype, got {', '.join(map(str, dtypes))}")


def misfit(linears: Sequence[Any], fused: bool = False) -> str | None:
    """Says where the linear layers do not widen and narrow again."""
    sizes = [size_of(linear) for linear in linears]
    if fused:
        rows, cols = sizes[0]
        sizes = [[rows // 2, cols], [rows - rows // 2, cols], *sizes[1:]]
    if all(size == sizes[0] for size in sizes[1:-1]) and sizes[-1] == sizes[0][::-1]:
        return None
    kinds, shapes = described_weights(len(sizes))
    return f"{kinds}: expected shapes {shapes}, got {', '.join(map(str, sizes))}"


def size_of(linear: Any) -> list[int]:
    """[rows, columns] of its weight as nn.Linear has it."""
    if is_turned(linear):
        return [linear.nf, linear.nx]
    return [linear.out_features, linear.in_features]


def described_weights(count: int) -> tuple[str, str]:
    """Of so many linear layers, what they are and their shapes."""
    shapes = [*["[H, D]"] * (count - 1), "[D, H]"]
    return ", ".join(("gate", "up", "down")[3 - count :]), ", ".join(shapes)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer that holds the weight [rows, cols] and the bias themselves."""
    rows, cols = weight.shape
    linear = nn.Linear(cols, rows, bias=False, device="meta", dtype=weight.dtype)
    linear.weight = _parameter_of(weight)
    linear.register_parameter("bias", None if bias is None else _parameter_of(bias))
    return linear


class Emptied(NamedTuple):
    """A part without its weights, of which a frozen layer has others."""

    module: nn.Module

    @staticmethod
    def of(module: nn.Module) -> Emptied:
        twin = _attached.twin_of(module, parameters=dict.fromkeys(module._parameters))
        if _attached.moves_inputs_alone(module):  # as the layer's own hook does
            for name in ("forward", "_hf_hook", "_old_forward"):
                twin.__dict__.pop(name, None)
        return Emptied(twin)

    def refilled(self, weight: Tensor | None, bias: Tensor | None = None) -> nn.Module:
        """The part with these, which it holds themselves; as it has them, so that Conv1D's is [in, out]."""
        own = {"weight": weight, "bias": bias}
        own = {n: None if t is None else _parameter_of(t) for n, t in own.items() if n in self.module._parameters}
        return _attached.twin_of(self.module, parameters=own)


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


def is_wrapped(tensor: Tensor | None) -> bool:
    """Whether it has its numbers in other tensors."""
    return hasattr(type(tensor), "__tensor_flatten__")  # DTensor, torchao
