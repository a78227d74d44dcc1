"""``python -m twell info``: what is installed, what it runs on, and a self-check."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from twell import info


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m twell")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "info", help="what is installed, what it runs on, and a self-check"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="also write it as JSON")
    options = parser.parse_args()

    try:
        known = info.collect()
    except RuntimeError as error:  # TWELL_CPU_TIER names a tier that the machine lacks
        return _fail(str(error))
    packages = [f"{name} {version}" for name, version in known["packages"].items()]
    started = time.perf_counter()
    wrong = info.self_check()
    took = time.perf_counter() - started
    rows = {
        "twell": known["twell"],
        "library": known["library"],
        "for GPUs": known["gpu_library"] or "not loaded",
        "PyTorch": f"{known['torch']}, Python {known['python']}",
        "beside it": ", ".join(packages) or "none of the packages it works with",
        "processor": known["processor"],
        "tier": f"{known['tier']}, of {', '.join(known['tiers'])}",
        "threads": str(known["threads"]),
        "GPUs": ", ".join(known["gpus"]) or "none that PyTorch sees",
        **known["environment"],
        "self-check": f"{'failed' if wrong else 'passed'}, {took:.1f} s",
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")
    if options.json:
        part = options.json.with_name(options.json.name + ".part")
        try:
            part.write_text(json.dumps({**known, "wrong": wrong}, indent=2) + "\n")
            part.replace(options.json)
        except OSError as error:
            return _fail(f"{options.json}: cannot be written: {error.strerror}")
    return _fail(f"wrong results: {'; '.join(wrong)}") if wrong else 0


def _fail(message: str) -> int:
    print(f"python -m twell: error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
