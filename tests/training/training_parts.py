"""Small stand-ins for the tests of training: an objective of two terms over a tiny encoder, and rows of any length."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.data.loader import Loader
from homespun.data.rows import Row
from homespun.nn.layers import SequentialStack
from homespun.training.config import AdamW, Budget, TrainConfig
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import EvalResult

VOCABULARY, HIDDEN, ROWS = 31, 13, 37


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.final_norm = nn.LayerNorm(HIDDEN)
        self.layer_stack = SequentialStack()  # the layers are called, and can be sharded one by one

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embeddings(input_ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.final_norm(hidden)


class Objective(nn.Module):
    """Terms of different counts: ``token`` over the labelled places, ``row`` over the rows; ``seen`` is reported."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(HIDDEN, VOCABULARY)
        self.head.weight = self.backbone.embeddings.weight  # tied
        self.pooler = nn.Linear(HIDDEN, 2)
        self.seldom = nn.Linear(HIDDEN, 1)  # of some rows only

    def forward(self, batch: Batch) -> Loss:
        hidden = self.dropout(self.backbone(batch.input_ids))
        logits = self.head(hidden.flatten(0, 1)[batch.positions])
        token = F.cross_entropy(logits, batch.labels, reduction="sum")
        row = F.cross_entropy(self.pooler(hidden[:, 0]), batch.pair_labels, reduction="sum")
        chosen = batch.input_ids[:, 0] % 3 == 0
        if chosen.any():
            row = row + self.seldom(hidden[chosen, 0]).square().sum()
        return Loss(
            {
                "token": Term(token, len(batch.labels)),
                "row": Term(row, torch.tensor(len(batch.pair_labels)), weight=3.0),
                "token_accuracy": Term((logits.argmax(-1) == batch.labels).sum(), len(batch.labels), weight=0.0),
            }
        )


class Watching(Objective):
    """Records the types of the outputs of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def forward(self, batch: Batch) -> Loss:
        self.dtypes.add(self.pooler(self.backbone(batch.input_ids)).dtype)
        return super().forward(batch)


class TinyRows:
    lengths = np.array([5 + index % 7 for index in range(ROWS)])

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Row:
        return Row(np.arange(index, index + self.lengths[index]) % (VOCABULARY - 1) + 1)


def collate(rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
    """Labels stand at random places, so that micro-batches differ in how many they have."""
    width = max(len(row.input_ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    positions, labels = [], []
    for number, (row, row_seed) in enumerate(zip(rows, row_seeds, strict=True)):
        tokens = torch.from_numpy(row.input_ids)
        ids[number, : len(tokens)] = tokens
        places = torch.nonzero(torch.rand(len(tokens), generator=row_seed.generator()) < 0.4).flatten()
        positions.append(places + number * width)
        labels.append((tokens[places] * 7) % VOCABULARY)
    flat = torch.cat(labels)
    return Batch(
        ids,
        attention_mask=ids != 0,
        positions=torch.cat(positions),
        labels=flat,
        pair_labels=torch.tensor([len(row.input_ids) % 2 for row in rows]),
        targets={"token": float(len(flat)), "row": float(len(rows))},
    )


def train_config(**changes: Any) -> TrainConfig:
    """Seven steps of eleven rows; fields are replaced by ``changes``."""
    values = {"batch_size": 11, "budget": Budget(steps=7), "optimizer": AdamW(learning_rate=0.01)} | changes
    return TrainConfig.model_validate(values)


def make_trainer(
    path: Path,
    config: TrainConfig,
    *,
    objective: nn.Module | None = None,
    resume: bool = False,
    rank: int = 0,
    world_size: int = 1,
    **others: Any,
) -> Trainer:
    """A trainer of an objective with the same weights every time."""
    torch.manual_seed(5)
    objective = Objective(dropout=0.2) if objective is None else objective
    loader = Loader(
        TinyRows(),
        collate,
        batch_size=config.batch_size,
        seed=config.seed,
        micro_batch_size=config.micro_batch_size,
        rank=rank,
        world_size=world_size,
        workers=0 if config.workers == "auto" else config.workers,
    )
    run = Run.create(path, config, resume=resume, main=rank == 0)
    return Trainer(objective, loader, config, run, **others)


def events(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if kind is None or line["event"] == kind]


def without_clock(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must be equal between two runs: everything but the times."""
    return [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in lines]


def sharded_config(name: str) -> TrainConfig:
    """Settings of the runs of `launch_targets.train_sharded`; processes have different numbers of micro-batches."""
    changes = {"precision": "bf16"} if name == "bf16" else {}
    return train_config(parallel="fsdp", micro_batch_size=5, max_grad_norm=0.5, validate_every=0.3, **changes)


def evaluate_heads(objective: Objective) -> EvalResult:
    """A validation that calls parts of the objective, as tasks do."""
    with torch.no_grad():
        hidden = objective.backbone(torch.arange(12).reshape(3, 4))
        return EvalResult(float(objective.head(hidden).logsumexp(-1).mean()), {})
