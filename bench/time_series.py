#!/usr/bin/env python3
"""Pipelines of chronos-forecasting with and without sparse layers, in the same process, in turns.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/time_series.py --threads 2 --out DIR

The models have the shapes of chronos-bolt-base and chronos-t5-base and random weights. How many neurons
fire is made, not learned: what enters the first block shares a direction, which rows of each wi oppose so
far that each neuron fires for its share of 64 series; the shares are lognormal. At --share 0.5 weights stay
as they are drawn, and half of the neurons fire. `fire` is counted on other series. Sparse layers are frozen
with the 64 series, and run `auto`.

Times are medians of whole calls of `predict`, with quartiles. Bolt forecasts its 64 steps at once. T5
samples them one after the other: 20 paths of one series, or one path of each where there are more; its
context ends at 512. `feed-forward` and `patches` are the shares of the plain model's time in its
feed-forward layers and in the residual blocks around them. DIR/series.json and series.md are the outcome.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import twell
from measuring import described, in_turns, machine, over, speed, spread, table, write
from torch import Tensor, nn

MODELS = ("bolt", "t5")
T5_CONTEXT = 512
STEPS, VOCABULARY = 64, 4096


def pipeline_of(model: str, width: int, layers: int, context: int) -> Any:
    try:
        import chronos
        from chronos import chronos_bolt
        from transformers import T5Config, T5ForConditionalGeneration
    except ImportError as error:
        sys.exit(f"time_series.py: {error}; pip install chronos-forecasting transformers")
    sizes: dict[str, Any] = {
        "d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_layers": layers, "num_heads": width // 64,
        "feed_forward_proj": "relu", "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    if model == "bolt":
        says: dict[str, Any] = {
            "context_length": context, "prediction_length": STEPS, "input_patch_size": 16,
            "input_patch_stride": 16, "quantiles": [n / 10 for n in range(1, 10)], "use_reg_token": True,
        }  # fmt: skip
        config = T5Config(**sizes, chronos_config=says)
        return chronos.ChronosBoltPipeline(chronos_bolt.ChronosBoltModelForForecasting(config).eval())
    says = {
        "tokenizer_class": "MeanScaleUniformBins", "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
        "context_length": context, "prediction_length": STEPS, "n_tokens": VOCABULARY, "n_special_tokens": 2,
        "pad_token_id": 0, "eos_token_id": 1, "use_eos_token": True, "model_type": "seq2seq",
        "num_samples": 20, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    }  # fmt: skip
    inner = chronos.chronos.ChronosModel(chronos.ChronosConfig(**says), T5ForConditionalGeneration(T5Config(**sizes)))
    return chronos.ChronosPipeline(inner.config.create_tokenizer(), inner.eval())


def series(count: int, length: int) -> Tensor:
    """Noise around waves of a day."""
    time_of = torch.arange(length) * (2 * torch.pi / 24)
    return 5 + torch.randn(count, 1) * (time_of + 6 * torch.rand(count, 1)).sin() + 0.5 * torch.randn(count, length)


def sample_of(pipeline: Any, context: Tensor) -> dict[str, Any]:
    """Arguments of the model itself."""
    if not hasattr(pipeline, "tokenizer"):
        return {"context": context}
    ids, mask, _ = pipeline.tokenizer.context_input_transform(context)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :STEPS]}


@torch.no_grad()
def set_share(pipeline: Any, share: float, sample: dict[str, Any]) -> None:
    """Each block is made when the sample reaches it."""
    model = pipeline.inner_model
    torch.manual_seed(6)
    direction = nn.functional.normalize(torch.randn(model.config.d_model), dim=0)
    model.shared.weight.add_(4 * model.shared.weight.std() * direction * len(direction) ** 0.5)
    if hasattr(model, "input_patch_embedding"):
        model.input_patch_embedding.output_layer.bias.add_(4 * direction * len(direction) ** 0.5)

    def oppose(wi: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].flatten(0, -2)[:4096].float()
        along = nn.functional.normalize(x.mean(0), dim=0)
        shares = torch.empty(len(wi.weight)).log_normal_(0, 1.2)
        for _ in range(20):  # what is cut off goes to the others
            shares = (shares * share / shares.mean()).clamp(max=0.9)
        sides = (x @ wi.weight.float().t() / (x @ along)[:, None]).sort(0).values
        places = ((1 - shares) * len(x)).long().clamp(max=len(x) - 1)
        wi.weight.sub_(sides.gather(0, places[None]).t() * along)

    hooks = [block.wi.register_forward_pre_hook(oppose) for block in feed_forward(model)]
    model(**sample)
    for hook in hooks:
        hook.remove()


def feed_forward(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "wi")]


@contextmanager
def timed(modules: list[nn.Module], took: list[float]) -> Iterator[None]:
    def before(*_: Any) -> None:
        took.append(-time.perf_counter())

    def after(*_: Any) -> None:
        took[-1] += time.perf_counter()

    hooks = [m.register_forward_pre_hook(before) for m in modules]
    hooks += [m.register_forward_hook(after) for m in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def parts_of_time(pipeline: Any, predict: Any, context: Tensor) -> dict[str, float]:
    """Shares of a call's time; the blocks of patches are those with a residual layer."""
    model = pipeline.inner_model
    found = {}
    patches = [m for m in model.modules() if hasattr(m, "residual_layer")]
    for name, modules in {"feed-forward": feed_forward(model), "patches": patches}.items():
        took: list[float] = []
        with timed(modules, took):
            begin = time.perf_counter()
            predict(context)
            found[name] = sum(took) / (time.perf_counter() - begin)
    return found


def measured(model: str, plain: Any, share: float, context: int, options: Any) -> list[dict[str, Any]]:
    torch.manual_seed(8)
    sample = sample_of(plain, series(64, min(context, 512)))
    if share < 0.5:
        set_share(plain, share, sample)
    plain.inner_model.to(getattr(torch, options.dtype))
    mine = copy.deepcopy(plain)
    twell.sparsify(mine.inner_model, sample=sample)
    report = twell.report(plain.inner_model, sample_of(plain, series(64, min(context, 512))))
    fires = sum(layer.share for layer in report.layers) / len(report.layers)
    found = []
    for count in options.series:
        pool = [series(count, context) for _ in range(4)]
        more = {"num_samples": 20 if count == 1 else 1} if model == "t5" else {}

        def call(pipeline: Any, more: Any = more) -> Any:
            def predict(x: Tensor) -> Tensor:
                torch.manual_seed(9)
                return pipeline.predict(x, prediction_length=options.steps, **more)

            return predict

        calls = {"plain": call(plain), "twell": call(mine)}
        want, got = (f(pool[0]) for f in calls.values())
        apart = float((got - want).norm() / want.norm())
        times = in_turns({name: over(pool, f) for name, f in calls.items()}, options.seconds)
        parts = parts_of_time(plain, calls["plain"], pool[0])
        found.append({
            "model": model, "share": share, "fires": fires, "context": context, "series": count,
            "us": times, "parts": parts, "apart": apart,
        })  # fmt: skip
        print(
            f"{model}, {100 * fires:.1f} % fire, {count} of {context}: {speed(times, 'twell'):.2f}x, "
            + ", ".join(f"{n} {spread(t)}" for n, t in times.items()) + f", {apart:.1e} apart",
            file=sys.stderr,
        )  # fmt: skip
    return found


def page(result: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{found['model']}", f"{100 * found['fires']:.1f} %", str(found["context"]), str(found["series"]),
            *(spread(t) for t in found["us"].values()), f"{speed(found['us'], 'twell'):.2f}",
            *(f"{100 * part:.1f} %" for part in found["parts"].values()), f"{found['apart']:.0e}",
        ]
        for found in result["grid"]
    ]  # fmt: skip
    head = ["model", "fire", "context", "series", "plain", "twell", "speedup", "feed-forward", "patches", "apart"]
    return [
        "# Pipelines of time series", "",
        f"Written by `bench/time_series.py`, whose first lines say what is measured. {described(result['machine'])}",
        f"{result['dtype']}, D = {result['width']}, {result['layers']} blocks in each stack, {result['steps']} steps.",
        "Apart: the norm of the forecasts' difference over that of the forecasts.", "",
        *table(head, rows),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--share", type=float, nargs="+", default=[0.02, 0.1, 0.5])
    parser.add_argument("--context", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--series", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64; H is 4 times as many")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, default=10, help="of each call and case")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if not all(0 < share <= 0.5 for share in options.share):
        parser.error("--share: expected more than 0 and at most 0.5")
    grid = []
    for model in options.model:
        for share in options.share:
            for context in options.context:
                if model == "t5" and context > T5_CONTEXT:
                    continue
                torch.manual_seed(7)
                plain = pipeline_of(model, options.width, options.layers, context)
                grid += measured(model, plain, share, context, options)
    sizes = {name: getattr(options, name) for name in ("width", "layers", "steps", "dtype")}
    result = {"machine": machine(), **sizes, "grid": grid}
    write(options.out, "series", result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
