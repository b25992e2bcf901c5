"""Stands in for the command homespun: leaves what a stage leaves, or fails in the way that its recipe is named for."""

import json
import os
import pathlib
import signal
import sys
import time

verb, recipe, *rest = sys.argv[1:]
out = pathlib.Path(rest[rest.index("--out") + 1]) if "--out" in rest else None
print("begun", verb, recipe, os.environ.get("OMP_NUM_THREADS"), flush=True)
if verb == "benchmark":
    print("some words")
    print(json.dumps({"inference": [{"length": 17, "batch_size": 1, "seconds_per_text": 0.5, "peak_bytes": 19}]}))
    raise SystemExit(0)
out.mkdir(parents=True, exist_ok=True)
before = (out / "config.yaml").exists()
(out / "config.yaml").write_text("kind: fake")
with (out / "calls.txt").open("a") as calls:
    calls.write(f"{verb} {' '.join(rest)}\n")
if verb == "baselines" and "FAKE_BASELINES_FAIL" in os.environ:
    print("error: no scikit-learn", flush=True)
    raise SystemExit(2)
if recipe == "bad":
    print("a warning of nothing", flush=True)
    print("error: the corpus is empty; give another", flush=True)
    raise SystemExit(2)
if recipe == "crash":
    print("Traceback (most recent call last):\nRuntimeError: 7 is not 11", flush=True)
    print("this is a bug in homespun; the lines above say where", flush=True)
    raise SystemExit(1)
if recipe == "memory":
    os.kill(os.getpid(), signal.SIGKILL)
if recipe == "second" and not before:
    print("error: not the first time", flush=True)
    raise SystemExit(2)
if recipe == "slow":
    time.sleep(600)
time.sleep(0.05)
loss = float(next((w.partition("=")[2] for w in rest if w.startswith("train.optimizer.learning_rate=")), 0.5))
metrics = {"loss": loss, "macro_f1": 1 - abs(loss - 0.25)}
(out / "result.json").write_text(json.dumps({"validation": {"loss": loss}, "validation_metrics": metrics}))
