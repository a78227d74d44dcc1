"""Help, wrong use, and failures that have to be one clear line."""

import contextlib
import ctypes
import functools
import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

COMMANDS = [
    ["demo"], ["train"], ["generate"], ["bench", "ffn"], ["bench", "model"], ["stats"], ["eval"],
    ["synth"], ["tokenize"], ["convert"], ["quantize"], ["explain"], ["calibrate"], ["info"],
]


@pytest.fixture(scope="module")
def help_of(twell):
    """What `--help` of a command prints; each is asked once."""
    return functools.cache(lambda *command: twell(*command, "--help"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_explains_and_shows_an_example(help_of, command):
    done = help_of(*command)
    assert "Usage:" in done.out and "--json" in done.out and "--threads" in done.out
    example = done.out.split("Example:\n", 1)[1]
    assert example.strip().startswith("twell " + " ".join(command))
    assert done.err == ""
    assert max(map(len, done.out.splitlines())) <= 100


def test_main_help_lists_all_commands(twell):
    out = twell("--help").out
    assert max(map(len, out.splitlines())) <= 100
    for command in COMMANDS:
        assert f"\n  {command[0]} " in out


def options_of(help_text):
    return set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", help_text, re.M))


def test_the_manual_page_has_what_help_has(twell, help_of):
    page = twell("--print", "man").out
    for command in COMMANDS:
        section = page.split(f'.SS "twell {" ".join(command)}"\n', 1)[1].split("\n.SS ", 1)[0]
        text = section.replace("\\-", "-")
        options = options_of(help_of(*command).out)
        assert options
        assert options <= set(re.findall(r"(--[a-z0-9-]+)", text)), command
    assert all(line.isascii() or line[0] not in ".'" for line in page.splitlines())


def completed(script, *words):
    """What bash offers for the last word."""
    program = (
        f'compopt() {{ :; }}; source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _twell; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    run = subprocess.run(
        ["bash", "-c", program, "bash", *words], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    return run.stdout.split()


def test_bash_completes_commands_options_and_values(twell, help_of, tmp_path):
    script = tmp_path / "twell"
    script.write_text(twell("--print", "bash-completion").out)
    assert "generate" in completed(script, "twell", "")
    assert completed(script, "twell", "bench", "f") == ["ffn"]
    for command in COMMANDS:
        options = options_of(help_of(*command).out)
        assert options <= set(completed(script, "twell", *command, "--"))
    assert completed(script, "twell", "generate", "--path", "s") == ["sparse"]
    assert completed(script, "twell", "train", "--out", str(script)[:-1]) == [str(script)]
    # A value that is called as a command is.
    assert "--text" in completed(script, "twell", "demo", "--out", "train", "--t")


def test_version_is_that_of_the_python_package(twell):
    """It stands there alone: CMake and the package's build read it."""
    root = Path(__file__).resolve().parents[2]
    source = (root / "python" / "twell" / "__init__.py").read_text()
    (version,) = re.findall('^__version__ = "(.+)"$', source, re.M)
    assert twell("--version").out == f"twell {version}\n"
    assert 'dynamic = ["version"]' in (root / "pyproject.toml").read_text()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_unknown_option_is_one_line(twell, command):
    done = twell(*command, "--no-such-option", ok=False)
    assert done.code == 2
    assert done.out == ""
    line = done.error_line()
    assert line.startswith("twell " + " ".join(command) + ": error: ")


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["nonsense"], ["nonsense"]),
        (["bench", "ffn", "--tokens", "0"], ["--tokens", "0"]),
        (["bench", "ffn", "--dtype", "int8"], ["--dtype", "bf16"]),
        (["bench", "ffn", "--tokens", "x"], ["--tokens", "x"]),
        (["generate", "--prompt", "x"], ["--model"]),
        (["synth", "--preset", "3b", "--out", "x"], ["--preset", "3b"]),
        (["quantize", "--model", "x", "--out", "y"], ["--type"]),
        (["quantize", "--model", "x", "--out", "y", "--type", "int3"], ["--type", "int4"]),
        (["quantize", "--model", "x", "--out", "y", "--type", "int4", "--group", "48"], ["--group", "64"]),
    ],
)
def test_wrong_use_names_the_option(twell, arguments, needles):
    done = twell(*arguments, ok=False)
    assert done.code == 2
    line = done.error_line()
    assert all(n and n in line for n in needles), line


# What fails, and what its one line has to hold. WORK is the fixture's folder, with bad_files() in it.
FAILURES = {
    "no such model": ("generate --model WORK/none --prompt a", "none"),
    "no config": ("generate --model WORK/no-model --prompt a", "config.json"),
    "nnz above H": ("bench ffn --neurons 64 --nnz 65", "--nnz"),
    "no such device": ("bench ffn --device tpu", "tpu"),
    "no such GPU number": ("generate --model WORK/no-model --prompt a --device cuda:x", "cuda:N"),
    "no model to train": ("bench train --model WORK/no-model", "config.json"),
    "f16 on the CPU": ("bench ffn --dtype f16", "--device cuda"),
    "json directory": ("explain --json WORK/no/where/x.json", "x.json"),
    "json is a directory": ("explain --json WORK/no-model", "directory"),
    "no text": ("tokenize --text WORK/no.txt --learn 300 --out WORK/t.tokens", "no.txt"),
    "two tokenizers": ("tokenize --text WORK/empty.txt --out WORK/t.tokens", "--tokenizer"),
    "empty text": ("tokenize --text WORK/empty.txt --learn 300 --out WORK/t.tokens", "is empty"),
    "no utf-8": ("train --data WORK/binary.txt --out WORK/run-binary", "binary.txt"),
    "synth into files": ("synth --out WORK/taken", "taken"),
    "synth with all firing": ("synth --nnz 6000 --out WORK/s", "--nnz"),
    "convert nothing": ("convert --in WORK/none --out WORK/c", "none"),
    "convert garbage": ("convert --in WORK/binary.txt --out WORK/c", "binary.txt"),
    "quantize nothing": ("quantize --model WORK/none --type int8 --out WORK/q", "none"),
    "quantize into files": ("quantize --model WORK/no-model --type int8 --out WORK/taken", "taken"),
    "demo without text": ("demo --text WORK/no.txt --out WORK/d", "no.txt"),
    "demo into files": ("demo --text WORK/binary.txt --out WORK/taken", "taken"),
}


@pytest.fixture(scope="module")
def bad_files(work):
    (work / "empty.txt").touch()
    (work / "binary.txt").write_bytes(b"ok \xff\xfe\x00\x80" * 50)
    (work / "no-model").mkdir()
    (work / "taken").mkdir()
    (work / "taken" / "file").touch()


@pytest.mark.parametrize(("command", "needle"), FAILURES.values(), ids=FAILURES)
def test_failures_are_one_line_and_leave_nothing(twell, work, bad_files, command, needle):
    before = sorted(p.name for p in work.iterdir())
    done = twell(*(a.replace("WORK", str(work)) for a in command.split()), ok=False)
    assert done.code == 1
    assert needle and needle in done.error_line()
    assert sorted(p.name for p in work.iterdir()) == before


DEVICE_COMMANDS = {
    "generate": ["--model", "none", "--prompt", "a"],
    "stats": ["--model", "none", "--text", "none"],
    "eval": ["--model", "none", "--task", "perplexity", "--data", "none"],
    "train": ["--data", "none", "--out", "none"],
    "bench ffn": [],
    "bench model": ["--model", "none"],
}


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="a driver of NVIDIA is installed here")
@pytest.mark.parametrize("command", DEVICE_COMMANDS)
def test_without_a_gpu_one_line_says_so(twell, command):
    done = twell(*command.split(), *DEVICE_COMMANDS[command], "--device", "cuda", ok=False)
    assert done.code == 1
    assert "device cuda: no NVIDIA GPU is visible; the driver" in done.error_line()
    assert "--device cpu" in done.error_line()


@pytest.mark.skipif(has_driver() or not shutil.which("cc"), reason="a driver is here, or no cc")
def test_libraries_load_where_a_driver_sees_no_gpu(twell, program, tmp_path):
    """A driver that knows nothing: everything behind it is loaded in earnest. The line that is
    expected is that of PyTorch's CUDA half, found no stub (device/device.cc)."""
    (tmp_path / "empty.c").write_text("int cuInit(unsigned flags) { return 100 + flags; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1",
                    tmp_path / "empty.c"], check=True)
    done = twell("bench", "ffn", "--device", "cuda", ok=False,
                 env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.code == 1
    line = done.error_line()
    built = (Path(program).resolve().parents[1] / "src/torch_ops/libtwell_lm_cuda.so").is_file()
    if built:
        assert "no NVIDIA GPU is visible; look at nvidia-smi and CUDA_VISIBLE_DEVICES" in line
    else:
        assert "CUDA" in line and "--device cpu" in line


def test_forced_tier_that_is_unknown_is_an_error(twell):
    done = twell("explain", env={"TWELL_CPU_TIER": "nonsense"}, ok=False)
    assert done.code == 1 and "nonsense" in done.error_line()


def test_results_on_standard_output_are_json_alone(program):
    done = subprocess.run([program, "explain", "--json", "-"], capture_output=True, check=True)
    assert "plans" in json.loads(done.stdout)
    assert b"The sparse path" in done.stderr


def test_a_reader_that_goes_away_does_no_harm(program):
    done = subprocess.run(f"{program} explain | head -1", shell=True, capture_output=True)
    assert done.returncode == 0


def test_info_says_what_it_runs_on(twell):
    done = twell("info", json_name="info.json")
    assert done.json["tier"] in done.json["tiers"] and done.json["tiers"][0] == "portable"
    rows = dict(line.split("  ", 1) for line in done.out.splitlines()[:8])
    assert rows["processor"].strip() == done.json["machine"]["processor"]
    assert done.json["torch"] in rows["PyTorch"] and done.json["twell"] in rows["twell"]
    assert done.json["calibration"] is None and "twell calibrate" in rows["calibration"]
    assert re.search(r"L1 \d+ KiB, L2 [\d.]+ [KM]iB, L3 ", rows["caches"])


def test_explain_names_plans(twell):
    done = twell("explain", "--width", 128, "--neurons", 512, "--tokens", "1,64", json_name="e.json")
    assert [p["tokens"] for p in done.json["plans"]] == [1, 64]
    assert done.json["tiers"][0] == "portable"
    assert done.json["machine"]["threads"] >= 1
    for plan in done.json["plans"]:
        for path in "dense", "sparse":
            assert plan[f"{path}_expected_us"] > 0 and plan[f"{path}_measured_us"] > 0
    assert not done.json["calibrated"]
    assert done.json["nnz"] == 29 and "29 non-zeros expected; --nnz" in done.out
    quick = twell("explain", "--no-measure", json_name="e2.json")
    assert "dense_measured_us" not in quick.json["plans"][0]


@pytest.mark.parametrize("shape", [["--width", 128], ["--neurons", 512], ["--no-gated"]],
                         ids=lambda shape: shape[0])
def test_explain_takes_the_shape_from_the_model_or_from_options(twell, trained, shape):
    line = twell("explain", "--model", trained[0], *shape, ok=False).error_line()
    assert "--model" in line and shape[0].removeprefix("--no-") in line


def test_explain_runs_on_a_cpu(twell):
    assert "--dtype f16" in twell("explain", "--dtype", "f16", ok=False).error_line()


def test_one_is_no_plural(twell, work, trained):
    small = ["--width", 64, "--neurons", 256, "--repeats", 1, "--seconds", 0.001, "--nnz", 8]
    bench = twell("bench", "ffn", *small, "--tokens", 1, "--threads", 1).out
    made = twell("synth", "--layers", 1, "--width", 64, "--neurons", 256, "--heads", 2, "--vocab", 512,
                 "--nnz", 8, "--out", work / "one-layer").out
    few = ["--prompt-tokens", 8, "--decode-tokens", 4, "--repeats", 1, "--seconds", 0.001, "--layers", 1]
    model = twell("bench", "model", "--model", trained[0], *few, "--threads", 1).out
    for out in bench, made, model:
        assert not re.search(r"\b1 (layer|token|thread|run)s\b", out), out
    assert "dense at 1 token: " in bench and "1 thread," in bench and "1 layer," in made
    # A layer's own words begin with its path.
    assert "sparse at 1 token: relu, " in bench.replace("\n  ", " ")


def test_a_progress_bar_fits_into_columns(program, work):
    """Of which the variable wins over the terminal; a terminal without sequences gets plain lines."""
    def shown(**variables):
        ours, theirs = pty.openpty()
        command = [program, "synth", "--layers", "4", "--width", "64", "--neurons", "256", "--heads", "2",
                   "--vocab", "512", "--nnz", "8", "--sample-tokens", "16384",
                   "--out", work / f"bar-{len(variables)}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=True,
                       env={**os.environ, "TERM": "xterm", **variables})
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO where nothing was written: plain lines come one a second
            return os.read(ours, 65536).decode()
        return ""

    bars = [bar for bar in shown(COLUMNS="30").split("\r\x1b[K") if " [" in bar]
    assert bars and all(len(bar) == 29 for bar in bars)
    assert "\x1b" not in shown(COLUMNS="30", TERM="dumb")


def test_words_fit_into_100_columns(twell, trained, text):
    """Also where a table has more columns than that."""
    small = ["--width", 64, "--neurons", 256, "--repeats", 1, "--seconds", 0.001]
    tokens = ["--tokens", "1,2,4,8,16,64"]
    model = ["--model", trained[0]]
    few = ["--prompt-tokens", 8, "--decode-tokens", 4, "--repeats", 1, "--seconds", 0.001]
    for arguments in (
        ["explain", "--tokens", "1,8,64,2048", "--no-measure"],
        ["explain", *model],
        ["info"],
        ["bench", "ffn", *small, *tokens],
        ["bench", "ffn", *small, *tokens, "--train"],
        ["bench", "ffn", *small, "--grid", "cpu"],
        ["bench", "model", *model, *few],
        ["bench", "train", *model, "--context", 32, "--accumulation", 1, "--repeats", 1],
        ["stats", *model, "--text", text, "--popularity"],
        ["calibrate", *small],
    ):
        lines = twell(*arguments, env={"TWELL_CALIBRATION": "columns.json"}).out.splitlines()
        assert max(map(len, lines)) <= 100, max(lines, key=len)
        assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(("variables", "colour"), [({}, True), ({"NO_COLOR": "1"}, False),
                                                   ({"TERM": "dumb"}, False), ({"TERM": ""}, False)])
def test_headings_are_bold_on_a_terminal_that_wants_it(program, variables, colour):
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **variables}
    env = {name: value for name, value in env.items() if name != "NO_COLOR" or variables}
    subprocess.run([program, "explain", "--no-measure"], stdout=theirs, env=env, check=True)
    os.close(theirs)
    assert (b"\x1b[1mtokens" in os.read(ours, 65536)) == colour


def test_explain_says_how_built_in_costs_were_scaled(twell, work):
    """Of a machine without a calibration: not where the variable is set to nothing."""
    shape = ["--width", 256, "--neurons", 1024, "--tokens", "1,64"]
    plain = twell("explain", *shape, json_name="e4.json")
    assert plain.json["scales"] == []
    assert "another machine. twell calibrate" in plain.out
    none = {"TWELL_CALIBRATION": str(work / "none" / "calibration.json")}
    done = twell("explain", *shape, json_name="e5.json", env=none)
    assert not done.json["calibrated"]
    if done.json["scales"]:  # absurd timings change nothing
        assert [s["tokens"] for s in done.json["scales"]][:3] == [1, 8, 64]
        assert "scaled by timing a layer" in done.out
        for path in "dense", "sparse":
            for plan, scale in (0, 0), (1, 2):
                key = f"{path}_expected_us"
                assert done.json["plans"][plan][key] == pytest.approx(
                    plain.json["plans"][plan][key] * done.json["scales"][scale][path])
    # Nothing is timed where nothing is measured.
    quick = twell("explain", *shape, "--no-measure", json_name="e6.json", env=none)
    assert quick.json["scales"] == []


def test_calibrate_is_what_explain_goes_by(twell, work):
    env = {"TWELL_CALIBRATION": str(work / "cache" / "calibration.json")}
    small = ["--width", 64, "--neurons", 256]
    done = twell("calibrate", *small, "--repeats", 1, "--seconds", 0.001, json_name="c.json",
                 env=env)
    measured = done.json["sparse_ns_per_weight"]
    assert len(measured) == len(done.json["tokens"]) == len(done.json["dense_ns_per_weight"])
    assert done.json["densities"][0] == 0 and done.json["densities"][-1] == 1
    for row in measured:
        assert row == sorted(row) and len(row) == len(done.json["densities"])
    seen = twell("explain", *small, "--tokens", "8", "--nnz", 256, "--no-measure",
                 json_name="e3.json", env=env).json
    assert seen["calibrated"]
    weights = 64 * 256
    assert seen["plans"][0]["sparse_expected_us"] == pytest.approx(measured[1][-1] * weights / 1e3)
    assert seen["plans"][0]["auto"] == (
        "dense" if done.json["dense_ns_per_weight"][1] < 1.1 * measured[1][-1] else "sparse")


def test_a_damaged_calibration_says_what_to_do(twell, work):
    damaged = work / "damaged.json"
    damaged.write_text("{")
    done = twell("explain", "--no-measure", env={"TWELL_CALIBRATION": str(damaged)}, ok=False)
    assert "damaged.json" in done.error_line() and "calibrate" in done.error_line()
