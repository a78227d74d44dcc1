"""Text to model to text: every command on a tiny model."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import SHAPE


def test_train_learns_and_reports(trained):
    out, done = trained
    result = done.json
    assert result["steps"] == 60
    assert result["loss_last"] < result["loss_first"] * 0.8
    assert 0 < result["nnz_mean"] < 256
    assert result["tokens_per_s"] > 0
    assert len(result["layers"]) == 2
    assert result["machine"]["threads"] >= 1 and result["twell"]
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 60 and len(lines) == 12
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert (out / "latest" / "model.safetensors").exists()


def test_train_refuses_a_directory_in_use(twell, trained, text):
    out, _ = trained
    done = twell("train", "--data", text, "--out", out, *SHAPE, ok=False)
    assert done.code == 1
    assert (out / "latest" / "model.safetensors").exists()


def test_train_resumes(twell, trained, text, work):
    out, done = trained
    copy = work / "run-resumed"
    shutil.copytree(out, copy, symlinks=True)
    result = twell(
        "train", "--data", text, "--out", copy, "--resume", "--extend-to", 65, *SHAPE,
        "--bpe-vocab", 320, "--validation", 0.05, json_name="resumed.json",
    ).json
    assert result["steps"] == 65
    assert result["loss_last"] < done.json["loss_first"] * 0.8


def test_generate_is_reproducible_and_paths_agree(twell, trained):
    out, _ = trained
    ask = ["generate", "--model", out, "--prompt", "The cat", "--max-tokens", 12]
    first = twell(*ask, "--seed", 3, json_name="g1.json")
    assert first.json["tokens"] == 12 and first.json["text"]
    assert first.json["prefill_tokens_per_s"] > 0 and first.json["decode_tokens_per_s"] > 0
    assert first.out.startswith("The cat" + first.json["text"])
    assert twell(*ask, "--seed", 3, json_name="g2.json").json["text"] == first.json["text"]
    greedy = ["--temperature", 0, "--dtype", "f32"]
    dense = twell(*ask, *greedy, "--path", "dense", json_name="g3.json").json
    sparse = twell(*ask, *greedy, "--path", "sparse", json_name="g4.json").json
    assert dense["path"] == "dense" and sparse["path"] == "sparse"
    assert dense["text"] == sparse["text"]


def test_generate_takes_several_prompts(twell, trained):
    out, _ = trained
    done = twell("generate", "--model", out, "--prompt", "The cat", "--prompt", "A bird",
                 "--max-tokens", 4, "--temperature", 0, json_name="g5.json")
    assert len(done.json["sequences"]) == 2
    alone = twell("generate", "--model", out, "--prompt", "A bird", "--max-tokens", 4,
                  "--temperature", 0, json_name="g6.json")
    assert done.json["sequences"][1]["token_ids"] == alone.json["sequences"][0]["token_ids"]


def test_generate_takes_a_prompt_and_a_file(twell, trained, work):
    (work / "prompt.txt").write_text("A bird")
    ask = ["generate", "--model", trained[0], "--prompt", "The cat", "--max-tokens", 4,
           "--temperature", 0]
    both = twell(*ask, "--prompt", "A bird", json_name="g7.json")
    done = twell(*ask, "--prompt-file", work / "prompt.txt", json_name="g8.json")
    assert done.json["sequences"] == both.json["sequences"]
    for number, prompt in enumerate(["The cat", "A bird"], 1):
        assert f"--- {number} ---\n{prompt}{done.json['sequences'][number - 1]['text']}\n" in done.out


@pytest.mark.parametrize(
    ("prompt", "needle"), [("", "empty"), ("word " * 4000, "context")], ids=["empty", "too long"])
def test_generate_refuses_bad_prompts(twell, trained, prompt, needle):
    done = twell("generate", "--model", trained[0], "--prompt", prompt, ok=False)
    assert done.code == 1 and needle in done.error_line()


def test_stats_counts(twell, trained, text):
    done = twell("stats", "--model", trained[0], "--text", text, "--max-tokens", 512, "--chart",
                 json_name="stats.json")
    layers = done.json["layers"]
    assert len(layers) == 2
    for layer in layers:
        assert 0 < layer["nnz_mean"] <= layer["nnz_max"] <= 256
        assert 0 <= layer["dead_fraction"] < 1
    assert done.json["positions"][0]["first"] == 0
    assert "#" in done.out
    dense = twell("stats", "--model", trained[0], "--text", text, "--max-tokens", 512, "--path",
                  "dense", json_name="stats2.json").json
    # Rounding may turn a gate value around zero over; nothing else may differ.
    assert dense["nnz_mean"] == pytest.approx(done.json["nnz_mean"], rel=0.01)


def test_bench_model_compares(twell, trained, text):
    done = twell("bench", "model", "--model", trained[0], "--text", text, "--prompt-tokens", 32,
                 "--decode-tokens", 8, "--repeats", 3, "--seconds", 0.01, "--reference",
                 json_name="bm.json")
    result = done.json
    for phase in ("prefill", "decode"):
        for key in ("dense_tokens_per_s", "sparse_tokens_per_s", "speedup"):
            assert result[phase][key] > 0
        assert result[phase]["speedup"] == pytest.approx(
            result[phase]["sparse_tokens_per_s"] / result[phase]["dense_tokens_per_s"])
    assert result["train"] is None
    assert result["peak_bytes"] > 1e6
    assert [side["name"] for side in result["prefill"]["sides"]][-2:] == ["PyTorch eager", "sparse"]
    assert 0 <= result["max_rel_err"] <= result["max_rel_err_bound"]
    assert result["sparse_max_rel_err_fp32"] <= result["max_rel_err_bound"]


def test_bench_model_says_where_the_time_goes(twell, trained, text):
    done = twell("bench", "model", "--model", trained[0], "--text", text, "--prompt-tokens", 32,
                 "--decode-tokens", 4, "--repeats", 1, "--seconds", 0.01, json_name="bp.json")
    pieces = {"ffn", "attention", "other_linear", "norm_and_rope", "logits", "sampling", "rest"}
    for phase in ("prefill", "decode"):
        for side in ("dense", "sparse"):
            shares = done.json["profile"][phase][side]
            assert set(shares) == pieces
            assert sum(shares.values()) == pytest.approx(1)
            assert all(0 < share < 1 for share in shares.values())
    assert "norm and rope" in done.out


def test_bench_model_refuses_more_tokens_than_the_context(twell, trained, text):
    done = twell("bench", "model", "--model", trained[0], "--text", text, "--prompt-tokens", 100000,
                 ok=False)
    assert done.code == 1 and "context" in done.error_line()


def test_eval_perplexity_is_that_of_the_log(twell, trained, text):
    out, done = trained
    result = twell("eval", "--model", out, "--task", "perplexity", "--data", text, "--limit", 2000,
                   "--window", 64, json_name="ppl.json").json
    assert result["perplexity"] == pytest.approx(math.exp(result["nats_per_token"]))
    # The text it was trained on, in windows as in training.
    assert result["nats_per_token"] == pytest.approx(done.json["loss_last"], rel=0.25)


def test_eval_task(twell, trained, work):
    data = work / "arc.jsonl"
    items = [{"question": "The cat", "choices": ["sees a red ball", "xq zzk vv"], "gold": 0}] * 4
    data.write_text("".join(json.dumps(i) + "\n" for i in items))
    result = twell("eval", "--model", trained[0], "--task", "arc", "--data", data,
                   json_name="arc.json").json
    assert result["items"] == 4 and result["accuracy"] == 1.0 and "accuracy_norm" in result
    data.write_text('{"question": 1}\n')
    done = twell("eval", "--model", trained[0], "--task", "arc", "--data", data, ok=False)
    assert "arc.jsonl:1" in done.error_line()


def test_explain_model(twell, trained):
    done = twell("explain", "--model", trained[0], json_name="explain.json")
    assert len(done.json["layers"]) == 2
    # What its layers showed when they were prepared, unless told otherwise; each layer says its own.
    seen = [float(re.search(r"last density ([\d.]+) %", layer)[1]) for layer in done.json["layers"]]
    assert done.json["nnz"] == pytest.approx(256 * sum(seen) / 200, abs=0.1)
    words = f"{done.json['nnz']:.4g} non-zeros expected, the mean of its layers over 64 tokens"
    assert words in done.out.replace("\n  ", " ")
    told = twell("explain", "--model", trained[0], "--nnz", 5, "--no-measure", json_name="told.json")
    assert told.json["nnz"] == 5 and "5 non-zeros expected\n" in told.out


def test_tokenize_and_train_from_the_shard(twell, work, text):
    place = work / "tokens"
    place.mkdir()
    done = twell("tokenize", "--text", text, "--learn", 300, "--out", place / "a.tokens",
                 json_name="tok.json")
    assert done.json["tokens"] > 1000 and done.json["bytes_per_token"] > 1
    assert (place / "a.tokens").stat().st_size == 64 + 2 * done.json["tokens"]
    again = twell("tokenize", "--text", text, "--tokenizer", place / "tokenizer.json", "--out",
                  place / "b.tokens", json_name="tok2.json")
    assert again.json["tokens"] == done.json["tokens"]
    assert (place / "a.tokens").read_bytes() == (place / "b.tokens").read_bytes()
    result = twell("train", "--data", place / "a.tokens", "--tokenizer", place / "tokenizer.json",
                   "--out", work / "run-shard", *SHAPE, "--steps", 2, "--context", 32, "--batch", 2,
                   json_name="ts.json").json
    assert result["steps"] == 2


def test_convert_rewrites_a_directory(twell, trained, work):
    out = work / "converted"
    twell("convert", "--in", trained[0] / "latest", "--out", out, "--dtype", "f32")
    config = json.loads((out / "config.json").read_text())
    assert "float32" in json.dumps(config)
    ask = ["--prompt", "The cat", "--max-tokens", 8, "--temperature", 0, "--dtype", "f32"]
    a = twell("generate", "--model", trained[0], *ask, json_name="c1.json").json
    b = twell("generate", "--model", out, *ask, json_name="c2.json").json
    assert a["text"] == b["text"]


def test_a_truncated_checkpoint_is_named(twell, trained, work):
    broken = work / "broken"
    shutil.copytree(trained[0] / "latest", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    done = twell("generate", "--model", broken, "--prompt", "a", ok=False)
    assert done.code == 1 and "model.safetensors" in done.error_line()


def test_ctrl_c_leaves_nothing_half_done(program, work, text):
    out = work / "interrupted"
    process = subprocess.Popen(
        [program, "demo", "--text", text, "--out", out, "--minutes", "5", "--layers", "2",
         "--width", "64", "--neurons", "256", "--bpe-vocab", "300"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"interrupted" in err.splitlines()[-1]
    assert not out.exists()


def test_demo_end_to_end(twell, work, text):
    out = work / "demo"
    ask = ["demo", "--text", text, "--out", out, "--layers", 2, "--width", 64,
           "--neurons", 256, "--context", 64, "--batch", 8, "--bpe-vocab", 320, "--max-tokens", 8]
    done = twell(*ask, "--steps", 40, json_name="demo.json")
    result = done.json
    assert result["train"]["loss_last"] < result["train"]["loss_first"]
    for key in ("nnz_mean", "speedup_prefill", "speedup_decode", "max_rel_err"):
        assert result[key] > 0, key
    assert result["max_rel_err"] <= result["max_rel_err_bound"]
    assert result["text"] and "What happened" in done.out
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 4 and "<script" not in page and "http" not in page
    assert "nan" not in page.lower().replace("nano", "")
    assert json.loads((out / "results.json").read_text())["nnz_mean"] == result["nnz_mean"]
    twell("generate", "--model", out / "model", "--prompt", "The", "--max-tokens", 2)
    # Again into the same place: replaced as a whole.
    twell(*ask, "--steps", 2)
    assert sorted(p.name for p in out.iterdir()) == ["cache", "model", "report.html",
                                                     "results.json"]


def test_convert_reorder_keeps_the_model(twell, trained, text, work):
    model, out = trained[0] / "latest", work / "reordered"
    reorder = ["convert", "--in", model, "--reorder", "--text", text, "--max-tokens", 1000]
    done = twell(*reorder, "--out", out, json_name="re.json")
    layers = done.json["reorder"]["layers"]
    assert len(layers) == 2 and done.json["reorder"]["tokens"] == 1000
    assert all(layer["blocks_after"] <= layer["blocks_before"] for layer in layers)
    before, after = (json.loads((d / "config.json").read_text()) for d in (model, out))
    before["intermediate_size"] -= layers[0]["removed"]
    assert after == before
    # The chain of sums has 2 (3 D + H + 64) + D = 1088 terms, each 2^-24 of logits up to about 20;
    # a log-likelihood differs by two of them at most.
    scores = [twell("eval", "--model", d, "--task", "perplexity", "--data", text, "--dtype", "f32",
                    json_name="rp.json").json["perplexity"] for d in (model, out)]
    assert scores[1] == pytest.approx(scores[0], rel=2 * 1088 * 20 * 2**-24)
    assert twell(*reorder, "--out", out, ok=False).error_line()  # holds a model already
    assert twell("convert", "--in", model, "--reorder", "--out", work / "r2", ok=False).error_line()
