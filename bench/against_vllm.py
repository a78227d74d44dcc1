#!/usr/bin/env python3
"""vLLM with twell's plug-in against vLLM's own dense layers: tokens per second, in pairs of runs.

    python bench/against_vllm.py --model DIR [--rounds N] [--json FILE]

DIR is a Llama or Qwen2 with ReLU, as `twell synth` writes one. If `twell prepare` looked at it, the same
weights without what it found are a third side. All engines are loaded and take turns, so that they see
the same machine; a ratio is that of neighbouring runs. Needs vLLM and twell installed in the environment
(docs/pytorch.md), and memory for an engine a side.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# name: requests at once, tokens of a prompt, tokens to write
CASES = {
    "1 request": (1, 32, 48),
    "8 requests": (8, 32, 48),
    "32 requests": (32, 32, 48),
    "prompts, 8 of 256 tokens": (8, 256, 1),
}
PREPARED = "twell_prepared.json"


def serve(model: str, ranks: int) -> None:
    """An engine that answers lines "requests tokens new seed" with "seconds, texts"."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM says is no answer
    from vllm import LLM, SamplingParams

    engine = LLM(
        model, dtype="bfloat16", tensor_parallel_size=ranks, max_model_len=512, max_num_seqs=32,
        kv_cache_memory_bytes=1 << 29, enable_prefix_caching=False, skip_tokenizer_init=True,
        disable_log_stats=True,
    )  # fmt: skip
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    print("ready", file=answers)
    for line in sys.stdin:
        requests, tokens, new, seed = map(int, line.split())
        draw = random.Random(seed)
        prompts = [
            {"prompt_token_ids": [draw.randrange(vocabulary) for _ in range(tokens)]}
            for _ in range(requests)
        ]
        sampling = SamplingParams(
            temperature=0, max_tokens=new, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        results = engine.generate(prompts, sampling, use_tqdm=False)
        took = time.perf_counter() - start
        texts = [list(result.outputs[0].token_ids) for result in results]
        print(json.dumps([took, texts]), file=answers)


class Engine:
    def __init__(self, kind: str, model: str, ranks: int) -> None:
        command = [sys.executable, __file__, "--serve", "--model", model, "--ranks", str(ranks)]
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // ranks
        bind = "|".join(
            ",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks)
        )
        # A pipe that nobody reads would stop the engine.
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the engine)
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "TWELL_VLLM": kind, "VLLM_CPU_OMP_THREADS_BIND": bind,
                 "VLLM_LOGGING_LEVEL": "ERROR"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        if self.process.stdout.readline() != "ready\n":
            self.process.wait()
            log.seek(0)
            said = log.read().strip().splitlines()
            sys.exit(f"against_vllm: error: vLLM did not start: {said[-1] if said else 'no word'}")

    def ask(self, requests: int, tokens: int, new: int, seed: int) -> tuple[float, list[list[int]]]:
        print(requests, tokens, new, seed, file=self.process.stdin, flush=True)
        took, texts = json.loads(self.process.stdout.readline())
        return took, texts


def measure(engines: dict[str, Engine], rounds: int) -> dict[str, dict]:
    for engine in engines.values():  # compiles, and fills caches
        for requests, tokens, new in CASES.values():
            engine.ask(requests, tokens, min(new, 4), 0)
    sides = list(engines)
    out = {case: {"tokens_per_s": {side: [] for side in sides}, "ratio": {}, "ratio_quartiles": {},
                  "same_texts": dict.fromkeys(sides, 0), "texts": 0} for case in CASES}  # fmt: skip
    for number in range(rounds):
        for case, (requests, tokens, new) in CASES.items():
            count = requests * (new if new > 1 else tokens)
            texts = {}
            for side in sides if number % 2 else reversed(sides):
                took, texts[side] = engines[side].ask(requests, tokens, new, 100 * number + 1)
                out[case]["tokens_per_s"][side].append(count / took)
            for side in sides:
                same = sum(a == b for a, b in zip(texts["dense"], texts[side]))
                out[case]["same_texts"][side] += same
            out[case]["texts"] += requests
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for result in out.values():
        speeds = result["tokens_per_s"]
        for side in sides[1:]:
            ratios = [s / d for s, d in zip(speeds[side], speeds["dense"])]
            result["ratio"][side] = statistics.median(ratios)
            result["ratio_quartiles"][side] = statistics.quantiles(ratios, n=4)[::2]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="against_vllm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--model", required=True, help="a directory with a ReLU model")
    parser.add_argument("--rounds", type=int, default=11, help="pairs of runs of each case")
    parser.add_argument("--ranks", type=int, default=1, help="of tensor parallelism")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model, options.ranks)
        return
    if options.rounds < 2:
        parser.error("--rounds: expected 2 or more")
    model = Path(options.model)
    with tempfile.TemporaryDirectory() as folder:
        sides = {"dense": ("dense", model), "sparse": ("sparse", model)}
        if (model / PREPARED).exists():
            for file in model.iterdir():
                if file.name != PREPARED:
                    (Path(folder) / file.name).symlink_to(file.resolve())
            sides = {"dense": ("dense", model), "not prepared": ("sparse", Path(folder)),
                     "prepared": ("sparse", model)}  # fmt: skip
        engines = {side: Engine(kind, str(of), options.ranks) for side, (kind, of) in sides.items()}
        results = measure(engines, options.rounds)
    print(f"{'':26} {'dense, tokens/s':>16}  {'side':12} {'tokens/s':>8} {'ratio':>7}  quartiles   same texts")
    for case, r in results.items():
        dense = f"{case:26} {statistics.median(r['tokens_per_s']['dense']):16.1f}"
        for side, ratio in r["ratio"].items():
            low, high = r["ratio_quartiles"][side]
            speed = statistics.median(r["tokens_per_s"][side])
            print(f"{dense:43}  {side:12} {speed:8.1f} {ratio:6.2f}x  {low:.2f}-{high:.2f}   "
                  f"{r['same_texts'][side]} of {r['texts']}")  # fmt: skip
            dense = ""
    if options.json:
        part = options.json.with_name(options.json.name + ".part")
        part.write_text(json.dumps({"ranks": options.ranks, "cases": results}, indent=1) + "\n")
        part.replace(options.json)
    for engine in engines.values():
        engine.process.stdin.close()
        engine.process.wait()


if __name__ == "__main__":
    main()
