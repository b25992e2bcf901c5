"""Character language model of Shakespeare by the protocol of nanoGPT: held-out loss after a budget of processor time.

The text is ``input.txt`` of karpathy/char-rnn (data/tinyshakespeare), which is not shipped; give it with ``--text``.
The first 90 % are the training text, in windows at random places as of nanoGPT. The loss is the mean over all
characters of the rest, in windows of the context's length, where nanoGPT samples such windows. ``small`` competes with
nanoGPT's CPU settings (4 layers of 128, context 64; its README has 1.88 nats) with 2 layers, which are faster;
``large`` has its GPU settings (6 layers of 384, context 256; 1.4697 nats).
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.time_to_loss import Stopwatch
from homespun.commands.recipe import pretrain_recipe
from homespun.commands.workload import with_backbone
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.data.loader import Loader
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHead
from homespun.models.model import Model
from homespun.text.sources import Document
from homespun.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import EvalResult


@dataclass(frozen=True)
class Size:
    """Size of the model, with nanoGPT's result."""

    layers: int
    width: int
    context: int
    batch_size: int
    seconds: float  # of processor time
    peer_loss: float


SIZES = {"small": Size(2, 128, 64, 16, 60.0, 1.88), "large": Size(6, 384, 256, 16, 10_800.0, 1.4697)}
EVALUATIONS = 24


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks characters", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="input.txt of karpathy/char-rnn")
    parser.add_argument("--size", choices=SIZES, default="small", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="of processor time (default: 60; 10,800 for large)")
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/characters"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes to the recipe")
    options = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(options.threads)
    text = options.text.read_text(encoding="ascii")
    curves = [_train(text, seed, options) for seed in range(options.seeds)]
    return {
        "unit": "nats a character",
        "threads": options.threads,
        "losses": [curve[-1]["loss"] for curve in curves],
        "peer": {"name": "nanoGPT", "loss": SIZES[options.size].peer_loss},
        "curve": curves[0],
    }


def _train(text: str, seed: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Return held-out losses during a training."""
    size = SIZES[options.size]
    parts = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    corpus = _corpus(parts[0], options.out / "corpus")
    tokenizer = corpus.tokenizer
    recipe = pretrain_recipe(
        "spun-decoder",
        [
            "model.size=tiny",
            f"model.num_hidden_layers={size.layers}",
            f"model.hidden_size={size.width}",
            f"model.intermediate_size={4 * size.width}",
            f"model.num_attention_heads={size.width // 64}",
            f"data.corpus={corpus.path}",
            f"data.max_length={size.context + 2}",
            f"train.batch_size={size.batch_size}",
            f"train.seed={seed}",
            f"train.budget.time={options.seconds or size.seconds:g}",
            f"train.validate_every={1 / EVALUATIONS}",
            *options.settings,
        ],
    )
    recipe = with_backbone(recipe, tokenizer, None)
    torch.manual_seed(seed)
    objective: Any = recipe.objective.build(ModelConfig(backbone=recipe.backbone), tokenizer)
    windows = _windows(tokenizer, parts[1], size.context)
    watch = Stopwatch()

    def validate() -> EvalResult:
        with watch.stopped():
            loss = _loss(objective.export_model()[0], windows)
            return EvalResult(loss, {"causal": loss})

    rows = _RandomWindows(corpus, size.context)
    loader = Loader(rows, recipe.objective.collate(tokenizer), batch_size=recipe.train.batch_size, seed=seed)
    folder = options.out / f"{options.size}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    trainer = Trainer(
        objective, loader, recipe.train, Run.create(folder, recipe, resume=False), validate=validate, clock=watch
    )
    return [
        {"seconds": trainer.progress.seconds, "characters": step.tokens, "loss": step.validation.loss}
        for step in trainer
        if step.validation is not None
    ]


class _RandomWindows:
    """A million windows of ``context`` + 1 characters at random places, after [CLS], as nanoGPT samples them."""

    def __init__(self, corpus: Corpus, context: int) -> None:
        self._text, self._cls, self._size = corpus.tokens(0), corpus.tokenizer.cls_id, context + 1
        places = np.random.default_rng(0)
        self._places = places.integers(len(self._text) - self._size + 1, size=1_000_000)
        self.lengths = np.full(len(self), self._size + 1)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        place = int(self._places[index])
        return Row(np.append(self._cls, self._text[place : place + self._size]))


def _corpus(text: str, folder: Path) -> Corpus:
    if (folder / "corpus.json").is_file():
        return Corpus.open(folder)
    tokenizer = Tokenizer.train(["a"], kind="bpe", vocab_size=len(SPECIAL_TOKENS) + 256)  # bytes
    return build_corpus([Document(text)], tokenizer, folder, inputs="tinyshakespeare")


def _windows(tokenizer: Tokenizer, text: str, context: int) -> torch.Tensor:
    """Build (windows, context + 2) ids: [CLS], a given character, and ``context`` characters to predict."""
    (ids,) = tokenizer.encode_batch([text])
    characters = torch.from_numpy(ids.astype("int64"))
    windows = characters.unfold(0, context + 1, context)
    return torch.cat([torch.full((len(windows), 1), tokenizer.cls_id), windows], 1)


def _loss(model: Model, windows: torch.Tensor) -> float:
    head = model.head
    assert isinstance(head, CausalLMHead)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for part in torch.split(windows, 64):
            hidden = model.backbone(part[:, :-1])[:, 1:]
            total += float(head.predict(hidden.flatten(0, 1), part[:, 2:].flatten()).loss)
    model.train()
    return total / windows[:, 2:].numel()
