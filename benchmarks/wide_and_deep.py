"""Classifier that also reads n-grams (wide and deep), against the average of a network and a linear model.

For each data set the network of a finished ``python -m benchmarks fit`` is fine-tuned on its training part with a
linear head on the mean of the tokens. ``wide`` adds to its logits those of a linear layer on 2^18 hashed features
(words, word pairs and 3 to 5 characters, L2-normalised; Cheng et al. 2016, "Wide & Deep Learning", section 3), trained
jointly with Adagrad. ``average`` is the mean of the probabilities of the network and of scikit-learn's logistic
regression on the same features. Accuracy is measured on validation examples, over seeds; the test rows are not read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.fit import HELD_OUT, SETS
from homespun.data.long_inputs import pad_chunks
from homespun.data.rows import Rows
from homespun.fitting.inspection import Inspection, inspect
from homespun.fitting.networks import Source, open_source
from homespun.hf.open import open_model
from homespun.tasks.text_outputs import targets_of
from homespun.tasks.texts import rows_of

EPOCHS, BATCH, RATE = 4, 32, 1e-3
WIDE_RATES = (0.03, 0.1, 0.3)
STRENGTHS = (1.0, 4.0, 16.0)  # inverse regularisation of the logistic regression


def run(arguments: list[str]) -> dict[str, Any]:
    """Fine-tune with and without n-grams on each data set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks wide-and-deep", description=__doc__)
    parser.add_argument("--sets", nargs="*", choices=(*SETS, *HELD_OUT), default=("phrasebank", "topics", "ag-news"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/fit-benchmark"), help="folder of the fits")
    options = parser.parse_args(arguments)
    results = {}
    for name in options.sets:
        folder = options.out / name
        inspection = inspect([str(folder / "train.csv")], [str(folder / "test.csv")])
        source = open_source(str(folder / "fit" / "pretrained" / "run"), inspection)
        results[name] = _data_set(source, inspection, options.seeds)
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    return {"results": results}


def _data_set(source: Source, inspection: Inspection, seeds: int) -> dict[str, Any]:
    parts = inspection.train, inspection.validation
    data = inspection.data_for(source.length)
    rows = [rows_of(part, data, source.stored) for part in parts]
    targets = [targets_of(part, inspection.labels).astype(np.int64) for part in parts]
    words = HashingVectorizer(ngram_range=(1, 2), n_features=2**17, alternate_sign=False, norm=None)
    characters = HashingVectorizer(
        analyzer="char_wb", ngram_range=(3, 5), n_features=2**17, alternate_sign=False, norm=None
    )
    features = make_pipeline(make_union(words, characters), TfidfTransformer(sublinear_tf=True))
    matrices = [csr_matrix(features.fit_transform([one.text for one in parts[0]]))]
    matrices.append(csr_matrix(features.transform([one.text for one in parts[1]])))

    linear = {}
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=300).fit(matrices[0], targets[0])
        linear[strength] = model.predict_proba(matrices[1])
    best = max(linear, key=lambda strength: _accuracy(linear[strength], targets[1]))
    found: dict[str, list[float]] = {"linear": [_accuracy(linear[best], targets[1])]}
    seconds: dict[str, list[float]] = {}
    for seed in range(seeds):
        for wide in (None, *WIDE_RATES):
            name = "deep" if wide is None else f"wide {wide}"
            start = time.process_time()
            predicted = _train(source, inspection, rows, targets, matrices, wide, seed)
            seconds.setdefault(name, []).append(time.process_time() - start)
            found.setdefault(name, []).append(_accuracy(predicted, targets[1]))
            for share in (0.3, 0.4, 0.5):
                if wide is None:
                    mixed = share * predicted + (1 - share) * linear[best]
                    found.setdefault(f"average {share}", []).append(_accuracy(mixed, targets[1]))
            print(name, seed, found[name][-1], file=sys.stderr, flush=True)
    return {
        name: {
            "accuracy": round(100 * fmean(values), 2),
            "deviation": round(100 * stdev(values), 2) if len(values) > 1 else None,
            "processor_seconds": round(fmean(seconds[name]), 1) if name in seconds else None,
        }
        for name, values in found.items()
    }


class _Network(nn.Module):
    """Network that returns logits of the mean of the tokens' hidden states, plus those of n-grams."""

    def __init__(self, source: Source, classes: int, features: int, wide: bool) -> None:
        super().__init__()
        self.encoder = open_model(source.path, head=None).model  # with the weights of the file
        self.head = nn.Linear(source.stored.config.backbone.hidden_size, classes)
        self.wide = nn.EmbeddingBag(features, classes, mode="sum", sparse=True) if wide else None
        if self.wide is not None:
            nn.init.zeros_(self.wide.weight)

    def forward(self, rows: Rows, indices: list[int], matrix: csr_matrix, pad: int) -> Tensor:
        batch = pad_chunks([rows[index] for index in indices], pad_id=pad)
        hidden = self.encoder.read(batch.input_ids, batch.context)  # (batch, seq, hidden)
        assert batch.attention_mask is not None
        mask = batch.attention_mask.unsqueeze(-1)
        logits: Tensor = self.head((hidden * mask).sum(1) / mask.sum(1))
        if self.wide is None:
            return logits
        part = matrix[indices]
        ids, starts = (torch.from_numpy(array.astype(np.int64)) for array in (part.indices, part.indptr[:-1]))
        wide: Tensor = self.wide(ids, starts, per_sample_weights=torch.from_numpy(part.data.astype(np.float32)))
        return logits + wide


def _train(
    source: Source,
    inspection: Inspection,
    rows: Sequence[Rows],
    targets: list[Any],
    matrices: list[csr_matrix],
    wide: float | None,
    seed: int,
) -> Any:
    """Return (validation examples, classes) probabilities."""
    assert inspection.labels is not None
    torch.manual_seed(seed)
    network = _Network(source, len(inspection.labels), matrices[0].shape[1], wide is not None)
    deep = [parameter for name, parameter in network.named_parameters() if not name.startswith("wide")]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(deep, lr=RATE, weight_decay=0.01)]
    if network.wide is not None and wide is not None:
        optimizers.append(torch.optim.Adagrad(network.wide.parameters(), lr=wide))
    count, generator = len(targets[0]), np.random.default_rng(seed)
    total, warmup = EPOCHS * -(-count // BATCH), 0.1
    schedule = partial(_linear, total=total, warmup=warmup)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, schedule) for optimizer in optimizers]
    pad = source.stored.tokenizer.pad_id
    network.train()
    for _ in range(EPOCHS):
        order = generator.permutation(count)
        for start in range(0, count, BATCH):
            indices = order[start : start + BATCH].tolist()
            with torch.autocast("cpu", torch.bfloat16):
                logits = network(rows[0], indices, matrices[0], pad)
            loss: Tensor = F.cross_entropy(logits.float(), torch.from_numpy(targets[0][indices]))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(deep, 1.0)
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                scheduler.step()
    network.eval()
    with torch.no_grad():
        logits = [
            network(rows[1], list(range(start, min(start + 64, len(targets[1])))), matrices[1], pad)
            for start in range(0, len(targets[1]), 64)
        ]
    return torch.cat(logits).softmax(-1).numpy()


def _linear(step: int, *, total: int, warmup: float) -> float:
    return min(1.0, (step + 1) / (warmup * total)) * max(0.0, 1.0 - step / total)


def _accuracy(probabilities: Any, targets: Any) -> float:
    return float((probabilities.argmax(1) == targets).mean())
