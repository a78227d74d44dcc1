"""Hugging Face: models whose MLPs are sparse, and training them with transformers' Trainer."""

import importlib

from twell.hf.logits import float_logits
from twell.hf.mlps import from_mlp
from twell.hf.models import from_pretrained
from twell.hf.replace import sparsify
from twell.hf.reporting import Report, report

__all__ = [
    "AnnealingCallback",
    "DistillationTrainer",
    "Report",
    "SparsityCallback",
    "ThresholdCallback",
    "divergence",
    "float_logits",
    "fold_thresholds",
    "from_mlp",
    "from_pretrained",
    "hidden_error",
    "report",
    "sparsify",
]

# Names of modules that need transformers, by module.
_WITH_TRANSFORMERS = {
    "SparsityCallback": "callback",
    "AnnealingCallback": "annealing",
    "DistillationTrainer": "distill",
    "divergence": "distill",
    "hidden_error": "distill",
    "ThresholdCallback": "thresholds",
    "fold_thresholds": "thresholds",
}


def __getattr__(name: str) -> object:
    if name in _WITH_TRANSFORMERS:
        module = importlib.import_module(f"twell.hf.{_WITH_TRANSFORMERS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
