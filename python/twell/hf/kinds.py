"""What feed-forward layers are called in models that exist, what form they have and where their weights
lie: one table, of which sparsify, report, the Trainer's callbacks and the plug-in for vLLM read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from twell import _codes, _norm
from twell._children import is_turned, linear_of, misfit, size_of
from twell.modules import SparseFfn

# The layer that is made of a module's parts, in that module; experts are called by their numbers.
CHILD = "sparse_ffn"
# Where a module says its activation: a child, or a function.
_ACTS = (
    "act_fn", "activation_fn", "act", "activation", "activation_function", "intermediate_act_fn", "relu"
)  # fmt: skip


class Stays(ValueError):
    """Why a layer stays dense where other kinds of layers of the model become sparse."""


class InVllm(NamedTuple):
    """A class of vLLM whose parts have a kind's names."""

    models: str
    """The module of vLLM's models that has the class."""
    name: str
    refuses: tuple[str, ...] = ()
    """What its constructor does not take for ``hidden_act``, of that which has zeros."""


@dataclass(frozen=True)
class Kind:
    """Names of a layer's parts. They only find a layer: what it computes is tried."""

    linears: tuple[str, ...]
    """gate, up and down; without a gate up and down. With a dot, of a part of the module."""
    acts: tuple[str, ...] = _ACTS
    """Of which a module has one; none where its code applies the activation itself."""
    fused: bool = False
    """Gate and up are the two halves of one linear layer."""
    stacked: bool = False
    """The weights of all experts are one parameter each, [experts, rows, columns]."""
    shared: bool = False
    """Attention has parts of these names as well: only those that widen and narrow again are meant."""
    vllm: tuple[InVllm, ...] = ()

    @staticmethod
    def of(names: Mapping[str, str]) -> Kind:
        keys = ("gate", "up", "down", "act")
        if not {"up", "down"} <= set(names) <= set(keys):
            raise ValueError(
                f"mlp: expected names for {', '.join(keys)}, or for these without gate or act, "
                f"got {', '.join(names) or 'none'}"
            )
        acts = (names["act"],) if "act" in names else ()
        return Kind(tuple(names[k] for k in keys[:3] if k in names), acts)

    @property
    def gated(self) -> bool:
        return self.fused or len(self.linears) == 3

    @property
    def in_code(self) -> bool:
        """Whether the module has no activation to look at: its code calls torch.relu."""
        return not self.acts

    @property
    def refusal(self) -> type[ValueError]:
        """Of a module that computes something else: names alone may well be those of something else."""
        return Stays if self.in_code or self.shared else ValueError

    @property
    def split(self) -> bool:
        """Whether the linear layers stand in two parts of the module, of which no layer is made."""
        return any("." in name for name in self.linears)

    @property
    def has_linears(self) -> bool:
        """Whether the linear layers are children of the module."""
        return not self.stacked and not self.split

    def __str__(self) -> str:
        return ", ".join(self.linears) + (f" and {self.acts[0]}" if len(self.acts) == 1 else "")

    def act(self, module: nn.Module) -> str:
        return next((name for name in self.acts if _is_said(module, name)), "")

    def act_of(self, module: nn.Module) -> Any:
        """The module or function that computes it; None where the code does."""
        return _at(module, self.act(module)) if self.acts else None

    def weights(self, module: nn.Module) -> list[Any]:
        """The linear layers, or the parameters of all experts."""
        return [_at(module, name) for name in self.linears]

    def stands_alone(self, module: nn.Module) -> bool:
        """Whether the module is the layer; otherwise the layer stands among other parts of it."""
        return self.has_linears and not self.shared and (self.gated or not self.others(module))

    def has_parts(self, module: nn.Module) -> bool:
        """In code that applies the activation itself, the linear layers are all that there is, or two without
        a gate among other parts, which do not narrow first."""
        weights = self.weights(module)
        if self.stacked:
            there = all(isinstance(w, nn.Parameter) and w.dim() == 3 for w in weights)
        else:
            there = all(isinstance(w, nn.Linear if self.split else nn.Module) for w in weights)
        if not there or (self.shared and not self._is_among_others(module, weights)):
            return False
        if self.in_code:
            module = getattr(module, "_orig_mod", module)  # of a compiled one
            has_code = type(module).forward is not nn.Module.forward
            return has_code and (not self.others(module) or self._is_among_others(module, weights))
        return any(_is_said(module, name) for name in self.acts)

    def _is_among_others(self, module: nn.Module, weights: list[Any]) -> bool:
        if self.gated or not all(map(_is_linear, weights)) or misfit(weights):
            return False
        neurons, width = size = size_of(weights[0])
        beside = [m for m in module.children() if m is not weights[0] and _is_linear(m)]
        narrows = neurons <= width if self.shared else neurons < width
        return not narrows and not any(size_of(m) == size for m in beside)  # none is its gate

    def norm(self, module: nn.Module) -> str | None:
        """The child that is an RMSNorm, if there is one; whatever it is called."""
        names = {*self.linears, self.act(module)}
        found = (n for n, m in module.named_children() if n not in names and _norm.is_rms_norm(m))
        return next(found, None)

    def others(self, module: nn.Module) -> list[str]:
        """The children that a layer in place of the module would lack."""
        names = {*self.linears, self.act(module), self.norm(module)}
        return [n for n, m in module.named_children() if n not in names and not _may_go(m)]

    def parts_of(self, module: nn.Module, name: str) -> dict[str, nn.Module]:
        """The linear layers, by name. Raises ValueError where one of them is none, and Stays where they do
        not widen and narrow again."""
        parts = {n: _linear_of(f"{name}.{n}", getattr(module, n)) for n in self.linears}
        if wrong := misfit(list(parts.values()), self.fused):
            raise Stays(f"{name}: {wrong}")
        return parts


_FATRELU = ("relu", "fatrelu")
# With a gate, without, experts, and what is found to say why it stays dense.
_TABLE = (
    Kind(("gate_proj", "up_proj", "down_proj")),  # Llama, Mistral, Qwen, BitNet, ProSparse, TurboSparse
    Kind(("wi_0", "wi_1", "wo")),  # T5 with a gate
    Kind(("w1", "w3", "w2")),  # Meta's own Llama
    Kind(("gate", "up", "down")),  # the experts of SmallThinker
    Kind(
        ("gate_up_proj", "down_proj"),  # Phi-3, GLM
        fused=True,
        vllm=(
            InVllm("llama", "LlamaMLP", _FATRELU),  # Mistral's too
            InVllm("qwen2", "Qwen2MLP", _FATRELU),  # Qwen3's too
            InVllm("minicpm", "MiniCPMMLP", ("relu",)),
        ),
    ),
    Kind(
        ("up_proj", "down_proj"),  # Arcee, Nemotron, Nemotron-H, Jais 2
        vllm=(InVllm("nemotron", "NemotronMLP"), InVllm("nemotron_h", "NemotronHMLP")),
    ),
    Kind(("gate_proj", "down_proj"), acts=()),  # TimesFM, whose code has a norm before and the residual
    Kind(
        ("fc1", "fc2"),  # OPT, M2M100, NLLB, FSMT, BART, NanoChat, DETR, Canary
        vllm=(InVllm("opt", "OPTDecoderLayer"),),
    ),
    Kind(("fc_1", "fc_2")),  # tutorials on translation, and what was made of them
    Kind(("wi", "wo")),  # T5, LongT5, Switch
    Kind(("linear1", "linear2")),  # torch.nn.Transformer*Layer, Parakeet
    Kind(("lin1", "lin2")),  # SAM, DistilBERT
    Kind(("c_fc", "c_proj")),  # GPT-2, Decision Transformer
    Kind(("dense_h_to_4h", "dense_4h_to_h")),  # Persimmon, GPT-NeoX
    Kind(("intermediate_dense", "output_dense")),  # wav2vec 2, Seamless
    Kind(("w_1", "w_2")),  # FunASR, ESPnet
    Kind(("fc_in", "fc_out")),  # GPT-J, CodeGen
    Kind(("layer_1", "layer_2")),  # XLNet
    Kind(("key", "value"), shared=True),  # the channel mix of RWKV-4 and 7, with an activation or in code
    Kind(("gate_up_proj", "down_proj"), ("act_fn",), fused=True, stacked=True),  # Mixtral
    Kind(("up_proj", "down_proj"), ("act_fn",), stacked=True),  # Nemotron-H
    Kind(("intermediate.dense", "output.dense"), ("intermediate.intermediate_act_fn",)),  # BERT
)
KINDS = (*_TABLE, *(replace(kind, acts=(), vllm=()) for kind in _TABLE if kind.has_linears))


def kind_of(module: nn.Module, kinds: tuple[Kind, ...] = KINDS) -> Kind | None:
    if isinstance(module, SparseFfn) or is_owner(module):
        return None
    if type(module) is nn.Sequential and kinds is KINDS:
        return _of_sequence(module)
    # The code of what is scripted cannot be tried.
    scripted = kinds is KINDS and isinstance(module, torch.jit.ScriptModule)
    return next((k for k in kinds if not (scripted and k.in_code) and k.has_parts(module)), None)


def kinds_in(model: nn.Module) -> dict[str, tuple[Any, Kind]]:
    """By name, the modules whose parts may be those of sparse layers."""
    found = {name: (module, kind_of(module)) for name, module in model.named_modules()}
    return {name: (m, kind) for name, (m, kind) in found.items() if kind is not None and not kind.split}


def described(kinds: tuple[Kind, ...]) -> str:
    """The names that a module of its own may have."""
    return "; or ".join(str(k) for k in kinds if k.has_linears and not (k.in_code and kinds is KINDS))


def is_owner(module: nn.Module) -> bool:
    """Whether sparse layers are made of the module's parts."""
    return any(isinstance(getattr(module, name, None), SparseFfn) for name in (CHILD, "0"))


def owners_of(layer: str) -> Iterator[str]:
    """Names of modules that may have the activation of a layer: itself, the one among whose parts it
    stands, or the one that has it as an expert."""
    yield layer
    above, _, last = layer.rpartition(".")
    if last == CHILD or last.isdigit():
        yield above


def _at(module: Any, name: str) -> Any:
    """None where there is nothing."""
    for each in name.split("."):
        module = getattr(module, each, None)
    return module


def _is_said(module: nn.Module, name: str) -> bool:
    """Whether it is a child or a function, and no method, which might do anything. Functions of autograd are
    methods of their class."""
    value = _at(module, name)
    if not inspect.ismethod(value):
        return callable(value)
    owner = value.__self__
    return value.__name__ == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def _of_sequence(module: nn.Sequential) -> Kind | None:
    """Of a linear layer that widens, an activation and one that narrows again, with or without
    dropout."""
    parts = [(n, m) for n, m in module.named_children() if not _may_go(m)]
    if len(parts) != 3:
        return None
    (first, up), (act, _), (last, down) = parts
    if not all(isinstance(m, nn.Linear) for m in (up, down)) or isinstance(parts[1][1], nn.Linear):
        return None
    sizes: Any = (up.in_features, up.out_features)
    if sizes != (down.out_features, down.in_features) or sizes[0] >= sizes[1]:
        return None
    return Kind((first, last), (act,))


def _may_go(module: nn.Module) -> bool:
    """What a layer has no child for: dropout is a number of it."""
    return isinstance(module, (nn.Identity, nn.Dropout))


def _is_linear(module: nn.Module) -> bool:
    return is_turned(module) or (hasattr(module, "in_features") and hasattr(module, "out_features"))


def _linear_of(name: str, module: nn.Module) -> nn.Module:
    if not _is_linear(module):
        kind = type(module).__name__
        message = f"{name}: expected a linear layer, got {kind}"
        raise (Stays if "Conv" in kind else ValueError)(message)
    if type(module) is nn.Linear and _codes.was_quantised(module):
        return linear_of(module.weight, module.bias)
    return module
