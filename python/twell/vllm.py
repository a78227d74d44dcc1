"""A plug-in for vLLM: it runs the MLPs of Llama and Qwen2 with ReLU, which vLLM refuses, sparsely.

vLLM finds an installed twell, in each of its processes, by the entry point ``twell`` of the group
``vllm.general_plugins``. You call nothing. ``VLLM_PLUGINS`` names the plug-ins that vLLM may load.
``TWELL_VLLM=dense`` runs the same models on vLLM's own layers, to compare.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import torch
from torch import Tensor, nn

from twell._frozen import Findings
from twell.hf.models import require
from twell.modules import GatedFfn
from twell.prepared import findings_of

_config: Any = require("vllm.config", "twell.vllm")
_distributed: Any = require("vllm.distributed", "twell.vllm")
_activation: Any = require("vllm.model_executor.layers.activation", "twell.vllm")
_linear: Any = require("vllm.model_executor.layers.linear", "twell.vllm")
_quantization: Any = require("vllm.model_executor.layers.quantization.base_config", "twell.vllm")
_llama: Any = require("vllm.model_executor.models.llama", "twell.vllm")
_qwen2: Any = require("vllm.model_executor.models.qwen2", "twell.vllm")


class _Packing(_quantization.QuantizeMethodBase):
    """This is no quantization. vLLM calls a module's ``quant_method`` once the weights are loaded,
    and before the linear layers within the module change the layout of theirs."""

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        pass

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> Tensor:
        raise NotImplementedError("twell.vllm: the MLP has a forward of its own")

    def process_weights_after_loading(self, layer: _ReluMLP) -> None:
        layer.pack()


class _ReluMLP(nn.Module):
    """What an MLP of vLLM with ``gate_up_proj``, ``down_proj`` and ``act_fn`` becomes.

    Each rank has a slice of the neurons, and the output is the sum over the ranks. vLLM's own
    layers compute densely what this plug-in does not take: biases, quantized weights, adapters of
    LoRA, float16, a GPU.
    """

    sparse: GatedFfn | None
    findings: Findings | None  # where `twell prepare` left them beside the model
    reduced: bool
    gate_up_proj: Any  # vLLM's
    down_proj: Any
    act_fn: Any

    def become_relu(self, sparse: bool, name: str) -> None:
        """``name`` is the module's in the checkpoint."""
        self.act_fn = _activation.FatreluAndMul()  # its threshold is 0
        self.sparse = None
        config = _config.get_current_vllm_config()
        # LoRA's adapters need the children, which packing removes.
        if sparse and config.lora_config is None:
            self.quant_method = _Packing()
            self.findings = _findings_of(config.model_config.model).get(name)

    def pack(self) -> None:
        into, down = self.gate_up_proj, self.down_proj
        if not all(_is_plain(linear) for linear in (into, down)):
            return
        gate, up = into.weight.data.chunk(2)
        # up is copied, since a view would keep the whole weight in memory.
        layer = GatedFfn.from_dense(gate, up.clone(), down.weight.data, activation="relu")
        self.sparse = layer.requires_grad_(False).freeze(findings=self._own_findings())
        self.reduced = down.reduce_results and down.tp_size > 1
        del self.gate_up_proj, self.down_proj

    def _own_findings(self) -> Findings | None:
        """Those of this rank's neurons."""
        if self.findings is None:
            return None
        ranks, rank = self.down_proj.tp_size, self.down_proj.tp_rank
        return self.findings._replace(fired=self.findings.fired.chunk(ranks)[rank])

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] to y of the same shape."""
        if self.sparse is None:
            return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]
        y = self.sparse(x)
        return _distributed.tensor_model_parallel_all_reduce(y) if self.reduced else y


_findings_of = functools.cache(findings_of)  # the file has all layers


def _is_plain(linear: Any) -> bool:
    """Whether the linear layer has only a weight, and one that the operators take."""
    return (
        type(linear.quant_method) is _linear.UnquantizedLinearMethod
        and linear.bias is None
        and linear.weight.device.type == "cpu"
        and linear.weight.dtype in (torch.bfloat16, torch.float32)
    )


def _accept_relu(mlp: type[nn.Module], sparse: bool) -> None:
    """Makes the constructor of the class accept ``hidden_act="relu"``. With another activation, and
    in classes derived from it, the constructor does what it did before."""
    constructor = mlp.__init__
    if hasattr(constructor, "__wrapped__"):
        return  # vLLM may call plug-ins more than once
    signature = inspect.signature(constructor)
    relu = type(f"Relu{mlp.__name__}", (_ReluMLP, mlp), {})

    @functools.wraps(constructor)
    def construct(self: Any, *arguments: Any, **options: Any) -> None:
        call = signature.bind(self, *arguments, **options)
        if type(self) is not mlp or call.arguments["hidden_act"] != "relu":
            constructor(self, *arguments, **options)
            return
        call.arguments["hidden_act"] = "silu"  # the one it takes
        constructor(*call.args, **call.kwargs)
        self.__class__ = relu
        made: Any = self
        made.become_relu(sparse, call.arguments.get("prefix", ""))

    mlp.__init__ = construct  # type: ignore[method-assign]


def register() -> None:
    """Makes vLLM accept ReLU in the MLPs of Llama and Qwen2, and of the models that use their
    classes. Raises ValueError if TWELL_VLLM is neither ``sparse`` nor ``dense``."""
    mode = os.environ.get("TWELL_VLLM", "sparse")
    if mode not in ("sparse", "dense"):
        raise ValueError(f'TWELL_VLLM: expected sparse or dense, got "{mode}"')
    for mlp in (_llama.LlamaMLP, _qwen2.Qwen2MLP):
        _accept_relu(mlp, mode == "sparse")
