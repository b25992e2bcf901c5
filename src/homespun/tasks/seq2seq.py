"""Text-to-text tasks, such as summaries, headlines or translations (Sutskever et al. 2014).

An encoder reads the source and a decoder writes the target; a causal stack reads ``source separator target`` as one
text, with a loss on the target only (Radford et al. 2019).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.loader import Collate
from homespun.data.rows import Row, Rows, pad
from homespun.data.source_target import SourceTargetPair, SourceTargetRows, SourceTargetTemplate, get_source, mix_rows
from homespun.errors import UserError
from homespun.inference.generation import generate_batch
from homespun.metrics.text import ROUGE_METRICS, Rouge
from homespun.models.backbone import EncoderDecoder
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.generation.settings import check_beams
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.model import Model
from homespun.objectives.mlm import token_terms
from homespun.objectives.seq2seq import EQUAL_WEIGHTS, StreamWeights, add_decoder_inputs, decoder_loss
from homespun.tasks.head_training import FineTuningLoss
from homespun.tasks.protocol import Measured, TaskObjective, TrainingSetup, numbered_chunks, paths, task_metadata
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.summaries import measure_baselines, measure_texts
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer

_CHUNK = 256  # texts read ahead in prediction, and sorted by length together


class TextToText(TaskObjective):
    """Generation of a target for each source, trained by teacher forcing.

    The validation loss has no label smoothing.
    """

    data_kinds = ("source_target",)
    description = "text to text"
    count_titles: ClassVar[Mapping[str, str]] = {
        "truncated": "Inputs truncated to the maximum length",
        "targets_truncated": "Targets truncated in training",
        "empty": "Pairs without a source or a target, left out",
    }

    kind: Literal["seq2seq"] = "seq2seq"
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="as in torch.nn.CrossEntropyLoss")
    frozen_encoder: bool = Field(default=False, description="train only the decoder, without word embeddings")
    streams: StreamWeights = Field(default=EQUAL_WEIGHTS, description="loss weights of the streams (ProphetNet)")

    def task(self, data: TextPairsData, stored: ModelBundle, training: Sequence[SourceTargetPair]) -> TextToTextTask:
        data.check_pairs(stored.config, training)
        return self.task_from_metadata(data, stored, source="")

    @classmethod
    def task_from_metadata(cls, data: TextPairsData, stored: ModelBundle, *, source: str) -> TextToTextTask:
        check_beams(data.generation.num_beams, stored.config.backbone.vocab_size)
        return TextToTextTask(data, stored)

    def collate(self, config: ModelConfig) -> Collate:
        """Build the collate of an encoder-decoder or of a causal stack."""
        backbone = config.backbone
        if backbone.has_decoder:
            return Seq2SeqCollator(backbone.pad_token_id, backbone.decoder_start_token_id)
        return PrefixLMCollator(backbone.pad_token_id)

    def build(self, model: Model, config: ModelConfig) -> TextToTextLoss:
        """Build the loss of ``model``, which is modified in place, with its language model head or a new head.

        Raises:
            UserError: the model cannot generate text, or ``frozen_encoder`` is set and there is no encoder.
        """
        backbone = config.backbone
        if not backbone.has_decoder and not backbone.causal:
            raise UserError(
                "objective seq2seq needs an encoder-decoder or a causal model, and this one is an encoder; start from "
                "one such as bart-mini, t5-mini or gpt2-mini, or use `homespun finetune classify`"
            )
        if not backbone.has_decoder and self.frozen_encoder:
            raise UserError("objective.frozen_encoder=true needs an encoder, which a causal model lacks; leave it out")
        if not isinstance(config.head, CausalLMHeadConfig):
            head_config = CausalLMHeadConfig()
            head = head_config.build(model.backbone)
            tied = set(model.backbone.modules())
            initialise((module for module in head.modules() if module not in tied), backbone.initializer_range)
            config = ModelConfig(backbone=backbone, head=head_config)
            model = Model(model.backbone, head, special_tokens=model.special_tokens)
        return TextToTextLoss(
            model,
            config,
            label_smoothing=self.label_smoothing,
            frozen_encoder=self.frozen_encoder,
            streams=self.streams,
        )


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Collate for an encoder-decoder: the decoder reads ``start target`` and predicts ``target``; deterministic."""

    pad_id: int
    start_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        return add_decoder_inputs(pad(rows, self.pad_id), _targets(rows), start_id=self.start_id, pad_id=self.pad_id)


@dataclass(frozen=True)
class PrefixLMCollator:
    """Collate for a causal stack: the target follows the source, and only its tokens are labels; deterministic."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        targets = _targets(rows)
        joined = [Row(np.concatenate([row.input_ids, ids])) for row, ids in zip(rows, targets, strict=True)]
        batch = pad(joined, self.pad_id)
        seq = batch.input_ids.shape[1]
        # a token is predicted at the position before it, the first at the end of the source
        positions = [
            index * seq + len(row.input_ids) - 1 + np.arange(len(ids))
            for index, (row, ids) in enumerate(zip(rows, targets, strict=True))
        ]
        labels = torch.from_numpy(np.concatenate(targets))
        return dataclasses.replace(
            batch,
            positions=torch.from_numpy(np.concatenate(positions)),
            labels=labels,
            targets=dict.fromkeys(("seq2seq", "seq2seq_accuracy"), float(len(labels))),
        )


def _targets(rows: Sequence[Row]) -> list[np.ndarray]:
    targets = [row.target_ids for row in rows if row.target_ids is not None]
    if len(targets) != len(rows):
        raise ValueError("text to text needs rows with target_ids")
    return targets


class TextToTextLoss(FineTuningLoss):
    """Compute ``seq2seq`` and its accuracy over the tokens of the targets."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        label_smoothing: float = 0.0,
        frozen_encoder: bool = False,
        streams: StreamWeights = EQUAL_WEIGHTS,
    ) -> None:
        super().__init__(model, config)
        self.label_smoothing = label_smoothing
        self.streams = streams
        if frozen_encoder:
            assert isinstance(model.backbone, EncoderDecoder)
            model.freeze(model.backbone.encoder)

    def forward(self, batch: Batch) -> Loss:
        """Compute the terms; logits are computed at labels only."""
        smoothing = self.label_smoothing if self.training else 0.0
        backbone = self.model.backbone
        if backbone.has_decoder:
            source = backbone.encode(batch.input_ids, **batch.context)
            return Loss(decoder_loss(self.model, source, batch, self.streams, label_smoothing=smoothing))
        hidden, head = backbone(batch.input_ids, **batch.context), self.model.lm_head
        terms = token_terms("seq2seq", head, hidden, batch.positions, batch.labels, label_smoothing=smoothing)
        return Loss(terms)


class TextToTextTask:
    """Generated targets for sources; see `homespun.tasks.protocol.Task`."""

    labels = None
    reported_metrics = ROUGE_METRICS

    def __init__(self, data: TextPairsData, stored: ModelBundle) -> None:
        self.data = data
        self.tokenizer: Tokenizer = stored.tokenizer
        backbone = stored.config.backbone
        if backbone.has_decoder:
            self.template = SourceTargetTemplate.for_encoder_decoder(
                self.tokenizer, bos_id=backbone.bos_token_id, eos_id=backbone.eos_token_id
            )
        else:
            self.template = SourceTargetTemplate.for_decoder(self.tokenizer, data.separator)
        self._rouge = Rouge()

    def stratify_by(self, examples: Sequence[SourceTargetPair]) -> NDArray[np.int64]:
        """Stratify by data set, if there are several."""
        if len(self.data.all_sets) == 1:
            return np.zeros((len(examples), 0), dtype=np.int64)
        return np.array([pair.data_set for pair in examples], dtype=np.int64)

    def texts(self, examples: Sequence[SourceTargetPair]) -> list[str]:
        return [pair.source for pair in examples]

    def rows(self, examples: Sequence[SourceTargetPair]) -> SourceTargetRows:
        return SourceTargetRows(
            examples,
            self.tokenizer,
            source_length=self.data.max_source_length,
            target_length=self.data.max_target_length,
            template=self.template,
            prefixes=[one.prefix for one in self.data.all_sets],
            paragraphs=self.data.paragraphs,
        )

    def training_setup(self, objective: TextToText, stored: ModelBundle, training: SourceTargetRows) -> TrainingSetup:
        loss = objective.build(copy.deepcopy(stored.model), stored.config)
        rows: Rows = training
        if (sets := self.data.sets) is not None:
            weights = [one.weight for one in sets]
            rows = mix_rows(training, training.data_sets, weights=weights, limit=self.data.limit)
        return TrainingSetup(loss, rows, objective.collate(loss.config))

    def measure(self, model: Model, rows: SourceTargetRows, *, batch_size: int) -> Measured:
        """Compute ROUGE of generated texts."""
        generated = dict(zip(rows.usable.tolist(), self._generate(model, rows, batch_size), strict=True))
        texts = [generated.get(index, "") for index in range(len(rows.pairs))]
        return measure_texts(self.data, rows.pairs, texts, self._rouge)

    def _generate(self, model: Model, rows: SourceTargetRows, batch_size: int = 32) -> list[str]:
        """Generate a text for each usable source."""
        return generate_batch(
            model,
            [rows.source(index) for index in range(len(rows.usable))],
            self.tokenizer,
            end_id=self.template.after_target[0],
            max_new_tokens=self.data.max_target_length,
            generation=self.data.generation,
            batch_size=batch_size,
        )

    def baselines(self, training: Sequence[SourceTargetPair], test: Sequence[SourceTargetPair]) -> dict[str, Measured]:
        return measure_baselines(self.data, training, test, self._rouge)

    def result_fields(self) -> dict[str, object]:
        return {"source_length": self.data.max_source_length, "target_length": self.data.max_target_length}

    def to_metadata(self) -> dict[str, object]:
        return task_metadata("seq2seq", self.data)

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield ``text``, the generated target."""
        columns = paths(self.data.all_sets[0].source)
        for chunk in numbered_chunks(records, _CHUNK, source=source, first=first):
            pairs = []
            for where, record in chunk:
                text = get_source(record, columns, where=where, between=self.data.between)
                title = get_source(record, [self.data.title] if self.data.title else [], where=where)
                pairs.append(SourceTargetPair(text, ("?",), title=title))
            rows = self.rows(pairs)
            generated = zip(self._generate(model, rows), rows.cut.tolist(), strict=True)
            outputs = dict(zip(rows.usable.tolist(), generated, strict=True))
            for index in range(len(pairs)):
                text, truncated = outputs.get(index, ("", False))
                yield {"text": text, "truncated": truncated}
