"""Metrics of token classification: entities (seqeval) and words."""

from __future__ import annotations

from collections.abc import Sequence

from homespun.errors import UserError
from homespun.metrics.classification import Metrics, class_metrics

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
WORD_METRICS = ("accuracy", "macro_f1")
Tags = Sequence[Sequence[str]]
_AS_IOBES = {"L-": "E-", "U-": "S-"}


def are_entities(tags: Sequence[str]) -> bool:
    """True if the tags mark spans: each is ``O`` or has an IOB, IOBES or BILOU prefix, such as ``B-``."""
    marked = [tag for tag in tags if tag != "O"]
    return bool(marked) and all(len(tag) > 2 and tag[0] in "BIESLU" and tag[1] == "-" for tag in marked)


def extract_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Name, first word and last word of the entities in IOB, IOBES or BILOU tags, as in seqeval's default mode.

    ``I-`` after another name begins an entity; unknown tags are outside.
    """
    entities: list[tuple[str, int, int]] = []
    open_name = ""
    for index, tag in enumerate(tags):
        mark, dash, name = tag.partition("-")
        if not dash or len(mark) != 1 or mark not in "BIESLU" or not name:
            open_name = ""
            continue
        if mark in "IEL" and open_name == name:
            entities[-1] = (name, entities[-1][1], index)
        else:
            entities.append((name, index, index))
        open_name = "" if mark in "ESLU" else name
    return entities


class EntityMetrics:
    """Precision, recall and F1 of complete entities (CoNLL) by the package seqeval. Raises `UserError` without it."""

    def __init__(self) -> None:
        try:
            from seqeval.metrics import accuracy_score, classification_report
        except ImportError:
            raise UserError("entity metrics need the package seqeval; pip install 'homespun[metrics]'") from None
        self._report = classification_report
        self._accuracy = accuracy_score

    def __call__(self, truth: Tags, predicted: Tags) -> Metrics:
        """``rows`` (sentences), `ENTITY_METRICS` and ``per_class``; sentences without words are skipped."""
        references = [_to_iobes(tags) for tags in truth if tags]
        outputs = [_to_iobes(output) for tags, output in zip(truth, predicted, strict=True) if tags]
        if not references:
            raise UserError("no sentence has a word; give sentences with words")
        # seqeval divides by zero if there are no entities, before `zero_division` applies
        empty = not any(tag != "O" for tags in (*references, *outputs) for tag in tags)
        report = {} if empty else self._report(references, outputs, output_dict=True, zero_division=0)
        mean = report.get("micro avg", {})
        classes = {name: values for name, values in report.items() if not name.endswith(" avg")}
        columns = (
            [values[key] for values in classes.values()] for key in ("precision", "recall", "f1-score", "support")
        )
        return {
            "rows": len(truth),
            "f1": float(mean.get("f1-score", 0.0)),
            "precision": float(mean.get("precision", 0.0)),
            "recall": float(mean.get("recall", 0.0)),
            "accuracy": float(self._accuracy(references, outputs)),
            "per_class": class_metrics(classes, *columns),
        }


def _to_iobes(tags: Sequence[str]) -> list[str]:
    """Convert BILOU tags to IOBES; the default mode of seqeval does not know the marks L and U."""
    return [_AS_IOBES.get(tag[:2], tag[:2]) + tag[2:] for tag in tags]


def word_metrics(truth: Tags, predicted: Tags) -> Metrics:
    """``rows`` (sentences), `WORD_METRICS` and ``per_class`` of tags such as parts of speech."""
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    references = [tag for tags in truth for tag in tags]
    outputs = [tag for tags in predicted for tag in tags]
    if not references:
        raise UserError("no sentence has a word; give sentences with words")
    names = sorted({*references, *outputs})
    columns = precision_recall_fscore_support(references, outputs, labels=names, average=None, zero_division=0.0)
    per_class = class_metrics(names, *columns)
    return {
        "rows": len(truth),
        "accuracy": float(accuracy_score(references, outputs)),
        "macro_f1": sum(one["f1"] for one in per_class.values()) / len(per_class),
        "per_class": per_class,
    }
