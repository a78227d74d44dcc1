"""bench/reproduce: one run of its plan with two steps, and the same command once more."""

import json
import pathlib
import random
import string
import subprocess
import sys
from xml.etree import ElementTree

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "bench" / "reproduce"


def reproduce(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True,
                          text=True, timeout=600)


def test_the_plan_takes_three_hours_at_most(tmp_path):
    done = reproduce("--text", tmp_path, "--out", tmp_path / "none", "--plan")
    assert done.returncode == 0, done.stderr
    runs = done.stdout.splitlines()
    assert len([line for line in runs if "-silu" in line]) == 2
    assert len([line for line in runs if "-relu-l1-" in line and "revived" not in line]) >= 12
    assert float(runs[-1].split("about ")[1].split()[0]) <= 3.0
    assert not (tmp_path / "none").exists()


def test_mistakes_are_one_line(tmp_path, program):
    done = reproduce("--text", tmp_path, "--out", tmp_path / "out", "--twell", program)
    assert done.returncode == 1
    assert done.stderr == f"reproduce: error: no .txt or .md files in {tmp_path}\n"


def test_a_run_and_the_same_again(tmp_path, program):
    pytest.importorskip("matplotlib")
    words = random.Random(3)
    vocabulary = ["".join(words.choices(string.ascii_lowercase, k=words.randint(2, 9)))
                  for _ in range(3000)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(words.choices(vocabulary, k=12)) for _ in range(5000)))
    out = tmp_path / "out"
    command = ["--text", text, "--out", out, "--twell", program, "--steps", 2, "--only",
               "small-relu-l1-0.06"]
    done = reproduce(*command)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((out / "results.json").read_text())
    assert result["train"]["steps"] == 2 and result["train"]["validation_loss"] > 0
    assert result["stats"]["nnz_mean"] > 0 and result["steps"]["speedup"] > 0
    assert "small-relu-l1-0.06" in (out / "table.md").read_text()
    for chart in ("loss", "nonzeros", "speed"):
        ElementTree.parse(out / f"{chart}.svg")
    # No text is both trained on and measured with.
    joined = (out / "train.txt").read_text() + (out / "held-out.txt").read_text()
    assert joined == text.read_text() + "\n"
    before = {p: p.stat().st_mtime_ns for p in out.glob("*.*.json")}
    assert reproduce(*command).returncode == 0
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("*.*.json")}
