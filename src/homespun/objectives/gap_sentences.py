"""Gap sentence generation: generation of sentences removed from a text (PEGASUS, Zhang et al. 2020)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.corpus import Corpus
from homespun.data.document_set import Documents
from homespun.data.loader import Order
from homespun.data.rows import Row, Rows, SentenceRows, SubsetRows, pad, require_sentences
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.heads import CausalLMHead
from homespun.models.model import Model
from homespun.objectives.gap_selection import (
    COUNTINGS,
    PrincipalSelector,
    Rouge,
    SentenceSelector,
    WordHashes,
    select_independent,
    select_lead,
    select_random,
    select_sequential,
)
from homespun.objectives.mlm import TokenReplacement, check_shares, choose_positions, token_terms
from homespun.objectives.protocol import Objective, PretrainingConfig
from homespun.objectives.seq2seq import (
    Seq2SeqObjective,
    add_decoder_inputs,
    build_seq2seq_config,
    decoder_loss,
    sentence_rows,
)
from homespun.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SENTENCE_MASK = "<mask_1>"  # name in the released tokenizers


@dataclasses.dataclass(frozen=True)
class TokenMasking:
    """Masking of tokens that the encoder predicts (PEGASUS with MLM)."""

    special: np.ndarray  # (vocab,) bool
    probability: float
    replace: TokenReplacement

    def __call__(self, ids: np.ndarray, positions: np.ndarray, generator: torch.Generator) -> tuple[np.ndarray, ...]:
        """Mask (seq,) ids, of which ``positions`` may be masked.

        Returns:
            (seq,) corrupted ids, (masked,) positions, and (masked,) labels.
        """
        chosen = positions[choose_positions(ids[positions], self.special, generator, probability=self.probability)]
        return self.replace(ids, chosen, generator), chosen, ids[chosen]


@dataclasses.dataclass(frozen=True)
class GapSentenceCollator:
    """Collate rows: each selected sentence is one token in the source; the target is all selected sentences."""

    pad_id: int
    gap_id: int
    before: int  # special tokens before a text
    select: SentenceSelector
    ratio: tuple[float, float]  # range of the share of selected sentences
    intact: float  # share of the selected sentences that are kept in the source
    tokens: TokenMasking | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Build a batch; the token that ends a row ends its source and its target."""
        sources, targets, positions, labels = [], [], [], []
        for row, row_seed in zip(rows, row_seeds, strict=True):
            generator = row_seed.generator()
            source, target, intact = self.gaps(row, generator)
            if self.tokens is not None:
                source, masked, truth = self.tokens(source, intact, generator)
                positions.append(masked)
                labels.append(truth)
            sources.append(Row(source))
            targets.append(target)
        # the decoder begins with the padding token, as in the released models
        batch = add_decoder_inputs(pad(sources, self.pad_id), targets, start_id=self.pad_id, pad_id=self.pad_id)
        if self.tokens is None:
            return batch
        width = batch.input_ids.shape[1]
        count = float(sum(map(len, labels)))
        return dataclasses.replace(
            batch,
            source_positions=torch.from_numpy(np.concatenate([m + n * width for n, m in enumerate(positions)])),
            source_labels=torch.from_numpy(np.concatenate(labels)),
            targets=batch.targets | {"mlm": count, "mlm_accuracy": count},
        )

    def gaps(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the (source,) ids, (target,) ids, and the positions in the source that were not selected.

        At least one sentence is selected and one is not. The target of a text of one sentence is an end token.
        """
        ids, before = row.input_ids, self.before
        ends = np.array([len(ids) - 1]) if row.sentence_ends is None else row.sentence_ends
        lengths = np.diff(ends, prepend=before)
        low, high = self.ratio
        ratio = low if low == high else low + (high - low) * float(torch.rand(1, generator=generator))
        number = min(max(round(ratio * len(ends)), 1), len(ends) - 1)
        chosen = np.zeros(len(ends), np.bool_)
        chosen[self.select(ids[before:-1], ends - before, number, generator)] = True
        removed = chosen.copy()
        if self.intact:
            removed &= torch.rand(len(ends), generator=generator).numpy() >= self.intact
        target, kept = np.zeros(len(ids), np.bool_), np.ones(len(ids), np.bool_)
        target[before:-1], kept[before:-1] = chosen.repeat(lengths), ~removed.repeat(lengths)
        source = ids.copy()
        begins = (ends - lengths)[removed]
        source[begins] = self.gap_id
        kept[begins] = True
        others = ~target
        others[:before] = others[-1] = False
        return source[kept], np.append(ids[target], ids[-1]), np.flatnonzero(others[kept])


class GapSentenceGeneration(PretrainingConfig):
    """Generate the 30 % of sentences most similar to the rest, as PEGASUS-large (Ind-Orig).

    The released "mixed and stochastic" model has ``ratio: 0.15, highest_ratio: 0.45, noise: 0.2``. To keep a fifth of
    the selected sentences in the source, set ``ratio: 0.45, intact: 0.2``.
    """

    kind: Literal["gap_sentences"] = "gap_sentences"
    row_order: ClassVar[Order] = "bucketed"
    selection: Literal["independent", "sequential", "lead", "random"] = Field(
        default="independent", description="principal sentences (Ind, Seq), the first, or random ones"
    )
    rouge: Rouge = Field(default="original", description="count repeated words, or each word once (Orig, Uniq)")
    ratio: float = Field(default=0.3, gt=0, lt=1, description="share of sentences that are selected")
    highest_ratio: float | None = Field(default=None, gt=0, lt=1, description="upper limit of a random share")
    noise: float = Field(default=0.0, ge=0, lt=1, description="maximum random relative change of scores")
    intact: float = Field(default=0.0, ge=0, lt=1, description="share of selected sentences kept in the source")
    mlm: float = Field(default=0.0, ge=0, lt=1, description="share of other tokens that the encoder predicts")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of these replaced by the mask token")
    random_share: float = Field(default=0.1, ge=0, le=1, description="share of these replaced by a random token")

    @model_validator(mode="after")
    def _fits(self) -> GapSentenceGeneration:
        if self.highest_ratio is not None and self.highest_ratio < self.ratio:
            raise ValueError(f"highest_ratio={self.highest_ratio} is below ratio={self.ratio}; exchange them")
        check_shares(self.mask_share, self.random_share)
        return self

    def rows(self, corpus: Corpus, documents: Documents, *, length: int, seed: int) -> Rows:
        """Build rows of at least two sentences of one document.

        Raises:
            UserError: the corpus was built without sentence ends, or no row has two sentences.
        """
        require_sentences(corpus, "objective gap_sentences")
        return multi_sentence_rows(sentence_rows(corpus, documents, length=length))

    def target_length(self, length: int) -> int:
        """Return ``length``: the longest sentence may be selected."""
        return length

    def collate(self, tokenizer: Tokenizer) -> GapSentenceCollator:
        """Build the collate.

        Raises:
            UserError: ``mlm`` with a tokenizer that has the same mask token for tokens and sentences.
        """
        gap_id = _gap_id(tokenizer)
        tokens = None
        if self.mlm:
            if gap_id == tokenizer.mask_id:
                raise UserError(
                    f"objective.mlm={self.mlm} needs different mask tokens for tokens and sentences; make a tokenizer "
                    f"with `homespun tokenizer train --sentinels 1` or `homespun tokenizer extend TOKENIZER "
                    f"--sentinels 1`, or set objective.mlm=0"
                )
            replace = TokenReplacement.of(tokenizer, mask_share=self.mask_share, random_share=self.random_share)
            tokens = TokenMasking(tokenizer.special_mask, self.mlm, replace)
        return GapSentenceCollator(
            tokenizer.pad_id,
            gap_id,
            before=len(tokenizer.template[0][:1]),
            select=self._select(tokenizer),
            ratio=(self.ratio, self.ratio if self.highest_ratio is None else self.highest_ratio),
            intact=self.intact,
            tokens=tokens,
        )

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> Seq2SeqObjective | GapSentenceObjective:
        """Build the objective with an encoder-decoder, whose decoder begins with the padding token."""
        tokens = {"bos_token_id": None, "decoder_start_token_id": tokenizer.pad_id}
        tokens |= dict.fromkeys(("eos_token_id", "forced_eos_token_id"), tokenizer.sep_id)
        config = build_seq2seq_config(model, self.kind, tokens=tokens)
        built = config.build()
        if not self.mlm:
            return Seq2SeqObjective(built, config)
        encoder = built.backbone.stacks[0]
        words = CausalLMHead(encoder.hidden_size, encoder.embeddings.words)
        initialise([words.transform], config.backbone.initializer_range)
        return GapSentenceObjective(built, config, words)

    def _select(self, tokenizer: Tokenizer) -> SentenceSelector:
        if self.selection == "random":
            return select_random
        if self.selection == "lead":
            return select_lead
        choose = select_independent if self.selection == "independent" else select_sequential
        return PrincipalSelector(WordHashes.of(tokenizer), choose, COUNTINGS[self.rouge], self.noise)


def multi_sentence_rows(rows: SentenceRows) -> SubsetRows:
    """Select the rows of at least two sentences. Raises `UserError` if there are none."""
    indices = np.flatnonzero(rows.sentences > 1)
    if not len(indices):
        raise UserError(
            f"objective gap_sentences needs rows of two sentences, and none of {len(rows):,} rows has two; raise "
            f"data.max_length, join the lines of a text into documents, or use objective span_corruption"
        )
    if single := len(rows) - len(indices):
        logger.warning("%s of %s rows have one sentence and are left out", f"{single:,}", f"{len(rows):,}")
    return SubsetRows(rows, indices)


class GapSentenceObjective(Objective):
    """Terms ``seq2seq`` and ``mlm``, and their accuracies. Exports the model with its language model head.

    The encoder predicts masked tokens with the word embeddings, through a projection if these are narrower; the
    projection is not exported.
    """

    def __init__(self, model: Model, config: ModelConfig, words: CausalLMHead) -> None:
        super().__init__(model, config)
        self.words = words

    def forward(self, batch: Batch) -> Loss:
        source = self.model.backbone.encode(batch.input_ids, **batch.context)
        mlm = token_terms("mlm", self.words, source.hidden, batch.source_positions, batch.source_labels)
        return Loss(decoder_loss(self.model, source, batch) | mlm)


def _gap_id(tokenizer: Tokenizer) -> int:
    """Return the token that replaces a sentence: <mask_1>, else a sentinel, else the mask token."""
    for token_id in np.flatnonzero(tokenizer.special_mask).tolist():
        if tokenizer.decode([token_id], skip_special_tokens=False) == SENTENCE_MASK:
            return int(token_id)
    sentinels = tokenizer.sentinel_ids
    return int(sentinels[0]) if len(sentinels) else tokenizer.mask_id
