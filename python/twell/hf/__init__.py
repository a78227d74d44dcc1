"""Hugging Face: models whose MLPs are sparse, and training them with transformers' Trainer."""

from twell.hf.mlps import from_mlp
from twell.hf.models import from_pretrained
from twell.hf.replace import sparsify
from twell.hf.reporting import Report, report

__all__ = ["Report", "SparsityCallback", "from_mlp", "from_pretrained", "report", "sparsify"]


def __getattr__(name: str) -> object:
    if name == "SparsityCallback":  # its base class is transformers'
        from twell.hf.callback import SparsityCallback

        return SparsityCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
