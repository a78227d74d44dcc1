#!/usr/bin/env python3
"""transformers' Trainer trains a small Llama with ReLU on a text, so that few neurons fire.

    python examples/train_with_trainer.py --data TEXT --out DIR     # four minutes on two cores
    scripts/twell generate --model DIR --prompt "The "

DIR is a Hugging Face directory. What twell adds is two lines, marked below: sparse layers, forward and
backward, and a callback for the L1 term and the figures in the log.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import tokenizers
import torch
import transformers
import twell


def tokenizer_of(text: str) -> Any:
    """Byte pairs of this text."""
    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator(
        [text], vocab_size=2048, special_tokens=["<end>"], show_progress=False
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words._tokenizer, eos_token="<end>"
    )


class Log(transformers.TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if logs and "loss" in logs:
            fire, dead = (logs["sparsity/" + name] for name in ("share", "dead"))
            print(
                f"step {state.global_step:4}   loss {logs['loss']:.3f}   "
                f"fire {fire:6.1%}   never fired {dead:6.1%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="TEXT")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--l1", type=float, default=2e-3, help="what activity costs")
    parser.add_argument(
        "--width", type=int, default=256, help="D; a layer has eight times the neurons"
    )
    given = parser.parse_args()

    text = given.data.read_text(errors="replace")
    tokenizer = tokenizer_of(text)
    ids = torch.tensor(tokenizer(text).input_ids)
    windows = ids[: len(ids) // 128 * 128].view(-1, 128)
    data = [{"input_ids": window, "labels": window} for window in windows]
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=given.width, intermediate_size=8 * given.width,
        num_hidden_layers=4, num_attention_heads=4, hidden_act="relu", tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)

    twell.sparsify(model, freeze=False)  # one
    callback = twell.hf.SparsityCallback(l1=given.l1, warmup=given.steps // 10)  # two

    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            str(given.out), max_steps=given.steps, per_device_train_batch_size=16, learning_rate=2e-3,
            warmup_steps=given.steps // 10, lr_scheduler_type="cosine", bf16=True, use_cpu=True,
            logging_steps=max(1, given.steps // 10), save_strategy="no", report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=data,
        callbacks=[callback, Log()],
    )  # fmt: skip
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.train()
    trainer.save_model()
    tokenizer.save_pretrained(given.out)
    print(
        f"{given.out}: twell.hf.from_pretrained reads it, and so do transformers and scripts/twell"
    )


if __name__ == "__main__":
    main()
