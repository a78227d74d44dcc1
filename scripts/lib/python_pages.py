"""Writes the pages of the Python package by pdoc; a warning of pdoc is an error.

python_pages.py OUT
"""

import pathlib
import sys
import typing
import warnings

import pdoc
import twell
from twell import hf

# What twell names in __all__, and two modules whose classes it gives.
PAGES = ("twell", "twell.modules", "twell.sparsity")


def name_what_pdoc_cannot_find() -> None:
    # It takes a module's names from the module, and some of these are imported when they are asked for.
    vars(hf).update({name: getattr(hf, name) for name in hf.__all__})
    # It evaluates a named tuple's annotations without the names of its module.
    trained = twell.autograd.Trained
    trained.__new__.__annotations__ = typing.get_type_hints(trained)


if __name__ == "__main__":
    name_what_pdoc_cannot_find()
    pdoc.render.configure(docformat="restructuredtext", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*PAGES, output_directory=pathlib.Path(sys.argv[1]))
