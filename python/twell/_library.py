"""Finds and loads libtwell_torch.so, and libtwell_torch_cuda.so if there is an NVIDIA GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_VARIABLE = "TWELL_TORCH_LIBRARY"
_NAME = "libtwell_torch.so"
_CUDA_VARIABLE = "TWELL_TORCH_CUDA_LIBRARY"
_CUDA_NAME = "libtwell_torch_cuda.so"
_OLDEST_TORCH = (2, 11)


def _named(variable: str) -> Path | None:
    """The file that a variable names, if it is set. ImportError if there is no such file."""
    named = os.environ.get(variable)
    if not named:
        return None
    if not Path(named).is_file():
        raise ImportError(f"twell: {variable} names {named}, which is no file")
    return Path(named).resolve()


def path() -> Path:
    """The library's file: the one that TWELL_TORCH_LIBRARY names, else the one beside the package.

    Raises ImportError if there is none.
    """
    named = _named(_VARIABLE)
    if named:
        return named
    beside = Path(__file__).resolve().parent / _NAME
    if not beside.is_file():
        raise ImportError(
            f"twell: {_NAME} is not beside {beside.parent}; install the package, or set "
            f"{_VARIABLE} to the file that the build made (target twell_torch_ops)"
        )
    return beside


def load() -> None:
    """Registers the operators. Raises ImportError if that fails, or if PyTorch is below 2.11."""
    have = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if have < _OLDEST_TORCH:
        raise ImportError(f"twell: expected PyTorch 2.11 or later, got {torch.__version__}")
    file = path()
    _load(file)
    cuda = cuda_path(file)
    if cuda is not None:
        _load(cuda)


def cuda_path(beside: Path) -> Path | None:
    """The library for CUDA tensors: the file that TWELL_TORCH_CUDA_LIBRARY names. Without that, the
    one beside the other library, if PyTorch sees a GPU. None if there is no GPU, or it was not
    built.
    """
    named = _named(_CUDA_VARIABLE)
    if named:
        return named
    # PyTorch counts by NVML where it can. Asking CUDA itself would start it, and then the processes
    # that this one forks could not use it.
    if torch.version.cuda is None or torch.cuda.device_count() == 0:
        return None
    file = beside.parent / _CUDA_NAME
    return file if file.is_file() else None


def _load(file: Path) -> None:
    try:
        torch.ops.load_library(file)
    except OSError as error:
        raise ImportError(f"twell: cannot load {file}: {error}") from error
