"""GatedFfn and Ffn: the layers as modules whose checkpoints keep the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from twell import _children, _norm, dense
from twell._children import as_rows, is_turned, linears_of, size_of
from twell._freezable import FreezableFfn
from twell._training import TrainingForm
from twell.activity import Activity
from twell.autograd import Trained, trained_ffn, with_l1
from twell.form import Form

Layer = TypeVar("Layer", bound="SparseFfn")


class SparseFfn(FreezableFfn):
    """The common base of :class:`GatedFfn` and :class:`Ffn`. The linear layers are children, under the
    names that the checkpoint has for them, or remain children of another module. The same holds for
    ``norm``, an RMSNorm of the hidden state (nn.RMSNorm or a model's own), under ``norm_name``. ``act``
    is a tuple: the name of the module or function that computes the activation, the module or function
    itself, and whether it is the layer's. ``up_activation`` is the activation of up in a layer with a
    gate; relu makes the layer dReLU. ``hidden_dropout`` drops inputs of down and makes training dense;
    ``output_dropout`` drops outputs and does not. Each is a share, or the name of a module that has one.
    On a GPU, layers with biases, an activation of up or a norm run densely and cannot be frozen.

    If an unfrozen layer needs gradients, forward keeps the neurons that fire, and backward multiplies
    nothing else (:func:`twell.gated_ffn`). No weight is kept between calls, so any change to them is
    seen. On a GPU, in bfloat16 and float16, the layer does so if it expects to be faster: after its first
    step of training, and after every 32nd from there, it looks at how many tokens fired each neuron. It
    waits for the GPU then.

    Without gradients an unfrozen layer is dense, because packing the gate and transposing the down
    projection in every call would take 14 ms, as long as 64 inputs take densely (D = 2048, H = 5632, two
    cores). :meth:`freeze` keeps only a packed copy of the weights, which saves memory and is fast for any
    number of inputs. A frozen layer is for inference. Its state_dict still reads and writes the
    checkpoint's layout.

    A child that is no longer an ordinary one (an adapter or a parametrization in its place, a hook on
    it, a weight in shards) does its own work. The layer then calls its children, runs densely, and
    cannot be frozen.
    """

    NAMES: ClassVar[tuple[str, ...]]

    @property
    def gated(self) -> bool:
        return len(self.NAMES) == 3

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
        hidden_dropout: float | str = 0.0,
        output_dropout: float | str = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        names: Sequence[str] | None = None,
        act: tuple[str, object, bool] = ("", None, False),
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
        self._dropouts = [hidden_dropout, output_dropout]
        self.fused = False
        self.collect_l1 = False
        """If set, a forward pass with gradients leaves its L1 term in ``l1``."""
        self.l1_weight: float | Tensor = 0.0
        """If not 0, backward adds this times the L1 term to the loss, which need not contain the term.
        ``l1`` is then for logging and has no gradient. See :func:`twell.set_l1`."""
        self.l1: Tensor | None = None
        self.collect_activity = False
        """If set, forward passes with gradients add to ``activity``. See :func:`twell.metrics`."""
        self.activity: Activity | None = None
        self._train_form = TrainingForm()
        options: dict[str, Any] = {"bias": bias, "dtype": dtype, "device": device}
        for name in self.names[:-1]:
            setattr(self, name, nn.Linear(width, neurons, **options))
        setattr(self, self.names[-1], nn.Linear(neurons, width, **options))
        self._types: dict[str, type[Any]] = {}
        """The types of the parts that are not nn.Linear."""
        if norm is not None:
            self._check_norm(norm, norm_name)
            setattr(self, norm_name, norm)
            self._types[norm_name] = type(norm)
        self._take_act(*act)

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

    @classmethod
    def _of_linears(cls: type[Layer], linears: Sequence[Any], **options: Any) -> Layer:
        """A layer whose children are these modules."""
        names = options.pop("names", None) or cls.NAMES
        return cls._of_parts(dict(zip(names, linears)), **options)

    @classmethod
    def _of_parts(
        cls: type[Layer],
        parts: Mapping[str, Any],
        *,
        fused: bool = False,
        holder: nn.Module | None = None,
        **options: Any,
    ) -> Layer:
        """A layer of linear layers, by name: its own children, or those of a module that stays their
        ``holder``. ``fused``: the first has gate and up, one behind the other."""
        linears = list(parts.values())
        _children.check_fit(linears, fused)
        (neurons, width), act = size_of(linears[0]), options.pop("act", ("", None, False))
        layer = cls(width, neurons // 2 if fused else neurons, device="meta", **options)
        for name in layer.names:
            delattr(layer, name)
        layer.names, layer.fused = tuple(parts), fused
        layer._types |= {name: type(part) for name, part in parts.items() if is_turned(part)}
        layer.__dict__["_holder"] = holder
        if holder is None:
            layer._modules = {**parts, **layer._modules}
        layer._take_act(*act)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] to y of the same shape."""
        y = self._forward_frozen(x) if self._frozen else self._forward_unfrozen(x)
        return dropout(y, self.output_dropout) if self.training and self.output_dropout else y

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
            return trained_ffn(x, gate.contiguous(), up, down.t(), form)
        hot = self._train_form.of_pass(x, gate, self.activation, up is not None)
        out = trained_ffn(x, gate.contiguous(), up, down.t(), form, hot)
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
        """y, h and g by the parts themselves."""
        *into, down = (self.part(name) for name in self.names)
        v, *u = [linear(x) for linear in into]
        if self.fused:
            v, *u = v.chunk(2, dim=-1)
        g = self.activated(v)
        h = g * dense.activate(u[0], self.up_activation) if u else g
        z = h if self.norm_name is None else self.part(self.norm_name)(h)
        return down(dropout(z, self.hidden_dropout) if self.drops else z), h, g

    def activated(self, v: Tensor) -> Tensor:
        """act(v), computed by the activation's module if something is attached to that."""
        if not self.act_name or self._hangs_on_act() is None:
            return dense.activate(v, self.activation, self.threshold)
        if (self.activation, self.threshold) != self._act_says:
            raise RuntimeError(
                f"twell: {self.act_name} has {self._hangs_on_act()}, and computes another activation than "
                "the layer; remove that, and hook the layer itself"
            )
        y: Tensor = self.part(self.act_name)(v)
        return y

    def before_activation(self, x: Tensor) -> Tensor:
        """The pre-activations of the gate, or of up in a layer without a gate."""
        v: Tensor = self.part(self.names[0])(x)
        return v[..., : self.neurons]

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
        """Of the unfrozen layer: gate, up and down as nn.Linear has them, views of the parts' own; without
        a gate, up in the gate's place and no up."""
        parts = map(self.part, self.names)
        return self._three(as_rows(part, part.weight) for part in parts)


class GatedFfn(SparseFfn):
    """y = (act(x Wgᵀ) ⊙ (x Wuᵀ)) Wdᵀ with the weights of a checkpoint: gate_proj and up_proj
    [neurons, width], down_proj [width, neurons], with ``bias`` or without, in bfloat16 or float32.
    ``names`` gives the three children other names. See :class:`SparseFfn`."""

    NAMES = ("gate_proj", "up_proj", "down_proj")

    @classmethod
    def from_dense(
        cls, gate: Tensor, up: Tensor, down: Tensor, **options: Any
    ) -> GatedFfn:
        """A layer that holds the given weights themselves: gate and up [H, D], down [D, H].

        A plain tensor becomes a parameter, which needs a gradient if the tensor does. ``biases`` are one
        tensor or None for each weight. Other ``options`` (activation, threshold, up_activation, norm,
        norm_name, names) are the constructor's. Raises ValueError if the shapes or dtypes do not fit
        together.
        """
        return cls._of_linears(linears_of((gate, up, down), options.pop("biases", None)), **options)


class Ffn(SparseFfn):
    """y = act(x Wuᵀ) Wdᵀ, without a gate: up_proj [neurons, width] and down_proj
    [width, neurons], with ``bias`` or without, in bfloat16 or float32. ``names`` gives the two children
    other names. See :class:`SparseFfn`."""

    NAMES = ("up_proj", "down_proj")

    @classmethod
    def from_dense(cls, up: Tensor, down: Tensor, **options: Any) -> Ffn:
        """As :meth:`GatedFfn.from_dense`: up [H, D], down [D, H]."""
        return cls._of_linears(linears_of((up, down), options.pop("biases", None)), **options)
