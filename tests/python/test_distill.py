"""From SiLU to ReLU with a teacher, inside transformers' Trainer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import twell
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from tiny_training import Text, arguments, lines, llama  # noqa: E402


def dense(act: str = "silu", **changes: Any) -> nn.Module:
    return llama(act, **changes)


def trainer(
    out: Path,
    student: nn.Module,
    steps: int,
    callbacks: list[object],
    teacher: nn.Module,
    **options: Any,
) -> Any:
    of_loss = {k: options.pop(k) for k in ("hidden", "temperature") if k in options}
    given = arguments(out, steps, **{"learning_rate": 1e-3, "logging_steps": 10, **options})
    return twell.hf.DistillationTrainer(
        student, given, train_dataset=Text(), callbacks=callbacks, teacher=teacher, **of_loss
    )


def definition(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    p, q = (torch.log_softmax(x.double() / temperature, -1) for x in (student, teacher))
    return temperature**2 * nn.functional.kl_div(p, q, log_target=True, reduction="batchmean")


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("rows", [1, 7, 4097])
def test_divergence_and_its_gradient(rows: int, temperature: float) -> None:
    """Of more rows than become fp32 at a time, and fewer."""
    generator = torch.Generator().manual_seed(rows)
    teacher = 3 * torch.randn(rows, 33, generator=generator)
    student = (teacher + torch.randn(rows, 33, generator=generator)).requires_grad_()
    got = twell.hf.divergence(student, teacher, temperature)
    want = definition(student, teacher, temperature)
    (got_grad,) = torch.autograd.grad(3 * got, student)
    (want_grad,) = torch.autograd.grad(3 * want, student)
    # log_softmax is off by some roundings of fp32 of its largest logit, 12 or so.
    torch.testing.assert_close(got.double(), want, rtol=0, atol=16 * 2**-23 * temperature**2 * 16)
    torch.testing.assert_close(got_grad, want_grad.float(), rtol=1e-4, atol=1e-6 / rows)


def test_divergence_of_the_same_is_nothing_and_shapes_are_told() -> None:
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = twell.hf.divergence(logits, logits.detach())
    loss.backward()
    assert loss == 0 and not logits.grad.any()
    with pytest.raises(ValueError, match=r"got \[5, 9\] and \[5, 8\]"):
        twell.hf.divergence(logits, torch.zeros(5, 8))


def test_hidden_error_is_a_share_of_each_tokens_length() -> None:
    long, short = torch.full((1, 4), 1000.0), torch.full((1, 4), 0.1)
    teacher = torch.cat([long, short])
    assert twell.hf.hidden_error([1.5 * teacher], [teacher]) == pytest.approx(0.25)
    assert twell.hf.hidden_error([torch.zeros(1, 4)], [torch.zeros(1, 4)]) == 0


def test_a_model_becomes_relu_and_stays_near_its_teacher(tmp_path: Path) -> None:
    teacher = dense()
    swapped = dense("relu")  # the same weights
    student = dense()
    run = trainer(tmp_path, student, 60, [twell.hf.AnnealingCallback(20)], teacher, bf16=False)
    run.train()
    log = lines(run)
    assert log[-1]["loss"] == pytest.approx(
        log[-1]["distill/divergence"] + log[-1]["distill/hidden"], rel=1e-3
    )
    assert student.config.hidden_act == "relu"
    assert all(type(layer.mlp.act_fn) is nn.ReLU for layer in student.model.layers)
    ids = Text().ids
    with torch.no_grad():
        wanted = teacher(ids).logits.flatten(0, 1)
        trained, plain = (
            float(twell.hf.divergence(m(ids).logits.flatten(0, 1), wanted))
            for m in (student, swapped)
        )
    assert trained < 0.5 * plain, (trained, plain)
    # What it has become, sparsify takes, and what is saved is a model with ReLU.
    run.save_model()
    assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == "relu"
    again = twell.hf.from_pretrained(tmp_path, freeze=False)
    assert len(twell.sparse_layers(again)) == 2


def test_the_path_in_between() -> None:
    layer = twell.hf.activations.Annealed(nn.functional.silu, nn.ReLU())
    x = torch.linspace(-3, 3, 101)
    assert torch.equal(layer(x), nn.functional.silu(x))
    layer.share = 0.25
    torch.testing.assert_close(layer(x), 0.75 * nn.functional.silu(x) + 0.25 * x.relu())
    layer.share = 1.0
    assert torch.equal(layer(x), x.relu())


@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_comes_to_have_relu_on_up_too(fused: bool) -> None:
    torch.manual_seed(1)
    name = "Phi3" if fused else "Llama"
    sizes = getattr(transformers, f"{name}Config")(
        vocab_size=61, hidden_size=48, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForCausalLM")(sizes)
    names = list(model.state_dict())
    callback = twell.hf.AnnealingCallback(4, drelu=True)
    state = SimpleNamespace(global_step=0)
    callback.on_train_begin(None, state, None, model=model)
    mlp = model.model.layers[0].mlp
    x = torch.randn(5, 48)
    g, u = mlp.gate_up_proj(x).chunk(2, -1) if fused else (mlp.gate_proj(x), mlp.up_proj(x))
    for done in (0, 1, 4):  # before any step the model is what it was
        state.global_step = done - 1
        if done > 0:
            callback.on_step_begin(None, state, None, model=model)
        share = done / 4
        gate = (1 - share) * nn.functional.silu(g) + share * g.relu()
        up = (1 - share) * u + share * u.relu()
        torch.testing.assert_close(mlp(x), mlp.down_proj(gate * up))
    state.global_step = 4
    callback.on_train_end(None, state, None, model=model)
    assert list(model.state_dict()) == names and model.config.hidden_act == "drelu"
    want = mlp(x)
    layers = twell.sparse_layers(twell.sparsify(model, freeze=False))
    assert len(layers) == 2 and {m.up_activation for m in layers.values()} == {"relu"}
    torch.testing.assert_close(layers["model.layers.0.mlp"](x), want)


def test_what_has_become_drelu_is_read_again(tmp_path: Path) -> None:
    teacher, student = dense(), dense()
    callbacks = [twell.hf.AnnealingCallback(10, drelu=True)]
    run = trainer(tmp_path, student, 14, callbacks, teacher)
    run.train()
    run.save_model()
    assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == "drelu"
    ids = Text().ids[:4]
    for freeze in (False, True):
        again = twell.hf.from_pretrained(tmp_path, freeze=freeze)
        layers = twell.sparse_layers(again).values()
        assert {(m.activation, m.up_activation) for m in layers} == {("relu", "relu")}
        with torch.no_grad():
            torch.testing.assert_close(
                again(ids).logits, student.eval()(ids).logits, rtol=1e-4, atol=1e-4
            )


def test_drelu_needs_a_gate_and_nothing_else() -> None:
    sizes = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 160, "num_hidden_layers": 2}
    arcee = transformers.ArceeForCausalLM(
        transformers.ArceeConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)
    )
    callback = twell.hf.AnnealingCallback(4, drelu=True)
    for model, said in ((arcee, r"mlp: expected down\(act"), (nn.Linear(2, 2), "no feed-forward")):
        with pytest.raises(ValueError, match=f"AnnealingCallback: .*{said}"):
            callback.on_train_begin(None, SimpleNamespace(global_step=0), None, model=model)


@pytest.mark.parametrize("drelu", [False, True])
def test_stopped_on_the_path_and_resumed(tmp_path: Path, drelu: bool) -> None:
    teacher = dense()

    def run(out: Path, student: nn.Module) -> object:
        return trainer(
            out, student, 20, [twell.hf.AnnealingCallback(16, drelu)], teacher, logging_steps=5,
            save_strategy="steps", save_steps=10,
        )  # fmt: skip

    whole = run(tmp_path / "whole", dense())
    whole.train()
    # On the way the configuration says how far it is.
    half = json.loads((tmp_path / "whole" / "checkpoint-10" / "config.json").read_text())
    assert half["hidden_act"] == f"silu_to_{'drelu' if drelu else 'relu'}_0.625"
    again = run(tmp_path / "again", dense())
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-10"))
    for got, want in zip(lines(again)[2:], lines(whole)[2:], strict=True):
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-6)


def test_a_run_that_is_too_short_is_refused_and_one_that_is_stopped_says_so(tmp_path: Path) -> None:
    student = dense()
    with pytest.raises(ValueError, match="AnnealingCallback: steps: expected no more than the run has, 2"):
        trainer(tmp_path, student, 2, [twell.hf.AnnealingCallback(16)], dense()).train()
    assert student.config.hidden_act == "silu"
    assert not any(isinstance(m, twell.hf.activations.Annealed) for m in student.modules())

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            control.should_training_stop = state.global_step == 2

    with pytest.warns(UserWarning, match="is that of step 2 of 16"):
        trainer(tmp_path, student, 16, [twell.hf.AnnealingCallback(16), Stop()], dense()).train()
    assert student.config.hidden_act == "silu_to_relu_0.125"
    assert student.model.layers[0].mlp.act_fn.share == 2 / 16


def test_passes_of_a_step_count_once(tmp_path: Path) -> None:
    """Two passes of four rows, and one of eight: the loss and the step are the same."""
    runs = []
    for batch, accumulation in ((8, 1), (4, 2)):
        student = dense("relu")
        runs.append(
            trainer(
                tmp_path, student, 1, [], dense(), logging_steps=1, max_grad_norm=0.0,
                per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
            )
        )  # fmt: skip
        runs[-1].train()
    one, two = (lines(run)[0] for run in runs)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)


def test_padding_counts_for_nothing(tmp_path: Path) -> None:
    run = trainer(tmp_path, dense("relu"), 1, [], dense())
    run.model.train()
    ids = Text().ids[:4]
    mask = torch.ones_like(ids)
    alone = run.compute_loss(run.model, {"input_ids": ids, "attention_mask": mask}).item()
    padded = torch.cat([ids, torch.zeros(4, 5, dtype=ids.dtype)], 1)
    mask = torch.cat([mask, torch.zeros(4, 5, dtype=mask.dtype)], 1)
    got = run.compute_loss(run.model, {"input_ids": padded, "attention_mask": mask}).item()
    assert got == pytest.approx(alone, rel=1e-5)


def test_evaluation_is_the_cross_entropy(tmp_path: Path) -> None:
    student = dense("relu")
    run = trainer(tmp_path, student, 1, [], dense())
    data = Text()
    with torch.no_grad():
        want = float(student.eval()(data.ids, labels=data.ids).loss)
    assert run.evaluate(data)["eval_loss"] == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 62}, "vocab_size: expected 61 as in the model, got 62"),
        ({"hidden_size": 56}, "hidden_size: expected 48 as in the model, got 56"),
        ({"num_hidden_layers": 3}, "num_hidden_layers: expected 2 as in the model, got 3"),
    ],
)
def test_a_teacher_that_does_not_fit(tmp_path: Path, changes: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=f"DistillationTrainer: teacher: {said}"):
        trainer(tmp_path, dense(), 1, [], dense(**changes))
    if "vocab_size" not in changes:  # logits alone do not need it
        trainer(tmp_path, dense(), 1, [], dense(**changes), hidden=0.0).train()


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="temperature: expected more than 0, got 0"):
        trainer(tmp_path, dense(), 1, [], dense(), temperature=0.0)
    with pytest.raises(ValueError, match="hidden: expected 0 or more, got -1"):
        trainer(tmp_path, dense(), 1, [], dense(), hidden=-1.0)
    with pytest.raises(ValueError, match="steps: expected 1 or more, got 0"):
        twell.hf.AnnealingCallback(0)
    with pytest.raises(ValueError, match="no feed-forward layer whose activation it knows"):
        twell.hf.AnnealingCallback(4).on_train_begin(
            None, SimpleNamespace(global_step=0), None, model=nn.Linear(2, 2)
        )


def test_on_a_tiny_model_without_teacher_states_the_loss_is_finite(tmp_path: Path) -> None:
    run = trainer(tmp_path, dense("relu"), 2, [], dense(), hidden=0.0, bf16=True, logging_steps=1)
    run.train()
    assert all(math.isfinite(line["loss"]) and "distill/hidden" not in line for line in lines(run))
