"""The command line on a GPU beside the same commands on the CPU, on a small synthetic model.

    gpu_engine.py TWELL RESULTS_DIR TEXT [DEVICE]

Prints what was compared, writes it to RESULTS_DIR/engine.json step by step, so that what was found before a limit
or a failure is there, and fails where something differs by more than it may.
DEVICE is cuda; with cpu the script itself can be tried where no GPU is.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

# A recorded step is recorded anew every 256: these texts meet that twice.
LONG, SHORT = 600, 48


def equal_from_start(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class Runner:
    def __init__(self, program: str, directory: pathlib.Path) -> None:
        self.program, self.directory, self.calls = program, directory, 0

    def __call__(self, *arguments: object) -> dict:
        self.calls += 1
        out = self.directory / f"{self.calls}.json"
        command = [self.program, *map(str, arguments), "--json", str(out)]
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def main() -> int:
    program, results, text = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    gpu = sys.argv[4] if len(sys.argv) > 4 else "cuda"
    found: dict[str, object] = {}
    failed: list[str] = []

    def note(name: str, value: object) -> None:
        found[name] = value
        new = results / "engine.json.new"
        new.write_text(json.dumps(found, indent=1) + "\n")
        os.replace(new, results / "engine.json")

    def expect(name: str, holds: bool, **figures: object) -> None:
        note(name, {"holds": holds, **figures})
        print(f"{name}: {'ok' if holds else 'FAILED'} {figures}", flush=True)
        if not holds:
            failed.append(name)

    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        twell = Runner(program, directory)
        model = directory / "model"
        shape = ["--layers", 4, "--width", 512, "--neurons", 1408, "--heads", 8, "--kv-heads", 4]
        twell("synth", "--preset", "0.5b", *shape, "--nnz", 20, "--sample-tokens", 2048, "--out", model)

        prompt = ["--model", model, "--prompt", "The quick brown fox", "--prompt", "A"]

        def texts(tokens: int, device: str, *options: object) -> list[list[int]]:
            made = twell("generate", *prompt, "--max-tokens", tokens, "--device", device, *options)
            return [s["token_ids"] for s in made["sequences"]]

        # fp32 and dense: the same arithmetic but for the order of sums, so greedy tokens are the same.
        greedy = ["--temperature", 0]
        dense = [*greedy, "--path", "dense", "--dtype", "f32"]
        equal = [equal_from_start(*pair) for pair in zip(texts(LONG, "cpu", *dense), texts(LONG, gpu, *dense))]
        expect("greedy tokens in fp32", min(equal) >= SHORT, equal=equal)
        # In a thousand tokens one near tie may turn out differently; a wrong recording would end both texts.
        expect("greedy tokens in fp32, recorded anew", max(equal) == LONG, equal=equal)
        # In bf16 near ties are common; what follows one is another text.
        sparse = [*greedy, "--path", "sparse"]
        on_gpu = texts(LONG, gpu, *sparse)
        note("greedy tokens in bf16 equal to the CPU's",
             [equal_from_start(*pair) for pair in zip(texts(SHORT, "cpu", *sparse), on_gpu)])
        expect("same text twice", texts(LONG, gpu, *sparse) == on_gpu)
        # Which path auto takes depends on the machine, and with it the rounding.
        auto = texts(LONG, gpu, *greedy, "--path", "auto")
        expect("auto decodes on", [len(ids) for ids in auto] == [LONG, LONG],
               equal_to_sparse=[equal_from_start(*pair) for pair in zip(auto, on_gpu)])
        drawn = texts(SHORT, gpu, "--seed", 7)
        expect("draws", [len(ids) for ids in drawn] == [SHORT, SHORT])

        count = ["--model", model, "--text", text, "--max-tokens", 2048, "--path", "sparse"]
        stats = {side: twell("stats", *count, "--device", device)
                 for side, device in (("cpu", "cpu"), ("gpu", gpu))}
        nnz = {side: s["nnz_mean"] for side, s in stats.items()}
        # bf16 rounding moves pre-activations near zero to either side.
        expect("non-zeros", abs(nnz["gpu"] / nnz["cpu"] - 1) < 0.02, **nnz)

        run = ["--data", text, "--device", gpu, "--steps", 30, "--layers", 2, "--width", 128, "--neurons", 352,
               "--context", 128, "--bpe-vocab", 512]
        trained = twell("train", *run, "--out", directory / "run")
        expect("training", trained["loss_last"] < trained["loss_first"],
               first=trained["loss_first"], last=trained["loss_last"])

        # A model that fires little: after the first step its layers multiply what fires alone. The
        # learning rate is next to nothing, so that losses tell the passes apart and nothing else.
        windows = directory / "windows.txt"  # 8 of them at least, from a short text
        windows.write_text(pathlib.Path(text).read_text() * 16)
        run = ["--model", model, "--data", windows, "--device", gpu, "--steps", 3, "--context", 1024, "--batch", 8,
               "--lr", 1e-6, "--log-every", 1]
        logs = {}
        for name, path in (("sparse", "sparse"), ("again", "sparse"), ("dense", "dense")):
            twell("train", *run, "--path", path, "--out", directory / name)
            logs[name] = [json.loads(line) for line in (directory / name / "log.jsonl").read_text().splitlines()]
        losses = {name: [line["ce"] for line in log] for name, log in logs.items()}
        norms = {name: [line["grad_norm"] for line in log] for name, log in logs.items()}
        expect("sparse training", [log[-1]["sparse_layers"] for log in logs.values()] == [4, 4, 0],
               layers=[log[-1]["sparse_layers"] for log in logs.values()])
        expect("sparse training has the same bits twice", [losses["sparse"], norms["sparse"]]
               == [losses["again"], norms["again"]])
        # Both round to bf16, in other places: a part in 2^8 of a sum, less in means over 8,192 tokens.
        for what, of in (("losses", losses), ("gradient norms", norms)):
            expect(f"{what} of sparse training",
                   all(abs(a / b - 1) < 2**-8 for a, b in zip(of["sparse"], of["dense"])), **of)

        whole = twell("bench", "model", "--model", model, "--text", text, "--prompt-tokens", 256, "--decode-tokens", 32,
                      "--repeats", 3, "--seconds", 0.05, "--device", gpu)
        expect("logits of both paths", whole["max_rel_err"] <= whole["max_rel_err_bound"],
               error=whole["max_rel_err"], bound=whole["max_rel_err_bound"])
        note("bench model", whole)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
