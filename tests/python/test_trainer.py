"""Training inside transformers' Trainer: L1, logging, re-initialisation, resuming."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import twell
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

ROWS, WIDTH = 64, 32


pytestmark = pytest.mark.usefixtures("one_thread")


def model() -> nn.Module:
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=48, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, hidden_act="relu", max_position_embeddings=64,
    )  # fmt: skip
    return twell.sparsify(transformers.LlamaForCausalLM(config), freeze=False)


class Text(torch.utils.data.Dataset):
    """Rows with a rule to learn: each token follows from the one before it."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        rows = [torch.randint(0, 61, (ROWS,), generator=generator)]
        for _ in range(WIDTH - 1):
            rows.append((rows[-1] * 7 + 3) % 61)
        self.ids = torch.stack(rows, 1)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def trainer(
    out: Path, steps: int, callbacks: list[object], which: nn.Module | None = None, **options: object
) -> object:
    arguments = transformers.TrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=8, learning_rate=3e-3,
        lr_scheduler_type="constant", use_cpu=True, seed=3,
        **{"report_to": "none", "logging_steps": 10, "save_strategy": "no", "disable_tqdm": True,
           **options},
    )  # fmt: skip
    return transformers.Trainer(
        model() if which is None else which,
        arguments,
        train_dataset=Text(),
        callbacks=callbacks,
    )


def lines(run: object) -> list[dict[str, float]]:
    return [line for line in run.state.log_history if "loss" in line]


def test_two_hundred_steps_saved_and_resumed(tmp_path: Path) -> None:
    options = {
        "bf16": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": True,
        "save_strategy": "steps", "save_steps": 100,
    }  # fmt: skip

    def callback() -> object:
        return twell.hf.SparsityCallback(l1=0.1, warmup=20, reinit_every=40, dead_window=20)

    whole = trainer(tmp_path / "whole", 200, [callback()], **options)
    whole.train()
    log = lines(whole)
    assert len(log) == 20
    assert log[-1]["loss"] < 0.2 * log[0]["loss"]
    assert log[-1]["sparsity/nnz"] < 0.5 * log[0]["sparsity/nnz"]
    assert 0 < log[-1]["sparsity/nnz"] <= log[-1]["sparsity/nnz_max"] <= 160
    assert log[0]["sparsity/l1_coefficient"] == pytest.approx(0.05)
    assert log[-1]["sparsity/l1_coefficient"] == pytest.approx(0.1)
    assert sum(line["sparsity/revived"] for line in log) > 0
    assert set(log[0]) >= {f"sparsity/nnz/model.layers.{i}.mlp" for i in (0, 1)}
    # Stopped half way, and resumed by another process' objects: the same curve.
    again = trainer(tmp_path / "again", 200, [callback()], **options)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-100"))
    for got, want in zip(lines(again)[10:], log[10:], strict=True):
        assert got["step"] == want["step"]
        for key in ("loss", "grad_norm", *(k for k in want if k.startswith("sparsity"))):
            assert got[key] == pytest.approx(want[key], rel=1e-6), key


def test_tensorboard_shows_sparsity(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trainer(
        tmp_path, 4, [twell.hf.SparsityCallback(l1=1e-3)], report_to="tensorboard",
        logging_steps=2,
    )  # fmt: skip
    run.train()
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    seen = {(e.step, round(e.value, 4)) for e in events.Scalars("train/sparsity/nnz")}
    assert seen == {(line["step"], round(line["sparsity/nnz"], 4)) for line in lines(run)}
    assert len(seen) == 2


def test_the_loss_that_is_logged_has_no_l1_term(tmp_path: Path) -> None:
    losses = []
    for coefficient in (0.0, 1e3):
        run = trainer(
            tmp_path, 1, [twell.hf.SparsityCallback(l1=coefficient)], logging_steps=1, max_grad_norm=0.0
        )
        run.train()
        losses.append(lines(run)[0]["loss"])
    assert losses[0] == losses[1]


def gradients(accumulation: int, which: nn.Module) -> dict[str, Tensor]:
    """Of 8 rows, in 1 or more passes."""
    which.zero_grad()
    twell.set_l1(which, 0.05, accumulation=accumulation)
    for ids in Text().ids[:8].chunk(accumulation):
        (which(ids, labels=ids).loss / accumulation).backward()
    return {name: p.grad.clone() for name, p in which.named_parameters()}


def test_l1_under_accumulation() -> None:
    whole, parts = gradients(1, model()), gradients(4, model())
    none = model()
    none(Text().ids[:8], labels=Text().ids[:8]).loss.backward()
    for name, p in none.named_parameters():
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-4, atol=1e-6)
        if "gate_proj" in name:
            assert not torch.allclose(p.grad, whole[name], rtol=1e-2)


# --- What the L1 term is the mean of --------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    """Token 5, so many times in each row."""

    def __init__(self, *lengths: int) -> None:
        self.rows = [torch.full((n,), 5) for n in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class Watch(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, *_: object, **given: object) -> None:
        self.seen = {n: p.grad.clone() for n, p in given["model"].named_parameters() if "gate" in n}


def term_in_trainer(out: Path, data: torch.utils.data.Dataset) -> dict[str, Tensor]:
    """What the callback adds to the gradients of a first step of up to four passes."""
    found = []
    for callbacks in ([], [twell.hf.SparsityCallback(l1=0.1)]):
        watch = Watch()
        arguments = transformers.TrainingArguments(
            output_dir=str(out), max_steps=1, learning_rate=0.0, per_device_train_batch_size=1,
            gradient_accumulation_steps=4, max_grad_norm=0.0, report_to="none", use_cpu=True,
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        callbacks.append(watch)
        transformers.Trainer(model(), arguments, train_dataset=data, callbacks=callbacks).train()
        found.append(watch.seen)
    return {name: found[1][name] - found[0][name] for name in found[0]}


def term_of(*lengths: int) -> dict[str, Tensor]:
    """The mean over passes of such lengths."""
    which = model()
    for layer in twell.sparse_layers(which).values():
        layer.collect_l1 = True
    for row in Rows(*lengths).rows:
        which(row[None])
        (0.1 * twell.l1_term(which) / len(lengths)).backward()
    return {n: p.grad for n, p in which.named_parameters() if "gate" in n}


@pytest.mark.parametrize("lengths", [(16, 16, 16, 16), (16, 16), (16,), (16, 3), (4, 40, 9)])
def test_each_pass_of_a_step_weighs_the_same(lengths: tuple[int, ...], tmp_path: Path) -> None:
    got, want = term_in_trainer(tmp_path, Rows(*lengths)), term_of(*lengths)
    for name, value in want.items():
        assert value.any()
        # The loss' gradient is taken off again, which is a hundred times as large.
        torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("gpus", "passes"), [(0, 3), (1, 3), (2, 6)])
def test_each_gpu_of_a_process_has_a_pass_of_its_own(gpus: int, passes: int) -> None:
    """As under DataParallel, where the Trainer takes the mean of the losses; without a Trainer's
    word, by the arguments."""
    arguments = SimpleNamespace(gradient_accumulation_steps=3, n_gpu=gpus)
    which, callback = model(), twell.hf.SparsityCallback(l1=0.6)
    callback.on_step_begin(arguments, SimpleNamespace(global_step=0), None, model=which)
    (one, other) = twell.sparse_layers(which).values()
    assert float(one.l1_weight) == float(other.l1_weight) == pytest.approx(0.6 / 2 / passes)


def test_padding_and_ignored_labels_count_as_any_token() -> None:
    which = model()
    (layer, *_) = twell.sparse_layers(which).values()
    layer.collect_l1 = True
    seen = []
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    ids = Text().ids[:2, :10]
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0
    which(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    x = seen[0].reshape(20, 48)
    h = torch.relu(x @ layer.gate_proj.weight.t()) * (x @ layer.up_proj.weight.t())
    torch.testing.assert_close(layer.l1, h.abs().sum() / 20)


def test_a_callback_keeps_nothing_of_another_training(tmp_path: Path) -> None:
    def callback() -> object:
        return twell.hf.SparsityCallback(l1=0.1, warmup=5, reinit_every=20, dead_window=3)

    used = callback()
    first = model()
    with torch.no_grad():
        for layer in twell.sparse_layers(first).values():
            layer.gate_proj.weight[:50] = 0  # they never fire
    # Ends between two logs.
    trainer(tmp_path, 7, [used], first, logging_steps=5).train()
    assert used._since_log and used._dead > 0.2
    logs = []
    for each in (used, callback()):
        run = trainer(tmp_path, 5, [each], logging_steps=1)
        run.train()
        logs.append(
            [{k: v for k, v in line.items() if "sparsity" in k or k == "loss"} for line in lines(run)]
        )
    assert logs[0] == logs[1] and logs[0][0]["sparsity/dead"] == 0


def test_dead_neurons_are_revived_and_fire(tmp_path: Path) -> None:
    which = model()
    layers = twell.sparse_layers(which)
    with torch.no_grad():
        for layer in layers.values():
            layer.gate_proj.weight[:50] = 0  # never positive
    before = copy.deepcopy(which.state_dict())
    run = trainer(
        tmp_path, 12, [twell.hf.SparsityCallback(reinit_every=5, dead_window=5)], which, logging_steps=1
    )
    run.train()
    log = lines(run)
    assert log[4]["sparsity/dead"] >= 50 / 160 and log[4]["sparsity/revived"] >= 100
    assert log[-1]["sparsity/dead"] < 50 / 160
    twell.collect_metrics(which)
    which.train()(Text().ids, labels=Text().ids)
    for name, layer in layers.items():
        assert (layer.activity.neurons[:50] > 0).sum() > 25
        assert not torch.equal(layer.gate_proj.weight, before[f"{name}.gate_proj.weight"])


def test_what_is_refused(tmp_path: Path) -> None:
    for options, message in (
        ({"l1": -1.0}, "l1: expected 0 or more, got -1.0"),
        ({"l1": math.nan}, "l1: expected 0 or more, got nan"),
        ({"warmup": -1}, "warmup: expected 0 or more"),
        ({"dead_window": 0}, "dead_window: expected 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            twell.hf.SparsityCallback(**options)
    dense = transformers.LlamaForCausalLM(model().config)
    for which in (dense, twell.sparsify(copy.deepcopy(dense))):
        with pytest.raises(ValueError, match="has no GatedFfn or Ffn layer that is not frozen"):
            trainer(tmp_path, 1, [twell.hf.SparsityCallback(l1=1e-3)], which).train()
    with pytest.raises(RuntimeError, match=r"nothing was counted; call twell.collect_metrics"):
        twell.metrics(model())
    with pytest.raises(AttributeError, match="no attribute 'NoSuch'"):
        twell.hf.NoSuch  # noqa: B018
