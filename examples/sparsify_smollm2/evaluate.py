"""Perplexity, seven tasks and activity of models, side by side.

    python evaluate.py --twell twell --data DATA --limit 200 --out DIR \\
        before=MODEL swapped=MODEL+relu after=OUT/relu

NAME=MODEL+relu is MODEL with relu instead of its activation, MODEL+drelu has one on up too.
DIR/models.json and models.md are the outcome.
Everything is computed in f32, so that what differs is the models.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TASKS = {
    "arc": "arc_easy_test.jsonl",
    "hellaswag": "hellaswag_val_full.txt",
    "openbookqa": "openbook_qa.jsonl",
    "piqa": "piqa.jsonl",
    "winogrande": "winogrande.jsonl",
    "commonsenseqa": "commonsense_qa_dev_rand_split.jsonl",
    "lambada": "lambada_openai.jsonl",
}


def run(command: list[object], result: pathlib.Path) -> dict:
    done = subprocess.run(
        [*map(str, command), "--json", str(result)], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"evaluate.py: {' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(result.read_text())


def with_act(model: pathlib.Path, act: str, place: pathlib.Path) -> pathlib.Path:
    place.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            os.symlink(file.resolve(), place / file.name)
    config = json.loads((model / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"hidden_act": act}))
    return place


def evaluate(given: argparse.Namespace, model: pathlib.Path, place: pathlib.Path) -> dict:
    data, out = given.data, place / "out.json"
    common = ["--model", model, "--dtype", "f32", "--threads", given.threads]
    text = data / "corpora" / "wikitext2_valid.txt"
    of_text = [given.twell, "eval", "--task", "perplexity", "--data", text, "--window", 512]
    found: dict = {"tasks": {}}
    found["perplexity"] = run([*of_text, "--limit", given.tokens, *common], out)["perplexity"]
    for task, file in TASKS.items():
        command = [given.twell, "eval", "--task", task, "--data", data / "eval" / file]
        result = run([*command, "--limit", given.limit, *common], out)
        found["tasks"][task] = {
            k: v for k, v in result.items() if k.startswith("accuracy") or k == "items"
        }
    command = [given.twell, "stats", "--text", text, "--max-tokens", 4096, "--window", 512]
    found["layers"] = [layer["nnz_mean"] for layer in run([*command, *common], out)["layers"]]
    return found


def table(models: dict[str, dict]) -> str:
    head = ["model", "perplexity", *TASKS, "fire"]
    rows = [head, ["---"] * len(head)]
    for name, found in models.items():
        accuracies = [f"{100 * found['tasks'][task]['accuracy']:.1f}" for task in TASKS]
        fire = sum(found["layers"]) / len(found["layers"])
        rows.append([name, f"{found['perplexity']:.2f}", *accuracies, f"{fire:.0f}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--twell", required=True)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=200, help="items of a task; 0: all")
    parser.add_argument("--tokens", type=int, default=32768, help="of the text; 0: all")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict] = {}
    for argument in given.models:
        name, _, model = argument.partition("=")
        with tempfile.TemporaryDirectory() as scratch:
            place = pathlib.Path(scratch)
            path, plus, act = model.rpartition("+")
            if plus and act in ("relu", "drelu"):
                directory = with_act(pathlib.Path(path), act, place / act)
            else:
                directory = pathlib.Path(model)
            found[name] = evaluate(given, directory, place)
        print(table({name: found[name]}).splitlines()[-1], flush=True)
        (given.out / "models.json").write_text(json.dumps(found, indent=1) + "\n")
        (given.out / "models.md").write_text(table(found))


if __name__ == "__main__":
    main()
