"""RMSNorms between up and down: PyTorch's, and those that models bring."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twell import dense
from twell._attached import twin_of
from twell.form import Form

_EPSILONS = ("eps", "variance_epsilon")


def epsilon_of(norm: nn.Module, dtype: torch.dtype) -> float:
    """For inputs of this dtype."""
    epsilon = next((getattr(norm, name) for name in _EPSILONS if hasattr(norm, name)), None)
    if epsilon is None:  # as nn.RMSNorm takes it
        return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    return float(epsilon)


def is_rms_norm(module: nn.Module) -> bool:
    """Whether the module computes an RMSNorm. It is tried on a few numbers, in float64, with a weight
    of its own; no hook fires."""
    if not any(hasattr(module, name) for name in _EPSILONS) or "weight" not in module._parameters:
        return False
    if type(module) is nn.RMSNorm:
        return epsilon_of(module, torch.float32) > 0
    width = 10
    generator = torch.Generator("cpu").manual_seed(0)
    h = torch.randn((3, width), generator=generator, dtype=torch.float64, device="cpu")
    weight = None if module.weight is None else h[2] + 3
    twin = twin_of(module, parameters={"weight": None if weight is None else nn.Parameter(weight)})
    if hasattr(twin, "normalized_shape"):  # of a class derived from PyTorch's
        twin.normalized_shape = (width,)
    epsilon = epsilon_of(module, h.dtype)
    # A row of which epsilon is a large part, so that another one would show.
    h[1] *= max(epsilon, 0.0) ** 0.5
    try:
        with torch.no_grad():
            got = type(module).forward(twin, h)
    except Exception:  # whatever it is, it is none
        return False
    if not (isinstance(got, Tensor) and got.shape == h.shape and epsilon > 0):
        return False
    # In float64, or rounded to float32 on its way.
    want = dense.normalise(h, Form(norm_weight=weight, norm_epsilon=epsilon))
    return torch.allclose(got.double(), want, rtol=1e-5, atol=1e-12)
