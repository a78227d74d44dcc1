"""Files that some tests read and that are no part of the repository: texts, tokenizers, models."""

import os
import pathlib

import pytest

# The folder that TWELL_DATA names, else shared/data beside the checkout.
DATA = pathlib.Path(os.environ.get("TWELL_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))


def data_path(name):
    """A file or folder of it; without that the test is skipped, and the reason is the same for all
    where there is no folder."""
    path = DATA / name
    if not path.exists():
        missing = path if DATA.exists() else DATA
        pytest.skip(f"{missing} is not here; TWELL_DATA names the folder of the tests' shared data")
    return path
