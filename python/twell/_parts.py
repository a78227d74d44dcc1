"""What a layer is made of: its linear layers, norm and activation, by name, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from twell import _children
from twell._children import as_rows


def _dropout(which: int, doc: str) -> Any:
    """An attribute of layers: a number of theirs, or of the module that drops."""

    def share(self: Any) -> float:
        own = self._dropouts[which]
        return float(getattr(self.part(own), "p", 0.0)) if isinstance(own, str) else own

    def set_share(self: Any, share: float) -> None:
        if isinstance(own := self._dropouts[which], str):
            self.part(own).p = share
        else:
            self._dropouts[which] = share

    return property(share, set_share, doc=doc)


class LayerOfParts(nn.Module):
    """The half of a layer that knows its parts: they are its children, or stay those of another module."""

    # What a layer says of itself.
    names: tuple[str, ...]
    width: int
    neurons: int
    activation: str
    threshold: float
    up_activation: str
    norm_name: str | None
    act_name: str
    fused: bool
    _dropouts: list[float | str]
    _types: dict[str, type[Any]]
    _holder: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_holder"] = None  # the module that has the parts, where that is another: no child

    @property
    def _child_names(self) -> tuple[str, ...]:
        return self.names if self.norm_name is None else (*self.names, self.norm_name)

    @property
    def holder(self) -> nn.Module:
        """The module whose children the parts are."""
        return self if self._holder is None else self._holder

    def part(self, name: str) -> Any:
        """The module of that name: a linear layer or norm, or whatever was put in its place."""
        return getattr(self if self._holder is None else self._holder, name)

    def _parts(self) -> dict[str, Any]:
        return {name: self.part(name) for name in self._child_names}

    def part_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the linear layers and the norm, wherever they are."""
        parts = self._parts().items()
        return {f"{n}.{own}": p for n, part in parts for own, p in part.named_parameters()}

    def of_neurons(self) -> Iterator[tuple[nn.Parameter, Callable[[Tensor], Tensor]]]:
        """The parameters of the gate (of up in a layer without a gate), which have a row for each neuron. Each
        comes with a function that finds the rows in a tensor of the parameter's shape."""
        part = self.part(self.names[0])
        for parameter in part.parameters():
            yield parameter, lambda t: as_rows(part, t)[: self.neurons]

    def _three(self, weights: Iterable[Tensor]) -> tuple[Tensor, Tensor | None, Tensor]:
        """gate, up and down; without a gate, up in its place and no up."""
        gate, *up, down = weights
        if self.fused:
            gate, *up = gate.chunk(2)
        return gate, (up[0] if up else None), down

    hidden_dropout = _dropout(
        0, "The share of the hidden state that is dropped in training, as the module that drops it has it, if any."
    )
    output_dropout = _dropout(1, "The same share for y.")

    @property
    def drops(self) -> bool:
        """Whether hidden states are dropped now."""
        return self.training and self.hidden_dropout > 0.0

    def _take_act(self, name: str, act: Any, says: bool) -> None:
        """The module or function that the activation stands in; whether it is the layer's own."""
        if self.holder is self and hasattr(self, name):  # of which the layer has another
            name, act = "", None
        self.act_name = name
        self.__dict__["_act"] = act  # no second child
        self.__dict__["_act_says"] = (self.activation, self.threshold) if says else None
        if name and self.holder is self:
            setattr(self, name, act)

    def _hangs_on_act(self) -> str | None:
        """What is attached to the activation's module, in words; another module is, too."""
        holder, name = self if self._holder is None else self._holder, self.act_name
        act = holder._modules[name] if name in holder._modules else holder.__dict__.get(name)
        if act is not self._act:
            return f"a {type(act).__name__} in its place"
        return "hooks" if isinstance(act, nn.Module) and _children.has_hooks(act) else None

    def _special_child(self) -> str | None:
        """The first part that does more, or other, than it says."""
        for name in self._child_names:
            if not self.is_ordinary(name):
                return name
        return self.act_name if self.act_name and self._hangs_on_act() else None

    def is_ordinary(self, name: str) -> bool:
        """Whether the part multiplies by its weight and does nothing else."""
        return not _children.does_more(self.part(name), self._expected_type(name))

    def _expected_type(self, name: str) -> type[nn.Module]:
        return self._types.get(name, nn.Linear)

    def _check_children(self, where: str) -> None:
        """Raises ValueError where a part has what a frozen layer would lose; ``where`` stands before
        its name."""
        for name, part in self._parts().items():
            if isinstance(part, nn.Module):
                _children.check(f"{where}{name}", part, self._expected_type(name))
        if self.act_name and (hangs := self._hangs_on_act()):
            raise ValueError(f"{where}{self.act_name} has {hangs}, which a frozen layer would lose; remove that first")
