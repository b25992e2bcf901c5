"""What pretraining learned beside the best guess from how often tokens are, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.report import formats
from homespun.report.formats import number
from homespun.report.read import RunRecord, as_tree, final_losses

_ALIKE = 0.97  # of the loss of the guess: what the subject of a text gives away lies above it
_TOLD = {"mlm": "a masked token", "generator": "a token of the generator", "causal": "the next token"}


def beyond_frequencies(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """A paragraph for every guess that runs were measured by: who has learned more, and who has not.

    Args:
        runs: of each name, one or more trainings, whose losses are averaged.
    """
    losses: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for name, records in runs.items():
        for term, what in _TOLD.items():
            pairs = [
                (loss, guess)
                for record in records
                if (guess := number(as_tree(record.result.get("frequencies")).get(term))) is not None
                and (loss := final_losses(record)[1].get(term)) is not None
            ]
            if pairs:
                loss, guess = (fmean(values) for values in zip(*pairs, strict=True))
                losses.setdefault((what, formats.loss(guess)), {})[name] = loss, guess
    return [_paragraph(what, told, named) for (what, told), named in losses.items()]


def _paragraph(what: str, told: str, named: Mapping[str, tuple[float, float]]) -> str:
    more = {name: loss <= _ALIKE * guess for name, (loss, guess) in named.items()}
    words = f"Guessed by how often tokens are, {what} costs {told} nats on held-out text."
    for learned, said in (
        (True, "More than that was learned by"),
        (False, "Hardly more, so nothing yet of the context, was learned by"),
    ):
        if names := [f"{name} ({formats.loss(named[name][0])})" for name in named if more[name] is learned]:
            words += f" {said} {formats.listed(names)}."
    return words
