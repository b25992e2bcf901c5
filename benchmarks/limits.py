"""Extreme inputs: a line of 1 GB, a million labels or tags, ten million documents of one word, a corpus of 100 GB.

Each case runs a command in a new process, and reports its exit code, last line, peak memory and time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.fuzz_seeds import write_seeds

Words = list[str]
_MEMORY = 8_000_000_000  # bytes that a command may take; more is a failure


def long_line(suffix: str) -> Callable[[Path, Path, float], Words]:
    """Build a case with a text of 1 GB in one line."""

    def write(folder: Path, seeds: Path, scale: float) -> Words:
        before, after = {
            ".txt": ("", ""),
            ".jsonl": ('{"text": "', '"}\n'),
            ".json": ('[{"text": "', '"}]'),
            ".csv": ("text\n", "\n"),
        }[suffix]
        path = folder / f"long{suffix}"
        with path.open("w", encoding="utf-8") as file:
            file.write(before)
            for _ in range(int(1000 * scale)):
                file.write("word " * 200_000)
            file.write(after)
        return _build(path, seeds)

    return write


def labels(folder: Path, seeds: Path, scale: float) -> Words:
    """Write a million classes with two examples each."""
    path = _write_labels(folder, scale)
    changes = ["train.budget.steps=4", "data.max_length=16", f"data.validation={path}", f"data.test={path}"]
    return ["finetune", "classify", f"data.train={path}", *changes, "--from", str(seeds / "run"), "--out", "out"]


def fit_labels(folder: Path, seeds: Path, scale: float) -> Words:
    """The same, for `homespun fit`."""
    return ["fit", str(_write_labels(folder, scale)), "--time", "60s", "--out", "out"]


def tags(folder: Path, seeds: Path, scale: float) -> Words:
    """Write a million tags with two words each."""
    path = _write_tags(folder, scale)
    changes = ["train.budget.steps=4", "data.max_length=16", f"data.validation={path}", f"data.test={path}"]
    return ["finetune", "tag", f"data.train={path}", *changes, "--from", str(seeds / "run"), "--out", "out"]


def fit_tags(folder: Path, seeds: Path, scale: float) -> Words:
    """The same, for `homespun fit`."""
    return ["fit", str(_write_tags(folder, scale)), "--time", "60s", "--out", "out"]


def network(verb: str, *, of_words: bool = False, multi_label: bool = False) -> Callable[[Path, Path, float], Words]:
    """Build a case that predicts or evaluates ten texts with a network of a million classes or tags."""

    def write(folder: Path, seeds: Path, scale: float) -> Words:
        from homespun.data.labels import Labels
        from homespun.models.bundle import load_model, save_model
        from homespun.tasks.classification import Classification
        from homespun.tasks.protocol import task_metadata
        from homespun.tasks.taggers import TaggedData
        from homespun.tasks.texts import LabelledData
        from homespun.tasks.token_classification import TokenClassification

        stored = load_model(seeds / "run" / "model")
        names = Labels(tuple(f"label {n}" for n in range(int(1e6 * scale))), multi_label)
        data = TaggedData() if of_words else LabelledData(text="text", label="label", max_length=16)
        objective = TokenClassification() if of_words else Classification()
        model, config = objective.build(stored.model, stored.config, names).export_model()
        task = task_metadata(objective.kind, data)
        save_model(folder / "model", model, config, stored.tokenizer, labels=names, task=task)
        one = {"words": ["a", "b"], "tags": ["label 1", "label 2"]} if of_words else {"text": "a b", "label": "label 1"}
        (folder / "texts.jsonl").write_text(f"{json.dumps(one)}\n" * 10)
        option, out = ("--data", []) if verb == "evaluate" else ("--input", ["--out", "out.jsonl"])
        return [verb, str(folder / "model"), option, str(folder / "texts.jsonl"), *out]

    return write


def words(folder: Path, seeds: Path, scale: float) -> Words:
    """Write ten million different documents of one word."""
    path = folder / "words.csv"
    _write(path, "text", (f"w{n}" for n in range(int(10_000_000 * scale))))
    return _build(path, seeds)


def large_corpus(folder: Path, seeds: Path, scale: float) -> Words:
    """Build a corpus of 100 GB from links to one shard of 16 MB."""
    from homespun.data.corpus import Corpus
    from homespun.data.corpus_build import build_corpus, write_description
    from homespun.text.sources import Document
    from homespun.text.tokenizer import Tokenizer

    text = " ".join(json.loads(line)["text"] for line in (seeds / "texts.jsonl").read_text().splitlines())
    tokenizer = Tokenizer.load(seeds / "tokenizer")
    (ids,) = tokenizer.encode_batch([text])
    texts = (Document(text) for _ in range(8_000_000 // len(ids)))
    corpus = build_corpus(texts, tokenizer, folder / "corpus")
    (record,) = corpus.records
    count = int(100e9 * scale / record.size)
    records = [dataclasses.replace(record, name=f"tokens-{number:05}.arrow") for number in range(count)]
    for other in records[1:]:
        os.link(corpus.path / record.name, corpus.path / other.name)
    totals = {"num_bytes": count * corpus.num_bytes, "num_words": count * (corpus.num_words or 0)}
    write_description(corpus.path, records, tokenizer, **totals, labels={}, sentences=False)
    assert Corpus.open(corpus.path).num_tokens == count * record.tokens
    sizes = ["hidden_size=16", "intermediate_size=24", "num_hidden_layers=1", "num_attention_heads=2"]
    changes = [
        *(f"model.{size}" for size in sizes),
        "train.budget.steps=4",
        "train.batch_size=4",
        "data.max_length=32",
    ]
    return ["pretrain", "roberta-mini", f"data.corpus={folder / 'corpus'}", *changes, "--out", "out"]


CASES: dict[str, Callable[[Path, Path, float], Words]] = {
    **{f"line {suffix}": long_line(suffix) for suffix in (".txt", ".jsonl", ".json", ".csv")},
    "labels": labels,
    "labels, fit": fit_labels,
    "labels, predict": network("predict"),
    "labels, evaluate": network("evaluate"),
    "several labels, evaluate": network("evaluate", multi_label=True),
    "tags": tags,
    "tags, fit": fit_tags,
    "tags, predict": network("predict", of_words=True),
    "tags, evaluate": network("evaluate", of_words=True),
    "words": words,
    "corpus": large_corpus,
}


def _build(source: Path, seeds: Path) -> Words:
    return ["corpus", "build", "--input", str(source), "--tokenizer", str(seeds / "tokenizer"), "--out", "out"]


def _write_labels(folder: Path, scale: float) -> Path:
    path = folder / "labels.csv"
    rows = (f"text {n},label {n % int(1_000_000 * scale)}" for n in range(int(2_000_000 * scale)))
    _write(path, "text,label", rows)
    return path


def _write_tags(folder: Path, scale: float) -> Path:
    path, count = folder / "tags.jsonl", int(1e6 * scale)
    with path.open("w", encoding="utf-8") as file:
        for n in range(0, 2 * count, 10):
            numbers = range(n, n + 10)
            one = {"words": [f"w{m}" for m in numbers], "tags": [f"tag{m % count}" for m in numbers]}
            file.write(json.dumps(one) + "\n")
    return path


def _write(path: Path, header: str, rows: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{header}\n")
        file.writelines(f"{row}\n" for row in rows)


def measure(words: Words, folder: Path, seconds: int) -> dict[str, Any]:
    """Run a command; return exit code, last line, peak memory with and without mapped files, and seconds."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))

    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "homespun", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )
    assert process.stderr is not None
    peak, watched = [0], psutil.Process(process.pid)

    def watch() -> None:
        while process.returncode is None:
            with contextlib.suppress(psutil.Error):
                memory = watched.memory_info()
                peak[0] = max(peak[0], memory.rss - memory.shared)
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    lines = process.stderr.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "exit_code": process.returncode,
        "last_line": lines[-1] if lines else "",
        "traceback": any(line.startswith("Traceback") for line in lines),
        "left": (folder / "out").exists() and process.returncode != 0,
        "peak_anonymous_bytes": peak[0],
        "peak_bytes": usage.ru_maxrss * 1024,
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "seconds": round(time.monotonic() - start, 1),
    }


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks limits", description=__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="case; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--seconds", type=int, default=1200, help="limit of processor time of a command")
    options = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory() as root:
        seeds = Path(root, "seeds")
        write_seeds(seeds)
        for name in options.only or CASES:
            with tempfile.TemporaryDirectory(dir=root) as folder:
                words = CASES[name](Path(folder), seeds, options.scale)
                found[name] = measure(words, Path(folder), options.seconds)
                print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    return {"scale": options.scale, "ours": found}
