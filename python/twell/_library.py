"""Finds and loads libtwell_torch.so."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_VARIABLE = "TWELL_TORCH_LIBRARY"
_NAME = "libtwell_torch.so"
_OLDEST_TORCH = (2, 11)


def path() -> Path:
    """The library's file: what TWELL_TORCH_LIBRARY names, else the one beside the package.

    Raises ImportError where there is none; a variable that names no file is never passed over.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ImportError(f"twell: {_VARIABLE} names {named}, which is no file")
        return Path(named).resolve()
    beside = Path(__file__).resolve().parent / _NAME
    if not beside.is_file():
        raise ImportError(
            f"twell: {_NAME} is not beside {beside.parent}; install the package, or set "
            f"{_VARIABLE} to the file that the build made (target twell_torch_ops)"
        )
    return beside


def load() -> None:
    """Registers the operators. Raises ImportError, also for a PyTorch below 2.11."""
    have = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if have < _OLDEST_TORCH:
        raise ImportError(f"twell: expected PyTorch 2.11 or later, got {torch.__version__}")
    file = path()
    try:
        torch.ops.load_library(file)
    except OSError as error:
        raise ImportError(f"twell: cannot load {file}: {error}") from error
