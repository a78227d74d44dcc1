"""Attacks the built program for a time, and says which promises held: see docs/reliability.md.

    scripts/soak [MINUTES] [--out DIR] [--seed N] [--only NAME] [--replay NAME:ROUND]

Every round draws from a generator of its own, seeded by seed, attack and round: --replay repeats
one, but for the moment at which training is killed, which the clock decides. What was done is not
done again: the same command goes on where DIR/summary.json ends.
"""

import argparse
import datetime
import json
import pathlib
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from commands import Commands
from files import Files
from lives import Lives
from operators import Operators
from tools import Broken, Tools
from training import Training, TwoTrainers
from vocabularies import Vocabularies

ATTACKS = [Files, Training, TwoTrainers, Operators, Lives, Vocabularies, Commands]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


class Soak:
    def __init__(self, arguments):
        self.out = pathlib.Path(arguments.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.file = self.out / "summary.json"
        self.tools = Tools(pathlib.Path(arguments.build).resolve())
        self.chosen = [a for a in ATTACKS if arguments.only in (None, a.name)]
        if not self.chosen:
            sys.exit(f"soak: error: no attack {arguments.only!r}; there are: "
                     + ", ".join(a.name for a in ATTACKS))
        self.summary = {"seed": arguments.seed or 1, "processor": processor(), "seconds": 0.0, "attacks": {}}
        if self.file.exists():
            self.summary = json.loads(self.file.read_text())
            if arguments.seed not in (None, self.summary["seed"]):
                sys.exit(f"soak: error: {self.file} has the seed {self.summary['seed']}, {arguments.seed} is "
                         "asked for: choose another --out")
        self.made = {}
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="twell-soak-"))

    def record(self, attack):
        return self.summary["attacks"].setdefault(
            attack.name,
            {"promise": attack.promise, "rounds": 0, "tries": 0, "seconds": 0.0, "failures": []})

    def attack(self, kind):
        """Made once, and its files."""
        if kind not in self.made:
            rng = random.Random(f"{self.summary['seed']}/{kind.name}")
            self.made[kind] = kind(self.tools, self.scratch / kind.name.replace(" ", "-"), rng)
        return self.made[kind]

    def round(self, kind, number):
        """Tries, and what was wrong, if anything."""
        rng = random.Random(f"{self.summary['seed']}/{kind.name}/{number}")
        attack = self.attack(kind)  # what fails here is no round: without its files there is none
        try:
            return attack.round(rng, self.scratch), None
        except Broken as broken:
            return 1, str(broken)
        except Exception:  # of the attack itself, or of what it compares with: to be looked at too
            return 1, traceback.format_exc()

    def save(self):
        self.summary["date"] = datetime.date.today().isoformat()
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.summary, indent=1) + "\n")
        part.rename(self.file)

    def go(self, minutes):
        end = time.monotonic() + 60 * minutes
        told = 0.0
        while (begin := time.monotonic()) < end:
            kind = min(self.chosen, key=lambda a: self.record(a)["seconds"])
            record = self.record(kind)
            number = record["rounds"]
            tries, wrong = self.round(kind, number)
            seconds = time.monotonic() - begin
            record["rounds"] += 1
            record["tries"] += tries
            record["seconds"] += seconds
            self.summary["seconds"] += seconds
            if wrong:
                record["failures"].append({"round": number, "what": wrong})
                kept = self.out / "failures" / f"{kind.name.replace(' ', '-')}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self.scratch, kept, symlinks=True)
                print(f"{kind.name}, round {number}: {wrong}", file=sys.stderr, flush=True)
            self.save()
            if time.monotonic() - told > 30:
                told = time.monotonic()
                tried = sum(r["tries"] for r in self.summary["attacks"].values())
                failed = sum(len(r["failures"]) for r in self.summary["attacks"].values())
                print(f"soak: {(end - told) / 60:.1f} min left, {tried} tries, {failed} failures",
                      file=sys.stderr, flush=True)

    def table(self):
        rows = [("attack", "rounds", "tries", "failures")]
        for name, r in self.summary["attacks"].items():
            rows.append((name, str(r["rounds"]), str(r["tries"]), str(len(r["failures"]))))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        for row in rows:
            print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                            for i, (cell, w) in enumerate(zip(row, widths))))
        print(f"Summary: {self.file}")
        return sum(len(r["failures"]) for r in self.summary["attacks"].values())


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", nargs="?", type=float, default=10)
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="build/soak")
    parser.add_argument("--seed", type=int, help="of all random cases (default: 1)")
    parser.add_argument("--only", help="one attack: " + ", ".join(a.name for a in ATTACKS))
    parser.add_argument("--replay", help="a round that failed, as NAME:ROUND")
    arguments = parser.parse_args()
    if arguments.replay:
        arguments.only, _, number = arguments.replay.rpartition(":")
    soak = Soak(arguments)
    try:
        if arguments.replay:
            tries, wrong = soak.round(soak.chosen[0], int(number))
            print(wrong or f"held, {tries} tries")
            return 1 if wrong else 0
        soak.go(arguments.minutes)
        return 1 if soak.table() else 0
    except KeyboardInterrupt:
        print("soak: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(soak.scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
