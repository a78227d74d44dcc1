"""A teacher in place of labels, in transformers' Trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from twell.hf.models import require

require("transformers", "twell.hf.DistillationTrainer")
from transformers import AutoTokenizer, Trainer  # noqa: E402

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
            # What the teacher gives no probability counts for nothing, also where both say -inf.
            total += torch.where(q == -torch.inf, 0.0, q.exp() * (q - p)).sum()
            of_grad.copy_((p.exp() - q.exp()) * (temperature / max(len(student), 1)))
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
    as a share of the teacher's squared length, averaged over tokens and layers. It is a share because a
    few tokens of a Llama have states a thousand times as long as the others. For no token it is 0."""
    terms = []
    for s, t in zip(student, teacher):
        t = t.float()
        length = t.square().sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
        terms.append(((s.float() - t).square().sum(-1) / length).sum() / max(len(t), 1))
    return torch.stack(terms).mean()


class DistillationTrainer(Trainer):
    """transformers' Trainer with a teacher's outputs in place of labels.

    The loss of a pass is ``divergence(student, teacher, temperature) + hidden * hidden_error(...)``,
    the latter over the outputs of all layers (0: logits alone). Both are means over the tokens that
    attention_mask has. The teacher computes in bf16 if the Trainer does, and is in shards if the Trainer
    keeps the model in shards (FSDP2, ZeRO-3). Evaluation stays the cross entropy of labels. Logs have both
    terms, averaged over processes: ``distill/divergence`` and ``distill/hidden``.

    Other arguments are the Trainer's. Raises ValueError if the vocabularies of the two models, or of the
    tokenizers beside their files, differ; if ``hidden`` is not 0 and layers or width differ or the model
    has LayerDrop; if the teacher is the model itself or has its modules or weights that train; and for
    encoder-decoders and models without a configuration.
    """

    def __init__(
        self,
        *args: Any,
        teacher: nn.Module,
        temperature: float = 1.0,
        hidden: float = 1.0,
        **options: Any,
    ) -> None:
        if not isinstance(teacher, nn.Module):
            raise ValueError(
                f"DistillationTrainer: teacher: expected a model, got {type(teacher).__name__}; load it first"
            )
        if options.get("compute_loss_func") is not None:
            raise ValueError("DistillationTrainer: compute_loss_func: expected none: the teacher gives the loss")
        super().__init__(*args, **options)
        self.model_accepts_loss_kwargs = False  # a mean over each pass, which the Trainer averages
        student = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        _check_apart(student, teacher)
        of_student, of_teacher = _text_config("model", student), _text_config("teacher", teacher)
        classifies = "Classification" in type(student).__name__
        same = ["num_labels" if classifies else "vocab_size", *(["num_hidden_layers", "hidden_size"] if hidden else [])]
        for key in same:
            has, wants = getattr(of_teacher, key, None), getattr(of_student, key, None)
            if has != wants:
                raise ValueError(
                    f"DistillationTrainer: teacher: {key}: expected {wants} as in the model, got {has}"
                )
        if _words_differ(self.processing_class, student, teacher):
            raise ValueError(
                "DistillationTrainer: teacher: expected the model's tokenizer, got one that has other words for "
                "the same ids"
            )
        if hidden and any(getattr(m, "layerdrop", 0) for m in student.modules()):
            raise ValueError(
                "DistillationTrainer: hidden: expected 0 for a model with LayerDrop, which leaves out layers "
                "at random; set its configuration's layerdrop to 0, or hidden=0.0 for logits alone"
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
        there = None if mask is None or bool(mask.all()) else mask.bool()

        def rows(x: Tensor) -> Tensor:
            if there is None or x.dim() == 2:  # of a whole text
                return x.flatten(0, -2)
            if x.shape[:-1] != there.shape:
                raise ValueError(
                    f"DistillationTrainer: attention_mask: expected shape {list(x.shape[:-1])}, a number for "
                    f"each token of the outputs, got {list(there.shape)}"
                )
            return x[there]

        loss = divergence(rows(output.logits), rows(wanted.logits), self.temperature)
        self._note("distill/divergence", loss)
        if self.hidden > 0:
            mine, theirs = (getattr(of, "hidden_states", None) or () for of in (output, wanted))
            if len(mine) != len(theirs) or not mine:
                raise ValueError(
                    f"DistillationTrainer: hidden: expected the states of the same layers, got {len(mine)} "
                    f"and {len(theirs)} of the teacher; hidden=0.0 takes logits alone"
                )
            error = hidden_error([rows(x) for x in mine[1:]], [rows(x) for x in theirs[1:]])
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


def _check_apart(student: nn.Module, teacher: nn.Module) -> None:
    """Raises ValueError if training the one would change the other."""
    modules, weights = set(student.modules()), {_memory(p) for p in student.parameters() if p.requires_grad}
    shared = any(m in modules for m in teacher.modules())
    if shared or any(_memory(p) in weights for p in teacher.parameters()):
        raise ValueError(
            "DistillationTrainer: teacher: expected a model of its own, got one that has the model's modules "
            "or weights, which training changes; pass copy.deepcopy(model)"
        )


def _memory(parameter: nn.Parameter) -> int:
    """The same of two parameters with the same bytes; shards and parameters without data have none."""
    ordinary = type(parameter) is nn.Parameter and parameter.device.type != "meta"
    return (parameter.untyped_storage().data_ptr() if ordinary else 0) or id(parameter)


def _words_differ(processing_class: Any, student: nn.Module, teacher: nn.Module) -> bool:
    """Of the tokenizers beside the two models' files, if both are there; the Trainer's own comes first."""
    vocab = getattr(processing_class, "get_vocab", None)
    mine = _words_beside(student) if vocab is None else vocab()
    theirs = _words_beside(teacher)
    # A word that one of them lacks may be its own name for a token that the text has not.
    return any(theirs.get(word, i) != i for word, i in mine.items())


def _words_beside(model: nn.Module) -> dict[str, int]:
    name = getattr(model, "name_or_path", "")
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True).get_vocab() if name else {}
    except Exception:  # there is none, or one that this transformers cannot read
        return {}


def _text_config(which: str, model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise ValueError(
            f"DistillationTrainer: {which}: expected a model of transformers, with a configuration, got "
            f"{type(model).__name__}"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"DistillationTrainer: {which}: expected a model without an encoder beside its decoder, whose "
            f"tokens are others, got {type(model).__name__}"
        )
    return config.get_text_config()
