"""What the site is made of: the repository's own pages as they are, their order, and a page for
each public header and Python module.

sources.py OUT lays them out for Sphinx.
"""

import itertools
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from project_files import ROOT, tracked

# Headings of the contents, each with its pages in the order in which somebody needs them.
CONTENTS = {
    "Start": ["docs/glossary", "docs/models", "docs/measured", "docs/generating"],
    "Use it": [
        "docs/training",
        "docs/pytorch",
        "docs/serving",
        "docs/quantised",
        "docs/gguf",
        "docs/llama-cpp",
        "docs/cpp",
        "examples/README",
        "examples/sparsify_smollm2/README",
    ],
    "How it works": [
        "docs/architecture",
        "docs/format",
        "docs/decisions",
        "docs/gpu-status",
        "docs/gpu-model",
    ],
    "What is promised": ["docs/reliability", "SECURITY", "CHANGELOG"],
    "Work on it": [
        "CONTRIBUTING",
        "docs/development",
        "docs/adding-a-kernel",
        "docs/adding-an-activation",
        "docs/adding-a-form",
        "docs/adding-a-model",
        "bench/README",
    ],
    "API": ["api/python", "api/c", "api/cpp", "api/cuda"],
}
PYTHON = [
    "twell",
    "twell.modules",
    "twell.autograd",
    "twell.hf",
    "twell.sparsity",
    "twell.ops",
    "twell.dense",
    "twell.prepared",
]


def headers(folder: str) -> list[str]:
    """As they are included: twell/layer.h."""
    return sorted(
        path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob("*.h")
    )


def titled(title: str, text: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n{text}\n"


def contents(names: list[str], caption: str = "", hidden: bool = False) -> str:
    options = [":maxdepth: 1"]
    options += [f":caption: {caption}"] if caption else []
    options += [":hidden:"] if hidden or caption else []
    return "\n   ".join([".. toctree::", *options, "", *names]) + "\n"


def header_page(header: str, title: str) -> str:
    return titled(title, f".. doxygenfile:: {pathlib.Path(header).name}")


def first_sentence(header: pathlib.Path) -> str:
    """Of the comment at its top."""
    lines = itertools.takewhile(lambda line: line.startswith("//"), header.read_text().splitlines())
    words = " ".join(line.removeprefix("//").strip() for line in lines)
    return re.split(r"(?<=\.)\s", words)[0].rstrip(".").replace("`", "``")


def overview(folder: str, names: list[str]) -> str:
    """A list of the headers, with what each has, and their contents."""
    lines = [f"* :doc:`{name} <{name}>`: {first_sentence(ROOT / folder / name)}" for name in names]
    return "\n".join(lines) + "\n\n" + contents(names, hidden=True)


def api_pages() -> dict[str, str]:
    """Text of the pages in api/, by name."""
    cpp = [header for header in headers("include") if header != "twell/c.h"]
    pages = {
        "python": titled("Python", contents(PYTHON)),
        "c": header_page("twell/c.h", "C"),
        "cpp": titled("C++", overview("include", cpp)),
        "cuda": titled("C++ on NVIDIA GPUs", overview("cuda/include", headers("cuda/include"))),
    }
    pages |= {header: header_page(header, header) for header in [*cpp, *headers("cuda/include")]}
    pages |= {name: titled(name, f".. automodule:: {name}") for name in PYTHON}
    return pages


def forgotten() -> list[str]:
    """Pages of docs/ that the contents lack."""
    pages = {path.with_suffix("").as_posix() for path in tracked("docs/*.md")}
    return sorted(pages - {name for names in CONTENTS.values() for name in names})


def lay_out(out: pathlib.Path) -> None:
    if pages := forgotten():
        sys.exit(f"not in CONTENTS of scripts/lib/site/sources.py: {', '.join(pages)}")
    shutil.rmtree(out, ignore_errors=True)
    (out / "api").mkdir(parents=True)
    for path in tracked("*.md", "LICENSE", "bench", "docs", "examples"):
        if path.parts[0] != "tests" and not path.match("python/*"):
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, out / path)
    for name, text in api_pages().items():
        page = out / "api" / f"{name}.rst"
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)


def add_contents(app: object, name: str, source: list[str]) -> None:
    """The first page is README.md, which has no contents of its own."""
    if name == "README":
        blocks = [contents(pages, caption) for caption, pages in CONTENTS.items()]
        source[0] += "\n```{eval-rst}\n" + "\n".join(blocks) + "```\n"


if __name__ == "__main__":
    lay_out(pathlib.Path(sys.argv[1]))
