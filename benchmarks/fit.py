"""`homespun fit` with default settings on six data sets, against scikit-learn, fastText and frozen encoders.

Data sets: AG News (8,000 training rows), Financial PhraseBank (50Agree), financial topics, patents (IPC section), IMDb
(5,000 rows) and 20 newsgroups, and two held-out ones, SST-2 (8,000 rows) and spoilers in tweets, from ``--data`` (the
shared data sets beside the checkout by default). Sets without a test of their own have a fifth held out. The first peer
is scikit-learn's TF-IDF with a linear support vector machine. ``--peers`` adds fastText (``pip install
fasttext-numpy2-wheel``), which searches its settings for the minutes of the fit, and a logistic regression on the
vectors of the checkpoint by sentence-transformers. Peers are fitted on training and validation rows together, but for
fastText's search; differences have a paired permutation test over the test rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

import homespun
from homespun.report.significance import permutation_test

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SETS = ("ag-news", "phrasebank", "topics", "patents", "imdb", "newsgroups")
HELD_OUT = ("sst2", "spoilers")  # not looked at while `fit` was written


def run(arguments: list[str]) -> dict[str, Any]:
    """Fit each data set and compare it with the peer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--sets", nargs="*", choices=(*SETS, *HELD_OUT), default=SETS)
    parser.add_argument("--minutes", type=float, default=20.0, help="of each fit (default: %(default)s)")
    parser.add_argument("--from", dest="start_from", nargs="*", default=[], help="pretrained models")
    parser.add_argument("--peers", nargs="*", choices=("fasttext", "frozen"), default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/fit-benchmark"))
    options = parser.parse_args(arguments)
    results = {}
    for name in options.sets:
        train, test = read(name, options.data)
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for part, rows in (("train", train), ("test", test)):
            rows.to_csv(folder / f"{part}.csv", index=False, quoting=csv.QUOTE_ALL)  # pandas leaves lone "\r" bare
        start = time.perf_counter()
        fitted = homespun.fit(
            [str(folder / "train.csv")],
            folder / "fit",
            test=[str(folder / "test.csv")],
            start_from=options.start_from,
            seconds=60 * options.minutes,
        )
        minutes = (time.perf_counter() - start) / 60
        lines = (
            (folder / "fit" / "predictions" / f"{fitted['selected']}.jsonl").read_text(encoding="utf-8").splitlines()
        )
        ours = np.array([one["truth"] == one["predicted"] for one in map(json.loads, lines)], dtype=float)
        peers = {"linear-svc": linear_svc(train, test)}
        if "fasttext" in options.peers:
            peers["fasttext"] = fasttext(train, test, folder, 60 * options.minutes)
        if "frozen" in options.peers:
            peers |= {f"frozen {Path(path).name}": frozen(train, test, path) for path in options.start_from}
        results[name] = {
            "selected": fitted["title"],
            "accuracy": float(ours.mean()),
            "peers": {
                peer: {"accuracy": float(right.mean()), "p": permutation_test(ours - right, 1.0)}
                for peer, right in peers.items()
            },
            "candidates": {one["name"]: one["test"]["accuracy"] for one in fitted["candidates"]},
            "minutes": round(minutes, 1),
        }
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    above = sum(one["accuracy"] > one["peers"]["linear-svc"]["accuracy"] for one in results.values())
    return {"minutes": options.minutes, "results": results, "above_linear_svc": above}


def linear_svc(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Score TF-IDF (words and pairs) + LinearSVC: (test rows,) 1 for right predictions."""
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC(random_state=0))
    return np.asarray(model.fit(train.text, train.label).predict(test.text) == test.label, dtype=float)


def fasttext(train: pd.DataFrame, test: pd.DataFrame, folder: Path, seconds: float) -> np.ndarray:
    """Score fastText with the settings that its own search finds: (test rows,) 1 for right predictions."""
    import fasttext as library

    classes = {f"__label__{number}": name for number, name in enumerate(sorted(set(train.label)))}
    prefixes = {name: prefix for prefix, name in classes.items()}
    learned, validation = train_test_split(train, test_size=0.15, stratify=train.label, random_state=0)
    for part, rows in (("learned", learned), ("validation", validation)):
        lines = (f"{prefixes[label]} {_line(text)}\n" for text, label in zip(rows.text, rows.label, strict=True))
        (folder / f"{part}.fasttext").write_text("".join(lines), encoding="utf-8")
    model = library.train_supervised(
        str(folder / "learned.fasttext"),
        autotuneValidationFile=str(folder / "validation.fasttext"),
        autotuneDuration=round(seconds),
        verbose=0,
    )
    found = [classes[model.predict(_line(text))[0][0]] for text in test.text]
    return np.asarray(np.array(found) == test.label.to_numpy(), dtype=float)


def _line(text: str) -> str:
    return " ".join(text.lower().split())


def frozen(train: pd.DataFrame, test: pd.DataFrame, path: str) -> np.ndarray:
    """Score a logistic regression on vectors of sentence-transformers: (test rows,) 1 for right predictions."""
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegressionCV

    encoder = SentenceTransformer(path, device="cpu")
    vectors, held_out = (encoder.encode(part.text.tolist(), show_progress_bar=False) for part in (train, test))
    model = LogisticRegressionCV(Cs=6, cv=5, max_iter=2_000, n_jobs=2).fit(vectors, train.label)
    return np.asarray(model.predict(held_out) == test.label, dtype=float)


def read(name: str, data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read training and test rows with the columns ``text`` and ``label``, both strings."""
    test = None
    match name:
        case "ag-news":
            train, test = (_ag_news(data / "ag_news" / f"{part}.csv.gz") for part in ("train", "test"))
            train = _stratified(train, 8_000)
        case "phrasebank":
            path = data / "financial_phrasebank" / "Sentences_50Agree.txt"
            lines = path.read_text(encoding="latin1").splitlines()
            train = pd.DataFrame([line.rsplit("@", 1) for line in lines], columns=["text", "label"])
        case "topics":
            train, test = (
                pd.read_csv(data / "twitter_financial_topic" / f"{part}.csv.gz") for part in ("train", "valid")
            )
        case "patents":
            train = pd.read_csv(data / "patents_ipc" / "patents.csv.gz")
            train["text"] = train.title.fillna("") + ". " + train.abstract.fillna("")
            train["label"] = train.section
        case "imdb":
            train, test = (pd.read_json(data / "imdb" / f"{part}.jsonl.gz", lines=True) for part in ("train", "test"))
            train, test = _stratified(train, 5_000), _stratified(test, 5_000)
        case "sst2":
            train, test = (
                pd.read_csv(data / "sst2" / part, sep="\t", quoting=3).rename(columns={"sentence": "text"})
                for part in ("train.tsv.gz", "dev.tsv")
            )
            train = _stratified(train, 8_000)
        case "spoilers":
            train = pd.read_csv(data / "spoiler_tweets" / "tweet_data.csv", names=["text", "label"])
        case _:
            train, test = (
                pd.read_json(data / "newsgroups20" / f"{part}.jsonl.gz", lines=True) for part in ("train", "test")
            )
    if test is None:
        train, test = train_test_split(train, test_size=0.2, stratify=train.label, random_state=0)
    return tuple(part[["text", "label"]].astype(str) for part in (train, test))


def _ag_news(path: Path) -> pd.DataFrame:
    rows = pd.read_csv(path, header=None)
    return pd.DataFrame({"text": rows[1].fillna("") + " " + rows[2].fillna(""), "label": rows[0]})


def _stratified(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    return train_test_split(rows, train_size=count, stratify=rows.label, random_state=0)[0]
