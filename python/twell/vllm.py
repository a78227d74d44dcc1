"""vLLM's plug-in: the MLPs of Llama and Qwen2 with ReLU, which vLLM refuses, run sparsely in it.

vLLM finds an installed twell, in each of its processes, by the entry point ``twell`` of the group
``vllm.general_plugins``; nothing need be called. ``VLLM_PLUGINS`` names the plug-ins it may take.
``TWELL_VLLM=dense`` has the same models run on vLLM's own layers, to compare.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import torch
from torch import Tensor, nn

from twell.hf.models import require
from twell.modules import GatedFfn

_config: Any = require("vllm.config", "twell.vllm")
_distributed: Any = require("vllm.distributed", "twell.vllm")
_activation: Any = require("vllm.model_executor.layers.activation", "twell.vllm")
_linear: Any = require("vllm.model_executor.layers.linear", "twell.vllm")
_quantization: Any = require("vllm.model_executor.layers.quantization.base_config", "twell.vllm")
_llama: Any = require("vllm.model_executor.models.llama", "twell.vllm")
_qwen2: Any = require("vllm.model_executor.models.qwen2", "twell.vllm")


class _Packing(_quantization.QuantizeMethodBase):
    """Not a quantization: vLLM calls a module's ``quant_method`` once its weights are there, before
    the linear layers within the module get theirs into a layout of their own."""

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        pass

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> Tensor:
        raise NotImplementedError("twell.vllm: the MLP has a forward of its own")

    def process_weights_after_loading(self, layer: _ReluMLP) -> None:
        layer.pack()


class _ReluMLP(nn.Module):
    """What an MLP of vLLM with ``gate_up_proj``, ``down_proj`` and ``act_fn`` becomes.

    Each rank has a slice of the neurons, and a sum over the ranks makes the output whole. What this
    plug-in does not take (biases, quantized weights, adapters of LoRA, float16, a GPU) is computed
    densely, by vLLM's own layers.
    """

    sparse: GatedFfn | None
    reduced: bool
    gate_up_proj: Any  # vLLM's
    down_proj: Any
    act_fn: Any

    def become_relu(self, sparse: bool) -> None:
        self.act_fn = _activation.FatreluAndMul()  # its threshold is 0
        self.sparse = None
        # Adapters look for the children.
        if sparse and _config.get_current_vllm_config().lora_config is None:
            self.quant_method = _Packing()

    def pack(self) -> None:
        into, down = self.gate_up_proj, self.down_proj
        if not all(_is_plain(linear) for linear in (into, down)):
            return
        gate, up = into.weight.data.chunk(2)
        # A copy of up, as the view would keep all of the weight.
        layer = GatedFfn.from_dense(gate, up.clone(), down.weight.data, activation="relu")
        self.sparse = layer.requires_grad_(False).freeze()
        self.reduced = down.reduce_results and down.tp_size > 1
        del self.gate_up_proj, self.down_proj

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] to y of the same shape."""
        if self.sparse is None:
            return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]
        y = self.sparse(x)
        return _distributed.tensor_model_parallel_all_reduce(y) if self.reduced else y


def _is_plain(linear: Any) -> bool:
    """Whether the linear layer has nothing but a weight that the operators take."""
    return (
        type(linear.quant_method) is _linear.UnquantizedLinearMethod
        and linear.bias is None
        and linear.weight.device.type == "cpu"
        and linear.weight.dtype in (torch.bfloat16, torch.float32)
    )


def _accept_relu(mlp: type[nn.Module], sparse: bool) -> None:
    """Has the constructor of the class take ``hidden_act="relu"``; with another one, and in classes
    derived from it, it does what it did."""
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
        made.become_relu(sparse)

    mlp.__init__ = construct  # type: ignore[method-assign]


def register() -> None:
    """Has vLLM take ReLU in the MLPs of Llama and Qwen2, and of the models that use their classes.
    Raises ValueError where TWELL_VLLM is neither ``sparse`` nor ``dense``."""
    mode = os.environ.get("TWELL_VLLM", "sparse")
    if mode not in ("sparse", "dense"):
        raise ValueError(f'TWELL_VLLM: expected sparse or dense, got "{mode}"')
    for mlp in (_llama.LlamaMLP, _qwen2.Qwen2MLP):
        _accept_relu(mlp, mode == "sparse")
