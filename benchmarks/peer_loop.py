"""Training loop of the `transformers` documentation, the peer of `benchmarks.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def fit(network: Any, rows: Sequence[Any], loss: Callable[[Sequence[Any]], torch.Tensor], training: Any) -> None:
    """Train on shuffled batches with AdamW, a linear schedule and clipping; half precision under autocast.

    Args:
        network: model of `transformers`; in evaluation mode afterwards.
        rows: training rows.
        loss: function from the rows of a batch to their mean loss.
        training: see `benchmarks.tasks.Training`.
    """
    import transformers

    steps = round(training.epochs * -(-len(rows) // training.batch_size))
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in network.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, eps=training.eps)
    linear: Any = transformers.get_linear_schedule_with_warmup
    schedule = linear(optimizer, round(training.warmup * steps), steps)
    network.train()
    done = 0
    while done < steps:
        order = torch.randperm(len(rows)).tolist()
        for start in range(0, len(order), training.batch_size):
            batch = [rows[index] for index in order[start : start + training.batch_size]]
            with torch.autocast("cpu", torch.bfloat16, enabled=training.precision == "bf16"):
                value = loss(batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
    network.eval()
