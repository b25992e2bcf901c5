"""Denoising: reconstruction of a text from a corrupted text (BART, Lewis et al. 2020)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.data.corpus import Corpus
from homespun.data.document_set import Documents
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows, SentenceRows, require_sentences
from homespun.models.config import ModelConfig
from homespun.objectives.protocol import PretrainingConfig
from homespun.objectives.seq2seq import CorruptionCollator, Seq2SeqObjective, build_seq2seq_config
from homespun.text.tokenizer import Tokenizer


def mask_tokens(ids: np.ndarray, generator: torch.Generator, *, probability: float, mask_id: int) -> np.ndarray:
    """Replace ``round(probability * seq)`` random tokens of (seq,) ids by the mask token."""
    masked = ids.copy()
    masked[_choose_positions(len(ids), probability, generator)] = mask_id
    return masked


def delete_tokens(ids: np.ndarray, generator: torch.Generator, *, probability: float) -> np.ndarray:
    """Delete ``round(probability * seq)`` random tokens of (seq,) ids."""
    return np.delete(ids, _choose_positions(len(ids), probability, generator))


def infill(
    ids: np.ndarray, generator: torch.Generator, *, probability: float, mean_span: float, mask_id: int
) -> np.ndarray:
    """Replace each sampled span of (seq,) ids by one mask token; an empty span inserts one.

    The lengths of spans are Poisson with mean ``mean_span``, drawn until they cover ``round(probability * seq)``
    tokens; the last span is truncated to that number. Spans do not overlap, but may be adjacent. All layouts are
    equally likely, so the first and last tokens of a text are masked less often than others. Empty spans are dropped if
    there are more spans than masked tokens, so that a text never grows.
    """
    count = round(probability * len(ids))
    if not count:
        return ids.copy()
    lengths = _poisson(count, mean_span, generator)
    # the text is a random sequence of kept tokens and spans
    size = len(ids) - count + len(lengths)
    spans = np.sort(torch.randperm(size, generator=generator)[: len(lengths)].numpy())
    is_span = np.zeros(size, np.bool_)
    is_span[spans] = True
    widths = np.ones(size, np.int64)
    widths[spans] = lengths
    begins = np.cumsum(widths) - widths  # start of each kept token or span in the text
    filled: np.ndarray = ids[np.minimum(begins, len(ids) - 1)]
    filled[is_span] = mask_id
    return filled


def _poisson(count: int, mean_span: float, generator: torch.Generator) -> np.ndarray:
    """Draw (at most count,) span lengths with the sum ``count``."""
    drawn = np.zeros(0, np.int64)
    while drawn.sum() < count:
        rates = torch.full((int(1.5 * count / mean_span) + 4,), mean_span)
        drawn = np.concatenate([drawn, torch.poisson(rates, generator=generator).numpy().astype(np.int64)])
    total = np.cumsum(drawn)
    last = int(np.searchsorted(total, count))
    lengths = drawn[: last + 1]
    lengths[-1] -= total[last] - count
    surplus = len(lengths) - count
    return np.delete(lengths, np.flatnonzero(lengths == 0)[:surplus]) if surplus > 0 else lengths


def permute_sentences(ids: np.ndarray, ends: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Shuffle the sentences of (seq,) ids, given their (sentences,) ends."""
    sentences = np.split(ids, ends[:-1])
    order = torch.randperm(len(sentences), generator=generator).tolist()
    return np.concatenate([sentences[number] for number in order])


def rotate(ids: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Rotate (seq,) ids to begin with a random token."""
    if not len(ids):
        return ids.copy()
    return np.roll(ids, -int(torch.randint(len(ids), (1,), generator=generator)))


def _choose_positions(length: int, probability: float, generator: torch.Generator) -> np.ndarray:
    return torch.randperm(length, generator=generator)[: round(probability * length)].numpy()


@dataclasses.dataclass(frozen=True)
class DenoisingCorruption:
    """`homespun.objectives.seq2seq.Corruption` with the row as target; its first and last tokens are kept."""

    mask_id: int
    noise: Denoising

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the corrupted ids and the ids of the row."""
        ids, ends = row.input_ids, row.sentence_ends
        text = self.corrupted(ids[1:-1], None if ends is None else ends - 1, generator)
        return np.concatenate([ids[:1], text, ids[-1:]]), ids

    def corrupted(self, ids: np.ndarray, ends: np.ndarray | None, generator: torch.Generator) -> np.ndarray:
        """Corrupt (seq,) ids without special tokens: first sentences, then tokens, spans and the document."""
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
    """Denoising with five kinds of noise; by default infilling and sentence permutation, as in the released BART."""

    kind: Literal["denoising"] = "denoising"
    row_order: ClassVar[Order] = "bucketed"
    text_infilling: float = Field(default=0.3, ge=0, lt=1, description="share of tokens in masked spans")
    mean_span: float = Field(default=3.0, gt=0, description="mean length of masked spans (Poisson)")
    sentence_permutation: float = Field(default=1.0, ge=0, le=1, description="share of rows with permuted sentences")
    token_masking: float = Field(default=0.0, ge=0, lt=1, description="share of tokens that are masked")
    token_deletion: float = Field(default=0.0, ge=0, lt=1, description="share of tokens that are deleted")
    document_rotation: float = Field(default=0.0, ge=0, le=1, description="share of rows that are rotated")

    @model_validator(mode="after")
    def _check_noise(self) -> Denoising:
        if not any(value for name, value in self.model_dump().items() if name not in ("kind", "mean_span")):
            raise ValueError("all kinds of noise are 0, so there is nothing to learn; set text_infilling=0.3")
        return self

    def rows(self, corpus: Corpus, documents: Documents, *, length: int, seed: int) -> Rows:
        """Build rows of sentences of one document.

        Raises:
            UserError: ``sentence_permutation`` without sentence ends in the corpus.
        """
        if self.sentence_permutation:
            setting = "objective.sentence_permutation"
            require_sentences(corpus, setting, f", or set {setting}=0")
        tokenizer = corpus.tokenizer
        return SentenceRows(corpus, documents, length=length, begin_id=tokenizer.cls_id, end_id=tokenizer.sep_id)

    def target_length(self, length: int) -> int:
        return length

    def collate(self, tokenizer: Tokenizer) -> CorruptionCollator:
        return CorruptionCollator(tokenizer.pad_id, tokenizer.sep_id, DenoisingCorruption(tokenizer.mask_id, self))

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective:
        """Build the objective with an encoder-decoder, whose decoder begins with the end token."""
        tokens = dict.fromkeys(("eos_token_id", "decoder_start_token_id", "forced_eos_token_id"), tokenizer.sep_id)
        config = build_seq2seq_config(model, self.kind, tokens={"bos_token_id": tokenizer.cls_id} | tokens)
        return Seq2SeqObjective(config.build(), config)
