"""Models of time series through the pipelines of the package chronos-forecasting: the same forecasts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import twell
from layers import UNIT
from tiny_models import features
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:We recommend keeping prediction length")

chronos = pytest.importorskip("chronos")
transformers = pytest.importorskip("transformers")

QUANTILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
SIZES: dict[str, Any] = {
    "d_model": 24, "d_kv": 12, "d_ff": 60, "num_layers": 2, "num_heads": 2, "pad_token_id": 0,
    "feed_forward_proj": "relu", "dropout_rate": 0.1,
}  # fmt: skip
PATCHES = {"context_length": 64, "input_patch_size": 4, "input_patch_stride": 4, "quantiles": QUANTILES}


def t5() -> Any:
    says = {
        "tokenizer_class": "MeanScaleUniformBins", "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
        "context_length": 64, "prediction_length": 6, "n_tokens": 97, "n_special_tokens": 2,
        "pad_token_id": 0, "eos_token_id": 1, "use_eos_token": True, "model_type": "seq2seq",
        "num_samples": 3, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    }  # fmt: skip
    options = {**SIZES, "vocab_size": 97, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**options))
    config = chronos.ChronosConfig(**says)
    return chronos.ChronosPipeline(config.create_tokenizer(), chronos.chronos.ChronosModel(config, model))


def bolt() -> Any:
    says = {**PATCHES, "prediction_length": 6, "use_reg_token": True}
    config = transformers.T5Config(**SIZES, decoder_start_token_id=0, chronos_config=says)
    return chronos.ChronosBoltPipeline(chronos.chronos_bolt.ChronosBoltModelForForecasting(config))


def chronos2() -> Any:
    says = {**PATCHES, "output_patch_size": 4, "max_output_patches": 2, "use_reg_token": True}
    config = chronos.chronos2.config.Chronos2CoreConfig(**SIZES, chronos_config=says)
    return chronos.Chronos2Pipeline(chronos.chronos2.Chronos2Model(config))


# How many layers become sparse, of two blocks in each stack.
PIPELINES: dict[str, tuple[Callable[[], Any], int]] = {"t5": (t5, 4), "bolt": (bolt, 4), "chronos2": (chronos2, 2)}
LAYERS: dict[str, dict[str, Any]] = {
    "unfrozen": {"freeze": False},
    "frozen, auto": {"path": "auto"},
    "frozen, sparse": {"path": "sparse"},
}

ONE, *_ = SERIES = [10 + 3 * one[:n] for one, n in zip(features(3, 64), (64, 40, 9))]
INPUTS: dict[str, Any] = {"one": [ONE], "several": SERIES}


def pipeline(name: str) -> Any:
    """With norms and biases that are not what they begin as, and weights that count."""
    torch.manual_seed(7)
    made = PIPELINES[name][0]()
    with torch.no_grad():
        for p in made.inner_model.eval().parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn(p.shape))
            else:
                p.copy_(torch.randn(p.shape) * p[0].numel() ** -0.5)
    return made


def forecast(made: Any, inputs: Any, **options: Any) -> Tensor:
    """Samples come of the same random numbers each time."""
    torch.manual_seed(3)
    found = made.predict(inputs, **options)
    return found if torch.is_tensor(found) else torch.cat(found)


def sparse(made: Any, layers: dict[str, Any]) -> Any:
    mine = copy.deepcopy(made)
    twell.sparsify(mine.inner_model, **layers)
    return mine


def assert_same(got: Tensor, plain: Tensor, exact: Tensor) -> None:
    """From float64 no further off than twice the unchanged model, and what rounding the results of layers
    once more may add, as in test_models.py."""
    assert got.shape == plain.shape and got.isfinite().all()
    error, own = (float((x.double() - exact).norm()) for x in (got, plain))
    assert error <= 2 * own + 16 * UNIT[torch.float32] * float(exact.norm())


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS.keys())
@pytest.mark.parametrize("name", ["bolt", "chronos2"])
def test_the_same_quantiles(name: str, inputs: Any, layers: dict[str, Any]) -> None:
    plain = pipeline(name)
    mine = sparse(plain, layers)
    assert len(twell.sparse_layers(mine.inner_model)) == PIPELINES[name][1]
    exact = copy.deepcopy(plain)
    exact.inner_model.double()
    for length in (6, 14):  # at once, and by forecasts of what was forecast
        runs = [forecast(each, inputs, prediction_length=length) for each in (mine, plain, exact)]
        assert_same(runs[0], runs[1], runs[2].double())
        assert len(runs[0]) == len(inputs) and runs[0].shape[-1] == length


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS.keys())
def test_the_same_samples(inputs: Any, layers: dict[str, Any]) -> None:
    """Tokens of a vocabulary, so equal or not; and what the encoder says."""
    plain = pipeline("t5")
    mine = sparse(plain, layers)
    assert len(twell.sparse_layers(mine.inner_model)) == PIPELINES["t5"][1]
    exact = copy.deepcopy(plain)
    exact.inner_model.double()
    assert_same(*(each.embed(inputs)[0] for each in (mine, plain)), exact.embed(inputs)[0])
    for options in ({}, {"top_k": 1}, {"num_samples": 20, "prediction_length": 9}):
        want = forecast(plain, inputs, **options)
        assert torch.equal(forecast(mine, inputs, **options), want)
        assert want.shape[1] == options.get("num_samples", 3)


def test_covariates_and_several_variates() -> None:
    plain = pipeline("chronos2")
    mine = sparse(plain, {})
    exact = copy.deepcopy(plain)
    exact.inner_model.double()
    covariates = {"heat": ONE.flip(0), "rain": ONE.roll(7)}
    told = {"target": ONE, "past_covariates": covariates, "future_covariates": {"heat": ONE[:6]}}
    for inputs in ([told], [torch.stack([ONE, ONE.cos()])]):
        runs = [forecast(each, inputs, prediction_length=6) for each in (mine, plain, exact)]
        assert_same(runs[0], runs[1], runs[2].double())


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_and_the_report(name: str) -> None:
    plain = pipeline(name)
    context = torch.stack([ONE, ONE.sin()])
    sample: dict[str, Any] = {"context": context}
    if name == "t5":
        ids, mask, _ = plain.tokenizer.context_input_transform(context)
        sample = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :20]}
    found = twell.report(plain.inner_model, sample)
    assert len(found.layers) == PIPELINES[name][1] and all(layer.taken for layer in found.layers)
    assert all(layer.tokens > 0 and 0.2 < layer.share < 0.8 for layer in found.layers)
    mine = sparse(plain, {"sample": sample})
    torch.testing.assert_close(forecast(mine, SERIES), forecast(plain, SERIES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bolt", "chronos2"])
def test_another_activation_is_refused_whole(name: str) -> None:
    plain = pipeline(name)
    blocks = [m for m in plain.inner_model.modules() if hasattr(m, "wi")]
    blocks[1].act = torch.nn.SiLU()
    want = forecast(plain, SERIES)
    with pytest.raises(ValueError, match=r"its activation SiLU yields no exact zeros"):
        twell.sparsify(plain.inner_model)
    assert not twell.sparse_layers(plain.inner_model)
    assert torch.equal(forecast(plain, SERIES), want)
