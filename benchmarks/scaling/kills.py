"""Trainings of two processes under torchrun whose workers are killed: recovery, and equality of the losses.

In each run SIGKILL ends a random worker after a random step. ``lost_node``: of two torchrun agents, the second is
killed with its worker, and the first continues alone with the same global batch.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from accelerate.utils.other import get_free_port

from homespun.commands.workload import made_up_texts, made_up_tokenizer
from homespun.data.corpus_build import build_corpus
from homespun.text.sources import Document

DEADLINE = 600.0  # seconds of a training
RECIPE = (
    *("causal-mini", "data.max_length=32", "model.hidden_size=32", "model.num_hidden_layers=2"),
    *("model.hidden_dropout_prob=0", "train.batch_size=6", "train.micro_batch_size=2", "train.precision=float32"),
    *("train.parallel=fsdp", "train.workers=1", "train.checkpoint_every=0.3"),
)
PAIR = ("--standalone", "--nproc-per-node=2")  # a free port, so that two jobs of a machine do not meet
ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start(corpus: Path, out: Path, steps: int, *agent: str) -> subprocess.Popen[str]:
    """Start a torchrun agent of a training."""
    words = [*RECIPE, f"data.corpus={corpus}", f"train.budget.steps={steps}", "--out", str(out), "--resume", "--json"]
    command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=3", *agent]
    command += ["-m", "homespun", "pretrain", *words]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=os.environ | ENVIRONMENT, **pipes)  # type: ignore[call-overload]


def events(out: Path) -> Iterator[dict[str, Any]]:
    path = out / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return map(json.loads, lines)


def losses(out: Path) -> list[float]:
    """Return the loss of each step.

    Raises:
        ValueError: a step is missing or duplicated.
    """
    steps = [line for line in events(out) if line["event"] == "step"]
    if [line["step"] for line in steps] != list(range(1, len(steps) + 1)):
        raise ValueError(f"{out} has the steps {[line['step'] for line in steps]}")
    return [line["loss/total"] for line in steps]


def wait_for_step(out: Path, step: int, agents: Sequence[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + DEADLINE
    while sum(line["event"] == "step" for line in events(out)) < step:
        if time.monotonic() > end or any(agent.poll() is not None for agent in agents):
            raise RuntimeError(f"no step {step}: {[agent.communicate()[1][-2000:] for agent in agents]}")
        time.sleep(0.01)


def kill(process: psutil.Process, *, tree: bool) -> None:
    victims = [process, *process.children(recursive=True)] if tree else [process]
    for victim in victims:
        victim.kill()


def finish(agent: subprocess.Popen[str], out: Path, steps: int) -> list[float] | None:
    """Return the losses of a training that ended normally; None if it failed."""
    _, text = agent.communicate(timeout=DEADLINE)
    if agent.returncode or len(losses(out)) != steps or not (out / "model").is_dir():
        print(text[-4000:], file=sys.stderr, flush=True)
        return None
    return losses(out)


def lose_node(corpus: Path, out: Path, steps: int) -> list[float] | None:
    """Return the losses of a training of two agents of which one is killed."""
    where = f"--rdzv-endpoint=127.0.0.1:{get_free_port()}"
    elastic = ("--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=kills", where)
    first = start(corpus, out, steps, *elastic)
    time.sleep(2.0)  # the first hosts the rendezvous
    second = start(corpus, out, steps, *elastic)
    wait_for_step(out, steps // 3, [first, second])
    kill(psutil.Process(second.pid), tree=True)
    second.communicate()
    return finish(first, out, steps)


def measure(runs: int, steps: int) -> dict[str, Any]:
    """Count the killed trainings that end normally with the losses of an uninterrupted training."""
    draw = random.Random(0)
    identical, finished, resumed, restart_seconds = 0, 0, [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        documents = (Document(text) for text in islice(made_up_texts(300, tokens=64), 400))
        build_corpus(documents, made_up_tokenizer(300), folder / "corpus")
        expected = finish(start(folder / "corpus", folder / "whole", steps, *PAIR), folder / "whole", steps)
        if expected is None:
            raise RuntimeError("the training without a kill failed")
        for number in range(runs):
            out, step, rank = folder / f"run-{number}", draw.randrange(1, steps), draw.randrange(2)
            agent = start(folder / "corpus", out, steps, *PAIR)
            wait_for_step(out, step, [agent])
            workers = sorted(psutil.Process(agent.pid).children(), key=lambda process: process.pid)
            kill(workers[rank], tree=False)
            killed = time.monotonic()
            found = finish(agent, out, steps)
            restart_seconds.append(time.monotonic() - killed)
            finished += found is not None
            identical += found == expected
            resumed.append([line["step"] for line in events(out) if line["event"] == "resume"])
            print(
                f"run {number}: worker {rank} at step {step}, resumed {resumed[-1]}, {found == expected}",
                file=sys.stderr,
            )
        alone = lose_node(folder / "corpus", folder / "lost", steps)
        processes = [line["processes"] for line in events(folder / "lost") if line["event"] in ("start", "resume")]
    pairs = zip(alone or [float("nan")], expected, strict=alone is not None)
    return {
        "unit": "runs",
        "runs": runs,
        "steps": steps,
        "finished": finished,  # target: all
        "identical": identical,  # losses of every step, bit by bit
        "resumed_at": resumed,
        "lost_node": {"processes": processes, "difference": max(abs(a / b - 1) for a, b in pairs)},
        "seconds_to_the_end": statistics.median(restart_seconds),
    }
