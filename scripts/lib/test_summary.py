"""Closes scripts/test: each step with its outcome, what failed, what was skipped and why, the counts.

    test_summary.py RESULTS SECONDS

RESULTS holds steps.tsv (step, outcome, seconds, reason) and PRESET.ctest.xml; the single cases are in
PRESET/NAME.xml (GoogleTest) and ../PRESET/pytest/NAME.xml. A step that runs tests counts by its tests,
any other as one. Exit 1 when anything failed, or nothing ran.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field


@dataclass
class Counts:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def add_case(self, name: str, case: ET.Element) -> None:
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed.append(name)
        elif skipped is not None:
            reason = skipped.get("message") or (skipped.text or "").strip() or "no reason given"
            # GoogleTest puts file and line before the message.
            self.skipped.append((name, reason.strip().splitlines()[-1]))
        elif case.get("status") in ("notrun", "disabled"):
            self.skipped.append((name, "disabled"))
        else:
            self.passed += 1


def cases_in(file: pathlib.Path) -> list[ET.Element]:
    try:
        return list(ET.parse(file).getroot().iter("testcase"))
    except (ET.ParseError, FileNotFoundError):
        return []


def count_ctest(counts: Counts, preset: str, file: pathlib.Path) -> None:
    for program in cases_in(file):
        name = program.get("name")
        failed = program.get("status") == "fail"
        cases = cases_in(file.parent / preset / f"{name}.xml") or cases_in(
            file.parent.parent / preset / "pytest" / f"{name}.xml"
        )
        before = len(counts.failed)
        for case in cases:
            counts.add_case(f"{preset}: {name}: {case.get('classname')}.{case.get('name')}", case)
        if failed and len(counts.failed) == before:
            counts.failed.append(f"{preset}: {name} (the program itself: crash, time-out or exit code)")
        elif not cases and not failed:
            counts.add_case(f"{preset}: {name}", program)


def main() -> int:
    results, seconds = pathlib.Path(sys.argv[1]), sys.argv[2]
    counts = Counts()
    for file in sorted(results.glob("*.ctest.xml")):
        count_ctest(counts, file.name.removesuffix(".ctest.xml"), file)

    print("\nSteps")
    for line in (results / "steps.tsv").read_text().splitlines():
        step, outcome, took, reason = line.split("\t")
        print(f"  {outcome:8}{took:>5} s  {step}{': ' + reason if reason else ''}")
        runs_tests = "tests" in step
        if outcome == "skipped":
            counts.skipped.append((step, reason))
        elif outcome == "failed" and not (runs_tests and counts.failed):
            counts.failed.append(step)
        elif outcome == "passed" and not runs_tests:
            counts.passed += 1
    if counts.skipped:
        print("Skipped")
        by_reason = collections.defaultdict(list)
        for name, reason in counts.skipped:
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            print(f"  {len(names)} × {reason}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}")
    if counts.failed:
        print("Failed")
        print("\n".join(f"  {name}" for name in counts.failed))
    print(f"in {seconds} s; logs in {results.parent / 'logs'}")
    print(f"{counts.passed} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped")
    return bool(counts.failed) or counts.passed == 0


if __name__ == "__main__":
    sys.exit(main())
