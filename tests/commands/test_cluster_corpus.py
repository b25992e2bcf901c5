import dataclasses
import json
import os
import random
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_in_process import InProcess

from homespun.commands import cluster_corpus, cluster_text
from homespun.commands.cluster_corpus import UNITS, build_on_cluster
from homespun.commands.cluster_text import SharedText, draw_texts, run_tasks, sample_texts
from homespun.commands.preparation import make_corpus, train_tokenizer
from homespun.data.corpus import Corpus
from homespun.data.reading import reading
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY
from homespun.io.cluster import refusal
from homespun.text.sources import ReadProgress
from homespun.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine files with repeated and changed texts, one without records, and one with a blank text."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(1)
    words = [f"w{number}" for number in range(300)]
    texts = [" ".join(draw.choices(words, k=draw.randint(2, 40))) for _ in range(450)]
    for number in range(3, len(texts), 3):
        other = texts[draw.randrange(number)].split()
        if number % 2:
            other[draw.randrange(len(other))] = "changed"
        texts[number] = " ".join(other)
    for number in range(9):
        part = [{"text": text, "label": str(len(text) % 3)} for text in texts[50 * number : 50 * number + 50]]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    (folder / "4b.jsonl").write_text("")
    (folder / "4c.jsonl").write_text('{"text": " ", "label": "0"}\n')
    return folder


@pytest.fixture(scope="module")
def tokenizer(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train_tokenizer(reading([str(files)]), tmp_path_factory.mktemp("tokenizer"), vocab_size=500)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_corpus, cluster_text):
        monkeypatch.setattr(module, "connect", lambda: InProcess)


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.setattr(cluster_text, "_UNIT_BYTES", 3 * (files / "0.jsonl").stat().st_size)
    monkeypatch.setattr(cluster_corpus, "_ROWS", 17)


def contents(corpus: Corpus) -> list[tuple[list[int], str | None]]:
    return [(corpus.tokens(index).tolist(), label) for index, label in enumerate(corpus.labels())]


@pytest.mark.usefixtures("in_process", "small_units")
@pytest.mark.parametrize("duplicates", ["keep", "exact", "near"])
def test_the_corpus_is_that_of_one_machine(
    files: Path, tokenizer: Tokenizer, duplicates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_corpus, "_BUCKET_BYTES", 10_000)
    text = reading([str(files)], label_field="label", duplicates=duplicates)
    alone = make_corpus(text, tokenizer, tmp_path / "alone", sentences=True)
    calls = []
    together = build_on_cluster(
        text, tokenizer, tmp_path / "together", sentences=True, progress=lambda *call: calls.append(call)
    )
    assert contents(together) == contents(alone)
    ends = [corpus.sentence_ends(3).tolist() for corpus in (alone, together)]
    assert ends[0] == ends[1]
    for name in ("num_bytes", "num_words", "num_tokens"):
        assert getattr(together, name) == getattr(alone, name)
    assert len(together.records) == len(calls) == 5
    assert calls[-1] == (alone.num_bytes, len(alone))
    assert not (tmp_path / "together" / UNITS).exists()


@pytest.mark.usefixtures("in_process", "small_units")
def test_the_number_of_tasks_that_hash_is_bounded(
    files: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, from_items = [], InProcess.data.from_items

    def recorded(items: list[dict[str, int]], override_num_blocks: int) -> Any:
        blocks.append((len(items), override_num_blocks))
        return from_items(items, override_num_blocks)

    monkeypatch.setattr(InProcess.data, "from_items", staticmethod(recorded))
    monkeypatch.setattr(cluster_corpus, "_TASKS", 1)
    build_on_cluster(reading([str(files)], duplicates="near"), tokenizer, tmp_path / "out")
    assert blocks == [(5, 4)]  # five units, and two tasks for each of two processors


@pytest.mark.usefixtures("in_process", "small_units")
def test_a_stopped_build_goes_on_with_the_missing_units(
    files: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = reading([str(files)], duplicates="near")
    whole = build_on_cluster(text, tokenizer, tmp_path / "whole")
    out, encoded = tmp_path / "out", []

    def stopped(done_bytes: int, done_documents: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_on_cluster(text, tokenizer, out, progress=stopped)
    with (out / UNITS).open("a") as file:
        file.write('{"unit": 0, "sha')  # by a kill
    with pytest.raises(UserError, match="changed inputs or other settings"):
        build_on_cluster(text, tokenizer, out, sentences=True)
    encode = cluster_corpus.encode_unit
    monkeypatch.setattr(cluster_corpus, "encode_unit", lambda *call: encoded.append(call[1]) or encode(*call))
    assert contents(build_on_cluster(text, tokenizer, out)) == contents(whole)
    assert len(encoded) == 4
    with pytest.raises(UserError, match="finished corpus"):
        build_on_cluster(text, tokenizer, out)


@pytest.mark.usefixtures("in_process", "small_units")
def test_a_build_that_was_killed_before_its_record_was_removed(
    files: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    text, out, records = reading([str(files)]), tmp_path / "out", []
    whole = build_on_cluster(text, tokenizer, out, progress=lambda *call: records.append((out / UNITS).read_text()))
    (out / UNITS).write_text(records[-1])
    assert contents(build_on_cluster(text, tokenizer, out)) == contents(whole)
    assert not (out / UNITS).exists()
    (out / UNITS).write_text("")
    with pytest.raises(UserError, match="was altered"):
        build_on_cluster(text, tokenizer, out)


@pytest.mark.usefixtures("in_process")
def test_temporary_files_of_killed_workers_are_removed(
    files: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, encode = tmp_path / "out", cluster_corpus.encode_unit

    def killed_once(*call: Any) -> str:
        (out / f"{TEMPORARY}1-tokens").write_text("half")
        return encode(*call)

    monkeypatch.setattr(cluster_corpus, "encode_unit", killed_once)
    build_on_cluster(reading([str(files)]), tokenizer, out)
    names = ["corpus.json", "shards.arrow", "tokenizer", "tokens-00000-00000.arrow"]
    assert sorted(entry.name for entry in out.iterdir()) == names


def resolve(documents: list[int], groups: list[int]) -> list[int]:
    table = {"document": np.array(documents, np.int64), "group": np.array(groups, np.uint64)}
    halves = [{name: column[part] for name, column in table.items()} for part in (slice(2), slice(2, None))]
    return cluster_corpus.resolve(halves).tolist()


def test_of_a_chain_of_near_duplicates_each_second_one_stays() -> None:
    # 3 and 5, 5 and 7, 7 and 9, 3 and 11
    assert resolve([7, 7, 5, 3, 5, 9, 9, 3, 11], [1, 2, 2, 3, 3, 1, 4, 5, 5]) == [5, 9, 11]
    assert resolve([4, 8, 9], [0, 0, 0]) == [4, 8, 9]
    assert resolve([], []) == []


def test_a_text_that_equals_an_earlier_one_has_no_near_duplicates() -> None:
    documents, hashes = [6, 4, 2, 4, 4, 6, 6], [5, 5, 7, 7, 6, 6, 8]
    near = [True, True, False, False, True, True, False]
    rows = {"document": np.array(documents), "hash": np.array(hashes), "near": np.array(near)}
    shared = cluster_corpus._shared(rows, buckets=1)
    assert sorted(shared["document"].tolist()) == [4, 4, 4, 6, 6]  # two bands, and 4 equals 2
    distinct = cluster_corpus._distinct(shared)
    assert distinct["document"].tolist() == [4, 6]
    assert cluster_corpus.resolve([distinct]).tolist() == [4]


@pytest.mark.usefixtures("in_process")
def test_inputs_that_a_cluster_cannot_read_are_refused(files: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text("{")
    os.mkfifo(tmp_path / "pipe.txt")
    refused = {"empty.jsonl": "no text", "broken.jsonl": "JSON", "pipe.txt": "only once"}
    entries = {str(tmp_path / name): problem for name, problem in refused.items()}
    for entry, problem in (entries | {"owner/name": "hub", "https://a.b/c.txt": "web page"}).items():
        with pytest.raises(UserError, match=problem):
            build_on_cluster(reading([entry]), tokenizer, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="web page"):
        sample_texts(reading(["https://a.b/c.txt"]))
    with pytest.raises(UserError, match="not empty"):
        build_on_cluster(reading([str(files)]), tokenizer, tmp_path)


def test_workers_of_another_version_or_without_the_folder_are_refused(files: Path, tmp_path: Path) -> None:
    text = SharedText.divide(reading([str(files)]))
    other = dataclasses.replace(text, version="0")
    for read in (lambda: next(other.documents(0)), lambda: draw_texts(other, 0, 1)):
        with pytest.raises(UserError, match="not 0; install one version"):
            read()
    with pytest.raises(UserError, match=r"does not see .* share"):
        next(cluster_corpus._Job(text, str(tmp_path), False, "keep").documents(0))


def test_a_cluster_that_does_not_answer(
    files: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match=r"cannot reach the Ray cluster 127.*RAY_ADDRESS"):
        build_on_cluster(reading([str(files)]), tokenizer, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("in_process", "small_units")
def test_a_sample_of_all_text_trains_the_tokenizer_of_one_machine(
    files: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = reading([str(files)], duplicates="keep")
    calls, read = [], ReadProgress([str(files)])
    texts = sample_texts(text, progress=lambda *call: calls.append(call), read_progress=read)
    assert texts == [document.text for document in text.documents()]
    assert calls[-1] == (sum(map(len, texts)), 450)
    assert read.done == sum(file.stat().st_size for file in files.iterdir())
    alone, together = (
        train_tokenizer(text, tmp_path / str(ray), vocab_size=500, ray=ray).fingerprint for ray in (False, True)
    )
    assert alone == together


@pytest.mark.usefixtures("in_process", "small_units")
def test_a_sample_is_bounded_and_a_function_of_the_files(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = reading([str(files)], duplicates="keep")
    longest = max(len(document.text) for document in text.documents())
    texts = sample_texts(text, characters=5_000)
    units = SharedText.divide(text)
    assert 5_000 <= sum(map(len, texts)) < 5_000 + len(units.units) * (1 + longest)
    monkeypatch.setattr(InProcess, "wait", lambda running: (running[:1], running[1:]))  # in another order
    assert sample_texts(text, characters=5_000) == texts
    # a larger share has the documents of a smaller one
    shares = [draw_texts(units, 1, share)[1] for share in (1, 500, 2_000)]
    assert len(shares[0]) == 1
    assert set(shares[0]) < set(shares[1]) < set(shares[2])


@pytest.mark.slow
@pytest.mark.usefixtures("small_units")
@pytest.mark.filterwarnings("ignore")  # of Ray's own processes and files
def test_a_corpus_is_built_by_workers_of_ray(
    files: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        text = reading([str(files)], label_field="label", duplicates="near")
        together = make_corpus(text, tokenizer, tmp_path / "together", ray=True)
        assert contents(together) == contents(make_corpus(text, tokenizer, tmp_path / "alone"))
        monkeypatch.setattr(cluster_text, "_UNIT_BYTES", 1)
        text = dataclasses.replace(text, duplicates="keep")
        sampled = train_tokenizer(text, tmp_path / "sampled", vocab_size=500, ray=True)
        assert sampled.fingerprint == train_tokenizer(text, tmp_path / "all", vocab_size=500).fingerprint
        missing = cluster_text.SharedText(text, ((str(files / "missing.jsonl"),),), (1,), version("homespun"))
        with pytest.raises(ray.exceptions.RayError) as error:
            list(run_tasks(ray, draw_texts, missing, [(0, 1)]))
        assert str(refusal(error.value)).startswith(f"{files}/missing.jsonl: no such file")
    finally:
        ray.shutdown()
