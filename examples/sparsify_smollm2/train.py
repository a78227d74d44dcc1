"""Leads a dense model to exact zeros with transformers' Trainer: from its activation to ReLU, then to
few neurons that fire. The dense model teaches both times.

    python train.py --model DIR --data FILE... --output_dir OUT --relu_steps 450 --anneal_steps 200 \\
        --max_steps 800 --share 0.1 --per_device_train_batch_size 64 --learning_rate 8e-4 --bf16

DIR is a Hugging Face directory, files are plain text. OUT/relu holds the model after the first part,
OUT/sparse after the second. A run that was stopped goes on when it is started again, from its last
checkpoint (--save_steps). All options of TrainingArguments work; `torchrun` starts it on several GPUs,
where --fsdp or --deepspeed keep the models in shards (README.md).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from typing import Any

import torch
import transformers
import twell
from torch import Tensor


@dataclasses.dataclass
class Recipe:
    model: str = dataclasses.field(
        metadata={"help": "the dense model's directory, also the teacher"}
    )
    data: list[str] = dataclasses.field(metadata={"help": "texts to train on"})
    held_out: list[str] = dataclasses.field(
        default_factory=list, metadata={"help": "texts to report the cross entropy of"}
    )
    context: int = dataclasses.field(default=512, metadata={"help": "tokens of a window"})
    anneal_steps: int = dataclasses.field(
        default=300, metadata={"help": "from the old activation to ReLU"}
    )
    relu_steps: int = dataclasses.field(
        default=500, metadata={"help": "of the first part in all, those of annealing included"}
    )
    drelu: bool = dataclasses.field(
        default=False, metadata={"help": "ReLU on up too, beside that on the gate"}
    )
    share: float = dataclasses.field(
        default=0.0,
        metadata={"help": "of the neurons, that fire at the end (FATReLU); 0: no thresholds"},
    )
    l1: float = dataclasses.field(
        default=0.0, metadata={"help": "coefficient of the L1 term at the end; 0: none"}
    )
    hidden: float = dataclasses.field(
        default=1.0, metadata={"help": "weight of the hidden states' error"}
    )


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The files' tokens one behind another, cut into windows without overlap."""

    def __init__(self, files: list[str], tokenizer: Any, context: int) -> None:
        pieces = []
        for file in files:
            # Paragraphs by the thousand: one call of the tokenizer works on them in parallel.
            paragraphs = pathlib.Path(file).read_text(errors="replace").split("\n\n")
            found = tokenizer([p + "\n\n" for p in paragraphs], add_special_tokens=False)[
                "input_ids"
            ]
            pieces += [torch.tensor(ids, dtype=torch.int32) for ids in found]
        ids = torch.cat(pieces)
        self.windows = ids[: len(ids) // context * context].view(-1, context)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        ids = self.windows[i].long()
        return {"input_ids": ids, "labels": ids}


class Log(transformers.TrainerCallback):
    """A line for every log, also into a file."""

    def __init__(self, file: pathlib.Path) -> None:
        self.file, self.begin = file, time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if logs is None or not state.is_world_process_zero:
            return
        line = {
            "step": state.global_step,
            "seconds": round(time.monotonic() - self.begin, 1),
            **logs,
        }
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        shown = {k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()}
        print(
            *(f"{k.removeprefix('sparsity/')} {v}" for k, v in shown.items() if "layers" not in k),
            flush=True,
        )


def main() -> None:
    parser = transformers.HfArgumentParser((Recipe, transformers.TrainingArguments))
    recipe, arguments = parser.parse_args_into_dataclasses()
    out = pathlib.Path(arguments.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(recipe.model)
    data = Windows(recipe.data, tokenizer, recipe.context)
    held_out = Windows(recipe.held_out, tokenizer, recipe.context) if recipe.held_out else None
    if arguments.process_index == 0:
        print(f"{len(data)} windows of {recipe.context} tokens", flush=True)

    def is_done(part: str) -> bool:
        return (out / part / "tokenizer.json").is_file()  # written last

    def load(directory: pathlib.Path | str) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def train(part: str, student: Any, steps: int, callbacks: list[Any]) -> None:
        directory = out / part
        # A fifth of the parameters, and what both models' states are measured in.
        student.get_input_embeddings().requires_grad_(False)
        trainer = twell.hf.DistillationTrainer(
            student,
            dataclasses.replace(
                arguments, output_dir=str(directory), max_steps=steps, prediction_loss_only=True,
                eval_on_start=held_out is not None,
            ),
            train_dataset=data,
            eval_dataset=held_out,
            data_collator=transformers.default_data_collator,
            callbacks=[*callbacks, Log(out / f"{part}.jsonl")],
            teacher=load(recipe.model),  # anew for each part: shards are of one trainer
            hidden=recipe.hidden,
        )  # fmt: skip
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        last = (
            transformers.trainer_utils.get_last_checkpoint(directory)
            if directory.is_dir()
            else None
        )
        trainer.train(resume_from_checkpoint=last)
        if held_out:
            trainer.evaluate()
        trainer.save_model()
        if trainer.is_world_process_zero():
            tokenizer.save_pretrained(directory)
        trainer.accelerator.wait_for_everyone()  # the next part reads what the first process wrote

    if not is_done("relu"):
        annealing = twell.hf.AnnealingCallback(recipe.anneal_steps, drelu=recipe.drelu)
        train("relu", load(recipe.model), recipe.relu_steps, [annealing])
    if (recipe.share or recipe.l1) and not is_done("sparse"):
        student = twell.hf.from_pretrained(out / "relu", freeze=False, dtype=torch.float32)
        warmup = arguments.max_steps // 2
        callbacks: list[Any] = [twell.hf.SparsityCallback(recipe.l1, warmup=warmup)]
        if recipe.share:  # the last quarter trains with thresholds that stay
            steps = max(1, arguments.max_steps * 3 // 4)
            callbacks.append(twell.hf.ThresholdCallback(recipe.share, steps))
        train("sparse", student, arguments.max_steps, callbacks)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
