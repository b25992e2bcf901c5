"""Byte language model (`spun-decoder`): bits per byte on held-out text and learning curve, against a 5-gram model.

Trained on IMDb's training reviews and WikiText-2's validation text, and evaluated on the test text of both; a 5-gram
model (interpolated Kneser-Ney) is trained on the same bytes. Both predict the bytes of a document and its end.
``--minutes`` is the training budget on the wall clock. The same command resumes, and a larger ``--minutes`` extends a
finished run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.ngrams import KneserNey, bits_per_symbol
from benchmarks.paths import SHARED
from homespun.commands.pretrain import pretrain
from homespun.commands.recipe import pretrain_recipe
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.hf.open import open_model
from homespun.io.atomic import write_bytes
from homespun.models.backbone import Encoder
from homespun.models.heads import CausalLMHead
from homespun.models.model import Model
from homespun.report.console import Display
from homespun.report.figure import PALETTE, Curve, Look, drawing
from homespun.text.sources import Document
from homespun.text.tokenizer import SPECIAL_TOKENS, Tokenizer

BYTES = 256
LENGTH = 256
SETTINGS = (
    f"data.max_length={LENGTH}",
    "data.validation_rows=256",
    "train.batch_size=8",
    "train.validate_every=0.05",
    "train.checkpoint_every=2m",
)


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks bytes", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with imdb and wikitext2")
    parser.add_argument("--out", type=Path, default=Path("runs/bytes"))
    parser.add_argument("--minutes", type=float, default=60.0, help="of training (default: %(default)s)")
    parser.add_argument("--recipe", default="spun-decoder", help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=500_000, help="bytes measured of each (default: %(default)s)")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes to the recipe")
    options = parser.parse_args(arguments)
    if not ((options.data / "imdb").is_dir() and (options.data / "wikitext2").is_dir()):
        raise SystemExit(f"no imdb and wikitext2 in {options.data}: give --data FOLDER that has both")
    torch.set_num_threads(options.threads)
    out: Path = options.out
    corpus = _corpus(out / "corpus", options.data)
    held_out = {name: _held_out(texts, options.held_out) for name, texts in _test(options.data).items()}

    settings = [f"data.corpus={out / 'corpus'}", f"train.budget.time={60 * options.minutes:g}", *SETTINGS]
    recipe = pretrain_recipe(options.recipe, [*settings, *options.settings])
    folder = out / "model"
    finished = folder / "result.json"
    with Display(json=False) as display:
        if not (finished.is_file() and _budget(folder) == 60 * options.minutes):
            pretrain(recipe, folder, resume=folder.is_dir(), display=display)
    result = json.loads(finished.read_text(encoding="utf-8"))

    grams = _five_grams(corpus, recipe.data.validation, recipe.train.seed, held_out)
    stored = open_model(str(folder))
    ours = {name: bits_per_byte(stored.model, stored.tokenizer, texts) for name, texts in held_out.items()}
    curve = _curve(folder / "metrics.jsonl")
    write_bytes(out / "bytes-curve.svg", _plot(curve, grams["validation"]))
    return {
        "unit": "bits per byte",
        "minutes": options.minutes,
        "threads": options.threads,
        "steps": result["steps"],
        "bytes_seen": result["tokens"],
        "parameters": result["parameters"],
        "training_bytes": corpus.num_bytes,
        "held_out_bytes": {name: sum(map(len, texts)) for name, texts in held_out.items()},
        "ours": {name: round(bits, 4) for name, bits in ours.items()},
        "five_gram": {name: round(float(grams[name]), 4) for name in [*held_out, "validation"]},
        "five_gram_seconds": round(grams["seconds"], 1),
        "curve": curve,
        "ratios": {name: round(ours[name] / float(grams[name]), 3) for name in held_out},
    }


def _budget(folder: Path) -> float:
    import yaml

    return float(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["train"]["budget"]["time"])


def _corpus(folder: Path, data: Path) -> Corpus:
    if (folder / "corpus.json").is_file():
        return Corpus.open(folder)
    tokenizer = Tokenizer.train(["a"], kind="bpe", vocab_size=len(SPECIAL_TOKENS) + BYTES)
    return build_corpus(_documents(data), tokenizer, folder, inputs="imdb train, wikitext2 valid")


def _documents(data: Path) -> Iterator[Document]:
    for text in _articles(data / "wikitext2" / "valid.txt"):
        yield Document(text)
    for text in _reviews(data / "imdb" / "train.jsonl.gz"):
        yield Document(text)


def _test(data: Path) -> dict[str, Iterator[str]]:
    return {
        "wikitext2": _articles(data / "wikitext2" / "test.txt"),
        "imdb": _reviews(data / "imdb" / "test.jsonl.gz"),
    }


def _articles(path: Path) -> Iterator[str]:
    """Yield WikiText's articles, each with its title."""
    for part in re.split(r"(?m)^(?= = [^=]+ = $)", path.read_text(encoding="utf-8")):
        if text := part.strip():
            yield text


def _reviews(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line)["text"] for line in lines]
    for row in np.random.default_rng(0).permutation(len(rows)):  # the file is sorted by class
        yield rows[row]


def _held_out(texts: Iterator[str], size: int) -> list[bytes]:
    """Return complete documents up to a total size."""
    kept: list[bytes] = []
    for text in texts:
        if sum(map(len, kept)) >= size:
            break
        kept.append(text.encode())
    return kept


def _symbols(ids: NDArray[Any]) -> NDArray[np.int64]:
    """Convert bytes to ids from 1; 0 is the end of a text."""
    return ids.astype(np.int64) - (len(SPECIAL_TOKENS) - 1)


def _five_grams(corpus: Corpus, share: float, seed: int, held_out: dict[str, list[bytes]]) -> dict[str, float]:
    """Compute bits per byte of a 5-gram model trained on the same documents."""
    began = time.perf_counter()
    training, validation = corpus.split(share, seed)
    model = KneserNey((_symbols(corpus.tokens(index)) for index in training.indices()), symbols=BYTES)
    found = {"seconds": time.perf_counter() - began}
    found["validation"] = bits_per_symbol(model, [_symbols(corpus.tokens(index)) for index in validation.indices()])
    for name, texts in held_out.items():
        ids = corpus.tokenizer.encode_batch([text.decode() for text in texts])
        found[name] = bits_per_symbol(model, [_symbols(i) for i in ids])
    return found


def bits_per_byte(model: Model, tokenizer: Tokenizer, texts: list[bytes], *, length: int = LENGTH) -> float:
    """Compute bits per byte of a byte model, over all texts and their ends.

    Each byte is predicted from at least ``length / 2 - 1`` previous bytes, if there are as many. Windows have two bytes
    less than rows of ``length``, which end with [SEP]: at the last position a model predicts no byte.
    """
    backbone, head = model.eval().backbone, model.head
    assert isinstance(backbone, Encoder)
    assert isinstance(head, CausalLMHead)
    nats = 0.0
    span = length - 2
    with torch.no_grad():
        for ids in tokenizer.encode_batch([text.decode() for text in texts]):
            text = np.append(ids.astype(np.int64), tokenizer.sep_id)
            known = 0  # bytes that are predicted
            for first in range(0, len(text), span // 2):
                last = min(first + span, len(text))
                # every window begins as a row does in training
                window = torch.from_numpy(np.concatenate([[tokenizer.cls_id], text[first : last - 1]]))[None]
                hidden = backbone(window)[0, known - first :]
                nats += float(head.predict(hidden, torch.from_numpy(text[known:last])).loss)
                known = last
                if last == len(text):
                    break
    return nats / math.log(2.0) / sum(map(len, texts))


def _curve(metrics: Path) -> list[dict[str, float]]:
    """Return minutes, bytes, and bits per token of the held-out part of the training text."""
    events = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [
        {
            "minutes": round(event["time"] / 60, 2),
            "bytes": event["tokens"],
            "bits": round(event["loss/causal"] / math.log(2.0), 4),
        }
        for event in events
        if event["event"] == "validation"
    ]


def _plot(curve: list[dict[str, float]], five_gram: float) -> bytes:
    minutes, bits = [point["minutes"] for point in curve], [point["bits"] for point in curve]
    with drawing("bytes", "", xlabel="time of training, minutes", ylabel="bits per byte, held out") as canvas:
        canvas.draw(Curve(minutes, bits, Look(PALETTE[0]), "byte model", size=3.5))
        canvas.draw(Curve((), [five_gram], Look(PALETTE[1], "--", ""), "5-gram"))
    return canvas.plot.svg
