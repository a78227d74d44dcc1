"""bench/against_llama_cpp.py: skips with a reason, or compares."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "bench" / "against_llama_cpp.py"


def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300,
                          **options)


def test_it_skips_with_a_reason_where_the_package_is_absent(work):
    out = work / "skip.json"
    # -S -I: no installed packages at all.
    done = run("-S", "-I", SCRIPT, "--model", work, "--json", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: No module named 'gguf'; pip install llama-cpp-python")
    assert json.loads(out.read_text())["skipped"]


def test_it_compares(twell, work, program):
    for package in ("gguf", "llama_cpp"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    model, out = work / "for-llama", work / "llama.json"
    twell("synth", "--layers", 2, "--width", 128, "--neurons", 512, "--heads", 2, "--vocab", 512,
          "--context", 256, "--nnz", 8, "--out", model)
    done = run(SCRIPT, "--model", model, "--twell", program, "--threads", "1", "--prompt-tokens", "64",
               "--decode-tokens", "8", "--repeats", "1", "--seconds", "0.01", "--json", out)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    for phase in ("prefill", "decode"):
        assert set(result[phase]["llama_cpp"]) == {"bf16", "q8_0"}
        for of_type in result[phase]["llama_cpp"].values():
            assert of_type["tokens_per_s"] == max(of_type["runs_tokens_per_s"]) > 0
            assert f"{of_type['sparse_over_llama_cpp']:.2f}x" in done.stdout
