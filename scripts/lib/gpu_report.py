"""Joins what the parts of scripts/gpu_check found into one file for the GPU's model.

    gpu_report.py PARTS_DIR RESULTS_DIR GPU_NAME [TABLE.md]

PARTS_DIR holds parts.tsv (part, outcome, seconds, reason); PART.json: GoogleTest's of the parts that run tests, and
what engine and bench-ffn measured; PART.jsonl: what twell_gpu_bench measured, a line each, which may end anywhere.
Writes RESULTS_DIR/gpu-<model>.json, fills the table in TABLE.md (gpu_model_table.py) and prints a summary.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import gpu_gate_shapes
import gpu_model_table


def found_by(file: pathlib.Path) -> dict | None:
    """A part that was ended by its limit may have left none, or half of it."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def lines_of(file: pathlib.Path) -> dict | None:
    """What twell_gpu_bench wrote until it ended or was ended: a line that was cut off is left out."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return None
    found: dict = {"complete": False, "header": {}, "results": []}
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if not isinstance(one, dict):
            continue
        kind = one.get("kind")
        if kind == "header":
            found["header"] = one
        elif kind == "end":
            found["complete"] = True
        else:
            found["results"].append(one)
    return found


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
        lines = lines_of(parts_dir / f"{name}.jsonl")
        if found and "testsuites" in found:
            parts[name]["tests"] = tests_of(found)
        elif found:
            measured[name] = found
        elif lines:
            measured[name] = lines
    return {
        "gpu": gpu,
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        "nvcc": (re.findall(r"V([\d.]+)", output_of("nvcc", "--version")) or [""])[-1],
        "commit": output_of("git", "rev-parse", "--short", "HEAD"),
        "parts": parts,
        **measured,
    }


BENCH_PARTS = ("ceilings", "bench", "train", "probe-gate", "probe-rows", "probe-graph")


def by_variant(found: dict) -> dict[str, dict]:
    """Every line with a name; every part but the probes begins with the ceilings, and the last one is taken."""
    return {
        line["variant"]: line
        for part in BENCH_PARTS
        for line in found.get(part, {}).get("results", [])
        if "variant" in line
    }


def summary_of(lines: dict[str, dict]) -> list[str]:
    out = []
    exact = [line for line in lines.values() if line["kind"] == "exact" and "equal" in line]
    if exact:
        out.append(f"exact: {sum(line['equal'] for line in exact)} of {len(exact)} cases equal to the bit")
    layers = [line for line in lines.values() if line["kind"] == "ffn"]
    if layers:
        # Infinite errors are null.
        worst = max(layers, key=lambda line: float("inf") if (e := line["worst_row_error"]) is None else e)
        out.append(
            f"layers: {sum(line['right'] for line in layers)} of {len(layers)} right; the worst row is "
            f"{worst['worst_row']} of {worst['variant']}, off by {worst['worst_row_error']} (bound {worst['bound']})"
        )
    for line in lines.values():
        if line.get("equal") is False or line.get("right") is False:
            out.append(f"WRONG: {line['variant']}")
        elif line["kind"] == "error":
            out.append(f"FAILED: {line['variant']}: {line['message']}")
    return out


def write(target: pathlib.Path, text: str) -> None:
    new = target.with_suffix(".new")
    new.write_text(text)
    os.replace(new, target)


def main() -> int:
    parts_dir, results_dir, gpu = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    found = report(parts_dir, gpu)
    model = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    target = results_dir / f"gpu-{model}.json"
    results_dir.mkdir(parents=True, exist_ok=True)
    write(target, json.dumps(found, indent=1) + "\n")
    for name, part in found["parts"].items():
        tests = part.get("tests")
        counts = ""
        if tests:
            failed, skipped = len(tests["failed"]), len(tests["skipped"])
            counts = f", {tests['passed']} passed, {failed} failed, {skipped} skipped"
        cut = "" if found.get(name, {}).get("complete", True) else ", cut short"
        reason = f": {part['reason']}" if "reason" in part else ""
        print(f"{name}: {part['outcome']} in {part['seconds']} s{counts}{cut}{reason}")
    lines = by_variant(found)
    for message in summary_of(lines) + gpu_gate_shapes.table_of(list(lines.values())):
        print(message)
    print(f"gpu_check: wrote {target.name}")
    if len(sys.argv) > 4:
        table = pathlib.Path(sys.argv[4])
        text, messages = gpu_model_table.fill(table.read_text(), lines)
        write(table, text)
        for message in messages:
            print(message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
