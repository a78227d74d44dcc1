"""What scripts/gpu_check paper keeps, and says, where something is damaged, full, odd or asked for wrongly."""

import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts/lib"), str(ROOT / "tests/scripts")]
import gpu_paper  # noqa: E402
import gpu_paper_plan  # noqa: E402
import paper_table  # noqa: E402
from played_gpu import FILE, command, found, make_tree, outcomes, paper, put, tell  # noqa: E402


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path)


def step_of(tree, name):
    return next(step for step in found(tree)["steps"] if step["name"] == name)


def test_a_failure_leaves_the_earlier_result(tree):
    paper(tree, "--only", "train/0.5b")
    before = step_of(tree, "train/0.5b")
    tell(tree, "fail", "bench train")
    tell(tree, "partly", "bench train")
    done = paper(tree, "--only", "train/0.5b")
    assert done.returncode == 1
    after = step_of(tree, "train/0.5b")
    failure = after.pop("last_failure")
    assert after == before and failure["outcome"] == "failed" and "out of memory" in failure["reason"]
    assert failure["answer"] == {"complete": False, "rounds": [1, 2]}
    assert "failed: train/0.5b: twell bench: error: out of memory" in done.stdout
    assert "(exit 1); its earlier result stays" in done.stdout and "1 of 2 steps have results" in done.stdout
    # A model that is not made, then one that works: the failure is past.
    tell(tree, "fail", "synth")
    paper(tree, "--only", "train/0.5b")
    assert step_of(tree, "model/0.5b-39")["last_failure"] and step_of(tree, "model/0.5b-39")["result"]
    (tree / "build/gpu-lm/cli/fail").unlink()
    (tree / "build/gpu-lm/cli/partly").unlink()
    assert paper(tree, "--only", "train/0.5b").returncode == 0
    assert "last_failure" not in step_of(tree, "train/0.5b")


def test_an_interruption_leaves_the_earlier_result_and_what_was_written(tree):
    paper(tree, "--only", "decode/0.5b")
    before = step_of(tree, "decode/0.5b/batch1")
    tell(tree, "sleep", "--batch 1 ")
    tell(tree, "partly", "--batch 1 ")
    process = subprocess.Popen(**command(tree, "paper", "--only", "decode/0.5b"), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    for _ in range(600):
        if (tree / "build/gpu-lm/cli/sleeps").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGINT
    after = step_of(tree, "decode/0.5b/batch1")
    failure = after.pop("last_failure")
    assert after == before
    assert (failure["reason"], failure["answer"]["complete"]) == ("interrupted", False)
    assert set(outcomes(tree).values()) == {"done"}


def test_what_a_failed_step_has_written_is_kept(tree):
    tell(tree, "fail", "bench train")
    tell(tree, "partly", "bench train")
    paper(tree, "--only", "train/0.5b")
    step = step_of(tree, "train/0.5b")
    assert step["outcome"] == "failed" and step["answer"] == {"complete": False, "rounds": [1, 2]}


def test_entries_that_cannot_be_read_are_left_out_one_by_one(tree):
    paper(tree, "--only", "table1/0.5b,train/0.5b,decode/0.5b")
    whole = found(tree)
    names = [step["name"] for step in whole["steps"]]
    del whole["steps"][names.index("table1/0.5b")]["result"]["prefill"]["sides"]
    del whole["steps"][names.index("train/0.5b")]["date"]
    whole["steps"] += [None, 7, {"outcome": "done", "result": {"nnz_measured": 1}}]
    (tree / FILE).write_text(json.dumps(whole))
    done = paper(tree, "--only", "table1/1b")
    assert done.returncode == 0, done.stderr
    assert f"paper-t-100.json: 5 of {len(names) + 3} entries cannot be read, and are left out" in done.stderr
    assert outcomes(tree) == dict.fromkeys(
        ["model/1b-33", "table1/1b", "model/0.5b-39", "decode/0.5b/batch1", "decode/0.5b/batch16"], "done")  # fmt: skip


@pytest.mark.parametrize("text", [b'{"steps": [', b"\xff\xfe", b"[]", b'{"steps": 3}', b"null", b"[" * 100000])
def test_a_file_that_cannot_be_read_gets_another_name(tree, text):
    (tree / FILE).write_bytes(text)
    done = paper(tree, "--only", "table1/0.5b")
    assert done.returncode == 0, done.stderr
    said = "paper-t-100.json cannot be read: it is paper-t-100.json.damaged from now on"
    assert done.stderr.splitlines()[0] == said
    assert (tree / (FILE + ".damaged")).read_bytes() == text and outcomes(tree)["table1/0.5b"] == "done"


def test_a_full_disk_stops_no_step(tree):
    new = (tree / FILE).with_suffix(".new")
    new.symlink_to("/dev/full")
    done = paper(tree, "--only", "table1/0.5b")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "    paper-t-100.json is not written: No space left on device"
    assert outcomes(tree)["table1/0.5b"] == "done" and not new.is_symlink()


def test_a_disk_that_stays_full(tree, monkeypatch, capsys):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    scratch = tree / "build/paper-scratch"
    scratch.mkdir(parents=True)
    steps = gpu_paper_plan.plan(gpu_paper_plan.GPU, "cuda", ["table1/0.5b"])
    child = gpu_paper.Child(str(tree / "build/gpu-lm/cli/twell"), scratch)
    header = {"commit": "abc", "processor": "C"}
    run = gpu_paper.Paper(steps, header, tree / "paper-c.json", tree / "docs/development.md", child, None, False)
    assert gpu_paper.run(run) == 1
    out, error = capsys.readouterr()
    assert error.count("paper-c.json is not written: No space left on device\n") == 3
    assert error.splitlines()[-1] == "error: paper-c.json has not all results: it could not be written"
    assert "2 of 2 steps have results" in out and "(+20.0 %; than eager +30.0 %)" in out
    assert not list(tree.glob("paper-c.*"))


def test_an_nvidia_smi_that_hangs(tree, monkeypatch):
    put(tree / "bin/nvidia-smi", "sleep 60\n")
    monkeypatch.setenv("PATH", f"{tree / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_paper, "SMI_LIMIT_S", 0.3)
    with pytest.raises(gpu_paper.Failed, match=r"^no NVIDIA GPU here: nvidia-smi did not answer in 0.3 s$"):
        gpu_paper.gpu()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "argument --budget: '0' is no positive number of seconds"),
        (["--budget", "nan"], "argument --budget: 'nan' is no positive number of seconds"),
        (["--budget=-5"], "argument --budget: '-5' is no positive number of seconds"),
        (["--prompt-tokens", "0"], "argument --prompt-tokens: '0' is no positive whole number"),
        (["--batch", "4,-1"], "argument --batch: '-1' is no positive whole number"),
        (["--batch", "4,"], "argument --batch: '' is no positive whole number"),
    ],
)
def test_options_that_are_wrong(tree, arguments, message):
    done = paper(tree, *arguments)
    assert (done.returncode, done.stderr) == (2, f"error: {message}; --help lists the options\n")


def test_help_says_something_of_each_option(tree):
    done = paper(tree, "--help")
    assert done.returncode == 0
    for option in ("--device", "--budget", "--only", "--missing", "--batch", "--prompt-tokens", "--dry-run"):
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"  {option}"))
        assert len(line.split()) > 4, line


def test_other_lengths_have_names_and_rows_of_their_own(tree):
    done = paper(tree, "--only", "table1/0.5b", "--prompt-tokens", "1024", "--batch", "4")
    assert "table1/0.5b/batch4/prompt1024" in outcomes(tree), done.stderr
    row = "| 0.5B, batch 4, prompts of 1024, forward, tokens/ms | | 83.3 → 100 (+20.0 %; than eager +30.0 %; "
    assert row + "4 × 1,024 tokens) |" in done.stdout
    assert "| 0.5B, forward, tokens/ms | +17.0 % | |" in done.stdout
    done = paper(tree, "--only", "table1/0.5b", "--prompt-tokens", "1024")
    assert outcomes(tree)["table1/0.5b/prompt1024"] == "done"


def test_cells_say_what_is_not_the_papers(tree):
    sides = [{"name": "sparse", "tokens_per_ms": 2.0, "step_us": 1, "peak_bytes": 1e9},
             {"name": "dense", "tokens_per_ms": 1.0, "step_us": 2, "peak_bytes": 2e9}]  # fmt: skip
    for tokens, note in ((16 * 2048.0, ""), (2048.0, "; 1 × 2,048 tokens")):
        step = {"tokens": tokens, "context": 2048, "sides": sides, "speedup": 2.0}
        assert paper_table.speed_cell("train", step) == f"1 → 2 (+100.0 %{note})"
        assert paper_table.peak_cell("train", step) == f"2 → 1 GB{note}"


def test_no_result_is_written_into_no_page(tree):
    tell(tree, "fail", "synth")
    done = paper(tree, "--only", "table1/0.5b")
    assert "0 of 2 steps have results" in done.stdout and "paper_table.py" not in done.stdout
    (tree / "build/gpu-lm/cli/fail").unlink()
    assert "paper_table.py writes them" in paper(tree, "--only", "table1/0.5b").stdout


def test_a_commit_that_nobody_has_is_said(tree):
    note = "note: results of abc-dirty, which nobody else has; commit first where they are to be published"
    assert note in paper(tree, "--only", "table1/0.5b", "--commit", "abc-dirty").stderr
    other = ("--only", "table1/0.5b", "--commit", "abc-dirty", "--results", str(tree / "mine"))
    assert "note: results" not in paper(tree, *other).stderr
    assert "note: results" not in paper(tree, "--only", "table1/0.5b", "--commit", "abc").stderr


ODD_STEP = {"name": "table1/2b", "outcome": "done", "date": "2026-12-01", "commit": "a", "result": {"prefill": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"steps": [', "paper-odd.json is damaged: "),
        ("[]", "paper-odd.json is not what gpu_paper.py writes: "),
        ('{"device": "cpu", "processor": "C", "steps": [4]}', "paper-odd.json is not what gpu_paper.py writes: "),
        (json.dumps({"device": "cpu", "processor": "C", "steps": [ODD_STEP]}),
         "paper-odd.json is not what gpu_paper.py writes: "),
        (json.dumps({"device": "cpu", "processor": "C", "steps": [ODD_STEP | {"name": "model"}]}),
         "paper-odd.json is not what gpu_paper.py writes: "),
    ],
)  # fmt: skip
def test_the_page_of_a_file_that_is_damaged_or_odd(tree, text, message):
    page = tree / "page.md"
    page.write_text("<!-- paper:begin -->\n<!-- paper:end -->\n")
    (tree / "bench/results/paper-odd.json").write_text(text)
    program = [sys.executable, ROOT / "scripts/lib/paper_table.py"]
    done = subprocess.run([*program, page, tree / "bench/results"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1
    (tree / "bench/results/paper-odd.json").unlink()
    done = subprocess.run([*program, tree / "none.md", tree / "bench/results"], capture_output=True, text=True)
    assert done.stderr == "error: none.md: No such file or directory\n"
    (tree / "bench/results/paper.json").write_text("{}")
    done = subprocess.run([*program, page, tree / "bench/results"], capture_output=True, text=True)
    assert done.stderr.startswith("error: paper.json is not what it should be: ") and done.stderr.count("\n") == 1
