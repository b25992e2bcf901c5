"""What an adapted run began with: what was changed of its checkpoint, how far that moved it, which tensors are new."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from homespun.report import formats
from homespun.report.formats import number
from homespun.report.read import RunRecord, Tree, as_list, as_tree, final_losses
from homespun.report.table import Column, Table


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
    after = final_losses(record)[1]
    losses: dict[str, Any] = {"loss": told.get("loss"), **as_tree(told.get("losses"))}
    rows: list[tuple[Any, ...]] = [
        (f"held-out {name.replace('_', ' ')}", formats.loss(value), formats.loss(after.get(name)))
        for name, value in losses.items()
        if len(losses) != 2 or name != "loss"
    ]
    sizes = {"vocabulary": "vocabulary", "num_hidden_layers": "layers", "max_position_embeddings": "longest text"}
    rows += [_row(label, as_tree(told.get(key)), formats.whole) for key, label in sizes.items()]
    rows.append(_row("tokens per word", as_tree(told.get("tokens_per_word")), formats.loss))
    rows.append(_row("attention", as_tree(told.get("attention")), formats.text))
    columns = (Column("", numeric=False), Column("before"), Column("after"))
    source = formats.text(told.get("start_from"))
    note = "Losses before are those of the changed model on the held-out text, before any training."
    words = number(as_tree(told.get("vocabulary")).get("new_words"))
    if words:
        note += f" {formats.whole(words)} words are new; each began as the mean of the pieces it replaces."
    return Table(f"adaptation{end}", f"{record.name}, from {source}", columns, tuple(rows), note)


def _row(label: str, pair: Tree, write: Any) -> tuple[str, str, str]:
    return label, write(pair.get("before")), write(pair.get("after"))


def _moved(told: Tree, end: str) -> Table:
    columns = (
        Column("tokens", formats.whole),
        Column("in pieces", formats.whole),
        Column("mean cosine", formats.share),
        Column("relative distance", formats.share),
        Column("rows", formats.whole),
    )
    keys = ("tokens", "pieces", "cosine", "relative_distance", "rows")
    rows = tuple(tuple(as_tree(row).get(key) for key in keys) for row in as_list(told.get("moved")))
    note = (
        "Hidden states of held-out rows against the checkpoint's, before any training. "
        "A text longer than the checkpoint reads was read by it in so many pieces."
    )
    return Table(f"moved{end}", "How far the outputs moved", columns, rows, note)


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
