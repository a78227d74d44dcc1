"""What a feed-forward layer computes beside its three products, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from torch import Tensor


class Additions(TypedDict, total=False):
    """What a layer has beside the gate's activation, as functions take it."""

    up_activation: str
    """Of a gated layer: identity, relu (dReLU, where the gate has it too) or relu_squared."""
    gate_bias: Tensor | None
    """[H]; without a gate that of up, as up is in the gate's place."""
    up_bias: Tensor | None
    """[H], of a gated layer."""
    down_bias: Tensor | None
    """[columns of down]."""
    norm_weight: Tensor | None
    """[H], of an RMSNorm of the hidden state; none: ones."""
    norm_epsilon: float | None
    """Of that norm, which is there where this is: above 0."""


class Form(NamedTuple):
    """A layer's form: ``activation`` and ``threshold`` of the gate, and the :class:`Additions`.

    With v = x Wgᵀ + gate_bias and u = x Wuᵀ + up_bias: h = act(v) ⊙ act_up(u), and
    y = (s · norm_weight ⊙ h) Wd + down_bias, where s is 1 / √(mean of h² + norm_epsilon) of each
    token; without a norm y = h Wd + down_bias. Without a gate h = act(x Wuᵀ + gate_bias).
    """

    activation: str = "relu"
    threshold: float = 0.0
    up_activation: str = "identity"
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_epsilon: float | None = None

    @property
    def vectors(self) -> tuple[Tensor | None, ...]:
        return self[3:7]

    def with_vectors(self, vectors: Sequence[Any]) -> Form:
        gate_bias, up_bias, down_bias, norm_weight = vectors
        scalars = self.activation, self.threshold, self.up_activation
        return Form(*scalars, gate_bias, up_bias, down_bias, norm_weight, self.norm_epsilon)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the gate's activation."""
        none = self.norm_epsilon is None and all(v is None for v in self.vectors)
        return none and self.up_activation == "identity"

    @property
    def text(self) -> str:
        """What is no vector, as operators take it (src/torch_ops/form_text.h)."""
        words = [self.activation]
        if self.threshold:
            words.append(f"threshold={self.threshold!r}")
        if self.up_activation != "identity":
            words.append(f"up={self.up_activation}")
        if self.norm_epsilon is not None:
            words.append(f"norm={self.norm_epsilon!r}")
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> Form:
        """The inverse, without vectors."""
        activation, *rest = text.split(" ")
        named = dict(word.split("=") for word in rest)
        epsilon = named.get("norm")
        return Form(
            activation,
            float(named.get("threshold", 0)),
            named.get("up", "identity"),
            norm_epsilon=None if epsilon is None else float(epsilon),
        )

    def operands(self, hot: int = 0) -> tuple[Any, ...]:
        """The last arguments of the operators that compute a layer."""
        return (self.activation, self.threshold, hot, *self[2:])

    @staticmethod
    def of_operands(
        activation: str = "relu", threshold: float = 0.0, hot: int = 0, *rest: Any, **named: Any
    ) -> Form:
        """The inverse, without ``hot``."""
        return Form(activation, threshold, *rest, **named)


PLAIN = Form()
