"""Where the tests find the package, and their fixtures."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers would ask for adapters, a minute long where there is no network
if os.environ.get("TWELL_TORCH_LIBRARY"):  # a build's; without, the installed package is tested
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from layers import DTYPES


@pytest.fixture(params=DTYPES, ids=["bf16", "f32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "gated"])
def gated(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(autouse=True)
def sparse_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that frozen layers have the operators' bits, whatever a call is expected to cost."""
    from twell import _block

    monkeypatch.setattr(_block, "DEFAULT_PATH", "sparse")


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What lives by now is looked at no more: Trainer collects garbage at the end of each run, and most of
    the time of a short run would go into the modules that all tests have imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two would wait for each other at layers as small as these, where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
