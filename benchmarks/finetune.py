"""Fine-tuning BERT-mini on AG News: texts a second, against a `transformers` loop with dynamic padding.

Both train the same architecture on the same token ids with the same batch size, learning rate, dropout, clipping and
AdamW, in float32 or, by autocast, in bfloat16; tokenizing is not timed. homespun buckets texts by length and runs its
model, fused AdamW and the trainer with its metrics file. The peer is the loop of the `transformers` documentation:
shuffled batches, a padding collate, `BertForSequenceClassification` and `torch.optim.AdamW`. Both use a GPU if there is
one.

A round is 64 steps of each, alternating every 8 steps. homespun sorts by length within 64 steps, so that every round
has short and long texts; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.measure import seconds
from benchmarks.paths import SHARED
from homespun.batch import Batch, RowSeed
from homespun.data.labels import LabelledRows, Labels, read_labelled_texts
from homespun.data.loader import WINDOW, Loader
from homespun.data.rows import Row, pad
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.nn.devices import best_device
from homespun.tasks.classification import Classification
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import AdamW, Budget, ConstantSchedule, TrainConfig
from homespun.training.run import Run
from homespun.training.trainer import Trainer

AG_NEWS = SHARED / "ag_news" / "train.csv.gz"
Precision = Literal["float32", "bf16"]

BATCH_SIZE, LENGTH, LEARNING_RATE, DROPOUT, WARMUP, SLICE = 32, 128, 1e-4, 0.1, 3, 8


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks finetune", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help=f"of {WINDOW} steps of each (default: %(default)s)")
    parser.add_argument("--input", default=str(AG_NEWS), help="csv without header: label, title, description, source")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of both (%(default)s)")
    options = parser.parse_args(arguments)

    texts, names = read_labelled_texts(
        [options.input],
        text=["title", "description"],
        label="label",
        columns=["label", "title", "description", "source"],
    )
    tokenizer = Tokenizer.train(texts, kind="wordpiece", vocab_size=30_522, lowercase=True)
    labels = Labels.collect(names)
    count = options.rounds * WINDOW * BATCH_SIZE
    rows = LabelledRows(texts[:count], names[:count], tokenizer, length=LENGTH, names=labels)
    with tempfile.TemporaryDirectory() as folder:
        loops = {
            "ours": Stretch(
                ours(rows, tokenizer, labels, Path(folder), options.precision, steps=WARMUP + options.rounds * WINDOW)
            ),
            "peer": Stretch(peer(rows, tokenizer, labels, options.precision)),
        }
        for loop in loops.values():
            loop.run(WARMUP)
        rates: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(options.rounds):
            spent = dict.fromkeys(loops, 0.0)
            for _ in range(WINDOW // SLICE):  # short turns, so that other load on the machine affects both
                for name, loop in loops.items():
                    spent[name] += seconds(partial(loop.run, SLICE))
            for name in loops:
                rates[name].append(WINDOW * BATCH_SIZE / spent[name])
                print(f"round {number + 1}: {name} {rates[name][-1]:.1f} texts/s", file=sys.stderr, flush=True)
        for loop in loops.values():
            loop.batches.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(one / other for one, other in zip(rates["ours"], rates["peer"], strict=True))
    return {
        "texts": len(rows),
        "mean_length": round(float(rows.lengths.mean()), 1),
        **{
            name: {"texts_per_second": round(medians[name], 1), "padding": round(1 - loop.tokens / loop.cells, 4)}
            for name, loop in loops.items()
        },
        "ratios": {"throughput": round(ratio, 3)},  # target: at least 1.5
    }


Sizes = tuple[int, int]
"""Of one batch: tokens, and tokens with padding."""


class Stretch:
    """Training loop that runs a number of steps at a time, and counts its tokens."""

    def __init__(self, batches: Generator[Sizes, None, None]) -> None:
        self.batches = batches
        self.tokens = self.cells = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            tokens, cells = next(self.batches)
            self.tokens += tokens
            self.cells += cells
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def ours(
    rows: LabelledRows, tokenizer: Tokenizer, labels: Labels, folder: Path, precision: Precision, *, steps: int
) -> Generator[Sizes, None, None]:
    """Train by the trainer over batches bucketed by length."""
    torch.manual_seed(0)
    task = Classification()
    backbone = EncoderConfig.model_validate(
        {
            "preset": "bert-mini",
            "vocab_size": tokenizer.vocab_size,
            "hidden_dropout_prob": DROPOUT,
            "attention_probs_dropout_prob": DROPOUT,
        }
    )
    model = ModelConfig(backbone=backbone)
    config = TrainConfig(
        batch_size=BATCH_SIZE,
        budget=Budget(steps=steps + 1),
        optimizer=AdamW(learning_rate=LEARNING_RATE),
        schedule=ConstantSchedule(warmup=0.0),
        precision=precision,
    )
    sizes: list[Sizes] = []
    collate = task.collate(tokenizer.pad_id, labels)

    def counted(rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = collate(rows, row_seeds)
        sizes.append(_sizes(batch))
        return batch

    loader = Loader(rows, counted, batch_size=BATCH_SIZE, seed=0, order="bucketed")
    objective = task.build(model.build(), model, labels)
    trainer = Trainer(objective, loader, config, Run.create(folder / "run", config, resume=False))
    for _ in trainer:
        yield sizes.pop(0)


def peer(
    rows: LabelledRows, tokenizer: Tokenizer, labels: Labels, precision: Precision
) -> Generator[Sizes, None, None]:
    """Train by the `transformers` loop over shuffled batches."""
    import transformers

    device = best_device()
    config: Any = transformers.BertConfig  # `num_labels` has no type
    torch.manual_seed(0)
    model: Any = transformers.BertForSequenceClassification(
        config(
            vocab_size=tokenizer.vocab_size,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
            num_labels=len(labels),
        )
    )
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    while True:
        order = torch.randperm(len(rows)).tolist()
        for start in range(0, len(order), BATCH_SIZE):
            chunk = [rows[index] for index in order[start : start + BATCH_SIZE]]
            batch = pad(chunk, tokenizer.pad_id).to(device)
            mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask.long()
            classes = torch.tensor([row.label for row in chunk], device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                loss = model(input_ids=batch.input_ids, attention_mask=mask, labels=classes).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield _sizes(batch)


def _sizes(batch: Batch) -> Sizes:
    mask = batch.attention_mask
    return batch.num_tokens if mask is None else int(mask.sum()), batch.num_tokens
