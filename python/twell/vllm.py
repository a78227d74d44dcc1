"""A plug-in for vLLM: feed-forward layers whose activation has zeros run sparsely.

It takes the layers of Llama and Qwen2 with ReLU and FATReLU, which vLLM refuses, of MiniCPM, of
Nemotron and Nemotron-H with squared ReLU, of OPT, and of models that use the same classes (Mistral,
Qwen3).

vLLM finds an installed twell, in each of its processes, by the entry point ``twell`` of the group
``vllm.general_plugins``. You call nothing. ``VLLM_PLUGINS`` names the plug-ins that vLLM may load.
``TWELL_VLLM`` says how layers run: ``auto``, the default, takes the path that is expected to be faster
for each call; ``sparse`` is always sparse; ``dense`` runs the same models on vLLM's own layers, to compare.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from typing import Any

import torch
from torch import Tensor, nn

from twell import _codes, _vllm_linear
from twell._block import check_path
from twell._children import linear_of
from twell._weights import Findings
from twell.hf.kinds import KINDS, InVllm, Kind
from twell.hf.models import require
from twell.modules import Ffn, GatedFfn, SparseFfn
from twell.prepared import findings_of

_config: Any = require("vllm.config", "twell.vllm")
_distributed: Any = require("vllm.distributed", "twell.vllm")
_logger: Any = require("vllm.logger", "twell.vllm").init_logger("vllm.twell")
_activation: Any = require("vllm.model_executor.layers.activation", "twell.vllm")
_linear: Any = require("vllm.model_executor.layers.linear", "twell.vllm")
_quantization: Any = require("vllm.model_executor.layers.quantization.base_config", "twell.vllm")


class _Packing(_quantization.QuantizeMethodBase):
    """This is no quantization. vLLM calls a module's ``quant_method`` once the weights are loaded,
    and before the linear layers within the module change the layout of theirs.

    Each rank has a slice of the neurons, and the output is the sum over the ranks. vLLM's own
    layers compute densely what is not taken: quantized weights, adapters of LoRA, float16, a GPU.
    """

    def __init__(
        self, kind: Kind, activation: tuple[str, float], findings: Findings | None
    ) -> None:
        self.kind = kind
        self.activation = activation
        self.findings = findings  # where `twell prepare` left them beside the model

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        pass

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> Tensor:
        raise NotImplementedError("twell.vllm: the layer's code calls its parts")

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        kind = self.kind
        into, down = kind.weights(layer)
        activation = self.activation[0]
        if not _is_plain(into) or not _is_plain(down) or into.input_size != down.output_size:
            _logger.info_once(
                "twell: layers with %s stay dense: only bf16, f32 and codes run sparsely, on a CPU", activation
            )
            return
        how = "as twell prepare found" if self.findings is not None else "not prepared (twell prepare --help)"
        where = " where that is expected to be faster" if _mode() == "auto" else ""
        _logger.info_once("twell: layers with %s run sparsely%s, %s", activation, where, how)
        sparse = self._sparse(into, down).requires_grad_(False)
        sparse.freeze(findings=self._own_findings(down), path=_mode())
        first, last = kind.linears
        setattr(layer, first, _Whole(sparse, down.reduce_results and down.tp_size > 1))
        setattr(layer, kind.act(layer), nn.Identity())
        setattr(layer, last, _Passed())

    def _sparse(self, into: Any, down: Any) -> SparseFfn:
        activation, threshold = self.activation
        options: dict[str, Any] = {"activation": activation, "threshold": threshold}
        layer, count = (GatedFfn, 2) if self.kind.gated else (Ffn, 1)
        # That of down once, in the sum over the ranks.
        linears = [
            *_parts(into, count, into.bias),
            *_parts(down, 1, down.bias if down.tp_rank == 0 else None),
        ]
        return layer._of_linears(linears, **options)

    def _own_findings(self, down: Any) -> Findings | None:
        """Those of this rank's neurons."""
        if self.findings is None:
            return None
        fired = self.findings.fired.chunk(down.tp_size)[down.tp_rank]
        return self.findings._replace(fired=fired)


class _Whole(nn.Module):
    """Computes the layer where its first linear layer is called: x [..., D] to y of this shape."""

    def __init__(self, sparse: SparseFfn, reduced: bool) -> None:
        super().__init__()
        self.sparse = sparse
        self.reduced = reduced

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        y = self.sparse(x)
        if self.reduced:
            y = _distributed.tensor_model_parallel_all_reduce(y)
        return y, None


class _Passed(nn.Module):
    """The last linear layer, which has nothing left to do."""

    def forward(self, y: Tensor) -> tuple[Tensor, None]:
        return y, None


_findings_of = functools.cache(findings_of)  # the file has all layers


def _parts(linear: Any, count: int, bias: Tensor | None) -> list[nn.Linear]:
    """A linear layer of vLLM as so many of PyTorch's, one above the other."""
    biases = [None] * count if bias is None else bias.chunk(count)
    codes = _vllm_linear.codes_of(linear)
    if codes is None:
        # Copied, since a view would keep the whole weight in memory.
        weights = [w.clone() if i else w for i, w in enumerate(linear.weight.data.chunk(count))]
        return [linear_of(w, b) for w, b in zip(weights, biases)]
    parts = zip(codes.codes.chunk(count), codes.scales.chunk(count))
    return [_codes.linear_of(_codes.Codes(c, s, codes.dtype), b) for (c, s), b in zip(parts, biases)]


def _is_plain(linear: Any) -> bool:
    """Whether the linear layer multiplies by its weight alone, which the operators take."""
    if linear.skip_bias_add or getattr(linear, "gather_output", False):
        return False
    if not getattr(linear, "input_is_parallel", True):
        return False
    if type(linear.quant_method) is not _linear.UnquantizedLinearMethod:
        return _vllm_linear.has_codes(linear)
    weight = linear.weight
    return weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32)


def _zeros_of(act: nn.Module) -> tuple[str, float] | None:
    """Activation and threshold; None where it has no zeros."""
    if isinstance(act, _activation.FatreluAndMul):
        return ("fat_relu", act.threshold) if act.threshold > 0 else ("relu", 0.0)
    if isinstance(act, _activation.ReLUSquaredActivation):
        return ("relu_squared", 0.0)
    return ("relu", 0.0) if type(act) is nn.ReLU else None


def _threshold_of(config: Any, activation: str) -> float:
    if activation == "relu":
        return 0.0
    threshold = getattr(config, "hidden_act_param", None)
    if not isinstance(threshold, (int, float)) or not threshold >= 0:
        raise ValueError(
            f"config.json: hidden_act_param: expected the threshold of {activation}, got {threshold}"
        )
    return float(threshold)


def _owner_of(known: InVllm) -> type[nn.Module] | None:
    """None in a vLLM that has no such class, or cannot import it here."""
    try:
        models = importlib.import_module(f"vllm.model_executor.models.{known.models}")
    except ImportError:
        return None
    owner: type[nn.Module] | None = getattr(models, known.name, None)
    return owner


def _take(kind: Kind, refuses: tuple[str, ...], owner: type[nn.Module]) -> None:
    """Makes the constructor of the class leave a note for when the weights are loaded, and accept a
    ``hidden_act`` that it refuses: relu, and fatrelu with the configuration's hidden_act_param. With
    another activation, and in classes derived from it, the constructor does what it did before."""
    constructor = owner.__init__
    if hasattr(constructor, "__wrapped__"):
        return  # vLLM may call plug-ins more than once
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def construct(self: Any, *arguments: Any, **options: Any) -> None:
        call = signature.bind(self, *arguments, **options)
        own = type(self) is owner
        config = _config.get_current_vllm_config()
        refused = call.arguments.get("hidden_act") if own else None
        if refused in refuses:
            call.arguments["hidden_act"] = "silu"  # one that it takes
        constructor(*call.args, **call.kwargs)
        if refused in refuses:
            threshold = _threshold_of(config.model_config.hf_config, refused)
            setattr(self, kind.act(self), _activation.FatreluAndMul(threshold))
        activation = _zeros_of(kind.act_of(self)) if own else None
        # LoRA's adapters need the linear layers.
        if activation is None or _mode() == "dense" or config.lora_config is not None:
            return
        name = call.arguments.get("prefix", "")
        findings = _findings_of(config.model_config.model).get(name)
        self.quant_method = _Packing(kind, activation, findings)
        _vllm_linear.take_unquantized()  # in all of the process, which has one model

    owner.__init__ = construct  # type: ignore[method-assign]


def _mode() -> str:
    mode = os.environ.get("TWELL_VLLM", "auto")
    check_path("TWELL_VLLM", mode)
    return mode


def register() -> None:
    """Makes vLLM run the classes of twell.hf.kinds sparsely, and accept ReLU where it does not; and multiply
    codes of 4 and 8 bits as they are stored. Raises ValueError if TWELL_VLLM is not ``auto``, ``sparse``
    or ``dense``."""
    if _mode() != "dense":
        _vllm_linear.register()
    for kind in KINDS:
        for known in kind.vllm:
            if (owner := _owner_of(known)) is not None:
                _take(kind, known.refuses, owner)
