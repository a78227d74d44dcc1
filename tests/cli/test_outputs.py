"""Outputs that cannot be written, that would replace something, or that nobody reads."""

import json
import os
import resource
import shutil
import signal
import subprocess

import pytest
from conftest import SHAPE

FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="no /dev/full here")


@pytest.fixture
def shell(program):
    """Runs a line of bash, in which "twell " is the program."""
    def run(line, **more):
        return subprocess.run(["bash", "-c", line.replace("twell ", program + " ")], capture_output=True,
                              timeout=120, **more)

    return run


# --- what is there already ---

@pytest.mark.parametrize("command", [
    "explain --no-measure --json FILE",
    "generate --model MODEL --prompt-file FILE --json FILE",
    "stats --model MODEL --text TEXT --trace FILE",
    "bench ffn --repeats 1 --chart FILE",
    "tokenize --text FILE --tokenizer MODEL --out FILE",
    "tokenize --text TEXT --tokenizer MODEL --out FILE",
    "tokenize --text TEXT --tokenizer MODEL --out t.tokens --json FILE",
])
def test_no_file_is_replaced_that_is_no_earlier_output(twell, trained, text, tmp_path, command):
    mine = tmp_path / "mine.txt"
    mine.write_text("the only copy")
    names = {"FILE": mine, "MODEL": trained[0], "TEXT": text}
    done = twell(*(names.get(a, a) for a in command.split()), ok=False, cwd=tmp_path)
    assert done.code == 1 and "mine.txt" in done.error_line()
    assert mine.read_text() == "the only copy"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_an_earlier_output_is_replaced(twell, trained, text, tmp_path):
    for _ in range(2):
        twell("tokenize", "--text", text, "--tokenizer", trained[0], "--out", "t.tokens", "--json",
              "t.json", cwd=tmp_path)
        twell("stats", "--model", trained[0], "--text", text, "--max-tokens", 32, "--trace", "t.trc",
              cwd=tmp_path)
        twell("bench", "ffn", "--width", 32, "--neurons", 64, "--nnz", 4, "--tokens", 1, "--repeats", 1,
              "--seconds", 0.001, "--chart", "t.svg", cwd=tmp_path)
    (tmp_path / "empty.json").touch()
    twell("explain", "--no-measure", "--json", "empty.json", cwd=tmp_path)


def test_an_output_is_no_input_and_no_other_output(twell, trained, text, tmp_path):
    shard = tmp_path / "a.tokens"
    twell("tokenize", "--text", text, "--tokenizer", trained[0], "--out", shard)
    os.symlink(shard, tmp_path / "b.tokens")
    before = shard.read_bytes()
    done = twell("tokenize", "--text", shard, "--tokenizer", trained[0], "--out",
                 tmp_path / "b.tokens", ok=False)
    assert "--text" in done.error_line()
    done = twell("tokenize", "--text", text, "--tokenizer", trained[0], "--out", shard, "--json",
                 shard, ok=False)
    assert "a.tokens" in done.error_line()
    done = twell("tokenize", "--text", text, "--tokenizer", trained[0], "--out", tmp_path / "new",
                 "--json", tmp_path / "new", ok=False)
    assert "--json" in done.error_line() and "--out" in done.error_line()
    assert shard.read_bytes() == before


@pytest.mark.parametrize("name", ["model", "report.html", "results.json"])
def test_a_demo_deletes_nothing_that_no_demo_made(twell, text, tmp_path, name):
    mine = tmp_path / "out" / name
    if name == "model":
        mine.mkdir(parents=True)
        mine /= "weights.bin"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("the only copy")
    done = twell("demo", "--text", text, "--out", tmp_path / "out", "--steps", 1, ok=False)
    assert name in done.error_line()
    assert mine.read_text() == "the only copy"


# --- checked before the work ---

LATE = {
    "no json": "explain --json ''", "no out": "train --data TEXT --out ''",
    "no trace": "stats --model MODEL --text TEXT --trace ''",
    "no chart": "bench ffn --chart ''", "no model": "generate --model '' --prompt a",
    "no text": "tokenize --text '' --tokenizer MODEL --out t",
    "no shard": "tokenize --text TEXT --tokenizer MODEL --out ''",
    "no demo": "demo --text TEXT --out ''", "no synth": "synth --out ''",
    "temperature": "generate --model MODEL --prompt a --temperature nan",
    "learning rate": "train --data TEXT --out run --lr nan",
    "synth where files are": "synth --out TEXT", "convert to files": "convert --in MODEL --out TEXT",
    "no quantised": "quantize --model MODEL --type int8 --out ''",
}


@pytest.mark.parametrize("command", LATE.values(), ids=LATE)
def test_fails_before_any_work(twell, trained, text, tmp_path, command):
    names = {"MODEL": trained[0], "TEXT": text, "''": ""}
    done = twell(*(names.get(a, a) for a in command.split()), ok=False, cwd=tmp_path)
    assert done.code in (1, 2)
    assert done.err.count("\n") == 1 and len(done.error_line()) < 300
    assert done.out == ""  # words come with the work
    assert not list(tmp_path.iterdir())


def test_the_file_of_a_calibration_is_checked_first(twell, tmp_path):
    def calibrate(file):
        return twell("calibrate", ok=False, env={"TWELL_CALIBRATION": str(file)}).error_line()

    (tmp_path / "thesis.txt").write_text("the only copy")
    assert "thesis.txt" in calibrate(tmp_path / "thesis.txt" / "cache" / "c.json")
    assert "thesis.txt" in calibrate(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "the only copy"


def test_a_run_is_a_model_and_a_tokenizer_everywhere(twell, trained, text, tmp_path):
    twell("tokenize", "--text", text, "--tokenizer", trained[0], "--out", tmp_path / "t.tokens")
    twell("convert", "--in", trained[0], "--out", tmp_path / "plain")
    assert (tmp_path / "plain" / "config.json").exists()


# --- outputs that fail while they are written ---

@needs_full
@pytest.mark.parametrize("command", ["explain --no-measure", "explain --no-measure --json -",
                                     "--help", "train --help", "--version"])
def test_a_full_standard_output_is_an_error(shell, command):
    done = shell(f"twell {command} > {FULL}")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()[-1:]
    assert "standard output" in line and "space" in line


def test_a_closed_standard_output_is_an_error(shell, tmp_path):
    done = shell(f"twell explain --no-measure --json {tmp_path}/e.json >&-")
    assert done.returncode == 1 and b"standard output" in done.stderr
    json.loads((tmp_path / "e.json").read_text())  # no words in what has its number


@needs_full
@pytest.mark.parametrize("err", [f"2> {FULL}", "2>&-"])
def test_an_error_that_cannot_be_told_still_has_its_code(shell, err):
    assert shell(f"twell generate --model none --prompt a {err}").returncode == 1
    assert shell(f"twell --nonsense {err}").returncode == 2
    assert shell(f"twell explain --no-measure {err}").returncode == 0


def test_training_outlives_its_terminal(shell, text, tmp_path):
    shape = " ".join(map(str, SHAPE))
    done = shell(f"twell train --data {text} --out {tmp_path}/run {shape} --steps 3 --context 32 "
                 "--bpe-vocab 300 2>&-")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run").glob("step-*3"))


def test_a_limit_of_file_sizes_is_told(shell, text, tmp_path):
    shape = " ".join(map(str, SHAPE))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    done = shell(f"twell train --data {text} --out {tmp_path}/run {shape} --steps 3 --context 32 "
                 "--bpe-vocab 300", preexec_fn=limit)
    assert done.returncode == 1
    assert "ulimit -f" in done.stderr.decode().splitlines()[-1]


def test_a_reader_that_goes_away_ends_generate(twell, program, tmp_path):
    """All these tokens would take minutes."""
    context = 150_000
    twell("synth", "--layers", 1, "--width", 16, "--neurons", 64, "--heads", 1, "--vocab", 300,
          "--context", context, "--nnz", 8, "--out", tmp_path / "model")
    process = subprocess.Popen(
        [program, "generate", "--model", tmp_path / "model", "--prompt", "The", "--max-tokens",
         str(context - 100)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(3) == b"The"
    process.stdout.close()
    assert process.wait(30) == 128 + signal.SIGPIPE
    assert process.stderr.read().decode().count("error") == 0


# --- what the words say ---

def test_a_text_that_is_no_utf8_is_named(twell, trained, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "good.txt").write_text("good text\n" * 40)
    bad = tmp_path / "texts" / "bad.txt"
    bad.write_bytes(b"good text \xff\n" * 40)
    model = ["--model", trained[0]]
    for command in (
        ["tokenize", "--text", bad.parent, "--tokenizer", trained[0], "--out", tmp_path / "t"],
        ["train", "--data", bad.parent, "--out", tmp_path / "r", *model],
        ["eval", *model, "--task", "perplexity", "--data", bad],
        ["stats", *model, "--text", bad],
        ["generate", *model, "--prompt-file", bad],
    ):
        assert "bad.txt" in twell(*command, ok=False).error_line(), command


def test_libraries_words_are_not_ours(twell, trained, text, tmp_path):
    os.symlink("loop", tmp_path / "loop")
    task = tmp_path / "task.jsonl"
    task.write_text('{"question": 3}\n')
    state = shutil.copytree(trained[0], tmp_path / "run", symlinks=True) / "latest/trainer/state.json"
    state.write_text('{"version": "x"}')
    for command in (
        ["synth", "--width", 1048576, "--neurons", 1048576, "--heads", 1024, "--out", tmp_path / "s"],
        ["eval", "--model", trained[0], "--task", "arc", "--data", task],
        ["train", "--data", text, "--out", tmp_path / "run", "--resume"],
        ["train", "--data", tmp_path / "loop", "--out", tmp_path / "r"],
        ["generate", "--model", tmp_path / "loop", "--prompt", "a"],
        ["tokenize", "--text", tmp_path / "loop", "--tokenizer", trained[0], "--out", "x"],
    ):
        line = twell(*command, ok=False, cwd=tmp_path).error_line()
        assert len(line) < 400
        for word in ("json.exception", "filesystem error", "DefaultCPUAllocator", "Exception raised",
                     "enforce fail", "std::"):
            assert word not in line, line


def test_an_unquoted_prompt_is_wrong_use(twell, trained):
    done = twell("generate", "--model", trained[0], "--prompt", "Once", "upon", "a", "time",
                 ok=False)
    assert done.code == 2 and "upon" in done.error_line()


def test_bounds_are_written_as_people_write_them(twell):
    for option in ("--nnz", "--width", "--threads", "--threshold"):
        line = twell("bench", "ffn", option, "-3", ok=False).error_line()
        assert option in line and "-3" in line and len(line) < 150, line
