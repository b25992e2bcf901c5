"""Settings of every test: no downloads, GPU or display, empty figures, a limit of processor time if unmarked."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from figures import stop_drawing

# Set before any library reads them; processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"
os.environ["PYTHONSAFEPATH"] = ""  # a command sets it if missing, and tests start `python -m benchmarks`
os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # "false" runs the tests on a GPU, where a few expect other digits
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell, for jobs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

LIMIT = 20.0  # seconds of processor time; an unmarked test is meant to need at most 3


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which each training runs: 0.2 s a time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    start = sum(os.times()[:4])
    yield
    used = sum(os.times()[:4]) - start  # of this process and of the ended processes that it started
    if used > LIMIT and item.get_closest_marker("slow") is None:
        pytest.fail(f"took {used:.1f} s of processor time, over {LIMIT:.0f} s; make it faster or mark it slow", False)


@pytest.fixture(scope="module", autouse=True)
def empty_figures() -> Iterator[pytest.MonkeyPatch]:
    """Figures of reports are empty files: drawing takes most of the time of a short training."""
    with pytest.MonkeyPatch.context() as patch:
        stop_drawing(patch)
        yield patch


@pytest.fixture
def drawn_figures(empty_figures: pytest.MonkeyPatch) -> Iterator[None]:
    """Figures with content, for tests of them."""
    empty_figures.undo()
    yield
    stop_drawing(empty_figures)
