"""Held-out loss by processor time and by tokens: our recipes and plain `transformers` loops on the same rows.

Each trial is a separate process on ``--threads`` threads, with a budget of processor time (``--minutes``) or of
tokens (``--tokens``), so that other work on the machine affects only the wall clock. A contestant is a recipe of
homespun, or the shape of a peer: ``bert``, ``modernbert``, ``gpt2``, ``qwen3``, with 4 layers of 256 and no dropout,
trained with AdamW, a linear schedule and clipping at each of ``--rates``; its other seeds use the rate with the lowest
held-out loss. Recipes and peers read the same rows and, with equal settings, masks; held-out rows have 15 % masked,
whatever a recipe trains with. With ``--objective seq2seq`` held-out rows have 256 tokens and the default corruption of
the recipe's kind of objective; span corruption needs ``--text financial-sentinels``, and there are no peers. Finished
trials in ``--out`` are not repeated. Curves are written to ``OUT/TEXT-OBJECTIVE.svg``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paths import SHARED
from benchmarks.sources import financial, financial_sentinels, reviews
from homespun.batch import Batch
from homespun.commands.pretrain import start_embeddings
from homespun.commands.recipe import PretrainRecipe, pretrain_recipe
from homespun.commands.workload import pretraining_rows, with_backbone
from homespun.data.corpus import Corpus
from homespun.data.loader import Loader
from homespun.errors import UserError
from homespun.io.atomic import write_bytes
from homespun.models.config import ModelConfig
from homespun.objectives.mlm import MaskedLM
from homespun.objectives.protocol import unigram_losses
from homespun.report import figure as figures
from homespun.training.config import Budget, LinearSchedule
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import EvalResult, evaluate_loss

TEXTS = {"financial": financial, "financial-sentinels": financial_sentinels, "reviews": reviews}
OBJECTIVES = ("causal", "mlm", "seq2seq")
PEERS = {"bert": "mlm", "modernbert": "mlm", "gpt2": "causal", "qwen3": "causal"}
# the recipe whose rows and objective a peer takes, with the share of masked tokens of its paper
PEER_RECIPES: dict[str, tuple[str, ...]] = {
    "bert": ("roberta-mini", "objective.probability=0.15"),
    "modernbert": ("roberta-mini", "objective.probability=0.3"),
    "gpt2": ("causal-mini",),
    "qwen3": ("causal-mini",),
}
ROWS, LENGTH, SEQ2SEQ_LENGTH, POINTS = 8, 128, 256, 16
HELD_OUT = 256 * LENGTH  # tokens
Curve = list[dict[str, float]]


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks time-to-loss", description=__doc__.splitlines()[0])
    parser.add_argument("contestants", nargs="+", help=f"recipes, and peers: {', '.join(PEERS)}")
    parser.add_argument("--text", choices=TEXTS, default="financial", help="(default: %(default)s)")
    parser.add_argument("--objective", choices=OBJECTIVES, default="causal", help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, help="of processor time (default: %(default)s)")
    parser.add_argument("--tokens", type=int, help="in place of --minutes")
    parser.add_argument("--seeds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3], help="of peers")
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="bf16", help="(default: %(default)s)")
    parser.add_argument("--set", dest="settings", nargs="*", default=[], metavar="KEY=VALUE", help="of all recipes")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/time-to-loss"))
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.trial is not None:
        return _trial(options)
    options.out.mkdir(parents=True, exist_ok=True)
    TEXTS[options.text](options.data, options.out / "data")
    found = {name: _contest(name, arguments, options) for name in options.contestants}
    unigram = next((trials[0]["unigram"] for trials in found.values()), None)
    peers = {name: trials for name, trials in found.items() if name in PEERS}
    figure = _plot({name: trials[0]["curve"] for name, trials in found.items()}, unigram)
    write_bytes(options.out / f"{options.text}-{options.objective}.svg", figure)
    return {
        "unit": "nats a predicted token on held-out rows; seconds of the processor",
        "budget": {"minutes": options.minutes} if options.tokens is None else {"tokens": options.tokens},
        "unigram": unigram and round(unigram, 4),
        "contestants": {name: _summary(trials, peers) for name, trials in found.items()},
    }


def _contest(name: str, arguments: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the trials of one contestant, one for each seed."""
    if name not in PEERS:
        return [_started(f"{name}/{seed}/0", arguments, options) for seed in range(options.seeds)]
    if PEERS[name] != options.objective:
        raise UserError(f"{name} is trained with --objective {PEERS[name]}, not {options.objective}")
    first = [_started(f"{name}/0/{rate:g}", arguments, options) for rate in options.rates]
    best = min(first, key=_final)
    rate = options.rates[first.index(best)]
    return [best, *(_started(f"{name}/{seed}/{rate:g}", arguments, options) for seed in range(1, options.seeds))]


def _started(trial: str, arguments: list[str], options: argparse.Namespace) -> dict[str, Any]:
    amount = f"{options.minutes:g}m" if options.tokens is None else str(options.tokens)
    name = "-".join([options.text, options.objective, *trial.split("/"), amount])
    name += f"-{options.precision}-{options.threads}"
    if options.settings:  # too long together for a file name
        name += "-" + hashlib.blake2b("\n".join(options.settings).encode(), digest_size=4).hexdigest()
    folder = options.out / name.replace("/", "_")
    file = folder / "trial.json"
    if not file.is_file():
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        command = [sys.executable, "-m", "benchmarks", "time-to-loss", *arguments, "--trial", f"{trial}@{folder}"]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    print(f"{trial}: {_final(result):.4f} nats, {result['rate']:,.0f} tokens/s", file=sys.stderr, flush=True)
    return result


def _trial(options: argparse.Namespace) -> dict[str, Any]:
    """Train one contestant and write its curve."""
    trial, _, folder = options.trial.partition("@")
    name, seed, rate = trial.rsplit("/", 2)
    torch.set_num_threads(options.threads)
    corpus = Corpus.open(options.out / "data" / options.text)
    peer = name in PEERS
    recipe = pretrain_recipe(
        PEER_RECIPES[name][0] if peer else name,
        [
            *(
                (*PEER_RECIPES[name][1:], "train.batch_size=8", f"data.max_length={LENGTH}")
                if peer
                else options.settings
            ),
            f"data.corpus={corpus.path}",
            f"train.seed={seed}",
            f"train.precision={options.precision}",
        ],
    )
    recipe = with_backbone(recipe, corpus.tokenizer, None)
    train = _peer if peer else _ours
    curve = train(recipe, corpus, name, float(rate), options, Path(folder))
    held_out = _loaders(recipe, corpus)[1]
    objective = _measured(recipe).objective
    losses = unigram_losses(objective.unigram_term, lambda: corpus.counts(0), held_out.once(), corpus.tokenizer)
    result = {
        "name": name,
        "seed": int(seed),
        "learning_rate": float(rate),
        "rate": curve[-1]["tokens"] / curve[-1]["seconds"],
        "unigram": losses.get(options.objective),  # none of seq2seq
        "curve": curve,
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_bytes(Path(folder) / "trial.json", json.dumps(result).encode())
    return result


def _ours(
    recipe: PretrainRecipe, corpus: Corpus, name: str, rate: float, options: argparse.Namespace, folder: Path
) -> Curve:
    watch = Stopwatch()
    torch.manual_seed(recipe.train.seed)
    objective: Any = recipe.objective.build(ModelConfig(backbone=recipe.backbone), corpus.tokenizer)
    start_embeddings(objective, recipe, corpus)
    budget = Budget(tokens=options.tokens) if options.tokens else Budget(time=60 * options.minutes)
    config = recipe.train.model_copy(update={"budget": budget, "validate_every": 1 / POINTS})
    training, held_out = _loaders(recipe, corpus)

    def validate() -> EvalResult:
        with watch.stopped():
            return evaluate_loss(objective, held_out.once(), "cpu")

    run = Run.create(folder / "run", recipe, resume=False)
    trainer = Trainer(objective, training, config, run, validate=validate, clock=watch)
    curve: Curve = []
    for step in trainer:
        if step.validation is not None:
            loss = step.validation.losses[options.objective]
            curve.append({"tokens": step.tokens, "seconds": trainer.progress.seconds, "loss": loss})
    return curve


def _measured(recipe: PretrainRecipe) -> PretrainRecipe:
    """Return the recipe of the held-out loss: equal tokens and share of masked tokens, or corruption and length."""
    objective, length = recipe.objective, recipe.data.max_length
    if isinstance(objective, MaskedLM):
        objective = objective.model_copy(update={"probability": 0.15})
    elif objective.target_length(length):
        objective, length = type(objective)(), SEQ2SEQ_LENGTH
    data = recipe.data.model_copy(update={"max_length": length, "validation_rows": HELD_OUT // length})
    return recipe.model_copy(update={"objective": objective, "data": data})


def _loaders(recipe: PretrainRecipe, corpus: Corpus) -> tuple[Loader, Loader]:
    """Build the loaders of training rows and of held-out rows, whose masks are the same for all recipes."""
    measured = _measured(recipe)
    training, validation = pretraining_rows(recipe, corpus)[0], pretraining_rows(measured, corpus)[1]
    train, measure = (its.objective.collate(corpus.tokenizer) for its in (recipe, measured))
    return (
        Loader(
            training,
            train,
            batch_size=recipe.train.batch_size,
            seed=recipe.train.seed,
            order=recipe.objective.row_order,
        ),
        Loader(validation, measure, batch_size=ROWS, seed=recipe.data.split_seed),
    )


def _peer(
    recipe: PretrainRecipe, corpus: Corpus, name: str, rate: float, options: argparse.Namespace, folder: Path
) -> Curve:
    """Train by the loop of the documentation of `transformers`, over our batches."""
    torch.manual_seed(recipe.train.seed)
    network = _network(name, corpus.tokenizer.vocab_size)
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in network.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, fused=True)
    schedule = LinearSchedule()
    training, held_out = _loaders(recipe, corpus)
    half = torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16")
    curve: Curve = []
    watch, tokens = Stopwatch(), 0

    def share() -> float:
        return float(tokens / options.tokens if options.tokens else watch() / (60 * options.minutes))

    for number, parts in enumerate(training.steps(), start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule.multiplier(min(1.0, share() + 0.5 * share() / number))
        with half:
            loss = _loss(network, parts[0])
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += sum(part.real_tokens for part in parts)
        if share() >= min(1.0, (len(curve) + 1) / POINTS):
            with watch.stopped():
                held_out_loss = _evaluate(network, held_out.once())
            curve.append({"tokens": tokens, "seconds": watch(), "loss": held_out_loss})
        if share() >= 1.0:
            break
    return curve


class Stopwatch:
    """Processor seconds of this process since construction, without stopped periods."""

    def __init__(self) -> None:
        self._start = time.process_time()

    def __call__(self) -> float:
        return time.process_time() - self._start

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Context whose time does not count."""
        began = time.process_time()
        yield
        self._start += time.process_time() - began


def _network(name: str, vocab_size: int) -> nn.Module:
    import transformers

    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    tokens: dict[str, Any] = {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    }
    gated: dict[str, Any] = {"intermediate_size": 684, "max_position_embeddings": LENGTH}
    none: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    make: dict[str, Callable[[], Any]] = {
        "bert": lambda: transformers.BertForMaskedLM(
            transformers.BertConfig(**shared, intermediate_size=1024, max_position_embeddings=LENGTH, **none)
        ),
        "modernbert": lambda: transformers.ModernBertForMaskedLM(
            transformers.ModernBertConfig(**shared, **gated, **tokens)
        ),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=vocab_size, n_embd=256, n_layer=4, n_head=4, n_positions=LENGTH,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )
        ),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(
                **shared, **gated, num_key_value_heads=4, head_dim=64, tie_word_embeddings=True, pad_token_id=0
            )
        ),
    }  # fmt: skip
    return make[name]().train()


def _loss(network: Any, batch: Batch) -> Tensor:
    """Compute the mean over the predicted tokens."""
    assert batch.positions is not None
    assert batch.labels is not None
    mask = batch.attention_mask
    logits = network(input_ids=batch.input_ids, attention_mask=None if mask is None else mask.long()).logits
    chosen: Tensor = logits.flatten(0, 1).index_select(0, batch.positions).float()
    return nn.functional.cross_entropy(chosen, batch.labels)


def _evaluate(network: nn.Module, batches: Iterator[Batch]) -> float:
    """Compute the loss in float32, as `evaluate_loss` does for recipes."""
    network.eval()
    total, targets = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            assert batch.labels is not None
            total += float(_loss(network, batch)) * len(batch.labels)
            targets += len(batch.labels)
    network.train()
    return total / targets


def _final(trial: dict[str, Any]) -> float:
    return float(trial["curve"][-1]["loss"])


def _summary(trials: list[dict[str, Any]], peers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    finals = [_final(trial) for trial in trials]
    return {
        "loss": round(statistics.median(finals), 4),
        "spread": round(max(finals) - min(finals), 4),
        "tokens_per_second": round(statistics.median(trial["rate"] for trial in trials)),
        "learning_rate": trials[0]["learning_rate"] or None,
        "minutes_to_the_loss_of": {
            peer: _minutes(trials, statistics.median(map(_final, theirs))) for peer, theirs in peers.items()
        },
    }


def _minutes(trials: list[dict[str, Any]], loss: float) -> float | None:
    """Return the median over seeds of the time when a loss was first reached; None if a seed did not reach it."""
    reached = [next((p["seconds"] for p in trial["curve"] if p["loss"] <= loss), None) for trial in trials]
    known = [seconds for seconds in reached if seconds is not None]
    return round(statistics.median(known) / 60, 2) if len(known) == len(reached) else None


def _plot(curves: dict[str, Curve], unigram: float | None) -> bytes:
    with figures.drawing("", "", xlabel="processor time, minutes", ylabel="held-out loss, nats", height=3.2) as canvas:
        for number, (name, curve) in enumerate(curves.items()):
            minutes, losses = [point["seconds"] / 60 for point in curve], [point["loss"] for point in curve]
            look = figures.Look(figures.PALETTE[number % len(figures.PALETTE)], marker="")
            canvas.draw(figures.Curve(minutes, losses, look, name, width=1.2))
        if unigram is not None:
            canvas.draw(figures.Curve((), [unigram], figures.Look("#8a8a86", ":", ""), "unigram", width=0.8))
    return canvas.plot.svg
