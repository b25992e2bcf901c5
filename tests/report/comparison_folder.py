"""A synthetic folder of a comparison, with the files and fields of docs/design.md: no two numbers in it are alike."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from homespun.data.labels import Labels
from homespun.data.lengths import length_statistics
from homespun.metrics.classification import classification_metrics

LABELS = ("negative", "neutral", "positive")
ROWS = 997


@dataclass(frozen=True)
class Made:
    """A variation of the synthetic comparison."""

    name: str
    right: float  # share of test rows answered rightly
    layers: int
    radius: int | None = None
    objective: str = "electra"
    seconds: float = 700.0  # of pretraining
    peak: float = 1.1e9
    latency: tuple[float, float, float] = (0.0031, 0.0127, 0.0509)  # a text of 128, 512, 2048 tokens
    settings: Sequence[str] = field(default_factory=list)


BERT = Made("bert", 0.842, 5, seconds=1907.0, peak=2.311e9)
REFORMER = Made("reformer", 0.741, 7, seconds=2903.0, peak=1.933e9, latency=(0.0047, 0.0113, 0.0379))
SMALL = Made("window-16", 0.838, 3, 16, seconds=811.0, peak=0.907e9, latency=(0.0037, 0.0131, 0.0457))
WIDE = Made("window-128", 0.846, 3, 128, seconds=1109.0, peak=1.013e9, latency=(0.0041, 0.0139, 0.0487))
CAUSAL = Made("causal", 0.803, 5, objective="clm", seconds=1301.0, peak=1.511e9, latency=(0.0029, 0.0121, 0.0491))
EVERYONE = (BERT, REFORMER, SMALL, WIDE, CAUSAL)


def answers(truth: np.ndarray, right: float, seed: int, hard: np.ndarray) -> np.ndarray:
    """Predictions that are right on about this share; all models err more on the hard rows."""
    noise = np.random.default_rng(seed)
    correct = hard < right + 0.11 * noise.normal(size=len(truth))
    return np.where(correct, truth, (truth + noise.integers(1, 3, len(truth))) % 3)


def _rows(truth: np.ndarray, predicted: np.ndarray) -> str:
    names = np.array(LABELS)
    lines = [
        {"row": i, "truth": str(names[t]), "predicted": str(names[p])}
        for i, (t, p) in enumerate(zip(truth, predicted, strict=True))
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def metrics_of(truth: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """As metrics/classification.py has them."""
    return classification_metrics(Labels(LABELS), truth, predicted)


def _environment(machine: int) -> dict[str, Any]:
    packages = {"homespun": "0.1.0", "torch": "2.13.0" if machine == 0 else "2.12.1"}
    machine_of = {"cpu": f"A processor of {2 + machine} GHz", "cores": 2 + 6 * machine, "gpus": []}
    memory = 16_100_000_000 + machine * 1_700_000_000
    return {"python": "3.12.7", "packages": packages, "memory_bytes": memory, **machine_of}


def _run(path: Path, config: Mapping[str, Any], result: Mapping[str, Any], machine: int) -> None:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    (path / "environment.json").write_text(json.dumps(_environment(machine)))
    (path / "result.json").write_text(json.dumps(result))


def _pretrain(path: Path, made: Made, index: int, seed: int, machine: int) -> None:
    attention = {"kind": "full"} if made.radius is None else {"kind": "window", "radius": made.radius}
    backbone = {"num_hidden_layers": made.layers, "hidden_size": 128, "num_attention_heads": 2, "attention": attention}
    config = {
        "kind": "pretrain",
        "model": {"backbone": backbone},
        "objective": {"kind": made.objective},
        "train": {"seed": seed, "learning_rate": 5e-4, "budget": {"tokens": 1_000_000}},
    }
    steps, tokens = 211, 4003
    step_seconds = made.seconds / steps * (1 + 0.01 * seed)
    noise = np.random.default_rng(1000 * index + seed)

    def losses(step: int, shift: float = 0.0) -> dict[str, float]:
        fall = math.exp(-3 * step / steps)
        if made.objective == "clm":
            return {"causal": 3.1 + 4 * fall + shift + 0.01 * seed}
        base = {"generator": 5.9 + 0.1 * index + 3 * fall + shift + 0.013 * seed}
        return {**base, "discriminator": 0.17 + 0.007 * index + 0.15 * fall + 0.1 * shift + 0.0013 * seed}

    def total(terms: Mapping[str, float]) -> float:
        return terms.get("causal", 0.0) + terms.get("generator", 0.0) + 50 * terms.get("discriminator", 0.0)

    events: list[dict[str, Any]] = [{"event": "start", "time": 0.0, "step": 0}]
    for step in range(1, steps + 1):
        terms = losses(step, 0.1 * noise.normal())
        event = {"event": "step", "step": step, "time": step * step_seconds, "tokens": step * tokens, "losses": terms}
        events.append({**event, "loss": total(terms), "seconds": step_seconds, "learning_rate": 5e-4})
        if step % 30 == 0 or step == steps:
            terms = losses(step)
            event = {"event": "validation", "step": step, "time": step * step_seconds, "tokens": step * tokens}
            events.append({**event, "loss": total(terms), "losses": terms})
    events.append({"event": "end", "step": steps, "time": steps * step_seconds, "reason": "budget"})
    terms = losses(steps)
    result = {"kind": "pretrain", "name": "pretrain", "parameters": 3_000_017 + 1_000_003 * index, "steps": steps}
    result |= {"flops_per_token": 17_000_000 + 3_000_000 * index, "tokens": steps * tokens}
    result |= {"seconds": steps * step_seconds, "seconds_per_step": step_seconds}
    result |= {"tokens_per_second": tokens / step_seconds, "peak_bytes": made.peak + 1e6 * seed}
    result["train"] = {**terms, "loss": total(terms)}
    result["validation"] = {"loss": total(terms), "losses": terms}
    _run(path, config, result, machine)
    (path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def _finetune(path: Path, made: Made, index: int, seed: int, machine: int, rows: int) -> None:
    noise = np.random.default_rng(7)
    truth, hard = noise.integers(0, 3, rows), noise.random(rows)
    predicted = answers(truth, made.right + 0.003 * (seed - 1), 100 * index + seed, hard)
    baselines = {
        "majority": np.full(rows, np.bincount(truth).argmax()),
        "tfidf": answers(truth, 0.789, 5000, hard),
    }
    lengths = np.random.default_rng(3).lognormal(3.2, 0.6, rows).astype(int) + 3
    result = {"kind": "finetune", "name": "phrasebank", "start_from": str(path.parent / "pretrain"), "seeds": []}
    result |= {"parameters": 3_100_019 + 1_000_003 * index, "seconds": 31.0 + index, "peak_bytes": made.peak / 3}
    result |= {"train": {"loss": 0.3 + 0.01 * index}, "validation": {"loss": 0.5 + 0.01 * index, "losses": {}}}
    result |= {"measured_on": "test", "test": metrics_of(truth, predicted)}
    result["baselines"] = {name: metrics_of(truth, labels) for name, labels in baselines.items()}
    result["lengths"] = length_statistics(lengths, classes=[LABELS[t] for t in truth])
    config = {"kind": "finetune", "seeds": 1, "train": {"seed": seed, "learning_rate": 3e-4}}
    _run(path, config, result, machine)
    (path / "predictions").mkdir()
    (path / "predictions" / "model.jsonl").write_text(_rows(truth, predicted))
    for name, labels in baselines.items():
        (path / "predictions" / f"{name}.jsonl").write_text(_rows(truth, labels))


def make_comparison(
    folder: Path,
    *,
    everyone: Sequence[Made] = EVERYONE,
    seeds: int = 3,
    failed: bool = True,
    other_machine: bool = False,
    rows: int = ROWS,
) -> Path:
    """Write the folder. With ``failed`` a variation more, ``giant``, that did not fit."""
    folder.mkdir(parents=True)
    names = [made.name for made in everyone] + ["giant"] * failed
    recipe = {
        "kind": "compare",
        "description": "Which small encoder for news on companies?",
        "pretrain": {"recipe": "electra-mini"},
        "finetune": {"phrasebank": {"recipe": "classify"}},
        "variations": {name: {} for name in names},
        "budget": {"tokens": 1_000_000},
        "seeds": seeds,
    }
    (folder / "comparison.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    for index, made in enumerate(everyone):
        for seed in range(seeds):
            trial = folder / "trials" / made.name / f"seed-{seed}"
            machine = int(other_machine and index == 1)
            _pretrain(trial / "pretrain", made, index, seed, machine)
            _finetune(trial / "phrasebank", made, index, seed, machine, rows)
            settings = [f"train.seed={seed}", *made.settings]
            if made.radius is not None:
                settings.append(f"model.attention.radius={made.radius}")
            inference = []
            for length, took in zip((128, 512, 2048), made.latency, strict=True):
                peak = 2e8 + length * 1e5 * (index + 1)
                row = {"length": length, "batch_size": 1, "seconds_per_text": took * (1 + 0.007 * seed)}
                inference.append(row | {"peak_bytes": peak})
            pretrained: dict[str, Any] = {"kind": "pretrain", "path": "pretrain", "seconds": made.seconds + seed}
            tuned: dict[str, Any] = {"kind": "finetune", "path": "phrasebank", "seconds": 40.0 + index + seed}
            done: dict[str, Any] = {"status": "done", "seconds": pretrained["seconds"] + tuned["seconds"] + 11.0}
            done |= {"stages": {"pretrain": pretrained, "phrasebank": tuned}, "inference": inference}
            given = {"pretrain": settings, "phrasebank": [f"train.seed={seed}"]}
            write_trial(trial, name=made.name, seed=seed, settings=given, **done)
    for seed in range(seeds if failed else 0):
        why = "out of memory: killed by signal 9"
        trial = folder / "trials" / "giant" / f"seed-{seed}"
        write_trial(trial, name="giant", seed=seed, status="failed", stage="pretrain", why=why, stages={})
    return folder


def write_trial(folder: Path, **values: Any) -> None:
    """A trial.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.json").write_text(json.dumps({"version": 1, "settings": {}, "inference": [], "plan": {}} | values))


def change(path: Path, **values: Any) -> None:
    """Alter an object in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_trial(folder: Path, **values: Any) -> None:
    change(folder / "trial.json", **values)


def without_tasks(folder: Path) -> Path:
    """Leave out the fine-tuning of a comparison."""
    recipe = folder / "comparison.yaml"
    recipe.write_text(recipe.read_text().replace("finetune:", "ignored:"))
    for trial in folder.glob("trials/*/*/trial.json"):
        stages = json.loads(trial.read_text())["stages"]
        change(trial, stages={"pretrain": stages["pretrain"]})
    return folder


def copy(folder: Path, to: Path) -> Path:
    """Another folder of the same comparison, under the same name."""
    shutil.copytree(folder, to / folder.name)
    return to / folder.name
