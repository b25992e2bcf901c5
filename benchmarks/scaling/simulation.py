"""Store of up to 10^12 tokens in 10^5 shards: time to open it and to read random rows, and memory.

The shards are sparse files of zeros with real document offsets, links to a few files, and therefore in the page cache:
times are those of the index and of mapping a shard, without reading a disk. Each size is measured in a separate
process.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import peak_memory
from homespun.commands.workload import made_up_tokenizer
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import write_description
from homespun.data.corpus_files import TOKENIZER, ShardRecord
from homespun.data.loader import feistel_shuffle
from homespun.data.shards import ShardBuffer
from homespun.data.stream_rows import StreamRows, split_shards

TOKENS, DOCUMENTS = 10_000_000, 10_000  # of a shard
LINKS = 20_000  # of a file: a file system has a limit
LENGTH, ROWS = 2048, 3000  # tokens of a row, rows drawn


def write_shard(folder: Path, name: str, seed: int) -> ShardRecord:
    """Write a sparse shard of zeros."""
    sizes = np.random.default_rng(seed).multinomial(TOKENS - DOCUMENTS, np.full(DOCUMENTS, 1 / DOCUMENTS)) + 1
    buffer = ShardBuffer()
    for size in sizes.tolist():
        buffer.add([np.zeros(size, np.uint16)], None, sentences=False)
    record = buffer.write(folder, name, sentences=False)
    content = (folder / name).read_bytes()
    with (folder / name).open("wb") as file:
        for start in range(0, len(content), 4096):
            page = content[start : start + 4096]
            file.seek(start)
            if page.strip(b"\0"):
                file.write(page)
        file.truncate(len(content))
    return record


def write_corpus(folder: Path, shards: int) -> int:
    """Write a manifest of ``shards`` shards; returns the bytes on disk of all files."""
    folder.mkdir()
    tokenizer = made_up_tokenizer(300)
    tokenizer.save(folder / TOKENIZER)
    records: list[ShardRecord] = []
    for number in range(shards):
        name = f"tokens-{number:05}.arrow"
        if number % LINKS == 0:
            records.append(write_shard(folder, name, number))
        else:
            original = records[number - number % LINKS]
            os.link(folder / original.name, folder / name)
            records.append(replace(original, name=name))
    write_description(
        folder, records, tokenizer, num_bytes=4 * shards * TOKENS, num_words=shards * TOKENS, labels={}, sentences=False
    )
    return sum((folder / record.name).stat().st_blocks * 512 for record in records[::LINKS])


def draw(folder: Path) -> dict[str, float]:
    """Open a corpus, and read random rows."""
    before, start = anonymous_bytes(), time.process_time()
    corpus = Corpus.open(folder)
    training, _ = split_shards(corpus, 0.001, seed=0)
    rows = StreamRows(corpus, training, length=LENGTH)
    opened = time.process_time() - start
    order = feistel_shuffle(np.arange(ROWS), len(rows), key=(0, 0))
    seconds = []
    for position in range(ROWS):
        start = time.process_time()
        index = int(feistel_shuffle(np.array([position]), len(rows), key=(0, 0))[0])
        row = rows[index]
        seconds.append(time.process_time() - start)
        if index != order[position] or len(row.input_ids) != LENGTH:
            raise RuntimeError(f"row {index} has {len(row.input_ids)} tokens")
    quantiles = statistics.quantiles(seconds, n=100)
    times = {"open_seconds": opened, "row_ms": 1e3 * quantiles[49], "row_ms_p99": 1e3 * quantiles[98]}
    return {"rows": len(rows), **times, "anonymous_bytes": anonymous_bytes() - before}


def anonymous_bytes() -> int:
    """Return the resident bytes of this process without mapped files, whose pages the system may drop."""
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def measure(largest: int) -> dict[str, Any]:
    """Measure stores of 100 shards and more, by powers of ten."""
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        shards = 100
        while shards <= largest:
            folder = Path(temporary) / str(shards)
            on_disk = write_corpus(folder, shards)
            peak = peak_memory(draw, folder)
            memory = {"peak_growth_bytes": peak.peak - peak.before, "on_disk": on_disk}  # with mapped pages
            found.append({"shards": shards, "tokens": shards * TOKENS} | peak.result | memory)
            print(found[-1], file=sys.stderr, flush=True)
            shards *= 10
    return {"unit": "seconds of processor time, bytes", "row_tokens": LENGTH, "stores": found}
