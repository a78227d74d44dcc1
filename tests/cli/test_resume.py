"""What a resumed run keeps, what it refuses to change, and what it may."""

import json
import shutil
import signal
import subprocess
import time

import pytest
from conftest import SHAPE

STEPS = ["--steps", 12, "--context", 32, "--batch", 4, "--validation", 0.3, "--bpe-vocab", 300]


@pytest.fixture(scope="module")
def stopped(twell, work, text):
    """A finished run of twelve steps, and the command that made it."""
    out = work / "stopped"
    command = ["train", "--data", text, *SHAPE, *STEPS]
    twell(*command, "--out", out)
    return out, command


@pytest.fixture
def resumed(twell, stopped, text, tmp_path):
    """Resumes a copy of it; so does a second call."""
    out, _ = stopped
    copy = tmp_path / "run"
    shutil.copytree(out, copy, symlinks=True)

    def resume(*options, **more):
        return twell("train", "--data", text, "--out", copy, "--resume", *options, **more)

    resume.out = copy
    return resume


def recipe_of(run):
    newest = max(run.glob("step-*"))
    return json.loads((newest / "trainer" / "state.json").read_text())["recipe"]


def test_the_same_command_with_resume_is_accepted(twell, stopped, resumed):
    _, command = stopped
    done = twell(*command, "--out", resumed.out, "--resume", json_name="same.json")
    assert done.json["steps"] == 12


def test_a_finished_run_says_so(resumed):
    done = resumed(json_name="finished.json")
    assert "has done its 12 steps" in done.out and "--extend-to" in done.out
    assert done.json["loss_first"] is None and done.json["loss_last"] is None
    assert "0.000" not in done.out


def test_the_text_that_was_held_out_stays_held_out(resumed):
    resumed("--extend-to", 14)
    assert recipe_of(resumed.out)["validation_fraction"] == 0.3


KEPT = {
    "--lr": (0.5, "0.001"), "--min-lr-ratio": (0.5, "0.1"), "--warmup": (3, "1"),
    "--beta1": (0.8, "0.9"), "--beta2": (0.8, "0.95"), "--eps": (1e-3, "1e-08"),
    "--weight-decay": (0.3, "0.1"), "--clip": (2, "1.0"), "--l1": (0.25, "2e-05"),
    "--l1-start": (2, "0"), "--l1-warmup": (7, "0"), "--l1-stages": ("0:0,5:1", "none"),
    "--reinit-every": (5, "0"),
    "--reinit-std": (0.5, "0.02"), "--dead-window": (9, "50"), "--seed": (2, "1"),
    "--context": (16, "32"), "--batch": (2, "4"), "--accumulation": (2, "1"),
    "--steps": (13, "12"), "--validation": (0.2, "0.3"), "--bpe-vocab": (301, "300"),
    "--layers": (3, "2"), "--width": (128, "64"), "--neurons": (512, "256"), "--heads": (4, "2"),
    "--vocab": (333, "300"), "--kv-heads": (1, "2"), "--activation": ("silu", "relu"),
}


@pytest.mark.parametrize("option", KEPT)
def test_what_cannot_change_is_refused_with_both_values(resumed, option):
    now, before = KEPT[option]
    files = sorted(resumed.out.rglob("*"))
    log = (resumed.out / "log.jsonl").read_text()
    done = resumed("--extend-to", 14, option, now, ok=False)
    assert done.code == 1
    line = done.error_line()
    assert option.lstrip("-") in line and str(now) in line and before in line
    assert sorted(resumed.out.rglob("*")) == files
    assert (resumed.out / "log.jsonl").read_text() == log


def test_other_weights_gates_types_texts_and_tokenizers_are_refused(
        twell, resumed, trained, text, tmp_path):
    for options, needle in [
        (["--model", trained[0]], "--model"),
        (["--no-gated"], "--gated"),
        (["--compute", "fp32" if recipe_of(resumed.out)["compute"] == "bf16" else "bf16"],
         "--compute"),
        (["--tokenizer", trained[0]], "tokenizer"),
    ]:
        assert needle in resumed("--extend-to", 14, *options, ok=False).error_line()
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[:50000])
    done = twell("train", "--data", other, "--out", resumed.out, "--resume", "--extend-to", 14,
                 ok=False)
    assert "the text is not" in done.error_line()


MAY = {
    "--log-every": (1, "log_every"), "--eval-every": (2, "eval_every"),
    "--eval-windows": (3, "eval_windows"), "--save-every": (1, "save_every"),
    "--keep": (2, "keep_checkpoints"), "--time-budget": (1000, "time_budget_s"),
}


def test_what_may_change_is_applied_and_told(resumed):
    options = [part for name, (value, _) in MAY.items() for part in (name, value)]
    done = resumed("--extend-to", 15, *options, "--recompute", "--path", "dense")
    recipe = recipe_of(resumed.out)
    for name, (value, field) in MAY.items():
        assert recipe[field] == value
        assert f"Resuming with {name} {value}" in done.out
    assert recipe["recompute"] is True and recipe["sparse"] is False
    assert len(list(resumed.out.glob("step-*"))) == 2
    steps = [json.loads(line)["step"] for line in (resumed.out / "log.jsonl").open()]
    assert steps[-3:] == [13, 14, 15]
    resumed("--extend-to", 16)  # without them: as it was
    assert recipe_of(resumed.out) == recipe | {"steps": 16}


def test_extend_to(twell, resumed, text, tmp_path):
    assert "12" in resumed("--extend-to", 11, ok=False).error_line()
    done = twell("train", "--data", text, "--out", tmp_path / "new", "--extend-to", 14, ok=False)
    assert done.code == 2 and "--resume" in done.error_line()
    assert not (tmp_path / "new").exists()


def test_a_shape_beside_a_model_is_refused(twell, trained, text, tmp_path):
    done = twell("train", "--data", text, "--model", trained[0], "--layers", 3, "--out",
                 tmp_path / "new", ok=False)
    line = done.error_line()
    assert "--layers" in line and "3" in line and "2" in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("value", ["-1", "18446744073709551616", "1.5", ""])
def test_a_seed_is_64_bits_without_a_sign(twell, value):
    done = twell("bench", "ffn", "--seed", value, ok=False)
    assert done.code == 2 and "--seed" in done.error_line()


@pytest.mark.parametrize("option", ["--lr", "--l1", "--clip", "--eps"])
def test_no_number_is_refused_before_any_work(twell, text, tmp_path, option):
    done = twell("train", "--data", text, "--out", tmp_path / "run", option, "nan", ok=False)
    assert done.code == 2 and option in done.error_line() and len(done.error_line()) < 200
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("options", "said"), [
    (["--l1-stages", "5"], "expected steps and coefficients, as in 0:0,200:1e-5, got \"5\""),
    (["--l1-stages", "0:1", "--l1", 1], "--l1"),
    (["--teacher", "dense"], "--teacher: twell has it no longer: in Python there is twell.hf.DistillationTrainer"),
    (["--anneal", 60], "--anneal: twell has it no longer: in Python there is twell.hf.AnnealingCallback"),
    (["--share", 0.1, "--share-steps", 5], "in Python there is twell.hf.ThresholdCallback"),
    (["--share"], "in Python there is twell.hf.ThresholdCallback"),
])  # fmt: skip
def test_wrong_use(twell, text, tmp_path, options, said):
    done = twell("train", "--data", text, "--out", tmp_path / "run", *options, ok=False)
    assert done.code == 2 and said in done.error_line()
    assert not (tmp_path / "run").exists()


def test_stages_that_do_not_ascend(twell, text, tmp_path):
    done = twell("train", "--data", text, "--out", tmp_path / "run", *SHAPE, "--bpe-vocab", 300,
                 "--l1-stages", "5:1,4:2", ok=False)
    assert done.code == 1
    assert "l1_stages: expected steps that ascend, got 4 after 5" in done.error_line()


def older(run, **recipe):
    """Makes a checkpoint one of the version in which the command line trained with teachers, too."""
    file = max(run.glob("step-*")) / "trainer" / "state.json"
    state = json.loads(file.read_text())
    assert state["version"] == 4
    state["version"] = 3
    state["recipe"] |= {"teacher": "", "hidden_weight": 1.0, "temperature": 1.0, "anneal_steps": 0,
                        "anneal_from": "", "share": 0.0, "share_steps": 0} | recipe  # fmt: skip
    file.write_text(json.dumps(state))


def test_an_older_run_is_resumed(resumed):
    older(resumed.out)
    assert resumed("--extend-to", 14, json_name="older.json").json["steps"] == 14
    assert "teacher" not in recipe_of(resumed.out)


@pytest.mark.parametrize(("recipe", "instead"), [
    ({"teacher": "/dense"}, "DistillationTrainer"), ({"anneal_steps": 60, "anneal_from": "silu"}, "AnnealingCallback"),
    ({"share": 0.05, "share_steps": 6}, "ThresholdCallback"),
])  # fmt: skip
def test_an_older_run_that_used_what_only_python_has_is_refused(resumed, recipe, instead):
    older(resumed.out, **recipe)
    files = sorted(resumed.out.rglob("*"))
    line = resumed("--extend-to", 14, ok=False).error_line()
    assert f"recipe: {min(recipe)[:5]}" in line and f"twell.hf.{instead}" in line
    assert sorted(resumed.out.rglob("*")) == files


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_the_present_step(program, twell, text, tmp_path, number):
    out = tmp_path / "run"
    command = [program, "train", "--data", text, "--out", out, *SHAPE, *STEPS[2:], "--log-every", "100000",
               "--steps", "100000", "--warmup", "1"]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    time.sleep(6)  # well into the first group of steps
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and b"interrupted" in err.splitlines()[-1], err
    (line,) = (out / "log.jsonl").read_text().splitlines()
    step = json.loads(line)["step"]
    assert 0 < step < 100000 and (out / f"step-{step:08}").is_dir()
    resumed = twell("train", "--data", text, "--out", out, "--resume", "--extend-to", step + 2,
                    json_name="resumed.json")
    assert resumed.json["steps"] == step + 2
