"""What stands at the names of a frozen layer's parts: it has their names and sizes, and no weights. Whatever
it cannot do is refused where it is asked for, in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

_INSTEAD = "call thaw() on the layer first, or sparsify(model, freeze=False)"


class PackedWeight(Tensor):
    """A weight that is packed in a frozen layer: its size, dtype and device."""

    place: str
    # No mode of its own: PyTorch's encoder asks for one before it takes nested tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(place: str, like: Tensor, device: torch.device) -> PackedWeight:
        options: dict[str, Any] = {"dtype": like.dtype, "device": device}
        made: PackedWeight = Tensor._make_wrapper_subclass(PackedWeight, like.shape, **options)
        made.place = place
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> NoReturn:
        all_of_them = torch.utils._pytree.tree_leaves((arguments, options))
        next(t for t in all_of_them if isinstance(t, PackedWeight)).refuse()

    def refuse(self) -> NoReturn:
        raise ValueError(
            f"{self.place}: is packed in a frozen layer of twell and cannot be read or written alone; "
            f"state_dict() has its numbers, or {_INSTEAD}"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.place}, {list(self.shape)}, {self.dtype})"


class Kept(dict[str, Tensor]):
    """The tensors that a frozen layer has for its checkpoint, in place of a module's buffers. Names are
    looked up and set; they are not iterated over, so that nothing else takes them for buffers."""

    def __init__(
        self,
        name: str,
        like: Mapping[str, Tensor],
        device: Callable[[], torch.device],
        load: Callable[[str, Tensor], None],
    ) -> None:
        super().__init__()
        self.name = name
        self.like = dict(like)
        self.device = device
        self.load = load

    def __contains__(self, name: object) -> bool:
        return name in self.like

    def __getitem__(self, name: str) -> PackedWeight:
        own = f"{self.name}.{name}" if self.name else name
        return PackedWeight.of(own, self.like[name], self.device())

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self.load(name, tensor)

    def __delitem__(self, name: str) -> None:
        self[name].refuse()


def sizes_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's parameters without numbers."""
    own = module._parameters.items()
    return {n: torch.empty(p.shape, dtype=p.dtype, device="meta") for n, p in own if p is not None}


class FrozenPart(nn.Module):
    """What stands at the name of a linear layer, or of a norm, that a frozen layer has packed. The layer
    reads and writes its part of the checkpoint. It can neither be called nor changed."""

    _layer: Any
    _name: str

    def __init__(self, layer: Any, name: str, module: nn.Module) -> None:
        super().__init__()
        # No children: the layer is above it, and the module has lost its weights.
        self.__dict__.update(_layer=layer, _name=name)
        self.take(module)

    def take(self, module: nn.Module) -> None:
        """Stands for this module, which has its weights."""
        known = ("in_features", "out_features", "nf", "nx", "eps", "variance_epsilon")
        self.__dict__.update({n: getattr(module, n) for n in known if hasattr(module, n)})
        self._stand(sizes_of(module))

    def _stand(self, like: Mapping[str, Tensor]) -> None:
        layer, name = self._layer, self._name
        self.__dict__["_buffers"] = Kept(
            name, like, lambda: layer.device, lambda own, tensor: layer.load_part(name, own, tensor)
        )

    def forward(self, *_: Any, **__: Any) -> Any:
        self._refuse("cannot be called alone")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{self._name}: is packed in a frozen layer of twell and {what}; {_INSTEAD}")

    def _no_hook(self, *_: Any, **__: Any) -> Any:
        self._refuse("takes no hooks, which nothing would call")

    register_forward_pre_hook = _no_hook
    register_forward_hook = _no_hook
    register_full_backward_pre_hook = _no_hook
    register_full_backward_hook = _no_hook
    register_backward_hook = _no_hook

    def _nothing_more(self, *_: Any, **__: Any) -> Any:
        self._refuse("takes no further modules, parameters or buffers")

    register_parameter = _nothing_more
    register_buffer = _nothing_more
    add_module = register_module = _nothing_more

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (nn.Module, nn.Parameter)):
            self._nothing_more()
        super().__setattr__(name, value)

    def _load_from_state_dict(self, *_: Any) -> None:
        """The layer has done it."""

    def __repr__(self) -> str:
        return f"FrozenPart({self._name}: packed by twell; thaw() its layer, or sparsify(freeze=False))"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": self._buffers.like}  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stand(state["_buffers"])

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenPart:
        if id(self._layer.holder) not in memo:
            self._refuse("cannot be copied alone")
        import copy

        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin
