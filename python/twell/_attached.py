"""What others attach to a module: the layer that replaces it takes it over, or is refused; and copies of
modules, with what is attached."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn

# Hooks of a forward pass and its backward, and their options.
_PASS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_PASS_OPTIONS = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_is_full_backward_hook",
)
_STATE = (
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def what(
    module: nn.Module, own: tuple[str, ...] = (), hooks: bool = True, forward: bool = True
) -> str | None:
    """The first thing that is attached to a module, in words; None if nothing is. ``own`` names the
    module's own parameters. Without ``hooks`` it ignores hooks of forward and backward, and hooks
    of accelerate that move only inputs; without ``forward`` another one."""
    if forward and "forward" in module.__dict__ and (hooks or not moves_inputs_alone(module)):
        if hasattr(module, "_hf_hook"):
            return "hooks of accelerate (device_map), that may keep its weights elsewhere"
        return "another forward"
    if hooks and any(getattr(module, name) for name in _PASS):
        return "hooks"
    if any(getattr(module, name) for name in _STATE):
        return "hooks on its state_dict"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "a compiled call"
    more = [name for name in (*module._parameters, *module._buffers) if name not in own]
    return f"{more[0]} of its own" if more else None


def take_over(layer: nn.Module, module: nn.Module) -> None:
    """Makes the layer call a module's hooks of forward and backward. The handles that were returned
    for them still remove them."""
    for name in (*_PASS, *_PASS_OPTIONS):
        setattr(layer, name, getattr(module, name))
    if hasattr(module, "_hf_hook"):
        from accelerate.hooks import add_hook_to_module

        add_hook_to_module(layer, module._hf_hook)


def twin_of(
    module: nn.Module,
    children: Mapping[str, nn.Module | None] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """A copy of the module that differs only in these."""
    twin = object.__new__(type(module))
    own: dict[str, Any] = dict(module.__dict__)
    for name, value in own.items():
        if isinstance(value, MethodType) and value.__self__ is module:
            own[name] = MethodType(value.__func__, twin)
    if children is not None:
        own["_modules"] = {**module._modules, **children}
    if parameters is not None:
        own["_parameters"] = {**module._parameters, **parameters}
    twin.__dict__.update(own)
    return twin


def moves_inputs_alone(module: nn.Module) -> bool:
    """Whether the hook of accelerate on a module leaves the weights where they are. It does if a
    model is spread over GPUs that have room for all of it."""
    hook: Any = getattr(module, "_hf_hook", None)
    if type(hook).__name__ != "AlignDevicesHook" or hook.offload:
        return False
    device = hook.execution_device
    device = (
        torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
    )
    return all(p.device == device for p in module.parameters())
