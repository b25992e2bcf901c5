"""Future n-grams: write masked fragments of a text, and foresee them (Qi et al. 2020, ProphetNet)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.data.corpus import Corpus
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.mlm import Replace, check_shares, replacement
from homespun.objectives.protocol import PretrainingConfig
from homespun.objectives.seq2seq import (
    CorruptionCollator,
    Seq2SeqObjective,
    StreamWeights,
    build_seq2seq_config,
    sentence_rows,
)
from homespun.text.tokenizer import Tokenizer


def choose_fragments(length: int, generator: torch.Generator, *, probability: float, every: int) -> np.ndarray:
    """(chosen,) ascending places: ``round(probability * length)`` of them, a run of neighbours in each ``every``.

    Where that is none of a text that has tokens it is one. The runs of two blocks may touch.
    """
    if not length:
        return np.empty(0, np.int64)
    starts = np.arange(0, length, every)
    ends = np.minimum(starts + every, length)
    # how much has been taken up to an end is rounded, and not how much is taken of a block: the share is then exact
    sizes = np.diff(np.rint(probability * ends).astype(np.int64), prepend=0)
    if not sizes.any():
        sizes[-1] = 1
    room = ends - starts - sizes + 1
    firsts = starts + (torch.rand(len(starts), generator=generator).numpy() * room).astype(np.int64)
    return np.concatenate([np.arange(first, first + size) for first, size in zip(firsts, sizes, strict=True)])


@dataclasses.dataclass(frozen=True)
class FragmentMasking:
    """`homespun.objectives.seq2seq.Corruption`: fragments are masked token by token, the target is all of them."""

    before: int  # special tokens before a text
    probability: float
    every: int
    replace: Replace

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Masked ids, and the ids of the fragments."""
        ids = row.input_ids
        length = len(ids) - 1 - self.before
        chosen = self.before + choose_fragments(length, generator, probability=self.probability, every=self.every)
        return self.replace(ids, chosen, generator), np.append(ids[chosen], ids[-1])


class FutureNgrams(PretrainingConfig):
    """One run of neighbours in every 64 tokens is masked, 15 % of all; each stream of the decoder writes them.

    The decoder needs streams (``model.ngram``), of which stream ``s`` foresees a token ``s`` steps before it is due.
    """

    kind: Literal["future_ngrams"] = "future_ngrams"
    row_order: ClassVar[Order] = "bucketed"
    probability: float = Field(default=0.15, gt=0, lt=1, description="share of the tokens to write")
    every: int = Field(default=64, ge=2, description="tokens that have one run of masked ones each")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="of those, replaced by the mask token")
    random_share: float = Field(default=0.1, ge=0, le=1, description="of those, replaced by a random token")
    streams: StreamWeights = Field(default=StreamWeights(), description="how the streams share the loss")

    @model_validator(mode="after")
    def _shares(self) -> FutureNgrams:
        check_shares(self.mask_share, self.random_share)
        return self

    def rows(self, corpus: Corpus, documents: np.ndarray, *, length: int, seed: int) -> Rows:
        """Pieces of one document; see `sentence_rows`."""
        return sentence_rows(corpus, documents, length=length)

    def target_length(self, length: int) -> int:
        """All fragments of a row, and the token that ends them."""
        return max(round(self.probability * (length - 1)), 1) + 1

    def collate(self, tokenizer: Tokenizer) -> CorruptionCollator:
        """Function from rows to a batch."""
        replace = replacement(tokenizer, mask_share=self.mask_share, random_share=self.random_share)
        masking = FragmentMasking(len(tokenizer.template[0][:1]), self.probability, self.every, replace)
        return CorruptionCollator(tokenizer.pad_id, tokenizer.sep_id, masking)

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective:
        """Objective: a decoder with streams, which begins to write with the token that ends a text.

        Raises:
            UserError: the model is one stack, its decoder has no streams, or not as many as they have weights.
        """
        ends = tokenizer.sep_id
        tokens = {"bos_token_id": ends, "eos_token_id": ends, "decoder_start_token_id": ends}
        config = build_seq2seq_config(model, self.kind, tokens=tokens)
        assert config.backbone.has_decoder
        if not config.backbone.ngram:
            raise UserError(
                f"objective {self.kind} foresees tokens with a decoder's streams, and this one has none; set "
                f"model.ngram=2, take model.preset=prophetnet-mini, or an objective that needs no streams"
            )
        self.streams.shares(config.backbone.ngram)
        return Seq2SeqObjective(config.build(), config, self.streams)
