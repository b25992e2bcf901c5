"""What an adapted run began with: what was changed of its checkpoint, how far that moved it, which tensors are new."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from homespun.report import formats
from homespun.report.formats import number
from homespun.report.read import RunRecord, Tree, as_list, as_tree, final_losses, is_share
from homespun.report.table import Column, Table
from homespun.report.tables import words


def adaptation(record: RunRecord, end: str = "") -> list[Table]:
    """The tables of one run; none where it did not go on from a checkpoint.

    Args:
        end: of the names of their files, where there are several runs.
    """
    told = as_tree(record.result.get("adaptation"))
    if not told:
        return []
    tables = [_changes(record, told, end), _moved(told, end), _tensors(told, end)]
    return [table for table in tables if table.rows]


def _changes(record: RunRecord, told: Tree, end: str) -> Table:
    rows = [*_losses(told, final_losses(record)[1]), _row("vocabulary", as_tree(told.get("vocabulary")), formats.whole)]
    note = "Losses before training are those of the changed model, not of the checkpoint."
    new = number(as_tree(told.get("vocabulary")).get("new_words"))
    if new:
        note += f" {formats.whole(new)} words are new; with the tensors it is told what they began as."
    per_word = as_tree(told.get("tokens_per_word"))
    if per_word:
        rows.append(_row("tokens per word", per_word, formats.loss))
        note += (
            " A word is what stands between white space: in a script without spaces, such as Japanese, a whole clause."
        )
    decoder = as_tree(told.get("decoder"))
    rows += _shape(told, " of the encoder" if decoder else "")
    if decoder:
        rows += _shape(decoder, " of the decoder")
    columns = (Column("", numeric=False), Column("before"), Column("after"))
    source = formats.text(told.get("start_from"))
    return Table(f"adaptation{end}", f"{record.name}, from {source}", columns, tuple(rows), note)


def _losses(told: Tree, after: Mapping[str, float]) -> list[tuple[str, str, str]]:
    before: Tree = {"loss": told.get("loss"), **as_tree(told.get("losses"))}
    terms = [term for term in before if term != "loss" and not is_share(term)]
    # the one term of a plain objective is its whole loss
    shown = [term for term in before if len(terms) > 1 or term not in terms]
    return [
        _row(
            f"held-out {words(term)}, before and after training",
            {"before": before[term], "after": after.get(term)},
            formats.percent if is_share(term) else formats.loss,
        )
        for term in shown
    ]


def _shape(told: Tree, of: str) -> list[tuple[str, str, str]]:
    sizes = {"num_hidden_layers": "layers", "max_position_embeddings": "longest text"}
    rows = [_row(f"{label}{of}", as_tree(told.get(key)), formats.whole) for key, label in sizes.items()]
    return [*rows, _row(f"attention{of}", as_tree(told.get("attention")), formats.text)]


def _row(label: str, pair: Tree, write: Callable[[object], str]) -> tuple[str, str, str]:
    return label, write(pair.get("before")), write(pair.get("after"))


def _moved(told: Tree, end: str) -> Table:
    columns = (
        Column("stack", numeric=False),
        Column("tokens", formats.whole),
        Column("in pieces", formats.whole),
        Column("mean cosine", formats.share),
        Column("relative distance", formats.share),
        Column("rows", formats.whole),
    )
    keys = ("stack", "tokens", "pieces", "cosine", "relative_distance", "rows")
    rows = tuple(tuple(as_tree(row).get(key) for key in keys) for row in as_list(told.get("moved")))
    note = (
        "Hidden states of held-out rows against the checkpoint's, before any training. "
        "A text longer than the checkpoint reads was read by it in so many pieces."
    )
    return Table(f"moved{end}", "How far the outputs moved", columns, rows, note).without_empty_columns()


def _tensors(told: Tree, end: str) -> Table:
    tensors = as_tree(told.get("tensors"))
    rows: list[tuple[Any, ...]] = [("copied", "as they were", "", number(tensors.get("copied")))]
    changed = Counter((_any_layer(str(k)), _any_layer(str(v))) for k, v in as_tree(tensors.get("changed")).items())
    rows += [("changed", name, how, count) for (name, how), count in changed.items()]
    for kind in ("fresh", "left"):
        names = Counter(_any_layer(str(name)) for name in as_list(tensors.get(kind)))
        rows += [(kind, name, "", count) for name, count in names.items()]
    columns = (
        Column("tensors", numeric=False),
        Column("which", numeric=False),
        Column("how", numeric=False),
        Column("number", formats.whole),
    )
    note = "Fresh: newly drawn. Left: of the checkpoint, and in no use any more. A star stands for the layers."
    return Table(f"tensors{end}", "Where the tensors came from", columns, tuple(rows), note)


def _any_layer(name: str) -> str:
    return re.sub(r"layers\.\d+\.", "layers.*.", name)


def adaptations(records: Sequence[RunRecord]) -> list[Table]:
    """The tables of all runs that went on from a checkpoint."""
    adapted = [record for record in records if as_tree(record.result.get("adaptation"))]
    ends = [""] if len(adapted) == 1 else [f"-{number}" for number in range(1, len(adapted) + 1)]
    return [table for record, end in zip(adapted, ends, strict=True) for table in adaptation(record, end)]
