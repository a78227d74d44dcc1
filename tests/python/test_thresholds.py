"""FATReLU's thresholds, fitted in training to a share of neurons that fire."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import twell
from torch import nn

transformers = pytest.importorskip("transformers")

from tiny_training import Text, arguments, lines, llama  # noqa: E402


def model(act: str = "relu", threshold: float = 0.0) -> nn.Module:
    if threshold == 0:
        return twell.sparsify(llama(act), freeze=False)
    return twell.sparsify(llama(act), activation="fat_relu", threshold=threshold, freeze=False)


def train(
    out: Path,
    which: nn.Module,
    steps: int,
    callbacks: list[object],
    resume: str | None = None,
    **options: Any,
) -> Any:
    given = arguments(out, steps, **{"learning_rate": 1e-4, "logging_steps": 1, **options})
    run = transformers.Trainer(which, given, train_dataset=Text(), callbacks=callbacks)
    run.train(resume_from_checkpoint=resume)
    return run


@pytest.mark.parametrize(("bf16", "threshold"), [(False, 0.0), (True, 0.0), (False, 0.4)])
def test_the_share_falls_to_what_was_asked_for(
    tmp_path: Path, bf16: bool, threshold: float
) -> None:
    which = model(threshold=threshold)
    callbacks = [twell.hf.SparsityCallback(), twell.hf.ThresholdCallback(0.1, steps=17, every=4)]
    log = lines(train(tmp_path, which, 24, callbacks, bf16=bf16))
    shares = [line["sparsity/share"] for line in log]
    assert (0.4 if threshold == 0 else 0.2) < shares[0] < (0.6 if threshold == 0 else 0.4)
    # 128 tokens a step: of 160 neurons in two layers that is the line's share to within three
    # deviations, 0.01, and what a few steps of training change.
    for done, share in enumerate(shares):
        fitted = max((step for step in (1, 5, 9, 13, 17) if step <= done), default=0)
        assert share == pytest.approx(shares[0] + (0.1 - shares[0]) * fitted / 17, abs=0.02)
    thresholds = {line["sparsity/threshold"] for line in log[17:]}
    assert len(thresholds) == 1 and thresholds.pop() > 0


def test_what_is_saved_has_one_threshold_and_computes_the_same(tmp_path: Path) -> None:
    which = model()
    seen: dict[str, Any] = {}

    class Before(transformers.TrainerCallback):
        def on_epoch_end(self, *_: Any, **given: Any) -> None:
            seen["model"] = copy.deepcopy(given["model"])

    run = train(tmp_path, which, 8, [Before(), twell.hf.ThresholdCallback(0.2, steps=6, every=2)])
    ids = Text().ids[:4]
    with torch.no_grad():
        want, got = (m.eval()(ids).logits for m in (seen["model"], which))
    before = {m.threshold for m in twell.sparse_layers(seen["model"]).values()}
    after = {m.threshold for m in twell.sparse_layers(which).values()}
    assert len(before) == 2 and after == {max(before)}
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    run.save_model()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hidden_act"] == "fatrelu" and config["hidden_act_param"] == max(before)
    again = twell.hf.from_pretrained(tmp_path, freeze=False)
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, got)


def test_stopped_and_resumed(tmp_path: Path) -> None:
    def callbacks() -> list[object]:
        return [twell.hf.SparsityCallback(), twell.hf.ThresholdCallback(0.1, steps=15, every=4)]

    options = {"save_strategy": "steps", "save_steps": 10}
    whole = train(tmp_path / "whole", model(), 18, callbacks(), **options)
    half = str(tmp_path / "whole" / "checkpoint-10")
    again = train(tmp_path / "again", model(), 18, callbacks(), half, **options)
    for got, want in zip(lines(again)[10:], lines(whole)[10:], strict=True):
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-6)
        assert got["sparsity/threshold"] == pytest.approx(want["sparsity/threshold"], rel=1e-6)


def test_a_configuration_with_another_name_for_its_activation(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.OPTConfig(
        vocab_size=61, hidden_size=48, ffn_dim=160, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=48, init_std=0.2,
    )  # fmt: skip
    which = twell.sparsify(
        transformers.OPTForCausalLM(config).eval(), activation="fat_relu", threshold=0.5, freeze=False
    )
    twell.hf.fold_thresholds(which)
    which.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["activation_function"] == "fatrelu" and saved["hidden_act_param"] == 0.5
    assert "hidden_act" not in saved
    again = twell.hf.from_pretrained(tmp_path, freeze=False)
    assert {m.threshold for m in twell.sparse_layers(again).values()} == {0.5}
    ids = Text().ids[:4]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, which(ids).logits)


def test_drelu_keeps_its_name(tmp_path: Path) -> None:
    """Also with a threshold that all small values are below."""
    plain = llama("relu")
    plain.config.hidden_act = "drelu"
    plain.save_pretrained(tmp_path / "start")
    which = twell.hf.from_pretrained(tmp_path / "start", freeze=False)
    for number, layer in enumerate(twell.sparse_layers(which).values()):
        layer.activation, layer.threshold = "fat_relu", 1.0 + 30 * number
    ids = Text().ids[:4]
    with torch.no_grad():
        want = which(ids).logits
    twell.hf.fold_thresholds(which)
    which.save_pretrained(tmp_path / "end")
    config = json.loads((tmp_path / "end" / "config.json").read_text())
    assert config["hidden_act"] == "drelu" and config["hidden_act_param"] == 31.0
    again = twell.hf.from_pretrained(tmp_path / "end", freeze=False)
    layers = twell.sparse_layers(again).values()
    forms = {(m.activation, m.threshold, m.up_activation) for m in layers}
    assert forms == {("fat_relu", 31.0, "relu")}
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("up", ["identity", "relu", None])
def test_folding(up: str | None) -> None:
    """Also biases, and a layer without a threshold."""
    torch.manual_seed(3)
    options = {"up_activation": up} if up else {}

    def layer(threshold: float) -> nn.Module:
        kind = twell.GatedFfn if up else twell.Ffn
        made = kind(
            24, 96, activation="fat_relu", threshold=threshold, bias=True, dtype=torch.float64,
            **options,
        )  # fmt: skip
        return made.requires_grad_(False)

    both = nn.Sequential(layer(0.3), layer(0.05), layer(0.0))
    x = torch.randn(50, 24, dtype=torch.float64)
    want = both(x)
    assert twell.hf.fold_thresholds(both) == 0.3
    assert [m.threshold for m in both] == [0.3] * 3
    # The last layer's values below 0.3/1024 times its own factor are lost: v of up to 0.0003.
    torch.testing.assert_close(both(x), want, rtol=0, atol=0.01)
    alone = nn.Sequential(layer(0.3), layer(0.05))
    want = alone(x)
    twell.hf.fold_thresholds(alone)
    torch.testing.assert_close(alone(x), want, rtol=1e-12, atol=1e-12)


def test_bad_input(tmp_path: Path) -> None:
    for given, said in (
        ({"share": 0.0, "steps": 1}, "share: expected more than 0 and less than 1, got 0"),
        ({"share": 0.1, "steps": 0}, "steps: expected 1 or more, got 0"),
        ({"share": 0.1, "steps": 5, "every": 0}, "every: expected 1 or more, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            twell.hf.ThresholdCallback(**given)
    with pytest.raises(ValueError, match="expected relu or fat_relu, got relu_squared"):
        train(tmp_path, model("relu2"), 1, [twell.hf.ThresholdCallback(0.1, 4)])
    with pytest.raises(ValueError, match="no fat_relu layer that is trained"):
        twell.hf.fold_thresholds(model())
    squared = twell.GatedFfn(8, 16, activation="fat_relu", up_activation="relu_squared")
    with pytest.raises(ValueError, match="up: expected one of identity, relu in all layers, got relu_sq"):
        twell.hf.fold_thresholds(squared)
