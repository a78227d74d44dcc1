"""GatedFfn: the layer as a module whose checkpoint keeps the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from twell import dense, ops
from twell.autograd import gated_ffn, with_l1

_NAMES = ("gate_proj", "up_proj", "down_proj")
_OPERANDS = ("gate", "up", "down", "screen")
Operands = tuple[Tensor, Tensor, Tensor, Tensor | None]
# A sample of fewer does not show in which direction inputs point.
FEWEST_INPUTS = 32


class GatedFfn(nn.Module):
    """y = (act(x Wgᵀ) ⊙ (x Wuᵀ)) Wdᵀ with the weights of a checkpoint: gate_proj and up_proj
    [ffn_size, hidden_size], down_proj [hidden_size, ffn_size], no biases; bfloat16 or float32.

    Where a gradient is wanted, forward keeps what fires and backward multiplies nothing else
    (:func:`gated_ffn`). Elsewhere it is the sparse operator on a packed copy of the weights, remade
    when a weight changes. :meth:`freeze` keeps that copy alone, which saves memory, and may make it
    faster; a frozen layer is for inference, and its state_dict still reads and writes the
    checkpoint's layout. Without gradients torch.compile uses the sparse operator for frozen layers
    and the dense definition for others, since a trace cannot watch the weights.
    """

    # Of a frozen layer: gate packed, or as stored where there is a screen.
    gate: Tensor
    screen: Tensor | None
    up: Tensor
    down: Tensor

    def __init__(
        self,
        hidden_size: int,
        ffn_size: int,
        *,
        activation: str = "relu",
        threshold: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        dense.check_activation(activation, threshold)
        self.hidden_size = hidden_size
        self.ffn_size = ffn_size
        self.activation = activation
        self.threshold = threshold
        self.collect_l1 = False
        """If set, a forward pass with gradients leaves its L1 term in ``l1``."""
        self.l1_weight: float | Tensor = 0.0
        """Where not 0, backward adds this times the L1 term to the loss, which need not hold it;
        ``l1`` is then for logging, without a gradient. See :func:`set_l1`."""
        self.l1: Tensor | None = None
        self._frozen = False
        self._axis: Tensor | None = None
        self._copy: tuple[Any, Operands] | None = None
        options: dict[str, Any] = {"bias": False, "dtype": dtype, "device": device}
        self.gate_proj = nn.Linear(hidden_size, ffn_size, **options)
        self.up_proj = nn.Linear(hidden_size, ffn_size, **options)
        self.down_proj = nn.Linear(ffn_size, hidden_size, **options)

    @classmethod
    def from_dense(
        cls,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        *,
        activation: str = "relu",
        threshold: float = 0.0,
    ) -> GatedFfn:
        """A layer that holds the given weights themselves: gate and up [H, D], down [D, H].

        A plain tensor becomes a parameter that wants a gradient where the tensor does. Raises
        ValueError where the shapes or dtypes do not fit together.
        """
        if gate.dim() != 2 or up.shape != gate.shape or down.shape != gate.shape[::-1]:
            raise ValueError(
                "gate, up, down: expected shapes [H, D], [H, D], [D, H], got "
                f"{list(gate.shape)}, {list(up.shape)}, {list(down.shape)}"
            )
        if up.dtype != gate.dtype or down.dtype != gate.dtype:
            raise ValueError(
                f"gate, up, down: expected one dtype, got {gate.dtype}, {up.dtype}, {down.dtype}"
            )
        ffn_size, hidden_size = gate.shape
        layer = cls(
            hidden_size,
            ffn_size,
            activation=activation,
            threshold=threshold,
            dtype=gate.dtype,
            device="meta",
        )
        for name, weight in zip(_NAMES, (gate, up, down)):
            if not isinstance(weight, nn.Parameter):
                weight = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
            getattr(layer, name).weight = weight
        return layer

    @property
    def frozen(self) -> bool:
        """Whether the packed weights alone are kept."""
        return self._frozen

    @property
    def screened(self) -> bool:
        """Whether an int8 screen rules neurons out, in a frozen layer."""
        return self._frozen and self.screen is not None

    def freeze(self, sample: Tensor | None = None) -> GatedFfn:
        """Keeps the packed weights alone. Inference only from here on; returns self.

        ``sample`` [..., hidden_size] are inputs like those to come, 32 or more. On a CPU that they
        show to be faster so, the gate stays as it is stored, with an int8 screen
        (:func:`twell.ops.screen_weight`): a sixth more memory in bfloat16, a tenth in float32, the
        same output up to rounding. A frozen layer that gets a sample chooses anew; conversions and
        load_state_dict keep the choice.
        """
        if sample is not None:
            screened = self._screened_for(sample)
            self.thaw()
            return self._freeze(None) if screened is None else self._freeze(*screened)
        return self if self._frozen else self._freeze(None)

    def _freeze(self, axis: Tensor | None, operands: Operands | None = None) -> GatedFfn:
        if operands is None:
            with torch.no_grad():
                operands = self._operands(*(w.detach() for w in self._weights()), axis)
        for name in _NAMES:
            delattr(self, name)
        self._copy = None
        self.l1 = None
        for name, operand in zip(_OPERANDS, operands):
            self.register_buffer(name, operand, persistent=False)
        self._axis = axis
        self._frozen = True
        return self

    def thaw(self) -> GatedFfn:
        """The inverse of freeze: trainable weights in the checkpoint's layout; returns self."""
        if not self._frozen:
            return self
        weights = self._unpack()
        for name in _OPERANDS:
            delattr(self, name)
        for name, weight in zip(_NAMES, weights):
            rows, cols = weight.shape
            linear = nn.Linear(cols, rows, bias=False, device="meta", dtype=weight.dtype)
            linear.weight = nn.Parameter(weight)
            setattr(self, name, linear)
        self._axis = None
        self._frozen = False
        return self

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden_size] to y of the same shape."""
        if self._frozen:
            return self._sparse(x, self.gate, self.up, self.down, self.screen)
        gate, up, down = self._weights()
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, gate, up, down)):
            y, l1 = gated_ffn(x, gate, up, down.t(), self.activation, self.threshold)
            if isinstance(self.l1_weight, Tensor) or self.l1_weight != 0.0:
                y = with_l1(y, l1, self.l1_weight)
                l1 = l1.detach()
            if self.collect_l1:
                self.l1 = l1
            return y
        if torch.compiler.is_compiling():
            return dense.ffn(x, gate, up, down.t(), self.activation, self.threshold)[0]
        key = tuple((w.data_ptr(), 0 if w.is_inference() else w._version) for w in (gate, up, down))
        if self._copy is None or self._copy[0] != key:
            self._copy = (key, self._operands(gate, up, down, None))
        return self._sparse(x, *self._copy[1])

    def extra_repr(self) -> str:
        threshold = f", threshold={self.threshold}" if self.activation == "fat_relu" else ""
        return (
            f"{self.hidden_size}, {self.ffn_size}, activation={self.activation}{threshold}, "
            f"frozen={self._frozen}{', screened=True' if self.screened else ''}"
        )

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight

    def _sparse(
        self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, screen: Tensor | None
    ) -> Tensor:
        return torch.ops.twell.ffn(x, gate, up, down, screen, self.activation, self.threshold)

    @staticmethod
    def _operands(gate: Tensor, up: Tensor, down: Tensor, axis: Tensor | None) -> Operands:
        gate, up, down = gate.contiguous(), up.contiguous(), down.t().contiguous()
        if axis is None or gate.device.type != "cpu":
            return torch.ops.twell.pack_weight(gate), up, down, None
        # A copy: whoever holds the checkpoint's tensor may change it, which no screen notices.
        return gate.clone(), up, down, torch.ops.twell.screen_weight(gate, axis)

    def _screened_for(self, sample: Tensor) -> tuple[Tensor, Operands] | None:
        """The axis of a screen for inputs like these, and the operands with the screen; none where
        it would not pay."""
        fewest = FEWEST_INPUTS * self.hidden_size
        if sample.shape[-1:] != (self.hidden_size,) or sample.numel() < fewest:
            raise ValueError(
                f"sample: expected {FEWEST_INPUTS} or more inputs of size {self.hidden_size}, "
                f"got shape {list(sample.shape)}"
            )
        weights = self._unpack() if self._frozen else self._weights()
        limit = ops.screen_limit() if weights[0].device.type == "cpu" else 0.0
        if limit == 0.0:
            return None
        with torch.no_grad():
            x = sample.detach().reshape(-1, self.hidden_size).to(weights[0])
            axis = x.float().mean(0)
            operands = self._operands(*(w.detach() for w in weights), axis)
            candidates = ops.ffn_stats(x, *operands, self.activation, self.threshold)[3]
        pays = int(candidates) <= limit * x.shape[0] * self.ffn_size
        return (axis, operands) if pays else None

    def _unpack(self) -> tuple[Tensor, Tensor, Tensor]:
        gate = self.gate
        if self.screen is None:
            gate = torch.ops.twell.unpack_weight(gate, self.ffn_size, self.hidden_size)
        return gate, self.up, self.down.t().contiguous()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GatedFfn:
        # The layout depends on dtype and device: convert the checkpoint's layout and freeze again.
        frozen, axis = self._frozen, self._axis
        if frozen:
            self.thaw()
        self._copy = None
        super()._apply(fn, recurse)
        return self._freeze(axis) if frozen else self

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a copy of the weights is not worth its memory.
        return {**self.__dict__, "_copy": None, "l1": None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._frozen:
            gate, up, down = self._unpack()
            # A copy of a screened gate, as in _operands.
            for name, weight in zip(_NAMES, (gate.clone() if self.screened else gate, up, down)):
                destination[f"{prefix}{name}.weight"] = weight

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        frozen, axis = self._frozen, self._axis
        kept = {name: getattr(self, name) for name in _OPERANDS} if frozen else {}
        if frozen:
            self.thaw()
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if frozen:  # the children are there for this call alone: PyTorch will not see them
            for name in _NAMES:
                getattr(self, name)._load_from_state_dict(state_dict, f"{prefix}{name}.", *rest)
            self._freeze(axis)
        with torch.no_grad():  # into the same memory, which a recorded graph reads
            for name, old in kept.items():
                if old is not None:
                    self.register_buffer(name, old.copy_(getattr(self, name)), persistent=False)


def set_l1(model: nn.Module, coefficient: float | Tensor) -> None:
    """Backward of the model adds ``coefficient`` times the mean of its GatedFfn layers' L1 terms, as
    if the loss held :func:`l1_term`; unlike that, also under activation checkpointing of either
    kind. The term does not pass through the loss, so what scales a loss (gradient accumulation, a
    gradient scaler) has to scale the coefficient too. 0 ends it. Call it again to change it: where
    the coefficient is a tensor, torch.compile then needs no new trace.

    Raises ValueError where the model has no such layer that is trained.
    """
    layers = [m for m in model.modules() if isinstance(m, GatedFfn) and not m.frozen]
    if not layers:
        raise ValueError(
            "set_l1: the model has no GatedFfn layer that is not frozen; "
            "sparsify(model, freeze=False) makes them, thaw() frees a frozen one"
        )
    for layer in layers:
        layer.l1_weight = coefficient / len(layers)


def l1_term(model: nn.Module) -> Tensor:
    """The mean over the model's GatedFfn layers of the L1 terms that their last forward passes left
    (``collect_l1``): times a coefficient, what training adds to its loss.

    Raises RuntimeError where no layer has one.
    """
    terms = [m.l1 for m in model.modules() if isinstance(m, GatedFfn) and m.l1 is not None]
    if not terms:
        raise RuntimeError(
            "l1_term: no layer holds an L1 term; set collect_l1 on the GatedFfn layers and run a "
            "forward pass with gradients"
        )
    return torch.stack(terms).mean()
