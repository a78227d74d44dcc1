"""Programs that are told to stop: in long calls of a library too, and with what they had so far."""

import json
import os
import random
import signal
import subprocess
import time

import pytest
from conftest import SHAPE

# From the signal to the end of the program: a second's patience, and what a busy machine adds.
SECONDS = 5
LAYER = ["--width", 2048, "--neurons", 8192]


@pytest.fixture
def start(program, tmp_path):
    started = []

    def run(*arguments, env=None):
        with open(tmp_path / "stderr", "w") as stderr:
            process = subprocess.Popen([program, *map(str, arguments)], cwd=tmp_path, stdout=subprocess.PIPE,
                                       stderr=stderr, text=True, env={**os.environ, **(env or {})})  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(timeout=60)


def stop(process, number, seconds=SECONDS):
    """What it printed; and its standard error, whose last line says that it was interrupted."""
    assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(number)
    out, _ = process.communicate(timeout=max(60, seconds))
    assert time.monotonic() - begin < seconds
    assert process.returncode == 130
    return out


def said(tmp_path):
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert "error: interrupted, nothing unfinished was kept" in lines[-1], lines
    return lines[:-1]


def wait_for(process, there, seconds=120):
    end = time.monotonic() + seconds
    while not there():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)


def long_text(path):
    words = random.Random(3)
    vocabulary = ["".join(words.choices("abcdefghijklmnop", k=9)) for _ in range(200_000)]
    path.write_text(" ".join(words.choices(vocabulary, k=2_500_000)))
    return path


# Each is in one long call when the signal comes, and writes nothing before its end.
@pytest.mark.parametrize(("arguments", "number"), [
    (["bench", "ffn", "--train", *LAYER, "--tokens", 8192], signal.SIGTERM),
    (["bench", "ffn", *LAYER, "--tokens", 16384, "--nnz", 4096], signal.SIGINT),
    (["synth", "--preset", "0.5b", "--out", "model"], signal.SIGTERM),
    (["calibrate", "--seconds", 30, *LAYER], signal.SIGTERM),
    (["tokenize", "--text", "long.txt", "--learn", 1000000, "--out", "tokens"], signal.SIGINT),
    (["train", "--data", "long.txt", "--bpe-vocab", 1000000, "--out", "run"], signal.SIGTERM),
], ids=lambda value: value[0] if isinstance(value, list) else value.name)  # fmt: skip
def test_the_first_signal_is_obeyed_at_once(start, tmp_path, arguments, number):
    if "long.txt" in arguments:
        long_text(tmp_path / "long.txt")
    before = {path.name for path in tmp_path.iterdir()} | {"stderr"}
    process = start(*arguments, env={"TWELL_CALIBRATION": str(tmp_path / "calibration.json")})
    time.sleep(3)
    stop(process, number)
    said(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_benchmark_shows_the_rows_that_it_has(start, tmp_path):
    # The first row takes seconds without fast products of bf16 too, the second minutes.
    process = start("bench", "ffn", "--train", "--width", 512, "--neurons", 2048, "--tokens", "16,32768",
                    "--repeats", 1, "--seconds", 0.01, "--json", "rows.json")  # fmt: skip
    wait_for(process, (tmp_path / "rows.json").exists)
    time.sleep(1)
    out = stop(process, signal.SIGTERM)
    assert "1 of 2 cases were measured" in out
    rows = json.loads((tmp_path / "rows.json").read_text())["results"]
    assert [row["tokens"] for row in rows] == [16]
    assert any(line.split()[:2] == ["16", f"{rows[0]['nnz_mean']:.1f}"] for line in out.splitlines()), out
    said(tmp_path)


def test_progress_is_told_where_nobody_looks_at_a_terminal(start, tmp_path):
    process = start("calibrate", "--seconds", 30, *LAYER, env={"TWELL_CALIBRATION": str(tmp_path / "file")})
    wait_for(process, lambda: (tmp_path / "stderr").read_text().count("\n") == 2, 60)
    stop(process, signal.SIGINT)
    first, second = said(tmp_path)
    assert first.startswith("measuring: ") and second.startswith("measuring: ")


def test_training_ends_the_step_and_says_so(start, text, tmp_path):
    process = start("train", "--data", text, *SHAPE, "--bpe-vocab", 300, "--context", 512, "--batch", 16,
                    "--accumulation", 32, "--steps", 1000, "--warmup", 1, "--out", "run")  # fmt: skip
    wait_for(process, (tmp_path / "run/log.jsonl").exists)
    time.sleep(1)
    out = stop(process, signal.SIGINT, 300)
    step = json.loads((tmp_path / "run/log.jsonl").read_text().splitlines()[-1])["step"]
    assert f"Stopped after step {step}" in out and (tmp_path / f"run/step-{step:08}").is_dir()
    assert any("stopping when the present step is done" in line for line in said(tmp_path))


def test_a_second_signal_ends_a_step(start, text, tmp_path):
    process = start("train", "--data", text, *SHAPE, "--bpe-vocab", 300, "--context", 512, "--batch", 16,
                    "--accumulation", 1000, "--steps", 1000, "--warmup", 1, "--out", "run")  # fmt: skip
    wait_for(process, (tmp_path / "run/log.jsonl").exists)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=SECONDS) == 130
