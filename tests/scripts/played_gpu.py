"""Programs that play twell and nvidia-smi for the tests of scripts/gpu_check paper."""

import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMI = 'echo "NVIDIA T 100, 580.1, 81559 MiB, 700.00 W"\n'
FILE = "bench/results/paper-t-100.json"
# Plays twell. What it does at a call is in files beside it: calls has every command line; fail, sleep, short,
# silent, other and partly have words, and a command line with them fails, sleeps, measures fewer layers, writes
# nothing, something else or at first what is not complete. No file no-energy: there is energy.
TWELL = r"""
import json, pathlib, sys, time
here = pathlib.Path(__file__).resolve().parent
line = " ".join(sys.argv[1:])
option = {sys.argv[i]: sys.argv[i + 1] for i in range(1, len(sys.argv) - 1) if sys.argv[i].startswith("--")}
(here / "calls").open("a").write(line + "\n")
told = lambda name: (here / name).is_file() and (here / name).read_text() in line
if told("partly"):
    pathlib.Path(option["--json"]).write_text('{"complete": false, "rounds": [1, 2]}')
if told("fail"):
    print("making the model\r 1 of 3", file=sys.stderr)
    print("twell bench: error: out of memory; use a smaller model, batch or shape", file=sys.stderr)
    sys.exit(1)
if told("sleep"):
    (here / "sleeps").write_text("")
    time.sleep(60)
layers = 38
def refuse_more_than_the_context(tokens):
    context = int((pathlib.Path(option["--model"]) / "context").read_text())
    if tokens > context:
        print(f"twell bench: error: {tokens} tokens, the context has {context}", file=sys.stderr)
        sys.exit(1)
mj = None if (here / "no-energy").is_file() else 1.0
def side(name, us, key="us"):
    return {"name": name, key: us, key + "_min": us, key + "_max": us, "tokens_per_ms": 1e5 / us,
            "energy_mj_per_token": mj and mj * us / 1e3, "peak_bytes": 3e9 * us / 1e3, "micro_batch": 4}
def phase(tokens):
    return {"tokens": tokens, "sides": [side("PyTorch eager", 1300.0), side("dense, joined", 1200.0),
            side("sparse", 1000.0)], "speedup": 1.2, "speedup_eager": 1.3, "dense_impl": "dense, joined"}
if sys.argv[1] == "synth":
    out = pathlib.Path(option["--out"])
    out.mkdir(parents=True)
    (out / "model.safetensors").write_text("weights")
    (out / "context").write_text(option.get("--context", "2048"))
    answer = {"nnz_measured": float(option["--nnz"]), "out": str(out)}
elif sys.argv[1] == "stats":
    assert pathlib.Path(option["--text"]).is_file()
    refuse_more_than_the_context(int(option["--window"]))
    answer = {"nnz_mean": 29.1, "positions": [{"first": 0, "last": 0, "nnz_mean": 80.0}]}
elif sys.argv[2] == "train":
    refuse_more_than_the_context(int(option["--context"]))
    times = {"sparse": 1000.0, "dense": 1250.0, "PyTorch eager": 1300.0}
    sides = [side(name, us, "step_us") for name, us in times.items()]
    context = int(option["--context"])
    answer = {"tokens": context * int(option["--accumulation"]), "context": context, "layers_of_model": layers,
              "layers_run": layers, "sides": sides, "speedup": 1.25, "speedup_eager": 1.3}
else:
    only, batch, prompt = option.get("--only"), int(option["--batch"]), int(option["--prompt-tokens"])
    refuse_more_than_the_context(prompt + (0 if only == "prefill" else int(option["--decode-tokens"])))
    tokens = batch * prompt
    answer = {"layers_of_model": layers, "layers_run": 18 if told("short") else layers, "model": option["--model"],
              "batch": batch, "prompt_tokens": prompt,
              "prefill": phase(tokens) if only == "prefill" else None, "decode": phase(1) if only == "decode" else None,
              "by_layer": {"layers": [], "correlation": -0.9876} if "--by-layer" in sys.argv else None}
if told("other"):
    answer = {"prefill": {"sides": []}}
if not told("silent"):
    pathlib.Path(option["--json"]).write_text(json.dumps(answer))
"""


def put(file, text, interpreter="bash"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/usr/bin/env {interpreter}\n" + text)
    file.chmod(0o755)


def make_tree(tmp_path):
    """In the folder: a copy of the scripts, with a twell and an nvidia-smi that are played."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("bench/results/paper.json", "docs/development.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    put(tmp_path / "bin/nvidia-smi", SMI)
    put(tmp_path / "build/gpu-lm/cli/twell", TWELL, "python3")
    return tmp_path


def command(tree, *arguments):
    environment = {**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
    return dict(args=[tree / "scripts/gpu_check", *arguments], env=environment, text=True)


def paper(tree, *arguments):
    return subprocess.run(**command(tree, "paper", *arguments), capture_output=True, timeout=120)


def tell(tree, name, word=""):
    (tree / "build/gpu-lm/cli" / name).write_text(word)


def calls(tree):
    return (tree / "build/gpu-lm/cli/calls").read_text().splitlines()


def found(tree):
    return json.loads((tree / FILE).read_text())


def outcomes(tree):
    return {step["name"]: step["outcome"] for step in found(tree)["steps"]}


def models(tree):
    folder = tree / "build/paper-scratch"
    return [one.name for one in folder.iterdir()] if folder.is_dir() else []
