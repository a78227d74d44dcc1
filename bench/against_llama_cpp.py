#!/usr/bin/env python3
"""Whole-model prefill and decode against llama.cpp, on the same shape, threads and machine.

    bench/against_llama_cpp.py --shapes 2b llama-3.2-1b --twell build/release/cli/twell \\
        --twell-types bf16 int8 int4 --json llama.json

Makes models of these shapes by `twell synth`, or takes checkpoints that are there (`--models`),
writes their weights as GGUF files, and measures. Each figure comes from processes of its own, which
take turns for `--rounds` rounds: `twell bench model` in bf16, `twell generate` once for each other of
`--twell-types`, made by `twell quantize`, and llama.cpp through `llama-cpp-python` for each of
`--types`. bf16 is
the one with the weights that twell has; the others are made by llama.cpp itself
(`llama_model_quantize`), by its own rules. llama.cpp's Llama has SiLU in
place of ReLU and other positions of the rotary pairs, so its text would be another one; its work
and its time are those of the shape. Where `llama-cpp-python` or `gguf` is not installed (pip
install llama-cpp-python gguf) it says so and skips.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import decoded_bytes  # next to this file
from gguf_files import WEIGHT_TYPES, list_tensors, read_config, write_gguf_files

# What `twell synth` makes. The last is an eighth of Llama-3.1-8B: 4 of its 32 layers and an eighth
# of its vocabulary, so that layers and head keep their shares of a token's bytes.
SHAPES = {
    "0.5b": "--preset 0.5b --nnz 29",
    "2b": "--preset 2b --nnz 24",
    "qwen2-0.5b": "--layers 24 --width 896 --neurons 4864 --heads 14 --kv-heads 2 --vocab 151936"
                  " --nnz 49",
    "llama-3.2-1b": "--layers 16 --width 2048 --neurons 8192 --heads 32 --kv-heads 8"
                    " --vocab 128256 --nnz 82",
    "llama-3.1-8b-eighth": "--layers 4 --width 4096 --neurons 14336 --heads 32 --kv-heads 8"
                           " --vocab 16032 --nnz 143",
}
# What holds twell and PyTorch below it to a set of instructions. llama.cpp has its own from when it
# was compiled.
TIERS = {
    "best": {},
    "avx2": {"TWELL_CPU_TIER": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
PHASES = ("prefill", "decode")
# Printable characters in no order: a tokenizer of bytes makes a token of each.
WORDS = "".join(chr(33 + (i * i + 7 * i) % 89) for i in range(997))
# twell's weights, and what its sparse side is called with them.
# A type of the head stands behind a plus, that of what linear layers read behind a slash.
OWN_TYPES = {"bf16": "twell sparse", "int8": "twell int8", "int4": "twell int4",
             "int4+int4": "twell int4, head too", "int8/int8": "twell int8, inputs too",
             "int4/int8": "twell int4, inputs in int8"}


def weights_of(own_type):
    return own_type.partition("/")[0]


def skip(arguments, reason):
    print(f"skipped: {reason}")
    write(arguments, {"skipped": reason})
    sys.exit(0)


def write(arguments, result):
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")


def say(text):
    print(text, file=sys.stderr, flush=True)


class LlamaCpp:
    """A context of llama.cpp, by its C interface: the Python class computes logits it need not."""

    def __init__(self, path, context, threads):
        import llama_cpp

        self.api = llama_cpp
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp {llama_cpp.__version__} does not load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = options.n_ubatch = context
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.memory = llama_cpp.llama_get_memory(self.context)

    def forget(self):
        self.api.llama_memory_seq_rm(self.memory, 0, 0, -1)

    def vocabulary(self):
        return self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))

    def run(self, tokens):
        """Seconds for these tokens, behind those that the context has; logits of the last one."""
        ids = (self.api.llama_token * len(tokens))(*tokens)
        begin = time.perf_counter()
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(ids, len(tokens))):
            raise SystemExit("llama.cpp could not decode")
        self.api.llama_synchronize(self.context)
        return time.perf_counter() - begin


def quiet_llama_cpp():
    import llama_cpp

    log = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return log  # must outlive all that logs


def system_of_llama_cpp():
    """The instructions that llama.cpp was compiled with."""
    import llama_cpp

    return llama_cpp.llama_print_system_info().decode().strip()


def measure_here(arguments):
    """Tokens a second of llama.cpp with one file, by phase. A process runs this once."""
    log = quiet_llama_cpp()
    prompt, more = arguments.prompt_tokens, arguments.decode_tokens
    llama = LlamaCpp(arguments.measure, prompt + more + 8, arguments.threads)
    vocabulary = llama.vocabulary()
    tokens = [(i * 7919 + 13) % vocabulary for i in range(prompt + more)]
    prefill, decode = [], []
    for repeat in range(arguments.repeats + 1):
        llama.forget()
        took = llama.run(tokens[:prompt])
        one_by_one = [llama.run([token]) for token in tokens[prompt:]]
        if repeat > 0:  # the first touches the memory
            prefill.append(took)
            decode += one_by_one
    print(json.dumps({"prefill": prompt / statistics.median(prefill),
                      "decode": 1 / statistics.median(decode)}))
    del log


def run(command, environment):
    done = subprocess.run([str(part) for part in command], env={**os.environ, **environment},
                          capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        if done.returncode < 0:
            why = f"ended by {signal.Signals(-done.returncode).name}"
        raise SystemExit(f"{' '.join(map(str, command[:4]))}: {why}")
    return done.stdout


def counts(arguments):
    return ["--threads", arguments.threads, "--prompt-tokens", arguments.prompt_tokens,
            "--decode-tokens", arguments.decode_tokens, "--repeats", arguments.repeats]


class Case:
    """One model with one set of instructions: what its sides are, and what they reached."""

    def __init__(self, name, tier, models, config, files, arguments):
        self.name, self.tier, self.models, self.config = name, tier, models, config
        self.files, self.arguments = files, arguments
        named = arguments.llama_library if tier == "avx2" else None
        self.library = {"LLAMA_CPP_LIB_PATH": str(pathlib.Path(named).resolve())} if named else {}
        self.system = run([sys.executable, __file__, "--system"], self.library).strip()
        self.skipped = None
        if tier == "avx2" and "AVX512" in self.system:
            if named:
                raise SystemExit(f"--llama-library {named}: was compiled with AVX-512")
            self.skipped = ("llama.cpp has its instructions from when it was compiled, and this one"
                            " has AVX-512; name a folder with another build by --llama-library")
        self.runs = {}  # side -> phase -> tokens a second of each process
        self.machine = self.nnz = self.text = None

    def add(self, side, speeds):
        phases = self.runs.setdefault(side, {phase: [] for phase in PHASES})
        for phase in PHASES:
            phases[phase].append(speeds[phase])

    def measure_codes(self, own_type, place):
        """By one text: a benchmark of codes would load their numbers too, for its dense side."""
        report = pathlib.Path(place) / "codes.json"
        model, activations = self.models[own_type], own_type.partition("/")[2] or "exact"

        def generate(text, tokens):
            run([self.arguments.twell, "generate", "--model", model, "--path", "sparse", "--prompt",
                 text, "--max-tokens", tokens, "--temperature", 0, "--activations", activations,
                 "--threads", self.arguments.threads, "--json", report], TIERS[self.tier])
            return json.loads(report.read_text())

        if self.text is None:
            wanted = self.arguments.prompt_tokens
            text = (WORDS * (1 + 12 * wanted // len(WORDS)))[:wanted]
            self.text = text[: wanted * len(text) // generate(text, 1)["prompt_tokens"]]
        result = generate(self.text, self.arguments.decode_tokens + 1)
        self.machine = result["machine"]
        self.add(OWN_TYPES[own_type], {
            phase: result[f"{phase}_tokens_per_s"] for phase in PHASES})
        if self.nnz is None:
            words = pathlib.Path(place) / "words.txt"
            words.write_text(self.text)
            run([self.arguments.twell, "stats", "--model", model, "--text", words, "--json", report],
                TIERS[self.tier])
            self.nnz = json.loads(report.read_text())["nnz_mean"]

    def measure_twell(self, own_type, place):
        if own_type != "bf16":
            self.measure_codes(own_type, place)
            return
        report = pathlib.Path(place) / "twell.json"
        run([self.arguments.twell, "bench", "model", "--model", self.models[own_type],
             *counts(self.arguments), "--seconds", self.arguments.seconds, "--json", report],
            TIERS[self.tier])
        result = json.loads(report.read_text())
        self.machine, self.nnz = result["machine"], result["nnz_mean"]
        for side in ("sparse", "dense"):
            self.add(f"twell {side}", {phase: result[phase][f"{side}_tokens_per_s"]
                                       for phase in PHASES})

    def measure_llama_cpp(self, weight_type):
        self.add(f"llama.cpp {weight_type}", json.loads(
            run([sys.executable, __file__, "--measure", self.files[weight_type],
                 *counts(self.arguments)], self.library)))

    def measure_round(self, number, place):
        """All sides, once. Every second round the other way round: no side always follows one."""
        sides = [*(("twell", own) for own in self.models),
                 *(("llama.cpp", kind) for kind in self.files)]
        for side, kind in sides if number % 2 == 0 else sides[::-1]:
            say(f"{self.name}, {self.tier}, round {number + 1} of {self.arguments.rounds}: "
                f"{side} {kind}")
            if side == "twell":
                self.measure_twell(kind, place)
            else:
                self.measure_llama_cpp(kind)

    def weights_read(self, place):
        """Side -> part or type -> bytes of weights that a decoded token reads."""
        read = {}
        if "bf16" in self.models:
            report = pathlib.Path(place) / "explain.json"
            run([self.arguments.twell, "explain", "--model", self.models["bf16"], "--threads",
                 self.arguments.threads, "--tokens", 1, "--no-measure", "--json", report],
                TIERS[self.tier])
            gates = [decoded_bytes.gate_of(line)
                     for line in json.loads(report.read_text())["layers"]]
            read["twell sparse"] = decoded_bytes.of_twell(self.config, gates, self.nnz)
            read["twell dense"] = decoded_bytes.of_dense(self.config)
        for own in self.models:
            if own != "bf16":
                read[OWN_TYPES[own]] = decoded_bytes.of_codes(weights_of(own), self.config,
                                                              self.nnz)
        for weight_type, file in self.files.items():
            read[f"llama.cpp {weight_type}"] = decoded_bytes.of_llama_cpp(list_tensors(file))
        return read

    def report(self, place):
        context = self.arguments.prompt_tokens + self.arguments.decode_tokens // 2
        sides = {}
        for side, weights in self.weights_read(place).items():
            # llama.cpp's is f16, twell's has the type of the model.
            element = 2 if side.startswith("llama.cpp") else decoded_bytes.element_size(self.config)
            cache = decoded_bytes.kv_cache(self.config, context, element)
            total = cache + sum(weights.values())
            sides[side] = {"weight_bytes": weights, "kv_cache_bytes": cache,
                           "bytes_a_token": total}
            for phase, speeds in self.runs[side].items():
                middle = statistics.median(speeds)
                sides[side][phase] = {"tokens_per_s": middle, "runs_tokens_per_s": speeds}
                for own in self.models:
                    ours = statistics.median(self.runs[OWN_TYPES[own]][phase])
                    sides[side][phase][f"{ratio_of(own)}_over_this"] = ours / middle
            sides[side]["decode"]["gb_per_s"] = (
                total * sides[side]["decode"]["tokens_per_s"] / 1e9)
        return {"llama_cpp_system": self.system, "machine": self.machine, "nnz_mean": self.nnz,
                "context": context, "sides": sides}


def table(rows):
    """Columns as wide as they must be; the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def ratio_of(own_type):
    return OWN_TYPES[own_type].removeprefix("twell ")


def table_of(report):
    own = [ratio_of(t) for t, side in OWN_TYPES.items() if side in report["sides"]]
    rows = [["", *(cell for phase in PHASES
                   for cell in (f"{phase} tok/s", *(f"{name}/this" for name in own))),
             "MB a token", "GB/s"]]
    for side, about in report["sides"].items():
        cells = [side]
        for phase in PHASES:
            cells.append(f"{about[phase]['tokens_per_s']:.1f}")
            cells += ["" if side == f"twell {name}" else f"{about[phase][f'{name}_over_this']:.2f}x"
                      for name in own]
        rows.append([*cells, f"{about['bytes_a_token'] / 1e6:.1f}",
                     f"{about['decode']['gb_per_s']:.1f}"])
    return table(rows)


def make_model(shape, place, arguments):
    model = pathlib.Path(place) / "model"
    if not model.exists():
        part = pathlib.Path(place) / "model.part"
        shutil.rmtree(part, ignore_errors=True)
        run([arguments.twell, "synth", *SHAPES[shape].split(), "--threads", arguments.threads,
             "--out", part], {})
        os.replace(part, model)
    return model


def models_of(model, place, arguments):
    """twell's types -> directories; what is quantised already stays."""
    models = {}
    for own in arguments.twell_types:
        weights = weights_of(own)
        models[own] = model if own == "bf16" else pathlib.Path(place) / f"model-{weights}"
        if own != "bf16" and not models[own].exists():
            kind, _, head = weights.partition("+")
            run([arguments.twell, "quantize", "--model", model, "--type", kind, "--head",
                 head or "int8", "--threads", arguments.threads, "--out", models[own]], {})
    return models


def measure_model(name, model, arguments):
    """Report by tier. `model` is None where the name is that of a shape."""
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = place
        if arguments.keep and model is None:
            kept = pathlib.Path(arguments.keep) / name
            kept.mkdir(parents=True, exist_ok=True)
        if model is None:
            say(f"{name}: making the model")
            model = make_model(name, kept, arguments)
        config = read_config(model)
        say(f"{name}: writing GGUF files")
        files = write_gguf_files(model, config, arguments.types, kept, arguments.threads)
        models = models_of(model, kept, arguments)
        cases = [Case(name, tier, models, config, files, arguments) for tier in arguments.tiers]
        for number in range(arguments.rounds):
            for case in cases:
                if not case.skipped:
                    case.measure_round(number, place)
        reports = {}
        for case in cases:
            if case.skipped:
                reports[case.tier] = {"skipped": case.skipped}
                print(f"{name}, {case.tier}: skipped: {case.skipped}\n")
                continue
            reports[case.tier] = report = case.report(place)
            print(f"{name}, {report['machine']['cpu_tier']}, {arguments.threads} threads, context "
                  f"{report['context']}, {report['nnz_mean']:.1f} of {config['intermediate_size']} "
                  f"neurons fire\n{table_of(report)}\n", flush=True)
        return reports


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[], metavar="NAME",
                        help="models that twell synth makes: " + ", ".join(SHAPES))
    parser.add_argument("--models", nargs="+", default=[], metavar="DIR",
                        help="Hugging Face directories of Llamas")
    parser.add_argument("--twell", default="twell", help="the command line's program")
    parser.add_argument("--twell-types", nargs="+", choices=OWN_TYPES, default=["bf16"],
                        help="of twell's weights")
    parser.add_argument("--types", nargs="+", choices=WEIGHT_TYPES, default=list(WEIGHT_TYPES),
                        help="of llama.cpp's weights")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=["best"],
                        help="sets of instructions: the machine's best, or AVX2 on both sides")
    parser.add_argument("--llama-library", metavar="DIR",
                        help="for avx2: libllama.so and what it needs, without AVX-512")
    parser.add_argument("--keep", metavar="DIR",
                        help="keep the shapes' models and GGUF files here, and use those that are")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each side")
    parser.add_argument("--repeats", type=int, default=1, help="timed runs in a process")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run of twell")
    parser.add_argument("--json", help="also write the results here")
    # What a process of its own does:
    parser.add_argument("--measure", metavar="GGUF", help=argparse.SUPPRESS)
    parser.add_argument("--system", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not (arguments.shapes or arguments.models or arguments.measure or arguments.system):
        parser.error("give --shapes or --models")
    names = [*arguments.shapes, *arguments.models]
    if len(set(names)) < len(names):
        parser.error("a model is named twice")
    return arguments


def main():
    arguments = parse()
    try:
        import gguf  # noqa: F401
        import llama_cpp
    except ImportError as missing:
        skip(arguments, f"{missing}; pip install llama-cpp-python gguf")
    if arguments.system:
        print(system_of_llama_cpp())
        return
    if arguments.measure:
        measure_here(arguments)
        return

    log = quiet_llama_cpp()
    result = {"llama_cpp_version": llama_cpp.__version__, "threads": arguments.threads,
              "rounds": arguments.rounds, "prompt_tokens": arguments.prompt_tokens,
              "decode_tokens": arguments.decode_tokens, "models": {}}
    for name, model in [*((name, None) for name in arguments.shapes),
                        *((name, name) for name in arguments.models)]:
        result["models"][name] = measure_model(name, model, arguments)
        write(arguments, result)  # a long run that is stopped keeps what it has
    del log


if __name__ == "__main__":
    main()
