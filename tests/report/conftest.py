"""Synthetic run directories, with the files and fields of docs/design.md."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from homespun.data.labels import Labels
from homespun.metrics.classification import classification_metrics

CLASSES = [*"abcdefghijkl"]


@pytest.fixture(scope="module")
def empty_figures() -> None:
    """Figures are drawn in the tests of reports."""


def _jsonl(path: Path, events: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


def _config(path: Path, config: dict[str, Any], settings: Mapping[str, Mapping[str, Any]] | None) -> None:
    changed = config | {part: config.get(part, {}) | values for part, values in (settings or {}).items()}
    (path / "config.yaml").write_text(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True))


def pretraining_run(
    path: Path,
    *,
    name: str | None = None,
    steps: int = 400,
    seconds_per_step: float = 0.21,
    level: float = 1.0,
    backbone: Mapping[str, Any] | None = None,
    end: str | None = "budget",
    result: bool = True,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Path:
    """A run with ELECTRA's terms; ``level`` raises its losses; without ``end`` or ``result`` it was killed.

    ``settings`` change its config by section, and ``more`` its ``result.json``.
    """
    path.mkdir(parents=True)
    name = name or path.name
    noise = np.random.default_rng(len(name))
    sizes = {"kind": "encoder", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = {
        "data": {"corpus": "runs/quickstart/corpus", "max_length": 128, "validation": 0.02},
        "model": {"backbone": sizes | {"attention": {"kind": "full"}, "residual": {"kind": "post"}} | (backbone or {})},
        "objective": {"kind": "electra", "probability": 0.15, "discriminator_weight": 50.0},
        "train": {"budget": {"time": 90.0, "tokens": None, "steps": None}, "batch_size": 32, "learning_rate": 5e-4},
    }
    _config(path, config, settings)
    machine = {"processor": "x86_64", "cores": 2, "memory_bytes": 16_000_000_000, "device": "cpu"}
    versions = {"python": "3.12.3", "homespun": "0.1.0", "torch": "2.13.0"}
    (path / "environment.json").write_text(json.dumps({"machine": machine, "versions": versions, "commit": None}))
    events: list[dict[str, Any]] = [{"event": "start", "time": 0.0, "step": 0, "parameters": 4_213_507}]

    def losses(step: int, spread: float) -> dict[str, float]:
        fall = math.exp(-3 * step / steps)
        generator = level * (6.1 + 3.2 * fall + spread * noise.normal())
        discriminator = level * (0.19 + 0.16 * fall + spread * 0.06 * noise.normal())
        return {"generator": generator, "discriminator": discriminator, "generator_accuracy": 0.21 * (1 - fall)}

    def total(terms: Mapping[str, float]) -> float:
        return terms["generator"] + 50 * terms["discriminator"]

    for step in range(1, steps + 1):
        time, share = step * seconds_per_step, step / steps
        terms = losses(step, 0.25)
        event = {"event": "step", "time": time, "step": step, "epoch": 0, "tokens": step * 4003, "share": share}
        event |= {"learning_rate": 5e-4 * min(share / 0.1, (1 - share) / 0.9), "seconds": seconds_per_step}
        events.append({**event, "loss": total(terms), "losses": terms, "gradient_norm": 0.7})
        if step % max(1, steps // 11) == 0:
            terms = losses(step, 0.04)
            event = {"event": "validation", "time": time, "step": step, "tokens": step * 4003}
            events.append({**event, "loss": total(terms), "losses": terms, "metrics": {}})
    time = steps * seconds_per_step
    events.append({"event": "memory", "time": time, "step": steps, "peak_bytes": 412_345_678, "device": "cpu"})
    if end:
        events.append({"event": "end", "time": time, "step": steps, "tokens": steps * 4003, "reason": end})
    _jsonl(path / "metrics.jsonl", events)
    if result:
        terms = losses(steps, 0.0)
        values = {"kind": "pretrain", "name": name, "parameters": 4_213_507, "peak_bytes": 412_345_678}
        values |= {"steps": steps, "tokens": steps * 4003, "seconds": time}
        values |= {"seconds_per_step": seconds_per_step, "tokens_per_second": 4003 / seconds_per_step}
        values["train"] = {**terms, "loss": total(terms)}
        values["validation"] = {"loss": total(terms), "losses": terms, "metrics": {}}
        (path / "result.json").write_text(json.dumps(values | more))
    return path


def make_metrics(labels: list[str], accuracy: float, *, rows: int = 1800, seed: int = 0) -> dict[str, Any]:
    """Metrics of a classifier with about this accuracy."""
    noise, classes, each = np.random.default_rng(seed), np.arange(len(labels)), rows // len(labels)
    predicted = []
    for index in classes:
        right = min(each, round(each * min(1.0, accuracy + 0.03 * noise.normal())))
        wrong = noise.multinomial(each - right, noise.dirichlet(np.full(len(labels) - 1, 0.4)))
        predicted.append(np.repeat(classes, np.insert(wrong, index, right)))
    truth = np.repeat(classes, each)
    return classification_metrics(Labels(tuple(labels)), truth, np.concatenate(predicted)) | {"log_loss": 0.31}


def finetuning_run(
    path: Path,
    *,
    name: str | None = None,
    accuracy: float = 0.913,
    tfidf: float = 0.868,
    rows: int = 1800,
    seeds: int = 3,
    trainings: list[dict[str, Any]] | None = None,
    labels: list[str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **result: Any,
) -> Path:
    """A classifier with seeds and baselines; ``settings`` change its config, and ``result`` its ``result.json``."""
    path.mkdir(parents=True)
    labels = labels or CLASSES
    config = {
        "kind": "finetune",
        "seeds": seeds,
        "data": {"train": "passages.csv", "text": "text", "label": "package"},
        "train": {"budget": {"time": 60.0}, "learning_rate": 3e-4},
    }
    _config(path, config, settings)
    (path / "environment.json").write_text(json.dumps({"versions": {"python": "3.12.3", "torch": "2.13.0"}}))
    events: list[dict[str, Any]] = [{"event": "start", "time": 0.0, "step": 0, "parameters": 4_215_052}]
    for step in range(1, 120):
        loss = 2.4 * math.exp(-step / 35) + 0.2 + 0.05 * math.sin(step)
        event = {"event": "step", "time": step * 0.5, "step": step, "tokens": step * 3001, "seconds": 0.5}
        events.append({**event, "learning_rate": 3e-4 * (1 - step / 120), "loss": loss, "losses": {"loss": loss}})
        if step % 20 == 0:
            event = {"event": "validation", "time": step * 0.5, "step": step, "loss": loss + 0.1}
            events.append({**event, "losses": {"accuracy": 0.9}, "metrics": {"accuracy": 0.9}})
    events.append({"event": "end", "time": 60.0, "step": 119, "tokens": 119 * 3001, "reason": "early_stopping"})
    _jsonl(path / "metrics.jsonl", events)
    tests = trainings or [make_metrics(labels, accuracy, rows=rows, seed=seed) for seed in range(seeds)]
    majority = make_metrics(labels, 1 / len(labels), rows=rows, seed=100)
    values = {"kind": "finetune", "name": name or path.name, "task_description": "classification", "labels": labels}
    values |= {"start_from": "runs/quickstart/window", "measured_on": "test", "parameters": 4_215_052}
    values |= {"steps": 119, "tokens": 119 * 3001, "seconds": 60.0, "peak_bytes": 301_000_000}
    values |= {"seconds_per_step": 0.5, "tokens_per_second": 6002.0, "train": {"loss": 0.21}}
    values |= {"validation": {"loss": 0.33, "losses": {}, "metrics": {"accuracy": 0.9}}}
    values |= {"truncated": 37, "count_titles": {"truncated": "Inputs truncated"}}
    values |= {"test": tests[0], "seeds": tests if len(tests) > 1 else []}
    values["baselines"] = {"majority": majority, "tfidf": make_metrics(labels, tfidf, rows=rows, seed=101)}
    (path / "result.json").write_text(json.dumps(values | result))
    return path


@pytest.fixture
def pretraining() -> Callable[..., Path]:
    """Writes a pretraining run."""
    return pretraining_run


@pytest.fixture
def finetuning() -> Callable[..., Path]:
    """Writes a fine-tuning run."""
    return finetuning_run


@pytest.fixture
def metrics() -> Callable[..., dict[str, Any]]:
    """Makes test metrics."""
    return make_metrics
