#!/usr/bin/env python3
"""A model that somebody else made, sparse in three lines.

    pip install ruaccent-predictor==1.2.0
    python examples/russian_stress.py

The package (MIT licence) puts stress marks into Russian text. Its model is a torch.nn.Transformer with
ReLU, trained without a thought of sparsity. Few of its neurons fire, and the answers stay the same.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

import torch

TEXTS = [
    "Я устало иду во главе своей армии, наступая на цветы.",
    "Привет, мир! Как дела, всё уже хорошо?",
    "Хотел я зайти в замок, но ключ в замок не подошёл.",
    "В начале июля, в чрезвычайно жаркое время, под вечер один молодой человек вышел из дома.",
    "Мороз и солнце, день чудесный! Ещё ты дремлешь, друг прелестный.",
]


def load() -> Any:
    import ruaccent

    with contextlib.redirect_stdout(io.StringIO()):  # it tells of each step
        return ruaccent.load_accentor(device="cpu")


def marked(accentor: Any, texts: list[str] = TEXTS) -> list[str]:
    """The texts with stress marks, computed anew."""
    accentor._cache.clear()
    return accentor(texts)


def sample_of(accentor: Any, texts: list[str] = TEXTS) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model is called with: characters of the texts, and of the answers so far."""
    both = ([accentor._text_to_tensor(text) for text in each] for each in (texts, marked(accentor, texts)))
    source, target = (torch.cat(list(tensors)) for tensors in both)
    return source, target


def main() -> int:
    try:
        accentor = load()
    except ImportError as error:
        print(f"skipped: {error} (pip install ruaccent-predictor==1.2.0)")
        return 0
    before = marked(accentor)

    # The three lines.
    import twell

    sample = sample_of(accentor)
    print(twell.report(accentor.model, sample))
    twell.sparsify(accentor.model, sample=sample)

    after = marked(accentor)
    print("\n".join(after))
    print(f"{sum(a == b for a, b in zip(after, before))} of {len(before)} answers are the same")
    return 0 if after == before else 1


if __name__ == "__main__":
    sys.exit(main())
