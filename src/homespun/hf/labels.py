"""Classes in config.json: ``id2label``, ``label2id``, ``problem_type``.

A regression is a classifier of one class, whose logit is the number.
"""

from __future__ import annotations

from collections.abc import Callable

from homespun.config import Tree
from homespun.data.labels import Labels
from homespun.errors import UserError


def classification(kind: str, *, dropout: str = "classifier_dropout", **fields: object) -> Callable[[Tree], Tree]:
    """Settings of our classification head from config.json.

    Args:
        kind: of the head.
        dropout: the setting of the head's dropout; without it, that of the hidden states.
        fields: further settings of the head.
    """

    def head(tree: Tree) -> Tree:
        given = tree.get(dropout)
        given = tree.get("hidden_dropout_prob", 0.1) if given is None else given
        return {"kind": kind, "num_labels": _count(tree), "dropout": given} | fields

    return head


def _count(tree: Tree) -> int:
    """Number of classes, without building default names: the number is not yet checked against the weights."""
    table, problem = tree.get("id2label"), tree.get("problem_type")
    if table is None:  # two classes without names
        given = tree.get("num_labels", 2)
        count = given if isinstance(given, int) else 0
    else:
        count = len(_listed(table))
    if count < 1 or (problem == "regression" and count > 1):
        raise UserError("config.json describes a regression of several numbers; homespun supports one")
    if problem == "single_label_classification" and count < 2:
        raise UserError("config.json describes a classification with one class; set problem_type to regression")
    return count


def _listed(table: object) -> list[str]:
    """Names of an ``id2label``."""
    items = table.items() if isinstance(table, dict) else [("", "")]
    try:
        pairs = sorted((int(number), str(name)) for number, name in items)
    except (TypeError, ValueError) as error:
        raise UserError(f"id2label of config.json must map numbers to names, not {table!r}") from error
    names = [name for _, name in pairs]
    if [number for number, _ in pairs] != list(range(len(pairs))) or len(set(names)) != len(names):
        raise UserError(f"id2label of config.json must name each of the classes 0, 1, 2, ... once, not {table!r}")
    return names


def read_labels(tree: Tree) -> Labels:
    """Classes of a classifier, in the order of the logits.

    Raises:
        UserError: ``id2label`` is not a numbered list of different names, or has several names for a regression.
    """
    count, table = _count(tree), tree.get("id2label")
    names = default_labels(count).names if table is None else tuple(_listed(table))
    return Labels(names, multi_label=tree.get("problem_type") == "multi_label_classification")


def write_labels(labels: Labels) -> Tree:
    """Settings of config.json for the classes."""
    problem = "multi_label" if labels.multi_label else "single_label"
    return {
        "id2label": {str(index): name for index, name in enumerate(labels.names)},
        "label2id": {name: index for index, name in enumerate(labels.names)},
        "problem_type": f"{problem}_classification" if labels.multi_label or len(labels) > 1 else "regression",
    }


def default_labels(num_labels: int) -> Labels:
    """Default names of transformers."""
    return Labels(tuple(f"LABEL_{index}" for index in range(num_labels)))
