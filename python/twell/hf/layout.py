"""How a checkpoint has a layer's weights, where that is not how the layer's children have them.

Hooks on the state_dict translate. Names of parameters are those of the children.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Layout:
    def attach(self, module: nn.Module) -> None:
        module.register_state_dict_post_hook(self)  # not a method, which PyTorch could not mark
        module.register_load_state_dict_pre_hook(self.loaded)

    def __call__(self, module: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
        raise NotImplementedError

    def loaded(
        self, module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any
    ) -> None:
        raise NotImplementedError


class Stacked(_Layout):
    """Experts, which the checkpoint has as one tensor [experts, rows, columns] for each weight."""

    def __init__(self, into: str, down: str, gated: bool) -> None:
        self.into = into
        self.down = down
        self.gated = gated

    def _parts(self) -> dict[str, tuple[str, ...]]:
        into = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        return {self.into: into, self.down: ("down_proj",)}

    def __call__(self, module: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
        count = len(module)  # type: ignore[arg-type]
        old, new = [], {}
        for name, parts in self._parts().items():
            keys = [[f"{prefix}{i}.{part}.weight" for part in parts] for i in range(count)]
            if all(key in state for each in keys for key in each):
                new[prefix + name] = torch.stack([torch.cat([state[k] for k in each]) for each in keys])
                old += [key for each in keys for key in each]
        if old:
            _put(state, old, new)

    def loaded(self, module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
        for name, parts in self._parts().items():
            if (whole := state.pop(prefix + name, None)) is not None:
                for i, expert in enumerate(whole):
                    for part, tensor in zip(parts, expert.chunk(len(parts))):
                        state[f"{prefix}{i}.{part}.weight"] = tensor


def _put(state: dict[str, Tensor], old: list[str], new: dict[str, Tensor]) -> None:
    """Puts new keys in the place of the first old one, so that the order is the checkpoint's."""
    items = list(state.items())
    state.clear()
    gone = set(old)
    for key, value in items:
        if key == old[0]:
            state.update(new)
        elif key not in gone:
            state[key] = value
