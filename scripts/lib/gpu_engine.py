"""The command line on a GPU beside the same commands on the CPU, on a small synthetic model.

    gpu_engine.py TWELL RESULTS_DIR TEXT [DEVICE]

Prints what was compared, writes RESULTS_DIR/engine.json, and fails where something differs by more than it may.
DEVICE is cuda; with cpu the script itself can be tried where no GPU is.
"""

import json
import pathlib
import subprocess
import sys
import tempfile


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

    def expect(name: str, holds: bool, **figures: object) -> None:
        found[name] = {"holds": holds, **figures}
        print(f"{name}: {'ok' if holds else 'FAILED'} {figures}", flush=True)
        if not holds:
            failed.append(name)

    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        twell = Runner(program, directory)
        model = directory / "model"
        shape = ["--layers", 4, "--hidden", 512, "--ffn", 1408, "--heads", 8, "--kv-heads", 4]
        twell("synth", "--preset", "0.5b", *shape, "--nnz", 20, "--sample-tokens", 2048, "--out", model)

        # fp32 and dense: the same arithmetic but for the order of sums, so greedy tokens are the same.
        prompt = ["--model", model, "--prompt", "The quick brown fox", "--prompt", "A", "--temperature", 0]
        ids = {}
        for side, device in (("cpu", "cpu"), ("gpu", gpu)):
            for name, path in (("f32", ["--ffn", "dense", "--dtype", "f32"]), ("bf16", ["--ffn", "sparse"])):
                made = twell("generate", *prompt, "--max-tokens", 48, "--device", device, *path)
                ids[side, name] = [s["token_ids"] for s in made["sequences"]]
        expect("greedy tokens in fp32", ids["cpu", "f32"] == ids["gpu", "f32"])
        # In bf16 near ties may turn out differently; what follows them is another text.
        same = sum(a == b for pair in zip(ids["cpu", "bf16"], ids["gpu", "bf16"]) for a, b in zip(*pair))
        found["greedy tokens in bf16, equal of 96"] = same
        again = twell("generate", *prompt, "--max-tokens", 48, "--device", gpu, "--ffn", "sparse")
        expect("same text twice", [s["token_ids"] for s in again["sequences"]] == ids["gpu", "bf16"])
        twell("generate", *prompt[:-2], "--max-tokens", 48, "--device", gpu, "--seed", 7)

        count = ["--model", model, "--text", text, "--max-tokens", 2048, "--ffn", "sparse"]
        stats = {side: twell("stats", *count, "--device", device)
                 for side, device in (("cpu", "cpu"), ("gpu", gpu))}
        nnz = {side: s["nnz_mean"] for side, s in stats.items()}
        # bf16 rounding moves pre-activations near zero to either side.
        expect("non-zeros", abs(nnz["gpu"] / nnz["cpu"] - 1) < 0.02, **nnz)

        run = ["--data", text, "--device", gpu, "--steps", 30, "--layers", 2, "--hidden", 128, "--ffn", 352,
               "--context", 128, "--bpe-vocab", 512]
        trained = twell("train", *run, "--out", directory / "run")
        expect("training", trained["loss_last"] < trained["loss_first"],
               first=trained["loss_first"], last=trained["loss_last"])

        whole = twell("bench", "model", "--model", model, "--text", text, "--prompt-tokens", 256, "--decode-tokens", 32,
                      "--repeats", 3, "--seconds", 0.05, "--device", gpu)
        expect("logits of both paths", whole["max_rel_err"] <= whole["max_rel_err_bound"],
               error=whole["max_rel_err"], bound=whole["max_rel_err_bound"])
        found["bench model"] = whole
        tokens = "1,16,512,16384" if gpu == "cuda" else "1,16"
        found["bench ffn"] = twell("bench", "ffn", "--tokens", tokens, "--nnz", "29,563", "--repeats", 5,
                                   "--seconds", 0.05, "--device", gpu)
    (results / "engine.json").write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
