"""vLLM's linear layers on a CPU by twell's operator: those of codes, as vLLM has no kernel of its own for
8 bits, and all others of models with sparse layers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from twell import _codes, ops
from twell.hf.models import require

_kernels: Any = require("vllm.model_executor.kernels.linear", "twell.vllm")
_platforms: Any = require("vllm.platforms", "twell.vllm")
_types: Any = require("vllm.scalar_type", "twell.vllm").scalar_types
_embedding: Any = require("vllm.model_executor.layers.vocab_parallel_embedding", "twell.vllm")
_utils: Any = require("vllm.model_executor.layers.utils", "twell.vllm")
_schemes: Any = require(
    "vllm.model_executor.layers.quantization.compressed_tensors.schemes", "twell.vllm"
)


class CodedLinearKernel(_kernels.MPLinearKernel):
    """Multiplies codes of 4 and 8 bits as they are stored, where the operators take them so
    (docs/quantised.md); otherwise by their numbers."""

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        name = cls.__name__
        if c.weight_type not in (_types.uint4b8, _types.uint8b128) or c.zero_points:
            return False, f"{name} takes symmetric codes of 4 and 8 bits, got {c.weight_type}"
        if c.act_type not in (torch.bfloat16, torch.float32):
            return False, f"{name} takes bfloat16 and float32, got {c.act_type}"
        if c.group_size != -1 and c.partition_weight_shape[0] % c.group_size:
            return False, f"{name}: groups of {c.group_size} do not divide {c.partition_weight_shape[0]}"
        return True, None

    def codes(self, layer: nn.Module) -> _codes.Codes:
        """Before process_weights_after_loading."""
        words, scales, _ = self._get_weight_params(layer)
        cols = self.config.partition_weight_shape[0]
        codes = _codes.unpack_words(words.data, self.config.weight_type.size_bits, cols)
        # A head has rows of zeros for ids that are not there.
        absent = (words == 0).all(1) & (scales == 0).all(1)
        codes[absent] = 0
        return _codes.Codes(codes, scales.data.masked_fill(absent[:, None], 1), self.config.act_type)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        weight = _codes.weight_of("", _codes.linear_of(self.codes(layer)))
        for name in (self.w_q_name, self.w_s_name):
            delattr(layer, name)
        layer.register_buffer("twell_weight", ops.pack_weight(weight), persistent=False)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return ops.linear(x, layer.twell_weight, bias)


def has_codes(linear: Any) -> bool:
    """Whether a linear layer of vLLM, before its weights are processed, has codes for the kernel."""
    scheme: Any = getattr(linear, "scheme", None)
    return type(scheme) is _schemes.CompressedTensorsWNA16 and type(scheme.kernel) is CodedLinearKernel


def codes_of(linear: Any) -> _codes.Codes | None:
    return linear.scheme.kernel.codes(linear) if has_codes(linear) else None


def register() -> None:
    """Puts the kernel before vLLM's own."""
    own = _kernels._POSSIBLE_KERNELS.setdefault(_platforms.PlatformEnum.CPU, [])
    if CodedLinearKernel not in own:  # vLLM may call plug-ins more than once
        own.insert(0, CodedLinearKernel)


def take_unquantized() -> None:
    """Makes vLLM pack the weights of linear layers, the head's too, for twell's operator. On a Zen 4 it
    takes 0.70 to 0.83 of oneDNN's time at one row in bfloat16, 0.84 to 0.97 at 4 to 64, and 1.00 to 1.04
    from 512 on; float32 was not compared. Where a processor has AMX nothing changes: nobody has compared
    them there."""
    own = _utils.dispatch_cpu_unquantized_gemm
    if hasattr(own, "__wrapped__") or ops.cpu_tier() == "amx":
        return

    @functools.wraps(own)
    def pack(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        plain = weight.device.type == "cpu" and weight.ndim == 2
        known = plain and weight.dtype in (torch.bfloat16, torch.float32)
        # The head is a class of its own, also where it has the embedding's weight.
        if not known or type(layer) is _embedding.VocabParallelEmbedding:
            own(layer, remove_weight)
            return
        layer.register_buffer("twell_weight", ops.pack_weight(weight.detach()), persistent=False)
        layer.cpu_linear = lambda x, weight, bias: ops.linear(x, layer.twell_weight, bias)
        if remove_weight:
            layer.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    _utils.dispatch_cpu_unquantized_gemm = pack
