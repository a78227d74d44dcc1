"""The project's files and their #include lines, for the checks."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CXX_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def tracked(*patterns: str) -> list[pathlib.Path]:
    """Files git knows or would add, relative to the root."""
    # Also in a checkout of another user, which git takes for unsafe.
    out = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others",
         "--exclude-standard", "--", *patterns],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode()
    return sorted(f for f in map(pathlib.Path, filter(None, out.split("\0"))) if (ROOT / f).is_file())


def cxx_files(*folders: str) -> list[pathlib.Path]:
    return [f for f in tracked(*folders) if f.suffix in CXX_SUFFIXES]


def includes(file: pathlib.Path) -> list[tuple[int, str, str]]:
    """(line number, '<' or '"', path) of each #include."""
    found = []
    for number, line in enumerate((ROOT / file).read_text("utf-8").splitlines(), 1):
        if match := _INCLUDE.match(line):
            found.append((number, match[1], match[2]))
    return found


def resolve(including: pathlib.Path, path: str) -> pathlib.Path | None:
    """The project's file that an include names, or None for others'."""
    for base in (including.parent, *map(pathlib.Path, ("src", "lm", "include", "cuda/include", "."))):
        if (ROOT / base / path).is_file():
            return pathlib.Path((ROOT / base / path).resolve().relative_to(ROOT))
    return None
