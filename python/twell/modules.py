"""GatedFfn and Ffn: the layers as modules whose checkpoints keep the Hugging Face layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from twell import _block, _children, _codes, _frozen, _norm, _ordered, dense
from twell._block import Block
from twell._children import is_read_only, is_wrapped, linear_of, linears_of
from twell._codes import Shell
from twell._frozen import Held
from twell._training import TrainingForm
from twell._weights import Findings
from twell._weights import Layer as Described
from twell.activity import Activity
from twell.autograd import Trained, trained_ffn, transformed, with_l1
from twell.form import Form

# Buffers of a frozen layer: on a CPU its block, on a GPU the others.
_OPERANDS = ("block", "gate", "up", "down", "screen", "order")
_VECTORS = ("gate_bias", "up_bias", "down_bias", "norm_weight")
# A trace of a call holds for any number of inputs, so it has one number of hot neurons.
_TRACED_INPUTS = 1024

Layer = TypeVar("Layer", bound="SparseFfn")


class SparseFfn(nn.Module):
    """What :class:`GatedFfn` and :class:`Ffn` share. Their linear layers are children, under the
    names that the checkpoint has for them; so is ``norm``, an RMSNorm of the hidden state (nn.RMSNorm
    or a model's own), under ``norm_name``. ``up_activation`` is that of up beside a gate: relu makes
    it dReLU. ``hidden_dropout`` of what enters down is dense in training; ``output_dropout`` of y does not
    change that. A GPU has layers with biases, an activation of up or a norm densely, and none frozen.

    Unfrozen, where a gradient is wanted, forward keeps what fires and backward multiplies nothing
    else (:func:`twell.gated_ffn`); no weight is kept between calls, so any change to them is seen.
    On a GPU, in bfloat16 and float16, it does where that is expected to be faster: the layer looks
    after its first step of training, and after every 32nd from there, at how many tokens fired each
    neuron, and waits for the GPU then.

    Without gradients the layer is dense: packing the gate and transposing the down projection in
    every call cost 14 ms where 64 inputs take 14 densely (D = 2048, H = 5632, two cores).
    :meth:`freeze` keeps a packed copy of the weights alone, which saves memory and is fast for any
    number of inputs; a frozen layer is for inference, and its state_dict still reads and writes the
    checkpoint's layout.

    A child that is no longer an ordinary one (an adapter or a parametrization in its place, a hook on
    it, a weight in shards) does its own work. The layer is then dense, calls its children,
    and cannot be frozen.
    """

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

    NAMES: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        width: int,
        neurons: int,
        *,
        activation: str = "relu",
        threshold: float = 0.0,
        up_activation: str = "identity",
        bias: bool = False,
        norm: nn.Module | None = None,
        norm_name: str = "norm",
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        dense.check_form(Form(activation, threshold, up_activation), gated=len(self.NAMES) == 3)
        self.names = tuple(names or self.NAMES)
        if len(self.names) != len(self.NAMES) or len(set(self.names)) != len(self.NAMES):
            raise ValueError(
                f"names: expected {len(self.NAMES)} different ones, for {', '.join(self.NAMES)}, "
                f"got {', '.join(self.names)}"
            )
        self.width = width
        self.neurons = neurons
        self.activation = activation
        self.threshold = threshold
        self.up_activation = up_activation
        self.norm_name = None if norm is None else norm_name
        self.hidden_dropout = hidden_dropout
        self.output_dropout = output_dropout
        self.collect_l1 = False
        """If set, a forward pass with gradients leaves its L1 term in ``l1``."""
        self.l1_weight: float | Tensor = 0.0
        """Where not 0, backward adds this times the L1 term to the loss, which need not hold it;
        ``l1`` is then for logging, without a gradient. See :func:`twell.set_l1`."""
        self.l1: Tensor | None = None
        self.collect_activity = False
        """If set, forward passes with gradients add to ``activity``. See :func:`twell.metrics`."""
        self.activity: Activity | None = None
        self._train_form = TrainingForm()
        self._frozen = False
        self._findings: Findings | None = None  # of a frozen layer
        self._path = _block.DEFAULT_PATH
        self._held: Held | None = None  # of a frozen layer; its tensors are the buffers
        self._opened: _block.Opened | None = None
        self._shells: dict[str, Shell] = {}  # of quantised children, by name
        self._dtype: torch.dtype | None = None  # of x, of a frozen layer
        options: dict[str, Any] = {"bias": bias, "dtype": dtype, "device": device}
        for name in self.names[:-1]:
            setattr(self, name, nn.Linear(width, neurons, **options))
        setattr(self, self.names[-1], nn.Linear(neurons, width, **options))
        # Of a frozen layer: its norm, without a weight and no child, and the form without vectors.
        object.__setattr__(self, "_norm", None)
        self._scalars: Form | None = None
        self._norm_type: type[Any] = type(norm)
        if norm is not None:
            self._check_norm(norm, norm_name)
            setattr(self, norm_name, norm)

    def _check_norm(self, norm: nn.Module, name: str) -> None:
        if hasattr(self, name):
            raise ValueError(f"norm_name: expected one that the layer does not have, got {name}")
        if not _norm.is_rms_norm(norm):
            raise ValueError(f"{name}: expected an RMSNorm, got {type(norm).__name__}")
        weight: Any = norm.weight
        if weight is not None and list(weight.shape) != [self.neurons]:
            raise ValueError(
                f"{name}: expected a weight of shape [{self.neurons}], got {list(weight.shape)}"
            )

    @property
    def _child_names(self) -> tuple[str, ...]:
        return self.names if self.norm_name is None else (*self.names, self.norm_name)

    @classmethod
    def _of_linears(cls: type[Layer], linears: Sequence[Any], **options: Any) -> Layer:
        """A layer whose children are these modules."""
        _children.check_fit(linears)
        first = linears[0]
        layer = cls(first.in_features, first.out_features, device="meta", **options)
        for name, linear in zip(layer.names, linears):
            setattr(layer, name, linear)
        return layer

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

    def freeze(
        self: Layer,
        sample: Tensor | None = None,
        *,
        findings: Findings | None = None,
        path: str | None = None,
    ) -> Layer:
        """Packs the weights and keeps nothing else, for inference; returns self.

        ``sample`` [..., width] are 32 or more inputs like those to come, on the weights' device. Or
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
        A layer of codes has no dense form.

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
        self._open()
        return self

    def _put(self, name: str, tensor: Tensor | None) -> None:
        """As a buffer of the frozen layer."""
        if hasattr(self, name):
            delattr(self, name)
        if tensor is None:  # torch.export miscounts buffers that are None
            setattr(self, name, None)
        else:
            self.register_buffer(name, tensor, persistent=False)

    def _open(self) -> None:
        self._opened = None if self.block is None else _block.Opened(self.block, self._path)

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

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] to y of the same shape."""
        y = self._forward_frozen(x) if self._frozen else self._forward_unfrozen(x)
        return dropout(y, self.output_dropout) if self.training and self.output_dropout else y

    @property
    def drops(self) -> bool:
        """Whether hidden states are dropped now."""
        return self.training and self.hidden_dropout > 0.0

    def _forward_unfrozen(self, x: Tensor) -> Tensor:
        if self.collect_l1:
            self.l1 = None
        if self.drops or self._special_child() is not None:
            y, h, g = self._linear_by_linear(x)
            return self._counted(Trained(y, dense.l1(h), *dense.counts(g))) if y.requires_grad else y
        gate, up, down = self._weights()
        form = self._form()
        used = (x, gate, up, down, *form.vectors)
        wanted = any(t is not None and t.requires_grad for t in used)
        # In training also without: reentrant activation checkpointing runs it again with gradients,
        # and wants the same bits.
        if wanted and (torch.is_grad_enabled() or self.training):
            return self._counted(self._train(x, gate, up, down, form))
        return self._linear_by_linear(x)[0]

    def _train(
        self, x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor, form: Form
    ) -> Trained:
        if not form.is_plain:
            return trained_ffn(x, gate, up, down.t(), form)
        hot = self._train_form.of_pass(x, gate, self.activation, up is not None)
        out = trained_ffn(x, gate, up, down.t(), form, hot)
        self._train_form.saw(x, out.neuron_nnz)
        return out

    def _counted(self, out: Trained) -> Tensor:
        """y, with what training wants to know of the pass."""
        y, l1 = out.y, out.l1
        if not y.requires_grad:
            return y
        if isinstance(self.l1_weight, Tensor) or self.l1_weight != 0.0:
            y = with_l1(y, l1, self.l1_weight)
            l1 = l1.detach()
        if self.collect_l1:
            self.l1 = l1
        if self.collect_activity:
            now = Activity.of(out)
            self.activity = now if self.activity is None else self.activity.plus(now)
        return y

    def _linear_by_linear(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y, h and g by the children themselves."""
        *into, down = (getattr(self, name) for name in self.names)
        g = dense.activate(into[0](x), self.activation, self.threshold)
        h = g if len(into) == 1 else g * dense.activate(into[1](x), self.up_activation)
        z = h if self.norm_name is None else getattr(self, self.norm_name)(h)
        return down(dropout(z, self.hidden_dropout) if self.drops else z), h, g

    def _special_child(self) -> str | None:
        """The first child that does more, or other, than multiply by its weight."""
        for name in self._child_names:
            if _children.does_more(getattr(self, name), self._expected_type(name)):
                return name
        return None

    def _check_children(self, where: str) -> None:
        """Raises ValueError where a child has what a frozen layer would lose; ``where`` stands before
        its name."""
        for name in self._child_names:
            _children.check(f"{where}{name}", getattr(self, name), self._expected_type(name))

    def _expected_type(self, name: str) -> type[nn.Module]:
        return self._norm_type if name == self.norm_name else nn.Linear

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
        weights = self.gate, self.up, self.down, self.screen
        return torch.ops.twell.ffn(x, *weights, *self._form().operands(self._hot_in(x)))

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

    def extra_repr(self) -> str:
        threshold = f", threshold={self.threshold}" if self.activation == "fat_relu" else ""
        if self.up_activation != "identity":
            threshold += f", up_activation={self.up_activation}"
        for name in ("hidden_dropout", "output_dropout"):
            threshold += f", {name}={getattr(self, name)}" if getattr(self, name) else ""
        return (
            f"{self.width}, {self.neurons}, activation={self.activation}{threshold}, "
            f"frozen={self._frozen}{', screened=True' if self.screened else ''}"
            f"{', ordered=True' if self.ordered else ''}"
        )

    def _weights(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Of the unfrozen layer: gate, up and down as the checkpoint has them; without a gate, up in
        the gate's place and no up."""
        gate, *up, down = (getattr(self, name).weight for name in self.names)
        return gate, (up[0] if up else None), down

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


class GatedFfn(SparseFfn):
    """y = (act(x Wgᵀ) ⊙ (x Wuᵀ)) Wdᵀ with the weights of a checkpoint: gate_proj and up_proj
    [neurons, width], down_proj [width, neurons], with ``bias`` or without; bfloat16 or float32.
    ``names`` are those of the three children, where they are others. See :class:`SparseFfn`."""

    NAMES = ("gate_proj", "up_proj", "down_proj")

    @classmethod
    def from_dense(
        cls, gate: Tensor, up: Tensor, down: Tensor, **options: Any
    ) -> GatedFfn:
        """A layer that holds the given weights themselves: gate and up [H, D], down [D, H].

        A plain tensor becomes a parameter that wants a gradient where the tensor does. ``biases`` are
        one tensor or None for each weight. Other ``options`` (activation, threshold, up_activation,
        norm, norm_name, names) are the constructor's. Raises ValueError where the shapes or dtypes do
        not fit together.
        """
        return cls._of_linears(linears_of((gate, up, down), options.pop("biases", None)), **options)


class Ffn(SparseFfn):
    """y = act(x Wuᵀ) Wdᵀ, without a gate: up_proj [neurons, width] and down_proj
    [width, neurons], with ``bias`` or without; bfloat16 or float32. ``names`` are those of the two
    children, where they are others. See :class:`SparseFfn`."""

    NAMES = ("up_proj", "down_proj")

    @classmethod
    def from_dense(cls, up: Tensor, down: Tensor, **options: Any) -> Ffn:
        """As :meth:`GatedFfn.from_dense`: up [H, D], down [D, H]."""
        return cls._of_linears(linears_of((up, down), options.pop("biases", None)), **options)
