"""bench/against_llama_cpp.py: skips with a reason, or compares; its counts of bytes."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).parents[2] / "bench"
SCRIPT = BENCH / "against_llama_cpp.py"
FEW = ("--threads", "1", "--prompt-tokens", "64", "--decode-tokens", "8", "--repeats", "1",
       "--seconds", "0.01")


def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300,
                          **options)


def load(name):
    if str(BENCH) not in sys.path:
        sys.path.insert(0, str(BENCH))
    return importlib.import_module(name)


def needs(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module")
def model(twell, work):
    """Grouped queries; llama.cpp's blocks of 256 divide the width and the number of neurons."""
    needs("gguf", "llama_cpp")
    out = work / "for-llama"
    twell("synth", "--layers", 2, "--width", 256, "--neurons", 512, "--heads", 4, "--kv-heads", 2,
          "--vocab", 512, "--context", 256, "--nnz", 8, "--out", out)
    return out


def test_it_skips_with_a_reason_where_the_package_is_absent(work):
    out = work / "skip.json"
    # -S -I: no installed packages at all.
    done = run("-S", "-I", SCRIPT, "--models", work, "--json", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: No module named 'gguf'; pip install llama-cpp-python")
    assert json.loads(out.read_text())["skipped"]


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "give --shapes or --models"),
    (["--shapes", "2b", "2b"], "a model is named twice"),
    (["--shapes", "3b"], "invalid choice: '3b'"),
    (["--models", "m", "--types", "q5_0"], "invalid choice: 'q5_0'"),
])
def test_it_refuses_what_it_does_not_know(arguments, message):
    done = run("-S", "-I", SCRIPT, *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def config(**changed):
    return {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 38,
            "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64,
            "vocab_size": 49152, "torch_dtype": "bfloat16", **changed}


def test_a_token_of_the_2b_model_reads_what_its_shapes_say():
    counted = load("decoded_bytes")
    parts = counted.of_twell(config(), 38 * [("screened", 0.029)], 24)
    # Four matrices of 2048 × 2048 in bf16. Of the gate a byte a weight, for each row of 2048 inputs
    # 8 blocks' sums and 16 bytes of bounds, and 2.9 % of its rows in bf16. 24 rows of up, of down.
    assert parts["attention"] == 38 * 4 * 2048 * 2048 * 2
    assert parts["head"] == 49152 * 2048 * 2
    assert parts["gate"] == pytest.approx(38 * 5632 * (2048 + 8 * 4 + 16 + 0.029 * 2048 * 2))
    assert parts["up and down"] == 38 * 2 * 24 * 2048 * 2
    assert sum(parts.values()) == pytest.approx(1.95e9, rel=0.01)
    dense = counted.of_dense(config())
    assert sum(dense.values()) == (38 * (4 * 2048 * 2048 + 3 * 5632 * 2048) + 49152 * 2048) * 2
    assert counted.kv_cache(config(), 528, 2) == 38 * 2 * 2048 * 528 * 2


def test_a_token_of_codes_reads_a_byte_or_half_of_one_a_weight():
    counted = load("decoded_bytes")
    int8 = counted.of_codes("int8", config(), 24)
    # Sums of 8 blocks of 256 inputs, or scales of 64 groups, and the row's scale.
    assert int8["attention"] == 38 * 4 * 2048 * (2048 + 8 * 4 + 4)
    assert int8["gate"] == 38 * 5632 * (2048 + 8 * 4 + 4)
    assert int8["head"] == 49152 * (2048 + 8 * 4 + 4)
    assert int8["up and down"] == 38 * 24 * 2 * 2048
    int4 = counted.of_codes("int4", config(), 24)
    assert int4["attention"] == 38 * 4 * 2048 * (1024 + 64 + 4)
    assert int4["head"] == int8["head"]
    assert int4["up and down"] == 38 * 24 * (1088 + 2048)
    assert counted.of_codes("int4+int4", config(), 24)["head"] == 49152 * (1024 + 64 + 4)
    assert sum(int8.values()) == pytest.approx(1.20e9, rel=0.02)
    assert sum(int4.values()) == pytest.approx(0.67e9, rel=0.02)


def test_grouped_queries_packed_gates_and_f32_are_counted():
    counted = load("decoded_bytes")
    grouped = config(num_hidden_layers=2, num_key_value_heads=8, torch_dtype="float32")
    parts = counted.of_twell(grouped, [("packed", None), ("packed", None)], 100)
    assert parts["attention"] == 2 * (2 * 2048 + 2 * 512) * 2048 * 4
    assert parts["gate"] == 2 * 5632 * 2048 * 4
    assert parts["up and down"] == 2 * 2 * 100 * 2048 * 4
    assert counted.kv_cache(grouped, 100, 4) == 2 * 2 * 512 * 100 * 4


def test_the_embedding_counts_where_it_is_the_head():
    counted = load("decoded_bytes")
    tied = [("token_embd.weight", "Q6_K", 100), ("blk.0.ffn_up.weight", "Q4_0", 30),
            ("blk.0.ffn_gate.weight", "Q4_0", 20), ("output_norm.weight", "F32", 4)]
    assert counted.of_llama_cpp(tied) == {"Q6_K": 100, "Q4_0": 50, "F32": 4}
    untied = [*tied, ("output.weight", "Q6_K", 90)]
    assert counted.of_llama_cpp(untied) == {"Q6_K": 90, "Q4_0": 50, "F32": 4}


def test_a_gate_is_read_from_what_explain_says():
    counted = load("decoded_bytes")
    assert counted.gate_of("auto: relu, screened gate on avx2, 2 threads; the screen left 1.3 %; "
                           "last density 0.78 %") == ("screened", pytest.approx(0.013))
    assert counted.gate_of("auto: relu, packed gate on amx; last density 29 %") == ("packed", None)
    for unknown in ("auto: relu, folded gate", "auto: relu, screened gate on avx2"):
        with pytest.raises(SystemExit, match="expected a screened gate"):
            counted.gate_of(unknown)


def test_explain_says_it_of_every_layer(twell, work):
    counted = load("decoded_bytes")
    out = work / "explained"
    twell("synth", "--layers", 2, "--width", 128, "--neurons", 512, "--heads", 2, "--vocab", 512,
          "--nnz", 8, "--out", out)
    layers = twell("explain", "--model", out, "--tokens", 1, "--no-measure",
                   json_name="explained.json").json["layers"]
    assert len(layers) == 2
    for line in layers:
        form, left = counted.gate_of(line)
        assert form == "packed" or 0 < left < 1


def test_the_table_is_aligned():
    lines = load("against_llama_cpp").table(
        [["", "tok/s"], ["llama.cpp bf16", "8.3"], ["twell sparse", "1014.5"]]).splitlines()
    assert lines == ["                 tok/s",
                     "llama.cpp bf16     8.3",
                     "twell sparse    1014.5"]


def test_its_shapes_are_ones_that_synth_can_make():
    for name, options in load("against_llama_cpp").SHAPES.items():
        words = options.split()
        about = dict(zip(words[::2], words[1::2]))
        if "--preset" not in about:
            heads, kv_heads = int(about["--heads"]), int(about["--kv-heads"])
            assert heads % kv_heads == 0 and kv_heads < heads, name
            assert int(about["--width"]) % heads == 0, name


def test_llama_cpp_chooses_the_types_of_the_tensors(model, work):
    files = load("gguf_files")
    place = work / "types"
    place.mkdir()
    run_types = list(files.WEIGHT_TYPES)
    read = files.read_config(model)
    written = files.write_gguf_files(model, read, run_types, place, 1)
    assert sorted(path.name for path in place.iterdir()) == sorted(f"{t}.gguf" for t in run_types)
    types = {t: {name: kind for name, kind, _ in files.list_tensors(written[t])} for t in run_types}
    up, norm = "blk.0.ffn_up.weight", "blk.0.ffn_norm.weight"
    assert [types[t][up] for t in run_types] == ["BF16", "Q8_0", "Q4_0", "Q4_K"]
    assert {types[t][norm] for t in run_types} == {"F32"}
    # The tied head is dearer than the rest in the types of 4 bits: what must not be assumed.
    assert types["q4_0"]["token_embd.weight"] == types["q4_k_m"]["token_embd.weight"] == "Q6_K"
    count = load("decoded_bytes").of_llama_cpp
    sizes = [sum(count(files.list_tensors(written[t])).values()) for t in run_types]
    assert sizes[0] > sizes[1] > sizes[3] > sizes[2]
    # Bits a weight of Q4_0: 32 codes of 4 bits and a scale of 16.
    weights = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256)
    assert count(files.list_tensors(written["q4_0"]))["Q4_0"] == weights * 4.5 / 8


def test_a_bf16_file_has_the_bits_of_the_checkpoint(model, work):
    import gguf

    files = load("gguf_files")
    files.write_bf16(model, files.read_config(model), work / "bits.gguf")
    stored = files.read_tensors(model)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(work / "bits.gguf").tensors}
    assert len(found) == len(stored)
    for name, (_, shape, raw) in stored.items():
        tensor = found[files.gguf_name(name)]
        assert [int(n) for n in tensor.shape] == shape[::-1], name
        if len(shape) == 2:
            assert tensor.data.tobytes() == raw.tobytes(), name


def check(report, types):
    sides = report["sides"]
    assert set(sides) == {"twell sparse", "twell dense", *(f"llama.cpp {t}" for t in types)}
    for about in sides.values():
        assert about["bytes_a_token"] == pytest.approx(
            about["kv_cache_bytes"] + sum(about["weight_bytes"].values()))
        for phase in ("prefill", "decode"):
            runs = about[phase]["runs_tokens_per_s"]
            assert len(runs) == 2 and min(runs) > 0
            assert about[phase]["tokens_per_s"] == pytest.approx(sum(runs) / 2)
            assert about[phase]["sparse_over_this"] == pytest.approx(
                sides["twell sparse"][phase]["tokens_per_s"] / about[phase]["tokens_per_s"])
        assert about["decode"]["gb_per_s"] == pytest.approx(
            about["bytes_a_token"] * about["decode"]["tokens_per_s"] / 1e9)


def test_it_compares(model, work, program):
    out = work / "llama.json"
    done = run(SCRIPT, "--models", model, "--twell", program, *FEW, "--rounds", "2", "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())["models"][str(model)]["best"]
    types = ("bf16", "q8_0", "q4_0", "q4_k_m")
    check(report, types)
    for side, about in report["sides"].items():
        row = next(line for line in done.stdout.splitlines() if line.startswith(side + " "))
        assert f" {about['decode']['gb_per_s']:.1f}" in row
    # Taking turns: the second round the other way round.
    order = [line.rsplit(": ", 1)[1] for line in done.stderr.splitlines() if ", round " in line]
    sides = ["twell bf16", *(f"llama.cpp {t}" for t in types)]
    assert order == [*sides, *sides[::-1]]


def test_codes_are_compared_too(model, work, program):
    out = work / "codes.json"
    done = run(SCRIPT, "--models", model, "--twell", program, *FEW, "--rounds", "1", "--types",
               "q8_0", "--twell-types", "int8", "int4", "--json", out)
    assert done.returncode == 0, done.stderr
    sides = json.loads(out.read_text())["models"][str(model)]["best"]["sides"]
    assert set(sides) == {"twell int8", "twell int4", "llama.cpp q8_0"}
    for phase in ("prefill", "decode"):
        here = sides["llama.cpp q8_0"][phase]
        for own in ("int8", "int4"):
            assert here[f"{own}_over_this"] == pytest.approx(
                sides[f"twell {own}"][phase]["tokens_per_s"] / here["tokens_per_s"])
    header = done.stdout.splitlines()[1]
    assert header.split() == ["prefill", "tok/s", "int8/this", "int4/this", "decode", "tok/s",
                              "int8/this", "int4/this", "MB", "a", "token", "GB/s"]


def test_avx2_is_measured_on_both_sides_or_says_why_not(model, work, program):
    system = run(SCRIPT, "--system").stdout
    out = work / "avx2.json"
    done = run(SCRIPT, "--models", model, "--twell", program, *FEW, "--rounds", "2", "--types",
               "q8_0", "--tiers", "avx2", "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())["models"][str(model)]["avx2"]
    if "AVX512" in system:
        assert "name a folder with another build by --llama-library" in report["skipped"]
        assert report["skipped"] in done.stdout
        library = pathlib.Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib"
        done = run(SCRIPT, "--models", model, "--tiers", "avx2", "--llama-library", library)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith("was compiled with AVX-512")
    else:
        check(report, ("q8_0",))
        assert report["machine"]["cpu_tier"] == "avx2"


def test_models_of_a_shape_are_made_once_and_kept(work, program, monkeypatch):
    needs("gguf", "llama_cpp")
    script = load("against_llama_cpp")
    monkeypatch.setitem(script.SHAPES, "tiny", "--layers 1 --width 128 --neurons 512 --heads 2"
                                               " --kv-heads 1 --vocab 512 --nnz 8")
    out, kept = work / "kept.json", work / "kept"
    times = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [
            str(SCRIPT), "--shapes", "tiny", "--twell", program, *FEW, "--rounds", "2", "--types",
            "q8_0", "--keep", str(kept), "--json", str(out)])
        script.main()
        check(json.loads(out.read_text())["models"]["tiny"]["best"], ("q8_0",))
        assert {p.name for p in (kept / "tiny").iterdir()} == {"bf16.gguf", "model", "q8_0.gguf"}
        times.append([path.stat().st_mtime_ns for path in sorted((kept / "tiny").rglob("*"))])
    assert times[0] == times[1]
