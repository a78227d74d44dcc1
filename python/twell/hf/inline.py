"""Feed-forward layers whose parts stand among others in a module: fc1, activation and fc2 of OPT's
decoder layers, linear1 and linear2 of PyTorch's.

The code of the module stays. It calls stand-ins, of which the first computes the whole layer and the
others pass on what they get. Before, the code is followed once with recorders in place of the module's
parts, which shows that nothing else happens between them.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from twell import _attached, dense
from twell.autograd import Trained
from twell.hf.activations import activation_of
from twell.hf.kinds import Kind, is_turned
from twell.hf.layout import Inside
from twell.hf.mlps import check_sizes, take_mode, with_children
from twell.modules import Ffn, SparseFfn

CHILD = "sparse_ffn"
_MARK = "_twell_output_of"


def from_owner(
    owner: nn.Module,
    kind: Kind,
    *,
    activation: str | None,
    threshold: float,
    name: str,
    config: object = None,
) -> SparseFfn:
    """The layer that a module's linear layers make up. Raises ValueError, with the module's ``name``, for
    what :func:`twell.from_mlp` refuses, and where the code does more between them."""
    act = kind.act(owner)
    linears = kind.linears_of(owner, name)
    check_sizes(name, linears)
    if any(is_turned(getattr(owner, n)) for n in kind.linears):
        raise ValueError(f"{name}: expected nn.Linear among other layers, got Conv1D")
    if activation is None:
        activation, threshold = activation_of(name, getattr(owner, act), config)
    if hasattr(owner, CHILD):
        raise ValueError(f"{name}: has a {CHILD} already")
    if (child := owner._modules.get(act)) is not None and (hangs := _attached.what(child)):
        raise ValueError(
            f"{name}.{act} has {hangs}, which the layer would lose; remove that first"
        )
    if "forward" in owner.__dict__ and not _attached.moves_inputs_alone(owner):
        raise ValueError(
            f"{name} has {_attached.what(owner, own=(*owner._parameters, *owner._buffers))}, "
            "which cannot be followed; remove that first"
        )
    dropout = _follow(name, owner, kind, act)
    try:
        layer = Ffn._of_linears(
            linears,
            activation=activation,
            threshold=threshold,
            hidden_dropout=dropout,
            names=kind.names,
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    take_mode(layer, owner)
    return layer


# --- Following the code ---------------------------------------------------------------------------


class _Recorder(fx.proxy.GraphAppendingTracer):
    def __init__(self, answer: bool) -> None:
        super().__init__(fx.Graph())
        self.answer = answer
        self.parts: dict[Callable[..., Any], str] = {}

    def to_bool(self, obj: fx.Proxy) -> bool:
        return self.answer

    def create_arg(self, a: Any) -> Any:
        try:
            return super().create_arg(a)
        except NotImplementedError:
            return type(a).__name__  # parameters and other objects, as they are in the graph

    def part(self, name: str) -> Callable[..., Any]:
        """What stands for a child or function."""

        def target(*_: Any) -> None: ...

        target.__name__ = "".join(c if c.isalnum() else "_" for c in f"part_{name}")
        self.parts[target] = name
        return lambda *arguments, **options: self.create_proxy(
            "call_function", target, arguments, options
        )


class _Part(nn.Module):
    def __init__(self, call: Callable[..., Any], module: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "_call", call)
        object.__setattr__(self, "_module", module)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_module"), name)


def _follow(name: str, owner: nn.Module, kind: Kind, act: str) -> float:
    """The dropout between activation and down. Raises ValueError unless up goes to the activation, that
    to down through nothing but dropout, and each is called once."""
    found: list[float] = []
    why = ""
    # Answers to questions that depend on numbers; with what may be left out, and without.
    for answer, every in itertools.product((False, True), (False, True)):
        recorder = _Recorder(answer)
        try:
            _record(recorder, owner, act, every)
        except Exception as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            continue
        found.append(_dropout_between(name, owner, kind, act, recorder))
    if not found or len(set(found)) > 1:
        raise ValueError(f"{name}: the code of {type(owner).__name__} could not be followed: {why}")
    return found[0]


def _record(recorder: _Recorder, owner: nn.Module, act: str, every: bool) -> None:
    parts = {n: _Part(recorder.part(n), m) for n, m in owner.named_children()}
    twin = with_children(owner, parts)
    twin.training = True
    twin.__dict__.pop("forward", None)
    if act not in parts:
        twin.__dict__[act] = recorder.part(act)
    _, *parameters = inspect.signature(type(owner).forward).parameters.values()
    arguments, options = [], {}
    for p in parameters:
        wanted = p.default is p.empty or (every and p.default is None)
        if wanted and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            value = recorder.create_proxy("placeholder", p.name, (), {})
            if p.kind == p.KEYWORD_ONLY or p.default is not p.empty:
                options[p.name] = value
            else:
                arguments.append(value)
    type(owner).forward(twin, *arguments, **options)


def _dropout_between(
    name: str, owner: nn.Module, kind: Kind, act: str, recorder: _Recorder
) -> float:
    calls: dict[str, list[fx.Node]] = {}
    for node in recorder.graph.nodes:
        if (part := recorder.parts.get(node.target)) is not None:
            calls.setdefault(part, []).append(node)
    path = (kind.linears[0], act, kind.linears[1])
    refused = ValueError(
        f"{name}: {type(owner).__name__} computes something else than "
        f"{path[2]}({act}({path[0]}(x)))"
    )
    if any(len(calls.get(part, [])) != 1 for part in path):
        raise refused
    first, activated, last = (calls[part][0] for part in path)
    share, node = 0.0, first
    while node is not last:
        (user, *more) = node.users or (None,)
        if more or user is None:
            raise refused
        if user is activated or user is last:
            if user.args != (node,) or user.kwargs or (user is activated) != (node is first):
                raise refused
        else:
            p = _dropout_share(owner, recorder, user)
            if p is None or node is first or (share and p):
                raise refused
            share = share or p
        node = user
    return share


def _dropout_share(owner: nn.Module, recorder: _Recorder, node: fx.Node) -> float | None:
    """None for what is no dropout."""
    target: Any = node.target
    child = owner._modules.get(recorder.parts.get(target, ""))
    if isinstance(child, nn.Dropout):
        return float(child.p)
    if node.target is functional.dropout:
        p = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
        return float(p) if isinstance(p, (int, float)) else None
    return None


# --- Stand-ins ------------------------------------------------------------------------------------


class StandIn:
    """What the module's code calls in place of one of the three parts: 0 of up, 1 of the activation, 2
    of down. While hidden states are dropped, each is what it stands for, and dense."""

    def __init__(self, layer: SparseFfn, part: int) -> None:
        self.layer = layer
        self.part = part

    def __call__(self, x: Tensor) -> Tensor:
        layer, part = self.layer, self.part
        if layer.drops:
            return _up(layer, x) if part == 0 else _down(layer, x) if part == 2 else _act(layer, x)
        if part == 0:
            y: Tensor = _over_values(layer, x) if x.is_nested else layer(x)
            if not torch.compiler.is_compiling():
                setattr(y, _MARK, layer)
            return y
        # Dropout that does nothing copies a nested tensor, which has no mark then.
        if not torch.compiler.is_compiling() and (layer.training or not x.is_nested):
            if getattr(x, _MARK, None) is not layer:
                raise RuntimeError(
                    f"twell: between {layer.names[0]} and {layer.names[1]} of a sparse layer something "
                    "has changed since twell.sparsify (dropout that was 0?); call it again on the model"
                )
            if part == 2:
                delattr(x, _MARK)
        return x

    @property
    def weight(self) -> Tensor:
        """Of the linear layer; of a frozen layer one without data, for code that asks for a dtype."""
        return self._parameter("weight")  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        return self._parameter("bias")

    def _parameter(self, name: str) -> Tensor | None:
        layer = self.layer
        if not layer.frozen:
            tensor: Tensor | None = getattr(getattr(layer, layer.names[self.part // 2]), name)
            return tensor
        sizes = [layer.neurons, layer.width][:: 1 - self.part]
        bias = layer.gate_bias if self.part == 0 else layer.down_bias
        if name == "bias" and bias is None:
            return None
        return torch.empty(sizes[: 2 if name == "weight" else 1], dtype=layer._dtype, device="meta")


def _over_values(layer: SparseFfn, x: Tensor) -> Tensor:
    """Of a nested tensor, whose rows lie one after the other."""
    if x.layout == torch.jagged:
        jagged: Any = x
        return torch.nested.nested_tensor_from_jagged(layer(x.values()), jagged.offsets())
    x = x.contiguous()
    values = layer(x.values().view(-1, layer.width))
    sizes = (x._nested_tensor_size(), x._nested_tensor_strides(), x._nested_tensor_storage_offsets())
    return torch._nested_view_from_buffer(values.reshape(-1), *sizes)


def _up(layer: SparseFfn, x: Tensor) -> Tensor:
    if not layer.frozen:
        return getattr(layer, layer.names[0])(x)
    return functional.linear(x, layer._unpack()[0], layer.gate_bias)


def _down(layer: SparseFfn, h: Tensor) -> Tensor:
    if not layer.frozen:
        return getattr(layer, layer.names[1])(h)
    return functional.linear(h, layer._unpack()[2], layer.down_bias)


def _act(layer: SparseFfn, v: Tensor) -> Tensor:
    g = dense.activate(v, layer.activation, layer.threshold)
    return layer._counted(Trained(g, dense.l1(g), *dense.counts(g))) if g.requires_grad else g


# --- Putting in and taking back -------------------------------------------------------------------


def put(owner: nn.Module, kind: Kind, layer: SparseFfn) -> dict[str, Any]:
    """Puts the layer and its stand-ins into the module; what :func:`take_back` wants."""
    act = kind.act(owner)
    before = {
        "modules": dict(owner._modules),
        "act": act,
        "function": owner.__dict__.get(act),
        "fast": owner.__dict__.get("activation_relu_or_gelu"),
        "hooks": [
            (name, owner.__dict__[name].copy())
            for name in ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
        ],
    }
    modules = {CHILD if n == kind.linears[0] else n: m for n, m in owner._modules.items()}
    for name in (kind.linears[1], act):
        modules.pop(name, None)
    modules[CHILD] = layer
    _set_modules(owner, modules)
    for part, name in enumerate((kind.linears[0], act, kind.linears[1])):
        object.__setattr__(owner, name, StandIn(layer, part))
    if before["fast"] is not None:  # PyTorch's fused encoder layer would compute it densely
        owner.__dict__["activation_relu_or_gelu"] = 0
    Inside(CHILD, kind.linears).attach(owner)
    return before


def take_back(owner: nn.Module, kind: Kind, before: dict[str, Any]) -> None:
    for name in (*kind.linears, before["act"]):
        owner.__dict__.pop(name, None)
    if before["function"] is not None:
        owner.__dict__[before["act"]] = before["function"]
    if before["fast"] is not None:
        owner.__dict__["activation_relu_or_gelu"] = before["fast"]
    for name, hooks in before["hooks"]:
        owner.__dict__[name] = hooks
    _set_modules(owner, before["modules"])


def _set_modules(owner: nn.Module, modules: dict[str, Any]) -> None:
    owner._modules.clear()
    owner._modules.update(modules)
