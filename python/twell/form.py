"""The form of a feed-forward layer: what it computes besides its three products, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from torch import Tensor


class Additions(TypedDict, total=False):
    """What a layer computes besides the gate's activation, as arguments of functions."""

    up_activation: str
    """In a gated layer: identity, relu (dReLU, if the gate has it too) or relu_squared."""
    gate_bias: Tensor | None
    """[H]; in a layer without a gate the bias of up, which is in the gate's place."""
    up_bias: Tensor | None
    """[H], in a gated layer."""
    down_bias: Tensor | None
    """[columns of down]."""
    norm_weight: Tensor | None
    """[H], of an RMSNorm of the hidden state; none: ones."""
    norm_epsilon: float | None
    """ε of that norm, above 0. There is a norm if this is given."""


class Form(NamedTuple):
    """A layer's form: ``activation`` and ``threshold`` of the gate, and the :class:`Additions`.

    With v = x Wgᵀ + gate_bias and u = x Wuᵀ + up_bias: h = act(v) ⊙ act_up(u), and
    y = (s · norm_weight ⊙ h) Wd + down_bias, where s is 1 / √(mean of h² + norm_epsilon) of each
    token; without a norm y = h Wd + down_bias. Without a gate h = act(x Wuᵀ + gate_bias).
    """

    activation: str = "relu"
    threshold: float = 0.0
    up_activation: str = "identity"
    norm_epsilon: float | None = None
    gate_bias: Tensor | None = None  # from here on vectors, in the order of kFormVectors
    up_bias: Tensor | None = None  # (include/twell/ffn_form.h)
    down_bias: Tensor | None = None
    norm_weight: Tensor | None = None

    @property
    def vectors(self) -> tuple[Tensor | None, ...]:
        vectors: Any = self[_SCALARS:]
        return tuple(vectors)

    def with_vectors(self, vectors: Sequence[Any]) -> Form:
        """The last ones may be left out."""
        scalars: Any = self[:_SCALARS]
        return Form(*scalars, *vectors)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the gate's activation."""
        none = self.norm_epsilon is None and all(v is None for v in self.vectors)
        return none and self.up_activation == "identity"

    @property
    def text(self) -> str:
        """The scalars, as operators take them; src/torch_ops/form_text.h writes the same."""
        if " " in self.activation or " " in self.up_activation:  # would be read as more than a name
            raise ValueError(f'form: expected names of activations, got "{self.activation}"')
        words = [self.activation]
        if self.threshold != 0:
            words.append(f"threshold={float(self.threshold)!r}")
        if self.up_activation != "identity":
            words.append(f"up={self.up_activation}")
        if self.norm_epsilon is not None:
            words.append(f"norm={float(self.norm_epsilon)!r}")
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> Form:
        """The inverse of :attr:`text`, without vectors."""
        activation, *words = text.split(" ")
        given = dict(word.split("=") for word in words)
        threshold, up = float(given.get("threshold", 0)), given.get("up", "identity")
        epsilon = float(given["norm"]) if "norm" in given else None
        return Form(activation, threshold, up, norm_epsilon=epsilon)

    def weights(self, gate: Tensor, up: Tensor | None, down: Tensor) -> list[Tensor | None]:
        """These and the vectors, as operators take them."""
        if all(vector is None for vector in self.vectors):
            return [gate, up, down]
        return [gate, up, down, *self.vectors]


_SCALARS = 4
VECTORS = Form._fields[_SCALARS:]
PLAIN = Form()
