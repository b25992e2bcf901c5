"""Pretraining step of ELECTRA-small: tokens a second and peak memory, against a plain `transformers` loop.

Both train the generator and discriminator of ELECTRA-small on the same masked batches without padding, with the same
loss, dropout, clipping and AdamW; preparing batches is not timed. homespun runs the objective as its trainer does, with
fused AdamW. The peer is `ElectraForMaskedLM` and `ElectraForPreTraining` with tied embeddings, `torch.multinomial` from
the generator's full softmax, and `torch.optim.AdamW` with default settings.

Two differences do not need a library: homespun samples only at masked positions, where the plain loop samples at every
position; and in pretraining it has no dropout of attention probabilities, where the peer's config has 0.1. A
``careful_peer`` does both as homespun does.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import PRECISIONS, autocast, contestant, measure_interleaved, seconds, wait
from homespun.batch import Batch, RowSeed
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.objectives.electra import Electra
from homespun.text.tokenizer import Tokenizer

VOCAB_SIZE, LEARNING_RATE, MAX_NORM, WARMUP = 30_522, 5e-4, 1.0, 2


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks electra-step", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3, help="steps of each in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="rows in a step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="tokens in a row (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="bf16: mixed, by autocast")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    settings = {
        "batch_size": options.batch_size,
        "length": options.length,
        "device": options.device,
        "precision": options.precision,
        "threads": options.threads,
    }
    contestants = {name: contestant(options.device, rate, name, settings, options.steps) for name in CONTESTANTS}
    rates = measure_interleaved(contestants, options.rounds)
    peaks = {name: measured.peak for name, measured in contestants.items()}
    for measured in contestants.values():
        measured.close()
    return {
        "unit": "tokens/s, bytes",
        **settings,
        "ours": {"tokens_per_second": round(rates["ours"], 1), "peak_bytes": peaks["ours"]},
        "peer": {"tokens_per_second": round(rates["peer"], 1), "peak_bytes": peaks["peer"]},
        "careful_peer": {"tokens_per_second": round(rates["careful_peer"], 1), "peak_bytes": peaks["careful_peer"]},
        "ratios": {
            "tokens_per_second": round(rates["ours"] / rates["peer"], 3),  # target: at least 2.4
            "peak_bytes": round(peaks["ours"] / peaks["peer"], 3),  # target: at most 0.45
            "tokens_per_second_careful": round(rates["ours"] / rates["careful_peer"], 3),
            "peak_bytes_careful": round(peaks["ours"] / peaks["careful_peer"], 3),
        },
    }


def rate(name: str, settings: dict[str, Any], steps: int) -> Callable[[], float]:
    """Return a function that measures tokens a second over the next ``steps`` steps."""
    training = CONTESTANTS[name](settings)
    for _ in range(WARMUP):
        next(training)
    wait(settings["device"])

    def measure() -> float:
        def turn() -> None:
            for _ in range(steps):
                next(training)
            wait(settings["device"])

        return steps * int(settings["batch_size"]) * int(settings["length"]) / seconds(turn)

    return measure


def ours(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the objective."""
    tokenizer = _tokenizer()
    backbone = EncoderConfig.model_validate({"preset": "electra-small", "vocab_size": tokenizer.vocab_size})
    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    objective = Electra().build(ModelConfig(backbone=backbone), tokenizer).to(settings["device"]).train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=LEARNING_RATE, fused=True)
    for batch in itertools.cycle(_batches(tokenizer, settings)):
        with autocast(settings["device"], settings["precision"]):
            loss = objective(batch).total(batch.targets)
        loss.backward()
        nn.utils.clip_grad_norm_(objective.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        yield


def peer(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the `transformers` loop, with a sample at every position."""

    def samples(logits: Tensor, masked: Tensor) -> Tensor:
        drawn = torch.multinomial(logits.float().softmax(-1).flatten(0, 1), 1)
        return drawn.view_as(masked)[masked]

    return _peer(settings, samples, attention_dropout=0.1)


def careful_peer(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the `transformers` loop, with samples at masked positions and no attention
    dropout.
    """

    def samples(logits: Tensor, masked: Tensor) -> Tensor:
        return torch.multinomial(logits[masked].float().softmax(-1), 1).squeeze(-1)

    return _peer(settings, samples, attention_dropout=0.0)


def _peer(
    settings: dict[str, Any], sample: Callable[[Tensor, Tensor], Tensor], *, attention_dropout: float
) -> Iterator[None]:
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    shared: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "embedding_size": 128,
        "num_hidden_layers": 12,
        "attention_probs_dropout_prob": attention_dropout,
    }
    generator = ElectraForMaskedLM(
        ElectraConfig(hidden_size=64, num_attention_heads=1, intermediate_size=256, **shared)
    )
    discriminator = ElectraForPreTraining(
        ElectraConfig(hidden_size=256, num_attention_heads=4, intermediate_size=1024, **shared)
    )
    discriminator.electra.embeddings = generator.electra.embeddings
    models = nn.ModuleList([generator, discriminator]).to(settings["device"]).train()
    optimizer = torch.optim.AdamW(models.parameters(), lr=LEARNING_RATE)
    for batch in itertools.cycle(_batches(_tokenizer(), settings)):
        labels = _dense_labels(batch)
        masked = labels != -100
        attention_mask = torch.ones_like(batch.input_ids)
        with autocast(settings["device"], settings["precision"]):
            filling = generator(input_ids=batch.input_ids, attention_mask=attention_mask, labels=labels)
            with torch.no_grad():
                filled = batch.input_ids.masked_scatter(masked, sample(filling.logits, masked))
                replaced = (filled != batch.input_ids.where(~masked, labels)).long()
            judging = discriminator(input_ids=filled, attention_mask=attention_mask, labels=replaced)
            loss = filling.loss + 50.0 * judging.loss
        loss.backward()
        nn.utils.clip_grad_norm_(models.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        yield


CONTESTANTS: dict[str, Callable[[dict[str, Any]], Iterator[None]]] = {
    "ours": ours,
    "peer": peer,
    "careful_peer": careful_peer,
}


def _tokenizer() -> Tokenizer:
    words = " ".join(f"w{number}" for number in range(VOCAB_SIZE - 5))
    return Tokenizer.train([words], kind="words", vocab_size=VOCAB_SIZE)


def _batches(tokenizer: Tokenizer, settings: dict[str, Any], count: int = 8) -> list[Batch]:
    """Build rows of random words, ``[CLS] words [SEP]``, masked by our collate."""
    random = np.random.default_rng(0)
    collate = Electra().collate(tokenizer)
    batches = []
    for number in range(count):
        rows = []
        for _ in range(settings["batch_size"]):
            words = random.integers(5, VOCAB_SIZE, settings["length"] - 2)
            rows.append(Row(np.concatenate([[tokenizer.cls_id], words, [tokenizer.sep_id]])))
        row_seeds = [RowSeed(0, number, index) for index in range(len(rows))]
        batches.append(collate(rows, row_seeds).to(settings["device"]))
    return batches


def _dense_labels(batch: Batch) -> Tensor:
    """Return (batch, seq) int64 labels of `transformers`: the label at each masked position, -100 elsewhere."""
    assert batch.positions is not None
    assert batch.labels is not None
    labels = torch.full_like(batch.input_ids, -100).flatten()
    return labels.index_copy_(0, batch.positions, batch.labels).view_as(batch.input_ids)
