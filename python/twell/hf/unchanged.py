"""Calls of a model that leave nothing behind."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Puts back, however the block ends, what forward passes may change: the attributes, parameters,
    buffers, hooks and flags of all modules, what the model's configuration and quantiser say, and the
    states of random numbers. Meanwhile compiled code runs uncompiled."""
    back = [*map(_state_of, _objects(model)), *_tensors(model), *_numbers()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices), uncompiled():  # what was compiled would not call hooks
            yield
    finally:
        for each in back:
            each()


def uncompiled() -> AbstractContextManager[Any]:
    """Compiled code runs uncompiled, and is not compiled for this alone. Without the compiler there is none, and
    asking for it would take a second."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _objects(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        yield module
        yield getattr(module, "quantization_scheme", None)
    yield getattr(model, "config", None)
    compressor = getattr(getattr(model, "hf_quantizer", None), "compressor", None)
    yield getattr(compressor, "quantization_config", None)


def _state_of(thing: Any) -> Callable[[], None]:
    if not hasattr(thing, "__dict__"):
        return lambda: None
    before = dict(vars(thing))
    within = [(v, v.copy()) for v in before.values() if isinstance(v, (dict, list, set))]
    training = thing.training if isinstance(thing, nn.Module) else None

    def back() -> None:
        now = vars(thing)
        now.clear()
        now.update(before)
        for container, copy in within:
            container.clear()
            container.extend(copy) if isinstance(container, list) else container.update(copy)
        if training is not None and thing.training != training:  # of a script it is no attribute
            thing.training = training

    return back


def _tensors(model: nn.Module) -> Iterator[Callable[[], None]]:
    """What is written in place."""
    written: list[Any] = list(model.buffers())
    written += [m.weight for m in model.modules() if getattr(m, "max_norm", None) is not None]
    written += _rescaled_weights(model)
    for tensor in written:
        if not (tensor.is_meta or tensor.is_inference()):
            yield _values_of(tensor)
    for p in model.parameters():
        yield _flags_of(p)


def _rescaled_weights(model: nn.Module) -> Iterator[torch.Tensor]:
    """transformers' RWKV divides them in its first pass in inference, and multiplies them in training."""
    for module in model.modules():
        if hasattr(module, "layers_are_rescaled"):
            for name, p in module.named_parameters():
                if name.endswith((".attention.output.weight", ".feed_forward.value.weight")):
                    yield p


def rescale(model: nn.Module) -> None:
    """Divides them now, before layers that have them are frozen."""
    module: Any
    for module in model.modules():
        if hasattr(module, "layers_are_rescaled") and hasattr(module, "_rescale_layers"):
            training = module.training
            module.training = False
            try:
                module._rescale_layers()
            finally:
                module.training = training


def _values_of(tensor: torch.Tensor) -> Callable[[], None]:
    before, version = tensor.detach().clone(), tensor._version

    def back() -> None:
        if tensor._version != version:
            tensor.detach().copy_(before)

    return back


def _flags_of(p: nn.Parameter) -> Callable[[], None]:
    wanted, grad = p.requires_grad, p.grad

    def back() -> None:
        if p.requires_grad != wanted:
            p.requires_grad_(wanted)
        p.grad = grad

    return back


def _numbers() -> Iterator[Callable[[], None]]:
    python = random.getstate()
    yield lambda: random.setstate(python)
    if (numpy := sys.modules.get("numpy")) is not None:
        state = numpy.random.get_state()
        yield lambda: numpy.random.set_state(state)
