"""Loads a quantised model into vLLM and saves its linear layers' numbers, for test_vllm_quantised.py:
python vllm_weights.py MODEL OUT.

vLLM has no kernel for weights of 8 bits on CPUs. What is looked at here is what it reads: a kernel
that dequantises takes the place of its own.
"""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file
from torch import nn


def use_plain_kernel() -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from vllm.model_executor.kernels import linear
    from vllm.platforms import current_platform

    class Plain(linear.MPLinearKernel):
        @classmethod
        def get_min_capability(cls) -> int:
            return -1

        @classmethod
        def can_implement(cls, config: object) -> tuple[bool, str | None]:
            return True, None

        def process_weights_after_loading(self, layer: nn.Module) -> None:
            columns, rows = self.config.partition_weight_shape
            packed, scale, _ = self._get_weight_params(layer)
            bits = self.config.weight_type.size_bits
            codes = unpack_from_int32(packed.data, bits, torch.Size((rows, columns)))
            scales = scale.data.repeat_interleave(columns // scale.shape[1], 1)
            layer.plain = codes.to(scales.dtype) * scales

        def apply_weights(
            self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            return nn.functional.linear(x, layer.plain, bias)

    linear._POSSIBLE_KERNELS[current_platform._enum].insert(0, Plain)


def numbers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: m.plain for name, m in model.named_modules() if hasattr(m, "plain")}


if __name__ == "__main__":
    use_plain_kernel()
    import vllm

    llm = vllm.LLM(sys.argv[1], dtype="bfloat16", enforce_eager=True, max_model_len=64,
                   max_num_seqs=1, skip_tokenizer_init=True)  # fmt: skip
    sampling = vllm.SamplingParams(temperature=0, max_tokens=4, detokenize=False)
    done = llm.generate([{"prompt_token_ids": [1, 2, 3]}], sampling)
    assert len(done[0].outputs[0].token_ids) == 4
    save_file({k: v.contiguous() for k, v in llm.apply_model(numbers)[0].items()}, sys.argv[2])
