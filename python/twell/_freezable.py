"""What a frozen layer is: how it comes to be, is converted, saved, loaded and thawed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from twell import _block, _children, _codes, _frozen, _norm, _ordered, dense
from twell._block import Block
from twell._children import is_read_only, is_wrapped, linear_of
from twell._codes import Shell
from twell._frozen import Held
from twell._training import TrainingForm
from twell._weights import Findings
from twell._weights import Layer as Described
from twell.autograd import transformed
from twell.form import Form

# Buffers of a frozen layer: on a CPU its block, on a GPU the others.
_OPERANDS = ("block", "gate", "up", "down", "screen", "order")
_VECTORS = ("gate_bias", "up_bias", "down_bias", "norm_weight")
# A trace of a call holds for any number of inputs, so it has one number of hot neurons.
_TRACED_INPUTS = 1024

Layer = TypeVar("Layer", bound="FreezableFfn")


class FreezableFfn(nn.Module):
    """The half of :class:`twell.modules.SparseFfn` that keeps weights and has nothing to do with
    training."""

    # Of a frozen layer, as _block.Block and _ordered.Operands have them.
    block: Tensor | None
    gate: Tensor
    up: Tensor | None
    down: Tensor
    screen: Tensor | None
    order: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None
    norm_weight: Tensor | None
    _norm: nn.Module | None
    # What a layer says of itself.
    names: tuple[str, ...]
    width: int
    neurons: int
    activation: str
    threshold: float
    up_activation: str
    norm_name: str | None
    hidden_dropout: float
    _norm_type: type[Any]
    l1: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self._frozen = False
        self._path = _block.DEFAULT_PATH
        self._held: Held | None = None  # of a frozen layer; its tensors are the buffers
        self._opened: _block.Opened | None = None
        self._findings: Findings | None = None  # of a frozen layer
        self._shells: dict[str, Shell] = {}  # of quantised children, by name
        self._dtype: torch.dtype | None = None  # of x, of a frozen layer
        # Of a frozen layer: its norm, without a weight and no child, and the form without vectors.
        object.__setattr__(self, "_norm", None)
        self._scalars: Form | None = None

    @property
    def _child_names(self) -> tuple[str, ...]:
        return self.names if self.norm_name is None else (*self.names, self.norm_name)

    @property
    def frozen(self) -> bool:
        """Whether the packed weights alone are kept."""
        return self._frozen

    @property
    def has_codes(self) -> bool:
        """Whether its first weight is codes and scales, by which no form is chosen."""
        first = self.names[0]
        return first in self._shells if self._frozen else _codes.is_quantised(getattr(self, first))

    @property
    def screened(self) -> bool:
        """Whether an int8 screen rules neurons out, in a frozen layer."""
        return self._held is not None and self._held.screened

    @property
    def ordered(self) -> bool:
        """Whether the neurons of a frozen layer lie in the order of how many inputs fire them."""
        return self._frozen and self.order is not None

    @property
    def drops(self) -> bool:
        """Whether hidden states are dropped now."""
        return self.training and self.hidden_dropout > 0.0

    def freeze(
        self: Layer,
        sample: Tensor | None = None,
        *,
        findings: Findings | None = None,
        path: str | None = None,
    ) -> Layer:
        """Packs the weights and keeps nothing else, for inference; returns self.

        ``sample`` [..., width] are 32 or more typical inputs, on the weights' device. Or
        ``findings`` are what :func:`twell.prepared.findings_of` reads of this layer. On a CPU, if they
        show that it is faster, the gate stays as it is stored, with an int8 screen
        (:func:`twell.ops.screen_weight`). That takes a sixth more memory in bfloat16, a tenth in
        float32, and gives the same output up to rounding. On a GPU the same happens if a call of one
        input is expected to be faster. Besides, neurons are put in the order of how many inputs fire
        them, and calls of many inputs multiply the first ones densely: as many as
        :func:`twell.ops.choose_hot` says for the number of inputs, rounded to a power of two. 1,024
        inputs or more order them well. state_dict has the checkpoint's order. A trace (torch.compile,
        torch.export) has one number of hot neurons, that for 1,024 inputs, which a GPU ignores below
        64.

        ``path``, of a layer on a CPU: how its calls run. "auto", which it is at first, takes dense
        products where they are expected to be faster than the sparse ones, by what calls fire and by what
        both cost: as `twell calibrate` has measured, or as the built-in figures say, scaled by timing
        the layer in its first call of 32 or more inputs. The dense form packs up and down once more when
        a call first needs it. "sparse" and "dense" are for always; :meth:`describe` says what is taken.
        A layer of codes is sparse until it was timed.

        A frozen layer that gets a sample or findings decides again, and so does one that is converted
        or moved, by what it was frozen with. If up or down is not finite, the layer runs densely, with
        a warning. Raises ValueError if a child is no ordinary nn.Linear, and if findings are of a layer
        of other sizes.
        """
        _block.check_path("freeze: path", path)
        if not self._frozen:
            self._check_children("freeze: ")
        before, self._path = self._path, path or self._path
        try:
            if sample is not None:
                self._freeze(_frozen.examine(self._described(), sample))
            elif findings is not None or not self._frozen:
                self._freeze(findings)
            elif path is not None:
                self._open()
        except BaseException:
            self._path = before
            raise
        self._tell_if_dense(stacklevel=2)
        return self

    def _freeze(
        self: Layer,
        findings: Findings | None,
        held: Held | None = None,
        vectors: Sequence[Tensor | None] | None = None,
    ) -> Layer:
        held = held or _frozen.held_of(self._described(), findings)
        opened = self._opened_of(held)
        form = self._form()
        vectors = [None if v is None else v.detach() for v in vectors or form.vectors]
        if not self._frozen:
            object.__setattr__(self, "_norm", self._without_weight())
            children = {name: getattr(self, name) for name in self.names}
            self._shells = {n: Shell.of(m) for n, m in children.items() if _codes.is_quantised(m)}
            self._dtype = _codes.dtype_of(children[self.names[0]])
            for name in self._child_names:
                delattr(self, name)
        self.l1 = None
        tensors = {**dict.fromkeys(_OPERANDS), **held.tensors, **dict(zip(_VECTORS, vectors))}
        for name, tensor in tensors.items():
            self._put(name, tensor)
        self._held = held
        self._findings = findings
        self._frozen = True
        self._scalars = form.with_vectors((None,) * 4)
        self._opened = opened
        return self

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
        children = self._children_of_frozen()
        for name in (*_OPERANDS, *_VECTORS):
            delattr(self, name)
        for name, child in children.items():
            setattr(self, name, child)
        object.__setattr__(self, "_norm", None)
        self._findings = None
        self._held = self._opened = None
        self._shells = {}
        self._scalars = None
        self._frozen = False
        return self

    def _children_of_frozen(self) -> dict[str, nn.Module]:
        """As they were before freezing; they want gradients."""
        children: dict[str, nn.Module] = {}
        for name, (weight, bias) in self._linears().items():
            bias = None if bias is None else _children.trainable(bias)
            shell = self._shells.get(name)
            if shell is None:
                children[name] = linear_of(_children.trainable(weight), bias)
            else:
                children[name] = shell.refilled(weight, bias)
        if self.norm_name is not None and self._norm is not None:
            own = self.norm_weight
            own = None if own is None else _children.trainable(own)
            children[self.norm_name] = _norm.with_weight(self._norm, own)
        return children

    def _without_weight(self) -> nn.Module | None:
        norm = None if self.norm_name is None else getattr(self, self.norm_name)
        return None if norm is None else _norm.with_weight(norm, None)

    @contextmanager
    def _as_stored(self) -> Iterator[None]:
        """A frozen layer as it is before it is frozen, which it is again afterwards, in the same form.
        Where that fails, or what is done in between, it is as it was."""
        before, vectors, findings = self._held, self._vectors(), self._findings
        assert before is not None
        shells, dtype = self._shells, self._dtype
        self.thaw()
        for child in map(self.get_submodule, self._child_names):  # some lie in the operands' own memory
            for name, mine in list(child._parameters.items()):
                own = [t for t in (*before.tensors.values(), *vectors) if t is not None]
                if mine is None or is_wrapped(mine):
                    continue
                if any(t.data_ptr() == mine.data_ptr() for t in own):
                    setattr(child, name, nn.Parameter(mine.detach().clone()))
        try:
            yield
            self._freeze(findings)
        except BaseException:
            self._freeze(findings, before, vectors)
            self._shells, self._dtype = shells, dtype
            raise

    def _forward_frozen(self, x: Tensor) -> Tensor:
        held, dtype = self._held, self._dtype
        assert held is not None and dtype is not None
        if not held.finite or self.drops or transformed():
            gate, up, down = self._described().numbers()
            drop = self.hidden_dropout * self.drops
            return dense.ffn(x, gate, up, down.t(), self._form(), drop)[0]
        if isinstance(held, Block):
            assert self.block is not None and self._opened is not None
            coded = len(self._shells) > 0
            return _block.run(x, self.block, self._opened.number, self.width, dtype, coded)
        form = self._form()
        weights = form.weights(self.gate, self.up, self.down)
        return torch.ops.twell.ffn(x, weights, self.screen, form.text, self._hot_in(x))

    def _hot_in(self, x: Tensor) -> int:
        held = self._held
        if not isinstance(held, _ordered.Operands) or not held.hot:
            return 0
        if not torch.compiler.is_compiling():
            rows = x.shape[:-1].numel()
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

    def _check_children(self, where: str) -> None:
        """Raises ValueError where a child has what a frozen layer would lose; ``where`` stands before
        its name."""
        for name in self._child_names:
            _children.check(f"{where}{name}", getattr(self, name), self._expected_type(name))

    def _expected_type(self, name: str) -> type[nn.Module]:
        return self._norm_type if name == self.norm_name else nn.Linear

    def _vectors(self) -> tuple[Tensor | None, ...]:
        """The form's: a child's parameters, or buffers of the frozen layer."""
        if self._frozen:
            return self.gate_bias, self.up_bias, self.down_bias, self.norm_weight
        gate, *up, down = (getattr(self, name).bias for name in self.names)
        norm = None if self.norm_name is None else getattr(self, self.norm_name).weight
        return gate, (up[0] if up else None), down, norm

    def _form(self) -> Form:
        vectors, scalars = self._vectors(), self._scalars
        if scalars is None:
            epsilon = None
            if self.norm_name is not None:
                dtype = _codes.dtype_of(getattr(self, self.names[0]))
                epsilon = _norm.epsilon_of(getattr(self, self.norm_name), dtype)
            scalars = Form(
                self.activation, self.threshold, self.up_activation, norm_epsilon=epsilon
            )
        none = all(vector is None for vector in vectors)
        return scalars if none else scalars.with_vectors(vectors)

    def _unpack(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """The same of the frozen layer."""
        assert self._held is not None
        return self._held.unpacked()

    def _described(self) -> Described:
        dtype = self._dtype
        if self._frozen and dtype is not None:
            gate, up, down = self._unpack()
        else:
            children = {name: getattr(self, name) for name in self.names}
            gate, up, down = _codes.weights_of(children)
            dtype = _codes.dtype_of(children[self.names[0]])
        return Described(gate, up, down, self._form(), dtype)

    def _linears(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Weights and biases of the frozen layer's children, as the checkpoint has them."""
        weights = [w for w in self._unpack() if w is not None]
        gate, up, down, _ = self._vectors()
        biases = [gate, down] if len(weights) == 2 else [gate, up, down]
        return dict(zip(self.names, zip(weights, biases)))

    def _stored(self) -> dict[str, Tensor]:
        """What state_dict has of the frozen layer."""
        stored: dict[str, Tensor | None] = {}
        for name, (weight, bias) in self._linears().items():
            if (shell := self._shells.get(name)) is not None:
                own = shell.refilled(weight, bias).state_dict()
                stored |= {f"{name}.{key}": tensor for key, tensor in own.items()}
            else:
                stored |= {f"{name}.weight": weight, f"{name}.bias": bias}
        if self.norm_name is not None:
            stored[f"{self.norm_name}.weight"] = self.norm_weight
        return {name: tensor for name, tensor in stored.items() if tensor is not None}

    def _apply(self: Layer, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        if not self._frozen:
            return super()._apply(fn, recurse)
        # The layout depends on dtype and device: convert the checkpoint's layout and freeze again.
        # Tried on one element, which raises where the operators lack the dtype, before the work.
        first = next(t for name in _OPERANDS if (t := getattr(self, name)) is not None)
        torch.ops.twell.pack_weight(fn(first.new_zeros(1, 1, dtype=self._dtype)))
        with self._as_stored():
            super()._apply(fn, recurse)
            shared = next(getattr(self, self.names[0]).parameters()).is_shared()
        if shared:  # between processes, by share_memory()
            for name in (*_OPERANDS, *_VECTORS):
                if (operand := getattr(self, name)) is not None:
                    operand.share_memory_()
            self._open()
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "l1": None, "_train_form": TrainingForm()}
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
        self._freeze(self._findings, _frozen.held_of(described, self._findings))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._frozen:
            for name, tensor in self._stored().items():
                # A copy of a screened gate, as in _frozen.operands_of.
                copied = tensor.clone() if self.screened and tensor is self.gate else tensor
                destination[f"{prefix}{name}"] = copied

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
        if not self._frozen:
            super()._load_from_state_dict(state_dict, prefix, *rest)
            return
        before = {name: getattr(self, name) for name in (*_OPERANDS, *_VECTORS)}
        assert self._held is not None
        try:
            with self._as_stored():
                super()._load_from_state_dict(state_dict, prefix, *rest)
                # They are there for this call alone: PyTorch will not see them.
                for name in self._child_names:
                    getattr(self, name)._load_from_state_dict(state_dict, f"{prefix}{name}.", *rest)
        except ValueError as error:
            name = prefix[:-1] or type(self).__name__
            error_msgs.append(f"{name} is frozen and stays as it was: {error}")
            return
        self._tell_if_dense(stacklevel=2)
        if local_metadata.get("assign_to_params_buffers"):
            return
        with torch.no_grad():  # into the same memory, which a recorded graph reads
            for name, old in before.items():
                new = getattr(self, name)
                if not isinstance(old, Tensor) or not isinstance(new, Tensor):
                    continue
                if not is_read_only(old) and (old.dtype, old.shape) == (new.dtype, new.shape):
                    self._put(name, old.copy_(new))
        self._held = self._held.holding({name: getattr(self, name) for name in _OPERANDS})
        self._open()
