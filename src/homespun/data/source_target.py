"""Source and target texts: readers of pairs, and rows for sequence-to-sequence training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.data.labels import get_field
from homespun.data.rows import Row, Rows, SubsetRows
from homespun.errors import UserError
from homespun.text.formats import Record
from homespun.text.tokenizer import TokenIds, Tokenizer

BREAK = "\n"
"""Separator of documents, and of the paragraphs of a document."""


class Paragraphs(Config):
    """Selection of the paragraphs (lines) of a source (Liu and Lapata 2019, section 3.1).

    Paragraphs are ranked by TF-IDF similarity to a title, or to all paragraphs without a title. This is a baseline in
    the paper, which learns its ranker.
    """

    max_paragraphs: int = Field(default=24, ge=1, description="maximum paragraphs; 24 in the paper")
    max_length: int = Field(default=64, ge=4, description="maximum tokens of a paragraph")
    title: str = Field(default="", description="column of a title, for ranking only")
    order: Literal["rank", "text"] = Field(default="rank", description="order of the selected paragraphs")

    def read(self, text: str, title: str, tokenizer: Tokenizer, room: int) -> NumberedParagraphs:
        """Select paragraphs of ``text`` that fit into ``room`` tokens."""
        lines = [line for line in map(str.strip, text.split(BREAK)) if line]
        chosen = rank_paragraphs(lines, title)[: self.max_paragraphs]
        ids: list[TokenIds] = []
        selected: list[int] = []
        cut = False
        for line, encoded in zip(chosen, tokenizer.encode_batch([lines[line] for line in chosen]), strict=True):
            part = encoded[: min(self.max_length, room)].copy()
            if len(part):  # a part is empty if it has no tokens or no room
                ids.append(part)
                selected.append(line)
            cut = cut or len(part) < len(encoded)
            room -= len(part)
        if self.order == "text":
            ids = [ids[place] for place in np.argsort(selected)]
        documents = np.repeat(np.arange(len(ids)), [len(part) for part in ids])
        joined = np.concatenate(ids) if ids else np.empty(0, np.int64)
        return NumberedParagraphs(
            joined, documents, cut=cut or len(selected) < len(lines), left_out=len(lines) - len(selected)
        )


@dataclass(frozen=True)
class NumberedParagraphs:
    """Tokens of a source with their paragraphs."""

    ids: TokenIds  # (tokens,) token ids
    documents: NDArray[np.int64]  # (tokens,) number of the paragraph
    cut: bool = False  # True if tokens or paragraphs were left out
    left_out: int = 0  # number of paragraphs left out


def rank_paragraphs(lines: Sequence[str], title: str) -> list[int]:
    """Rank ``lines`` by TF-IDF similarity to ``title``, or to all lines without a title.

    Ties keep their order. Returns line numbers.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(lines)
    except ValueError:  # no words
        return list(range(len(lines)))
    vectors = vectorizer.transform(lines)
    query = vectorizer.transform([title]).todense() if title.strip() else vectors.mean(axis=0)
    similarities = np.asarray(vectors @ np.asarray(query).T).ravel()
    return np.argsort(-similarities.round(12), kind="stable").tolist()


Listed = Literal["references", "sentences"]
"""Meaning of a list in the target column: alternative targets, or sentences of one target."""


@dataclass(frozen=True, slots=True)
class SourceTargetPair:
    """Source text with its reference targets, possibly empty."""

    source: str
    targets: tuple[str, ...]
    data_set: int = 0  # number of its data set
    title: str = ""  # for ranking the paragraphs of the source

    @property
    def is_empty(self) -> bool:
        """True if the source is empty or there is no target."""
        return not self.source or not self.targets


@dataclass(frozen=True)
class SourceTargetTemplate:
    """Special tokens around texts: before source and target, after the source, after the target.

    For a decoder ``after_source`` is the separator, and ``glue`` is put before each target, so that its first word is
    tokenized as inside a text.
    """

    before: tuple[int, ...]
    after_source: tuple[int, ...]
    after_target: tuple[int, ...]
    before_target: tuple[int, ...] = ()
    glue: str = ""

    @classmethod
    def for_encoder_decoder(
        cls, tokenizer: Tokenizer, *, bos_id: int | None, eos_id: int | None
    ) -> SourceTargetTemplate:
        """Build the template ``[bos] text eos`` for source and target.

        ``bos`` is only used if the tokenizer's template has it.
        """
        begins, _ = tokenizer.template
        before = (bos_id,) if bos_id is not None and bos_id in begins else ()
        end = (tokenizer.sep_id if eos_id is None else eos_id,)
        return cls(before, end, end, before)

    @classmethod
    def for_decoder(cls, tokenizer: Tokenizer, separator: str) -> SourceTargetTemplate:
        """Build the template ``[bos] source separator target eos`` (Radford et al. 2019, with separator "TL;DR:")."""
        begins, _ = tokenizer.template
        stripped = separator.rstrip()
        between = tuple(int(i) for i in tokenizer.encode_batch([stripped])[0])
        return cls(tuple(begins), between, (tokenizer.sep_id,), glue=separator[len(stripped) :])


class SourceTargetRows:
    """Rows of pairs that are not empty, one for each target; longer texts are truncated.

    ``row.input_ids`` is the source and ``row.target_ids`` the target, with their special tokens. Source tokens are
    stored once, 2 or 4 bytes each. ``prefixes`` are put before the sources, by `SourceTargetPair.data_set`; they and
    special tokens count in the lengths. Without ``paragraphs`` a source is one text.

    Raises:
        UserError: a length without room for a token.
    """

    def __init__(
        self,
        pairs: Sequence[SourceTargetPair],
        tokenizer: Tokenizer,
        *,
        source_length: int,
        target_length: int,
        template: SourceTargetTemplate,
        prefixes: Sequence[str] = ("",),
        paragraphs: Paragraphs | None = None,
    ) -> None:
        self.pairs = pairs
        self._template = template
        room = source_length - len(template.before) - len(template.after_source)
        target_room = target_length - len(template.before_target) - len(template.after_target)
        for name, length, tokens in (("source", source_length, room), ("target", target_length, target_room)):
            if tokens < 1:
                raise UserError(f"data.max_{name}_length={length} leaves no room between the special tokens; raise it")
        self.usable = np.array([i for i, pair in enumerate(pairs) if not pair.is_empty], dtype=np.int64)
        sources = [(prefixes[pairs[i].data_set] + pairs[i].source, pairs[i].title) for i in self.usable.tolist()]
        targets = [(place, text) for place, i in enumerate(self.usable.tolist()) for text in pairs[i].targets]
        self._documents: list[NDArray[np.int64]] | None = None
        left_out = {}
        if paragraphs is None:
            self._sources, self.cut = tokenizer.encode_truncated([text for text, _ in sources], room)
        else:
            numbered = [paragraphs.read(text, title, tokenizer, room) for text, title in sources]
            self._sources, self._documents = [one.ids for one in numbered], [one.documents for one in numbered]
            self.cut = np.array([one.cut for one in numbered], dtype=np.bool_)
            left_out = {"paragraphs_left_out": sum(one.left_out for one in numbered)}
        texts = [template.glue + text for _, text in targets]
        self._targets, targets_cut = tokenizer.encode_truncated(texts, target_room)
        self._source_of = np.array([place for place, _ in targets], dtype=np.int64)  # (rows,) into `usable`
        around = sum(map(len, (template.before, template.after_source, template.before_target, template.after_target)))
        sizes = np.array([len(ids) for ids in self._sources], dtype=np.int64)
        self.lengths: NDArray[np.int64] = (
            around + sizes[self._source_of] + np.array([len(ids) for ids in self._targets], dtype=np.int64)
        )
        self.data_sets = np.array([pairs[i].data_set for i in self.usable[self._source_of].tolist()], dtype=np.int64)
        cut = int(self.cut.sum())
        self.counts: dict[str, int] = {
            "empty": len(pairs) - len(self.usable),
            "longer": cut,
            "truncated": cut,
            "targets_truncated": int(targets_cut.sum()),
            **left_out,
        }

    def source(self, place: int) -> Row:
        """Return source number ``place`` of `usable` with its special tokens and paragraph numbers."""
        template = self._template
        ids = _joined(template.before, self._sources[place], template.after_source)
        if self._documents is None or not len(self._documents[place]):
            return Row(ids)
        # special tokens belong to the first and the last paragraph
        around = (len(template.before), len(template.after_source))
        return Row(ids, documents=np.pad(self._documents[place], around, "edge"))

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> Row:
        template = self._template
        target = _joined(template.before_target, self._targets[index], template.after_target)
        return replace(self.source(int(self._source_of[index])), target_ids=target)


def mix_rows(
    rows: Rows, data_sets: NDArray[np.int64], *, weights: Sequence[float], limit: int | None = None
) -> SubsetRows:
    """Mix rows of several data sets in proportion to their sizes (Raffel et al. 2020, section 3.5.2).

    An epoch has all rows; rows of data sets with a higher rate are repeated. The rate of a data set, whose number is in
    (rows,) ``data_sets``, is its size, of which at most ``limit`` rows count, times its weight.
    """
    places = [np.flatnonzero(data_sets == number) for number in range(len(weights))]
    sizes = np.array(list(map(len, places)))
    rates = np.array(weights) * (sizes if limit is None else sizes.clip(max=limit))
    passes = max((size / rate for size, rate in zip(sizes, rates, strict=True) if size), default=0.0)
    counts = np.round(rates * passes).astype(np.int64)
    return SubsetRows(rows, np.concatenate([np.resize(p, n) for p, n in zip(places, counts, strict=True) if len(p)]))


def _joined(before: tuple[int, ...], ids: TokenIds, after: tuple[int, ...]) -> NDArray[np.int64]:
    return np.concatenate([np.array(before, np.int64), ids.astype(np.int64), np.array(after, np.int64)])


def parse_pair(
    record: Record,
    *,
    source: Sequence[str],
    target: Sequence[str],
    where: str,
    listed: Listed = "references",
    data_set: int = 0,
    between: str = " ",
    title: str = "",
) -> SourceTargetPair:
    """Parse the pair of a record, which may be empty.

    Several source columns, or a list in one column, are joined with ``between``. Several target columns are alternative
    targets; ``listed`` is the meaning of a list in one column. ``title`` is a column, or empty.

    Raises:
        UserError: a missing column, or a value that is not text; the message begins with ``where``.
    """
    targets = [_texts(record, column, where=where) for column in target]
    if listed == "sentences":
        targets = [[" ".join(texts)] for texts in targets if texts]
    source_text = get_source(record, source, where=where, between=between)
    title_text = get_source(record, [title] if title else [], where=where)
    return SourceTargetPair(source_text, tuple(dict.fromkeys(chain.from_iterable(targets))), data_set, title_text)


def get_source(record: Record, columns: Sequence[str], *, where: str, between: str = " ") -> str:
    """Return the source text of a record.

    Raises:
        UserError: a missing column or another type of value; the message begins with ``where``.
    """
    return between.join(text for column in columns for text in _texts(record, column, where=where))


def _texts(record: Record, column: str, *, where: str) -> list[str]:
    value = get_field(record, column, where=where)
    values = value if isinstance(value, list | tuple) else [value]
    texts = []
    for part in values:
        if part is None or part != part:  # missing; NaN in tables
            continue
        if not isinstance(part, str | int | float):
            raise UserError(f"{where}: column {column!r} is a {type(part).__name__}; name a column of text")
        texts.append(str(part).strip())
    return [text for text in texts if text]
