"""Any bytes in any file that is read: a result, or one line; no crash, no hang, little memory."""

import shutil

from mutate import change_bytes, change_json, change_safetensors
from tools import GIB, SHAPE, Broken, judge, tiny_text

TASKS = {
    "arc": '{"question": "What?", "choices": ["a", "b"], "gold": 1}',
    "openbookqa": '{"query": "What", "choices": ["a", "b"], "gold": 0}',
    "piqa": '{"query": "Question: a\\n", "choices": ["a", "b"], "gold": 1}',
    "winogrande": '{"context_options": ["a", "b"], "continuation": "c", "gold": 0}',
    "commonsenseqa": '{"question": {"stem": "a", "choices": [{"label": "A", "text": "b"}]}, "answerKey": "A"}',
    "lambada": '{"text": "the cat sees a ball"}',
    "hellaswag": "context\n1\na\nb\nc\nd",
}
JSON = {"config.json", "generation_config.json", "tokenizer.json", "special_tokens_map.json", "state.json",
        "calibration.json"}  # fmt: skip
# Beside the weights, as other people have them.
SIDES = {"generation_config.json": '{"eos_token_id": [0, 1], "top_p": 0.9}',
         "special_tokens_map.json": '{"eos_token": {"content": "<|endoftext|>"}}'}


class Files:
    name = "files"
    promise = "Any bytes in any file that is read give a result or one line, within 1 GiB and a minute"

    def __init__(self, tools, scratch, rng):
        self.tools = tools
        self.base = scratch / "base"
        if (self.base / "ready").exists():
            return
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir(parents=True)
        text = tiny_text(self.base / "text.txt", rng)
        tools.ok("train", "--data", text, "--out", self.base / "run", *SHAPE, "--context", 32, "--batch",
                 2, "--steps", 4, "--bpe-vocab", 300)
        for name, contents in SIDES.items():
            (self.base / "run" / "step-00000004" / name).write_text(contents)
        tools.ok("tokenize", "--text", text, "--tokenizer", self.base / "run", "--out",
                 self.base / "text.tokens")
        tools.ok("stats", "--model", self.base / "run", "--text", text, "--max-tokens", 64, "--trace",
                 self.base / "a.trace")
        tools.ok("calibrate", "--width", 64, "--neurons", 64, "--repeats", 1, "--seconds", 0.001,
                 TWELL_CALIBRATION=str(self.base / "calibration.json"))
        tools.ok("train", "--data", text, "--out", self.base / "squared", *SHAPE, "--context", 32, "--batch", 2,
                 "--steps", 1, "--bpe-vocab", 300, "--activation", "relu_squared", "--no-gated")
        tools.ok("convert", self.base / "squared", self.base / "model.gguf")
        for task, line in TASKS.items():
            (self.base / f"{task}.jsonl").write_text(line + "\n")
        (self.base / "ready").touch()

    def round(self, rng, scratch):
        here = scratch / "case"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.base, here, symlinks=True)
        run, step = here / "run", here / "run" / "step-00000004"
        model = ["--model", run]
        use = ["generate", *model, "--prompt", "the cat", "--max-tokens", 2]
        train = ["train", "--data", here / "text.txt", "--out", run, "--resume", "--extend-to", 5]
        targets = {
            step / "config.json": use,
            step / "model.safetensors": rng.choice([use, train]),
            step / "tokenizer.json": rng.choice([use, train]),
            step / "trainer" / "state.json": train,
            step / "trainer" / "optimizer.safetensors": train,
            run / "log.jsonl": train,
            here / "text.txt": rng.choice([["eval", *model, "--task", "perplexity", "--data",
                                            here / "text.txt"], train]),
            here / "text.tokens": ["train", "--data", here / "text.tokens", "--out", here / "new",
                                   "--tokenizer", run, *SHAPE, "--context", 32, "--steps", 1],
            here / "a.trace": rng.choice([
                ["bench", "ffn", "--trace", here / "a.trace", "--width", 64, "--tokens", 4, "--repeats", 1,
                 "--seconds", 0.001],
                ["stats", "--from-trace", here / "a.trace"]]),
            here / "model.gguf": ["convert", here / "model.gguf", here / "of-gguf"],
            here / "calibration.json": ["explain", "--no-measure"],
        }
        for name in SIDES:
            targets[step / name] = rng.choice([use, train])
        for task in TASKS:
            file = here / f"{task}.jsonl"
            targets[file] = ["eval", *model, "--task", task, "--data", file]
        file = rng.choice(list(targets))
        change = change_bytes
        if file.name in JSON and rng.random() < 0.7:
            change = change_json
        elif file.suffix == ".safetensors" and rng.random() < 0.6:
            change = change_safetensors
        file.write_bytes(change(rng, file.read_bytes()))
        calibration = {"TWELL_CALIBRATION": str(file)} if file.name == "calibration.json" else {}
        done = self.tools.run(*targets[file], seconds=60, cwd=here, **calibration)
        judge(done)
        if done.code == 130:
            raise Broken(f"took more than a minute: {done}")
        if done.peak_bytes > GIB:
            raise Broken(f"needed {done.peak_bytes >> 20} MiB: {done}")
        return 1
