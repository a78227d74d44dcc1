"""A generated part of a page in markdown, between <!-- NAME:begin --> and <!-- NAME:end -->."""

import os
import pathlib


def replace(text: str, name: str, block: str) -> str:
    """The text with this block. Raises ValueError where it has no place for it."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"no lines {begin} and {end}, once each")
    return text[: text.index(begin)] + f"{begin}\n{block.strip()}\n" + text[text.index(end):]


def without(text: str, name: str) -> str:
    """The text with the block's lines empty, so that the others keep their numbers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin, 1)
    block, after = rest.split(end, 1)
    return before + begin + "\n" * block.count("\n") + end + after


def table(rows: list[list[str]]) -> str:
    """The first row is the header."""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def update(page: pathlib.Path, name: str, block: str, check: bool) -> str | None:
    """Writes the block into the page, or only says what is wrong with the one that is there."""
    old = page.read_text()
    try:
        text = replace(old, name, block)
    except ValueError as error:
        return f"{page.name}: {error}"
    if check:
        return None if text == old else f"{page.name}: the block {name} is not what the results give"
    new = page.with_suffix(".new")
    new.write_text(text)
    os.replace(new, page)
    return None
