"""Feed-forward layers whose parts stand among others in a module: fc1, activation and fc2 of OPT's
decoder layers, linear1 and linear2 of PyTorch's.

The parts stay where they are, and the module's code stays as it is. When the module is called, its code
sees another in place of each part: the first computes the whole layer, and the others pass on what they
get. Where the code applies the activation itself (TimesFM, RWKV), what they pass on is no tensor: only the
activation, dropout and the last part take it. Before, the code is followed once with recorders in place of
the parts, which shows that nothing else happens between them.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable
from functools import cache, partial, wraps
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from twell import _attached, dense
from twell.autograd import Trained
from twell.hf.activations import activation_of
from twell.hf.kinds import CHILD, Kind
from twell.hf.mlps import made_of
from twell.modules import SparseFfn

_MARK = "_twell_output_of"
# Steps of code that applies the activation itself, and what each activation takes. A name is a method's.
_RELUS = ("relu", "relu_", functional.relu, torch.relu, torch.relu_)
_SQUARES = ("square", "square_", torch.square, torch.square_)
_POWERS = ("pow", "pow_", operator.pow, torch.pow)
_PRODUCTS = ("mul", "mul_", operator.mul, torch.mul)
_ACT = "act"  # of a module or function, and no step of the code's
_STEPS = "_steps_in_code"
_IN_CODE = {("relu",): "relu", ("relu", "square"): "relu_squared"}


def from_owner(
    owner: nn.Module,
    kind: Kind,
    activation: str | None,
    threshold: float,
    name: str,
    config: object = None,
) -> SparseFfn:
    """The layer that a module's linear layers make up. Raises ValueError, with the module's ``name``, for
    what :func:`twell.from_mlp` refuses, and where the code does more between them."""
    act = kind.act(owner)
    parts = kind.parts_of(owner, name)
    says = activation is None
    between = _follow(name, owner, kind, act)
    if activation is None:
        if kind.in_code:
            activation = _IN_CODE[between.steps]
        else:
            activation, threshold = activation_of(name, kind.act_of(owner), config)
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
    options: dict[str, Any] = {"activation": activation, "threshold": threshold}
    layer = made_of(name, owner, kind, parts, says, holder=owner, hidden_dropout=between.dropout, **options)
    if between.steps:
        layer.__dict__[_STEPS] = between.steps
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
        target = _target(f"part_{name}")
        self.parts[target] = name
        return partial(self._call, target)

    def _call(self, target: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self.create_proxy("call_function", target, arguments, options)

    def past(self, name: str, linears: tuple[str, ...]) -> Callable[..., Any]:
        """What stands for a function that is not followed: it may do anything with what it is given, so it
        has to be called before the layer is."""
        target = _target(f"function_{name}")

        def call(*arguments: Any, **options: Any) -> Any:
            if any(self.parts.get(n.target) in linears for n in self.graph.nodes):
                raise TypeError(f"{name} is called after {linears[0]}")
            return self._call(target, *arguments, **options)

        return call


def _target(name: str) -> Callable[..., Any]:
    """A function to stand in the graph."""

    def target(*_: Any) -> None: ...

    target.__name__ = "".join(c if c.isalnum() else "_" for c in name)
    return target


class _Part(nn.Module):
    def __init__(self, call: Callable[..., Any], module: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "_call", call)
        object.__setattr__(self, "_module", module)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_module"), name)


class _Between(NamedTuple):
    """What the code does between up and down."""

    dropout: float | str
    """A share, or the name of a module."""
    steps: tuple[str, ...]
    """Of the activation, where what stands for the hidden state is to be no tensor: the code applies it
    itself, or was not followed everywhere."""


def _follow(name: str, owner: nn.Module, kind: Kind, act: str) -> _Between:
    """Raises ValueError unless up goes to the activation, that to down through nothing but dropout, and
    each is called once."""
    found: set[_Between] = set()
    why = ""
    # Answers to questions that depend on numbers; with what may be left out, and without.
    for answer, every in itertools.product((False, True), repeat=2):
        for past in (False, True):  # the functions that cannot be followed, such as a Triton kernel
            recorder = _Recorder(answer)
            try:
                _record(recorder, owner, kind, act, every, past)
            except Exception as error:
                why = why or (str(error) or type(error).__name__).splitlines()[0]
                continue
            found.add(_between(name, owner, kind, act, recorder, past))
            break
    exact = {b for b in found if _ACT not in b.steps}
    if len(exact or found) != 1 or len({b.dropout for b in found}) != 1:
        raise kind.refusal(f"{name}: the code of {type(owner).__name__} could not be followed: {why}")
    return (exact or found).pop()


def _record(recorder: _Recorder, owner: nn.Module, kind: Kind, act: str, every: bool, past: bool) -> None:
    parts = {n: _Part(recorder.part(n), m) for n, m in owner.named_children()}
    twin = _attached.twin_of(owner, parts)
    twin.training = True
    twin.__dict__.pop("forward", None)
    if act and act not in parts:
        twin.__dict__[act] = recorder.part(act)
    forward = type(owner).forward
    if past:
        forward = _past_functions(forward, recorder, kind)
    _, *parameters = inspect.signature(forward).parameters.values()
    arguments, options = [], {}
    for p in parameters:
        wanted = p.default is p.empty or (every and p.default is None)
        if wanted and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            value = recorder.create_proxy("placeholder", p.name, (), {})
            if p.kind == p.KEYWORD_ONLY or p.default is not p.empty:
                options[p.name] = value
            else:
                arguments.append(value)
    forward(twin, *arguments, **options)


def _past_functions(forward: Any, recorder: _Recorder, kind: Kind) -> Any:
    """The code, with a node in place of each function of its own module's that it calls."""
    if not isinstance(forward, FunctionType):
        raise TypeError("its forward is no function")
    known = forward.__globals__
    called = {n: f for n in forward.__code__.co_names if isinstance(f := known.get(n), FunctionType)}
    nodes = {n: recorder.past(n, kind.linears) for n, f in called.items() if not _is_torchs(f)}
    parts = forward.__code__, {**known, **nodes}, forward.__name__, forward.__defaults__, forward.__closure__
    twin = FunctionType(*parts)
    twin.__kwdefaults__ = forward.__kwdefaults__
    return twin


def _is_torchs(function: FunctionType) -> bool:
    return function.__module__.split(".")[0] == "torch"


def _between(
    name: str, owner: nn.Module, kind: Kind, act: str, recorder: _Recorder, past: bool
) -> _Between:
    calls: dict[str, list[fx.Node]] = {}
    for node in recorder.graph.nodes:
        if (part := recorder.parts.get(node.target)) is not None:
            calls.setdefault(part, []).append(node)
    into, out = kind.linears
    refused = kind.refusal(
        f"{name}: {type(owner).__name__} computes something else than {out}({act or 'relu'}({into}(x)))"
    )
    if any(len(calls.get(part, [])) != 1 for part in ((into, out) if kind.in_code else (into, act, out))):
        raise refused
    node, last = (calls[part][0] for part in (into, out))
    share: float | str = 0.0
    dropped = False
    steps: tuple[str, ...] = ()
    while node is not last:
        (user, *more) = node.users or (None,)
        if more or user is None:
            raise refused
        alone = user.args == (node,) and not user.kwargs
        if user is last:
            known = alone
        elif kind.in_code and (step := _step(user.target, user.args, user.kwargs, node)):
            known = not dropped
            steps = (*steps, step)
        elif not kind.in_code and user is calls[act][0]:
            known = alone and not steps
            steps = (_ACT,)
        else:
            p = _dropout_share(owner, recorder, user)
            known = p is not None and bool(steps) and not (share and p)
            share, dropped = p or share, True
        if not known:
            raise refused
        node = user
    if steps not in (_IN_CODE if kind.in_code else [(_ACT,)]):
        raise refused
    return _Between(share, steps if kind.in_code or past else ())


def _step(called: Any, arguments: Any, options: Any, of: Any) -> str:
    """What a call does to ``of``: relu, square, or nothing that is known."""
    if not arguments or arguments[0] is not of or (options and (called not in _RELUS or list(options) != ["inplace"])):
        return ""
    if len(arguments) == 1:
        return "relu" if called in _RELUS else "square" if called in _SQUARES else ""
    (_, other, *more) = arguments
    if called in _PRODUCTS:
        return "square" if other is of and not more else ""
    return "square" if called in _POWERS and isinstance(other, (int, float)) and other == 2 and not more else ""


def _dropout_share(owner: nn.Module, recorder: _Recorder, node: fx.Node) -> float | str | None:
    """None for what is no dropout."""
    target: Any = node.target
    child = recorder.parts.get(target, "")
    if isinstance(owner._modules.get(child), nn.Dropout):
        return child
    if node.target is functional.dropout:
        p = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
        return float(p) if isinstance(p, (int, float)) else None
    return None


# --- Stand-ins ------------------------------------------------------------------------------------


class StandIn:
    """What the module's code sees in place of one of the three parts: 0 of up, 1 of the activation, 2 of
    down. While hidden states are dropped, each is what it stands for, and dense."""

    def __init__(self, layer: SparseFfn, part: int) -> None:
        self.layer = layer
        self.part = part

    def __call__(self, x: Any) -> Any:
        layer, part = self.layer, self.part
        if layer.drops and layer.act_name:
            return _act(layer, x) if part == 1 else _linear(layer, part // 2, x)
        if steps := layer.__dict__.get(_STEPS, () if layer.act_name else ("relu",)):
            if part == 0:
                return _Hidden(layer, _called(layer, x), steps)
            return _output_of(layer, x) if part == 2 else _activated(layer, x)
        if part == 0:
            y = _called(layer, x)
            if not torch.compiler.is_compiling():
                setattr(y, _MARK, layer)
            return y
        # Dropout that does nothing copies a nested tensor, which has no mark then.
        if not torch.compiler.is_compiling() and (layer.training or not x.is_nested):
            if getattr(x, _MARK, None) is not layer:
                raise _changed(layer)
            if part == 2:
                delattr(x, _MARK)
        return x

    def __getattr__(self, name: str) -> Any:
        """Of the part, such as the weight of a linear layer, which some code asks for its dtype."""
        if name.startswith("__"):
            raise AttributeError(name)
        first, last = self.layer.names
        return getattr(self.layer.part((first, self.layer.act_name, last)[self.part]), name)


class _Hidden:
    """What code that applies the activation itself has between the linear layers: the layer's output, and no
    tensor, so that nothing can be done to it but what the layer does."""

    def __init__(self, layer: SparseFfn, y: Tensor, left: tuple[str, ...]) -> None:
        self.layer = layer
        self.y = y
        self.left = left
        """The steps of the activation that are still to come."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), options: Any = None) -> _Hidden:
        hidden = given[0] if given else None
        if not isinstance(hidden, _Hidden):
            raise TypeError(f"twell: {function} takes no hidden state of a sparse layer here")
        if function is functional.dropout and not hidden.left:
            named = {"p": 0.5, "training": True, **dict(zip(("p", "training"), given[1:])), **(options or {})}
            if named["p"] * named["training"] == hidden.layer.hidden_dropout * hidden.layer.training:
                return hidden
        return hidden._after(_step(function, given, options, hidden))

    def _after(self, step: str) -> _Hidden:
        if not step or self.left[:1] != (step,):
            raise _changed(self.layer)
        return _Hidden(self.layer, self.y, self.left[1:])

    def relu(self) -> _Hidden:
        return self._after("relu")

    def square(self) -> _Hidden:
        return self._after("square")

    def __pow__(self, exponent: Any) -> _Hidden:
        return self._after(_step("pow", (self, exponent), None, self))

    def __mul__(self, other: Any) -> _Hidden:
        return self._after(_step("mul", (self, other), None, self))

    relu_, square_ = relu, square
    mul = mul_ = __mul__
    pow = pow_ = __pow__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _changed(self.layer)


def _activated(layer: SparseFfn, hidden: Any) -> Any:
    if not isinstance(hidden, _Hidden) or hidden.layer is not layer:
        raise _changed(layer)
    return hidden._after(_ACT)


def _output_of(layer: SparseFfn, hidden: Any) -> Tensor:
    if not isinstance(hidden, _Hidden) or hidden.layer is not layer or hidden.left:
        raise _changed(layer)
    return hidden.y


def _called(layer: SparseFfn, x: Tensor) -> Tensor:
    y: Tensor = _over_values(layer, x) if x.is_nested else layer(x)
    return y


def _changed(layer: SparseFfn) -> RuntimeError:
    return RuntimeError(
        f"twell: between {layer.names[0]} and {layer.names[1]} of a sparse layer something "
        "has changed since twell.sparsify (dropout that was 0?); call it again on the model"
    )


def _over_values(layer: SparseFfn, x: Tensor) -> Tensor:
    """Of a nested tensor, whose rows lie one after the other."""
    if x.layout == torch.jagged:
        jagged: Any = x
        return torch.nested.nested_tensor_from_jagged(layer(x.values()), jagged.offsets())
    x = x.contiguous()
    values = layer(x.values().view(-1, layer.width))
    sizes = (x._nested_tensor_size(), x._nested_tensor_strides(), x._nested_tensor_storage_offsets())
    return torch._nested_view_from_buffer(values.reshape(-1), *sizes)


def _linear(layer: SparseFfn, which: int, x: Tensor) -> Tensor:
    if not layer.frozen:
        y: Tensor = layer.part(layer.names[which])(x)
        return y
    up, _, down = layer._unpack()
    return functional.linear(x, down if which else up, layer._vectors()[2 * which])


def _act(layer: SparseFfn, v: Tensor) -> Tensor:
    g = layer.activated(v)
    return layer._counted(Trained(g, dense.l1(g), *dense.counts(g))) if g.requires_grad else g


# --- Putting in and taking back -------------------------------------------------------------------


@cache
def _classes(own: Any, parts: tuple[str, ...]) -> tuple[Any, Any]:
    """Of a module of that class: one that runs the code with stand-ins, and that of what the code sees."""

    @wraps(own.forward)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        return own.forward(_seen(self), *arguments, **options)

    def state_dict(self: Any, *given: Any, **options: Any) -> Any:
        state = own.state_dict(self, *given, **options)
        if self._modules[CHILD].frozen:  # which has put all its parts where the first is
            prefix = options.get("prefix", given[1] if len(given) > 1 else "")
            for name in self._modules:
                for key in [key for key in state if key.startswith(f"{prefix}{name}.")]:
                    state[key] = state.pop(key)
        return state

    def _load_from_state_dict(self: Any, state_dict: Any, prefix: str, *rest: Any) -> None:
        own._load_from_state_dict(self, state_dict, prefix, *rest)
        if self._modules[CHILD].frozen:
            self._modules[CHILD]._load_frozen(state_dict, prefix, *rest)

    def __setstate__(self: Any, state: Any) -> None:
        own.__setstate__(self, state)
        _seen(self)

    def reduced(self: Any, _: int) -> Any:  # pickle looks classes up, and this one has no place
        return _empty, (own, parts), self.__dict__

    about = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    members = {
        "forward": forward, "state_dict": state_dict, "_load_from_state_dict": _load_from_state_dict,
        "__setstate__": __setstate__, "__reduce_ex__": reduced,
    }  # fmt: skip
    seen = {name: property(partial(_stand_in, part)) for part, name in enumerate(parts) if name}
    sees = type(own.__name__, (own,), about | seen)
    return type(own.__name__, (own,), about | members | {"_twell_seen": sees}), sees


def _empty(own: Any, parts: tuple[str, ...]) -> Any:
    made, _ = _classes(own, parts)
    return made.__new__(made)


def _stand_in(part: int, seen: Any) -> StandIn:
    return StandIn(seen._modules[CHILD], part)


def _seen(owner: nn.Module) -> Any:
    """The module as its code sees it: the same attributes, but for the parts."""
    layer: Any = owner._modules[CHILD]
    seen = layer.__dict__.get("_seen")
    if seen is None or (not torch.compiler.is_compiling() and vars(seen) is not vars(owner)):
        layer.__dict__["_holder"] = owner  # another, of a replica on another device
        seen = object.__new__(type(owner)._twell_seen)  # type: ignore[attr-defined]
        object.__setattr__(seen, "__dict__", vars(owner))
        layer.__dict__["_seen"] = seen
    return seen


def put(
    owner: nn.Module, parts: dict[str, nn.Module], layer: SparseFfn
) -> Callable[[], None]:
    """Puts the layer into the module; what takes it back."""
    before: dict[str, Any] = dict(owner._modules)
    own: Any = type(owner)
    fast = owner.__dict__.get("activation_relu_or_gelu")
    modules: dict[str, Any] = {}
    for name, module in before.items():
        if name == layer.names[0]:
            modules[CHILD] = layer
        modules[name] = parts.get(name, module)
    _set_modules(owner, modules)
    owner.__class__, _ = _classes(own, (layer.names[0], layer.act_name, layer.names[1]))
    _seen(owner)
    if fast is not None:  # PyTorch's fused encoder layer would compute it densely
        owner.__dict__["activation_relu_or_gelu"] = 0

    def take_back() -> None:
        now = {name: owner._modules[name] for name in layer.names}  # frozen and thawed, they are others
        _set_modules(owner, {**before, **now})
        owner.__class__ = own
        if fast is not None:
            owner.__dict__["activation_relu_or_gelu"] = fast

    return take_back


def _set_modules(owner: nn.Module, modules: dict[str, Any]) -> None:
    owner._modules.clear()
    owner._modules.update(modules)
