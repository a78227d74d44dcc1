"""The probes of scripts/gpu_check from end to end, on the emulated GPU."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def toy():
    return os.environ.get("TWELL_GPU_PROBES_TOY") or pytest.skip("TWELL_GPU_PROBES_TOY names no program")


def run(toy, only, file, fault=""):
    command = [toy, "--only", only, "--tokens", "1300", "--width", "64", "--neurons", "136", "--nnz", "8"]
    done = subprocess.run([*command, "--runs", "1", "--sm-rows", "32", "--json", file], capture_output=True, text=True,
                          env={**os.environ, "TWELL_TOY_FAULT": fault}, timeout=300)  # fmt: skip
    return done, [json.loads(line) for line in file.read_text().splitlines()]


def test_dry_run_tries_all_probes_and_writes_no_results(toy, tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "build/release/cuda/tests").mkdir(parents=True)
    (tmp_path / "build/release/cuda/tests/twell_gpu_probes_toy").symlink_to(toy)
    done = subprocess.run([tmp_path / "scripts/gpu_check", "--dry-run", "probes"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\(some \d+ s\)", done.stderr)) == 3
    assert "no time means anything" in done.stdout
    for table in ("gate GEMM ", "gate of ", "rows alone ", "rows beside the gate ", "one token ", "probe/graph/line/"):
        assert re.search(f"^{table}", done.stdout, re.MULTILINE), table
    assert not (tmp_path / "bench").exists()


def test_gate_and_graph_are_right_and_skipped_cases_say_why(toy, tmp_path):
    done, lines = run(toy, "probe-gate,probe-graph", tmp_path / "lines")
    assert done.returncode == 0, done.stdout
    assert "its times mean nothing" in lines[0]["gpu"] and lines[-1] == {"kind": "end", "failed": 0}
    skipped = {line["variant"]: line["skipped"] for line in lines if "skipped" in line}
    assert len(skipped) == 6 and {*skipped.values()} == {"few SMs here"}
    assert "probe/gate_sms/16_fewer/mask" in skipped
    mask = next(line for line in lines if line["kind"] == "probe_mask")
    assert mask["other_than_positive"] == 0 and 0 < mask["set"] < mask["bits"] == 64 * 136
    values = {v["value"]: v for v in next(line for line in lines if line["kind"] == "probe_bits")["values"]}
    assert all(v["alike"] and v["relu"] == v["mask_relu"] for v in values.values())
    found = {name: (v["plain"], v["relu"], v["bit"]) for name, v in values.items()}
    assert found["NaN"] == ("0x7fc0", "0x7fc0", 0) and found["-Inf"] == ("0xff80", "0x0000", 0)
    assert found["1"] == ("0x3f80", "0x3f80", 1) and found["2^-140"] == ("0x0000", "0x0000", 1)
    graph = [line for line in lines if line["kind"] == "probe_graph"]
    assert len(graph) == 8 and all(line["right"] for line in graph)


def test_a_wrong_bit_of_the_mask_is_found(toy, tmp_path):
    _, lines = run(toy, "probe-gate", tmp_path / "lines", "mask")
    assert next(line for line in lines if line["kind"] == "probe_mask")["other_than_positive"] == 1
    bits = next(line for line in lines if line["kind"] == "probe_bits")
    assert [v["value"] for v in bits["values"] if not v["alike"]] == ["NaN"]


@pytest.mark.parametrize("fault", ["", "sum"])
def test_sums_of_rows(toy, tmp_path, fault):
    done, lines = run(toy, "probe-rows", tmp_path / "lines", fault)
    assert done.returncode == (1 if fault else 0)
    alone = [line for line in lines if line["kind"] == "probe_rows" and "right" in line]
    beside = [line for line in lines if line["kind"] == "probe_beside"]
    assert len(alone) == 30 and len(beside) == 15
    if fault:
        assert not any(line["right"] for line in alone if line["ring"] and "all_sms" in line["variant"])
        assert "WRONG" in done.stdout and lines[-1]["failed"] > 0
    else:
        assert all(line["right"] for line in [*alone, *beside])
    assert {line["skipped"] for line in lines if "skipped" in line} == {"fewer SMs here"}


def test_a_probe_that_is_killed_leaves_whole_lines(toy, tmp_path):
    file = tmp_path / "lines"
    call = subprocess.Popen([toy, "--only", "probe-rows", "--sm-rows", "64", "--tokens", "64", "--width", "64",
                             "--neurons", "136", "--nnz", "8", "--json", file], stdout=subprocess.DEVNULL)  # fmt: skip
    until = time.monotonic() + 60
    while not (file.exists() and '"right"' in file.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    call.kill()
    call.wait()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["kind"] == "header" and lines[-1]["kind"] != "end"
    assert any(line.get("right") for line in lines)
