"""Future n-gram prediction: generation of masked fragments, several tokens ahead (ProphetNet, Qi et al. 2020)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.data.corpus import Corpus
from homespun.data.document_set import Documents
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.mlm import TokenReplacement, check_shares
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
    """Choose a span in each block of ``every`` tokens, ``round(probability * length)`` tokens in total.

    At least one token is chosen if there are tokens. Spans of consecutive blocks may be adjacent.

    Returns:
        (chosen,) ascending positions.
    """
    if not length:
        return np.empty(0, np.int64)
    starts = np.arange(0, length, every)
    ends = np.minimum(starts + every, length)
    # cumulative counts are rounded, not the counts of blocks, so that the share is exact
    sizes = np.diff(np.rint(probability * ends).astype(np.int64), prepend=0)
    if not sizes.any():
        sizes[-1] = 1
    room = ends - starts - sizes + 1
    firsts = starts + (torch.rand(len(starts), generator=generator).numpy() * room).astype(np.int64)
    return np.concatenate([np.arange(first, first + size) for first, size in zip(firsts, sizes, strict=True)])


@dataclasses.dataclass(frozen=True)
class FragmentMasking:
    """`homespun.objectives.seq2seq.Corruption` that masks fragments; the target is all fragments."""

    before: int  # special tokens before a text
    probability: float
    every: int
    replace: TokenReplacement

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the masked ids, and the ids of the fragments."""
        ids = row.input_ids
        length = len(ids) - 1 - self.before
        chosen = self.before + choose_fragments(length, generator, probability=self.probability, every=self.every)
        return self.replace(ids, chosen, generator), np.append(ids[chosen], ids[-1])


class FutureNgrams(PretrainingConfig):
    """Mask a span of 15 % of each 64 tokens; each stream of the decoder predicts the fragments.

    The decoder needs streams (``model.ngram``); stream ``s`` predicts the token ``s`` steps ahead.
    """

    kind: Literal["future_ngrams"] = "future_ngrams"
    row_order: ClassVar[Order] = "bucketed"
    probability: float = Field(default=0.15, gt=0, lt=1, description="share of tokens in fragments")
    every: int = Field(default=64, ge=2, description="tokens of a block, which has one fragment")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of these replaced by the mask token")
    random_share: float = Field(default=0.1, ge=0, le=1, description="share of these replaced by a random token")
    streams: StreamWeights = Field(default=StreamWeights(), description="loss weights of the streams")

    @model_validator(mode="after")
    def _shares(self) -> FutureNgrams:
        check_shares(self.mask_share, self.random_share)
        return self

    def rows(self, corpus: Corpus, documents: Documents, *, length: int, seed: int) -> Rows:
        return sentence_rows(corpus, documents, length=length)

    def target_length(self, length: int) -> int:
        """Return the length of all fragments of a row and the end token."""
        return max(round(self.probability * (length - 1)), 1) + 1

    def collate(self, tokenizer: Tokenizer) -> CorruptionCollator:
        replace = TokenReplacement.of(tokenizer, mask_share=self.mask_share, random_share=self.random_share)
        masking = FragmentMasking(len(tokenizer.template[0][:1]), self.probability, self.every, replace)
        return CorruptionCollator(tokenizer.pad_id, tokenizer.sep_id, masking)

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective:
        """Build the objective with a decoder with streams, which begins with the end token.

        Raises:
            UserError: the model has no decoder, the decoder has no streams, or the number of weights is wrong.
        """
        tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), tokenizer.sep_id)
        config = build_seq2seq_config(model, self.kind, tokens=tokens)
        assert config.backbone.has_decoder
        if not config.backbone.ngram:
            raise UserError(
                f"objective {self.kind} needs a decoder with streams, and this one has none; set model.ngram=2, take "
                f"model.preset=prophetnet-mini, or another objective"
            )
        self.streams.shares(config.backbone.ngram)
        return Seq2SeqObjective(config.build(), config, self.streams)
