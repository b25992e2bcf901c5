"""A corpus built by two workers of a local Ray cluster, and by one machine with two threads.

Text is generated: documents of Zipf-distributed words of up to three syllables in JSONL files of about 8 MB. A tenth
repeat a document of the same file or one that eight files share, and a tenth change some words of one. Both builds
remove near-duplicates and run alternately.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from homespun.commands.preparation import make_corpus, train_tokenizer
from homespun.data.corpus import Corpus
from homespun.data.reading import reading
from homespun.io.cluster import connect

_FILE_BYTES, _WORDS, _CHANGED, _DRAWS = 8 * 2**20, 50_000, 3, 2**20


def measure(megabytes: int, rounds: int) -> dict[str, Any]:
    """Build ``megabytes`` of text ``rounds`` times each way, or once with Ray alone for 0 rounds.

    Peaks of memory and seconds of processors are those of the last build.
    """
    connect()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _write(folder / "text", megabytes * 10**6)
        text = reading([str(folder / "text")], duplicates="near")
        tokenizer = train_tokenizer(reading([str(files[0])]), folder / "tokenizer", vocab_size=8_000)
        seconds: dict[str, list[float]] = {"one machine": [], "ray": []} if rounds else {"ray": []}
        digests: dict[str, str] = {}
        for number in range(max(1, rounds)):
            for kind, times in seconds.items():
                with _peaks() as memory:
                    start = time.perf_counter()
                    corpus = make_corpus(text, tokenizer, folder / f"{kind}-{number}", workers=2, ray=kind == "ray")
                    times.append(round(time.perf_counter() - start, 1))
                digests[kind] = _digest(corpus) if rounds else ""
        built = {"megabytes": megabytes, "documents": len(corpus), "tokens": corpus.num_tokens, "seconds": seconds}
    if rounds:
        built["ratio"] = round(min(seconds["one machine"]) / min(seconds["ray"]), 3)
        built["equal"] = digests["ray"] == digests["one machine"]
    processors = round(sum(memory.pop(kind) for kind in list(memory) if kind.startswith("pid ")))
    return built | {"peak_megabytes": memory, "processor_seconds": processors}


def _write(folder: Path, num_bytes: int) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{number:05}.jsonl" for number in range(max(1, round(num_bytes / _FILE_BYTES)))]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_write_file, files, range(len(files)), repeat(min(_FILE_BYTES, num_bytes))))
    return files


def _write_file(path: Path, number: int, num_bytes: int) -> None:
    words, table = _words()
    own = np.random.default_rng((1, number))

    def document(random: np.random.Generator) -> np.ndarray:
        return table[random.integers(_DRAWS, size=random.integers(50, 400))]

    shared = np.random.default_rng((2, number // 8))
    known = deque([document(shared) for _ in range(1000)], maxlen=1000)
    written = 0
    with path.open("w") as file:
        while written < num_bytes:
            kind = own.random()
            if kind < 0.2:
                chosen = known[own.integers(len(known))]
                if kind < 0.1:
                    chosen = chosen.copy()
                    chosen[own.integers(len(chosen), size=_CHANGED)] = _WORDS
            else:
                chosen = document(own)
                known.append(chosen)
            text = " ".join([words[word] for word in chosen.tolist()])
            written += file.write(json.dumps({"text": text}) + "\n")


@cache
def _words() -> tuple[list[str], np.ndarray]:
    """Make different words of one to three syllables, the more frequent shorter, and the (_DRAWS,) word of a draw."""
    random = np.random.default_rng(0)
    syllables = np.array([f"{start}{vowel}" for start in "bcdfghjklmnprstvwz" for vowel in "aeiou"])
    words: dict[str, None] = {}
    while len(words) < _WORDS:
        length = 1 + (len(words) >= len(syllables) // 2) + (len(words) >= len(syllables) ** 2 // 2)
        words["".join(random.choice(syllables, length))] = None
    shares = np.cumsum(1 / np.arange(1, _WORDS + 1))
    return [*words, "changed"], (shares / shares[-1]).searchsorted(np.arange(_DRAWS) / _DRAWS, side="right")


def _digest(corpus: Corpus) -> str:
    digest = hashlib.blake2b()
    for index in range(len(corpus)):
        digest.update(corpus.tokens(index).tobytes() + b"/")
    return digest.hexdigest()


@contextlib.contextmanager
def _peaks() -> Iterator[dict[str, float]]:
    """Measure the peak memory of this process and of a worker of Ray in megabytes, without files and shared memory.

    ``pid N``: seconds of processor time of each process of the build, without those of the start.
    """
    found, done = {"driver": 0.0, "worker": 0.0}, threading.Event()
    before: dict[str, float] = {}

    def sample() -> None:
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                name, times = f"pid {process.pid}", process.cpu_times()
                found[name] = times.user + times.system - before.get(name, 0.0)
                if process == here or process.cmdline()[0].startswith("ray::"):
                    kind = "driver" if process == here else "worker"
                    memory = process.memory_info()
                    found[kind] = max(found[kind], round((memory.rss - memory.shared) / 1e6))

    def watch() -> None:
        while not done.wait(2.0):
            sample()

    sample()
    before.update({name: value for name, value in found.items() if name.startswith("pid ")})
    found.update(dict.fromkeys(before, 0.0))
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
