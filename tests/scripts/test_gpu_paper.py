"""scripts/gpu_check paper, where no GPU is: with the programs of played_gpu.py."""

import dataclasses
import json
import pathlib
import shutil
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
from played_gpu import (  # noqa: E402
    FILE,
    TWELL,
    calls,
    command,
    found,
    make_tree,
    models,
    outcomes,
    paper,
    put,
    tell,
)


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path)


def test_the_plan_begins_with_what_matters_most_and_fits():
    steps = gpu_paper_plan.plan(gpu_paper_plan.GPU, "cuda")
    names = [step.name for step in steps]
    assert names[:2] == ["model/2b-24", "table1/2b"] and len({*names}) == len(names)
    order = ["table1", "train", "recompute", "decode", "no-gate", "layers", "nnz", "positions"]
    kinds = [name.split("/")[0] for name in names if not name.startswith("model/")]
    assert sorted({*kinds}, key=kinds.index) == order
    assert sum(step.expected for step in steps) <= 12 * 60
    assert all(step.expected < step.limit for step in steps)
    for place, step in enumerate(steps):  # a model is made before it is used
        assert step.kind == "model" or f"model/{step.model.name}" in names[:place]
    assert sum({step.model: step.model.bytes for step in steps}.values()) < 40e9
    table1 = {step.name: step for step in steps if step.name.startswith("table1/")}
    assert [table1[f"table1/{preset}"].model.nnz for preset in ("0.5b", "1b", "1.5b", "2b")] == [39, 33, 29, 24]
    assert "--batch 8 --prompt-tokens 2048" in " ".join(table1["table1/2b"].command)
    assert {step.model.nnz for step in steps if step.name.startswith("nnz/")} == {911, 200, 99, 61, 15}


def test_every_command_fits_the_context():
    """Of a prefill alone no token is decoded; on toys what fills the context of 2,048 does so too."""
    longest = {}
    for sizes, context in ((gpu_paper_plan.GPU, 2048), (gpu_paper_plan.CPU, 2048), (gpu_paper_plan.TOY, 64)):
        for step in gpu_paper_plan.measurements(sizes, "cuda"):
            option = {one: following for one, following in zip(step.command, step.command[1:]) if one[:2] == "--"}
            if step.kind in ("train", "stats"):
                tokens = int(option["--context" if step.kind == "train" else "--window"])
            else:
                only = {"decode": "decode"}.get(step.kind, "prefill")
                assert option["--only"] == only
                tokens = int(option["--prompt-tokens"]) + (int(option["--decode-tokens"]) if only == "decode" else 0)
            assert tokens <= context, step
            longest[sizes, step.kind] = max(tokens, longest.get((sizes, step.kind), 0))
    assert longest[gpu_paper_plan.GPU, "prefill"] == 2048
    assert {tokens for (sizes, _), tokens in longest.items() if sizes == gpu_paper_plan.TOY} == {64}


def test_everything_is_measured_and_written(tree):
    done = paper(tree)
    assert done.returncode == 0, done.stderr
    whole = found(tree)
    assert set(outcomes(tree).values()) == {"done"}
    assert [whole[key] for key in ("gpu", "driver", "power_limit")] == ["NVIDIA T 100", "580.1", "700.00 W"]
    assert whole["date"].endswith("Z") and whole["processor"] and len(whole["plan"]) == len(whole["steps"])
    assert str(tree) not in (tree / FILE).read_text()  # no folder of this machine
    assert models(tree) == []
    assert "2 of 31: table1/2b" in done.stderr and "(+20.0 %; than eager +30.0 %)" in done.stderr
    assert "| 2B, energy a token | 7.85 → 6.51 mJ (−17.0 %) | 1.2 → 1 mJ (−16.7 %) |" in done.stdout
    assert "31 of 31 steps have results" in done.stdout
    assert len(calls(tree)) == 31 and "--batch 1 --fit --accumulation 16 --recompute" in calls(tree)[12]


def test_a_step_that_fails_stops_no_other(tree):
    tell(tree, "fail", "bench train")
    done = paper(tree, "--only", "table1/0.5b,train/0.5b,decode/0.5b")
    assert done.returncode == 1
    steps = {step["name"]: step for step in found(tree)["steps"]}
    assert steps["train/0.5b"]["outcome"] == "failed"
    reason = "twell bench: error: out of memory; use a smaller model, batch or shape (exit 1)"
    assert steps["train/0.5b"]["reason"] == reason
    assert [line for line in done.stdout.splitlines() if "failed" in line] == [f"failed: train/0.5b: {reason}"]
    assert steps["decode/0.5b/batch16"]["outcome"] == "done"


def test_a_model_that_is_not_made(tree):
    tell(tree, "fail", "synth --preset 2b")
    done = paper(tree, "--only", "table1/2b,table1/0.5b")
    assert done.returncode == 1
    assert outcomes(tree) == {"model/2b-24": "failed", "table1/2b": "failed", "model/0.5b-39": "done",
                              "table1/0.5b": "done"}  # fmt: skip
    assert "failed: table1/2b: its model was not made" in done.stdout


def test_no_json_or_another_and_too_little_memory(tree):
    tell(tree, "silent", "--batch 16")
    tell(tree, "other", "--batch 1 ")
    tell(tree, "short", "--batch 8")
    done = paper(tree, "--only", "table1/2b,decode/2b")
    assert "decode/2b/batch16: left no JSON" in done.stdout
    assert "decode/2b/batch1: its JSON is not what it should be: KeyError('decode')" in done.stdout
    assert found(tree)["steps"][2]["answer"] == {"prefill": {"sides": []}}  # it may be of use
    assert "(+20.0 %; than eager +30.0 %; 18 of 38 layers)" in done.stdout


def test_no_energy_is_an_empty_cell(tree):
    tell(tree, "no-energy")
    done = paper(tree, "--only", "table1/2b")
    assert done.returncode == 0
    assert "no energy here" in done.stderr
    assert "| 2B, energy a token | 7.85 → 6.51 mJ (−17.0 %) | |" in done.stdout


def test_what_does_not_fit_the_budget_is_skipped_and_named(tree):
    done = paper(tree, "--budget", "50")
    assert done.returncode == 0, done.stderr
    # 15 s for the model and 28 s for its step fit into 50 s, whatever they then take.
    assert outcomes(tree)["table1/2b"] == "done"
    assert outcomes(tree)["recompute/2b"] == "not reached"  # 55 s
    assert "recompute/2b: skipped, needs 55 s" in done.stderr
    assert "not reached: recompute/2b" in done.stdout
    assert len(calls(tree)) == 30
    done = paper(tree, "--budget", "20", "--only", "table1/2b", "--missing")
    assert "has every step already" in done.stderr
    done = paper(tree, "--budget", "20", "--only", "table1,recompute", "--missing")  # not even its model
    assert len(calls(tree)) == 30 and "not reached: model/2b-24, recompute/2b" in done.stdout
    assert outcomes(tree)["table1/2b"] == "done"  # of the earlier call


def test_the_budget_ends_a_step_that_takes_too_long(tree):
    tell(tree, "sleep", "--batch 8")
    scratch = tree / "scratch"
    scratch.mkdir()
    steps = gpu_paper_plan.plan(gpu_paper_plan.GPU, "cuda", ["table1/2b"])
    steps = [dataclasses.replace(step, expected=0) for step in steps]
    child = gpu_paper.Child(str(tree / "build/gpu-lm/cli/twell"), scratch)
    text = tree / "docs/development.md"
    run = gpu_paper.Paper(steps, {"commit": "abc"}, tree / "paper.json", text, child, 4.0, True)
    run.run()
    assert run.seconds() < 15
    step = json.loads((tree / "paper.json").read_text())["steps"][1]
    assert (step["outcome"], step["commit"]) == ("failed", "abc") and step["reason"].startswith("took longer than")


def test_a_program_that_does_not_want_to_end_is_ended(tmp_path):
    put(tmp_path / "program", "trap '' TERM\nwhile true; do sleep 0.1; done\n")
    begin = time.monotonic()
    with pytest.raises(gpu_paper.Failed, match="took longer than 0 s"):
        gpu_paper.Child(str(tmp_path / "program"), tmp_path).run([], 0.3)
    assert time.monotonic() - begin < 10


def start_and_wait_until_it_sleeps(tree, *arguments):
    process = subprocess.Popen(**command(tree, "paper", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(600):
        if (tree / "build/gpu-lm/cli/sleeps").exists():
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


def is_asleep(tree):
    """Whether a played twell of this tree still runs."""
    program = str(tree / "build/gpu-lm/cli/twell").encode()
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if program in entry.read_bytes():
                return True
        except OSError:
            pass
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_in_the_middle(tree, number):
    tell(tree, "sleep", "--batch 16")
    process = start_and_wait_until_it_sleeps(tree, "--only", "table1/2b,decode/2b,train/2b")
    process.send_signal(number)
    out, error = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == "interrupted: paper-t-100.json keeps table1/2b, train/2b, decode/2b/batch1"
    assert out == "" and not is_asleep(tree) and models(tree) == []
    whole = {step["name"]: step for step in found(tree)["steps"]}
    assert whole["table1/2b"]["result"]["prefill"]["speedup"] == 1.2
    assert whole["decode/2b/batch16"]["outcome"] == "failed"
    assert whole["decode/2b/batch16"]["reason"] == "interrupted"


def test_what_was_not_reached_is_said_after_an_interruption(tree):
    tell(tree, "sleep", "--batch 8")
    process = start_and_wait_until_it_sleeps(tree)
    process.terminate()
    assert "paper-t-100.json keeps no measurement" in process.communicate(timeout=20)[1]
    assert [*outcomes(tree).values()].count("not reached") == 29


def test_killed_in_the_middle(tree):
    tell(tree, "sleep", "train")
    process = start_and_wait_until_it_sleeps(tree, "--only", "table1/0.5b,train/0.5b,decode/0.5b")
    assert outcomes(tree) == {"model/0.5b-39": "done", "table1/0.5b": "done", "train/0.5b": "not reached",
                              "decode/0.5b/batch1": "not reached", "decode/0.5b/batch16": "not reached"}  # fmt: skip
    process.kill()
    process.communicate()
    time.sleep(0.2)
    assert not is_asleep(tree)  # nothing of it goes on
    assert found(tree)["steps"][1]["result"]["prefill"]["speedup"] == 1.2
    # Nothing is in the way of the next call, which measures what is missing.
    (tree / "build/gpu-lm/cli/sleep").unlink()
    before = found(tree)["steps"][1]
    done = paper(tree, "--only", "table1/0.5b,train/0.5b,decode/0.5b", "--missing")
    assert done.returncode == 0, done.stderr
    assert set(outcomes(tree).values()) == {"done"} and models(tree) == []
    assert before in found(tree)["steps"]


@pytest.mark.parametrize(
    ("smi", "message"),
    [
        (None, "no NVIDIA GPU here: there is no nvidia-smi"),
        ('echo "NVIDIA-SMI has failed because it couldn\'t reach the driver."; echo; exit 9\n',
         "no NVIDIA GPU here: nvidia-smi says: NVIDIA-SMI has failed because it couldn't reach the driver."),
        ('echo "No devices were found"\n', "no NVIDIA GPU here: nvidia-smi says: No devices were found"),
        ("exit 1\n", "no NVIDIA GPU here: nvidia-smi says: nothing"),
        ("echo ,,,\n", "no NVIDIA GPU here: nvidia-smi says: ,,,"),
        ('echo "[N/A], 580.1, 81559 MiB, 700.00 W"\n',
         "no NVIDIA GPU here: nvidia-smi says: [N/A], 580.1, 81559 MiB, 700.00 W"),
        ("printf '\\xff\\xfe, 580.1, 1 MiB, 7 W\\n'\n", "no NVIDIA GPU here: what nvidia-smi prints is no text"),
    ],
)  # fmt: skip
def test_without_a_gpu_or_its_driver_a_line_says_so(tree, smi, message):
    if smi is None:
        if shutil.which("nvidia-smi"):
            pytest.skip("there is an nvidia-smi here")
        (tree / "bin/nvidia-smi").unlink()
    else:
        put(tree / "bin/nvidia-smi", smi)
    done = paper(tree)
    assert (done.returncode, done.stderr) == (1, f"error: {message}\n")
    assert not (tree / FILE).exists()


def test_what_is_not_built_or_not_there(tree):
    (tree / "build/gpu-lm/cli/twell").unlink()
    done = paper(tree)
    assert done.stderr == "error: build/gpu-lm/cli/twell is not built; run scripts/gpu_check build-lm\n"
    done = paper(tree, "--only", "table2")
    assert done.returncode == 1 and done.stderr.startswith("error: --only: no step 'table2'; there are: table1/2b, ")


def test_on_the_cpu(tree):
    put(tree / "build/release/cli/twell", TWELL, "python3")
    (tree / "bin/nvidia-smi").unlink()
    done = paper(tree, "--device", "cpu", "--only", "table1/0.5b", "--batch", "1,4", "--prompt-tokens", "512")
    assert done.returncode == 0, done.stderr
    files = [one for one in (tree / "bench/results").iterdir() if one.name != "paper.json"]
    whole = json.loads(files[0].read_text())
    assert [step["name"] for step in whole["steps"]] == ["model/0.5b-39", "table1/0.5b/batch1", "table1/0.5b/batch4"]
    assert whole["device"] == "cpu" and "gpu" not in whole
    called = (tree / "build/release/cli/calls").read_text().splitlines()
    assert "--batch 4 --prompt-tokens 512" in called[2] and all("--device cpu" in line for line in called)
    cell = "83.3 → 100 (+20.0 %; than eager +30.0 %; 4 × 512 tokens)"
    assert f"| 0.5B, batch 4, forward, tokens/ms | | {cell} |" in done.stdout


def test_the_dry_run_shows_the_plan_and_tries_it_on_toys(tree):
    done = subprocess.run(**command(tree, "--dry-run", "paper"), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "  2. table1/2b: Table 1: forward execution and energy a token; 28 s, at most 114 s" in done.stdout
    assert "run scripts/build release cli/twell" in done.stdout
    put(tree / "build/release/cli/twell", TWELL, "python3")
    before = sorted((tree / "bench/results").iterdir())
    done = subprocess.run(**command(tree, "--dry-run", "paper"), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "31 of 31 steps have results" in done.stdout and "toys on the CPU" in done.stdout
    assert sorted((tree / "bench/results").iterdir()) == before and not (tree / "build/paper-scratch").exists()
    called = (tree / "build/release/cli/calls").read_text().splitlines()
    assert all("--device cpu" in line for line in called)
    assert all("--layers 2 --width 64 --neurons 176" in line for line in called if line.startswith("synth"))


def test_building_for_it_leaves_the_file_of_the_other_parts(tree):
    """A run on a fresh machine: build-lm alone has nothing that gpu-<model>.json could keep."""
    kept = tree / "bench/results/gpu-t-100.json"
    kept.write_text("{}\n")
    for tool in ("nvcc", "ninja", "python"):
        put(tree / "bin" / tool, "exit 0\n")
    put(tree / "bin/cmake", "echo cmake version 3.30.0\n")
    run = command(tree, "build-lm", "paper", "--only", "table1/2b")
    run["env"]["TWELL_PYTHON"] = str(tree / "bin/python")
    done = subprocess.run(**run, capture_output=True, timeout=120)
    assert kept.read_text() == "{}\n"
    assert outcomes(tree)["table1/2b"] == "done", done.stderr


def test_tables_have_a_column_for_each_file_and_no_estimates(tree):
    paper(tree, "--only", "table1/2b,nnz/1.5b/15,layers")
    folder = tree / "bench/results"
    (folder / "paper-other.json").write_text(
        json.dumps({"kind": "paper", "device": "cpu", "processor": "C", "steps": [
            {"name": "table1/2b", "outcome": "failed", "reason": "no memory"},
            {"name": "table1/0.5b/batch4", "outcome": "done", "date": "2026-12-01T10:00Z", "commit": "abc", "result":
             {"prefill": {"sides": [{"name": "sparse", "us": 2, "tokens_per_ms": 0.5},
                                    {"name": "dense", "us": 3, "tokens_per_ms": 0.33}], "speedup": 1.5}}},
        ]})
    )  # fmt: skip
    text = paper_table.block(folder)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| dense → sparse | paper, 8 × H100 PCIe | NVIDIA T 100 | C |"
    assert "| 0.5B, forward, tokens/ms | +17.0 % | | |" in rows
    assert "| 0.5B, batch 4, forward, tokens/ms | | | 0.33 → 0.5 (+50.0 %) |" in rows
    assert "| a layer's non-zeros and speedup: correlation | −0.996 | −0.988 | |" in rows
    assert not any("energy" in row and "batch 4" in row for row in rows)  # nobody has it
    assert text.splitlines()[-1] == "C: 2026-12-01, commit abc."


def test_the_page_has_what_the_results_give():
    program = [sys.executable, ROOT / "scripts/lib/paper_table.py"]
    done = subprocess.run([*program, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_page_that_has_something_else_is_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- paper:begin -->\n| 2B | +99 % |\n<!-- paper:end -->\nafter\n")
    program = [sys.executable, ROOT / "scripts/lib/paper_table.py"]
    done = subprocess.run([*program, "--check", page], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "error: page.md: the block paper is not what the results give; run scripts/lib/paper_table.py\n"
    )
    assert "+99 %" in page.read_text()
    assert subprocess.run([*program, page]).returncode == 0
    assert subprocess.run([*program, "--check", page]).returncode == 0
    assert page.read_text().startswith("before\n") and page.read_text().endswith("-->\nafter\n")
    page.write_text("nothing\n")
    done = subprocess.run([*program, page], capture_output=True, text=True)
    assert done.returncode == 1 and "page.md: no lines <!-- paper:begin -->" in done.stderr
