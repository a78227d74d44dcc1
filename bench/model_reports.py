#!/usr/bin/env python3
"""What `twell.report` prints of real trained models, of which most are in packages of PyPI.

    TWELL_TORCH_LIBRARY=… PYTHONPATH=python bench/model_reports.py [NAME...] [--page FILE]

A model whose package is not installed is skipped, with the line that installs it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from pathlib import Path

import torch
import transformers
from pypi_models import REAL, load_or_why, named


def said(name: str) -> str:
    real = named(name)
    with contextlib.redirect_stdout(io.StringIO()):  # packages tell of what they do
        loaded = load_or_why(real)
    return f"skipped: {loaded}" if isinstance(loaded, str) else str(loaded.report())


def page(reports: dict[str, str]) -> str:
    lines = [
        "# `twell.report` on real trained models", "",
        "Written by `bench/model_reports.py --page`. Each block is what it prints, without anything",
        "changed in the model: how many neurons fire for a token while the package answers a few texts",
        "(`bench/pypi_models.py` has them), and how much less of its weights a layer would read for one",
        f"token. PyTorch {torch.__version__}, transformers {transformers.__version__}, float32.", "",
    ]  # fmt: skip
    for name, text in reports.items():
        real = named(name)
        lines += [f"## {name}", "", f"{real.what[0].upper()}{real.what[1:]}.", "", "```"]
        if real.install:
            lines.append(f"pip install --no-deps {real.install}")
        lines += [f"bench/model_reports.py {name}", "```", "", "```", text, "```", ""]
    return "\n".join(lines)


def main() -> int:
    names = [real.name for real in REAL]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--page", type=Path, help="also write a page, in Markdown")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    warnings.filterwarnings("ignore", category=UserWarning)
    transformers.utils.logging.set_verbosity_error()
    reports = {}
    for name in options.names or names:
        reports[name] = said(name)
        print(f"{name}\n{reports[name]}\n", flush=True)
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main())
