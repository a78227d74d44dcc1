"""Joins what the parts of scripts/gpu_check found into one file for the GPU's model.

    gpu_report.py PARTS_DIR RESULTS_DIR GPU_NAME

PARTS_DIR holds parts.tsv (part, outcome, seconds, reason) and PART.json: GoogleTest's of the parts that run tests,
and what bench, engine and bench-ffn measured. Writes RESULTS_DIR/gpu-<model>.json and prints a summary.
"""

import json
import os
import pathlib
import re
import subprocess
import sys


def found_by(file: pathlib.Path) -> dict | None:
    """A part that was ended by its limit may have left none, or half of it."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def tests_of(run: dict) -> dict[str, object]:
    """Counts of one run of GoogleTest, and the names of what failed or was skipped."""
    passed, failed, skipped = 0, [], []
    for suite in run["testsuites"]:
        for case in suite["testsuite"]:
            name = f"{suite['name']}.{case['name']}"
            if case.get("failures"):
                failed.append(name)
            elif case.get("result") == "SKIPPED":
                skipped.append(name)
            elif case.get("result") == "COMPLETED":
                passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def report(parts_dir: pathlib.Path, gpu: str) -> dict[str, object]:
    parts, measured = {}, {}
    for line in (parts_dir / "parts.tsv").read_text().splitlines():
        name, outcome, seconds, reason = line.split("\t")
        parts[name] = {"outcome": outcome, "seconds": int(seconds)}
        if reason:
            parts[name]["reason"] = reason
        found = found_by(parts_dir / f"{name}.json")
        if found and "testsuites" in found:
            parts[name]["tests"] = tests_of(found)
        elif found:
            measured[name] = found
    return {
        "gpu": gpu,
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        "nvcc": (re.findall(r"V([\d.]+)", output_of("nvcc", "--version")) or [""])[-1],
        "commit": output_of("git", "rev-parse", "--short", "HEAD"),
        "parts": parts,
        **measured,
    }


def main() -> int:
    parts_dir, results_dir, gpu = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    found = report(parts_dir, gpu)
    model = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    target = results_dir / f"gpu-{model}.json"
    results_dir.mkdir(parents=True, exist_ok=True)
    new = target.with_suffix(".new")
    new.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(new, target)
    for name, part in found["parts"].items():
        tests = part.get("tests")
        counts = f", {tests['passed']} passed, {len(tests['failed'])} failed, {len(tests['skipped'])} skipped" if tests else ""
        print(f"{name}: {part['outcome']} in {part['seconds']} s{counts}{': ' + part['reason'] if 'reason' in part else ''}")
    print(f"gpu_check: wrote {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
