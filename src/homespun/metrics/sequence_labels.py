"""How good a tagger is: entities by seqeval, and words one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homespun.errors import UserError
from homespun.metrics.classification import Metrics

ENTITIES = ("f1", "precision", "recall", "accuracy")
WORDS = ("accuracy", "macro_f1")
Tags = Sequence[Sequence[str]]


def are_entities(tags: Sequence[str]) -> bool:
    """The tags mark spans: each is ``O``, or has a mark of IOB, IOBES or BILOU before a name, such as ``B-``."""
    marked = [tag for tag in tags if tag != "O"]
    return bool(marked) and all(len(tag) > 2 and tag[0] in "BIESLU" and tag[1] == "-" for tag in marked)


class EntityMetrics:
    """Precision, recall and F1 over whole entities, all alike (CoNLL's), by the package seqeval.

    Raises:
        UserError: the package is not installed.
    """

    def __init__(self) -> None:
        try:
            from seqeval.metrics import accuracy_score, classification_report
        except ImportError:
            raise UserError(
                "tags are measured by entity through seqeval, which is not installed; pip install 'homespun[metrics]'"
            ) from None
        self._report: Any = classification_report
        self._accuracy: Any = accuracy_score

    def __call__(self, truth: Tags, told: Tags) -> Metrics:
        """``rows`` (sentences), `ENTITIES` and ``per_class``, that of each name. Sentences without words count not."""
        whole = [(list(right), list(said)) for right, said in zip(truth, told, strict=True) if right]
        if not whole:
            raise UserError("there is nothing to measure: no sentence has a word")
        rights, saids = [right for right, _ in whole], [said for _, said in whole]
        # where there is no entity at all, seqeval divides by nothing before it can be told what that is
        empty = not any(tag != "O" for tags in (*rights, *saids) for tag in tags)
        found = {} if empty else self._report(rights, saids, output_dict=True, zero_division=0)
        mean = found.get("micro avg", {})
        return {
            "rows": len(truth),
            "f1": float(mean.get("f1-score", 0.0)),
            "precision": float(mean.get("precision", 0.0)),
            "recall": float(mean.get("recall", 0.0)),
            "accuracy": float(self._accuracy(rights, saids)),
            "per_class": {
                name: {
                    "precision": float(of["precision"]),
                    "recall": float(of["recall"]),
                    "f1": float(of["f1-score"]),
                    "support": int(of["support"]),
                }
                for name, of in found.items()
                if not name.endswith(" avg")
            },
        }


def word_metrics(truth: Tags, told: Tags) -> Metrics:
    """``rows`` (sentences), `WORDS` and ``per_class`` of tags that mark no spans, such as parts of speech."""
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    right = [tag for tags in truth for tag in tags]
    said = [tag for tags in told for tag in tags]
    if not right:
        raise UserError("there is nothing to measure: no sentence has a word")
    names = sorted({*right, *said})
    columns = precision_recall_fscore_support(right, said, labels=names, average=None, zero_division=0.0)
    per_class = {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(names, *columns, strict=True)
    }
    return {
        "rows": len(truth),
        "accuracy": float(accuracy_score(right, said)),
        "macro_f1": sum(of["f1"] for of in per_class.values()) / len(per_class),
        "per_class": per_class,
    }
