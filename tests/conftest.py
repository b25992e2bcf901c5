"""Settings of every test: no downloads, no display, a limit of processor time for tests not marked slow."""

import os
from collections.abc import Iterator

import pytest

# Set before any library reads them; processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"

LIMIT = 20.0  # seconds of processor time; an unmarked test is meant to need at most 3


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    start = sum(os.times()[:4])
    yield
    used = sum(os.times()[:4]) - start  # of this process and of the ended processes that it started
    if used > LIMIT and item.get_closest_marker("slow") is None:
        pytest.fail(f"took {used:.1f} s of processor time, over {LIMIT:.0f} s; make it faster or mark it slow", False)
