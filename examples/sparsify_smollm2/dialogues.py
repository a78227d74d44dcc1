"""Writes dialogues that a chat model makes up, to train on: it invents the question after the head of a
user's turn, then answers it (Magpie, Xu et al. 2024).

    python dialogues.py --model DIR --out dialogues.txt --rounds 3 --batch 2048
"""

from __future__ import annotations

import argparse
import pathlib
import time

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--question", type=int, default=64, help="tokens at most")
    parser.add_argument("--answer", type=int, default=320, help="tokens at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16)
    model.to(device).eval()
    torch.manual_seed(given.seed)

    # The template's head of a user's turn: what stands before the message.
    head = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\0"}], tokenize=False
    ).partition("\0")[0]

    @torch.inference_mode()
    def go_on(texts: list[str], tokens: int) -> list[str]:
        ids = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(
            device
        )
        out = model.generate(
            **ids, max_new_tokens=tokens, do_sample=True, temperature=0.9, top_k=200, top_p=1.0,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        new = out[:, ids["input_ids"].shape[1] :]
        return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]

    begin, kept = time.monotonic(), 0
    with given.out.open("w") as out:
        for _ in range(given.rounds):
            questions = [q for q in go_on([head] * given.batch, given.question) if q]
            turns = [[{"role": "user", "content": q}] for q in questions]
            asked = [
                tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True)
                for t in turns
            ]
            for turn, answer in zip(turns, go_on(asked, given.answer)):
                whole = [*turn, {"role": "assistant", "content": answer}]
                out.write(tokenizer.apply_chat_template(whole, tokenize=False) + "\n\n")
                kept += 1
            print(f"{kept} dialogues, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
