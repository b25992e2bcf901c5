"""The classes of a classifier in config.json: ``id2label``, ``label2id``, ``problem_type``."""

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
        UserError: ``id2label`` is not a numbered list of different names, or the model is for regression.
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
    if len(names) < 2 or tree.get("problem_type") == "regression":
        raise UserError("config.json describes a regression; the models of homespun classify, into 2 classes or more")
    return names


def read_labels(tree: Tree) -> Labels:
    """The classes of a classifier."""
    return Labels(tuple(label_names(tree)), multi_label=tree.get("problem_type") == "multi_label_classification")


def write_labels(labels: Labels) -> Tree:
    """The keys of config.json that name the classes."""
    return {
        "id2label": {str(index): name for index, name in enumerate(labels.names)},
        "label2id": {name: index for index, name in enumerate(labels.names)},
        "problem_type": "multi_label_classification" if labels.multi_label else "single_label_classification",
    }


def unnamed(num_labels: int) -> Labels:
    """Names for the classes of a head that came without, as transformers makes them up."""
    return Labels(tuple(f"LABEL_{index}" for index in range(num_labels)))
