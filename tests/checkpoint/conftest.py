"""What the comparisons with Python packages share: the driver program."""

import pytest
from driver_records import Driver


@pytest.fixture(scope="session")
def driver():
    return Driver.named_by("TWELL_CHECKPOINT_DRIVER")
