"""What is written while a model is trained computes what the model computes, for every architecture that
``sparsify`` takes."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from tiny_models import AMONG_OTHERS, EXPERTS, MODULES_OF_THEIR_OWN, ON_THE_HUB, Tiny
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

TINY = {**AMONG_OTHERS, **MODULES_OF_THEIR_OWN, **EXPERTS, **ON_THE_HUB}
CALLBACKS: dict[str, Callable[[], Any]] = {
    "l1": lambda: twell.hf.SparsityCallback(l1=1e-3, reinit_every=2, dead_window=1),
    "thresholds": lambda: twell.hf.ThresholdCallback(0.2, steps=3, every=1),
    "annealing": lambda: twell.hf.AnnealingCallback(3),
    "annealing to drelu": lambda: twell.hf.AnnealingCallback(3, drelu=True),
}


pytestmark = pytest.mark.usefixtures("one_thread")


class Run(transformers.Trainer):
    """Three steps of any model, whose outputs are to become small."""

    def __init__(self, tiny: Tiny, model: nn.Module, out: Path, callback: Any, **options: Any) -> None:
        self.tiny = tiny
        self.seen: dict[str, Tensor] = {}
        """By directory, what the model puts out when it is written."""
        given = {
            "output_dir": str(out), "max_steps": 3, "learning_rate": 1e-3, "use_cpu": True, "seed": 3,
            "report_to": "none", "disable_tqdm": True, "save_strategy": "steps", "save_steps": 1,
            "remove_unused_columns": False, "logging_steps": 1,
        }  # fmt: skip
        arguments = transformers.TrainingArguments(**{**given, **options})
        super().__init__(
            model, arguments, train_dataset=[{}] * 64, data_collator=lambda _: tiny.inputs(),
            callbacks=[callback],
        )  # fmt: skip

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Tensor:
        return self.tiny.call(model).square().mean()

    def save_model(self, output_dir: str | None = None, **options: Any) -> None:
        super().save_model(output_dir, **options)
        self.seen[output_dir or self.args.output_dir] = outputs(self.tiny, self.model)


def outputs(tiny: Tiny, model: nn.Module) -> Tensor:
    training = model.training
    with torch.no_grad():
        out = tiny.call(model.eval())
    model.train(training)
    return out


def start(tiny: Tiny, annealed: bool) -> nn.Module:
    model = tiny.model()
    if not annealed:
        return twell.sparsify(model, freeze=False)
    if not hasattr(model, "config"):
        pytest.skip("has no configuration")
    said = json.dumps(model.config.to_dict(), default=str)
    for act in ("relu2", "relu"):
        said = said.replace(f'"{act}"', '"silu"').replace(f'"gated-{act}"', '"gated-silu"')
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Tiny(lambda: type(model)(type(model.config).from_dict(json.loads(said))), *tiny[1:]).model()


def read(kind: Any, directory: str) -> nn.Module:
    """In twell where the activation is one that transformers lacks, otherwise in transformers; there it
    refuses the others."""
    said = Path(directory, "config.json").read_text()
    if not re.search(r'"(gated-)?(fatrelu|drelu|\w+_to_d?relu_[\d.]+)"', said):
        return kind.from_pretrained(directory)
    with pytest.raises((KeyError, ValueError, ImportError)):
        kind.from_pretrained(directory)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*on its way")
        return twell.hf.from_pretrained(directory, freeze=False)


SQUARED = ("nemotron", "nemotron with biases", "arcee", "cosmos3 edge", "nanochat", "jais2", "persimmon",
           "bitnet", "llama", "nemotron-h")  # fmt: skip
REFUSED = {
    "l1": (),
    # Whose configuration says no activation of some layers; that of others beside them.
    "thresholds": ("mask2former", "parakeet", "timesfm", "rwkv", *SQUARED),
    "annealing": ("mask2former", "parakeet", "timesfm", "rwkv"),
    "annealing to drelu": ("opt", "mixtral", "t5 with a gate"),
}
CASES = [(name, how) for how in CALLBACKS for name in TINY if how != "annealing to drelu"] + [
    (name, "annealing to drelu") for name in ("mistral", "gemma2", "phi3", *REFUSED["annealing to drelu"])
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_checkpoint_is_the_model(name: str, how: str, tmp_path: Path) -> None:
    if name == "smallthinker" or (name in ON_THE_HUB and "annealing" in how):
        pytest.skip("its code is not transformers'")
    tiny = TINY[name]
    model = start(tiny, "annealing" in how)
    kind = type(model)
    run = Run(tiny, model, tmp_path, CALLBACKS[how]())
    if not hasattr(model, "config"):
        run.train()
        return
    before = outputs(tiny, model), model.config.to_dict()
    try:
        run.train()
    except ValueError as error:
        assert name in REFUSED[how], error
        assert "Callback: " in str(error) and "\n" not in str(error)
        assert model.config.to_dict() == before[1] and torch.equal(outputs(tiny, model), before[0])
        return
    assert name not in REFUSED[how]
    run.save_model()
    assert len(run.seen) == 4
    for directory, want in run.seen.items():
        again = read(kind, directory)
        torch.testing.assert_close(outputs(tiny, again), want, rtol=1e-4, atol=1e-4)
