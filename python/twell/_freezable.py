"""What a frozen layer is: how it comes to be, is converted, saved, loaded and thawed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from twell import _block, _children, _codes, _frozen, _norm, _ordered, dense
from twell._block import Block
from twell._children import Emptied, as_rows, is_read_only, is_turned, is_wrapped, linear_of
from twell._codes import Shell
from twell._frozen import Held
from twell._kept import FrozenPart
from twell._parts import LayerOfParts
from twell._training import TrainingForm
from twell._weights import Findings
from twell._weights import Layer as Described
from twell.autograd import transformed
from twell.form import VECTORS, Form

# Buffers of a frozen layer: on a CPU its block, on a GPU the others.
_OPERANDS = ("block", *_ordered.OPERANDS)
# A trace of a call holds for any number of inputs, so it has one number of hot neurons.
_TRACED_INPUTS = 1024

Layer = TypeVar("Layer", bound="FreezableFfn")


class FreezableFfn(LayerOfParts):
    """The half of :class:`twell.modules.SparseFfn` that keeps weights and has nothing to do with
    training."""

    # Of a frozen layer, as _block.Block and _ordered.Operands have them.
    block: Tensor | None
    packed_gate: Tensor
    packed_up: Tensor | None
    packed_down: Tensor
    screen: Tensor | None
    order: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None
    norm_weight: Tensor | None
    l1: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self._frozen = False
        self._path = _block.DEFAULT_PATH
        self._held: Held | None = None  # of a frozen layer; its tensors are the buffers
        self._opened: _block.Opened | None = None
        self._findings: Findings | None = None  # of a frozen layer
        self._shells: dict[str, Shell | Emptied] = {}  # of a frozen layer: its parts, by name
        self._dtype: torch.dtype | None = None  # of x, of a frozen layer
        self._scalars: Form | None = None  # of a frozen layer: the form without vectors

    @property
    def frozen(self) -> bool:
        """Whether only the packed weights are kept."""
        return self._frozen

    @property
    def has_codes(self) -> bool:
        """Whether its first weight is codes and scales, for which no gate form is chosen."""
        first = self.names[0]
        if self._frozen:
            return isinstance(self._shells.get(first), Shell)
        part = self.part(first)
        return isinstance(part, nn.Module) and _codes.is_quantised(part)

    @property
    def screened(self) -> bool:
        """Whether an int8 screen rules neurons out, in a frozen layer."""
        return self._held is not None and self._held.screened

    @property
    def ordered(self) -> bool:
        """Whether the neurons of a frozen layer are sorted by how many inputs fire them."""
        return self._frozen and self.order is not None

    def freeze(
        self: Layer,
        sample: Tensor | None = None,
        *,
        findings: Findings | None = None,
        path: str | None = None,
    ) -> Layer:
        """Packs the weights and keeps nothing else, for inference; returns self.

        ``sample`` [..., width] are 32 or more typical inputs, on the weights' device. In its place,
        ``findings`` may be what :func:`twell.prepared.findings_of` reads for this layer. On a CPU, if
        they show that it is faster, the gate stays as it is stored, with an int8 screen
        (:func:`twell.ops.screen_weight`). That takes a sixth more memory in bfloat16 and a tenth more in
        float32, and gives the same output up to rounding. On a GPU the same happens if a call of one
        input is expected to be faster. There neurons are also sorted by how many inputs fire them, and
        calls of many inputs multiply the first ones densely: as many as :func:`twell.ops.choose_hot`
        says for the number of inputs, rounded to a power of two. 1,024 inputs or more order them well.
        state_dict has the checkpoint's order. A trace (torch.compile, torch.export) has one number of
        hot neurons, the one for 1,024 inputs, which a GPU ignores below 64.

        ``path`` says how calls of a layer on a CPU run. "auto", the default, runs a call densely if that
        is expected to be faster, by the density of earlier calls and by the cost of both paths. The cost
        is what `twell calibrate` has measured, or the built-in figures, scaled by timing the layer in its
        first call of 32 or more inputs. The dense path packs up and down too when a call first needs it.
        "sparse" and "dense" hold for every call. :meth:`describe` says which path is taken. A layer of
        codes is sparse until it was timed.

        A frozen layer that gets a new sample or findings decides again. One that is converted or moved
        decides again by those it was frozen with. If up or down is not finite, the layer runs densely,
        with a warning. Raises ValueError if a child is not an ordinary nn.Linear, or if findings are of a
        layer of other sizes.
        """
        _block.check_path("freeze: path", path)
        if not self._frozen:
            self._check_children("freeze: ")
        before, self._path = self._path, path or self._path
        try:
            if sample is not None:
                self._pack(_frozen.examine(self._described(), sample))
            elif findings is not None or not self._frozen:
                self._pack(findings)
            elif path is not None:
                self._open()
        except BaseException:
            self._path = before
            raise
        self._tell_if_dense(stacklevel=2)
        return self

    def _pack(self, findings: Findings | None, parts: Mapping[str, Any] | None = None) -> None:
        """Keeps the packed weights alone: of what is packed already, or of parts that have theirs. Where it
        raises, nothing has changed."""
        if parts is None and not self._frozen:
            parts = self._parts()
        described = self._described(parts)
        held = _frozen.held_of(described, findings)
        opened = self._opened_of(held)
        if parts is not None:
            self._shells = {n: _shell_of(m) for n, m in parts.items() if isinstance(m, nn.Module)}
            self._keep(parts)
        self._hold(held, opened, findings, described)

    def _hold(
        self, held: Held, opened: _block.Opened | None, findings: Findings | None, of: Described
    ) -> None:
        self.l1 = None
        vectors = [None if v is None else v.detach() for v in of.form.vectors]
        of_form = dict(zip(VECTORS, vectors))
        for name, tensor in {**dict.fromkeys(_OPERANDS), **held.tensors, **of_form}.items():
            self._put(name, tensor)
        self._held = held
        self._opened = opened
        self._findings = findings
        self._dtype = of.dtype
        self._scalars = of.form.with_vectors((None,) * 4)
        self._frozen = True

    def _keep(self, parts: Mapping[str, Any]) -> None:
        """Leaves the names of the parts without their weights."""
        for name, module in parts.items():
            now = self.part(name)
            if isinstance(now, FrozenPart):
                now.take(module)
            else:
                self.holder._modules[name] = FrozenPart(self, name, module)

    def _put(self, name: str, tensor: Tensor | None) -> None:
        """As a buffer of the frozen layer."""
        if hasattr(self, name):
            delattr(self, name)
        if tensor is None:  # torch.export miscounts buffers that are None
            setattr(self, name, None)
        else:
            self.register_buffer(name, tensor, persistent=False)

    def _opened_of(self, held: Held) -> _block.Opened | None:
        return _block.Opened(held.bytes, self._path) if isinstance(held, Block) else None

    def _open(self) -> None:
        assert self._held is not None
        self._opened = self._opened_of(self._held)

    def _tell_if_dense(self, stacklevel: int) -> None:
        if self._held is not None and not self._held.finite:
            warnings.warn(
                f"{type(self).__name__}: up, down or what lies between has NaN or infinities. Times 0 "
                "they are NaN, so that no neuron can be skipped: this layer runs densely",
                stacklevel=stacklevel + 1,
            )

    def thaw(self: Layer) -> Layer:
        """The inverse of freeze: trainable weights in the checkpoint's layout; returns self."""
        if not self._frozen:
            return self
        parts = self._parts_of_frozen()
        for name, part in parts.items():
            coded = isinstance(self._shells.get(name), Shell)
            for own, tensor in part._parameters.items():
                if tensor is not None and (own == "bias" or not coded):
                    part._parameters[own] = _children.trainable(tensor.detach())
        self._release()
        self.holder._modules.update(parts)
        return self

    def _release(self) -> None:
        """Forgets what is packed."""
        for name in (*_OPERANDS, *VECTORS):
            delattr(self, name)
        self._findings = None
        self._held = self._opened = None
        self._shells = {}
        self._scalars = None
        self._frozen = False

    def _parts_of_frozen(self) -> dict[str, nn.Module]:
        """The parts as they were before freezing. Some lie in the operands' own memory."""
        parts: dict[str, nn.Module] = {}
        for name, (weight, bias) in self._linears().items():
            shell = self._shells.get(name)
            parts[name] = linear_of(weight, bias) if shell is None else shell.refilled(weight, bias)
        if self.norm_name is not None:
            norm: Any = self._shells[self.norm_name]
            parts[self.norm_name] = norm.refilled(self.norm_weight)
        return parts

    def _copies(self) -> dict[str, nn.Module]:
        """The same in memory of their own."""
        assert self._held is not None
        held = (*self._held.tensors.values(), *self._vectors())
        mine = {t.data_ptr() for t in held if t is not None}
        parts = self._parts_of_frozen()
        for part in parts.values():
            for name, own in part._parameters.items():
                if own is not None and not is_wrapped(own) and own.data_ptr() in mine:
                    part._parameters[name] = nn.Parameter(own.detach().clone(), own.requires_grad)
        return parts

    def _forward_frozen(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self._check_places()
        held, dtype = self._held, self._dtype
        assert held is not None and dtype is not None
        if not held.finite or self.drops or transformed():
            gate, up, down = self._described().numbers()
            drop = self.hidden_dropout * self.drops
            return dense.ffn(x, gate, up, down.t(), self._form(), drop)[0]
        if isinstance(held, Block):
            assert self.block is not None and self._opened is not None
            coded = any(isinstance(shell, Shell) for shell in self._shells.values())
            return _block.run(x, self.block, self._opened.number, self.width, dtype, coded)
        form = self._form()
        weights = form.weights(self.packed_gate, self.packed_up, self.packed_down)
        return torch.ops.twell.ffn(x, weights, self.screen, form.text, self._hot_in(x))

    def _check_places(self) -> None:
        """Raises RuntimeError where something stands that a frozen layer would pass over."""
        what = self._strange_part() or (self.act_name and self._hangs_on_act() and self.act_name)
        if what:
            raise RuntimeError(
                f"twell: {what} of a frozen layer has changed, which it would pass over; call thaw() on "
                "the layer, or sparsify(model, freeze=False)"
            )

    def _strange_part(self) -> str | None:
        """The first name at which something else stands than this layer has left there."""
        modules = (self if self._holder is None else self._holder)._modules  # every call asks
        for name in self.names:
            if type(modules.get(name)) is not FrozenPart:
                return name
        norm = self.norm_name
        return norm if norm and type(modules.get(norm)) is not FrozenPart else None

    def _hot_in(self, x: Tensor) -> int:
        held = self._held
        if not isinstance(held, _ordered.Operands) or not held.hot:
            return 0
        if not torch.compiler.is_compiling():
            rows = dense.tokens_of(x)
            if isinstance(rows, int):  # else it is of a trace too
                return held.hot[_ordered.nearest_power(rows)]
        # Not all: a call of a few inputs would not pass those over.
        return min(held.hot[_ordered.nearest_power(_TRACED_INPUTS)], self.neurons - 1)

    def describe(self, rows: int) -> str:
        """How a call of so many inputs runs, in words."""
        if not self._frozen:
            return "dense: not frozen, and no gradient is wanted; training is sparse"
        if self._held is not None and not self._held.finite:
            return "dense: up, down or what lies between is not finite"
        if self.block is None or self._opened is None:
            return "sparse, as the GPU's plan has it"
        return _block.describe(self.block, self._opened.number, rows)

    def _vectors(self, parts: Mapping[str, Any] | None = None) -> tuple[Tensor | None, ...]:
        """The form's: of parts, or buffers of the frozen layer."""
        if parts is None and self._frozen:
            return self.gate_bias, self.up_bias, self.down_bias, self.norm_weight
        parts = parts or self._parts()
        gate, *up, down = (parts[name].bias for name in self.names)
        if self.fused:
            gate, *up = (None, None) if gate is None else gate.chunk(2)
        norm = None if self.norm_name is None else parts[self.norm_name].weight
        return gate, (up[0] if up else None), down, norm

    def _form(self, parts: Mapping[str, Any] | None = None) -> Form:
        vectors = self._vectors(parts)
        scalars = self._scalars
        if scalars is None:
            epsilon = None
            if self.norm_name is not None:
                parts = parts or self._parts()
                dtype = _codes.dtype_of(parts[self.names[0]])
                epsilon = _norm.epsilon_of(parts[self.norm_name], dtype)
            scalars = Form(
                self.activation, self.threshold, self.up_activation, norm_epsilon=epsilon
            )
        none = all(vector is None for vector in vectors)
        return scalars if none else scalars.with_vectors(vectors)

    def _unpack(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """gate, up and down of the frozen layer, as nn.Linear has them."""
        assert self._held is not None
        return self._held.unpacked()

    def _described(self, parts: Mapping[str, Any] | None = None) -> Described:
        if parts is None and self._frozen:
            assert self._dtype is not None
            return Described(*self._unpack(), self._form(), self._dtype)
        parts = parts or self._parts()
        first, *_ = self.names
        if self.fused and _codes.is_quantised(parts[first]):
            raise ValueError(f"{first}: has codes of gate and up in one, which a frozen layer does not take")
        last = self.names[-1]
        weights = (
            as_rows(parts[name], _codes.weight_of(name, parts[name], down=name == last))
            for name in self.names
        )
        return Described(*self._three(weights), self._form(parts), _codes.dtype_of(parts[first]))

    def _linears(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Weights and biases of the frozen layer's parts, as the checkpoint has them."""
        gate, up, down = self._unpack()
        gate_bias, up_bias, down_bias, _ = self._vectors()
        if self.fused:
            biases = None if gate_bias is None else torch.cat([gate_bias, up_bias])  # type: ignore[list-item]
            both = torch.cat([gate, up])  # type: ignore[list-item]
            found = [(both, biases), (down, down_bias)]
        else:
            middle = [] if up is None else [(up, up_bias)]
            found = [(gate, gate_bias), *middle, (down, down_bias)]
        turned = [isinstance(s, Emptied) and is_turned(s.module) for s in map(self._shells.get, self.names)]
        found = [(w.t().contiguous() if t else w, b) for (w, b), t in zip(found, turned)]
        return dict(zip(self.names, found))

    def _apply(self: Layer, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        if not self._frozen:
            return super()._apply(fn, recurse)
        # The layout depends on dtype and device: convert the checkpoint's layout and freeze again.
        # Tried on one element, which raises where the operators lack the dtype, before the work.
        first = next(t for name in _OPERANDS if (t := getattr(self, name)) is not None)
        torch.ops.twell.pack_weight(fn(first.new_zeros(1, 1, dtype=self._dtype)))
        parts = self._copies()
        inside: list[Any] = [*self.children(), *parts.values()]
        for module in inside:
            module._apply(fn)
        self._pack(self._findings, parts)
        if next(parts[self.names[0]].parameters()).is_shared():  # between processes, by share_memory()
            for name in (*_OPERANDS, *VECTORS):
                if (operand := getattr(self, name)) is not None:
                    operand.share_memory_()
            self._open()
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "l1": None, "_train_form": TrainingForm()}
        state.pop("_seen", None)  # of twell.hf.inline, which makes another
        if self._frozen:
            # As the checkpoint has them: it may be loaded where operands have another layout.
            state["_buffers"] = {k: v for k, v in self._buffers.items() if k not in _OPERANDS}
            state["_weights"] = self._unpack()
            state["_held"] = state["_opened"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        weights = state.pop("_weights", None)
        super().__setstate__(state)
        if weights is None:
            return
        gate, up, down = weights
        described = Described(gate, up, down, self._form(), state["_dtype"])
        held = _frozen.held_of(described, self._findings)
        self._hold(held, self._opened_of(held), self._findings, described)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._frozen:
            parts = self._copies()
            for name in self.holder._modules:
                if name in parts:
                    place = f"{self._above(prefix)}{name}."
                    parts[name]._save_to_state_dict(destination, place, keep_vars)

    def _above(self, prefix: str) -> str:
        """The place of the parts in a checkpoint, of a layer in this place."""
        if self.holder is self:
            return prefix
        above = prefix[:-1].rpartition(".")[0]
        return f"{above}." if above else ""

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        rest = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self._frozen and self.holder is self:
            self._load_frozen(state_dict, prefix, *rest)

    def _load_frozen(self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *rest: Any) -> None:
        """What the parts, in that place of a checkpoint, have there; as Module._load_from_state_dict."""
        parts = self._copies()
        for name, part in parts.items():
            part._load_from_state_dict(state_dict, f"{prefix}{name}.", local_metadata, *rest)
        try:
            self._pack_in_place(parts, assign=local_metadata.get("assign_to_params_buffers", False))
        except ValueError as error:
            name = prefix[:-1] or type(self).__name__
            rest[-1].append(f"{name} is frozen and stays as it was: {error}")

    def _pack_in_place(self, parts: Mapping[str, Any], assign: bool = False) -> None:
        """In the memory of what was packed before, which a recorded graph reads."""
        before = {name: getattr(self, name) for name in (*_OPERANDS, *VECTORS)}
        self._pack(self._findings, parts)
        self._tell_if_dense(stacklevel=4)
        if assign:
            return
        assert self._held is not None
        with torch.no_grad():
            for name, old in before.items():
                new = getattr(self, name)
                if not isinstance(old, Tensor) or not isinstance(new, Tensor):
                    continue
                if not is_read_only(old) and (old.dtype, old.shape) == (new.dtype, new.shape):
                    self._put(name, old.copy_(new))
        self._held = self._held.holding({name: getattr(self, name) for name in _OPERANDS})
        self._open()

    def load_part(self, name: str, own: str, tensor: Tensor) -> None:
        """One tensor of a checkpoint, into the frozen layer. Raises RuntimeError as load_state_dict does."""
        parts = self._copies()
        parts[name].load_state_dict({own: tensor}, strict=False)
        self._pack_in_place(parts)

    @property
    def device(self) -> torch.device:
        """Of what is packed."""
        return next(t.device for name in _OPERANDS if (t := getattr(self, name)) is not None)


def _shell_of(module: nn.Module) -> Shell | Emptied:
    return Shell.of(module) if _codes.is_quantised(module) else Emptied.of(module)
