"""Measures what of the paper synthetic models can give, on a GPU or a CPU; scripts/gpu_check paper calls it.

    gpu_paper.py [--device cuda|cpu] [--budget SECONDS] [--only NAME,...] [--missing] [--batch N,...]
                 [--prompt-tokens N] [--twell PROGRAM] [--results DIR] [--scratch DIR] [--text FILE] [--commit HASH]
                 [--dry-run]

The plan is gpu_paper_plan.py's. After every step RESULTS/paper-<model of the GPU or CPU>.json is written anew, whole:
what was measured until then is in it, however this ends. Steps that would not fit into what is left of the budget are
skipped and named. A step that an earlier call measured and this one does not reach stays in the file, with its date;
where it fails in this one, with "last_failure" beside it. What a step that failed had written is its "answer".
--only takes names of steps, or what they begin with ("table1", "table1/0.5b"), and --missing those that the file has
not yet. Models lie in the scratch folder, each until its last step. --dry-run prints the plan and tries all of it on
the CPU with models that are toys, into a scratch folder.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NoReturn

import gpu_paper_plan
import paper_table
from gpu_paper_plan import Step

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUDGET_S = 720
GRACE_S = 2.0  # between asking a program to end and ending it
SMI_LIMIT_S = 10.0  # of nvidia-smi, which hangs where a driver does
SIZES = {"cuda": gpu_paper_plan.GPU, "cpu": gpu_paper_plan.CPU}
# Flags of /proc/cpuinfo and what they are called, the best first.
TIERS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
PROGRAMS = {"cuda": "build/gpu-lm/cli/twell", "cpu": "build/release/cli/twell"}
BUILDS = {"cuda": "scripts/gpu_check build-lm", "cpu": "scripts/build release cli/twell"}


class Failed(Exception):
    """Why a step has no result, in a line; and what it said all the same."""

    def __init__(self, reason: str, answer: object = None) -> None:
        super().__init__(reason)
        self.answer = answer


def die_with_us() -> None:
    """In a program that was started: the kernel ends it where we are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def line_of(*command: str) -> str:
    """The first line that a program prints; empty where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.split("\n")[0].strip()


def smi(*arguments: str) -> tuple[int, str]:
    """The exit code of nvidia-smi and all it prints. Raises Failed."""
    try:
        running = subprocess.Popen(["nvidia-smi", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
    except OSError:
        raise Failed("no NVIDIA GPU here: there is no nvidia-smi") from None
    try:
        out, error = running.communicate(timeout=SMI_LIMIT_S)
        return running.returncode, (out + error).decode()
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # and nobody waits for it: in the kernel it may hang for ever
        raise Failed(f"no NVIDIA GPU here: nvidia-smi did not answer in {SMI_LIMIT_S:g} s") from None
    except UnicodeDecodeError:
        raise Failed("no NVIDIA GPU here: what nvidia-smi prints is no text") from None


def gpu() -> dict[str, str]:
    """What the driver says of the first GPU. Raises Failed."""
    fields = ("name", "driver_version", "memory.total", "power.limit")
    code, text = smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    said = [line.strip() for line in text.splitlines() if line.strip()]
    values = [value.strip() for value in said[0].split(",")] if said else []
    if code or len(values) != len(fields) or not values[0] or values[0].startswith("["):
        raise Failed(f"no NVIDIA GPU here: nvidia-smi says: {said[0] if said else 'nothing'}")
    return dict(zip(("gpu", "driver", "gpu_memory", "power_limit"), values))


def processor() -> str:
    """Its name, cores and the best instructions: virtual machines call every generation by one name."""
    try:
        said = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        said = ""
    found = re.search(r"^model name\s*:\s*(.+)$", said, re.MULTILINE)
    flags = said.split()
    best = next((name for flag, name in TIERS.items() if flag in flags), "")
    cores = len(os.sched_getaffinity(0))
    return f"{cores}-core {found[1].strip() if found else 'CPU'}" + (f", {best}" if best else "")


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())


def file_name(model: str) -> str:
    words = re.sub(r"\(r\)|\(tm\)|nvidia|processor", "", model.lower())
    return f"paper-{re.sub(r'[^a-z0-9]+', '-', words).strip('-')}.json"


@dataclasses.dataclass
class Child:
    """One program at a time, which a signal or a limit ends."""

    program: str
    scratch: pathlib.Path
    stopped: int = 0  # the signal that ends us

    def stop(self, number: int, _frame: object) -> None:
        self.stopped = number

    def wait(self, running: subprocess.Popen[bytes], limit: float) -> bool:
        """False where it had to be ended, with those that it started."""
        end = time.monotonic() + limit
        asked = None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(0.1)
                return asked is None
            at = time.monotonic()
            if asked is None and (self.stopped or at > end):
                asked = at
                os.killpg(running.pid, signal.SIGTERM)
            elif asked is not None and at > asked + GRACE_S:
                os.killpg(running.pid, signal.SIGKILL)

    def run(self, arguments: list[str], limit: float) -> None:
        """Raises Failed where it does not end well."""
        with tempfile.TemporaryFile(dir=self.scratch) as said:
            try:
                running = subprocess.Popen(
                    [self.program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                    start_new_session=True, preexec_fn=die_with_us,  # noqa: PLW1509 (there are no threads)
                )  # fmt: skip
            except OSError as error:
                raise Failed(f"{self.program}: {error.strerror}") from None
            in_time = self.wait(running, limit)
            code = running.returncode
            said.seek(0)
            lines = said.read().decode(errors="replace").replace("\r", "\n").splitlines()
        if self.stopped:
            raise Failed("interrupted")
        if not in_time:
            raise Failed(f"took longer than {limit:.0f} s")
        if code:
            how = f"exit {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            raise Failed(f"{last} ({how})" if last else how)


@dataclasses.dataclass
class Paper:
    """The steps of one call, and the file that has what they gave."""

    steps: list[Step]
    header: dict[str, Any]
    file: pathlib.Path
    text: pathlib.Path
    child: Child
    budget: float | None
    counts_on_times: bool  # of an H100
    outcomes: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)  # of this call: steps and why
    skipped: set[str] = dataclasses.field(default_factory=set)
    written: bool = False  # the file has all that is known
    begin: float = dataclasses.field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def left(self) -> float:
        return float("inf") if self.budget is None else self.budget - self.seconds()

    def folder(self, step: Step) -> pathlib.Path:
        return self.child.scratch / step.model.name

    def whole(self) -> dict[str, Any]:
        """What the file has: every step of the plan and those that earlier calls measured."""
        steps = []
        for step in self.steps:
            outcome = self.outcomes.get(step.name, {"outcome": "not reached"})
            steps.append({"name": step.name, "gives": step.gives, **outcome})
        mine = {step.name for step in self.steps}
        steps += [{"name": name, **one} for name, one in self.outcomes.items() if name not in mine]
        plan = [
            {
                "name": step.name,
                "command": " ".join(["twell", *self.arguments(step, "MODEL", "TEXT", "FILE")]),
                "expected_s": step.expected,
                "limit_s": step.limit,
            }
            for step in self.steps
        ]
        return {"kind": "paper", **self.header, "plan": plan, "steps": steps}

    def write(self) -> None:
        """Atomically. Where that cannot be, a line says so, and after the next step it is tried again."""
        # No folder of this machine stays in what is published.
        text = json.dumps(self.whole(), indent=1).replace(str(self.child.scratch), "SCRATCH")
        new = self.file.with_suffix(".new")
        try:
            with new.open("w") as out:
                out.write(text.replace(str(ROOT) + "/", "") + "\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, self.file)
            self.written = True
        except OSError as error:
            self.written = False
            with contextlib.suppress(OSError):
                new.unlink()
            say(f"    {self.file.name} is not written: {error.strerror}")

    def arguments(self, step: Step, model: str, text: str, file: str) -> list[str]:
        return [one.format(model=model, text=text, json=file) for one in step.command]

    def measure(self, step: Step) -> dict[str, Any]:
        """The JSON of the step. Raises Failed."""
        model = self.folder(step)
        answer = self.child.scratch / "answer.json"
        answer.unlink(missing_ok=True)
        if step.kind == "model":
            shutil.rmtree(model, ignore_errors=True)
            free = shutil.disk_usage(self.child.scratch).free
            if self.counts_on_times and free < step.model.bytes + 2**30:
                raise Failed(f"needs {step.model.bytes / 1e9 + 1.1:.1f} GB of disk, {free / 1e9:.1f} GB are free")
        elif not model.is_dir():
            raise Failed("its model was not made")
        limit = min(step.limit if self.counts_on_times else float("inf"), self.left())
        try:
            self.child.run(self.arguments(step, str(model), str(self.text), str(answer)), limit)
        except Failed as error:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                error.answer = json.loads(answer.read_text())  # what it measured until then
            raise
        try:
            found = json.loads(answer.read_text())
        except OSError:
            raise Failed("left no JSON") from None
        except (ValueError, RecursionError) as error:
            raise Failed(f"left no JSON: {error}") from None
        try:
            say(f"    {paper_table.in_a_line(step.kind, found)}")
            if step.kind == "train" and found["tokens"] != step.tokens:
                say(f"    note: a step of {found['tokens']} tokens, {step.tokens} were asked for")
        except paper_table.ODD as error:
            raise Failed(f"its JSON is not what it should be: {error!r}", found) from None
        return dict(found)

    def needs(self, place: int) -> float:
        """Seconds of the step; of a model with the step that it is made for."""
        if not self.counts_on_times:
            return 0
        step = self.steps[place]
        return step.expected + (self.steps[place + 1].expected if step.kind == "model" else 0)

    def step(self, place: int) -> None:
        step = self.steps[place]
        expected = f", about {step.expected} s" if self.counts_on_times else ""
        say(f"[{self.seconds():3.0f} s] {place + 1} of {len(self.steps)}: {step.name}: {step.gives}{expected}")
        begin = time.monotonic()
        outcome: dict[str, Any]
        try:
            outcome = {"outcome": "done", "result": self.measure(step)}
        except (Failed, OSError) as error:
            reason = f"{pathlib.Path(error.filename or '').name}: {error.strerror}" if isinstance(
                error, OSError) else str(error)  # fmt: skip
            outcome = {"outcome": "failed", "reason": reason}
            if isinstance(error, Failed) and error.answer is not None:
                outcome["answer"] = error.answer
            self.failures[step.name] = reason
        took = time.monotonic() - begin
        outcome |= {"seconds": round(took, 1), "date": now(), "commit": self.header["commit"]}
        kept = self.outcomes.get(step.name, {})
        if step.name in self.failures and kept.get("outcome") == "done":
            self.outcomes[step.name] = kept | {"last_failure": outcome}
        else:
            self.outcomes[step.name] = outcome
        end = f"FAILED: {outcome['reason']}" if "reason" in outcome else "done"
        say(f"    {end} in {took:.0f} s")

    def skip(self, place: int, reason: str) -> None:
        """What an earlier call measured stays."""
        name = self.steps[place].name
        self.skipped.add(name)
        if self.outcomes.get(name, {}).get("outcome") != "done":
            self.outcomes[name] = {"outcome": "not reached", "reason": reason}

    def remove_models(self, done: int) -> None:
        """Those that no step after the first `done` needs."""
        needed = {step.model for step in self.steps[done:]}
        for step in self.steps[:done]:
            if step.kind == "model" and step.model not in needed:
                shutil.rmtree(self.folder(step), ignore_errors=True)

    def run(self) -> None:
        self.write()
        skipped = set()
        for place, step in enumerate(self.steps):
            if self.child.stopped:
                self.skip(place, "interrupted")
            elif step.model in skipped and step.kind != "model" and not self.folder(step).is_dir():
                self.skip(place, "no time for its model")
            elif self.needs(place) > self.left() or self.left() <= 0:
                self.skip(place, f"needs {self.needs(place):.0f} s, {max(self.left(), 0):.0f} s are left")
                say(f"[{self.seconds():3.0f} s] {place + 1} of {len(self.steps)}: {step.name}: skipped, "
                    f"{self.outcomes[step.name].get('reason', 'measured earlier')}")  # fmt: skip
                skipped.add(step.model)
            else:
                self.step(place)
            self.write()
            self.remove_models(place + 1)

    def state(self, step: Step) -> str:
        """Of the step after this call; a model of an earlier one is gone."""
        if step.name in self.failures:
            return "failed"
        return "not reached" if step.kind == "model" and step.name in self.skipped else str(
            self.outcomes[step.name]["outcome"])  # fmt: skip

    def summary(self) -> str:
        by = {kind: [step.name for step in self.steps if self.state(step) == kind]
              for kind in ("done", "failed", "not reached")}  # fmt: skip
        lines = [f"{self.file.name}: {len(by['done'])} of {len(self.steps)} steps have results"]
        for name in by["failed"]:
            kept = self.outcomes[name]["outcome"] == "done"
            lines.append(f"failed: {name}: {self.failures[name]}" + ("; its earlier result stays" if kept else ""))
        if by["not reached"]:
            lines.append(f"not reached: {', '.join(by['not reached'])}")
        return "\n".join(lines)


def earlier(file: pathlib.Path) -> dict[str, dict[str, Any]]:
    """What the file has of former calls: results alone. One that cannot be read gets another name."""
    try:
        steps = json.loads(file.read_text())["steps"]
        if not isinstance(steps, list):
            raise TypeError
    except FileNotFoundError:
        return {}
    except (OSError, RecursionError, *paper_table.ODD):
        os.replace(file, file.with_name(file.name + ".damaged"))
        say(f"{file.name} cannot be read: it is {file.name}.damaged from now on")
        return {}
    found = {}
    odd = 0
    for step in steps:
        try:
            if step["outcome"] == "done" and step.get("result"):
                paper_table.shown(step)
                found[step["name"]] = {key: value for key, value in step.items() if key != "name"}
        except paper_table.ODD:
            odd += 1
    if odd:
        say(f"{file.name}: {odd} of {len(steps)} entries cannot be read, and are left out")
    return found


def positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (found := int(text)) > 0:
            return found
    raise argparse.ArgumentTypeError(f"'{text}' is no positive whole number")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(positive(one) for one in text.split(","))


def seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (found := float(text)) < math.inf:
            return found
    raise argparse.ArgumentTypeError(f"'{text}' is no positive number of seconds")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        say(f"error: {message}; --help lists the options")
        sys.exit(2)


def options() -> argparse.Namespace:
    parser = Parser(prog="gpu_paper.py", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--device", choices=[*SIZES], default="cuda", help="where it is measured; cuda unless given")
    add("--budget", type=seconds, metavar="SECONDS", help=f"for all of it; {BUDGET_S} on a GPU, else no limit")
    add("--only", action="append", default=[], metavar="NAME,...", help="steps, or what their names begin with")
    add("--missing", action="store_true", help="those steps that the results file has not yet")
    add("--batch", type=numbers, metavar="N,...", help="sequences of a prompt, a step for each")
    add("--prompt-tokens", type=positive, metavar="N", help="tokens of a prompt, other than the plan's")
    add("--twell", metavar="PROGRAM", help="the program; that of the build for the device unless given")
    add("--results", type=pathlib.Path, default=ROOT / "bench/results", metavar="DIR", help="where the file is written")
    add("--scratch", type=pathlib.Path, default=ROOT / "build/paper-scratch", metavar="DIR", help="for the models")
    add("--text", type=pathlib.Path, default=ROOT / "docs/development.md", metavar="FILE",
        help="what non-zeros by position are counted on")  # fmt: skip
    add("--commit", metavar="HASH", help="what is noted as the commit; git's unless given")
    add("--dry-run", action="store_true", help="print the plan, and try it on the CPU with toys")
    return parser.parse_args()


def sizes_of(o: argparse.Namespace) -> gpu_paper_plan.Sizes:
    sizes = SIZES[o.device]
    if o.batch:
        named = sizes.names_batches or o.batch != sizes.batches
        sizes = dataclasses.replace(sizes, batches=o.batch, names_batches=named)
    prompt = o.prompt_tokens or sizes.prompt
    return dataclasses.replace(sizes, prompt=prompt, names_prompt=0 if prompt == sizes.prompt else prompt)


def wanted_of(o: argparse.Namespace, every: list[str]) -> list[str]:
    """What --only names. Raises Failed where there is no such step."""
    only = [name for one in o.only for name in one.split(",")]
    for name in only:
        if not any(gpu_paper_plan.matches(step, [name]) for step in every):
            raise Failed(f"--only: no step '{name}'; there are: {', '.join(every)}")
    return only


def program_of(o: argparse.Namespace) -> str:
    program = ROOT / (o.twell or PROGRAMS[o.device])
    if not os.access(program, os.X_OK):
        raise Failed(f"{o.twell} is no program" if o.twell else f"{PROGRAMS[o.device]} is not built; "
                     f"run {BUILDS[o.device]}")  # fmt: skip
    return str(program)


def print_plan(steps: list[Step]) -> None:
    for place, step in enumerate(steps, 1):
        print(f"{place:3d}. {step.name}: {step.gives}; {step.expected} s, at most {step.limit} s")
    print(f"{len(steps)} steps, {sum(step.expected for step in steps)} s on an H100", flush=True)


def prepare(o: argparse.Namespace, sizes: gpu_paper_plan.Sizes) -> Paper:
    """The steps with all they need. Raises Failed."""
    on_gpu = o.device == "cuda"
    every = [step.name for step in gpu_paper_plan.measurements(sizes, o.device)]
    only = wanted_of(o, every)
    found = gpu() if on_gpu else {}
    program = program_of(o)
    commit = o.commit or line_of("git", "describe", "--always", "--dirty", "--exclude", "*")
    budget = BUDGET_S if o.budget is None and on_gpu else o.budget
    header = {"device": o.device, **found, "processor": processor(), "date": now(), "commit": commit,
              "budget_s": budget}  # fmt: skip
    o.scratch.mkdir(parents=True, exist_ok=True)
    o.results.mkdir(parents=True, exist_ok=True)
    if commit.endswith("-dirty") and o.results.resolve() == ROOT / "bench/results":
        say(f"note: results of {commit}, which nobody else has; commit first where they are to be published")
    file = o.results / file_name(found.get("gpu", header["processor"]))
    kept = earlier(file)
    if o.missing:
        only = [name for name in every if gpu_paper_plan.matches(name, only) and name not in kept]
        if not only:
            raise Failed(f"{file.name} has every step already")
    return Paper(gpu_paper_plan.plan(sizes, o.device, only), header, file, o.text.resolve(),
                 Child(program, o.scratch.resolve()), budget, on_gpu, kept)  # fmt: skip


def run(paper: Paper) -> int:
    signal.signal(signal.SIGINT, paper.child.stop)
    signal.signal(signal.SIGTERM, paper.child.stop)
    try:
        paper.run()
    finally:
        paper.remove_models(len(paper.steps))
        (paper.child.scratch / "answer.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in it
            paper.child.scratch.rmdir()
    if not paper.written:
        say(f"error: {paper.file.name} has not all results: it could not be written")
    if paper.child.stopped:
        done = [step.name for step in paper.steps if step.kind != "model"
                and paper.outcomes[step.name]["outcome"] == "done"]  # fmt: skip
        if paper.written:
            say(f"interrupted: {paper.file.name} keeps {', '.join(done) if done else 'no measurement'}")
        return 128 + paper.child.stopped
    whole = paper.whole()
    print(paper_table.tables([whole]))
    print(paper.summary())
    if paper.file.parent.resolve() == ROOT / "bench/results" and paper_table.done_steps(whole) and paper.written:
        print("scripts/lib/paper_table.py writes them into docs/gpu-status.md")
    return int(bool(paper.failures) or not paper.written)


def dry_run(o: argparse.Namespace) -> int:
    sizes = sizes_of(o)
    only = wanted_of(o, [step.name for step in gpu_paper_plan.measurements(sizes, o.device)])
    print_plan(gpu_paper_plan.plan(sizes, o.device, only))
    o.device = "cpu"
    try:
        program_of(o)
    except Failed as reason:
        print(f"It can be tried here, on the CPU with models that are toys, but {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="twell-paper-") as folder:
        o.scratch, o.results = pathlib.Path(folder, "scratch"), pathlib.Path(folder, "results")
        # Their steps have the same names.
        toy = dataclasses.replace(gpu_paper_plan.TOY, batches=sizes.batches, decode_batches=sizes.decode_batches,
                                  names_batches=sizes.names_batches, names_prompt=sizes.names_prompt)  # fmt: skip
        paper = prepare(o, toy)
        paper.header["processor"] = "toys on the CPU"  # what stands over its figures
        return run(paper)


def main() -> int:
    o = options()
    try:
        return dry_run(o) if o.dry_run else run(prepare(o, sizes_of(o)))
    except (Failed, OSError) as error:  # an OSError where the disk is full, or a folder is gone
        say(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
