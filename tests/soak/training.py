"""Training that is killed, asked to end, or out of space: no checkpoint lost, and the same bits."""

import hashlib
import json
import shutil
import signal
import time

from tools import SHAPE, Broken, judge, tiny_text


def newest(run):
    steps = sorted(p for p in run.glob("step-*") if (p / "config.json").exists())
    return steps[-1] if steps else None


def bits(checkpoint):
    """Of all files of a checkpoint: weights, moments, state and tokenizer."""
    out = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file():
            out[str(file.relative_to(checkpoint))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return out


def log_of(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_s")} for line in lines]


def compare_logs(got, want):
    """A line is over the steps since the one before; those that SIGTERM cut in two are other ones."""
    def groups(log):
        return {(a["step"], b["step"]): b for a, b in zip([{"step": 0}, *log], log)}

    ours, theirs = groups(got), groups(want)
    steps = [line["step"] for line in got]
    if sorted(set(steps)) != steps or not {b for _, b in theirs} <= set(steps):
        raise Broken(f"lines of the log are lost or double: {steps}")
    for group, line in ours.items():
        if group in theirs and line != theirs[group]:
            raise Broken(f"another line than without interruption: {line}, {theirs[group]}")


class Training:
    name = "training"
    promise = ("A run that was killed (SIGKILL), asked to end (SIGTERM) or out of space goes on from a "
               "whole checkpoint to the same bits and the same log")

    def __init__(self, tools, scratch, rng):
        self.tools = tools
        self.scratch = scratch / "training"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.text = tiny_text(self.scratch / "text.txt", rng)
        self.calm = {}  # recipe -> bits and log of a run without interruption

    def command(self, out, recipe):
        return ["train", "--data", self.text, "--out", out, "--cache", self.scratch / "cache", *SHAPE,
                "--context", 32, "--batch", 4, "--bpe-vocab", 300, *recipe]

    def undisturbed(self, recipe):
        if recipe not in self.calm:
            out = self.scratch / "calm"
            shutil.rmtree(out, ignore_errors=True)
            self.tools.ok(*self.command(out, recipe))
            self.calm[recipe] = bits(newest(out)), log_of(out)
        return self.calm[recipe]

    def round(self, rng, scratch):
        recipe = ("--steps", str(rng.choice([150, 300])), "--save-every", str(rng.choice([1, 4, 20])),
                  "--log-every", str(rng.choice([2, 5])), "--keep", str(rng.choice([1, 3])), "--eval-every", "10",
                  "--accumulation", str(rng.choice([1, 2])), "--reinit-every", str(rng.choice([0, 7])),
                  "--compute", rng.choice(["bf16", "fp32"]))  # fmt: skip
        expected = self.undisturbed(recipe)
        out = self.scratch / "run"
        shutil.rmtree(out, ignore_errors=True)
        last, tries = 0, 0
        while tries < 12:
            resume = ["--resume"] if newest(out) else []
            how = rng.choice(["kill", "term", "space"]) if tries < 8 else "none"
            # Files of a checkpoint have up to 700 kB; the limit hits any of them, or none.
            size = rng.randrange(1000, 900_000) if how == "space" else None
            process = self.tools.start(*self.command(out, recipe), *resume, file_size=size)
            if how in ("kill", "term"):
                time.sleep(rng.uniform(0.2, 2.0))
                process.signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
            done = self.tools.finish(process)
            tries += 1
            # On a busy machine SIGTERM may come before main(), while libraries are loaded.
            early = done.code == -signal.SIGTERM and how == "term" and not (done.out or done.err)
            if done.code != -signal.SIGKILL and not early:
                judge(done)
            reached = newest(out)
            step = int(reached.name[5:]) if reached else 0
            if step < last:
                raise Broken(f"checkpoint {last} is gone, {step} is the newest: {done}")
            last = step
            if done.code == 0:
                break
        else:
            raise Broken(f"did not come to its end in {tries} starts: {done}")
        if bits(newest(out)) != expected[0]:
            raise Broken(f"other bits than without interruption: {recipe}")
        compare_logs(log_of(out), expected[1])
        left = [p.name for p in out.iterdir() if p.name.endswith("twell-tmp")]
        if left:
            raise Broken(f"left behind: {left}")
        return tries


class TwoTrainers:
    name = "two trainers"
    promise = "One process trains in a directory; a second ends with a line that names the first"

    def __init__(self, tools, scratch, rng):
        self.one = Training(tools, scratch / "two", rng)
        self.tools = tools

    def round(self, rng, scratch):
        recipe = ("--steps", "30", "--save-every", "1", "--log-every", "1")
        out = self.one.scratch / "run"
        shutil.rmtree(out, ignore_errors=True)
        processes = []
        for _ in range(rng.choice([2, 2, 3])):
            processes.append(self.tools.start(*self.one.command(out, recipe)))
            time.sleep(rng.choice([0, 0, 0.01, 0.3, 1.0]))
        done = [self.tools.finish(p) for p in processes]
        won = [p.pid for p, d in zip(processes, done) if d.code == 0]
        if len(won) != 1:
            raise Broken(f"{len(won)} of {len(done)} trained: " + "; ".join(map(str, done)))
        # Of three, the second may have the lock for a moment after the first has ended.
        names = [f"process {p.pid} " for p in processes]
        for d in done:
            judge(d)
            if d.code != 0 and not any(n in d.err for n in [*names, "holds a checkpoint"]):
                raise Broken(f"does not say who trains there: {d}")
        steps = [line["step"] for line in log_of(out)]
        if steps != list(range(1, 31)) or newest(out).name != "step-00000030":
            raise Broken(f"the log has the steps {steps}")
        return len(done)
