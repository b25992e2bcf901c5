"""Throughput and latency of `homespun serve` with 64 clients, against FastAPI around a pipeline of transformers.

Each server is a separate process with the same random BERT; the servers alternate. The clients are another
process: each sends one text of AG News, waits for the response, and sends the next. Latency is measured by the clients.
Processor time is the server's and depends less on other work on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.paths import SHARED

WARMUP = 2.0  # seconds
JSON = "application/json"
VOCAB_SIZE = 8_000
SHAPES = {  # layers, width, heads
    "bert-tiny": (2, 128, 2),
    "bert-mini": (4, 256, 4),
    "minilm": (6, 384, 12),
    "bert-base": (12, 768, 12),
}
PEERS = {"per_request": "benchmarks.serve_peers:per_request", "static_batches": "benchmarks.serve_peers:static_batches"}


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with ag_news/train.csv.gz")
    parser.add_argument("--clients", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each (default: %(default)s)")
    parser.add_argument("--servers", nargs="+", default=["ours", *PEERS], choices=["ours", *PEERS])
    parser.add_argument("--shape", default="bert-mini", choices=SHAPES, help="of the BERT (default: %(default)s)")
    parser.add_argument("--quantize", choices=("bf16", "int8"), help="precision of our linear layers")
    options = parser.parse_args(arguments)
    texts = read_texts(options.data / "ag_news" / "train.csv.gz")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = write_model(folder, texts, options.shape)
        ours = ["--quantize", options.quantize] if options.quantize else []
        found: dict[str, list[dict[str, float]]] = {server: [] for server in options.servers}
        for _ in range(options.rounds):
            for server in options.servers:
                found[server].append(_measure(server, folder, ours, texts, options.clients, options.seconds))
                print(f"{server}: {found[server][-1]}", file=sys.stderr, flush=True)
    result = {server: _median(turns) for server, turns in found.items()}
    ratios = {
        peer: round(result["ours"]["requests_per_second"] / result[peer]["requests_per_second"], 2)
        for peer in PEERS
        if {"ours", peer} <= result.keys()
    }
    settings = {
        "shape": options.shape,
        "quantize": options.quantize,
        "clients": options.clients,
        "seconds": options.seconds,
        "rounds": options.rounds,
    }
    return {**settings, "tokens_per_text": tokens, **result, "ratios": ratios}


def read_texts(path: Path) -> list[str]:
    """Read 5,000 texts of AG News."""
    if not path.is_file():
        raise SystemExit(f"no AG News in {path.parent}; give --data FOLDER with ag_news/train.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = itertools.islice(csv.reader(stream), 5_000)
        return [f"{title} {description}" for _, title, description, *_ in rows]


def write_model(folder: Path, texts: Sequence[str], shape: str) -> float:
    """Write a random classifier as transformers does, with a tokenizer; returns the mean tokens of ``texts``."""
    from transformers import BertConfig, BertForSequenceClassification

    from homespun.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(texts, kind="wordpiece", vocab_size=VOCAB_SIZE, lowercase=True)
    layers, width, heads = SHAPES[shape]
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        id2label=dict(enumerate(["world", "sports", "business", "science"])),
        pad_token_id=tokenizer.pad_id,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.for_transformers().save(folder)
    return round(float(np.mean([len(ids) for ids in tokenizer.encode_batch(texts)])), 1)


@contextmanager
def start_server(name: str, folder: Path, ours: Sequence[str]) -> Iterator[tuple[int, psutil.Process, float]]:
    """Start a server; yields its port, its process, and the seconds until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if name == "ours":
        words = ["-m", "homespun", "serve", f"news={folder}", *ours]
    else:
        words = ["-m", "uvicorn", "--factory", PEERS[name], "--log-level", "warning"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"MODEL": str(folder), "HF_HUB_OFFLINE": "1"},
    )
    try:
        while not _is_ready(port):
            if process.poll() is not None:
                raise RuntimeError(f"the server {name} ended; see above")
            time.sleep(0.05)
        yield port, psutil.Process(process.pid), time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _measure(
    server: str, folder: Path, ours: Sequence[str], texts: Sequence[str], clients: int, seconds: float
) -> dict[str, float]:
    with start_server(server, folder, ours) as (port, process, ready):
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            pool.apply(_send, (port, texts, clients, WARMUP))
            before = _processor_seconds(process)
            latencies, in_time, client_seconds = pool.apply(_send, (port, texts, clients, seconds))
            used = _processor_seconds(process) - before
    p50, p99 = np.percentile(latencies, [50, 99])
    return {
        "requests_per_second": round(in_time / seconds, 1),
        "processor_ms": round(1000 * used / len(latencies), 2),
        "client_processor_ms": round(1000 * client_seconds / len(latencies), 2),
        "p50_ms": round(1000 * float(p50), 1),
        "p99_ms": round(1000 * float(p99), 1),
        "p99_to_p50": round(float(p99 / p50), 2),
        "ready_s": round(ready, 2),
    }


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _median(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}


def _send(port: int, texts: Sequence[str], clients: int, seconds: float) -> tuple[list[float], int, float]:
    """Return the latency of each request, the number answered within ``seconds``, and the clients' processor time."""
    before = time.process_time()
    answered = asyncio.run(_send_all(port, texts, clients, seconds))
    latencies = [latency for latency, _ in answered]
    return latencies, sum(in_time for _, in_time in answered), time.process_time() - before


async def _send_all(port: int, texts: Sequence[str], clients: int, seconds: float) -> list[tuple[float, bool]]:
    end = time.perf_counter() + seconds
    found = await asyncio.gather(*(_client(port, texts, number, end) for number in range(clients)))
    return list(itertools.chain.from_iterable(found))


async def _client(port: int, texts: Sequence[str], seed: int, end: float) -> list[tuple[float, bool]]:
    """Send one request after another over one connection; return latencies, and whether they were answered in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    draw, answered = random.Random(seed), []
    while (start := time.perf_counter()) < end:
        body = json.dumps({"texts": [draw.choice(texts)]}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: [::1]\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        size = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.partition(b":")[2]))
        now = time.perf_counter()
        answered.append((now - start, now <= end))
    writer.close()
    return answered
