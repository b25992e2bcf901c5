"""Denoising: write a text of which a corrupted one has been read (Lewis et al. 2020, BART)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.data.corpus import Corpus
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows
from homespun.data.sentence_rows import SentenceRows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.protocol import PretrainingConfig
from homespun.objectives.seq2seq import CorruptionCollator, Seq2SeqObjective, build_seq2seq_config
from homespun.objectives.text_corruption import delete_tokens, infill, mask_tokens, permute_sentences, rotate
from homespun.text.tokenizer import Tokenizer


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
