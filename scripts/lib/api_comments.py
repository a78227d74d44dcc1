"""Doxygen's input filter: it reads the plain // comments of our headers as documentation.

    python3 scripts/lib/api_comments.py HEADER

The block at the top describes the file. A block in front of a declaration describes that, and so
does a comment behind it. Comments within a function's body stay comments. No line changes its
number.
"""

import pathlib
import re
import sys

# What Doxygen would take for a command, a tag or a link.
MARKUP = re.compile(r"[\\@<>#&%\"]|(?<=\w)::")
CODE = re.compile("`([^`]+)`")
# Braces of these hold declarations; all others hold a body or a value.
SCOPE = re.compile(r"\b(namespace|struct|class|enum|union|extern)\b")
BEHIND = re.compile(r"(?P<code>.*?[^\s}]) +//(?P<text> .*)")
FOR_TOOLS = re.compile(r"NOLINT")


def escaped(text: str) -> str:
    shown = CODE.sub(r"<code>\1</code>", MARKUP.sub(r"\\\g<0>", text))
    # An indented line is a formula: the line ends where it ends.
    return f"{shown}<br>" if shown.startswith("   ") else shown


class Braces:
    """Which braces are open where a header has been read up to."""

    def __init__(self) -> None:
        self.declarations: list[bool] = []
        self.statement = ""

    def hold_declarations(self) -> bool:
        return all(self.declarations)

    def read(self, code: str) -> None:
        for character in code + "\n":
            if character == "{":
                self.declarations.append(bool(SCOPE.search(self.statement)))
            elif character == "}":
                self.declarations.pop()
            self.statement = "" if character in "{};" else self.statement + character


def documented(lines: list[str]) -> list[str]:
    out = []
    braces = Braces()
    at_top = True
    behind = -1  # the column of a comment behind code, which the next lines may go on with
    for line in lines:
        if line.lstrip().startswith("//"):
            column = line.index("//")
            mark = "//!" if at_top else "///<" if column == behind else "///"
            plain = FOR_TOOLS.search(line) or not braces.hold_declarations()
            out.append(line if plain else line[:column] + mark + escaped(line[column + 2 :]))
            continue
        if at_top and line == "#pragma once":
            out.append("//! @file")
            at_top = False
            continue
        found = BEHIND.fullmatch(line)
        behind = -1
        if found and braces.hold_declarations() and not FOR_TOOLS.search(line):
            behind = line.index("//", len(found["code"]))
            out.append(f"{line[:behind]}///<{escaped(found['text'])}")
        else:
            out.append(line)
        braces.read(found["code"] if found else line)
    return out


if __name__ == "__main__":
    print("\n".join(documented(pathlib.Path(sys.argv[1]).read_text("utf-8").splitlines())))
