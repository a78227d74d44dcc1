"""scripts/gpu_check and its report, where no GPU is: with programs that play one."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = ROOT / "scripts/lib/gpu_report.py"

TABLE = """# Model

text | with bars

<!-- gpu-model:begin -->
| variant | why | predicted | measured |
| --- | --- | --- | ---: |
| `ceiling/copy` | data sheet | 2.8–3.1 TB/s | |
| ffn/16384/29 | GEMM | 2.1 ms | old |
| dense/16384/29 | three GEMMs | 1,500 us | |
| gate/16384/29 | | 500 TFLOP/s | |
| ceiling/launch_gap | | 1500 ns | |
| gather/16384/29 | not measured | 1 ms | |
| gate_shape/1/tile64x64 | | no idea | ? |
<!-- gpu-model:end -->
after
"""
LINES = [
    {"kind": "header", "gpu": "NVIDIA T", "sms": 132},
    {"kind": "ceiling", "variant": "ceiling/copy", "us": 700.0, "bytes_per_s": 3.2e12},
    {"kind": "ceiling", "variant": "ceiling/launch_gap", "us": 1.1},
    {"kind": "exact", "variant": "exact/29/1", "equal": True},
    {"kind": "exact", "variant": "exact/29/7", "equal": False, "row": 3},
    {"kind": "exact", "variant": "exact/29/15/tile128x256", "skipped": "more shared memory than there is"},
    {"kind": "ffn", "variant": "ffn/16384/29", "us": 3400.0, "speedup": 1.2, "worst_row_error": 0.004,
     "worst_row": 17, "bound": 0.03125, "right": True},
    {"kind": "ffn", "variant": "ffn/1/29", "us": 34.0, "speedup": 2.0, "worst_row_error": None,
     "worst_row": 0, "bound": 0.03125, "right": False},
    {"kind": "dense", "variant": "dense/16384/29", "us": 1600.0},
    {"kind": "gate", "variant": "gate/16384/29", "us": 900.0, "flops_per_s": 4.2e14},
    {"kind": "error", "variant": "gate_shape/1/tile64x64", "message": "out of memory"},
]  # fmt: skip


def text_of(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def run_report(directory, lines_text, table=None):
    (directory / "parts").mkdir(exist_ok=True)
    (directory / "parts/parts.tsv").write_text(
        "test\tpassed\t3\t\nbench\tfailed\t190\tended\ntrain\tpassed\t20\t\n"
    )
    (directory / "parts/bench.jsonl").write_text(lines_text)
    command = [sys.executable, REPORT, directory / "parts", directory / "results", "NVIDIA T 100"]
    if table is not None:
        (directory / "model.md").write_text(table)
        command.append(directory / "model.md")
    done = subprocess.run(command, capture_output=True, text=True)
    return done, directory / "results/gpu-t-100.json"


def test_report_fills_the_table_and_names_what_does_not_hold(tmp_path):
    done, file = run_report(tmp_path, text_of([*LINES, {"kind": "end", "failed": 3}]), TABLE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.md").read_text() == TABLE.replace(
        "| `ceiling/copy` | data sheet | 2.8–3.1 TB/s | |", "| `ceiling/copy` | data sheet | 2.8–3.1 TB/s | 3.2 TB/s |"
    ).replace("| 2.1 ms | old |", "| 2.1 ms | 3.4 ms |").replace(
        "| 1,500 us | |", "| 1,500 us | 1600 us |"
    ).replace("| 500 TFLOP/s | |", "| 500 TFLOP/s | 420 TFLOP/s |").replace("| 1500 ns | |", "| 1500 ns | 1100 ns |")
    out = done.stdout.splitlines()
    failed = [line for line in out if line.startswith("assumption failed")]
    assert failed == [
        "assumption failed: ffn/16384/29: predicted 2.1 ms, measured 3.4 ms (1.62 times off)",
        "assumption failed: ceiling/launch_gap: predicted 1500 ns, measured 1100 ns (1.36 times off)",
    ]
    assert "exact: 1 of 2 cases equal to the bit" in out
    assert "WRONG: exact/29/7" in out and "WRONG: ffn/1/29" in out
    assert "FAILED: gate_shape/1/tile64x64: out of memory" in out
    assert any("1 of 2 right" in line and "ffn/1/29" in line for line in out)
    found = json.loads(file.read_text())
    assert found["bench"]["complete"] is True
    assert found["bench"]["header"]["sms"] == 132
    assert found["bench"]["results"] == LINES[1:]
    # Again: nothing is left to fill.
    filled = (tmp_path / "model.md").read_text()
    again = [sys.executable, REPORT, tmp_path / "parts", tmp_path / "results", "T", tmp_path / "model.md"]
    subprocess.run(again, check=True, capture_output=True)
    assert (tmp_path / "model.md").read_text() == filled


def test_training_has_a_part_of_its_own(tmp_path):
    table = TABLE.replace("| gate/16384/29 |", "| train/2048/28 |").replace("500 TFLOP/s", "345.9 µs (2.26 × eager)")
    lines = [
        {"kind": "train", "variant": "train/2048/28", "us": 500.0, "speedup": 1.3, "right": True},
        {"kind": "train", "variant": "train/2048/56", "us": 600.0, "speedup": 1.1, "right": False},
        {"kind": "end", "failed": 1},
    ]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/train.jsonl").write_text(text_of(lines))
    done, file = run_report(tmp_path, text_of(LINES), table)
    assert done.returncode == 0, done.stderr
    assert "assumption failed: train/2048/28: predicted 345.9 µs (2.26 × eager), measured 500 µs" in done.stdout
    assert "WRONG: train/2048/56" in done.stdout
    assert json.loads(file.read_text())["train"]["complete"] is True


def shape(tokens, name, us, planned=False, **more):
    variant = f"gate_shape/{tokens}/{name.replace(' ', '')}"
    return {"kind": "gate_shape", "variant": variant, "tokens": tokens, "shape": name, "us": us, "assumed_us": 10.0,
            "planned": planned, **more}  # fmt: skip


def test_report_says_which_plans_to_correct(tmp_path):
    lines = [
        # The stream is faster than the screen that a plan takes.
        shape(4, "stream 8x16", 9.0, planned=True),
        shape(4, "stream 32x32", 9.2),
        shape(4, "screen 32x32", 12.0, planned=True),
        # As fast but for noise; the plan of a gate with a screen takes none.
        shape(16, "stream 16x32", 10.0, planned=True),
        shape(16, "stream 32x32", 9.6),
        shape(16, "screen 32x32", 20.0),
        shape(64, "tile 64x64", 13.0, planned=True, rate=0.5, rate_reached=0.384),
        shape(64, "library", 10.0),
        shape(1024, "tile 128x128", 60.0, rate=0.85, rate_reached=0.91),
        shape(1024, "library", 40.0, planned=True),
        # A screen that would be faster than what the plan takes.
        shape(32, "stream 32x32", 10.0, planned=True),
        shape(32, "screen 32x32", 8.0),
        {"kind": "gate_shape", "variant": "gate_shape/1/tile64x64", "skipped": "more shared memory than there is"},
    ]
    done, _ = run_report(tmp_path, text_of([*lines, {"kind": "end"}]))
    assert done.returncode == 0, done.stderr
    out = done.stdout.splitlines()
    assert [line for line in out if line.startswith("plan to correct")] == [
        ("plan to correct: 4 tokens with a screen: takes screen 32x32 (12.0 µs), "
         "stream 8x16 is 1.33 times as fast (9.0 µs)"),
        "plan to correct: 64 tokens: takes tile 64x64 (13.0 µs), library is 1.30 times as fast (10.0 µs)",
        ("plan to correct: 32 tokens with a screen: takes stream 32x32 (10.0 µs), "
         "screen 32x32 is 1.25 times as fast (8.0 µs)"),
    ]
    rows = [line.split() for line in out if "µs" in line and not line.startswith("plan")]
    assert len(rows) == 12
    assert "64 tile 64x64 10.0 µs 13.0 µs 0.50 0.38 *".split() in rows
    assert "1024 tile 128x128 10.0 µs 60.0 µs 0.85 0.91".split() in rows
    assert "1024 library 10.0 µs 40.0 µs *".split() in rows
    # Nothing to say of a run that had no such lines.
    done, _ = run_report(tmp_path, text_of(LINES))
    assert "gate shapes" not in done.stdout


def test_report_reads_what_a_limit_left(tmp_path):
    whole = text_of(LINES)
    # Wherever the file ends: all lines before are there, and none that is not whole.
    sys.path.insert(0, str(REPORT.parent))
    from gpu_report import lines_of

    file = tmp_path / "cut.jsonl"
    for length in range(0, len(whole), 7):
        file.write_text(whole[:length])
        found = lines_of(file)
        expected = [json.loads(line) for line in whole[:length].splitlines(keepends=True) if line.endswith("}\n")]
        whole_lines = ([found["header"]] if found["header"] else []) + found["results"]
        assert whole_lines[: len(expected)] == expected and len(whole_lines) <= len(expected) + 1
        assert found["complete"] is False
    assert lines_of(tmp_path / "none.jsonl") is None
    done, _ = run_report(tmp_path, whole[:-20])
    assert done.returncode == 0, done.stderr
    assert "bench: failed in 190 s, cut short: ended" in done.stdout


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("<!-- gpu-model:begin -->\n| variant | predicted |\n<!-- gpu-model:end -->\n", "no column measured"),
        ("<!-- gpu-model:begin -->\nnothing\n<!-- gpu-model:end -->\n", "there is no table"),
        (TABLE.replace("| 2.1 ms | old |", "| 2.1 ms |"), "expected 4 cells"),
    ],
)
def test_a_broken_table_is_an_error_after_the_results_are_written(tmp_path, table, message):
    done, file = run_report(tmp_path, text_of(LINES), table)
    assert done.returncode != 0 and message in done.stderr
    assert json.loads(file.read_text())["bench"]["results"]


def test_figures_of_a_case_are_of_one_run(tmp_path):
    table = TABLE.replace("| gather/16384/29 | not measured | 1 ms | |", "| gather/16384/29 | | 1 ms | 0.7 ms |")
    done, _ = run_report(tmp_path, text_of(LINES), table)
    assert done.returncode == 0, done.stderr
    filled = (tmp_path / "model.md").read_text()
    assert "| ffn/16384/29 | GEMM | 2.1 ms | 3.4 ms |" in filled
    assert "| gather/16384/29 | | 1 ms | |" in filled  # was ended before it measured this one
    # A run that measured nothing of the case leaves what stands.
    run_report(tmp_path, text_of(LINES[:3]), table)
    assert "| gather/16384/29 | | 1 ms | 0.7 ms |" in (tmp_path / "model.md").read_text()


def test_text_without_markers_stays(tmp_path):
    done, _ = run_report(tmp_path, text_of(LINES), "no table\n")
    assert done.returncode == 0 and (tmp_path / "model.md").read_text() == "no table\n"


@pytest.fixture
def tree(tmp_path):
    """A copy of the scripts, with nothing built."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def put(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/usr/bin/env bash\n" + text)
    file.chmod(0o755)


def put_gpu(tree):
    put(
        tree / "bin/nvidia-smi",
        'case "$*" in *name*) echo "NVIDIA T 100" ;; *compute_cap*) echo 9.0 ;; *) echo 580.1 ;; esac\n',
    )


def with_programs(tree):
    return {**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}


def gpu_check(tree, *arguments):
    return subprocess.run(
        [tree / "scripts/gpu_check", *arguments],
        capture_output=True,
        text=True,
        env=with_programs(tree),
        timeout=120,
    )


def shell(tree, command):
    source = f"source '{tree}/scripts/lib/common.sh'; source '{tree}/scripts/lib/gpu_parts.sh'; {command}"
    return subprocess.run(["bash", "-c", source], check=True, capture_output=True, text=True).stdout


def test_each_call_ends_within_ten_minutes(tree):
    calls = ("FIRST", "SECOND", "PROBE")
    parts = {call: shell(tree, f'echo "${{{call}_PARTS[@]}}"').split() for call in (*calls, "ALL")}
    assert [part for call in calls for part in parts[call]] == parts["ALL"]
    assert len(set(parts["ALL"])) == len(parts["ALL"])
    most = int(shell(tree, "echo $CALL_LIMIT"))
    assert most <= 600 - 40  # for what stands between the parts: PyTorch is imported, reports are written
    for call in calls:
        limits = {part: int(shell(tree, f"limit_of {part}")) for part in parts[call]}
        assert all(limit >= 30 for limit in limits.values())
        assert sum(limits.values()) <= (480 if call == "PROBE" else most), limits
    for part in parts["ALL"]:
        assert shell(tree, f"describe {part}").strip()
        assert shell(tree, f"declare -F run_{part}")


def test_dry_run_names_every_variant(tree):
    done = gpu_check(tree, "--dry-run", "first")
    assert done.returncode == 0, done.stderr
    assert "ninja -C build/core twell_gpu_bench" in done.stdout
    put(tree / "build/core/cuda/bench/twell_gpu_bench", 'for a in "$@"; do echo "variant/$a"; done\n')
    done = gpu_check(tree, "--dry-run", "first")
    listed = [line.strip() for line in done.stdout.splitlines()]
    assert listed.count("variant/--list") == 3
    assert "variant/exact" in listed and "variant/layers,sweeps" in listed and "variant/train" in listed
    assert [part for part in ("build", "ceilings", "test", "bench", "train") if f"{part}: at most" in done.stderr] == [
        "build",
        "ceilings",
        "test",
        "bench",
        "train",
    ]
    assert "memcheck" in gpu_check(tree, "--dry-run", "second").stderr


def test_unknown_parts_are_refused(tree):
    done = gpu_check(tree, "--dry-run", "third")
    assert done.returncode != 0 and "no part 'third'" in done.stderr
    if not shutil.which("nvidia-smi"):
        assert "no NVIDIA GPU here" in gpu_check(tree, "ceilings").stderr


@pytest.mark.parametrize(
    ("smi", "name"),
    [
        ("echo NVIDIA T 100; echo NVIDIA T 200\n", "NVIDIA T 100"),
        ("echo failed, because it could not reach the driver; exit 9\n", ""),
        ("echo No devices were found\n", ""),
        ("echo ,,,\n", ""),
        ("echo '[N/A]'\n", ""),
        ("printf 'T\\xff\\xfe\\n'\n", ""),
        ("sleep 60\n", ""),
    ],
)
def test_what_is_no_name_is_no_gpu(tree, smi, name):
    put(tree / "bin/nvidia-smi", smi)
    assert shell(tree, f"PATH='{tree}/bin':$PATH; SMI_LIMIT=1; gpu_name").strip() == name
    if not name and "sleep" not in smi:
        done = gpu_check(tree, "ceilings")
        message = "error: no NVIDIA GPU here (nvidia-smi names none); --dry-run works without\n"
        assert (done.returncode, done.stderr) == (1, message)


def test_help_is_the_header(tree):
    done = gpu_check(tree, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Builds for the NVIDIA GPU") and "before its limit." in lines[-1]
    assert any(line.startswith("  scripts/gpu_check [--dry-run] first") for line in lines)


def test_what_a_killed_part_measured_is_in_the_results(tree):
    put_gpu(tree)
    (tree / "lines").write_text(text_of(LINES)[:-5])
    put(
        tree / "build/gpu/cuda/bench/twell_gpu_bench",
        "[[ $1 == --only && $2 == exact && $3 == --json ]] || exit 3\n"
        f'cp "{tree}/lines" "$4"\necho measured\nkill -KILL $$\n',
    )
    (tree / "cuda/bench").mkdir(parents=True)
    (tree / "cuda/bench/predictions.md").write_text(TABLE)
    done = gpu_check(tree, "ceilings", "bench")
    assert done.returncode == 1
    assert "measured" in done.stderr and "assumption failed: ffn/16384/29" in done.stdout
    assert "3.4 ms" in (tree / "cuda/bench/predictions.md").read_text()
    found = json.loads((tree / "bench/results/gpu-t-100.json").read_text())
    assert found["driver"] == "580.1"
    assert found["parts"]["ceilings"]["outcome"] == "failed" and found["parts"]["bench"]["outcome"] == "failed"
    assert found["ceilings"]["complete"] is False and found["ceilings"]["results"] == LINES[1:-1]
    assert "bench" not in found and "train" not in found
    # Another part, later: what was found stays.
    done = gpu_check(tree, "memcheck")
    found = json.loads((tree / "bench/results/gpu-t-100.json").read_text())
    assert found["parts"]["memcheck"]["outcome"] == "skipped" and found["ceilings"]["results"]


PROBES = ["probe-gate", "probe-rows", "probe-graph"]


def test_dry_run_of_the_probes_has_a_time_for_each_step(tree):
    put(tree / "build/core/cuda/bench/twell_gpu_bench", 'echo "variant/$3"\n')
    done = gpu_check(tree, "--dry-run", "probes")
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"^(\S+): at most (\d+) s: (.+)$", done.stderr, re.MULTILINE)
    assert [name for name, _, _ in steps] == ["build-bench", *PROBES]
    assert all(re.match(r"\(some \d+ s\) ", what) for _, _, what in steps[1:])
    assert [line.strip() for line in done.stdout.splitlines()] == [f"variant/{name}" for name in PROBES]


def test_an_older_benchmark_is_said_in_a_line_and_the_plan_goes_on(tree):
    put(tree / "build/release/cuda/bench/twell_gpu_bench", 'echo "--only: $3 not in {exact,layers}" >&2; exit 2\n')
    done = gpu_check(tree, "--dry-run", "probes")
    assert done.returncode == 0, done.stderr
    older = "build/release/cuda/bench/twell_gpu_bench is older than this part and lists nothing of it: "
    assert [line.strip() for line in done.stdout.splitlines()] == [f"{older}build twell_gpu_bench again"] * 3
    assert "scripts/build release twell_gpu_probes_toy" in done.stderr


def test_a_probe_that_is_ended_keeps_its_lines_and_the_next_one_runs(tree):
    put_gpu(tree)
    lines = [
        {"kind": "header", "gpu": "NVIDIA T"},
        {"kind": "probe_rows", "variant": "probe/rows/46mb/all_sms/loads", "bytes_per_s": 7e12, "right": True},
        {"kind": "probe_rows", "variant": "probe/rows/46mb/all_sms/ring_8", "bytes_per_s": 5e12, "right": False},
    ]
    (tree / "lines").write_text(text_of(lines) + '{"kind": "probe_rows", "vari')
    put(
        tree / "build/gpu/cuda/bench/twell_gpu_bench",
        '[[ $1 == --only && $3 == --json && "$5 $6" == "--runs 31" ]] || exit 3\n'
        f'[[ $2 != probe-rows ]] || {{ cp "{tree}/lines" "$4"; kill -KILL $$; }}\n'
        'echo \'{"kind": "header"}\' >"$4"; echo \'{"kind": "end", "failed": 0}\' >>"$4"; echo "table of $2"\n',
    )
    done = gpu_check(tree, *PROBES)
    assert done.returncode == 1
    found = json.loads((tree / "bench/results/gpu-t-100.json").read_text())
    assert [found["parts"][name]["outcome"] for name in PROBES] == ["passed", "failed", "passed"]
    assert found["probe-rows"]["complete"] is False and found["probe-rows"]["results"] == lines[1:]
    assert found["probe-graph"]["complete"] is True
    assert "table of probe-gate" in done.stderr and "table of probe-graph" in done.stderr
    assert "WRONG: probe/rows/46mb/all_sms/ring_8" in done.stdout


def test_probes_that_are_not_built_are_skipped_in_one_line(tree):
    put_gpu(tree)
    done = gpu_check(tree, "probe-gate")
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if "probe-gate" in line] == [(
        "probe-gate: skipped in 0 s: twell_gpu_bench is not built; run the part build-bench, "
        "which needs cuBLAS, CLI11 and nlohmann-json"
    )]


def test_what_an_ended_call_measured_is_reported_by_the_next(tree):
    put_gpu(tree)
    bench = tree / "build/gpu/cuda/bench/twell_gpu_bench"
    started = tree / "started"
    os.mkfifo(started)
    put(bench, f'echo \'{json.dumps(LINES[1])}\' >"$4"; echo >"{started}"; sleep 60\n')
    call = subprocess.Popen([tree / "scripts/gpu_check", "probe-rows"], start_new_session=True, env=with_programs(tree),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    started.read_text()
    # timeout puts the part into a group of its own; all are of one session.
    for process in subprocess.run(["pgrep", "-s", str(call.pid)], capture_output=True, text=True).stdout.split():
        os.kill(int(process), signal.SIGKILL)
    call.wait()
    put(bench, 'echo \'{"kind": "end", "failed": 0}\' >"$4"\n')
    assert gpu_check(tree, "probe-graph").returncode == 0
    found = json.loads((tree / "bench/results/gpu-t-100.json").read_text())
    assert found["parts"]["probe-rows"]["reason"] == "the call was ended"
    assert found["probe-rows"]["results"] == [LINES[1]]


def test_the_benchmark_lists_without_a_gpu():
    program = os.environ.get("TWELL_GPU_BENCH") or pytest.skip("TWELL_GPU_BENCH names no benchmark")
    done = subprocess.run([program, "--list"], check=True, capture_output=True, text=True)
    names = done.stdout.split()
    assert names[0] == "ceiling/copy"
    assert {"ffn/16384/29", "train/16384/28", "train_dense/2048"} <= {*names}
    assert len(set(names)) == len(names)
