"""Tables of an adapted run: changes to its checkpoint, distance of its outputs, origin of its tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from homespun.report import formats
from homespun.report.records import RunRecord, final_losses, is_share
from homespun.report.table import Column, Row, Table, Writer, numbers, texts
from homespun.report.titles import term_title
from homespun.results import Adaptation, Change, Shape


def adaptation(record: RunRecord, end: str = "") -> list[Table]:
    """The tables of one run; none if it did not start from a checkpoint.

    Args:
        record: the run.
        end: of file names.
    """
    result = record.result.adaptation
    if result is None:
        return []
    tables = [_changes(record, result, end), _moved(result, end), _tensors(result, end)]
    return [table for table in tables if table.rows]


def _changes(record: RunRecord, result: Adaptation, end: str) -> Table:
    rows = [*_losses(result, final_losses(record)[1]), _row("vocabulary", result.vocabulary, formats.integer)]
    note = "Losses before training are those of the changed model, not of the checkpoint."
    new = result.vocabulary.number("new_words") if result.vocabulary else None
    if new:
        note += f" {formats.integer(new)} words are new; the tensors below have their initial values."
    if result.tokens_per_word:
        rows.append(_row("tokens per word", result.tokens_per_word, formats.loss))
        note += " Words are separated by white space: in a script without spaces, such as Japanese, a word is a clause."
    rows += _shape(result, " of the encoder" if result.decoder else "")
    if result.decoder:
        rows += _shape(result.decoder, " of the decoder")
    columns = (*texts(""), Column("before"), Column("after"))
    source = formats.text(result.start_from)
    return Table(f"adaptation{end}", f"{record.name}, from {source}", columns, tuple(rows), note)


def _losses(result: Adaptation, after: Mapping[str, float]) -> list[tuple[str, str, str]]:
    before = {"loss": result.loss, **result.losses}
    terms = [term for term in before if term != "loss" and not is_share(term)]
    # a single term is the total loss
    shown = [term for term in before if len(terms) > 1 or term not in terms]
    return [
        _row(
            f"held-out {term_title(term)}, before and after training",
            Change(before=before[term], after=after.get(term)),
            formats.percent if is_share(term) else formats.loss,
        )
        for term in shown
    ]


def _shape(result: Shape, of: str) -> list[tuple[str, str, str]]:
    sizes = {"num_hidden_layers": "layers", "max_position_embeddings": "longest text"}
    rows = [_row(f"{label}{of}", getattr(result, key), formats.integer) for key, label in sizes.items()]
    return [*rows, _row(f"attention{of}", result.attention, formats.text)]


def _row(label: str, pair: Change | None, write: Writer) -> tuple[str, str, str]:
    return label, write(pair and pair.before), write(pair and pair.after)


def _moved(result: Adaptation, end: str) -> Table:
    columns = (
        *texts("stack"),
        *numbers(formats.integer, "tokens", "in pieces"),
        *numbers(formats.share, "mean cosine", "relative distance"),
        *numbers(formats.integer, "rows"),
    )
    keys = ("stack", "tokens", "pieces", "cosine", "relative_distance", "rows")
    rows = tuple(tuple(row.get(key) for key in keys) for row in result.moved)
    note = (
        "Hidden states of held-out rows against the checkpoint's, before any training. "
        "The checkpoint read longer texts in so many pieces."
    )
    return Table(f"moved{end}", "How far the outputs moved", columns, rows, note).without_empty_columns()


def _tensors(result: Adaptation, end: str) -> Table:
    tensors = result.tensors
    rows: list[Row] = [("copied", "as they were", "", tensors.copied)]
    changed = Counter((_any_layer(name), _any_layer(how)) for name, how in tensors.changed.items())
    rows += [("changed", name, how, count) for (name, how), count in changed.items()]
    for kind, found in (("fresh", tensors.fresh), ("left", tensors.left)):
        rows += [(kind, name, "", count) for name, count in Counter(map(_any_layer, found)).items()]
    columns = (*texts("tensors", "which", "how"), *numbers(formats.integer, "number"))
    note = "Fresh: newly drawn. Left: of the checkpoint, unused. A star stands for the layers."
    return Table(f"tensors{end}", "Where the tensors came from", columns, tuple(rows), note)


def _any_layer(name: str) -> str:
    return re.sub(r"layers\.\d+\.", "layers.*.", name)
