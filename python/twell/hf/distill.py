"""From a dense model to one with exact zeros: a teacher, and a path from one activation to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from twell.hf.drelu import activate_up
from twell.hf.kinds import KINDS, kind_of
from twell.hf.models import require, say_activation

require("transformers", "twell.hf.DistillationTrainer")
from transformers import Trainer, TrainerCallback  # noqa: E402

# Rows of logits that become fp32 at a time. Of 49,152 tokens they take 0.8 GB.
_ROWS = 4096


class _Divergence(torch.autograd.Function):
    """Keeps the gradient instead of what it is made of: logits are the largest tensors of a pass."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        grad = torch.empty_like(student)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        parts = (student.split(_ROWS), teacher.split(_ROWS), grad.split(_ROWS))
        for of_student, of_teacher, of_grad in zip(*parts):
            p = torch.log_softmax(of_student.float() / temperature, -1)
            q = torch.log_softmax(of_teacher.float() / temperature, -1)
            total += (q.exp() * (q - p)).sum()
            of_grad.copy_((p.exp() - q.exp()) * (temperature / len(student)))
        ctx.save_for_backward(grad)
        return total * (temperature**2 / max(len(student), 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * dloss.to(grad.dtype), None, None


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """The Kullback-Leibler divergence of the student's tokens from the teacher's, averaged over rows:
    T² Σ q (log q - log p), p and q the softmax of logits [rows, tokens] divided by the temperature T
    (Hinton, Vinyals, Dean 2015; T² keeps the gradient's size). A float32 scalar, differentiable once
    in the student's logits. Raises ValueError if the shapes differ."""
    if student.shape != teacher.shape or student.dim() != 2:
        raise ValueError(
            f"divergence: expected logits [rows, tokens] of one shape, "
            f"got {list(student.shape)} and {list(teacher.shape)}"
        )
    return _Divergence.apply(student, teacher, temperature)


def hidden_error(student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """How far the student's hidden states [tokens, width] are from the teacher's: the squared distance
    as a share of the teacher's squared length, averaged over tokens and layers. As a share, since a
    few tokens of a Llama have states a thousand times as long as the others'."""
    terms = []
    for s, t in zip(student, teacher):
        t = t.float()
        length = t.square().sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
        terms.append(((s.float() - t).square().sum(-1) / length).mean())
    return torch.stack(terms).mean()


class DistillationTrainer(Trainer):
    """transformers' Trainer with a teacher's outputs in place of labels.

    The loss of a pass is ``divergence(student, teacher, temperature) + hidden * hidden_error(...)``,
    the latter over the outputs of all layers (0: logits alone). Both are means over the tokens that
    attention_mask has. The teacher computes in bf16 if the Trainer does, and is in shards if the Trainer
    keeps the model so (FSDP2, ZeRO-3). Evaluation stays the cross entropy of labels. Logs have both
    terms, averaged over processes: ``distill/divergence`` and ``distill/hidden``.

    Other arguments are the Trainer's. Raises ValueError if the two vocabularies differ or, where
    ``hidden`` is not 0, layers or width.
    """

    def __init__(
        self,
        *args: Any,
        teacher: nn.Module,
        temperature: float = 1.0,
        hidden: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.model_accepts_loss_kwargs = False  # a mean over each pass, which the Trainer averages
        student = self.accelerator.unwrap_model(self.model).config
        same = ["vocab_size", *(["num_hidden_layers", "hidden_size"] if hidden else [])]
        for key in same:
            has, wants = getattr(teacher.config, key, None), getattr(student, key, None)
            if has != wants:
                raise ValueError(
                    f"DistillationTrainer: teacher: {key}: expected {wants} as in the model, got {has}"
                )
        if not temperature > 0:
            raise ValueError(
                f"DistillationTrainer: temperature: expected more than 0, got {temperature}"
            )
        if not hidden >= 0:
            raise ValueError(f"DistillationTrainer: hidden: expected 0 or more, got {hidden}")
        self.teacher = self._placed(teacher.eval().requires_grad_(False))
        self.temperature = temperature
        self.hidden = hidden
        self._terms: dict[str, list[Tensor]] = {}

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **options: Any
    ) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, **options)
        given = {k: v for k, v in inputs.items() if k != "labels"}
        given |= {"use_cache": False, "output_hidden_states": self.hidden > 0}
        output = model(**given)
        with torch.no_grad():
            wanted = self.teacher(**given)
        mask = inputs.get("attention_mask")
        there = None if mask is None or bool(mask.all()) else mask.flatten().bool()

        def rows(x: Tensor) -> Tensor:
            x = x.flatten(0, -2)
            return x if there is None else x[there]

        loss = divergence(rows(output.logits), rows(wanted.logits), self.temperature)
        self._note("distill/divergence", loss)
        if self.hidden > 0:
            states = ([rows(x) for x in of.hidden_states[1:]] for of in (output, wanted))
            error = hidden_error(*states)
            self._note("distill/hidden", error)
            loss = loss + self.hidden * error
        return (loss, output) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        if "loss" in logs:
            for name, seen in self._terms.items():
                mean = torch.stack(seen).mean()
                logs[name] = float(self.accelerator.gather(mean).mean())
            self._terms.clear()
        super().log(logs, *args, **options)

    def _placed(self, teacher: nn.Module) -> nn.Module:
        """On the device, or in shards where the student is."""
        dtype = torch.bfloat16 if self.args.bf16 else None
        plugin = getattr(self.accelerator.state, "deepspeed_plugin", None)
        if plugin is not None and plugin.zero_stage == 3:
            import deepspeed

            said = plugin.deepspeed_config["zero_optimization"]
            config = {
                "train_micro_batch_size_per_gpu": 1,  # asked for, and used nowhere
                "zero_optimization": {k: v for k, v in said.items() if v != "auto"},
                "bf16": {"enabled": dtype is not None},
            }
            return deepspeed.initialize(model=teacher, config=config)[0]
        if self.accelerator.is_fsdp2:
            from accelerate.utils.fsdp_utils import fsdp2_prepare_model

            return fsdp2_prepare_model(self.accelerator, teacher.to(dtype))
        return teacher.to(self.args.device, dtype)

    def _note(self, name: str, value: Tensor) -> None:
        self._terms.setdefault(name, []).append(value.detach())


class Annealed(nn.Module):
    """(1 - share) · start(x) + share · end(x). At a share of 1 it is the end's own bits."""

    def __init__(self, start: Any, end: nn.Module) -> None:
        super().__init__()
        self.start, self.end = start, end
        self.share = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.share >= 1:
            return self.end(x)
        return torch.lerp(self.start(x), self.end(x), self.share)


class AnnealingCallback(TrainerCallback):
    """Leads a model from its activation (SiLU, say) to ReLU, in transformers' Trainer: in optimizer
    step k of ``steps``, counted from 1, layers compute (1 - k / steps) of the one plus k / steps of
    the other. From step ``steps`` on there is ReLU alone, and the zeros are exact. With ``drelu``, up
    comes to have a ReLU as well, on the same path from no activation (dReLU; Song et al. 2024).

    When training ends, the layers have ReLU and the configuration says so (``hidden_act`` relu or
    drelu), if it got that far. Until then checkpoints name the old activation; resumed by the Trainer,
    they go on along the path.
    Then ``twell.sparsify(model, freeze=False)`` and :class:`SparsityCallback` train it further.

    Raises ValueError if the model has no feed-forward layer with an activation of its own and, with
    ``drelu``, for a layer without a gate, or with a norm or dropout.
    """

    def __init__(self, steps: int, drelu: bool = False) -> None:
        if steps < 1:
            raise ValueError(f"AnnealingCallback: steps: expected 1 or more, got {steps}")
        self.steps = steps
        self.drelu = drelu
        self._layers: list[tuple[nn.Module, str, Annealed]] = []
        self._up: Annealed | None = None  # of all layers

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._layers = []
        if self.drelu and self._up is None:
            self._up = Annealed(nn.Identity(), nn.ReLU())
            activate_up("AnnealingCallback", given["model"], self._up)
        for module in list(given["model"].modules()):
            kind = kind_of(module, KINDS)
            name = "" if kind is None or kind.in_code else kind.act(module)
            if name:
                act = getattr(module, name)
                annealed = act if isinstance(act, Annealed) else Annealed(act, nn.ReLU())
                setattr(module, name, annealed)
                self._layers.append((module, name, annealed))
        if not self._layers:
            raise ValueError(
                "AnnealingCallback: the model has no feed-forward layer whose activation it knows"
            )
        self._go_to(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._go_to(state.global_step + 1)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step < self.steps:
            return
        for module, name, annealed in self._layers:
            setattr(module, name, annealed.end)
        say_activation(given["model"].config, "drelu" if self.drelu else "relu")

    def _go_to(self, step: int) -> None:
        acts = [annealed for _, _, annealed in self._layers]
        for annealed in acts if self._up is None else [*acts, self._up]:
            annealed.share = min(1.0, step / self.steps)
