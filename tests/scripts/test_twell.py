"""scripts/twell in a checkout that the user may read and not write, wherever it lies."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture(params=["checkout", "with spaces", "schön"])
def checkout(request):
    """A checkout in which a program was built that prints its arguments."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root can write everywhere, and there is no setpriv to become another user")
    place = pathlib.Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    root = place / request.param
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for file in ("src/a.cc", "lm/a.cc", "include/a.h", "cli/a.cc"):
        (root / file).parent.mkdir()
        (root / file).write_text("// a source\n")
    program = root / "build/release/cli/twell"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    program.chmod(0o755)
    (root / "build/.lock").touch()
    (root / "build/release/.ninja_log").touch()
    place.chmod(0o755)
    old = time.time() - 100
    for file in root.glob("*/a.*"):
        os.utime(file, (old, old))
    yield root
    shutil.rmtree(place)


def run(root, *arguments):
    """As a user who owns nothing there."""
    for path in [root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    user = NOBODY if os.geteuid() == 0 else []
    done = subprocess.run([*user, root / "scripts/twell", *arguments], capture_output=True, text=True,
                          env={**os.environ, "HOME": "/nonexistent"}, stdin=subprocess.DEVNULL)
    for path in [root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    return done


def test_what_its_owner_built_is_run(checkout):
    done = run(checkout, "generate", "--prompt", "two words")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "<generate><--prompt><two words>"


def test_sources_that_are_newer_are_told(checkout):
    os.utime(checkout / "cli/a.cc", (time.time() + 100,) * 2)
    done = run(checkout, "--version")
    assert done.returncode == 0 and done.stdout == "<--version>"
    (line,) = done.stderr.splitlines()
    assert line.startswith("note: ") and "cli/a.cc is newer" in line


@pytest.mark.parametrize("what", ["build/release/cli/twell", "build"])
def test_nothing_built_is_one_line(checkout, what):
    path = checkout / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run(checkout, "--version")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: nothing is built") and "scripts/build" in line
