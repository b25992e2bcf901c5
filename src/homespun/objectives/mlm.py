"""Masked language modelling, with or without next sentence prediction (Devlin et al. 2019; Liu et al. 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.data.corpus import Corpus
from homespun.data.document_set import DocumentSet
from homespun.data.rows import NextSentenceRows, Row, Rows, pad
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.encoder_decoder import StackConfig
from homespun.models.heads import LanguageModelHead, MaskedLMHeadConfig, NextSentenceHead
from homespun.models.model import Model
from homespun.objectives.distillation import MaskedLMDistillation, TokenTeacher
from homespun.objectives.protocol import Objective, PretrainingConfig, UnigramTerm, reuse_head
from homespun.text.tokenizer import Tokenizer


def check_shares(mask_share: float, random_share: float) -> None:
    """Raise `ValueError` for shares of masked and random tokens with a sum above 1."""
    if mask_share + random_share > 1:
        raise ValueError(f"mask_share={mask_share} and random_share={random_share} are more than 1 together; lower one")


def choose_positions(
    input_ids: np.ndarray,
    special: np.ndarray,
    generator: torch.Generator,
    *,
    probability: float,
    word_starts: np.ndarray | None = None,
) -> np.ndarray:
    """Choose ``round(probability * ordinary tokens)`` positions to predict, at least one.

    The count is exact, as in BERT's released code; independent draws would only add variance.

    Args:
        input_ids: (seq,) ids.
        special: (vocab,) bool; special tokens are never chosen.
        generator: random generator.
        probability: share of the ordinary tokens.
        word_starts: (vocab,) bool, True if the token begins a word. If given, complete words are chosen until the count
            is reached; a word that would exceed it is skipped, unless it is the first.

    Returns:
        (chosen,) ascending positions.
    """
    candidates = np.flatnonzero(~special[input_ids])
    if not len(candidates):
        return candidates
    count = max(1, round(probability * len(candidates)))
    if word_starts is None:
        order = torch.randperm(len(candidates), generator=generator).numpy()
        return np.sort(candidates[order[:count]])
    # a word also begins after a special token
    begins = word_starts[input_ids[candidates]] | (np.diff(candidates, prepend=-2) > 1)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(candidates))
    chosen: list[np.ndarray] = []
    count_chosen = 0
    for word in torch.randperm(len(starts), generator=generator).tolist():
        size = ends[word] - starts[word]
        if count_chosen and count_chosen + size > count:
            continue
        chosen.append(candidates[starts[word] : ends[word]])
        count_chosen += size
        if count_chosen >= count:
            break
    return np.sort(np.concatenate(chosen))


@dataclasses.dataclass(frozen=True)
class TokenReplacement:
    """Replacement of shares of the chosen tokens by the mask token and by random tokens; picklable."""

    mask_id: int
    ordinary_ids: np.ndarray  # (n,) ids of which random tokens are drawn
    mask_share: float
    random_share: float

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, mask_share: float, random_share: float) -> TokenReplacement:
        """Draw random tokens of the ordinary tokens of a tokenizer."""
        return cls(tokenizer.mask_id, np.flatnonzero(~tokenizer.special_mask), mask_share, random_share)

    def __call__(self, input_ids: np.ndarray, positions: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return a copy of (seq,) ids with replacements at shares of the (chosen,) positions."""
        corrupted = input_ids.copy()
        if not len(positions):
            return corrupted
        draw = torch.rand(len(positions), generator=generator).numpy()
        corrupted[positions[draw < self.mask_share]] = self.mask_id
        is_random = (draw >= self.mask_share) & (draw < self.mask_share + self.random_share)
        count = int(is_random.sum())
        if count:
            indices = torch.randint(len(self.ordinary_ids), (count,), generator=generator).numpy()
            corrupted[positions[is_random]] = self.ordinary_ids[indices]
        return corrupted


@dataclasses.dataclass(frozen=True)
class MlmCollator:
    """Collate rows for masked prediction; picklable. All randomness comes from the row seeds."""

    pad_id: int
    special: np.ndarray  # (vocab,) bool
    replace: TokenReplacement
    word_starts: np.ndarray | None  # (vocab,) bool; None: no whole-word masking
    probability: float
    duplicates: int = 0  # number of different masks of a row, for static masking; 0: no limit
    terms: tuple[str, ...] = ("mlm",)  # terms whose targets are the masked tokens
    token_terms: tuple[str, ...] = ()  # terms whose targets are all tokens except padding
    pair_terms: tuple[str, ...] = ()  # terms whose targets are the rows

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        corrupted, flat, labels = [], [], []
        width = max(len(row.input_ids) for row in rows)
        for number, (row, row_seed) in enumerate(zip(rows, row_seeds, strict=True)):
            if self.duplicates:
                row_seed = dataclasses.replace(row_seed, epoch=row_seed.epoch % self.duplicates)
            generator = row_seed.generator()
            positions = choose_positions(
                row.input_ids, self.special, generator, probability=self.probability, word_starts=self.word_starts
            )
            corrupted.append(dataclasses.replace(row, input_ids=self.replace(row.input_ids, positions, generator)))
            flat.append(positions + number * width)
            labels.append(row.input_ids[positions])
        targets = dict.fromkeys(self.terms, float(sum(map(len, labels))))
        targets |= dict.fromkeys(self.token_terms, float(sum(len(row.input_ids) for row in rows)))
        targets |= dict.fromkeys(self.pair_terms, float(len(rows)))
        pairs = [row.label for row in rows] if self.pair_terms else None
        return dataclasses.replace(
            pad(corrupted, self.pad_id),
            positions=torch.from_numpy(np.concatenate(flat)),
            labels=torch.from_numpy(np.concatenate(labels).astype(np.int64)),
            pair_labels=None if pairs is None else torch.tensor(pairs, dtype=torch.int64),
            targets=targets,
        )


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Gather the (targets, ...) vectors at flat ``positions`` of a (batch, seq, ...) tensor."""
    return hidden.flatten(0, 1).index_select(0, positions)


def token_terms(
    name: str,
    head: LanguageModelHead,
    hidden: Tensor,
    positions: Tensor | None,
    labels: Tensor | None,
    *,
    label_smoothing: float = 0.0,
) -> dict[str, Term]:
    """Compute the cross-entropy ``name`` of predicted tokens and their accuracy, with logits at labels only.

    Hidden states are (batch, seq, hidden), ``labels`` (targets,) token ids at (targets,) ``positions`` into batch *
    seq.
    """
    assert positions is not None
    assert labels is not None
    prediction = head.predict(gather_positions(hidden, positions), labels, label_smoothing=label_smoothing)
    return {
        name: Term(prediction.loss, len(labels)),
        f"{name}_accuracy": Term(prediction.correct, len(labels), weight=0.0),
    }


class MaskedLM(PretrainingConfig):
    """Prediction of 15 % of the tokens, of which 80 % are masked, 10 % random and 10 % unchanged."""

    kind: Literal["mlm"] = "mlm"
    probability: float = Field(default=0.15, gt=0, lt=1, description="share of tokens to predict")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of these replaced by the mask token")
    random_share: float = Field(default=0.1, ge=0, le=1, description="share of these replaced by a random token")
    masking: Literal["dynamic", "static"] = Field(default="dynamic", description="RoBERTa's, or BERT's with few masks")
    duplicates: int = Field(default=10, ge=1, description="number of masks of each row in static masking")
    whole_words: bool = Field(default=False, description="mask all pieces of a word together")
    next_sentence: bool = Field(default=False, description="BERT's second task; needs a corpus with sentences")
    teacher: TokenTeacher | None = Field(default=None, description="a teacher for distillation (DistilBERT)")

    @model_validator(mode="after")
    def _check_settings(self) -> MaskedLM:
        if self.teacher is not None and self.next_sentence:
            raise ValueError("teacher does not support next_sentence=true; set it to false, or leave teacher out")
        check_shares(self.mask_share, self.random_share)
        return self

    @property
    def supports_stream(self) -> bool:
        return not self.next_sentence

    def rows(self, corpus: Corpus, documents: DocumentSet, *, length: int, seed: int) -> Rows:
        """Build packed rows, or sentence pairs for next sentence prediction."""
        if self.next_sentence:
            return NextSentenceRows(corpus, documents, length=length, seed=seed)
        return super().rows(corpus, documents, length=length, seed=seed)

    @property
    def unigram_term(self) -> UnigramTerm:
        return UnigramTerm("mlm", self.mask_share, self.random_share)

    def collate(self, tokenizer: Tokenizer) -> MlmCollator:
        return MlmCollator(
            pad_id=tokenizer.pad_id,
            special=tokenizer.special_mask,
            replace=TokenReplacement.of(tokenizer, mask_share=self.mask_share, random_share=self.random_share),
            word_starts=tokenizer.word_starts if self.whole_words else None,
            probability=self.probability,
            duplicates=self.duplicates if self.masking == "static" else 0,
            terms=("mlm", "mlm_accuracy", *(self.teacher.masked_terms if self.teacher else ())),
            token_terms=self.teacher.token_terms if self.teacher else (),
            pair_terms=("next_sentence", "next_sentence_accuracy") if self.next_sentence else (),
        )

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> MaskedLMObjective | MaskedLMDistillation:
        """Build the objective with the backbone of ``model``, its masked LM head or a new one, and the teacher.

        Raises:
            UserError: the backbone is causal, or has one token type with next sentence prediction; the teacher cannot
                be loaded or does not fit.
        """
        backbone = require_bidirectional(model, "mlm")
        if self.next_sentence and not model.has_segments:
            raise UserError(
                f"objective.next_sentence=true needs two token types, and the model has "
                f"type_vocab_size={model.backbone.type_vocab_size}; set model.type_vocab_size=2"
            )
        config = reuse_head(model, build_mlm_head_config(backbone))
        built = config.build()
        pairs = None
        if self.next_sentence:
            pairs = NextSentenceHead(built.backbone.hidden_size)
            initialise(pairs.modules(), model.backbone.initializer_range)
        objective = MaskedLMObjective(built, config, pairs)
        return objective if self.teacher is None else self.teacher.wrap(objective, tokenizer)


def build_mlm_head_config(backbone: StackConfig) -> MaskedLMHeadConfig:
    """Build the config of a new head with the activation of the layers, and biases if the layers have them."""
    return MaskedLMHeadConfig(
        hidden_act=backbone.hidden_act, transform_bias=backbone.mlp_bias, norm_bias=backbone.norm_has_bias
    )


def require_bidirectional(model: ModelConfig, kind: str) -> StackConfig:
    """Return the backbone; raise `UserError` unless it is a bidirectional stack with word embeddings."""
    backbone = model.one_text(f"objective {kind}")
    if backbone.causal:
        raise UserError(
            f"objective {kind} needs a bidirectional model; set {backbone.causal_setting(False)} for a new model; for "
            f"a model given with --from set objective.kind=clm"
        )
    if not backbone.has_word_embeddings:
        raise UserError(
            f"objective {kind} needs word embeddings, and this model has character embeddings; set "
            "objective.kind=elmo, or leave model.characters out"
        )
    return backbone


class MaskedLMObjective(Objective):
    """Terms ``mlm`` and, with NSP, ``next_sentence``, and their accuracies. Exports model and LM head."""

    def __init__(self, model: Model, config: ModelConfig, next_sentence: NextSentenceHead | None) -> None:
        super().__init__(model, config)
        self.next_sentence = next_sentence

    def forward(self, batch: Batch) -> Loss:
        return self.loss_of_hidden(self.model.read(batch.input_ids, batch.context), batch)

    def loss_of_hidden(self, hidden: Tensor, batch: Batch) -> Loss:
        """Compute the terms from (batch, seq, hidden) hidden states of the batch."""
        terms = token_terms("mlm", self.model.lm_head, hidden, batch.positions, batch.labels)
        if self.next_sentence is not None and batch.pair_labels is not None:
            logits = self.next_sentence(hidden).float()
            loss = F.cross_entropy(logits, batch.pair_labels, reduction="sum")
            right = (logits.argmax(-1) == batch.pair_labels).sum()
            terms["next_sentence"] = Term(loss, len(logits))
            terms["next_sentence_accuracy"] = Term(right, len(logits), weight=0.0)
        return Loss(terms)
