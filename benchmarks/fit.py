"""`homespun fit` with default settings on six data sets, against scikit-learn.

Data sets: AG News (8,000 training rows), Financial PhraseBank (50Agree), financial topics, patents (IPC section), IMDb
(5,000 rows) and 20 newsgroups, and two held-out ones, SST-2 (8,000 rows) and spoilers in tweets, from ``--data`` (by
default the shared data sets next to the checkout). A fifth is held out if a data set has no test part. The peer is
TF-IDF with a linear support vector machine, fitted on training and validation rows together; differences have a paired
permutation test over the test rows. ``python -m benchmarks fit-peers`` adds other libraries to finished fits.
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
from benchmarks.paths import SHARED
from homespun.report.significance import permutation_test

SETS = ("ag-news", "phrasebank", "topics", "patents", "imdb", "newsgroups")
HELD_OUT = ("sst2", "spoilers")  # not looked at while `fit` was written


def run(arguments: list[str]) -> dict[str, Any]:
    """Fit each data set and compare it with the peer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--sets", nargs="*", choices=(*SETS, *HELD_OUT), default=SETS)
    parser.add_argument("--minutes", type=float, default=20.0, help="of each fit (default: %(default)s)")
    parser.add_argument("--from", dest="start_from", nargs="*", default=[], help="pretrained models")
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
        ours, svc = correct(folder / "fit"), linear_svc(train, test)
        results[name] = {
            "selected": fitted["title"],
            "accuracy": float(ours.mean()),
            "linear-svc": {"accuracy": float(svc.mean()), "p": permutation_test(ours - svc, 1.0)},
            "candidates": {one["name"]: one["test"]["accuracy"] for one in fitted["candidates"]},
            "minutes": round(minutes, 1),
        }
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    above = sum(one["accuracy"] > one["linear-svc"]["accuracy"] for one in results.values())
    return {"minutes": options.minutes, "results": results, "above_linear_svc": above}


def correct(folder: Path) -> np.ndarray:
    """Read the predictions of the selected model of a fit: (test rows,) 1 where correct."""
    selected = json.loads((folder / "result.json").read_text(encoding="utf-8"))["selected"]
    lines = (folder / "predictions" / f"{selected}.jsonl").read_text(encoding="utf-8").splitlines()
    return np.array([one["truth"] == one["predicted"] for one in map(json.loads, lines)], dtype=float)


def linear_svc(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Fit TF-IDF (words and word pairs) + LinearSVC, and return (test rows,) 1 where correct."""
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC(random_state=0))
    return np.asarray(model.fit(train.text, train.label).predict(test.text) == test.label, dtype=float)


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
