"""The classes of a classifier in config.json: ``id2label``, ``label2id``, ``problem_type``.

A regression is there a classifier of one class, whose logit is the number.
"""

from __future__ import annotations

from collections.abc import Callable

from homespun.config import Tree
from homespun.data.labelled import Labels
from homespun.errors import UserError


def classification(kind: str) -> Callable[[Tree], Tree]:
    """The settings of a classification head of ours, from config.json."""

    def head(tree: Tree) -> Tree:
        dropout = tree.get("classifier_dropout")
        dropout = tree.get("hidden_dropout_prob", 0.1) if dropout is None else dropout
        return {"kind": kind, "num_labels": len(label_names(tree)), "dropout": dropout}

    return head


def label_names(tree: Tree) -> list[str]:
    """The names of the classes, in the order of the logits.

    Raises:
        UserError: ``id2label`` is not a numbered list of different names, or of several names for a regression.
    """
    table = tree.get("id2label")
    if table is None:  # written only where it differs from two classes without a name
        count = tree.get("num_labels", 2)
        table = dict(enumerate(unnamed(count if isinstance(count, int) else 0).names))
    try:
        names = [str(table[key]) for key in sorted(table, key=int)]
        numbered = [int(key) for key in sorted(table, key=int)] == list(range(len(table)))
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"id2label of config.json must map numbers to names, not {table!r}") from error
    if not numbered or len(set(names)) != len(names):
        raise UserError(f"id2label of config.json must name each of the classes 0, 1, 2, ... once, not {table!r}")
    problem = tree.get("problem_type")
    if not names or (problem == "regression" and len(names) > 1):
        raise UserError("config.json describes a regression of several numbers; the models of homespun tell one")
    if problem == "single_label_classification" and len(names) < 2:
        raise UserError("config.json describes one class, of which nothing can be told; set problem_type to regression")
    return names


def read_labels(tree: Tree) -> Labels:
    """The classes of a classifier."""
    return Labels(tuple(label_names(tree)), multi_label=tree.get("problem_type") == "multi_label_classification")


def write_labels(labels: Labels) -> Tree:
    """The keys of config.json that name the classes."""
    return {
        "id2label": {str(index): name for index, name in enumerate(labels.names)},
        "label2id": {name: index for index, name in enumerate(labels.names)},
        "problem_type": _problem(labels),
    }


def _problem(labels: Labels) -> str:
    if labels.multi_label:
        return "multi_label_classification"
    return "single_label_classification" if len(labels) > 1 else "regression"


def unnamed(num_labels: int) -> Labels:
    """Names for the classes of a head that came without, as transformers makes them up."""
    return Labels(tuple(f"LABEL_{index}" for index in range(num_labels)))
