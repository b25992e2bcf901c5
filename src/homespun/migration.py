"""Renamed keys, kinds, options and files: read in old runs, rejected in new settings (docs/migration.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

RENAMED_KEYS = {
    "data.length": "max_length",
    "data.source_length": "max_source_length",
    "data.target_length": "max_target_length",
    "data.question_length": "max_question_length",
    "data.long_inputs": "truncation",
    "data.writing": "generation",
    "paragraphs.most": "max_paragraphs",
    "objective.outside": "out_of_range",
    "objective.by": "method",
    "schedule.final": "min_lr_ratio",
    "search.measure": "metric",
    "space.whole": "integer",
    "about": "description",
    "apart": "independent_directions",
    "draws": "repeats",
    "everywhere": "global_tokens",
    "examples": "train_sizes",
    "measure": "benchmark",
    "slots": "max_parallel",
    "tuning": "calibration",
}
"""Keys of configs; the prefix is an ancestor."""

RENAMED_KINDS = {
    "bilm": "elmo",
    "pairs": "sentence_pairs",
    "pairs_of_texts": "source_target",
    "ratings": "ordinal_regression",
    "sentence_labels": "sentence_classification",
    "span_answers": "question_answering",
    "streamed_clm": "stateful_clm",
    "tagging": "token_classification",
    "tags": "token_labels",
    "text_to_text": "seq2seq",
}
"""Kinds of objectives and of data."""

RENAMED_RECIPES = {"answer": "question-answering", "ratings": "ordinal-regression", "spoilers": "classify-sentences"}

RENAMED_COMMANDS = {"measure": "benchmark", "prompt": "few-shot", "vectors begin": "vectors init-model"}

RENAMED_FLAGS = {
    "--draws": "--repeats",
    "--fresh": "--from-scratch",
    "--how": "--method",
    "--slots": "--max-parallel",
    "--writing": "--generation",
}

RENAMED_FILES = {"begun.json": "inputs.json"}
"""Files of a run directory."""

RENAMED_RESULT_KEYS = {"frequencies": "unigram_baseline", "most_wrong": "top_errors", "tuning": "decision_rule"}
"""Keys of ``result.json``."""

TASK_PATH = ("data", "objective")
"""Path for `migrate` of the ``task`` in a model folder."""


def find_new_key(path: Sequence[str], allowed: Iterable[str] | None = None) -> str | None:
    """Return the new name of the last key in ``path``, if it was renamed to an allowed one."""
    for old, new in RENAMED_KEYS.items():
        *above, key = old.split(".")
        if key == path[-1] and set(above) <= set(path[:-1]) and (allowed is None or new in allowed):
            return new
    return None


def migrate_result(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Rename keys in a ``result.json`` of an earlier version."""
    return {RENAMED_RESULT_KEYS.get(key, key): value for key, value in tree.items()}


def migrate(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Rename keys and kinds in a config or ``task`` of an earlier version, which is at ``path``."""
    if isinstance(value, Mapping):
        keys = {key: find_new_key((*path, str(key))) or key for key in value}
        return {keys[key]: migrate(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [migrate(item, path) for item in value]
    names_kind = path[-1:] in (("kind",), ("data",)) and {"data", "objective"} & set(path[:-1])
    return RENAMED_KINDS.get(value, value) if names_kind and isinstance(value, str) else value
