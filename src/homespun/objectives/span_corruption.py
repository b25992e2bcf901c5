"""Span corruption: generation of spans removed from a text (T5, Raffel et al. 2020, section 3.1.4)."""

from __future__ import annotations

import dataclasses
from itertools import count
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from homespun.data.corpus import Corpus
from homespun.data.document_set import Documents
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.objectives.protocol import PretrainingConfig
from homespun.objectives.seq2seq import CorruptionCollator, Seq2SeqObjective, build_seq2seq_config, sentence_rows
from homespun.text.tokenizer import Tokenizer


def count_noise_and_spans(length: int, *, probability: float, mean_span: float) -> tuple[int, int]:
    """Compute the numbers of noise tokens and of spans in ``length`` tokens.

    If there are at least two tokens, at least one is noise and one is not.
    """
    noise = min(max(round(length * probability), 1), length - 1)
    return max(noise, 0), min(max(round(noise / mean_span), 1), noise, length - noise) if noise > 0 else 0


def choose_spans(length: int, generator: torch.Generator, *, probability: float, mean_span: float) -> np.ndarray:
    """Draw a (length,) bool noise mask, as the authors' ``random_spans_noise_mask``.

    The numbers of noise tokens and spans depend only on the length (`count_noise_and_spans`). Noise tokens and other
    tokens are each partitioned into that many parts of at least one token, all partitions equally likely. The parts
    alternate, with noise last.
    """
    noise, spans = count_noise_and_spans(length, probability=probability, mean_span=mean_span)
    if not spans:
        return np.zeros(length, np.bool_)
    parts = np.stack(
        [_partition(length - noise, spans, generator), _partition(noise, spans, generator)], axis=1
    ).ravel()
    return np.repeat(np.arange(len(parts)) % 2 == 1, parts)


def _partition(count: int, parts: int, generator: torch.Generator) -> np.ndarray:
    """Draw (parts,) lengths of at least one with the sum ``count``."""
    cuts = np.sort(torch.randperm(count - 1, generator=generator)[: parts - 1].numpy()) + 1
    return np.diff(cuts, prepend=0, append=count)


def cut_out(ids: np.ndarray, noise: np.ndarray, sentinel_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split (seq,) ids by a ``noise`` mask into source ids and target ids.

    Each span of noise is replaced by a sentinel in the source, and follows the same sentinel in the target.

    Args:
        ids: (seq,) token ids.
        noise: (seq,) bool.
        sentinel_ids: (n,) at least as many as spans, used in order.
    """
    begins = noise & ~np.concatenate([[False], noise[:-1]])
    starts = np.flatnonzero(begins)
    marked = ids.copy()
    marked[starts] = sentinel_ids[: len(starts)]
    hidden = np.insert(ids[noise], np.flatnonzero(begins[noise]), sentinel_ids[: len(starts)])
    return marked[~noise | begins], hidden


@dataclasses.dataclass(frozen=True)
class SpanMasking:
    """`homespun.objectives.seq2seq.Corruption`: each span is a sentinel; the target is sentinels and spans."""

    before: int  # special tokens before a text
    sentinel_ids: np.ndarray  # (n,)
    probability: float
    mean_span: float

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        start, text, end = np.split(row.input_ids, [self.before, len(row.input_ids) - 1])
        noise = choose_spans(len(text), generator, probability=self.probability, mean_span=self.mean_span)
        left, hidden = cut_out(text, noise, self.sentinel_ids)
        return np.concatenate([start, left, end]), np.concatenate([hidden, end])


class SpanCorruption(PretrainingConfig):
    """Removal of 15 % of the tokens in spans of mean length 3. The tokenizer needs a sentinel for each span of a row.

    ``data.max_length`` is the length of a source; rows are longer by the removed tokens (568 tokens for 512).
    """

    kind: Literal["span_corruption"] = "span_corruption"
    row_order: ClassVar[Order] = "bucketed"
    probability: float = Field(default=0.15, gt=0, lt=1, description="share of tokens that are removed")
    mean_span: float = Field(default=3.0, ge=1, description="mean length of the spans")
    head: CausalLMHeadConfig = Field(default=CausalLMHeadConfig(), description="new head (T5 1.1: untied embeddings)")

    def rows(self, corpus: Corpus, documents: Documents, *, length: int, seed: int) -> Rows:
        """Build rows of sentences of one document, if the corpus has sentence ends.

        A text begins with the special token of the tokenizer's template: none with T5's tokenizer, ``[CLS]`` with
        tokenizers trained here.

        Raises:
            UserError: the tokenizer has no sentinels, or fewer than a row has spans.
        """
        before = corpus.tokenizer.template[0][:1]
        body = self._body(length - len(before))
        _, spans = self._count_noise_and_spans(body)
        have = len(_sentinel_ids(corpus.tokenizer))
        if spans > have:
            raise UserError(
                f"rows of data.max_length={length} tokens have {spans} spans, and this tokenizer has {have} sentinels; "
                f"lower data.max_length, or raise objective.mean_span"
            )
        return sentence_rows(corpus, documents, length=len(before) + body + 1)

    def target_length(self, length: int) -> int:
        """Return the number of removed tokens of a row, with sentinels and the end token."""
        return sum(self._count_noise_and_spans(self._body(length))) + 1

    def collate(self, tokenizer: Tokenizer) -> CorruptionCollator:
        """Build the collate; the decoder begins with the padding token, as in T5.

        Raises:
            UserError: the tokenizer has no sentinels.
        """
        before = len(tokenizer.template[0][:1])
        spans = SpanMasking(before, _sentinel_ids(tokenizer), self.probability, self.mean_span)
        return CorruptionCollator(tokenizer.pad_id, tokenizer.pad_id, spans)

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective:
        """Build the objective with an encoder-decoder, whose decoder begins with the padding token."""
        tokens = {"bos_token_id": None, "eos_token_id": tokenizer.sep_id, "decoder_start_token_id": tokenizer.pad_id}
        config = build_seq2seq_config(model, self.kind, tokens=tokens, head=self.head)
        return Seq2SeqObjective(config.build(), config)

    def _count_noise_and_spans(self, body: int) -> tuple[int, int]:
        return count_noise_and_spans(body, probability=self.probability, mean_span=self.mean_span)

    def _body(self, length: int) -> int:
        """Return the length of a text whose source has ``length`` tokens with sentinels and the end token."""

        def source(body: int) -> int:
            noise, spans = self._count_noise_and_spans(body)
            return body - noise + spans + 1

        return next(body for body in count(length - 1) if source(body + 1) > length)


def _sentinel_ids(tokenizer: Tokenizer) -> np.ndarray:
    if not len(tokenizer.sentinel_ids):
        raise UserError(
            "objective span_corruption needs sentinels, and this tokenizer has none; make one with `homespun tokenizer "
            "train --sentinels 100` or `homespun tokenizer extend TOKENIZER --sentinels 100`"
        )
    return tokenizer.sentinel_ids
