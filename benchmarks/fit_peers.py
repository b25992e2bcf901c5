"""Classifiers of other libraries with the data and the time limit of a finished `python -m benchmarks fit`.

``fasttext`` (``pip install fasttext-numpy2-wheel``) searches its settings on a seventh of the rows and is trained on
the others. ``autogluon`` (``pip install autogluon.tabular[lightgbm,catboost,xgboost]``) searches ensembles of models of
n-grams. ``setfit`` (``pip install setfit``) fine-tunes the checkpoint ``--from`` on pairs of texts. ``frozen`` is a
logistic regression on the vectors of that checkpoint by sentence-transformers, cross-validated, without a time limit.
Peers have training and validation rows together. Differences from the selected model of the fit have a paired
permutation test over the test rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from benchmarks.fit import HELD_OUT, SETS, correct
from homespun.report.significance import permutation_test


def run(arguments: list[str]) -> dict[str, Any]:
    """Train each peer on each data set and compare it with the model that the fit selected."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fit-peers", description=__doc__)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["fasttext"])
    parser.add_argument("--sets", nargs="*", choices=(*SETS, *HELD_OUT), default=SETS)
    parser.add_argument("--minutes", type=float, default=20.0, help="of each peer (default: %(default)s)")
    parser.add_argument("--from", dest="start_from", help="checkpoint of setfit and frozen")
    parser.add_argument("--out", type=Path, default=Path("runs/fit-benchmark"), help="folder of the fits")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    for name in options.sets:
        folder = options.out / name
        train, test = (
            pd.read_csv(folder / f"{part}.csv", dtype=str, keep_default_na=False) for part in ("train", "test")
        )
        ours = correct(folder / "fit")
        results[name] = {"ours": float(ours.mean())}
        for peer in options.peers:
            start, processor = time.perf_counter(), time.process_time()
            predicted = PEERS[peer](train, test, 60 * options.minutes, options.start_from)
            theirs = np.asarray(np.asarray(predicted, dtype=str) == test.label.to_numpy(), dtype=float)
            results[name][peer] = {
                "accuracy": float(theirs.mean()),
                "p": permutation_test(ours - theirs, 1.0),
                "minutes": round((time.perf_counter() - start) / 60, 1),
                "processor_minutes": round((time.process_time() - processor) / 60, 1),
            }
            print(name, peer, json.dumps(results[name][peer]), file=sys.stderr, flush=True)
    return {"minutes": options.minutes, "results": results}


def fasttext(train: pd.DataFrame, test: pd.DataFrame, seconds: float, source: str | None) -> list[str]:
    """Predict with fastText and the settings found by its search in ``seconds``."""
    import fasttext as library

    def line(text: str) -> str:
        return " ".join(text.lower().split())

    classes = {f"__label__{number}": name for number, name in enumerate(sorted(set(train.label)))}
    prefixes = {name: prefix for prefix, name in classes.items()}
    learned, validation = train_test_split(train, test_size=0.15, stratify=train.label, random_state=0)
    with TemporaryDirectory() as folder:
        paths = []
        for part, rows in (("learned", learned), ("validation", validation)):
            lines = (f"{prefixes[label]} {line(text)}\n" for text, label in zip(rows.text, rows.label, strict=True))
            paths.append(Path(folder, part))
            paths[-1].write_text("".join(lines), encoding="utf-8")
        model = library.train_supervised(
            str(paths[0]), autotuneValidationFile=str(paths[1]), autotuneDuration=round(seconds), thread=1, verbose=0
        )
    return [classes[model.predict(line(text))[0][0]] for text in test.text]


def autogluon(train: pd.DataFrame, test: pd.DataFrame, seconds: float, source: str | None) -> list[str]:
    """Predict with the best ensemble found by AutoGluon in ``seconds`` (preset good_quality)."""
    from autogluon.tabular import TabularPredictor

    with TemporaryDirectory() as folder:
        predictor = TabularPredictor("label", path=folder, eval_metric="accuracy", verbosity=1)
        predictor.fit(train, time_limit=seconds, presets="good_quality", num_cpus=1, num_gpus=0)
        return list(predictor.predict(test[["text"]]))


def setfit(train: pd.DataFrame, test: pd.DataFrame, seconds: float, source: str | None) -> list[str]:
    """Predict with a checkpoint fine-tuned by SetFit for the steps that fit into ``seconds`` at the measured speed."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    start = time.monotonic()
    pairs, batch, trial = 20, 16, 12  # pairs of a text (the default of SetFit's paper), texts of a step, measured steps
    rows = Dataset.from_dict({"text": train.text.tolist(), "label": train.label.tolist()})
    steps = 2 * pairs * len(rows) // batch

    def fine_tune(model: Any, steps: int) -> float:
        with TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder, batch_size=batch, num_iterations=pairs, max_steps=steps, save_strategy="no", report_to="none"
            )
            trainer = Trainer(model=model, args=settings, train_dataset=rows)
            began = time.monotonic()
            trainer.train_embeddings(*trainer.dataset_to_parameters(rows), args=settings)
            return time.monotonic() - began

    def encode(model: Any, texts: list[str]) -> float:
        began = time.monotonic()
        model.encode(texts)
        return time.monotonic() - began

    model = SetFitModel.from_pretrained(source, device="cpu")
    sample = train.text.sample(min(256, len(train)), random_state=0).tolist()
    encoding = encode(model, sample) / len(sample) * (len(train) + len(test))
    step = fine_tune(model, trial) / trial
    left = seconds - (time.monotonic() - start) - 1.1 * encoding
    model = SetFitModel.from_pretrained(source, device="cpu")
    if left > step:
        fine_tune(model, min(steps, int(left / step)))
    model.fit(train.text.tolist(), train.label.tolist(), num_epochs=1)  # the head
    return [str(label) for label in model.predict(test.text.tolist())]


def frozen(train: pd.DataFrame, test: pd.DataFrame, seconds: float, source: str | None) -> list[str]:
    """Predict with a logistic regression on the vectors of a checkpoint."""
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegressionCV

    encoder = SentenceTransformer(source, device="cpu")
    vectors, held_out = (encoder.encode(part.text.tolist(), show_progress_bar=False) for part in (train, test))
    model = LogisticRegressionCV(Cs=6, cv=5, max_iter=2_000).fit(vectors, train.label)
    return list(model.predict(held_out))


PEERS = {"fasttext": fasttext, "autogluon": autogluon, "setfit": setfit, "frozen": frozen}
