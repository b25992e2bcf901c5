"""Denoising: write a text of which a corrupted one has been read (Lewis et al. 2020, BART)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.data.corpus import Corpus
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows, SentenceRows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.protocol import PretrainingConfig
from homespun.objectives.seq2seq import CorruptionCollator, Seq2SeqObjective, build_seq2seq_config
from homespun.text.tokenizer import Tokenizer


def mask_tokens(ids: np.ndarray, generator: torch.Generator, *, probability: float, mask_id: int) -> np.ndarray:
    """(seq,) -> (seq,): ``round(probability * seq)`` of the tokens, chosen at random, are the mask token."""
    masked = ids.copy()
    masked[_choose_positions(len(ids), probability, generator)] = mask_id
    return masked


def delete_tokens(ids: np.ndarray, generator: torch.Generator, *, probability: float) -> np.ndarray:
    """(seq,) -> (seq - n,): ``round(probability * seq)`` of the tokens, chosen at random, are gone."""
    return np.delete(ids, _choose_positions(len(ids), probability, generator))


def infill(
    ids: np.ndarray, generator: torch.Generator, *, probability: float, mean_span: float, mask_id: int
) -> np.ndarray:
    """(seq,) -> (at most seq,): spans of tokens are each one mask token; a span of no token is one that is put in.

    Lengths of spans are Poisson with mean ``mean_span``; they are drawn until they hold ``round(probability * seq)``
    tokens, and the last is cut to have that exactly. Spans do not overlap, but may touch; each way to lay them out is
    equally likely, which leaves the first and last few tokens of a text hidden less often than those between. Spans of
    no token are left out where there would be more spans than hidden tokens: a text never grows beyond its model.
    """
    count = round(probability * len(ids))
    if not count:
        return ids.copy()
    lengths = _poisson(count, mean_span, generator)
    # where a span begins: the text is a line of what is kept and of spans, in random order
    size = len(ids) - count + len(lengths)
    spans = np.sort(torch.randperm(size, generator=generator)[: len(lengths)].numpy())
    is_span = np.zeros(size, np.bool_)
    is_span[spans] = True
    widths = np.ones(size, np.int64)
    widths[spans] = lengths
    begins = np.cumsum(widths) - widths  # of each piece of that line, in the text
    filled: np.ndarray = ids[np.minimum(begins, len(ids) - 1)]
    filled[is_span] = mask_id
    return filled


def _poisson(count: int, mean_span: float, generator: torch.Generator) -> np.ndarray:
    """(at most count,) lengths of spans that sum to ``count``."""
    drawn = np.zeros(0, np.int64)
    while drawn.sum() < count:
        rates = torch.full((int(1.5 * count / mean_span) + 4,), mean_span)
        drawn = np.concatenate([drawn, torch.poisson(rates, generator=generator).numpy().astype(np.int64)])
    passed = np.cumsum(drawn)
    last = int(np.searchsorted(passed, count))
    lengths = drawn[: last + 1]
    lengths[-1] -= passed[last] - count
    spare = len(lengths) - count
    return np.delete(lengths, np.flatnonzero(lengths == 0)[:spare]) if spare > 0 else lengths


def permute_sentences(ids: np.ndarray, ends: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """(seq,) ids and (sentences,) where each ends -> (seq,): the sentences in random order."""
    sentences = np.split(ids, ends[:-1])
    order = torch.randperm(len(sentences), generator=generator).tolist()
    return np.concatenate([sentences[number] for number in order])


def rotate(ids: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """(seq,) -> (seq,): the text begins with a token chosen at random, and what was before it is at the end."""
    if not len(ids):
        return ids.copy()
    return np.roll(ids, -int(torch.randint(len(ids), (1,), generator=generator)))


def _choose_positions(length: int, probability: float, generator: torch.Generator) -> np.ndarray:
    return torch.randperm(length, generator=generator)[: round(probability * length)].numpy()


@dataclasses.dataclass(frozen=True)
class DenoisingCorruption:
    """`homespun.objectives.seq2seq.Corruption` whose target is the row; its first and last tokens stay."""

    mask_id: int
    noise: Denoising

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Corrupted ids, and the ids of the row."""
        ids, ends = row.input_ids, row.sentence_ends
        text = self.corrupted(ids[1:-1], None if ends is None else ends - 1, generator)
        return np.concatenate([ids[:1], text, ids[-1:]]), ids

    def corrupted(self, ids: np.ndarray, ends: np.ndarray | None, generator: torch.Generator) -> np.ndarray:
        """(seq,) ids without special tokens -> (at most seq,): sentences first, then tokens, spans, the whole."""
        noise = self.noise
        if noise.sentence_permutation and ends is not None and _happens(noise.sentence_permutation, generator):
            ids = permute_sentences(ids, ends, generator)
        if noise.token_masking:
            ids = mask_tokens(ids, generator, probability=noise.token_masking, mask_id=self.mask_id)
        if noise.token_deletion:
            ids = delete_tokens(ids, generator, probability=noise.token_deletion)
        if noise.text_infilling:
            ids = infill(
                ids, generator, probability=noise.text_infilling, mean_span=noise.mean_span, mask_id=self.mask_id
            )
        if noise.document_rotation and _happens(noise.document_rotation, generator):
            ids = rotate(ids, generator)
        return ids


def _happens(probability: float, generator: torch.Generator) -> bool:
    return bool(torch.rand(1, generator=generator) < probability)


class Denoising(PretrainingConfig):
    """Five noises, alone or together; by default the two of the released BART: infilling and permuted sentences."""

    kind: Literal["denoising"] = "denoising"
    row_order: ClassVar[Order] = "bucketed"
    text_infilling: float = Field(
        default=0.3, ge=0, lt=1, description="share of the tokens in spans that are one mask token each"
    )
    mean_span: float = Field(default=3.0, gt=0, description="mean length of those spans, which are Poisson")
    sentence_permutation: float = Field(
        default=1.0, ge=0, le=1, description="share of the rows whose sentences come in random order"
    )
    token_masking: float = Field(default=0.0, ge=0, lt=1, description="share of the tokens that are the mask token")
    token_deletion: float = Field(default=0.0, ge=0, lt=1, description="share of the tokens that are left out")
    document_rotation: float = Field(
        default=0.0, ge=0, le=1, description="share of the rows that begin with a token chosen at random"
    )

    @model_validator(mode="after")
    def _check_noise(self) -> Denoising:
        if not any(value for name, value in self.model_dump().items() if name not in ("kind", "mean_span")):
            raise ValueError("without any noise there is nothing to learn but to copy; set text_infilling=0.3")
        return self

    def rows(self, corpus: Corpus, documents: np.ndarray, *, length: int, seed: int) -> Rows:
        """Whole sentences of one document.

        Raises:
            UserError: sentences are to be permuted, and the corpus does not know them.
        """
        if self.sentence_permutation and not corpus.has_sentences:
            raise UserError(
                f"permuting sentences needs to know where they end, and corpus {corpus.path} was built without; build "
                f"it again with: homespun corpus build --sentences, or set objective.sentence_permutation=0"
            )
        tokenizer = corpus.tokenizer
        return SentenceRows(corpus, documents, length=length, begin_id=tokenizer.cls_id, end_id=tokenizer.sep_id)

    def target_length(self, length: int) -> int:
        """All of the row is written."""
        return length

    def collate(self, tokenizer: Tokenizer) -> CorruptionCollator:
        """Function from rows to a batch."""
        return CorruptionCollator(tokenizer.pad_id, tokenizer.sep_id, DenoisingCorruption(tokenizer.mask_id, self))

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective:
        """Objective: an encoder with a decoder, which begins to write with the token that ends a text.

        Raises:
            UserError: the model is one stack.
        """
        ends = tokenizer.sep_id
        config = build_seq2seq_config(
            model,
            self.kind,
            tokens={
                "bos_token_id": tokenizer.cls_id,
                "eos_token_id": ends,
                "decoder_start_token_id": ends,
                "forced_eos_token_id": ends,
            },
        )
        return Seq2SeqObjective(config.build(), config)
