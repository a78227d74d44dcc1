#!/usr/bin/env python3
"""A model of transformers: what twell would gain, then the same answers before and after.

    python examples/hugging_face_model.py MODEL     # a directory, or a name on the hub

MODEL has to have ReLU, squared ReLU, FATReLU or dReLU. If you have none, `scripts/demo` trains one and
leaves it in twell-demo/model.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import torch
import transformers
import twell
from torch import Tensor

TEXT = """The lighthouse stands on a rock far out at sea. Every evening, before it grows dark, the keeper
climbs two hundred steps and lights the lamp. Ships that pass in the night see it from twenty miles away."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--text", default=TEXT, help="like what will come: it chooses layers' forms"
    )
    parser.add_argument("--tokens", type=int, default=64, help="to write")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    sample = tokenizer(given.text, return_tensors="pt").input_ids

    try:  # Layers that are not frozen yet compute densely, as transformers' own do.
        model = twell.hf.from_pretrained(given.model, freeze=False, dtype=dtype)
    except ValueError as error:
        raise SystemExit(f"{given.model} stays dense: {error}") from None
    print(twell.report(model, sample))
    dense = ask(model, sample, given.tokens)
    del model  # one at a time in memory

    model = twell.hf.from_pretrained(given.model, sample=sample, dtype=dtype)
    sparse = ask(model, sample, given.tokens)
    far = (sparse.logits - dense.logits).abs().max() / dense.logits.abs().max()
    print(f"\nlogits differ by {far:.1e} of the largest")
    print(f"reading   {dense.reading:7.1f} tokens/s dense, {sparse.reading:7.1f} sparse")
    print(f"writing   {dense.writing:7.1f} tokens/s dense, {sparse.writing:7.1f} sparse\n")
    print(tokenizer.decode(sparse.text, skip_special_tokens=True))


class Answer(NamedTuple):
    logits: Tensor
    text: Tensor
    reading: float
    """Tokens of the prompt a second, and beside it of the answer."""
    writing: float


@torch.no_grad()
def ask(model: Any, prompt: Tensor, tokens: int) -> Answer:
    model.eval()(prompt)  # so that the weights are in memory
    begin = time.perf_counter()
    logits = model(prompt).logits
    read = time.perf_counter() - begin
    text = model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    wrote = time.perf_counter() - begin - 2 * read  # generate() reads the prompt once more
    return Answer(logits, text[0], prompt.shape[1] / read, tokens / wrote)


if __name__ == "__main__":
    main()
