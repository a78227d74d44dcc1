"""Blocks of code and commands in pages, for the tests of them and for scripts that run them.

documents.py python PAGE...           prints the Python blocks, as one program
documents.py run PROGRAM PAGE...      runs the lines that call twell by PROGRAM, in this folder
                                      and on something small; the first that fails ends it
"""

import pathlib
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# mpirun knows no aliases, and starts the program of the checkout.
CALL = re.compile(r"(mpirun [^|]*?(?=scripts/)|)(?:scripts/)?twell ")

# The same commands on layers and models of another size: a document shows what one would run, which
# takes minutes.
SMALL = {
    "bench ffn": "--width 64 --neurons 256 --repeats 1 --seconds 0.001",
    "bench model": "--prompt-tokens 8 --decode-tokens 4 --repeats 1 --seconds 0.001",
    "bench train": "--context 32 --accumulation 1 --repeats 1",
    "calibrate": "--width 64 --neurons 256 --repeats 1 --seconds 0.001",
    "explain --width": "--neurons 256 --nnz 8",
    "generate": "--max-tokens 4",
    "chat": "--max-tokens 4",
    "train": "--layers 2 --width 32 --neurons 64 --heads 2 --bpe-vocab 300 --context 16 --batch 2 "
    "--steps 4",
    "synth": "--layers 2 --width 64 --neurons 256 --heads 2 --vocab 300 --sample-tokens 2048",
}


def blocks(page: pathlib.Path, language: str) -> list[str]:
    """Of one language; those of none have commands, pictures and layouts."""
    # A command may stand on several lines.
    return [
        text.replace("\\\n", " ")
        for kind, text in BLOCK.findall(page.read_text())
        if kind == language
    ]


def commands(page: pathlib.Path) -> list[tuple[list[str], list[str]]]:
    """Lines of blocks that call the command line, without comments: (launcher, arguments)."""
    found = []
    for line in "".join(blocks(page, "")).splitlines():
        if match := CALL.match(line):
            found.append((shlex.split(match[1]), shlex.split(line[match.end() :], comments=True)))
    return found


def resized(arguments: list[str]) -> list[str]:
    """The same command on something small: of options that are given twice, ours win."""
    for command, options in SMALL.items():
        if arguments[: len(command.split())] == command.split():
            ours = options.split()
            if "--resume" in arguments:
                ours = ["--extend-to", "6"]
            elif "--model" in arguments and command == "train":
                ours = ours[ours.index("--context") :]
            for name in (option for option in ours if option.startswith("--")):
                if name in arguments:
                    at = arguments.index(name)
                    arguments = arguments[:at] + arguments[at + 2 :]
            return arguments + ours
    return arguments


def main(task: str, *arguments: str) -> int:
    if task == "python":
        for page in arguments:
            print("\n".join(blocks(pathlib.Path(page), "python")))
        return 0
    program, *pages = arguments
    for page in pages:
        found = [arguments for launcher, arguments in commands(pathlib.Path(page)) if not launcher]
        for line in found:
            print(f"--- {shlex.join([program, *line])}", flush=True)
            subprocess.run([program, *resized(line)], check=True)
        if not found:
            sys.exit(f"{page}: no command of the command line")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
