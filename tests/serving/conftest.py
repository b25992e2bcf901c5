from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served_models import TASKS, write_linear, write_linear_tagger, write_network

from homespun.serving.app import create_app
from homespun.serving.models import Models
from homespun.serving.settings import ServingSettings

NETWORKS = (*TASKS, "summarizer", "decoder", "encoder")
Connect = Callable[..., TestClient]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the models, by name."""
    base = tmp_path_factory.mktemp("served")
    networks = {name: write_network(base / name, name) for name in NETWORKS}
    linear = {"linear": write_linear(base / "linear"), "linear-tagger": write_linear_tagger(base / "linear-tagger")}
    return networks | linear


@pytest.fixture(scope="session")
def opened(folders: dict[str, Path]) -> Models:
    """All models, open; the classifier is the default."""
    models = Models(folders)
    models.load()
    return models


@pytest.fixture(scope="module")
def client(opened: Models) -> Iterator[TestClient]:
    """Client of a server of all models."""
    with TestClient(create_app(opened, ServingSettings(max_wait_ms=0))) as made:
        yield made


@pytest.fixture
def connect(opened: Models) -> Iterator[Connect]:
    """Client of a server with other settings, of all models or of those given."""
    with ExitStack() as stack:
        yield lambda models=opened, **settings: stack.enter_context(
            TestClient(create_app(models, ServingSettings(**settings)))
        )
