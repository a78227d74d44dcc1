"""GatedFfn and Ffn: the layers as modules whose checkpoints keep the Hugging Face layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from twell import _attached, _frozen, dense
from twell._frozen import Choice, Operands
from twell._training import TrainingForm
from twell.activity import Activity
from twell.autograd import Trained, trained_ffn, transformed, with_l1

_OPERANDS = ("gate", "up", "down", "screen", "order")  # buffers of a frozen layer
# A trace of a call holds for any number of inputs, so it has one number of hot neurons.
_TRACED_INPUTS = 1024

Layer = TypeVar("Layer", bound="SparseFfn")


class SparseFfn(nn.Module):
    """What :class:`GatedFfn` and :class:`Ffn` share. Their linear layers are children, under the
    names that the checkpoint has for them.

    Unfrozen, where a gradient is wanted, forward keeps what fires and backward multiplies nothing
    else (:func:`twell.gated_ffn`); no weight is kept between calls, so any change to them is seen.
    On a GPU, in bfloat16 and float16, it does where that is expected to be faster: the layer looks
    after its first step of training, and after every 32nd from there, at how many tokens fired each
    neuron, and waits for the GPU then. No GPU has run this yet.

    Without gradients the layer is dense: packing the gate and transposing the down projection in
    every call cost 14 ms where 64 inputs take 14 densely (D = 2048, H = 5632, two cores).
    :meth:`freeze` keeps a packed copy of the weights alone, which saves memory and is fast for any
    number of inputs; a frozen layer is for inference, and its state_dict still reads and writes the
    checkpoint's layout.

    A child that is no longer an ordinary nn.Linear (an adapter or a parametrization in its place, a
    hook on it, a weight in shards) does its own work. The layer is then dense, calls its children,
    and cannot be frozen.
    """

    # Of a frozen layer, as _frozen.Operands has them.
    gate: Tensor
    up: Tensor | None
    down: Tensor
    screen: Tensor | None
    order: Tensor | None

    NAMES: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        width: int,
        neurons: int,
        *,
        activation: str = "relu",
        threshold: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        dense.check_activation(activation, threshold)
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
        self._dense = False  # frozen, and nothing may be skipped
        self._choice: Choice | None = None  # of a frozen layer, by a sample
        self._hot: tuple[int, ...] = ()  # Operands.hot
        options: dict[str, Any] = {"bias": False, "dtype": dtype, "device": device}
        for name in self.names[:-1]:
            setattr(self, name, nn.Linear(width, neurons, **options))
        setattr(self, self.names[-1], nn.Linear(neurons, width, **options))

    @classmethod
    def _of_weights(cls: type[Layer], weights: Sequence[Tensor], **options: Any) -> Layer:
        """A layer that holds the weights themselves."""
        kinds, shapes = cls._described_weights(len(weights))
        if any(w.dim() != 2 for w in weights):
            got = ", ".join(str(list(w.shape)) for w in weights)
            raise ValueError(f"{kinds}: expected shapes {shapes}, got {got}")
        linears = [
            linear_of(w if isinstance(w, nn.Parameter) else nn.Parameter(w.detach(), w.requires_grad))
            for w in weights
        ]
        return cls._of_linears(linears, **options)

    @classmethod
    def _of_linears(cls: type[Layer], linears: Sequence[Any], **options: Any) -> Layer:
        """A layer whose children are these modules, without biases."""
        kinds, shapes = cls._described_weights(len(linears))
        sizes = [[linear.out_features, linear.in_features] for linear in linears]
        if any(size != sizes[0] for size in sizes[1:-1]) or sizes[-1] != sizes[0][::-1]:
            got = ", ".join(map(str, sizes))
            raise ValueError(f"{kinds}: expected shapes {shapes}, got {got}")
        dtypes = [linear.weight.dtype for linear in linears if type(linear) is nn.Linear]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise ValueError(f"{kinds}: expected one dtype, got {', '.join(map(str, dtypes))}")
        neurons, width = sizes[0]
        layer = cls(width, neurons, device="meta", **options)
        for name, linear in zip(layer.names, linears):
            setattr(layer, name, linear)
        return layer

    @staticmethod
    def _described_weights(count: int) -> tuple[str, str]:
        shapes = [*["[H, D]"] * (count - 1), "[D, H]"]
        return ", ".join(("gate", "up", "down")[3 - count :]), ", ".join(shapes)

    @property
    def frozen(self) -> bool:
        """Whether the packed weights alone are kept."""
        return self._frozen

    @property
    def screened(self) -> bool:
        """Whether an int8 screen rules neurons out, in a frozen layer."""
        return self._frozen and self.screen is not None

    @property
    def ordered(self) -> bool:
        """Whether the neurons of a frozen layer lie in the order of how many inputs fire them."""
        return self._frozen and self.order is not None

    def freeze(self: Layer, sample: Tensor | None = None) -> Layer:
        """Packs the weights and keeps nothing else, for inference; returns self.

        ``sample`` [..., width] are 32 or more inputs like those to come, on the weights' device. On a
        CPU, if the sample shows that it is faster, the gate stays as it is stored, with an int8
        screen (:func:`twell.ops.screen_weight`). That takes a sixth more memory in bfloat16, a tenth
        in float32, and gives the same output up to rounding. On a GPU the same happens if a call of
        one input is expected to be faster. Besides, neurons are put in the order of how many inputs
        of the sample fire them, and calls of many inputs multiply the first ones densely: as many as
        :func:`twell.ops.choose_hot` says for the number of inputs, rounded to a power of two. 1,024
        inputs or more order them well. state_dict has the checkpoint's order. A trace (torch.compile,
        torch.export) has one number of hot neurons, that for 1,024 inputs, which a GPU ignores below
        64. No GPU has run this yet.

        A frozen layer that gets a sample chooses again. Conversions and load_state_dict keep the
        choice for the type of device that it was made on; on another the layer is packed. If up or
        down is not finite, the layer runs densely, with a warning. Raises ValueError if a child is no
        ordinary nn.Linear.
        """
        if not self._frozen:
            self._check_children("freeze: ")
        if sample is not None:
            self._freeze(*_frozen.choose(self._described(), sample))
        elif not self._frozen:
            self._freeze(None)
        self._tell_if_dense(stacklevel=2)
        return self

    def _freeze(self: Layer, choice: Choice | None, operands: Operands | None = None) -> Layer:
        if operands is None:
            with torch.no_grad():
                operands = _frozen.operands_of(self._described(), choice)
        if not self._frozen:
            for name in self.names:
                delattr(self, name)
        self.l1 = None
        for name in _OPERANDS:
            self.register_buffer(name, getattr(operands, name), persistent=False)
        self._hot = operands.hot
        self._choice = choice
        self._frozen = True
        self._dense = not _frozen.is_finite(operands)
        return self

    def _tell_if_dense(self, stacklevel: int) -> None:
        if self._dense:
            warnings.warn(
                f"{type(self).__name__}: up or down has NaN or infinities. Times 0 they are NaN, so "
                "that no neuron can be skipped: this layer runs densely",
                stacklevel=stacklevel + 1,
            )

    def thaw(self: Layer) -> Layer:
        """The inverse of freeze: trainable weights in the checkpoint's layout; returns self."""
        if not self._frozen:
            return self
        weights = self._stored()
        linears = [linear_of(nn.Parameter(w.clone() if _is_read_only(w) else w)) for w in weights]
        for name in _OPERANDS:
            delattr(self, name)
        for name, linear in zip(self.names, linears):
            setattr(self, name, linear)
        self._choice = None
        self._hot = ()
        self._frozen = False
        return self

    @contextmanager
    def _as_stored(self) -> Iterator[None]:
        """A frozen layer as it is before it is frozen, which it is again afterwards, in the same form.
        Where that fails, or what is done in between, it is as it was."""
        before, choice = self._operands(), self._choice
        self.thaw()
        for name in self.names:  # some lie in the operands' own memory
            linear = getattr(self, name)
            if any(t is not None and t.data_ptr() == linear.weight.data_ptr() for t in before[:4]):
                linear.weight = nn.Parameter(linear.weight.detach().clone())
        try:
            yield
            self._freeze(choice)
        except BaseException:
            self._freeze(choice, before)
            raise

    def _operands(self) -> Operands:
        gate, up, down, screen, order = (getattr(self, name) for name in _OPERANDS)
        return Operands(gate, up, down, screen, order, self._hot)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] to y of the same shape."""
        if self._frozen:
            return self._forward_frozen(x)
        if self.collect_l1:
            self.l1 = None
        if self._special_child() is not None:
            y, h, g = self._linear_by_linear(x)
            return self._counted(Trained(y, dense.l1(h), *dense.counts(g))) if y.requires_grad else y
        gate, up, down = self._weights()
        wanted = any(t is not None and t.requires_grad for t in (x, gate, up, down))
        # In training also without: reentrant activation checkpointing runs it again with gradients,
        # and wants the same bits.
        if wanted and (torch.is_grad_enabled() or self.training):
            return self._counted(self._train(x, gate, up, down))
        return self._linear_by_linear(x)[0]

    def _train(self, x: Tensor, gate: Tensor, up: Tensor | None, down: Tensor) -> Trained:
        form = self._train_form.of_pass(x, gate, self.activation, up is not None)
        out = trained_ffn(x, gate, up, down.t(), self.activation, self.threshold, form)
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
        h = g if len(into) == 1 else g * into[1](x)
        return down(h), h, g

    def _special_child(self) -> str | None:
        """The first child that does more, or other, than multiply by its weight."""
        for name in self.names:
            child = getattr(self, name)
            if (
                type(child) is not nn.Linear
                or child.bias is not None
                or child._forward_pre_hooks
                or child._forward_hooks
                or child._backward_pre_hooks
                or child._backward_hooks
                or "forward" in child.__dict__  # accelerate's hooks
                or hasattr(type(child.weight), "__tensor_flatten__")  # DTensor, torchao
            ):
                return name
        return None

    def _check_children(self, where: str) -> None:
        """Raises ValueError where a child has what a frozen layer would lose; ``where`` stands before
        its name."""
        special = self._special_child()
        for name in self.names:
            child = getattr(self, name)
            if type(child) is not nn.Linear:
                raise ValueError(
                    f"{where}{name} is {type(child).__name__}, which does more than multiply by its "
                    "weight; merge it first (merge_and_unload() of peft, remove_parametrizations() of "
                    "PyTorch)"
                )
            hangs = _attached.what(child, own=("weight", "bias"))
            if hangs is None and name == special:
                hangs = "a bias" if child.bias is not None else f"a {type(child.weight).__name__}"
            if hangs is not None:
                raise ValueError(
                    f"{where}{name} has {hangs}, which a frozen layer would lose; remove that first"
                )

    def _forward_frozen(self, x: Tensor) -> Tensor:
        if self._dense or transformed():
            gate, up, down = self._unpack()
            return dense.ffn(x, gate, up, down.t(), self.activation, self.threshold)[0]
        return torch.ops.twell.ffn(
            x,
            self.gate,
            self.up,
            self.down,
            self.screen,
            self.activation,
            self.threshold,
            self._hot_in(x),
        )

    def _hot_in(self, x: Tensor) -> int:
        if not self._hot:
            return 0
        if not torch.compiler.is_compiling():
            rows = x.shape[:-1].numel()
            if isinstance(rows, int):  # else it is of a trace too
                return self._hot[_frozen.nearest_power(rows)]
        # Not all: a call of a few inputs would not pass those over.
        return min(self._hot[_frozen.nearest_power(_TRACED_INPUTS)], self.neurons - 1)

    def extra_repr(self) -> str:
        threshold = f", threshold={self.threshold}" if self.activation == "fat_relu" else ""
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

    def _unpack(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """The same of the frozen layer."""
        gate, up = self.gate, self.up
        if self.screen is None:
            gate = torch.ops.twell.unpack_weight(gate)
        gate = _frozen.in_checkpoint_order(gate, self.order)
        up = None if up is None else _frozen.in_checkpoint_order(up, self.order)
        down = _frozen.in_checkpoint_order(self.down, self.order)
        return gate, up, down.t().contiguous()

    def _described(self) -> _frozen.Layer:
        gate, up, down = self._unpack() if self._frozen else self._weights()
        up = None if up is None else up.detach()
        return _frozen.Layer(gate.detach(), up, down.detach(), self.activation, self.threshold)

    def _stored(self) -> list[Tensor]:
        """One for each name."""
        weights = self._unpack() if self._frozen else self._weights()
        return [w for w in weights if w is not None]

    def _apply(self: Layer, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        if not self._frozen:
            return super()._apply(fn, recurse)
        # The layout depends on dtype and device: convert the checkpoint's layout and freeze again.
        # Tried on one element, which raises where the operators lack the dtype, before the work.
        torch.ops.twell.pack_weight(fn(self.down.new_zeros(1, 1)))
        with self._as_stored():
            super()._apply(fn, recurse)
            shared = getattr(self, self.names[0]).weight.is_shared()
        if shared:  # between processes, by share_memory()
            for name in _OPERANDS:
                if (operand := getattr(self, name)) is not None:
                    operand.share_memory_()
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "l1": None, "_train_form": TrainingForm()}
        if self._frozen:
            # As the checkpoint has them: it may be loaded where operands have another layout.
            state["_buffers"] = {k: v for k, v in self._buffers.items() if k not in _OPERANDS}
            state["_weights"] = self._stored()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        weights = state.pop("_weights", None)
        super().__setstate__(state)
        if weights is None:
            return
        gate, down = weights[0], weights[-1]
        up = weights[1] if len(weights) > 2 else None
        described = _frozen.Layer(gate, up, down, self.activation, self.threshold)
        with torch.no_grad():
            self._freeze(self._choice, _frozen.operands_of(described, self._choice))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._frozen:
            for name, weight in zip(self.names, self._stored()):
                # A copy of a screened gate, as in _frozen.operands_of.
                copied = weight.clone() if self.screened and weight is self.gate else weight
                destination[f"{prefix}{name}.weight"] = copied

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
        before = self._operands()
        try:
            with self._as_stored():
                super()._load_from_state_dict(state_dict, prefix, *rest)
                # They are there for this call alone: PyTorch will not see them.
                for name in self.names:
                    getattr(self, name)._load_from_state_dict(state_dict, f"{prefix}{name}.", *rest)
        except ValueError as error:
            name = prefix[:-1] or type(self).__name__
            error_msgs.append(f"{name} is frozen and stays as it was: {error}")
            return
        self._tell_if_dense(stacklevel=2)
        if local_metadata.get("assign_to_params_buffers"):
            return
        with torch.no_grad():  # into the same memory, which a recorded graph reads
            for name, old, new in zip(_OPERANDS, before, self._operands()):
                if isinstance(old, Tensor) and isinstance(new, Tensor) and not _is_read_only(old):
                    self.register_buffer(name, old.copy_(new), persistent=False)


def linear_of(weight: Tensor) -> nn.Linear:
    """A linear layer that holds the weight [rows, cols] itself."""
    rows, cols = weight.shape
    linear = nn.Linear(cols, rows, bias=False, device="meta", dtype=weight.dtype)
    linear.weight = weight
    return linear


def _is_read_only(tensor: Tensor) -> bool:
    """What was made in inference mode is so outside."""
    return tensor.is_inference() and not torch.is_inference_mode_enabled()


class GatedFfn(SparseFfn):
    """y = (act(x Wgᵀ) ⊙ (x Wuᵀ)) Wdᵀ with the weights of a checkpoint: gate_proj and up_proj
    [neurons, width], down_proj [width, neurons], no biases; bfloat16 or float32.
    ``names`` are those of the three children, where they are others. See :class:`SparseFfn`."""

    NAMES = ("gate_proj", "up_proj", "down_proj")

    @classmethod
    def from_dense(
        cls, gate: Tensor, up: Tensor, down: Tensor, **options: Any
    ) -> GatedFfn:
        """A layer that holds the given weights themselves: gate and up [H, D], down [D, H].

        A plain tensor becomes a parameter that wants a gradient where the tensor does. ``options``
        (activation, threshold, names) are the constructor's. Raises ValueError where the shapes or
        dtypes do not fit together.
        """
        return cls._of_weights((gate, up, down), **options)


class Ffn(SparseFfn):
    """y = act(x Wuᵀ) Wdᵀ, without a gate: up_proj [neurons, width] and down_proj
    [width, neurons], no biases; bfloat16 or float32. ``names`` are those of the two children,
    where they are others. See :class:`SparseFfn`."""

    NAMES = ("up_proj", "down_proj")

    @classmethod
    def from_dense(cls, up: Tensor, down: Tensor, **options: Any) -> Ffn:
        """As :meth:`GatedFfn.from_dense`: up [H, D], down [D, H]."""
        return cls._of_weights((up, down), **options)
