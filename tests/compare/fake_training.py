"""Stands in for the command homespun where a kill must cost something: it takes steps, and goes on from checkpoints.

What it learns is a function of its settings and its steps alone; what it takes is the clock's.
"""

import hashlib
import json
import os
import pathlib
import random
import sys
import time

from homespun.compare.worker import exit_with_parent

STEPS, EVERY, ROWS, LABELS = 30, 6, 311, ("down", "same", "up")
RIGHT = {"good": 0.93, "poor": 0.55, "majority": 0.34}


def replace(path: pathlib.Path, text: str) -> None:
    path.with_suffix(".tmp").write_text(text)
    os.replace(path.with_suffix(".tmp"), path)


def drawn(*what: object) -> random.Random:
    return random.Random(hashlib.blake2b(repr(what).encode()).digest())


def loss_of(settings: list[str], step: int) -> float:
    return 3.0 / step + drawn(settings, step).random()


def answers(out: pathlib.Path, name: str, right: float, *what: object) -> float:
    truth = [drawn("truth", row).choice(LABELS) for row in range(ROWS)]
    predicted = [
        t if drawn(*what, row).random() < right else LABELS[LABELS.index(t) - 1] for row, t in enumerate(truth)
    ]
    lines = [{"row": row, "truth": t, "predicted": p} for row, (t, p) in enumerate(zip(truth, predicted, strict=True))]
    (out / "predictions").mkdir(exist_ok=True)
    replace(out / "predictions" / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return sum(t == p for t, p in zip(truth, predicted, strict=True)) / ROWS


def train(verb: str, out: pathlib.Path, settings: list[str], right: float, started: float) -> None:
    metrics, checkpoint = out / "metrics.jsonl", out / "checkpoint.json"
    step, size, seconds = 0, 0, 0.0
    if checkpoint.is_file():
        step, size, seconds = json.loads(checkpoint.read_text())
    if metrics.is_file():
        os.truncate(metrics, size)
    now = seconds
    (out / "calls.txt").open("a").write(f"from {step}\n")
    while step < STEPS:
        step += 1
        time.sleep(float(os.environ.get("FAKE_PAUSE", "0.01")))
        now = round(seconds + time.monotonic() - started, 3)
        loss = loss_of(settings, step)
        event = {"event": "step", "step": step, "tokens": 17 * step, "time": now, "loss": loss}
        event |= {"losses": {"mlm": loss}, "seconds": 0.01, "learning_rate": 1e-3, "share": step / STEPS}
        lines = [event]
        if step % EVERY == 0:
            lines.append({"event": "validation", "step": step, "tokens": 17 * step, "time": now, "loss": loss + 0.1})
            lines[-1]["losses"] = {"mlm": loss + 0.1}
        with metrics.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        if step % EVERY == 0:
            replace(checkpoint, json.dumps([step, metrics.stat().st_size, now]))
    loss = loss_of(settings, STEPS)
    result = {"kind": verb, "name": out.name, "parameters": 7001, "flops_per_token": 42_006, "steps": STEPS}
    result |= {"tokens": 17 * STEPS, "seconds": now, "tokens_per_second": 17 * STEPS / now, "seconds_per_step": 0.01}
    result |= {"peak_bytes": 10**8 + os.getpid(), "validation": {"loss": loss, "losses": {"mlm": loss}}}
    result["train"] = {"loss": loss, "mlm": loss}
    if verb == "finetune":
        accuracy = answers(out, "model", right, settings)
        result |= {"measured_on": "test", "test": {"rows": ROWS, "accuracy": accuracy, "macro_f1": accuracy - 0.01}}
        result |= {"measures": ["accuracy", "macro_f1"], "seeds": []}
    replace(out / "result.json", json.dumps(result))


def main() -> None:
    started = time.monotonic()
    verb, recipe, *rest = sys.argv[1:]
    if verb == "benchmark":
        rows = [
            {"length": n, "batch_size": 1, "seconds_per_text": time.time() % 1 * n, "peak_bytes": n} for n in (17, 19)
        ]
        print(json.dumps({"inference": rows}))
        return
    out = pathlib.Path(rest[rest.index("--out") + 1])
    out.mkdir(parents=True, exist_ok=True)
    settings = sorted(word for word in rest if "=" in word and not word.startswith("-"))
    replace(out / "config.yaml", json.dumps({"kind": verb, "recipe": recipe, "settings": settings}))
    replace(out / "environment.json", json.dumps({"python": "3", "cores": 2}))
    if verb == "baselines":
        accuracy = answers(out, "majority", RIGHT["majority"])
        predicted = {"majority": {"rows": ROWS, "accuracy": accuracy}}
        replace(out / "result.json", json.dumps({"kind": "baselines", "rows": ROWS, "baselines": predicted}))
    else:
        train(verb, out, settings, RIGHT["poor" if "train.batch_size=5" in settings else "good"], started)


exit_with_parent()
main()
