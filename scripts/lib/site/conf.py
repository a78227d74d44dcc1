"""Sphinx's settings for scripts/site, whose sources sources.py lays out."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sources
import twell

project = "twell"
author = "The twell authors"
version = release = twell.__version__
root_doc = "README"

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
cpp_id_attributes = ["TWELL_HOST_DEVICE"]
breathe_projects = {"twell": os.environ["TWELL_DOXYGEN_XML"]}
breathe_default_project = "twell"
breathe_domain_by_file_pattern = {"*c.h": "c"}
suppress_warnings = [
    "duplicate_declaration.c",  # a structure, and its typedef of that name
    "duplicate_declaration.cpp",  # the namespace, which every header opens
    "toc.not_included",  # results, which pages link to; sources.py looks for pages that are forgotten
]

html_theme = "furo"
html_title = f"twell {version}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False


def setup(app):
    app.connect("source-read", sources.add_contents)
