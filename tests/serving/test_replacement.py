"""Replacement of a model folder under load: no request is lost, and a damaged folder changes nothing."""

import concurrent.futures
import gc
import logging
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest
from served_models import TEXTS, write_linear, write_network

from conftest import Connect
from homespun.errors import UserError
from homespun.serving import app
from homespun.serving.models import Models, ServedModel


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["classifier"], tmp_path / "news"))


@pytest.fixture
def models(folder: Path) -> Models:
    models = Models({"news": folder})
    models.load()
    return models


def refresh(models: Models) -> list[str]:
    """A folder must look the same twice before it is opened."""
    return models.refresh() + models.refresh()


def test_a_model_is_replaced_under_load(models: Models, folder: Path, connect: Connect) -> None:
    client = connect(models, max_wait_ms=0)
    body, ended = {"texts": TEXTS}, threading.Event()

    def ask() -> str:
        answer = client.post("/predict", json=body)
        assert answer.status_code == 200, answer.text
        return str([round(one["probability"], 4) for one in answer.json()["predictions"]])

    def ask_often() -> list[str]:
        found = []
        while not ended.is_set():
            found.append(ask())
        return [*found, ask()]

    before = ask()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask_often) for _ in range(4)]
        try:
            write_network(folder, "classifier", seed=2)
            assert refresh(models) == ["news"]
        finally:
            ended.set()
        answers = [one.result() for one in running]
    after = ask()
    assert before != after
    assert {one[-1] for one in answers} == {after}
    assert {answer for one in answers for answer in one} <= {before, after}
    assert refresh(models) == []


def test_a_replaced_model_is_collected(
    models: Models, folder: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REFRESH_SECONDS", 0.01)
    bundle = models.get("news").pipeline.bundle
    assert bundle is not None
    cycle = [bundle.model]
    cycle.append(cycle)  # type: ignore[arg-type]
    bundle.model.cycle = cycle  # type: ignore[assignment]
    old = weakref.ref(bundle.model)
    del bundle, cycle
    app.freeze_objects()
    connect(models, timeout_s=0.05)
    try:
        write_network(folder, "classifier", seed=2)
        end = time.monotonic() + 10
        while (old() is not None or not gc.get_freeze_count()) and time.monotonic() < end:
            time.sleep(0.01)
        assert old() is None
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_a_damaged_folder_is_reported_once(models: Models, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = models.get("news")
    before = served.predict(TEXTS)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])  # in the file that is open
    with caplog.at_level(logging.WARNING, logger="homespun.serving.models"):
        assert refresh(models) + refresh(models) == []
    (record,) = caplog.records
    assert "news was not replaced" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert models.get("news") is served
    assert served.predict(TEXTS) == before
    write_network(folder, "classifier", seed=3)
    assert refresh(models) == ["news"]
    shutil.rmtree(folder)
    assert refresh(models) == []
    assert models.get("news").predict(TEXTS)


def test_a_folder_that_changes_is_not_opened(models: Models, folder: Path) -> None:
    for size in range(3):
        (folder / "being-written").write_bytes(b"x" * size)
        assert models.refresh() == []
    assert models.refresh() == ["news"]


def test_a_linear_model_replaces_a_network(models: Models, folder: Path) -> None:
    assert "embed" in models.get(None).capabilities
    shutil.rmtree(folder)
    write_linear(folder)
    assert refresh(models) == ["news"]
    assert models.get(None).capabilities == {"predict"}


def test_a_fine_tuned_model_with_damaged_metadata_is_refused(folder: Path) -> None:
    description = folder / "homespun.json"
    description.write_text(description.read_text().replace('"max_length": 32', '"max_length": "many"'))
    with pytest.raises(UserError, match="max_length"):
        ServedModel.open("news", folder)


def test_a_replaced_model_is_quantized_too(folder: Path) -> None:
    def probabilities(served: ServedModel) -> list[object]:
        return [one["probability"] for one in served.predict(TEXTS)]

    models = Models({"news": folder}, quantize="int8")
    models.load()
    quantized, plain = models.get("news"), ServedModel.open("news", folder)
    assert [one["label"] for one in quantized.predict(TEXTS)] == [one["label"] for one in plain.predict(TEXTS)]
    assert probabilities(quantized) != probabilities(plain)
    (folder / "touched").write_text("")
    assert refresh(models) == ["news"]
    assert probabilities(models.get("news")) == probabilities(quantized)


def test_a_linear_model_cannot_be_quantized(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="no linear layers to quantize"):
        ServedModel.open("mine", folders["linear"], quantize="int8")
