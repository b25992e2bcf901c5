"""Future n-grams: write masked fragments of a text, and foresee them (Qi et al. 2020, ProphetNet)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.batch import Batch, RowSeed
from homespun.config import Config
from homespun.data.corpus import Corpus
from homespun.data.padding import pad
from homespun.data.rows import Row, Rows
from homespun.data.sentence_rows import SentenceRows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.decoder_loss import StreamWeights
from homespun.objectives.masking import replace
from homespun.objectives.seq2seq import Seq2SeqObjective, add_decoder_inputs, build_seq2seq_config
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
class FutureNgramCollator:
    """Collate: fragments of the source are masked, token by token, and the target is these, one after the other."""

    pad_id: int
    mask_id: int
    start_id: int
    before: int  # special tokens before a text
    ordinary_ids: np.ndarray
    probability: float
    every: int
    mask_share: float
    random_share: float

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Rows to a batch; the token that ends a row ends its source and its target."""
        sources, targets = [], []
        for row, row_seed in zip(rows, row_seeds, strict=True):
            generator = row_seed.generator()
            ids = row.input_ids
            chosen = self.before + choose_fragments(
                len(ids) - 1 - self.before, generator, probability=self.probability, every=self.every
            )
            source = replace(
                ids,
                chosen,
                generator,
                mask_id=self.mask_id,
                ordinary_ids=self.ordinary_ids,
                mask_share=self.mask_share,
                random_share=self.random_share,
            )
            sources.append(Row(source))
            targets.append(np.append(ids[chosen], ids[-1]))
        return add_decoder_inputs(pad(sources, self.pad_id), targets, start_id=self.start_id, pad_id=self.pad_id)


class FutureNgrams(Config):
    """One run of neighbours in every 64 tokens is masked, 15 % of all; each stream of the decoder writes them.

    The decoder needs streams (``model.ngram``), of which stream ``s`` foresees a token ``s`` steps before it is due.
    """

    kind: Literal["future_ngrams"] = "future_ngrams"
    packs: ClassVar[bool] = False
    probability: float = Field(default=0.15, gt=0, lt=1, description="share of the tokens to write")
    every: int = Field(default=64, ge=2, description="tokens that have one run of masked ones each")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="of those, replaced by the mask token")
    random_share: float = Field(default=0.1, ge=0, le=1, description="of those, replaced by a random token")
    streams: StreamWeights = Field(default=StreamWeights(), description="how the streams share the loss")

    @model_validator(mode="after")
    def _shares(self) -> FutureNgrams:
        if self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share={self.mask_share} and random_share={self.random_share} are more than the whole; lower one"
            )
        return self

    def rows(self, corpus: Corpus, documents: np.ndarray, *, length: int, seed: int) -> Rows:
        """Pieces of one document, in whole sentences where the corpus knows them."""
        before = corpus.tokenizer.template[0][:1]  # empty with ProphetNet's
        begin_id = before[0] if before else None
        return SentenceRows(corpus, documents, length=length, begin_id=begin_id, end_id=corpus.tokenizer.sep_id)

    def target_length(self, length: int) -> int:
        """All fragments of a row, and the token that ends them."""
        return max(round(self.probability * (length - 1)), 1) + 1

    def collate(self, tokenizer: Tokenizer) -> FutureNgramCollator:
        """The data side."""
        return FutureNgramCollator(
            tokenizer.pad_id,
            tokenizer.mask_id,
            start_id=tokenizer.sep_id,
            before=len(tokenizer.template[0][:1]),
            ordinary_ids=np.flatnonzero(~tokenizer.special_mask),
            probability=self.probability,
            every=self.every,
            mask_share=self.mask_share,
            random_share=self.random_share,
        )

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective:
        """The model side: a decoder with streams, which begins to write with the token that ends a text.

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
