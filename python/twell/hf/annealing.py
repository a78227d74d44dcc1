"""AnnealingCallback: a path from a model's activation to ReLU."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from twell.hf.activations import Annealed
from twell.hf.drelu import activate_up, gated_layers
from twell.hf.kinds import kinds_in
from twell.hf.said import Computed, Sayings, name_of
from twell.hf.schedule import Schedule


class AnnealingCallback(Schedule):
    """Leads a model from its activation (for example SiLU) to ReLU, in transformers' Trainer. In optimizer
    step k of ``steps``, counted from 1, layers compute (1 - k / steps) of the first plus k / steps of the
    second. From step ``steps`` on there is only ReLU, and the zeros are exact. With ``drelu``, up gets a
    ReLU in the same steps, from no activation (dReLU; Song et al. 2024).

    The configuration says at any time what the layers compute: ``relu`` or ``drelu`` at the end, and before
    that a name that transformers refuses and :func:`twell.hf.from_pretrained` reads. A run that resumes from
    a checkpoint continues the change; one that starts from such a model does the rest of it. Layers whose
    weights do not train change with the others.
    After that, ``twell.sparsify(model, freeze=False)`` and :class:`SparsityCallback` train it further.

    Raises ValueError, before the first step, if the run is shorter than ``steps``, if the model has no
    feed-forward layer with its own activation or one whose activation its configuration cannot name, for
    a model with an adapter and, with ``drelu``, for a layer without a gate, or with a norm or dropout.
    """

    ARGUMENTS = ("steps", "drelu")
    KEPT = ("first_share",)

    def __init__(self, steps: int, drelu: bool = False) -> None:
        if steps < 1:
            raise ValueError(f"AnnealingCallback: steps: expected 1 or more, got {steps}")
        self.steps = steps
        self.drelu = drelu
        self.begin_anew()

    def begin_anew(self) -> None:
        self.first_share: float | None = None
        """Of the way, that lay behind the model when the run began."""
        self._layers: dict[str, tuple[nn.Module, str]] = {}
        self._starts: dict[str, str] = {}
        self._sayings: Sayings | None = None
        self._ups: list[Any] = []  # one of all layers, or one of each

    def look(self, model: nn.Module, args: Any, state: Any) -> None:
        found = kinds_in(model).items()
        self._layers = {name: (m, act) for name, (m, kind) in found if (act := kind.act(m))}
        if not self._layers:
            raise self.refuse("the model has no feed-forward layer whose activation it knows")
        self.look_at_adapters(model)
        self.look_at_path(self.steps, state)
        before = [act for act in self._acts() if isinstance(act, Annealed)]
        if self.first_share is None:
            self.first_share = before[0].share if before else 0.0
        if self.drelu:
            self._ups = [up for m, _ in self._layers.values() if (up := vars(m).get("up_act")) is not None]
            if not self._ups:
                gated_layers("AnnealingCallback", model)
        elif any("up_act" in vars(module) for module, _ in self._layers.values()):
            raise self.refuse("drelu: expected True for a model whose up has an activation, or is on its way to one")
        self._sayings = Sayings(model, list(self._layers))
        self._sayings.check("AnnealingCallback", model, self._computed(1.0))
        self._name_starts()

    def begin(self, model: nn.Module, step: int) -> None:
        if self.drelu and not self._ups:
            self._ups = [Annealed(nn.Identity(), nn.ReLU())]
            activate_up("AnnealingCallback", model, lambda _: self._ups[0])
        for module, act in self._layers.values():
            now = getattr(module, act)
            if not isinstance(now, Annealed):
                setattr(module, act, Annealed(now, nn.ReLU()))
        self._go_to(step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._go_to(state.global_step + 1)

    def end(self, model: nn.Module, step: int) -> None:
        if step < self.steps:
            warnings.warn(
                f"AnnealingCallback: the model is that of step {step} of {self.steps}, and has not come to "
                "ReLU; train it on",
                stacklevel=2,
            )
            return
        for module, act in self._layers.values():
            setattr(module, act, getattr(module, act).end)
        for module, _ in self._layers.values():
            if self._ups:
                module.__dict__["up_act"] = nn.ReLU()

    # --- Its parts ------------------------------------------------------------------------------

    def _acts(self) -> list[Any]:
        return [getattr(module, act) for module, act in self._layers.values()]

    def _name_starts(self) -> None:
        """Finds what the configuration calls the activations that the layers come from."""
        assert self._sayings is not None
        for name, act in zip(self._layers, self._acts()):
            if self._sayings.root_of(name) is None:
                continue
            act = act.start if isinstance(act, Annealed) else act
            if isinstance(act, nn.Module) and next(iter(act.state_dict()), None) is not None:
                raise self.refuse(f"{name}: its activation {type(act).__name__} has weights of its own")
            start = name_of(act, self._sayings, name)
            if start is None:
                raise self.refuse(
                    f"{name}: the configuration says another activation than {type(act).__name__}; "
                    "expected the one that the model has"
                )
            self._starts[name] = start

    def _computed(self, share: float) -> dict[str, Computed]:
        end = "drelu" if self.drelu else "relu"
        return {n: Computed.on_the_way(self._starts.get(n, ""), end, share) for n in self._layers}

    def _go_to(self, step: int) -> None:
        first = self.first_share or 0.0
        share = 1.0 if step >= self.steps else first + (1 - first) * step / self.steps
        for annealed in (*self._acts(), *self._ups):
            annealed.share = share
        if self._sayings is not None:
            self._sayings.write(self._computed(share))
