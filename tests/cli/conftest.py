"""Runs the built command line as a user does."""

import json
import os
import random
import subprocess

import pytest


class Done:
    """A finished command: exit code, both outputs and, where asked for, its JSON."""

    def __init__(self, process, json_file):
        self.code = process.returncode
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode(errors="replace")
        self.json = json.loads(json_file.read_text()) if json_file and json_file.exists() else None

    def error_line(self):
        """The one line of a failure. Progress lines may stand before it, nothing after it."""
        assert self.code != 0, self.out
        lines = self.err.splitlines()
        errors = [line for line in lines if "error:" in line]
        assert len(errors) == 1, self.err
        assert lines[-1] == errors[0], self.err
        return errors[0]


class Twell:
    def __init__(self, program, directory):
        self.program = program
        self.directory = directory

    def __call__(self, *arguments, json_name=None, ok=True, cwd=None, timeout=300, env=None, text=None):
        json_file = self.directory / json_name if json_name else None
        command = [self.program, *map(str, arguments)]
        if json_file:
            command += ["--json", str(json_file)]
        process = subprocess.run(
            command,
            capture_output=True,
            cwd=cwd or self.directory,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            input=None if text is None else text.encode(),
        )
        done = Done(process, json_file)
        if ok:
            assert done.code == 0, f"{command}\n{done.out}\n{done.err}"
        return done


@pytest.fixture(scope="session")
def program():
    path = os.environ.get("TWELL_CLI")
    if not path:
        pytest.skip("TWELL_CLI does not name the built command line")
    return path


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """Files that all tests of a run share."""
    return tmp_path_factory.mktemp("twell")


@pytest.fixture(scope="session")
def twell(program, work):
    return Twell(program, work)


@pytest.fixture(scope="session")
def text(work):
    """About 100 kB of sentences that a tiny model can learn."""
    words = random.Random(7)
    who = "the cat|the dog|a bird|my friend|the old man|a girl|the king|some child".split("|")
    does = "sees|likes|finds|follows|hears|remembers|paints|carries".split("|")
    what = "a red ball|the green tree|an apple|the moon|a small house|the river|a song".split("|")
    when = "in the morning|at night|every day|after lunch|on sunday|before the rain".split("|")
    lines = []
    for _ in range(2200):
        pick = [words.choice(group) for group in (who, does, what, when)]
        lines.append(" ".join(pick).capitalize() + ".")
    path = work / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


SHAPE = ["--layers", 2, "--width", 64, "--neurons", 256, "--heads", 2]


@pytest.fixture(scope="session")
def trained(twell, work, text):
    """A run directory of a tiny model, and what `train` reported."""
    out = work / "run"
    done = twell(
        "train", "--data", text, "--out", out, *SHAPE, "--bpe-vocab", 320, "--steps", 60,
        "--context", 64, "--batch", 8, "--warmup", 5, "--lr", 0.005, "--l1", 0.001,
        "--log-every", 5, "--validation", 0.05,
        json_name="train.json",
    )
    return out, done
