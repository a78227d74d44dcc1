"""SparsityCallback: the L1 term, live metrics and new weights for dead neurons, in the Trainer."""

from __future__ import annotations

import base64
import math
import sys
import warnings
import zlib
from collections import Counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from twell._children import is_wrapped
from twell.activity import Activity
from twell.hf.said import Computed, Sayings, untrue_in
from twell.hf.schedule import Schedule, plain
from twell.hf.shards import is_sharded, processes
from twell.modules import SparseFfn
from twell.sparsity import LayerMetrics, collect_metrics, set_l1, sparse_layers, trained_layers


class SparsityCallback(Schedule):
    """Trains a model so that fewer neurons fire, inside ``transformers.Trainer``, and reports how many do.

    ``l1`` is the coefficient of the L1 term (:func:`twell.set_l1`). The term enters in backward, so
    the Trainer's loss stays the cross entropy. The term is a mean over the layers, over the passes
    of an optimizer step, and over processes. For one pass it is the mean over all tokens that the
    layers see, also padding and tokens whose label is ignored. The coefficient grows from 0 over
    the first ``warmup`` optimizer steps.

    A neuron that never fires has no gradient and would stay dead (paper, section 4). So every
    ``reinit_every`` steps (0: never), neurons that no token fired for ``dead_window`` steps or more
    get new rows of the gate (of up, if there is no gate). These are drawn from N(0, ``reinit_std``²);
    their biases, and the optimizer's moments of both, become zero. Layers whose weight does not train,
    is shared with another module, or has an adapter stay as they are.

    Every log of the Trainer has these values, over the layers and over the tokens since the last
    log: ``sparsity/nnz`` (neurons that a token fires, on average), ``sparsity/nnz_max`` (at most),
    ``sparsity/share`` (nnz as a share of the neurons), ``sparsity/dead`` (the share that did not
    fire for ``dead_window`` steps), ``sparsity/l1`` (the term), ``sparsity/l1_coefficient``,
    ``sparsity/revived``, and ``sparsity/nnz/LAYER`` for each layer. Everything that ``report_to``
    names shows them. Counts are summed over processes.

    The Trainer's state holds what the callback knows about neurons, so a resumed run goes on as if it
    had not stopped. Every other training run starts anew. If an error ends a run, the term stays in
    the model: ``twell.set_l1(model, 0)`` removes it.

    Raises ValueError for numbers out of range, for a model whose layers are all dense or frozen
    when training begins, under fp16 (a gradient scaler would not scale the term), for ``reinit_every``
    if weights are in shards or no layer may be drawn anew, and for a model whose configuration cannot say
    what its layers compute.
    """

    ARGUMENTS = ("l1", "warmup", "reinit_every", "dead_window", "reinit_std", "seed")
    KEPT = ("idle_text",)

    def __init__(
        self,
        l1: float = 0.0,
        warmup: int = 0,
        reinit_every: int = 0,
        dead_window: int = 50,
        reinit_std: float = 0.02,
        seed: int = 0,
    ) -> None:
        for name, value, least in (
            ("l1", l1, 0),
            ("warmup", warmup, 0),
            ("reinit_every", reinit_every, 0),
            ("dead_window", dead_window, 1),
            ("reinit_std", reinit_std, 0),
        ):
            if not least <= value < math.inf:
                raise ValueError(
                    f"SparsityCallback: {name}: expected {least} or more, got {value}"
                )
        self.l1 = l1
        self.warmup = warmup
        self.reinit_every = reinit_every
        self.dead_window = dead_window
        self.reinit_std = reinit_std
        self.seed = seed
        self.begin_anew()

    def begin_anew(self) -> None:
        self._coefficient = torch.zeros((), dtype=torch.float32, device="cpu")
        self._idle: dict[str, Tensor] = {}  # steps since each neuron fired last
        self._since_log: dict[str, Activity] = {}
        self._dead = 0.0
        self._revived = 0
        self._may_revive: set[str] = set()
        self._sayings: Sayings | None = None
        self._untrue: dict[str, Computed] = {}

    # --- The run --------------------------------------------------------------------------------

    def look(self, model: nn.Module, args: Any, state: Any) -> None:
        layers = self._layers(model)
        if args.fp16:
            raise self.refuse("fp16 scales the loss, and not the L1 term; use bf16=True")
        if self.reinit_every:
            if any(_in_shards(layer) for layer in layers.values()):
                raise self.refuse(
                    "reinit_every: expected 0 where weights are in shards (FSDP, ZeRO-3)"
                )
            owners = Counter(id(p) for m in model.modules() for p in m._parameters.values())
            self._may_revive = {n for n, m in layers.items() if _is_its_own(m, owners)}
            if not self._may_revive:
                raise self.refuse(
                    "reinit_every: expected 0 where no layer's weights are its own to draw anew "
                    "(requires_grad=False, an adapter, shared)"
                )
        if not getattr(model, "peft_config", None):
            self._sayings, self._untrue = untrue_in(model, sparse_layers(model))
        if self._sayings is not None and self._untrue:
            self._sayings.check(type(self).__name__, model, self._untrue)
        most = getattr(state, "max_steps", 0)
        if self.l1 and 0 < most < self.warmup:
            warnings.warn(
                f"SparsityCallback: the run has {most} steps, and l1 grows to {self.l1} in {self.warmup}: it "
                f"comes to {self.l1 * most / self.warmup:.3g}",
                stacklevel=2,
            )

    def begin(self, model: nn.Module, step: int) -> None:
        if self._sayings is not None:
            self._sayings.write(self._untrue)
        collect_metrics(model)
        for name, layer in self._layers(model).items():
            idle = self._idle.get(name)
            if idle is None or idle.numel() != layer.neurons:
                self._idle[name] = torch.zeros(layer.neurons, dtype=torch.int64, device="cpu")

    def end(self, model: nn.Module, step: int) -> None:
        for layer in self._layers(model).values():
            layer.l1_weight = 0.0
            layer.collect_activity, layer.activity = False, None

    # --- Trainer's events ---------------------------------------------------------------------

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        # A tensor, changed in place: compiled models read it without a new trace.
        share = 1.0 if self.warmup == 0 else min(1.0, (state.global_step + 1) / self.warmup)
        self._coefficient.fill_(self.l1 * share)
        set_l1(plain(given["model"]), self._coefficient, accumulation=_passes_of_step(args))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        layers = self._layers(plain(given["model"]))
        for name, layer in layers.items():
            now, layer.activity = _over_processes(layer), None
            if now is None:
                continue
            before = self._since_log.get(name)
            self._since_log[name] = now if before is None else before.plus(now)
            idle = self._idle[name]
            self._idle[name] = torch.where(now.neurons.cpu() > 0, torch.zeros_like(idle), idle + 1)
        dead = [float((i >= self.dead_window).double().mean()) for i in self._idle.values()]
        self._dead = sum(dead) / len(dead)
        if self.reinit_every and state.global_step % self.reinit_every == 0:
            self._revive(layers, given.get("optimizer"), state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if logs is None or "loss" not in logs or not self._since_log:
            return  # of an evaluation, or of the end of training
        found = self._values()
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)
        self._since_log.clear()
        self._revived = 0

    # --- Its parts ----------------------------------------------------------------------------

    @staticmethod
    def _layers(model: nn.Module) -> dict[str, SparseFfn]:
        return trained_layers("SparsityCallback", model)

    def _values(self) -> dict[str, float]:
        seen = [LayerMetrics.of(name, activity) for name, activity in self._since_log.items()]
        shares = [m.nnz_mean / self._idle[m.name].numel() for m in seen]
        return {
            "sparsity/nnz": sum(m.nnz_mean for m in seen) / len(seen),
            "sparsity/nnz_max": max(m.nnz_max for m in seen),
            "sparsity/share": sum(shares) / len(seen),
            "sparsity/dead": self._dead,
            "sparsity/l1": sum(m.l1 for m in seen) / len(seen),
            "sparsity/l1_coefficient": float(self._coefficient),
            "sparsity/revived": self._revived,
            **{f"sparsity/nnz/{m.name}": m.nnz_mean for m in seen},
        }

    @torch.no_grad()
    def _revive(self, layers: dict[str, SparseFfn], optimizer: Any, step: int) -> None:
        generator = torch.Generator("cpu").manual_seed((self.seed << 32) + step)
        for name, layer in layers.items():
            if name not in self._may_revive:
                continue
            dead = torch.nonzero(self._idle[name] >= self.dead_window).flatten()
            if dead.numel() == 0:
                continue
            shape = (dead.numel(), layer.width)
            fresh = self.reinit_std * torch.randn(
                shape, generator=generator, dtype=torch.float32, device="cpu"
            )
            for parameter, rows_of in layer.of_neurons():
                rows = rows_of(parameter)
                at = dead.to(rows.device)
                rows[at] = fresh.to(rows) if rows.dim() == 2 else 0  # of a bias
                for moment in _moments(optimizer, parameter):
                    rows_of(moment)[at] = 0
            self._idle[name][dead] = 0
            self._revived += dead.numel()

    # --- Saved with the Trainer's state ---------------------------------------------------------

    @property
    def idle_text(self) -> dict[str, str]:
        """Steps since each neuron last fired, as the Trainer's state holds them."""
        return {name: _to_text(steps) for name, steps in self._idle.items()}

    @idle_text.setter
    def idle_text(self, texts: dict[str, str]) -> None:
        self._idle = {name: _of_text(text) for name, text in texts.items()}


def _is_its_own(layer: SparseFfn, owners: Counter[int]) -> bool:
    """Whether the rows of its first linear layer may be drawn anew."""
    own = [p for p, _ in layer.of_neurons()]
    plain = layer.is_ordinary(layer.names[0])
    return plain and all(p.requires_grad and owners[id(p)] == 1 for p in own)


def _passes_of_step(args: Any) -> int:
    """How many backward passes the coming optimizer step adds up. The last step of an epoch may
    have fewer than the arguments say. Only the Trainer, which is among the callers, knows. If it
    computes on several GPUs in one process, each GPU counts as a pass."""
    frame: FrameType | None = sys._getframe(1)
    passes: int | None = None
    while frame is not None and passes is None:
        passes = getattr(frame.f_locals.get("self"), "current_gradient_accumulation_steps", None)
        frame = frame.f_back
    return (passes or args.gradient_accumulation_steps) * max(args.n_gpu, 1)


def _in_shards(layer: SparseFfn) -> bool:
    weight = next(p for p, _ in layer.of_neurons())
    return is_sharded(weight) or is_wrapped(weight)


def _over_processes(layer: SparseFfn) -> Activity | None:
    """What the layer counted in all processes, also in those where it was not called. None if no
    process called it."""
    activity = layer.activity
    if processes() == 1:
        return activity
    if activity is None:
        weight = layer.part(layer.names[0]).weight
        activity = Activity.none(layer.neurons, weight.device)
    out = []
    for name, value in zip(Activity._fields, activity):
        value = value.clone()
        maximum = torch.distributed.ReduceOp.MAX
        total = torch.distributed.ReduceOp.SUM
        torch.distributed.all_reduce(value, maximum if name == "nnz_max" else total)
        out.append(value)
    found = Activity(*out)
    return found if found.tokens > 0 else None


def _moments(optimizer: Any, weight: Tensor) -> list[Tensor]:
    """The tensors that an optimizer keeps with a value for each element of the weight."""
    kept = {} if optimizer is None else optimizer.state.get(weight, {})
    return [v for v in kept.values() if isinstance(v, Tensor) and v.shape == weight.shape]


def _to_text(steps: Tensor) -> str:
    return base64.b64encode(zlib.compress(steps.numpy().tobytes())).decode()


def _of_text(text: str) -> Tensor:
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.int64)
