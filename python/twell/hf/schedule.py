"""What the callbacks of transformers' Trainer have in common."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from twell.hf.models import require

require("transformers", "twell.hf.SparsityCallback")
from transformers import TrainerCallback, TrainerState  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402


class Schedule(TrainerCallback, ExportableState):
    """Changes a model while it is trained: one model, in one run.

    Before the first step every schedule of the run looks at the model, and none changes it if one refuses.
    What a schedule knows travels in the Trainer's checkpoints. A run that resumes puts it back, and so
    does the end of a run that brings back the best model (load_best_model_at_end)."""

    ARGUMENTS: ClassVar[tuple[str, ...]]
    """Of the constructor; attributes too."""
    KEPT: ClassVar[tuple[str, ...]]
    """Attributes that travel in checkpoints; what JSON has."""
    resumed = False
    """Whether the run goes on behind a checkpoint that knows of it."""

    def begin_anew(self) -> None:
        """Forgets another run."""

    def look(self, model: nn.Module, args: Any, state: Any) -> None:
        """Raises ValueError if it cannot do its work; changes nothing of the model."""

    def begin(self, model: nn.Module, step: int) -> None:
        """Changes the model; also where what was kept of this step was put back."""

    def end(self, model: nn.Module, step: int) -> None:
        """Of the run, whose model is that of the step."""

    # --- Trainer's events -----------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model = plain(given["model"])
        callbacks = _callbacks_with(self)
        schedules = [each for each in callbacks if isinstance(each, Schedule)] or [self]
        if schedules[0] is self:
            for each in schedules:
                if sum(type(other) is type(each) for other in schedules) > 1:
                    raise each.refuse("expected one of its kind in a run, got several")
                each.begin_anew()
                each.resumed = each._put_back(state)
                each.look(model, args, state)
        if self in callbacks:
            # Those of report_to stand before what the user adds, and would see a log before this one has
            # written into it.
            callbacks.remove(self)
            callbacks.insert(schedules.index(self), self)
        self.begin(model, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model, step = plain(given["model"]), state.global_step
        if getattr(args, "load_best_model_at_end", False) and state.best_model_checkpoint:
            best = TrainerState.load_from_json(str(Path(state.best_model_checkpoint, "trainer_state.json")))
            step = best.global_step
            if self._put_back(best):
                self.begin(model, step)
        self.end(model, step)

    # --- In the Trainer's state -------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "args": {name: getattr(self, name) for name in self.ARGUMENTS},
            "attributes": {name: getattr(self, name) for name in self.KEPT},
        }

    def _put_back(self, state: Any) -> bool:
        """What a checkpoint has of it. False where there is none."""
        saved = (getattr(state, "stateful_callbacks", None) or {}).get(type(self).__name__)
        if state.global_step == 0 or not isinstance(saved, dict):
            return False
        for name in self.KEPT:
            if name in saved["attributes"]:
                setattr(self, name, saved["attributes"][name])
        return True

    # --- What several refuse ------------------------------------------------------------------------

    def refuse(self, what: str) -> ValueError:
        return ValueError(f"{type(self).__name__}: {what}")

    def look_at_path(self, steps: int, state: Any) -> None:
        """Raises ValueError for a path that the run does not go to its end, or not from its beginning."""
        most = getattr(state, "max_steps", 0)
        if 0 < most < steps:
            raise self.refuse(f"steps: expected no more than the run has, {most}, got {steps}")
        if state.global_step > 0 and not self.resumed:
            raise self.refuse(
                "the checkpoint that the run resumes has no state of it; begin a run of its own, from the "
                "checkpoint's directory as the model"
            )

    def look_at_adapters(self, model: nn.Module) -> None:
        if getattr(model, "peft_config", None):
            raise self.refuse(
                "expected a model without an adapter (LoRA), which is saved alone and without what its base "
                "comes to compute; merge it first (merge_and_unload)"
            )


def plain(model: nn.Module) -> nn.Module:
    """Without what torch.compile puts around it, whose names are others."""
    return getattr(model, "_orig_mod", model)


def _callbacks_with(callback: Schedule) -> list[Any]:
    """The Trainer's list, which only the caller knows."""
    handler = sys._getframe(2).f_locals.get("self")
    callbacks = getattr(handler, "callbacks", None)
    return callbacks if isinstance(callbacks, list) and callback in callbacks else []
