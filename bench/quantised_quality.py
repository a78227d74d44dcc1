#!/usr/bin/env python3
"""What quantised weights cost in quality: perplexity and multiple-choice tasks of a model as it is and as
`twell quantize` writes it, and perplexities of llama.cpp's types beside them.

    bench/quantised_quality.py --model DIR --twell build/release/cli/twell --text TEXT \\
        --tasks arc=arc_easy_test.jsonl piqa=piqa.jsonl --limit 200 --out DIR

The model is a Llama with a tokenizer.json. twell's sides are evaluated in f32, so that what differs is
the weights. DIR/quality.json and quality.md are the outcome. Where `llama-cpp-python`, `gguf` or
`tokenizers` is not installed, llama.cpp's sides are left out, with a word.
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from gguf_files import WEIGHT_TYPES, read_config, write_gguf_files  # next to this file

OWN = ("as it is", "int8", "int4", "int4+int4")


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"quantised_quality: {' '.join(map(str, command))}\n{done.stderr}")


def evaluate(arguments, model, task, data, limit, place):
    out = place / "eval.json"
    run([arguments.twell, "eval", "--model", model, "--task", task, "--data", data, "--limit", limit,
         "--dtype", "f32", "--threads", arguments.threads, "--json", out,
         *(["--window", arguments.window] if task == "perplexity" else [])])  # fmt: skip
    return json.loads(out.read_text())


def of_twell(arguments, kind, place):
    """Bytes of the directory's tensors, perplexity and accuracies."""
    model, size = arguments.model, None
    if kind != OWN[0]:
        model = place / f"model-{kind}"
        bits, _, head = kind.partition("+")
        run([arguments.twell, "quantize", "--model", arguments.model, "--type", bits, "--head",
             head or "int8", "--out", model, "--json", place / "quantize.json"])  # fmt: skip
        size = json.loads((place / "quantize.json").read_text())["bytes_after"]
    else:
        size = sum(f.stat().st_size for f in pathlib.Path(model).glob("*.safetensors"))
    found = evaluate(arguments, model, "perplexity", arguments.text, arguments.tokens, place)
    report = {"bytes": size, "perplexity": found["perplexity"], "tasks": {}}
    for task in arguments.tasks:
        name, _, data = task.partition("=")
        accuracy = evaluate(arguments, model, name, data, arguments.limit, place)
        report["tasks"][pathlib.Path(data).stem] = {
            k: accuracy[k] for k in ("accuracy", "items") if k in accuracy}
        say(f"{kind}: {pathlib.Path(data).stem} {report['tasks'][pathlib.Path(data).stem]}")
    return report


def of_llama_cpp(arguments, windows, file):
    """Perplexity of the windows, each begun anew."""
    import llama_cpp as api
    import numpy as np

    log = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(log, ctypes.c_void_p(0))
    model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
    options = api.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = arguments.window
    options.n_threads = options.n_threads_batch = arguments.threads
    context = api.llama_init_from_model(model, options)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    loss = count = 0
    for ids in windows:
        batch = api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        api.llama_memory_seq_rm(api.llama_get_memory(context), 0, 0, -1)
        if api.llama_decode(context, batch):
            sys.exit("quantised_quality: llama.cpp could not decode")
        logits = np.ctypeslib.as_array(api.llama_get_logits(context), (len(ids), vocabulary))
        logits = logits[:-1].astype(np.float64)
        largest = logits.max(1)
        total = largest + np.log(np.exp(logits - largest[:, None]).sum(1))
        loss += float((total - logits[np.arange(len(ids) - 1), ids[1:]]).sum())
        count += len(ids) - 1
        api.llama_batch_free(batch)
    api.llama_free(context)
    api.llama_model_free(model)
    return math.exp(loss / count)


def windows_of(arguments):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pathlib.Path(arguments.model) / "tokenizer.json"))
    ids = tokenizer.encode(pathlib.Path(arguments.text).read_text()).ids[: arguments.tokens]
    parts = [ids[i : i + arguments.window] for i in range(0, len(ids), arguments.window)]
    return [part for part in parts if len(part) > 1]


def say(text):
    print(text, file=sys.stderr, flush=True)


def page(report):
    tasks = list(report["twell"][OWN[0]]["tasks"])
    error = 100 * 0.5 / math.sqrt(max(1, report["limit"]))
    of_tasks = [f"Accuracies in % on the first {report['limit']} items of each task; their standard error",
                f"is about {error:.1f}."] if tasks else []  # fmt: skip
    lines = [
        "# Quality of quantised weights", "",
        "Written by `bench/quantised_quality.py`. " + report["about"], "",
        f"{report['model']}: perplexity of {report['tokens']} tokens in windows of {report['window']}.",
        *of_tasks, "",
        "| " + " | ".join(["twell", "MB", "perplexity", *tasks]) + " |",
        "|" + " --- |" * (3 + len(tasks)),
    ]  # fmt: skip
    for kind, about in report["twell"].items():
        cells = [f"{100 * about['tasks'][t]['accuracy']:.1f}" for t in tasks]
        lines.append("| " + " | ".join([kind, f"{about['bytes'] / 1e6:.0f}",
                                        f"{about['perplexity']:.3f}", *cells]) + " |")  # fmt: skip
    if report["llama.cpp"]:
        lines += ["", "The same text by llama.cpp, without a token in front of a window:", "",
                  "| llama.cpp | MB | perplexity | over bf16 |", "| --- | --- | --- | --- |"]  # fmt: skip
        base = report["llama.cpp"]["bf16"]["perplexity"]
        for kind, about in report["llama.cpp"].items():
            lines.append(f"| {kind} | {about['bytes'] / 1e6:.0f} | {about['perplexity']:.3f} | "
                         f"{about['perplexity'] / base:.4f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--twell", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=32768, help="of the text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--tasks", nargs="*", default=[], metavar="TASK=FILE")
    parser.add_argument("--limit", type=int, default=200, help="items of a task")
    parser.add_argument("--types", nargs="+", default=OWN[1:], choices=OWN[1:])
    parser.add_argument("--llama-types", nargs="*", default=["q8_0", "q4_0", "q4_k_m"],
                        choices=WEIGHT_TYPES)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--about", default="", help="a sentence on the model's weights")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    report = {"model": arguments.model.name, "about": arguments.about, "tokens": arguments.tokens,
              "window": arguments.window, "limit": arguments.limit, "machine": platform.machine(),
              "twell": {}, "llama.cpp": {}}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for kind in (OWN[0], *arguments.types):
            report["twell"][kind] = of_twell(arguments, kind, place)
            say(f"{kind}: perplexity {report['twell'][kind]['perplexity']:.3f}")
        try:
            windows = windows_of(arguments) if arguments.llama_types else []
            kinds = ["bf16", *arguments.llama_types] if windows else []
            files = write_gguf_files(arguments.model, read_config(arguments.model), kinds, place,
                                     arguments.threads, pairs=True) if windows else {}
            for kind in kinds:
                perplexity = of_llama_cpp(arguments, windows, files[kind])
                report["llama.cpp"][kind] = {
                    "bytes": files[kind].stat().st_size, "perplexity": perplexity}
                say(f"llama.cpp {kind}: perplexity {perplexity:.3f}")
        except ImportError as missing:
            say(f"llama.cpp's sides are left out: {missing}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, text in (("json", json.dumps(report, indent=1) + "\n"), ("md", page(report))):
        part = arguments.out / f"quality.{name}.part"
        part.write_text(text)
        part.replace(arguments.out / f"quality.{name}")


if __name__ == "__main__":
    main()
