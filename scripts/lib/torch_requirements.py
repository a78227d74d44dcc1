"""What PyTorch's wheel needs so that it imports and links, read from the wheel's own metadata.

The default Linux wheel is the CUDA build. Its libraries load each other when torch is imported, so
most of its requirements must be there; those in SKIP are loaded only when used.

  list    prints the requirements of the installed torch, without SKIP, for `pip install -r`
  check   exit 0 when an installed torch is at least the version in scripts/requirements/torch.txt
"""

import importlib.metadata
import pathlib
import re
import sys

# Compiler and solver parts: 1 GB less to fetch.
SKIP = {"triton", "cuda-bindings"}
SKIP_EXTRAS = {"cusolver", "nvrtc", "nvtx"}
PIN = pathlib.Path(__file__).parents[1] / "requirements" / "torch.txt"


def needed(requirement: str) -> str:
    """One line for pip, or nothing."""
    spec, _, marker = requirement.partition(";")
    if "extra ==" in marker:
        return ""
    name, extras, version = re.fullmatch(
        r"([\w.-]+)\s*(?:\[([^]]*)\])?\s*(.*)", spec.strip()
    ).groups()
    if name in SKIP:
        return ""
    kept = [e for e in (extras or "").split(",") if e and e.strip() not in SKIP_EXTRAS]
    line = name + (f"[{','.join(kept)}]" if kept else "") + version
    return f"{line} ; {marker.strip()}" if marker else line


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def main() -> int:
    if sys.argv[1:] == ["list"]:
        lines = (needed(r) for r in importlib.metadata.requires("torch") or [])
        print("\n".join(line for line in lines if line))
        return 0
    if sys.argv[1:] == ["check"]:
        pin = re.search(r"^torch==(\S+)", PIN.read_text(), re.M).group(1)
        try:
            return version_of(importlib.metadata.version("torch")) < version_of(pin)
        except importlib.metadata.PackageNotFoundError:
            return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
