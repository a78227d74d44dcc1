"""Random command lines: an end with a known code and one line, and nothing of the user's is lost."""

import hashlib
import re
import shutil

from files import Files
from tools import Broken, judge

COMMANDS = ["train", "generate", "stats", "eval", "synth", "tokenize", "convert", "quantize", "explain", "info",
            "calibrate", "demo", "bench ffn", "bench model", "bench train"]  # fmt: skip
WORDS = ["", "-1", "0", "1", "2", "3", "7", "16", "64", "0.5", "1e-3", "nan", "inf", "-inf", "1e400", "9" * 30,
         "18446744073709551615", "18446744073709551616", "0x10", "1,2", "1,,2", "relu", "silu", "bf16", "f32",
         "dense", "auto", "hf", "2b", "arc", "perplexity", "cpu", "cuda", "é中", "a\nb", "--", "-", "x" * 5000,
         "\x1b[31m", "%s%n", "../..", "/", "/dev/null", "/dev/full", "/proc/self/mem", "/nonexistent/x"]  # fmt: skip
HERE = ["text.txt", "text.tokens", "a.trace", "run", "run/latest", "run/step-00000004/config.json", "new",
        "precious.txt", "precious", "new/deep", "calibration.json", "run/step-00000004/tokenizer.json",
        "run/step-00000004/model.safetensors", "arc.jsonl"]  # fmt: skip


def fingerprint(here, command):
    """Of what was there before and is no output of the program: nothing may change it. A run that
    goes on removes older checkpoints of its own."""
    names = ["precious.txt", "precious/inside.bin", "text.txt", "arc.jsonl"]
    if command != "train":
        names += ["run/step-00000004/model.safetensors", "run/step-00000004/config.json"]
    out = {}
    for name in names:
        file = here / name
        out[name] = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "gone"
    return out


class Commands(Files):
    name = "command lines"
    promise = ("Any command line ends with a known code and at most one line of error, and loses no file "
               "that the program did not make")

    def __init__(self, tools, scratch, rng):
        super().__init__(tools, scratch, rng)
        self.options = {}
        for command in COMMANDS:
            text = tools.ok(*command.split(), "--help").out.decode()
            self.options[command] = sorted(set(re.findall(r"(?<![\w-])--[a-z0-9-]+", text)) - {"--help"})

    def round(self, rng, scratch):
        here = scratch / "case"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.base, here, symlinks=True)
        (here / "precious").mkdir()
        (here / "precious" / "inside.bin").write_bytes(rng.randbytes(100))
        (here / "precious.txt").write_text("the only copy\n")
        command = rng.choice(COMMANDS)
        before = fingerprint(here, command)
        arguments = command.split()
        if rng.random() < 0.8:  # beyond the first check of what is required
            arguments += {"train": ["--data", "text.txt", "--out", rng.choice(["new", "run"])],
                          "generate": ["--model", "run", "--prompt", "the"],
                          "stats": ["--model", "run", "--text", "text.txt"],
                          "eval": ["--model", "run", "--task", "arc", "--data", "arc.jsonl"],
                          "synth": ["--out", "new", "--layers", "1", "--width", "64", "--neurons", "128"],
                          "tokenize": ["--text", "text.txt", "--tokenizer", "run", "--out", "new"],
                          "convert": ["--in", "run", "--out", "new"],
                          "quantize": ["--model", "run", "--type", rng.choice(["int8", "int4"]), "--out", "new"],
                          "demo": ["--text", "text.txt", "--out", "new", "--steps", "1"],
                          "bench model": ["--model", "run", "--repeats", "1"],
                          "bench train": ["--model", "run", "--repeats", "1"]}.get(command, [])  # fmt: skip
        for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
            arguments.append(rng.choice(self.options[command]))
            if rng.random() < 0.9:
                arguments.append(rng.choice(WORDS if rng.random() < 0.6 else HERE))
        arguments = [a for a in arguments if "\0" not in a]
        done = self.tools.run(*arguments, seconds=8, cwd=here, file_size=200 << 20)
        judge(done)
        after = fingerprint(here, command)
        for name, value in before.items():
            if after[name] != value:
                raise Broken(f"{name} is {'gone' if after[name] == 'gone' else 'changed'}: {done}")
        return 1
