"""Held-out losses against the unigram baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.report import formats
from homespun.report.records import RunRecord, final_losses

_MAX_RATIO = 0.97  # of the baseline: the topic of a text alone gives less
_MIN_RECALL = 0.01  # of the replaced tokens
_TOKENS = {"mlm": "masked tokens", "generator": "tokens of the generator", "causal": "the next token"}


def compare_with_unigram_baseline(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """One paragraph for each unigram baseline, with the runs that beat it and those that do not; one for ELECTRA
    discriminators that predict only the rate of replaced tokens.

    Args:
        runs: of each name, one or more trainings, whose losses are averaged.
    """
    losses: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for name, records in runs.items():
        for term, what in _TOKENS.items():
            pairs = [
                (loss, baseline)
                for record in records
                if (baseline := record.result.frequencies.get(term)) is not None
                and (loss := final_losses(record)[1].get(term)) is not None
            ]
            if pairs:
                loss, baseline = (fmean(values) for values in zip(*pairs, strict=True))
                losses.setdefault((what, formats.loss(baseline)), {})[name] = loss, baseline
    paragraphs = [_paragraph(what, level, named) for (what, level), named in losses.items()]
    if blind := [name for name, records in runs.items() if records and all(_finds_none(r) for r in records)]:
        paragraphs.append(
            f"The discriminator of {formats.listed(blind)} finds under 1 % of the replaced tokens and predicts only "
            f"their rate: its embeddings may be worse than those of an untrained network."
        )
    return paragraphs


def _finds_none(record: RunRecord) -> bool:
    losses = final_losses(record)[1]
    loss, right, found = (losses.get(term) for term in ("discriminator", "discriminator_accuracy", "replaced_recall"))
    if loss is None or right is None or found is None or found >= _MIN_RECALL or not 0.0 < right < 1.0:
        return False
    # of who calls every token an original, what is not right is the share of the replaced ones
    return loss >= -_MAX_RATIO * (right * math.log(right) + (1.0 - right) * math.log(1.0 - right))


def _paragraph(what: str, level: str, named: Mapping[str, tuple[float, float]]) -> str:
    more = {name: loss <= _MAX_RATIO * baseline for name, (loss, baseline) in named.items()}
    words = f"Unigram baseline for {what}: {level} nats on held-out text."
    for learned, label in (
        (True, "Better:"),
        (False, "Not better (within 3 %):"),
    ):
        if names := [f"{name} ({formats.loss(named[name][0])})" for name in named if more[name] is learned]:
            words += f" {label} {formats.listed(names)}."
    return words
