"""Training with thresholds that rise until a share of the neurons fires, and what others read of it."""

import json
import os
import pathlib

import pytest
from conftest import SHAPE

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW = 64


def log_of(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def share_of(line):
    return line["nnz_mean"] / 256


def test_what_fires_falls_to_the_share(twell, text, tmp_path):
    out = tmp_path / "run"
    twell("train", "--data", text, "--out", out, *SHAPE, "--bpe-vocab", 320, "--steps", 48, "--context", WINDOW,
          "--batch", 8, "--warmup", 5, "--lr", 0.005, "--l1-stages", "0:0,20:2e-5", "--log-every", 1,
          "--share", 0.1, "--share-steps", 33)
    lines = log_of(out)
    assert 0.4 < share_of(lines[0]) < 0.6
    assert [line["l1_coef"] for line in lines[9:30:10]] == pytest.approx([1e-5, 2e-5, 2e-5])
    # 512 tokens of 512 neurons in both layers: what fires is known to within three deviations,
    # 0.0025. The last thresholds are those of step 33; the weights learn on, and layer 1 sees what
    # the threshold of layer 0 has become. Both are seen where thresholds stay for eight steps,
    # and are less than a tenth of what fires.
    for line in lines[33:]:
        assert share_of(line) == pytest.approx(0.1, abs=0.0125)
        assert line["thresholds"] == lines[32]["thresholds"]
    fitted = [a["step"] for a, b in zip(lines[1:], lines) if a["thresholds"] != b["thresholds"]]
    assert fitted == [9, 17, 25, 33]
    config = json.loads((out / "latest/config.json").read_text())
    assert config["hidden_act"] == "fatrelu"
    assert config["hidden_act_param"] == max(lines[-1]["thresholds"])


@pytest.fixture(scope="module")
def still(twell, trained, text, tmp_path_factory):
    """A run on one batch of all windows of a text, whose weights do not move: its directory, the
    text, and how many tokens of it are read."""
    folder = tmp_path_factory.mktemp("share")
    some = folder / "some.txt"
    some.write_text(text.read_text()[:2600])
    count = twell("tokenize", "--text", some, "--tokenizer", trained[0] / "latest/tokenizer.json", "--out",
                  folder / "some.tokens", json_name="some.json").json["tokens"]
    windows = (count - 1) // WINDOW
    assert windows > 10
    twell("train", "--model", trained[0], "--data", some, "--out", folder / "run", "--share", 0.05,
          "--share-steps", 4, "--lr", 0, "--steps", 6, "--validation", 0, "--context", WINDOW, "--batch", windows,
          "--compute", "fp32", "--log-every", 1)
    return folder / "run", some, windows * WINDOW + 1


def test_a_jump_has_no_bound(twell, still):
    """Rounding may take a value to the threshold's other side, and the value is then another."""
    done = twell("bench", "model", "--model", still[0], "--prompt-tokens", 16, "--decode-tokens", 2, "--repeats", 1,
                 "--seconds", 0.001, json_name="bench.json")
    assert done.json["max_rel_err"] >= 0 and done.json["max_rel_err_bound"] is None
    assert "no bound: where a gate is as close to the threshold" in done.out


def test_the_saved_model_has_the_loss_of_the_run(twell, still):
    run, some, count = still
    last = log_of(run)[-1]
    assert share_of(last) == pytest.approx(0.05, abs=0.005)
    assert min(last["thresholds"]) > 0 and len(set(last["thresholds"])) == 2
    for path in ("dense", "sparse"):
        found = twell("eval", "--model", run, "--task", "perplexity", "--data", some, "--window", WINDOW,
                      "--limit", count, "--path", path, json_name="share.json").json
        assert found["items"] == count - 1
        # Weights are rounded to fp32 once more, and sums have another order: on average 2^-24 of
        # logits below 20 for each of the sqrt(1088) steps of their longest chain of sums.
        assert found["nats_per_token"] == pytest.approx(last["ce"], abs=20 * 1088**0.5 * 2**-24)
    assert twell("generate", "--model", run, "--prompt", "The cat", "--max-tokens", 4).out


def test_transformers_computes_the_same(twell, still, monkeypatch):
    """Also where its own activation is in the place of twell's."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from logit_bound import logit_bound

    if not os.environ.get("TWELL_TORCH_LIBRARY"):
        pytest.skip("TWELL_TORCH_LIBRARY names no library of operators")
    monkeypatch.syspath_prepend(ROOT / "python")
    import twell as package

    run, some, count = still
    newest = run / "latest"
    threshold = json.loads((newest / "config.json").read_text())["hidden_act_param"]
    monkeypatch.setitem(transformers.activations.ACT2FN, "fatrelu",
                        (torch.nn.Threshold, {"threshold": threshold, "value": 0.0}))
    plain = transformers.AutoModelForCausalLM.from_pretrained(newest, dtype=torch.float32).eval()
    sparse = package.hf.from_pretrained(newest, dtype=torch.float32)
    layers = package.sparse_layers(sparse).values()
    assert {(layer.activation, layer.threshold) for layer in layers} == {("fat_relu", threshold)}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(newest / "tokenizer.json"))
    ids = torch.tensor(tokenizer(some.read_text(), add_special_tokens=False)["input_ids"][:count])
    with torch.no_grad():
        windows = ids[:-1].view(-1, WINDOW)
        want, got = (model(windows).logits for model in (plain, sparse))
    bound = logit_bound(plain.config, want.numpy(), WINDOW)
    assert (got - want).abs().max() <= bound
    loss = torch.nn.functional.cross_entropy(want.flatten(0, 1).double(), ids[1:])
    assert float(loss) == pytest.approx(log_of(run)[-1]["ce"], abs=2 * bound)


@pytest.mark.parametrize(("options", "said"), [
    (["--share", 1.5], "--share"),
    (["--share-steps", 5], "--share"),
    (["--l1-stages", "5"], "expected steps and coefficients, as in 0:0,200:1e-5, got \"5\""),
    (["--l1-stages", "0:1", "--l1", 1], "--l1"),
])  # fmt: skip
def test_wrong_use(twell, text, tmp_path, options, said):
    done = twell("train", "--data", text, "--out", tmp_path / "run", *options, ok=False)
    assert done.code == 2 and said in done.error_line()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("options", "said"), [
    (["--l1-stages", "5:1,4:2"], "l1_stages: expected steps that ascend, got 4 after 5"),
    (["--share", 0.1, "--steps", 10, "--share-steps", 11], "share_steps: expected a path to the share"),
    (["--share", 0.1, "--activation", "silu"], "share: expected a model with relu or fatrelu, got silu"),
])  # fmt: skip
def test_what_cannot_be(twell, text, tmp_path, options, said):
    done = twell("train", "--data", text, "--out", tmp_path / "run", *SHAPE, "--bpe-vocab", 300, *options, ok=False)
    assert done.code == 1 and said in done.error_line()
