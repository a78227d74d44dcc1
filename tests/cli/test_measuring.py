"""bench ffn and synth: what they measure, and that it is what was asked for."""

import json
import random
import shutil
import signal
import subprocess
import time
from xml.etree import ElementTree

import pytest

SMALL = ["bench", "ffn", "--width", 128, "--neurons", 1024, "--repeats", 3, "--seconds", 0.005]


@pytest.mark.parametrize("variant", [[], ["--no-gated"], ["--dtype", "f32"],
                                     ["--activation", "relu_squared"],
                                     ["--activation", "fat_relu", "--layers", 2],
                                     ["--biases"], ["--biases", "--no-gated", "--dtype", "f32"]],
                         ids=["gated", "non-gated", "f32", "relu_squared", "fat_relu", "biases",
                              "non-gated biases f32"])
def test_bench_ffn_measures_what_was_asked_for(twell, variant):
    done = twell(*SMALL, "--tokens", "1,48", "--nnz", "20,200", *variant, json_name="ffn.json")
    results = done.json["results"]
    assert [(r["tokens"], r["nnz_target"]) for r in results] == [
        (1, 20), (48, 20), (1, 200), (48, 200)]
    for r in results:
        # A token's count varies by √nnz and by the planned e^±0.5; 64 tokens at least are averaged:
        # five standard errors of both.
        assert r["nnz_mean"] == pytest.approx(r["nnz_target"], rel=0.03,
                                              abs=5 * (r["nnz_target"] / 64) ** 0.5)
        assert r["nnz_max"] >= r["nnz_mean"]
        assert r["speedup"] == pytest.approx(r["dense_us"] / r["sparse_us"])
        assert r["auto_speedup"] == pytest.approx(r["dense_us"] / r["auto_us"])
        assert r["auto_path"] in ("dense", "sparse")
        assert r["dense_us_min"] <= r["dense_us"] <= r["dense_us_max"]
        assert r["dense_impl"] and r["sparse_impl"]
        # bf16: the packed gate and the output are rounded, 2^-9 each, more by the sum over
        # neurons. fp32: sums of 128 products carry about sqrt(128) units of 2^-24 in gate, up and
        # down each.
        bound = 3 * 128**0.5 * 2**-24 if "f32" in variant else 8 * 2**-9
        assert 0 <= r["max_rel_err"] <= bound
        # bf16: no worse than the dense path, which rounds the same values and, when gated, two more.
        # Five standard errors of a root mean square of 32 tokens x 64 outputs.
        if "f32" not in variant:
            assert r["rms_rel_err"] <= r["dense_rms_rel_err"] * (1 + 5 / (2 * 32 * 64) ** 0.5)
    assert "speedup" in done.out


def test_bench_ffn_at_every_density(twell):
    done = twell(*SMALL, "--tokens", "3", "--nnz", "0,1024", "--peaks", json_name="ffn2.json")
    none, all_of_them = done.json["results"]
    assert none["nnz_mean"] == 0 and none["max_rel_err"] == 0
    assert all_of_them["nnz_mean"] == 1024
    assert all_of_them["sparse_floor_us"] > none["sparse_floor_us"] > 0
    assert done.json["peaks"]["flops_per_us"] > 0


def test_bench_ffn_grid(twell, work):
    chart = work / "grid.svg"
    done = twell("bench", "ffn", "--grid", "cpu", "--width", 32, "--neurons", 128, "--repeats", 1,
                 "--seconds", 0.001, "--chart", chart, json_name="grid.json")
    asked = [(r["tokens"], r["nnz_target"]) for r in done.json["results"]]
    nnz = [0, 1, 3, 6, 13, 26, 51, 77, 102, 128]
    assert asked == [(m, k) for k in nnz for m in (1, 8, 64, 512, 2048)]
    assert done.json["results"][-1]["nnz_mean"] == 128
    # A table of non-zeros by tokens, and each implementation named once.
    rows = [line.split() for line in done.out.splitlines() if line.strip().startswith("128 ")]
    assert len(rows) == 4  # sparse, auto, times, which go on below
    assert all(sum("x" in cell for cell in row) == 5 for row in rows[:2])
    lines = done.out.replace("\n  ", " ").splitlines()  # as before they were broken
    named = [line for line in lines if " tokens: " in line]
    assert len(named) == len(set(named)) and len(named) >= 2
    pages = ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}svg")
    assert len(pages) == 5
    for page in pages:  # dense and sparse, each at every density
        lines = page.findall("{http://www.w3.org/2000/svg}polyline")
        assert [len(line.get("points").split()) for line in lines] == [10, 10]


def test_trace_is_recorded_and_replayed(twell, work, trained, text):
    run, _ = trained
    trace = work / "run.trc"
    stats = twell("stats", "--model", run, "--text", text, "--max-tokens", 500, "--window", 50,
                  "--trace", trace, json_name="ts.json").json
    done = twell("bench", "ffn", "--trace", trace, "--width", 500, "--tokens", "1,100",
                 "--repeats", 1, "--seconds", 0.001, json_name="tr.json")
    assert done.json["neurons"] == 256 and done.json["trace_tokens"] == 500
    results = done.json["results"]
    assert [(r["trace_layer"], r["tokens"]) for r in results] == [
        (0, 1), (0, 100), (1, 1), (1, 100)]
    for r in results:
        # What stats counted on all tokens is what the layer made of them is told to do, and at 100
        # tokens a call (512 // 100 = 5 calls) does.
        assert r["nnz_target"] == pytest.approx(stats["layers"][r["trace_layer"]]["nnz_mean"])
        if r["tokens"] == 100:
            assert r["nnz_mean"] == pytest.approx(r["nnz_target"])
    own = twell("bench", "ffn", "--trace", trace, "--trace-layer", 1, "--tokens", "1", "--repeats",
                1, "--seconds", 0.001, json_name="to.json").json
    assert own["width"] == 64 and [r["trace_layer"] for r in own["results"]] == [1]


def test_popularity_is_the_same_from_a_model_and_from_its_trace(twell, work, trained, text):
    trace, chart = work / "popular.trc", work / "popular.svg"
    done = twell("stats", "--model", trained[0], "--text", text, "--max-tokens", 1100, "--window", 50,
                 "--path", "dense", "--popularity", "--trace", trace, "--svg", chart, json_name="pm.json")
    read = twell("stats", "--from-trace", trace, json_name="pt.json")
    for result in (done.json, read.json):
        del result["machine"]
    assert read.json == done.json
    assert max(map(len, done.out[done.out.index("layer"):].splitlines())) <= 100
    assert read.json["popularity"] == {"hot_share": 0.0095, "windows": [16, 32, 64], "seed": 1}
    for layer in read.json["layers"]:
        assert [(u["window"], u["order"], u["windows"]) for u in layer["unions"]] == [
            (window, order, 1100 // window) for window in (16, 32, 64)
            for order in ("text", "token_id", "random")]
        for u in layer["unions"]:
            # A window's firings are those of its tokens, of which up to 12 of 1100 are in none.
            firings = u["sharing"] * u["union_fraction"] * 256
            assert firings == pytest.approx(u["window"] * layer["nnz_mean"], rel=0.03)
            assert 1 <= u["sharing"] <= u["window"]
        shares = [top["firings"] for top in layer["top"]]
        assert 0 < shares[0] <= shares[1] <= shares[2] <= shares[3] <= 1
        cold = layer["cold_nnz_mean"] / layer["nnz_mean"]
        assert cold == pytest.approx(1 - layer["hot_firings_fraction"])
    (page,) = ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}svg")
    assert len(page.findall("{http://www.w3.org/2000/svg}polyline")) == 3  # two layers, the threshold

    one = twell("stats", "--from-trace", trace, "--layer", 1, "--unions", "100", "--hot", 0,
                json_name="po.json").json
    assert [layer["layer"] for layer in one["layers"]] == [1]
    assert one["layers"][0]["hot_firings_fraction"] == 1
    assert one["layers"][0]["unions"][0]["windows"] == 11
    assert all(u["cold_sharing"] is None for u in one["layers"][0]["unions"])
    # A short text: chance, and windows that do not fit.
    short = twell("stats", "--from-trace", trace, "--max-tokens", 40, json_name="ps.json")
    assert "chance" in short.out and short.json["popularity"]["windows"] == [16, 32]
    assert "union" not in twell("stats", "--from-trace", trace, "--max-tokens", 1).out

    # Version 1 had no token ids: four bytes each, behind the header and the sizes of two layers.
    new = trace.read_bytes()
    (work / "old.trc").write_bytes(new[:8] + b"\1" + new[9:80] + new[80 + 4 * 1100:])
    old = twell("stats", "--from-trace", work / "old.trc", json_name="pold.json")
    assert "no token ids" in old.out
    assert {u["order"] for u in old.json["layers"][0]["unions"]} == {"text", "random"}

    (work / "cut.trc").write_bytes(new[:-1])
    for command, needles in (
        (["--from-trace", trace, "--layer", 2], ["--layer", "2 layers"]),
        (["--from-trace", trace, "--unions", 1101], ["--unions", "1101", "1100"]),
        (["--from-trace", trace, "--unions", 0], ["--unions"]),
        (["--from-trace", trace, "--model", "run"], ["--model", "--from-trace"]),
        (["--from-trace", trace, "--trace", "new.trc"], ["--trace"]),
        (["--from-trace", trace, "--svg", "text.txt"], ["text.txt"]),
        (["--from-trace", "cut.trc"], ["cut.trc", "truncated"]),
        ([], ["--model", "--from-trace"]),
        (["--model", trained[0]], ["--text"]),
    ):
        line = twell("stats", *command, ok=False).error_line()
        assert all(needle in line for needle in needles), line


def test_popularity_needs_an_activation_with_zeros(twell, trained, text, tmp_path):
    shutil.copytree(trained[0] / "latest", tmp_path / "silu")
    config = json.loads((tmp_path / "silu" / "config.json").read_text())
    (tmp_path / "silu" / "config.json").write_text(json.dumps({**config, "hidden_act": "silu"}))
    command = ["stats", "--model", tmp_path / "silu", "--text", text, "--max-tokens", 64]
    twell(*command)
    line = twell(*command, "--popularity", ok=False).error_line()
    assert "--popularity" in line and "silu" in line and "relu" in line


@pytest.mark.parametrize("wrong", [
    ["bench", "ffn", "--trace", "missing.trc"],
    ["bench", "ffn", "--trace", "text.txt"],
    ["bench", "ffn", "--trace", "run.trc", "--trace-layer", 2],
    ["bench", "ffn", "--grid", "cpu", "--nnz", "3"],
    ["bench", "ffn", "--chart", "no/such/folder.svg"],
    ["stats", "--model", "run", "--text", "text.txt", "--trace", "no/such/folder.trc"],
    ["stats", "--model", "run", "--text", "text.txt", "--path", "sparse", "--trace", "x.trc"],
    ["stats", "--model", "run", "--text", "text.txt", "--path", "sparse", "--popularity"],
    ["stats", "--from-trace", "missing.trc"],
    ["stats", "--from-trace", "text.txt"],
])
def test_mistakes_with_traces_and_charts(twell, work, trained, text, wrong):
    assert twell(*wrong, ok=False).error_line()
    assert not (work / "x.trc").exists()


def test_progress_is_plain_lines_without_a_terminal(twell):
    done = twell("bench", "ffn", "--width", 64, "--neurons", 256, "--tokens", "1", "--nnz", "5",
                 "--repeats", 3, "--seconds", 0.3)
    assert "\r" not in done.err and "\x1b" not in done.err
    lines = [line for line in done.err.splitlines() if line.startswith("measuring: ")]
    assert lines and lines[-1].startswith("measuring: done in")


TINY = ["synth", "--layers", 2, "--width", 128, "--neurons", 512, "--heads", 2, "--vocab", 512,
        "--context", 256]


@pytest.mark.parametrize(("nnz", "variant"), [(8, []), (60, ["--no-gated"]),
                                              (25, ["--dtype", "f32"])],
                         ids=["gated", "non-gated", "f32"])
def test_synth_hits_its_sparsity(twell, work, nnz, variant):
    out = work / f"synth-{nnz}"
    made = twell(*TINY, "--nnz", nnz, "--out", out, *variant, json_name="synth.json").json
    assert made["nnz_target"] == nnz
    # 2048 tokens calibrate and 2048 others measure; a count spreads by about its own size, so the
    # two means are within 5 * √(2 / 2048) of each other.
    assert made["nnz_measured"] == pytest.approx(nnz, rel=0.16)
    config = json.loads((out / "config.json").read_text())
    assert config["hidden_act"] == "relu" and config["tie_word_embeddings"] is True
    # What the file says is what another command then measures, on other tokens.
    sample = work / "bytes.txt"
    pick = random.Random(1)
    sample.write_text("".join(chr(pick.randrange(32, 127)) for _ in range(4096)))
    stats = twell("stats", "--model", out, "--text", sample, json_name="ss.json").json
    # 95 different tokens, each with a level of its own (e^±0.5): five standard errors.
    assert stats["nnz_mean"] == pytest.approx(nnz, rel=5 * 0.5 / 95**0.5)
    twell("generate", "--model", out, "--prompt", "hello", "--max-tokens", 2)


def test_prepare_writes_what_later_commands_go_by(twell, work, text):
    out = work / "prepared"
    twell(*TINY, "--nnz", 8, "--out", out, "--dtype", "f32")
    done = twell("prepare", "--model", out, "--text", text, json_name="prepare.json")
    if "there is nothing to find" in done.err:
        pytest.skip("this processor's tier has no screens")
    assert done.json["tokens"] == 1024
    file = out / "twell_prepared.json"
    assert done.json["file"] == str(file)
    content = json.loads(file.read_text())
    assert [layer["weight"] for layer in content["layers"]] == [
        f"model.layers.{i}.mlp.gate_proj.weight" for i in (0, 1)]
    for layer, told in zip(content["layers"], done.json["layers"]):
        assert sum(layer["fired"]) == pytest.approx(told["density"] * 1024 * 512)
        assert told["density"] <= layer["candidates"] == told["candidates"] <= 1
        assert told["gate"] in ("packed", "screened")
        assert len(layer["mean"]) == 128
    # Quietly, and with the same result: the file only saves time.
    prompt = ["generate", "--model", out, "--prompt", "the cat", "--max-tokens", 8, "--temperature", 0]
    with_it = twell(*prompt)
    assert "note" not in with_it.err
    file.write_text("{")
    without = twell(*prompt)
    assert without.out.split("\n[")[0] == with_it.out.split("\n[")[0]  # rates differ
    assert "twell prepare makes it anew" in without.err
    few = twell("prepare", "--model", out, "--text", text, "--max-tokens", 31, ok=False)
    assert few.code != 0 and "--max-tokens" in few.error_line()


def test_synth_refuses_to_overwrite(twell, work):
    out = work / "synth-twice"
    twell(*TINY, "--out", out)
    before = (out / "model.safetensors").stat().st_mtime_ns
    done = twell(*TINY, "--out", out, ok=False)
    assert done.code == 1 and "synth-twice" in done.error_line()
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_synth_with_seed_is_reproducible(twell, work):
    for name, seed in (("sa", 4), ("sb", 4), ("sc", 5)):
        twell(*TINY, "--seed", seed, "--out", work / name)
    a, b, c = ((work / n / "model.safetensors").read_bytes() for n in ("sa", "sb", "sc"))
    assert a == b and a != c


@pytest.mark.parametrize("variant", [[], ["--no-gated"], ["--dtype", "f32"]],
                         ids=["gated", "non-gated", "f32"])
def test_bench_ffn_trains_a_layer_with_biases(twell, variant):
    done = twell(*SMALL, "--train", "--biases", "--tokens", 40, "--nnz", 20, *variant,
                 json_name="train-biases.json")
    (result,) = done.json["results"]
    assert "with biases" in done.out and done.json["biases"]
    # A gradient is made in three steps, each with sums of 128 or 40 products: bf16 rounds what goes
    # in and comes out, 2^-9 each time; fp32 carries sqrt(128) units of 2^-24.
    bound = 9 * 128**0.5 * 2**-24 if "f32" in variant else 8 * 2**-9
    assert 0 < result["rms_rel_err"] <= bound
    assert 0 < result["dense_rms_rel_err"] <= bound


def test_bench_ffn_train_grid(twell, work):
    chart = work / "train.svg"
    done = twell("bench", "ffn", "--grid", "train", "--width", 32, "--neurons", 64, "--repeats", 1,
                 "--seconds", 0.001, "--chart", chart, json_name="train-grid.json")
    results = done.json["results"]
    assert {r["tokens"] for r in results} == {512, 2048, 8192}
    assert results[0]["nnz_mean"] == 0 and results[-1]["nnz_mean"] == 64
    assert all(r["sparse_forward_us"] > 0 and r["rms_rel_err"] < 0.02 for r in results)
    pages = ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}svg")
    assert len(pages) == 3


def test_bench_train(twell, work):
    model = work / "bench-train"
    twell("synth", "--layers", 2, "--width", 64, "--neurons", 256, "--heads", 2, "--vocab", 300,
          "--nnz", 8, "--out", model)
    done = twell("bench", "train", "--model", model, "--context", 64, "--accumulation", 2,
                 "--repeats", 1, json_name="bench-train.json")
    result = done.json
    assert result["tokens"] == 128
    assert 4 < result["nnz_mean"] < 16
    for side in ("dense", "sparse"):
        assert sum(result[side]["share"].values()) == pytest.approx(1)
        assert all(share > 0 for share in result[side]["share"].values())
        assert result[side]["tokens_per_s"] == pytest.approx(128e6 / result[side]["step_us"])
        assert result[side]["peak_bytes"] > result[side]["base_bytes"] > 0
    assert result["peak_bytes_ratio"] == pytest.approx(
        result["sparse"]["peak_bytes"] / result["dense"]["peak_bytes"])
    assert result["speedup"] == pytest.approx(
        result["dense"]["step_us"] / result["sparse"]["step_us"])
    assert result["speedup_min"] <= result["speedup"] <= result["speedup_max"]
    assert "feed-forward layers" in done.out


@pytest.fixture
def batch_model(twell, work):
    """Of four layers and a context of 48."""
    model = work / "bench-batch"
    if not model.exists():
        twell("synth", "--layers", 4, "--width", 64, "--neurons", 256, "--heads", 2, "--vocab", 300, "--context", 48,
              "--nnz", 8, "--profile", "paper", "--out", model)
    return model


def test_bench_model_of_a_batch(twell, work, batch_model):
    """Several sequences, one phase, fewer layers, every layer on its own."""
    quick = ["--model", batch_model, "--repeats", 2, "--seconds", 0.001]
    done = twell("bench", "model", *quick, "--batch", 3, "--prompt-tokens", 32, "--decode-tokens", 4, "--by-layer",
                 json_name="batch.json")
    result = done.json
    assert result["layers_run"] == result["layers_of_model"] == 4
    assert result["prefill"]["tokens"] == 96 and result["decode"]["tokens"] == 3
    for phase in ("prefill", "decode"):
        sides = {side["name"]: side for side in result[phase]["sides"]}
        assert {"PyTorch eager", "sparse"} < set(sides) and result[phase]["dense_impl"] in sides
        for side in sides.values():
            assert side["us_min"] <= side["us"] <= side["us_max"] and side["cold_us"] > 0
            assert side["tokens_per_ms"] == pytest.approx(result[phase]["tokens"] * 1e3 / side["us"])
            assert side["peak_bytes"] > result["weight_bytes"]["dense"] / 2
        assert result[phase]["speedup_eager"] == pytest.approx(sides["PyTorch eager"]["us"] / sides["sparse"]["us"])
    layers = result["by_layer"]["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2, 3]
    assert -1 <= result["by_layer"]["correlation"] <= 1
    assert "Correlation" in done.out and "first call" in done.out
    # Without decoding, prompts may fill the context.
    part = twell("bench", "model", *quick, "--prompt-tokens", 48, "--only", "prefill", "--layers", 2, "--no-eager",
                 json_name="part.json")
    assert part.json["complete"] and part.json["prefill"]["complete"] and part.json["prefill"]["runs"] == 2
    assert part.json["decode"] is None and part.json["layers_run"] == 2
    assert part.json["prefill"]["speedup_eager"] is None
    assert "2 layers of 4" in part.out
    short = work / "short.txt"
    short.write_text("too short")
    too_short = twell("bench", "model", *quick, "--batch", 2, "--prompt-tokens", 16, "--text", short, ok=False)
    assert "2 sequences of 16 tokens of a prompt and 32 decoded are 96 tokens, the text has 9" in too_short.error_line()
    too_long = twell("bench", "model", *quick, "--batch", 2, "--prompt-tokens", 64, ok=False)
    assert "do not fit into the model's context of 48" in too_long.error_line()


def test_bench_train_in_eager_mode_and_as_fits(twell, work):
    model = work / "bench-eager"
    twell("synth", "--layers", 3, "--width", 64, "--neurons", 256, "--heads", 2, "--vocab", 300, "--nnz", 8,
          "--no-gated", "--out", model)
    done = twell("bench", "train", "--model", model, "--context", 32, "--accumulation", 4, "--fit", "--recompute",
                 "--layers", 2, "--repeats", 2, json_name="bench-eager.json")
    result = done.json
    assert result["layers_run"] == 2 and result["layers_of_model"] == 3
    assert [side["name"] for side in result["sides"]] == ["sparse", "dense", "PyTorch eager"]
    for side in result["sides"]:
        assert side["micro_batch"] in (1, 2, 4)
        assert side["step_us_min"] <= side["step_us"] <= side["step_us_max"]
        assert side["peak_bytes"] > side["base_bytes"] > 0
    assert result["speedup_eager"] == pytest.approx(result["sides"][2]["step_us"] / result["sparse"]["step_us"])
    assert "blocks computed twice" in done.out


def test_benchmarks_refuse_what_they_cannot_compare(twell, work, batch_model):
    model = work / "bench-silu"
    shutil.copytree(batch_model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_act": "silu"}))
    for command in ("model", "train"):
        refused = twell("bench", command, "--model", model, ok=False)
        assert "'silu' yields no zeros" in refused.error_line()
    text = work / "few.txt"
    text.write_text("a few words")
    short = twell("bench", "train", "--model", batch_model, "--context", 32, "--text", text, ok=False)
    assert "has 11 tokens, a window needs 33" in short.error_line()
    text.write_text("a few words " * 8)  # 96 of the 129 tokens of a step: read again
    again = twell("bench", "train", "--model", batch_model, "--context", 32, "--text", text, "--repeats", 1,
                  json_name="again.json")
    assert again.json["tokens"] == 128


@pytest.mark.parametrize("command", ["model", "train"])
def test_a_benchmark_that_is_stopped_leaves_what_it_measured(program, work, batch_model, command):
    out = work / f"stopped-{command}.json"
    arguments = {"model": ["--prompt-tokens", 16, "--decode-tokens", 4, "--seconds", 0.001, "--repeats", 1000],
                 "train": ["--context", 16, "--accumulation", 1, "--repeats", 1000]}  # fmt: skip
    running = subprocess.Popen([str(a) for a in (program, "bench", command, "--model", batch_model,
                                                 *arguments[command], "--json", out)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        end = time.monotonic() + 120
        while not out.exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, said
    assert f"note: {out} has what there was until then" in said
    left = json.loads(out.read_text())
    assert left["complete"] is False
    runs = left["prefill"]["runs"] if command == "model" else left["runs"]
    assert 1 <= runs < 1000


def test_bench_train_measures_memory(twell, work):
    """Four wide layers of 512 tokens, so that what a pass keeps is far more than what else moves:
    dense autograd keeps g, u, g ⊙ u and the gradient of one at least of [512, 8192] in each."""
    model = work / "bench-train-memory"
    twell("synth", "--layers", 4, "--width", 64, "--neurons", 8192, "--heads", 2, "--vocab", 300,
          "--nnz", 8, "--out", model)
    result = twell("bench", "train", "--model", model, "--context", 512, "--accumulation", 1,
                   "--repeats", 1, json_name="bench-train-memory.json").json
    added = {side: result[side]["peak_bytes"] - result[side]["base_bytes"]
             for side in ("dense", "sparse")}
    values = 4 * 512 * 8192  # of one matrix of hidden values, all layers
    assert added["dense"] > 3 * 2 * values
    assert added["sparse"] < added["dense"] / 2
    assert result["added_bytes_ratio"] == pytest.approx(added["sparse"] / added["dense"])
    assert result["peak_bytes_ratio"] < 1


@pytest.mark.parametrize("percent", [0.5, 5, 15, 25])
def test_explain_announces_the_form_that_the_engine_takes(twell, percent):
    """Some way below the limit of a tier, a screen leaves more than the limit, and fewer fire."""
    shape = ["--width", 512, "--neurons", 2048, "--tokens", "64", "--nnz", 2048 * percent / 100]
    layer = twell("bench", "ffn", *shape, "--repeats", 1, "--seconds", 0.001,
                  json_name="form-bench.json").json["results"][0]
    plan = twell("explain", *shape, json_name="form-explain.json").json["plans"][0]
    assert f"{plan['gate']} gate" in layer["sparse_impl"]
    assert plan["plan"] in layer["sparse_impl"]
