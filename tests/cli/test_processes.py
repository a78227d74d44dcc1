"""twell train on two processes, as mpirun starts them."""

import json
import os
import signal
import subprocess
import time

import pytest

MPIRUN = ["mpirun", "-n", "2"]
SHAPE = ["--layers", 2, "--width", 32, "--neurons", 96, "--heads", 2, "--bpe-vocab", 300,
         "--context", 16, "--batch", 4, "--compute", "fp32", "--log-every", 5]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{'abcdefg'[i * i % 7]} cat sat on mat {i % 13}\n"
                            for i in range(900)))
    return path


@pytest.fixture
def start(program):
    if os.environ.get("TWELL_MPI") != "ON":
        pytest.skip("this build has no MPI")
    started = []

    def run(*arguments, launcher=MPIRUN, env=None):
        process = subprocess.Popen([*launcher, program, "train", *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def log(directory):
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def test_two_processes_train_what_one_does(start, text, tmp_path):
    two, one = tmp_path / "two", tmp_path / "one"
    recipe = ["--data", text, *SHAPE, "--steps", 20, "--accumulation", 2, "--l1", 1e-3]
    code, out, err = finish(start(*recipe, "--out", two, "--save-every", 10))
    assert code == 0, err
    assert out.count("20 steps, 2560 tokens") == 1, out  # one of them tells
    code, _, err = finish(start(*recipe, "--out", one, launcher=[]))
    assert code == 0, err
    records = log(two)
    assert [record["step"] for record in records] == [5, 10, 15, 20]
    # The order of sums alone differs. AdamW makes more of that where a gradient is nearly zero.
    for mine, alone in zip(records, log(one)):
        assert mine["ce"] == pytest.approx(alone["ce"], rel=1e-3)
        assert mine["nnz_mean"] == pytest.approx(alone["nnz_mean"], rel=1e-2)
        assert mine["tokens"] == alone["tokens"]
    # One process goes on where two stopped.
    code, out, err = finish(start("--data", text, "--out", two, "--resume", "--extend-to", 25,
                                  launcher=[]))
    assert code == 0, err
    assert [record["step"] for record in log(two)] == [5, 10, 15, 20, 25]


def test_mistakes_are_told_once(start, text, tmp_path):
    code, _, err = finish(start("--data", text, *SHAPE, "--out", tmp_path / "run", "--steps", 4,
                                "--accumulation", 3))
    assert code == 1
    assert err.count("2 processes need a multiple of 2, got 3") == 1, err
    code, _, err = finish(start("--data", text, *SHAPE, "--out", tmp_path / "run", "--steps", 4,
                                launcher=[], env={"WORLD_SIZE": "2", "RANK": "0"}))
    assert code == 1
    assert len(err.splitlines()) == 1 and "mpirun -n 2" in err


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_process_ends_the_other(start, text, tmp_path, which):
    run = tmp_path / "run"
    process = start("--data", text, *SHAPE, "--out", run, "--steps", 10 ** 6, "--accumulation", 2,
                    "--warmup", 1, "--save-every", 5)
    end = time.monotonic() + 120
    while not (run / "latest").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(process.pid), "twell"], capture_output=True,
                              text=True, check=True).stdout.split()
    assert len(children) == 2
    os.kill(int(children[which]), signal.SIGKILL)
    begin = time.monotonic()
    code, _, _ = finish(process)
    while any(map(is_running, children)) and time.monotonic() - begin < 30:
        time.sleep(0.1)
    assert code != 0 and time.monotonic() - begin < 30
    step = log(run)[-1]["step"]
    code, _, err = finish(start("--data", text, "--out", run, "--resume", "--extend-to", step + 10))
    assert code == 0, err
