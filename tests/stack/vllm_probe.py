"""Runs a model in vLLM, for test_vllm.py; its functions are called in vLLM's own processes too.

python vllm_probe.py MODEL RANKS eager|compiled OUT writes the texts, the log-probabilities of all tokens
at each step, and what the MLPs are, as JSON: vLLM's processes write lines of their own to the standard
output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch import nn

NEW_TOKENS = 24
PROMPTS = [
    [(7 * i + j * j * (i + 3)) % 299 + 1 for j in range(n)] for i, n in enumerate((5, 11, 64))
]


def _sparse_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ in ("GatedFfn", "Ffn")]


def watch(model: nn.Module) -> None:
    """Counts the calls of sparse layers; compiled code does not call them."""
    for layer in _sparse_layers(model):
        layer.calls = 0

        def count(layer: nn.Module, *_) -> None:
            layer.calls += 1

        layer.register_forward_hook(count)


def describe(model: nn.Module) -> dict:
    layers = _sparse_layers(model)
    names = ("gate_up_proj", "up_proj", "fc1", "down_proj", "fc2")
    linears = [m for n, m in model.named_modules() if n.rsplit(".", 1)[-1] in names]
    kernels = [m.scheme.kernel for m in model.modules() if hasattr(getattr(m, "scheme", None), "kernel")]
    packed = [m for m in model.modules() if hasattr(m, "twell_weight")]
    coded = [m.twell_weight for m in packed]
    coded += [w for layer in layers for w in (layer.gate, layer.up, layer.down) if w is not None]
    return {
        "kernels": [type(kernel).__name__ for kernel in kernels],
        "weights": sorted({str(weight.dtype) for weight in coded}),
        "packed": [type(m).__name__ for m in packed],
        "linears": sorted({type(linear).__name__ for linear in linears}),
        "frozen": [layer.frozen for layer in layers],
        "neurons": [layer.neurons for layer in layers],
        "calls": [layer.calls for layer in layers],
    }


def main(model: str, ranks: str, mode: str, out: str) -> None:
    import vllm
    import vllm_probe  # functions of __main__ have another name in other processes

    llm = vllm.LLM(
        model, dtype="float32", tensor_parallel_size=int(ranks), enforce_eager=mode == "eager",
        max_model_len=128, max_num_seqs=8, kv_cache_memory_bytes=1 << 27, disable_log_stats=True,
        max_logprobs=-1, trust_remote_code=True,  # a configuration that transformers lacks
    )  # fmt: skip
    llm.apply_model(vllm_probe.watch)
    results = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in PROMPTS],
        vllm.SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=-1),
        use_tqdm=False,
    )
    outputs = [result.outputs[0] for result in results]
    found = {
        "texts": [list(output.token_ids) for output in outputs],
        "logprobs": [
            [[step[token].logprob for token in range(len(step))] for step in output.logprobs]
            for output in outputs
        ],
        "ranks": llm.apply_model(vllm_probe.describe),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
