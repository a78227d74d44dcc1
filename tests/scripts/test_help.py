"""Every script says what it does, and does nothing else, where it is asked for help."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The help of scripts/twell is the program's, which has to be built.
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.name != "twell")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_is_the_comment_at_the_top(script):
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, "")
    first, *_ = done.stdout.splitlines()
    assert first[0].isupper() and first.rstrip(".:;, —") in script.read_text()
