"""Corpus building, from a file to the finished folder, against bare `tokenizers` encoding the same texts in memory."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine

from benchmarks.measure import measure_interleaved, peak_memory, seconds
from benchmarks.paths import SHARED
from homespun.data.corpus_build import build_corpus
from homespun.text.pydocs import python_documentation
from homespun.text.sources import Document, read_documents
from homespun.text.tokenizer import Tokenizer

PEER_BATCH = 1000  # documents to an `encode_batch`, as in the examples of `datasets`


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks corpus", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=40.0, help="text to encode (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=16_000, help="of a byte-level BPE (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        return _compare(Path(name), options.megabytes, options.vocab_size, options.rounds)


def _compare(folder: Path, megabytes: float, vocab_size: int, rounds: int) -> dict[str, Any]:
    source, texts = _texts(int(megabytes * 1e6))
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    num_bytes = sum(len(text.encode()) for text in texts)
    print(f"{len(texts):,} documents, {num_bytes / 1e6:.1f} MB of {source}", file=sys.stderr)
    Tokenizer.train(texts, kind="bpe", vocab_size=vocab_size, max_characters=10_000_000).save(folder / "tokenizer")

    def ours() -> float:
        return num_bytes / seconds(lambda: build(file, folder / "tokenizer", folder / "corpus"))

    def peer() -> float:
        engine = Engine.from_file(str(folder / "tokenizer" / "tokenizer.json"))  # anew: it remembers words
        return num_bytes / seconds(lambda: _encode(engine, texts))

    rates = measure_interleaved({"ours": ours, "peer": peer}, rounds)
    peak = peak_memory(build, file, folder / "tokenizer", folder / "corpus")
    store = sum(path.stat().st_size for path in (folder / "corpus").glob("*.arrow"))
    return {
        "data": source,
        "documents": len(texts),
        "bytes": num_bytes,
        "ours": {"bytes_per_second": round(rates["ours"]), "peak_bytes": peak.peak, "store_bytes": store},
        "peer": {"bytes_per_second": round(rates["peer"])},
        "ratios": {
            "throughput": round(rates["ours"] / rates["peer"], 3),  # target: at least 0.8
            "store_to_text": round(store / num_bytes, 3),  # target: at most 0.6
        },
    }


def build(file: Path, tokenizer: Path, out: Path) -> None:
    """Read the file, encode it, write the folder, and open it."""
    shutil.rmtree(out, ignore_errors=True)
    build_corpus(read_documents([str(file)]), Tokenizer.load(tokenizer), out)


def _encode(engine: Engine, texts: list[str]) -> None:
    for start in range(0, len(texts), PEER_BATCH):
        engine.encode_batch(texts[start : start + PEER_BATCH], add_special_tokens=False)


def _texts(limit: int) -> tuple[str, list[str]]:
    """Return earnings calls and annual reports if available, else documentation of installed packages."""
    files = [SHARED / "maec" / "maec_calls.jsonl.gz", SHARED / "edgar_10k" / "item1a.jsonl.gz"]
    if all(file.exists() for file in files):
        return "earnings calls and annual reports", _until(limit, read_documents([str(file) for file in files]))
    return "documentation of Python packages", _until(limit, python_documentation())


def _until(limit: int, documents: Iterator[Document]) -> list[str]:
    texts = []
    for document in documents:
        if limit <= 0:
            break
        limit -= len(document.text)
        texts.append(document.text)
    return texts
