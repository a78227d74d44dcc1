"""Models and runs as other people have them, under the callbacks and with a teacher: schedules that are
used again, layers that do not run in every step, weights that are not theirs to change."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import twell
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from tiny_training import Text, arguments, lines, llama  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*on its way"),
]


def annealing(drelu: bool = False, steps: int = 3) -> Any:
    return twell.hf.AnnealingCallback(steps, drelu=drelu)


def thresholds(share: float = 0.2, steps: int = 3) -> Any:
    return twell.hf.ThresholdCallback(share, steps=steps, every=1)


def sparsity() -> Any:
    return twell.hf.SparsityCallback(l1=1e-3, reinit_every=2, dead_window=1)


SCHEDULES: dict[str, Callable[[], Any]] = {
    "l1": sparsity,
    "thresholds": thresholds,
    "annealing": annealing,
    "drelu": lambda: annealing(drelu=True),
}


def start(how: str) -> nn.Module:
    """A model for that schedule."""
    if how in ("annealing", "drelu"):
        return llama("silu")
    return twell.sparsify(llama("relu"), freeze=False)


def train(
    out: Path, model: nn.Module, callbacks: list[Any], steps: int = 4, resume: Path | None = None, **options: Any
) -> Any:
    names = ("eval_dataset", "train_dataset", "processing_class", "teacher", "hidden")
    of_trainer = {k: options.pop(k) for k in names if k in options}
    given = arguments(out, steps, **{"learning_rate": 1e-3, "logging_steps": 1, **options})
    kind = twell.hf.DistillationTrainer if "teacher" in of_trainer else transformers.Trainer
    run = kind(model, given, **{"train_dataset": Text(), **of_trainer}, callbacks=callbacks)
    run.train(resume_from_checkpoint=None if resume is None else str(resume))
    return run


def losses(run: Any) -> list[float]:
    return [line["loss"] for line in lines(run)]


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    return model.eval()(Text().ids[:3]).logits


def check_written(model: nn.Module, out: Path) -> nn.Module:
    """What is saved is the model. Returns what is read."""
    model.save_pretrained(out)
    again = twell.hf.from_pretrained(out, freeze=False)
    torch.testing.assert_close(logits(again), logits(model), rtol=1e-4, atol=1e-4)
    return again


def forms(model: nn.Module) -> set[tuple[str, str]]:
    layers = twell.sparse_layers(twell.sparsify(copy.deepcopy(model), freeze=False)).values()
    return {(layer.activation, layer.up_activation) for layer in layers}


def named(model: nn.Module) -> tuple[Any, Any]:
    """What the configuration says of the activation."""
    return model.config.hidden_act, getattr(model.config, "hidden_act_param", None)


class Interrupts(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 2:
            raise KeyboardInterrupt


# --- One model and one run ------------------------------------------------------------------------


def test_a_schedule_that_is_used_again_begins_anew(tmp_path: Path) -> None:
    drelu = annealing(drelu=True)
    for model in (start("drelu"), start("drelu")):
        train(tmp_path, model, [drelu])
        assert forms(model) == {("relu", "relu")}
        check_written(model, tmp_path / "saved")
    found = []
    again = thresholds()
    for model in (start("thresholds"), start("thresholds")):
        log = lines(train(tmp_path, model, [again]))
        found.append([line["sparsity/threshold"] for line in log])
    assert found[0] == found[1] and found[0][0] < found[0][-1]


def test_a_second_schedule_goes_on_from_the_first(tmp_path: Path) -> None:
    model = start("thresholds")
    train(tmp_path, model, [thresholds(0.3)])
    first = model.config.hidden_act_param
    train(tmp_path, model, [thresholds(0.1)])
    assert model.config.hidden_act_param > first > 0
    check_written(model, tmp_path / "saved")


@pytest.mark.parametrize("drelu", [False, True])
def test_a_run_that_is_interrupted_leaves_a_model_that_goes_on(tmp_path: Path, drelu: bool) -> None:
    model = start("annealing")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, model, [annealing(drelu, steps=4), Interrupts()])
    read = check_written(model, tmp_path / "midway")
    for each in (model, read):
        train(tmp_path, each, [annealing(drelu)])
        assert forms(each) == {("relu", "relu" if drelu else "identity")}
        assert check_written(each, tmp_path / "saved").config.hidden_act == ("drelu" if drelu else "relu")


@pytest.mark.parametrize("how", ["thresholds", "annealing", "drelu"])
def test_a_checkpoint_without_the_schedule_is_not_resumed(how: str, tmp_path: Path) -> None:
    train(tmp_path, start(how), [], 4, save_strategy="steps", save_steps=2)
    model = start(how)
    said = named(model)
    with pytest.raises(ValueError, match="the checkpoint that the run resumes has no state of it"):
        train(tmp_path / "again", model, [SCHEDULES[how]()], resume=tmp_path / "checkpoint-2")
    assert named(model) == said


@pytest.mark.parametrize("how", ["thresholds", "annealing", "drelu"])
def test_longer_than_the_run_is_refused_and_stopped_early_is_told(how: str, tmp_path: Path) -> None:
    name = type(SCHEDULES[how]()).__name__
    with pytest.raises(ValueError, match=f"{name}: steps: expected no more than the run has, 2, got 3"):
        train(tmp_path, start(how), [SCHEDULES[how]()], 2)

    class Stops(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            control.should_training_stop = True

    model = start(how)
    with pytest.warns(UserWarning, match=f"{name}: the model is that of step 1 of 3"):
        train(tmp_path, model, [SCHEDULES[how](), Stops()])
    check_written(model, tmp_path / "saved")


def test_a_warm_up_longer_than_the_run_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"has 2 steps, and l1 grows to 0\.001 in 8: it comes to 0\.00025"):
        train(tmp_path, start("l1"), [twell.hf.SparsityCallback(l1=1e-3, warmup=8)], 2)


def test_none_begins_where_one_refuses(tmp_path: Path) -> None:
    model = twell.sparsify(llama("relu2"), freeze=False)
    said = named(model)
    with pytest.raises(ValueError, match="expected relu or fat_relu, got relu_squared"):
        train(tmp_path, model, [sparsity(), thresholds()])
    assert named(model) == said
    assert not any(layer.collect_activity for layer in twell.sparse_layers(model).values())


@pytest.mark.parametrize("how", SCHEDULES)
def test_two_of_a_kind_are_refused(how: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of its kind in a run, got several"):
        train(tmp_path, start(how), [SCHEDULES[how](), SCHEDULES[how]()])


def test_a_way_to_drelu_does_not_end_at_relu(tmp_path: Path) -> None:
    model = start("drelu")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, model, [annealing(drelu=True), Interrupts()])
    for each in (model, check_written(model, tmp_path / "midway")):
        with pytest.raises(ValueError, match="drelu: expected True for a model whose up has an activation"):
            train(tmp_path, each, [annealing()])


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("how", SCHEDULES)
def test_resumed_it_is_the_same_run(how: str, restore: bool, tmp_path: Path) -> None:
    """With a model that is made anew, and with the one that the checkpoint has."""
    options = {"restore_callback_states_from_checkpoint": restore}
    whole = train(tmp_path, start(how), [SCHEDULES[how]()], 5, save_strategy="steps", save_steps=2, **options)
    read = twell.hf.from_pretrained(tmp_path / "checkpoint-2", freeze=False)
    for model in (start(how), read):
        resume = tmp_path / "checkpoint-2"
        again = train(tmp_path / "again", model, [SCHEDULES[how]()], 5, resume=resume, **options)
        assert losses(again)[2:] == pytest.approx(losses(whole)[2:], rel=1e-6)
        check_written(model, tmp_path / "saved")


@pytest.mark.parametrize("how", ["thresholds", "annealing", "drelu"])
def test_the_best_model_comes_back_as_it_was(how: str, tmp_path: Path) -> None:
    """A path to less fires less and knows less, so the first checkpoint is the best one."""
    model = start(how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a path that has not come to its end
        run = train(
            tmp_path, model, [SCHEDULES[how]()], 4, learning_rate=1e-9, save_strategy="steps",
            eval_dataset=torch.utils.data.Subset(Text(), range(8)), save_steps=1, eval_strategy="steps",
            eval_steps=1, load_best_model_at_end=True,
        )  # fmt: skip
    worst = max(line["eval_loss"] for line in run.state.log_history if "eval_loss" in line)
    assert run.evaluate()["eval_loss"] == pytest.approx(run.state.best_metric, rel=1e-5)
    assert run.state.best_metric < worst
    check_written(model, tmp_path / "saved")


class Around(nn.Module):
    """As reward models and value heads have a model of transformers within."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.value = model, nn.Linear(48, 1)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return self.model(input_ids=input_ids, labels=labels)


@pytest.mark.parametrize("how", SCHEDULES)
def test_a_model_within_a_module_of_ones_own_is_written_too(how: str, tmp_path: Path) -> None:
    model = start(how)
    stops = [] if how == "l1" else [Interrupts()]
    for callbacks in ([SCHEDULES[how](), *stops], [SCHEDULES[how]()]):
        try:
            train(tmp_path, Around(model), callbacks)
        except KeyboardInterrupt:
            assert stops
        check_written(model, tmp_path / "saved")
    assert model.config.hidden_act == {"l1": "relu", "thresholds": "fatrelu", "annealing": "relu"}.get(how, how)


def test_what_has_become_drelu_is_pickled(tmp_path: Path) -> None:
    model = start("drelu")
    train(tmp_path, model, [annealing(drelu=True)])
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(logits(again), logits(model))
        assert forms(again) == {("relu", "relu")}


@pytest.mark.parametrize("layers", [(1, 3), (1, 1), (2, 2)])
def test_two_towers_of_one_name(layers: tuple[int, int], tmp_path: Path) -> None:
    """One configuration within another; the file says the thresholds of both in one manner."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "hidden_act": "relu"}
    torch.manual_seed(3)
    config = transformers.CLIPConfig(
        text_config={**sizes, "num_hidden_layers": layers[0], "vocab_size": 61, "max_position_embeddings": 16},
        vision_config={**sizes, "num_hidden_layers": layers[1], "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    model = twell.sparsify(transformers.CLIPModel(config), freeze=False)
    for i, layer in enumerate(twell.sparse_layers(model).values()):
        layer.activation, layer.threshold = "fat_relu", 0.01 * (i + 1)
    ids, pixels = Text().ids[:2], torch.randn(2, 3, 16, 16)

    def out(which: nn.Module) -> Tensor:
        with torch.no_grad():
            return which.eval()(input_ids=ids, pixel_values=pixels).logits_per_text

    callback = thresholds(0.3)
    given = SimpleNamespace(global_step=0, max_steps=3)
    callback.on_train_begin(SimpleNamespace(torch_compile=False), given, None, model=model)
    model.save_pretrained(tmp_path / "saved")
    again = twell.hf.from_pretrained(tmp_path / "saved", freeze=False)
    torch.testing.assert_close(out(again), out(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("activation", "said"), [("relu", "relu"), ("fat_relu", "fatrelu"), ("relu_squared", "relu2")])
@pytest.mark.parametrize("freeze", [False, True])
def test_another_activation_is_said_without_a_callback(
    activation: str, said: str, freeze: bool, tmp_path: Path
) -> None:
    threshold = 0.2 if activation == "fat_relu" else 0.0
    model = twell.sparsify(llama("silu"), activation=activation, threshold=threshold, freeze=freeze)
    assert named(model) == (said, threshold or None)
    check_written(model, tmp_path / "saved")


# --- Layers that do not run in every step -----------------------------------------------------------


def opt(act: str, drop: float) -> nn.Module:
    torch.manual_seed(3)
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=61, hidden_size=48, ffn_dim=96, num_hidden_layers=3, num_attention_heads=4, init_std=0.2,
            word_embed_proj_dim=48, activation_function=act, layerdrop=drop, max_position_embeddings=64,
        )
    )  # fmt: skip


@pytest.mark.parametrize("how", ["l1", "thresholds", "annealing"])
@pytest.mark.parametrize("drop", [0.5, 1.0])
def test_layers_that_are_left_out(how: str, drop: float, tmp_path: Path) -> None:
    model = opt("gelu" if how == "annealing" else "relu", drop)
    model = model if how == "annealing" else twell.sparsify(model, freeze=False)
    train(tmp_path, model, [SCHEDULES[how]()], 5)
    check_written(model, tmp_path / "saved")


@pytest.mark.parametrize("how", SCHEDULES)
def test_a_model_that_is_compiled(how: str, tmp_path: Path) -> None:
    torch.compiler.reset()
    plain = start(how)
    want = losses(train(tmp_path, plain, [SCHEDULES[how]()], 5))
    by_trainer, by_itself = start(how), start(how)
    got = losses(train(tmp_path, by_trainer, [SCHEDULES[how]()], 5, torch_compile=True, torch_compile_backend="eager"))
    assert got == pytest.approx(want, rel=1e-4)
    by_itself.compile(backend="eager")
    by_itself(Text().ids[:8], labels=Text().ids[:8]).loss.backward()  # traced before it is trained
    by_itself.zero_grad()
    assert losses(train(tmp_path, by_itself, [SCHEDULES[how]()], 5)) == pytest.approx(want, rel=1e-4)
    for model in (by_trainer, by_itself):
        assert named(model)[0] == named(plain)[0]
        assert not any("forward" in vars(module) for module in model.modules())
        check_written(model, tmp_path / "saved")


# --- Weights that are not theirs to change -----------------------------------------------------------


def lora(model: nn.Module, *targets: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=list(targets), r=4))


@pytest.mark.parametrize("target", ["q_proj", "gate_proj", "down_proj"])
@pytest.mark.parametrize("how", SCHEDULES)
def test_an_adapter_leaves_its_base_as_it_is(how: str, target: str, tmp_path: Path) -> None:
    model = start(how)
    want = logits(model)
    adapted = lora(model, target)
    with pytest.raises(ValueError, match=f"^{type(SCHEDULES[how]()).__name__}: .*adapter"):
        train(tmp_path, adapted, [SCHEDULES[how]()])
    if how == "l1":  # nothing to draw anew; the term trains the adapter
        train(tmp_path, adapted, [twell.hf.SparsityCallback(l1=1e-3)])
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), want)


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("how", ["l1", "thresholds"])
def test_frozen_weights_stay(how: str, name: str, tmp_path: Path) -> None:
    """Of rows that no token fires, and of a layer that would be scaled."""
    model = start(how)
    layer = next(iter(twell.sparse_layers(model).values()))
    frozen = getattr(layer, name).requires_grad_(False).weight
    before = frozen.detach().clone()
    try:
        train(tmp_path, model, [SCHEDULES[how]()])
        assert how == "l1" or name == "down_proj"
    except ValueError as error:
        assert how == "thresholds" and name != "down_proj"
        assert f"its {name} does not train (requires_grad=False)" in str(error)
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("name", ["gate_proj", "up_proj"])
def test_weights_that_two_layers_share(name: str, tmp_path: Path) -> None:
    model = start("thresholds")
    one, other = twell.sparse_layers(model).values()
    getattr(other, name).weight = getattr(one, name).weight
    said = f"another module has the weight of its {name} too"
    with pytest.raises(ValueError, match=f"ThresholdCallback: .*{said}"):
        train(tmp_path, model, [thresholds()])
    for layer, threshold in ((one, 0.1), (other, 0.4)):
        layer.activation, layer.threshold = "fat_relu", threshold
    want = logits(model)
    with pytest.raises(ValueError, match=f"fold_thresholds: .*{said}"):
        twell.hf.fold_thresholds(model)
    assert torch.equal(logits(model), want)


# --- Modules without a configuration ------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(16, 48, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(48, 16, bias=False), act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Own(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.head = nn.Embedding(61, 16), nn.Linear(16, 61)
        self.blocks = nn.Sequential(*(Block(act) for _ in range(2)))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.blocks(self.embed(input_ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


@pytest.mark.parametrize("config", [None, SimpleNamespace(hidden_act="silu")])
@pytest.mark.parametrize("how", SCHEDULES)
def test_a_model_of_ones_own(how: str, config: Any, tmp_path: Path) -> None:
    model: nn.Module = Own(nn.SiLU() if how in ("annealing", "drelu") else nn.ReLU())
    if config is not None:
        model.config = copy.copy(config)
    if how in ("l1", "thresholds"):
        twell.sparsify(model, freeze=False)
    train(tmp_path, model, [SCHEDULES[how]()], save_strategy="steps", save_steps=2)
    if how in ("annealing", "drelu"):
        assert forms(model) == {("relu", "relu" if how == "drelu" else "identity")}
    if how == "thresholds":
        assert len({layer.threshold for layer in twell.sparse_layers(model).values()} - {0.0}) == 1
    assert config is None or model.config.hidden_act == config.hidden_act


# --- Teachers ----------------------------------------------------------------------------------------


def test_a_teacher_that_training_would_change(tmp_path: Path) -> None:
    def check(student: nn.Module, teacher: nn.Module) -> None:
        with pytest.raises(ValueError, match="expected a model of its own"):
            train(tmp_path, student, [], teacher=teacher)

    model = llama("silu")
    check(model, model)
    check(model, copy.copy(model))
    for shares in (lambda w: w, lambda w: nn.Parameter(w.data), lambda w: nn.Parameter(w.data[:])):
        teacher = llama("relu")
        part = teacher.model.layers[0].mlp.gate_proj
        part.weight = shares(model.model.layers[0].mlp.gate_proj.weight)
        check(model, teacher)
    train(tmp_path, model, [annealing()], teacher=copy.deepcopy(model))
    # What does not train may be of both.
    model.model.embed_tokens.weight.requires_grad_(False)
    teacher = llama("relu")
    teacher.model.embed_tokens.weight = model.model.embed_tokens.weight
    train(tmp_path, model, [], 1, teacher=teacher)


def test_an_adapter_whose_base_is_the_teacher(tmp_path: Path) -> None:
    base = llama("silu")
    adapted = lora(base, "q_proj")
    with pytest.raises(ValueError, match="expected a model of its own"):
        train(tmp_path, adapted, [], teacher=base)
    train(tmp_path, lora(copy.deepcopy(llama("silu")), "q_proj"), [], 1, teacher=llama("silu"))


def test_models_that_cannot_be_taught(tmp_path: Path) -> None:
    def t5() -> nn.Module:
        return transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=61, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
            )
        )

    with pytest.raises(ValueError, match="expected a model without an encoder beside its decoder"):
        train(tmp_path, t5(), [], teacher=t5())
    with pytest.raises(ValueError, match="expected a model of transformers, with a configuration, got Own"):
        train(tmp_path, Own(nn.ReLU()), [], teacher=Own(nn.ReLU()))
    with pytest.raises(ValueError, match="hidden: expected 0 for a model with LayerDrop"):
        train(tmp_path, opt("relu", 0.5), [], teacher=opt("relu", 0.0))
    train(tmp_path, opt("relu", 0.5), [], teacher=opt("relu", 0.0), hidden=0.0)


def test_a_teacher_whose_tokenizer_has_other_words(tmp_path: Path) -> None:
    """Of the same size: it reads the student's ids as another text."""
    tokenizers = pytest.importorskip("tokenizers")

    def saved(name: str, words: list[str]) -> Any:
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, words[0]))
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token=words[0])
        fast.save_pretrained(tmp_path / name)
        llama("silu").save_pretrained(tmp_path / name)
        return fast

    words = [f"w{i}" for i in range(61)]
    own, other = saved("own", words), saved("other", words[::-1])
    saved("renamed", [*words[:-1], "<|im_end|>"])
    read = transformers.AutoModelForCausalLM.from_pretrained
    said = "teacher: expected the model's tokenizer, got one that has other words for the same ids"
    with pytest.raises(ValueError, match=said):
        train(tmp_path, read(tmp_path / "own"), [], 1, teacher=read(tmp_path / "other"))
    with pytest.raises(ValueError, match=said):
        train(tmp_path, llama("silu"), [], 1, teacher=read(tmp_path / "own"), processing_class=other)
    for teacher in ("own", "renamed"):
        train(tmp_path, read(tmp_path / "own"), [], 1, teacher=read(tmp_path / teacher))
    train(tmp_path, llama("silu"), [], 1, teacher=read(tmp_path / "other"))  # nothing says what the ids are
    train(tmp_path, llama("silu"), [], 1, teacher=read(tmp_path / "own"), processing_class=own)


def test_teachers_that_are_none(tmp_path: Path) -> None:
    for teacher in (None, "gpt2"):
        with pytest.raises(ValueError, match="teacher: expected a model, got"):
            train(tmp_path, llama("silu"), [], 1, teacher=teacher)

    def classifier(labels: int) -> nn.Module:
        config = llama("silu", num_labels=labels).config
        return transformers.LlamaForSequenceClassification(config)

    with pytest.raises(ValueError, match="teacher: num_labels: expected 3 as in the model, got 5"):
        train(tmp_path, classifier(3), [], 1, teacher=classifier(5))
    given = arguments(tmp_path, 1)
    with pytest.raises(ValueError, match="compute_loss_func: expected none"):
        twell.hf.DistillationTrainer(
            llama("silu"), given, teacher=llama("silu"), compute_loss_func=lambda *_: torch.zeros(())
        )


def test_batches_without_a_token(tmp_path: Path) -> None:
    ids = Text().ids[:8]
    rows = [{"input_ids": row, "attention_mask": torch.zeros_like(row), "labels": row} for row in ids]
    run = train(tmp_path, llama("silu"), [], 1, train_dataset=rows, teacher=llama("relu"))
    assert losses(run) == [0.0]


def test_logits_of_minus_infinity() -> None:
    minus = -torch.inf
    student = torch.tensor([[0.0, 1.0, minus], [0.0, 1.0, 2.0]], requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0, minus], [1.0, 0.0, minus]])
    loss = twell.hf.divergence(student, teacher)
    loss.backward()
    q = torch.tensor([1.0, 0.0]).softmax(0)
    log_p = torch.stack([torch.tensor([0.0, 1.0]).log_softmax(0), torch.tensor([0.0, 1.0, 2.0]).log_softmax(0)[:2]])
    assert loss.item() == pytest.approx(float((q * (q.log() - log_p)).sum() / 2), rel=1e-6)
    assert torch.isfinite(student.grad).all() and student.grad[0, 2] == 0


def test_a_checkpoint_says_what_it_computes_to_others(tmp_path: Path) -> None:
    """transformers refuses a name that it lacks, on the way as at the end."""
    model = start("thresholds")
    train(tmp_path, model, [thresholds()], 3, save_strategy="steps", save_steps=1)
    for step in (1, 3):
        said = json.loads((tmp_path / f"checkpoint-{step}" / "config.json").read_text())
        assert said["hidden_act"] == "fatrelu"
        with pytest.raises((KeyError, ValueError)):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"checkpoint-{step}")
