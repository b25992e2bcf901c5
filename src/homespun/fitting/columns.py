"""Columns of labelled files: label and texts, found by names and values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import permutations

from homespun.data.labels import label_name, parse_flag
from homespun.errors import UserError
from homespun.report import formats
from homespun.text.clean import split_words
from homespun.text.formats import Record

LABEL_NAMES = (
    ("label", "labels", "class", "target"),
    (
        *("category", "categories", "sentiment", "topic", "topics", "intent", "tag", "tags"),
        *("rating", "score", "stars", "similarity", "y"),
    ),
)
"""Names of label columns; one of the first tier wins over those of the second."""
TEXT_NAMES = (
    *("text", "sentence", "content", "document", "abstract", "review", "body", "tweet", "message", "comment"),
    *("description", "question", "headline", "title", "subject"),
)
_TITLE_NAMES = ("title", "subject", "headline")
_SIDES = (("1", "2"), (r"(?<![a-z])a(?![a-z])", "b"), ("first", "second"), ("premise", "hypothesis"))
"""Differences between the names of the two texts of a pair."""
SAMPLE = 2_000  # records that columns are judged by
MAX_CLASSES = 50  # distinct whole numbers that are still taken for classes
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d{2,4}")
_FLAGS = ({False}, {False, True})  # values of the columns of several labels
_LONG = 40  # characters of a column name from which it is taken for a text


def column_names(sample: Sequence[Record]) -> list[str]:
    """Return the names of all columns; a record may lack some."""
    return list(dict.fromkeys(str(name) for record in sample for name in record))


def as_columns(given: str | Sequence[str] | None) -> list[str]:
    """Convert one column, several or none to a list."""
    return [given] if isinstance(given, str) else list(given or ())


def check_columns(sample: Sequence[Record], given: Sequence[str], source: str) -> None:
    """Raise `UserError` for a first row of data instead of names, or if there is no column of a ``given`` name."""
    names = column_names(sample)
    data_like = [name for name in names if len(name) > _LONG or re.fullmatch(r"-?\d+(\.\d+)?", name.strip())]
    if len(names) > 1 and data_like:
        raise no_header(sample, data_like[0], source)
    for name in given:
        if name not in names:
            several = "; repeat the option for several columns" if set(name.split(",")) <= set(names) else ""
            raise UserError(f"{source} has no column {name!r}; there are: {', '.join(names)}{several}")


def no_header(sample: Sequence[Record], value: str, source: str, label: str | None = None) -> UserError:
    """Return the error of a file whose first row has a ``value`` instead of a name; ``label`` is its label column."""
    names = column_names(sample)
    texts = [name for name in names if _is_text([record.get(name) for record in sample], distinct=False)]
    text = next((name for name in texts if name != label), None)
    label = label or next((name for name in names if name != text), None)
    known = {text: "text", label: "label"}
    example = ",".join(known.get(name, f"column{number}") for number, name in enumerate(names, start=1))
    return UserError(
        f"the first row of {source} looks like data, not like names of columns ({value[:_LONG]!r}); name its "
        f"{len(names)} columns in their order, such as --columns {example}"
    )


def find_label_columns(
    sample: Sequence[Record], given: Sequence[str], text: Sequence[str], source: str, decisions: list[str]
) -> list[str]:
    """Return the label column, or several columns of 0 and 1; the reason is appended to ``decisions``.

    Columns of 0 and 1 are the labels if no other column looks like one. Those with only 0 in the sample are among them.

    Raises:
        UserError: no column, or several columns, look like a label.
    """
    if given:
        return list(given)
    names = column_names(sample)
    others = [name for name in names if name not in text]
    tiers = ([name for name in others if name.lower() in tier] for tier in LABEL_NAMES)
    named = next(filter(None, tiers), [])
    columns = {name: [record.get(name) for record in sample] for name in others}
    repeated = [name for name, values in columns.items() if _repeats(values)]
    found = named or repeated or [name for name, values in columns.items() if _has_fractions(values)]
    if len(found) == 1:
        reason = "by its name" if named else "few distinct values" if repeated else "numbers"
        decisions.append(f"label column: {found[0]!r} ({reason})")
        return found
    if not found:
        raise UserError(
            f"{source} has no column that looks like a label; name it with --label-field, out of {', '.join(names)}; "
            f"for texts without labels give --task language-model, for sources and targets --task text-to-text"
        )
    flags = [name for name, values in columns.items() if {parse_flag(value) for value in values} in _FLAGS]
    if not named and set(found) <= set(flags):
        decisions.append(f"label columns: {_quoted(flags)} (0 and 1)")
        return flags
    several = ", or each of several columns of 0 and 1" if len(set(found) & set(flags)) > 1 else ""
    raise UserError(
        f"which column of {source} is the label? {_quoted(found)} could be; name it with --label-field{several}"
    )


def _quoted(names: Sequence[str]) -> str:
    return formats.listed([repr(name) for name in names])


def is_pair(names: Sequence[str]) -> bool:
    """True for the names of the two texts of a pair, in their order: such as ``text1`` and ``text2``, or ``first``."""
    if len(names) != 2:
        return False
    first, second = (name.lower() for name in names)
    return any(first != second and re.sub(one, other, first) == second for one, other in _SIDES)


def _repeats(values: Sequence[object]) -> bool:
    """True for values, or lists of values, that look like classes: short, repeated, and no dates.

    Missing values do not count.
    """
    each = [one for value in values for one in (value if isinstance(value, list | tuple) else [value])]
    names = [name for one in each if (name := label_name(one))]
    if any(isinstance(one, dict | list) for one in each) or all(map(_DATE.match, names)):
        return False
    distinct = len(set(names))
    return 2 <= distinct <= max(2, min(MAX_CLASSES * 2, len(names) // 3)) and max(map(len, set(names))) <= _LONG


def _numbers(values: Sequence[object]) -> list[float] | None:
    """Return the values that are not missing as numbers; None if one is no number."""
    try:
        return [float(name) for value in values if (name := label_name(value))]
    except ValueError:
        return None


def _has_fractions(values: Sequence[object]) -> bool:
    """True for numbers of which at least one has a fraction, so that they do not number the rows."""
    return any(math.isfinite(number) and not number.is_integer() for number in _numbers(values) or ())


def find_text_columns(
    sample: Sequence[Record], labels: Sequence[str], given: Sequence[str], source: str, decisions: list[str]
) -> list[str]:
    """Return the text columns, ``given`` or found; the reason is appended to ``decisions``.

    Raises:
        UserError: no column, or several columns, look like a text.
    """
    if given:
        return list(given)
    names = column_names(sample)
    lower = {name.lower(): name for name in names if name not in labels}
    columns = {name: [record.get(name) for record in sample] for name in names if name not in labels}
    texts = [name for name, values in columns.items() if _is_text(values, distinct=name.lower() not in TEXT_NAMES)]
    words = [name for name, values in columns.items() if _numbers(values) is None]
    pairs = [pair for pair in permutations(words, 2) if is_pair(pair)]
    if len(pairs) == 1:
        decisions.append(f"text columns: {pairs[0][0]!r} and {pairs[0][1]!r} (by their names)")
        return list(pairs[0])
    for single in (words, columns):  # texts of single words, or of numbers
        texts = texts or [name for name in single if name.lower() in TEXT_NAMES]
    if not texts:
        nested = [name for name, values in columns.items() if any(isinstance(value, dict) for value in values)]
        hint = f"; fields of {nested[0]!r} must be columns, such as by pandas.json_normalize" if nested else ""
        raise UserError(f"{source} has no column of text; name it with --text-field, out of {', '.join(names)}{hint}")
    if len(texts) == 1:
        decisions.append(f"text column: {texts[0]!r} (the only text)")
        return texts
    named = [lower[name] for name in TEXT_NAMES if lower.get(name) in texts]
    titles = [name for name in named if name.lower() in _TITLE_NAMES]
    if len(titles) == 1 and len(named) == 2:
        named.sort(key=lambda name: name not in titles)
        decisions.append(f"text columns: {named[0]!r} and {named[1]!r}, joined")
        return named
    if len(named) == 1:
        decisions.append(f"text column: {named[0]!r} (by its name)")
        return named
    raise UserError(
        f"which column of {source} is the text? {_quoted(texts)} could be; name one or several with --text-field"
    )


def _is_text(values: Sequence[object], *, distinct: bool) -> bool:
    """True for values that look like texts: strings of several words and, if asked for, mostly ``distinct``."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) < len(values) / 2:
        return False
    words = sum(len(split_words(text)) for text in texts) / len(texts)
    return words >= 2 and (not distinct or len(set(texts)) > len(texts) / 2)
