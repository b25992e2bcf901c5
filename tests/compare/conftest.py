from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from failing_store import Failing

from homespun.compare.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.left, Failing.meanwhile = 10**9, staticmethod(lambda: None)
    Failing.store.clear()
    Failing.pseudo_dirs[:] = [""]
    yield Store("failing://runs", tmp_path / "out")
    Failing.store.clear()
