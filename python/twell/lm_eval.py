"""lm-eval, the evaluation harness of EleutherAI, on sparse models.

``python -m twell.lm_eval`` is ``lm-eval`` with one more model:

    python -m twell.lm_eval run --model twell --model_args pretrained=DIR --tasks arc_easy

From Python, ``import twell.lm_eval`` registers it for ``lm_eval.simple_evaluate(model="twell")``.
"""

from __future__ import annotations

import sys
from typing import Any

from twell.hf.models import from_pretrained, require, sparse_lm_config

try:
    _registry: Any = require("lm_eval.api.registry", "twell.lm_eval")
    _huggingface: Any = require("lm_eval.models.huggingface", "twell.lm_eval")
except ImportError as error:
    if __name__ == "__main__":
        sys.exit(str(error))
    raise


class _SparseModels:
    """lm-eval loads models with this, in place of AutoModelForCausalLM."""

    from_pretrained = staticmethod(from_pretrained)


# Options that load models in ways of their own, which would stay dense, or that change weights
# afterwards, which frozen layers would not see.
_REFUSED = ("delta", "autogptq", "gptqmodel", "gguf_file", "tp_plan")


@_registry.register_model("twell")
class TwellLM(_huggingface.HFLM):
    """lm-eval's ``hf`` with frozen sparse feed-forward layers.

    It takes the options of ``hf``, and ``activation`` and ``threshold`` of
    :func:`twell.hf.from_pretrained`. It also reads the layout of SparseLM. It raises what
    :func:`twell.hf.from_pretrained` raises, and ValueError for options that would bypass that.
    """

    AUTO_MODEL_CLASS = _SparseModels

    def __init__(self, pretrained: Any, **options: Any) -> None:
        for name in _REFUSED:
            if options.get(name):
                raise ValueError(
                    f"TwellLM: {name}: expected none: write the model into a directory of its own "
                    "first, or use lm-eval's hf"
                )
        super().__init__(pretrained, **options)

    def _get_config(self, pretrained: str, **options: Any) -> None:
        self._config = sparse_lm_config(pretrained)
        if self._config is None:
            super()._get_config(pretrained, **options)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
