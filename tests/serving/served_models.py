"""Tiny models of every task, for the server."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import torch

from homespun.crf import fit_crf
from homespun.data.labels import Labels
from homespun.linear import PLAIN, fit_linear
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.ngrams import Texts
from homespun.tasks.protocol import TaskData, task_metadata
from homespun.tasks.question_answering import QuestionData
from homespun.tasks.sentence_classification import SentencesData
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.taggers import LinearTagger
from homespun.tasks.text_models import LinearTextModel, save_text_model
from homespun.tasks.texts import LabelledData, PairsData
from homespun.tasks.token_classification import TaggedData
from homespun.text.tokenizer import Tokenizer

TEXTS = [
    "The striker scored a goal in the last match of the season.",
    "The bank lowered its price and the traders bought every share.",
    "Butter, onions and salt go into the soup; the bread goes into the oven.",
    "Goal!",
]
LABELS = Labels(("food", "money", "sport"))
TAGS = Labels(("B-x", "B-y", "O"))
BACKBONE: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
BACKBONE |= {"num_hidden_layers": 2, "max_position_embeddings": 64, "initializer_range": 0.3}
CLASSES = {"kind": "linear", "num_labels": 3}
TOKENS = {"kind": "token_classification", "num_labels": 3}
TASKS: dict[str, tuple[dict[str, Any], str, TaskData, Labels | None]] = {  # head, objective, data, labels
    "classifier": (CLASSES, "classification", LabelledData(max_length=32), LABELS),
    "regressor": (CLASSES | {"num_labels": 1}, "regression", LabelledData(max_length=32), None),
    "pairs": (CLASSES, "classification", PairsData(max_length=32), LABELS),
    "tagger": (TOKENS, "token_classification", TaggedData(max_length=48, stride=8), LABELS),
    "sentences": (TOKENS, "sentence_classification", SentencesData(max_length=48), LABELS),
    "answers": ({"kind": "question_answering"}, "question_answering", QuestionData(max_length=48, stride=8), None),
}
LEARNED: dict[str, dict[str, object]] = {
    "regressor": {"range": None, "out_of_range": "clip"},
    "sentences": {"vector": "separator"},
}


def write_network(folder: Path, name: str, seed: int = 1) -> Path:
    """Write a random network: a name of `TASKS`, ``summarizer``, ``decoder`` or ``encoder``."""
    torch.manual_seed(seed)
    tokenizer = Tokenizer.train(TEXTS, kind="bpe", vocab_size=300)
    sizes = BACKBONE | {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    labels, task, head, backbone = None, {}, None, sizes
    if name in TASKS:
        head, kind, data, labels = TASKS[name]
        task = task_metadata(kind, data, LEARNED.get(name))
    elif name == "summarizer":
        head = {"kind": "causal_lm"}
        backbone = {"kind": "encoder_decoder", "encoder": sizes}
        task = task_metadata("seq2seq", TextPairsData(max_source_length=32, max_target_length=8))
    elif name == "decoder":
        head, backbone = {"kind": "causal_lm"}, sizes | {"causal": True, "type_vocab_size": 0}
    config = ModelConfig.model_validate({"backbone": backbone, "head": head})
    save_model(folder, config.build(), config, tokenizer, labels=labels, task=task)
    return folder


def write_linear(folder: Path) -> Path:
    """Write a linear classifier as the ``model/`` folder of a run."""
    model = fit_linear(Texts(TEXTS[:3]), np.array([2, 1, 0]), LABELS, settings=PLAIN).model
    save_text_model(folder / "model", LinearTextModel(model, LabelledData()))
    return folder


def write_linear_tagger(folder: Path) -> Path:
    """Write a linear tagger as the ``model/`` folder of a run."""
    (model,) = fit_crf([["the", "goal"], ["the", "soup"]], [["O", "B-x"], ["O", "B-y"]], TAGS, epochs=1)
    LinearTagger(model, TaggedData()).save(folder / "model")
    return folder


def server(*words: str | Path, env: dict[str, str] | None = None) -> AbstractContextManager["Server"]:
    """Run ``homespun serve`` on a free port until the block ends."""
    return command("serve", *words, "--port", "0", env=env)


@contextmanager
def command(*words: str | Path, env: dict[str, str] | None = None) -> Iterator["Server"]:
    """Run a command that starts a server until the block ends."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:  # a pipe that nobody reads would stop the server
        process = subprocess.Popen(
            [sys.executable, "-m", "homespun", *map(str, words)],
            stdout=log,
            stderr=subprocess.PIPE,
            env=os.environ | (env or {}),
            text=True,
        )
        running = Server(process, log)
        try:
            running.wait_until_ready()
            yield running
        finally:
            process.kill()
            process.communicate()


class Server:
    """A server process, and its access log."""

    def __init__(self, process: "subprocess.Popen[str]", log: IO[str]) -> None:
        self.process, self.log = process, log
        self.url = ""

    def wait_until_ready(self, seconds: float = 60) -> None:
        assert self.process.stderr is not None
        lines = list[str]()
        while not (found := re.search(r"listening on (http://\S+:\d+)", "".join(lines[-1:]))):
            lines.append(self.process.stderr.readline())
            assert lines[-1], lines  # or it has ended
        self.url = found[1]
        end = time.monotonic() + seconds
        while httpx.get(f"{self.url}/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.02)

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, access log and other output of a process that ends."""
        _, errors = self.process.communicate(timeout=20)
        self.log.seek(0)
        return self.process.returncode, [json.loads(line) for line in self.log], errors
