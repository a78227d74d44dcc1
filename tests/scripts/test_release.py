"""What a release says of itself agrees, and scripts/release publishes nothing."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from release_check import offences_of_sources  # noqa: E402

FILES = ("python/twell/__init__.py", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml",
         "README.md", "python/README.md", "include/twell/version.h")  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    return tmp_path


def test_version_licence_citation_and_changes_agree(copy):
    assert offences_of_sources(ROOT) == offences_of_sources(copy) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "python/twell/__init__.py",
            '"0.1.0"',
            '"0.2.0"',
            "CHANGELOG.md begins with '0.1.0', expected '0.2.0'",
        ),
        (
            "CITATION.cff",
            "version: 0.1.0",
            "version: 0.0.9",
            "CITATION.cff has the version '0.0.9'",
        ),
        ("include/twell/version.h", "MINOR 1", "MINOR 2", "include/twell/version.h has '0 2 0 \"0.1.0\"'"),
        ("CITATION.cff", "license: MIT", "license: BSD", "CITATION.cff has the licence 'BSD'"),
        ("CITATION.cff", "authors:", "people:", "CITATION.cff has no authors"),
        ("LICENSE", "MIT License", "A licence", "LICENSE begins with 'A licence'"),
        ("CHANGELOG.md", "not released yet", "soon", "expected YYYY-MM-DD"),
        ("CHANGELOG.md", "not released yet", "2026-12-01", "README.md has 'not released yet'"),
        ("python/README.md", "not released yet", "there", "python/README.md lacks 'not released yet'"),
        ("README.md", "Version 0.1.0", "Version 0.2.0", "README.md names version 0.2.0, expected 0.1.0"),
    ],
)
def test_a_disagreement_is_found(copy, file, old, new, words):
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    assert words in "\n".join(offences_of_sources(copy))


@pytest.mark.parametrize("out", ["", "-x", None])
def test_nothing_of_somebody_elses_is_removed(tmp_path, out):
    (tmp_path / "thesis.txt").write_text("mine")
    asked = ["--dry-run", "--no-root", "--out", str(tmp_path) if out is None else out]
    done = subprocess.run([ROOT / "scripts/release", *asked], capture_output=True, text=True)
    assert done.returncode == 1
    assert ("name another directory" if out is None else "--out: expected a directory") in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_publishing_is_a_persons():
    done = subprocess.run([ROOT / "scripts/release"], capture_output=True, text=True)
    assert (
        done.returncode == 1 and "publishes nothing" in done.stderr and "--dry-run" in done.stderr
    )
