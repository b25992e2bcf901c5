"""Settings of the tasks and the models, and the published scores.

Settings and scores are those of Tay et al. 2021 ("Long Range Arena: A Benchmark for Efficient Transformers", table 1)
and of its code. Differences: no attention dropout, learned positions, linear decay from the same peak learning rate to
the end of the budget instead of the inverse square root of the steps, and no padding to the maximum length.
"""

from __future__ import annotations

from homespun.config import Tree

TASKS = ("listops", "text", "retrieval", "pixels")


def _encoder(layers: int, hidden: int, heads: int, intermediate: int, **others: object) -> Tree:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "residual": {"kind": "pre"},
        "type_vocab_size": 0,
        **others,
    }


def _training(rows: int, steps: int, rate: float, schedule: Tree, weight_decay: float = 0.1) -> Tree:
    return {
        "batch_size": rows,
        "optimizer": {
            "kind": "adamw",
            "learning_rate": rate,
            "weight_decay": weight_decay,
            "betas": [0.9, 0.98],
            "eps": 1e-9,
        },
        "schedule": schedule,
        "budget": {"steps": steps},
        "best_metric": "accuracy",
    }


# peak learning rate: 0.05 / sqrt(warmup steps), as in the arena's code
SETTINGS: dict[str, Tree] = {
    "listops": {
        "task": {"kind": "listops"},
        "model": _encoder(6, 512, 8, 2048),
        "train": _training(32, 5_000, 1.6e-3, {"kind": "linear", "warmup": 0.2}),
    },
    "text": {
        "task": {"kind": "text"},
        "model": _encoder(4, 256, 4, 1024),
        "train": _training(32, 20_000, 5.6e-4, {"kind": "linear", "warmup": 0.4}),
    },
    "retrieval": {
        "task": {"kind": "retrieval"},
        "model": _encoder(4, 128, 4, 512),
        # the arena's warmup is 8,000 steps, of which it makes 5,000
        "train": _training(32, 5_000, 3.5e-4, {"kind": "linear", "warmup": 0.4}),
    },
    "pixels": {
        "task": {"kind": "pixels"},
        "model": _encoder(1, 32, 1, 64, hidden_dropout_prob=0.3),
        "train": _training(256, 35_000, 5e-4, {"kind": "cosine", "warmup": 0.005}, weight_decay=0.0),
    },
}

MODELS: dict[str, Tree] = {
    "full": {"attention": {"kind": "full"}},
    # the arena's local attention: each block attends to itself only
    "local": {"attention": {"kind": "sparse", "patterns": [{"kind": "blocks", "size": 50, "before": 0, "after": 0}]}},
    "longformer": {
        "attention": {
            "kind": "sparse",
            "patterns": [{"kind": "window", "radius": 256}],
            "global_tokens": {"first": 1},
        }
    },
    "bigbird": {
        "attention": {
            "kind": "sparse",
            "patterns": [
                {"kind": "blocks", "size": 64, "before": 1, "after": 1},
                {"kind": "random_blocks", "size": 64, "count": 3},
            ],
            "global_tokens": {"first": 0, "block": 64},
        }
    },
    "linformer": {"attention": {"kind": "linformer"}},
    "performer": {"attention": {"kind": "performer"}},
    "reformer": {"attention": {"kind": "lsh"}},
}
"""Changes to the encoder by model name."""

PUBLISHED: dict[str, dict[str, float]] = {
    name: dict(zip(TASKS, scores, strict=True))
    for name, scores in {
        "full": (36.37, 64.27, 57.46, 42.44),
        "local": (15.82, 52.98, 53.39, 41.46),
        "sparse transformer": (17.07, 63.58, 59.59, 44.24),
        "longformer": (35.63, 62.85, 56.89, 42.22),
        "linformer": (35.70, 53.94, 52.27, 38.56),
        "reformer": (37.27, 56.10, 53.40, 38.07),
        "sinkhorn": (33.67, 61.20, 53.83, 41.23),
        "synthesizer": (36.99, 61.68, 54.67, 41.61),
        "bigbird": (36.05, 64.02, 59.29, 40.83),
        "linear transformer": (16.13, 65.90, 53.09, 42.34),
        "performer": (18.01, 65.40, 53.82, 42.77),
    }.items()
}
"""Accuracy in percent, by model and task."""
