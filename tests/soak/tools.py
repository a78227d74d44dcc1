"""What the attacks share: the built programs under limits, and what counts as a failure."""

import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = "--layers 2 --width 32 --neurons 96 --heads 2".split()
GIB = 1 << 30
# Words of libraries, which no message of ours should hold.
FOREIGN = ("json.exception", "filesystem error", "Exception raised from", "std::", "terminate called",
           "DefaultCPUAllocator", "Traceback")


class Broken(Exception):
    """A promise that did not hold: what was done, what was seen."""


@dataclasses.dataclass
class Done:
    command: list
    code: int
    out: bytes
    err: str
    peak_bytes: int

    def __str__(self):
        return f"{' '.join(map(str, self.command))}: exit {self.code}, {self.err[-600:]!r}"


def limits(address_space, file_size):
    def set_them():
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if file_size:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    return set_them


class Process:
    """A command under limits. Its outputs go to files, so that it never waits for a reader."""

    def __init__(self, command, environment, cwd, set_limits):
        self.command = command
        self.out, self.err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 (kept)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out,
                                        stderr=self.err, cwd=cwd, env=environment,
                                        preexec_fn=set_limits)  # noqa: PLW1509 (no threads)
        self.pid = self.process.pid

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds):
        """Done, or none where it lasts longer. wait4() tells the memory of this process alone."""
        end = time.monotonic() + seconds
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                return None
            time.sleep(0.003)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Done(self.command, self.process.returncode, texts[0], texts[1].decode(errors="replace"),
                    1024 * usage.ru_maxrss)


class Tools:
    def __init__(self, build):
        self.build = pathlib.Path(build)
        self.program = self.build / "cli" / "twell"
        self.tokenizer_driver = self.build / "tests" / "tokenizer" / "twell_tokenizer_driver"
        self.library = self.build / "src" / "torch_ops" / "libtwell_torch.so"
        self.tiers = None

    def start(self, *arguments, cwd=None, file_size=None, address_space=12 * GIB, threads=1, **env):
        command = [self.program, *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TWELL_CALIBRATION": "", **env}
        return Process(command, environment, cwd, limits(address_space, file_size))

    def finish(self, process, seconds=120):
        """Its end; one that lasts too long is asked to end, and then has two minutes: a step of training
        of the default shape may take one, on one thread of a busy machine."""
        done = process.wait(seconds)
        if done is None:
            process.signal(signal.SIGTERM)
            done = process.wait(120)
        if done is None:
            process.signal(signal.SIGKILL)
            process.wait(60)
            raise Broken(f"did not end within two minutes of SIGTERM: {' '.join(map(str, process.command))}")
        return done

    def run(self, *arguments, seconds=120, **more):
        return self.finish(self.start(*arguments, **more), seconds)

    def ok(self, *arguments, **more):
        done = self.run(*arguments, **more)
        if done.code != 0:
            raise Broken(f"expected to work: {done}")
        return done

    def on_a_tier(self, script, rng, count):
        """Runs a script of Python, SCRIPT TIER SEED COUNT, on a tier of the machine, with threads as OpenMP
        may grant them; returns its count."""
        if self.tiers is None:
            self.tiers = json.loads(self.ok("explain", "--no-measure", "--json", "-").out)["tiers"]
        tier = rng.choice(self.tiers)
        command = [sys.executable, script, tier, str(rng.randrange(2**31)), str(count)]
        granted = rng.choice([{}, {}, {"OMP_THREAD_LIMIT": str(rng.choice([1, 2, 3]))}, {"OMP_DYNAMIC": "true"}])
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={
            **os.environ, "OMP_WAIT_POLICY": "passive", "TWELL_CPU_TIER": tier,
            "TWELL_TORCH_LIBRARY": str(self.library), **granted})  # fmt: skip
        if done.returncode != 0:
            words = " ".join(f"{k}={v}" for k, v in granted.items())
            raise Broken(f"{words} {' '.join(command)}: {(done.stdout + done.stderr)[-1500:]}")
        return count


def judge(done):
    """Any command ends by itself with 0, or with 1, 2 or 130 and one line that says why."""
    if done.code not in (0, 1, 2, 128 + signal.SIGINT):
        raise Broken(f"ended by a signal or with an unknown code: {done}")
    if done.code == 0:
        return
    lines = done.err.splitlines()
    errors = [line for line in lines if "error:" in line]
    if len(errors) != 1 or lines[-1] != errors[0]:
        raise Broken(f"expected one line with the error, at the end: {done}")
    if len(errors[0]) > 1200 or any(word in errors[0] for word in FOREIGN):
        raise Broken(f"no message for people: {done}")


def tiny_text(path, rng, lines=800):
    words = "the cat sees a red ball and likes an old house by river at night 12 2024 été 中文".split()
    text = "\n".join(" ".join(rng.choice(words) for _ in range(8)) + "." for _ in range(lines))
    path.write_text(text + "\n", encoding="utf-8")
    return path
