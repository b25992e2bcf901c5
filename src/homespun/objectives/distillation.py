"""Distillation of the distributions and hidden states of a teacher (Hinton et al. 2015; Sanh et al. 2019).

The wrapped objective predicts masked tokens or labels. Its term keeps its name; ``soft`` and ``cosine`` are added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from homespun.batch import Batch, Loss, Term
from homespun.config import Config, Count
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.heads import MaskedLMHead, last_layer
from homespun.models.model import Model
from homespun.nn.vocabulary_loss import VocabLogits, binary_log_probs, soft_label_loss, soft_token_loss
from homespun.objectives.protocol import ClassifierOutput, HasLogits, WrappedClassifier
from homespun.objectives.teacher import LogitCache, Teacher, for_segments_of
from homespun.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SOFT, COSINE = "soft", "cosine"
Weight = Annotated[float, Field(ge=0)]
_INITIALIZER_RANGE = 0.02


class _TeacherConfig(Config):
    """Settings of all teachers."""

    source: str
    temperature: float = Field(default=2.0, gt=0)
    soft: Weight = Field(default=5.0, description="weight of T^2 KL(teacher || student)")
    cosine: Weight

    @model_validator(mode="after")
    def _teaches(self) -> Self:
        if not (self.soft or self.cosine):
            raise ValueError(
                "teacher.soft=0 and teacher.cosine=0 disable the teacher; set one above 0, or leave it out"
            )
        return self


class TokenTeacher(_TeacherConfig):
    """Masked language model as teacher, with the weights and the temperature of DistilBERT's released command.

    By default the soft targets are the masked tokens, which cost a seventh of all tokens, the targets of DistilBERT.
    """

    source: str = Field(default="", description="run or model/ folder with the tokenizer of the student")
    hard: Weight = Field(default=2.0, description="weight of the masked language modelling loss")
    cosine: Weight = Field(default=1.0, description="weight of the cosine distance of hidden states")
    positions: Literal["masked", "all"] = Field(default="masked", description="tokens with soft targets")

    @property
    def masked_terms(self) -> tuple[str, ...]:
        """Terms whose targets are the masked tokens."""
        return (SOFT,) if self.soft and self.positions == "masked" else ()

    @property
    def token_terms(self) -> tuple[str, ...]:
        """Terms whose targets are all tokens except padding."""
        soft = (SOFT,) if self.soft and self.positions == "all" else ()
        return (*soft, COSINE) if self.cosine else soft

    def wrap(self, objective: HasMaskedLMLoss, tokenizer: Tokenizer) -> MaskedLMDistillation:
        """Wrap the objective for distillation.

        Raises:
            UserError: the teacher is missing, has another tokenizer, or no masked LM head.
        """
        teacher = Teacher.open(self.source, tokenizer)
        if not isinstance(teacher.stored.model.head, MaskedLMHead):
            raise UserError(
                f"the teacher {self.source} has no masked LM head; take a model pretrained with objective mlm, or "
                f"distil it in fine-tuning: homespun distill finetune classify --teacher {self.source} ..."
            )
        return MaskedLMDistillation(objective, teacher, self)


class LabelTeacher(_TeacherConfig):
    """Classifier as teacher."""

    source: str = Field(default="", description="run or model/ folder with the same labels")
    hard: Weight = Field(default=2.0, description="weight of the loss of the labels")
    cosine: Weight = Field(default=0.0, description="weight of the cosine distance of hidden states")
    cache: str = Field(default="", description="folder for the teacher's logits, computed once for all epochs")
    cache_size: Annotated[Count, Field(gt=0)] = Field(default=1_000_000_000, description="bytes of the cache, like 2G")

    @model_validator(mode="after")
    def _logits_alone(self) -> LabelTeacher:
        if self.cache and self.cosine:
            raise ValueError("cache stores logits, and cosine needs hidden states; set one of them")
        return self

    @property
    def terms(self) -> dict[str, str | None]:
        """Terms besides the loss on the labels; each is a mean over texts."""
        return {name: None for name, weight in ((SOFT, self.soft), (COSINE, self.cosine)) if weight}

    def wrap(self, objective: HasLogits, tokenizer: Tokenizer, labels: Labels) -> LabelDistillation:
        """Wrap the objective for distillation.

        Raises:
            UserError: the teacher is missing, has another tokenizer or other labels; ``cosine`` with a head on several
                layers.
        """
        teacher = Teacher.open(self.source, tokenizer)
        teacher_labels = teacher.stored.labels
        if teacher_labels is None:
            raise UserError(f"the teacher {self.source} has no labels; fine-tune it first: homespun finetune classify")
        if teacher_labels != labels:
            names = [", ".join(one.names[:9]) + " (multi-label)" * one.multi_label for one in (teacher_labels, labels)]
            raise UserError(
                f"the teacher {self.source} has the labels {names[0]}, and the data has {names[1]}; take a teacher "
                f"fine-tuned for these labels"
            )
        if self.cosine and teacher.stored.model.reader is not last_layer:
            raise UserError(f"the head of teacher {self.source} reads several layers; set teacher.cosine=0")
        return LabelDistillation(objective, teacher, self, labels)


class HasMaskedLMLoss(Protocol):
    """Interface of objectives for token distillation: `homespun.objectives.mlm.MaskedLMObjective`."""

    @property
    def model(self) -> Model:
        """Student."""

    def loss_of_hidden(self, hidden: Tensor, batch: Batch) -> Loss:
        """Compute the terms, with ``mlm``, from (batch, seq, hidden) hidden states."""

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the model to save after training, with its config."""


class MaskedLMDistillation(nn.Module):
    """DistilBERT's triple loss: ``soft``, ``mlm`` and ``cosine``, each a mean over its targets.

    If the widths of teacher and student differ, a learned projection maps the student's hidden states to the teacher's
    width. It is not exported.
    """

    def __init__(self, objective: HasMaskedLMLoss, teacher: Teacher, config: TokenTeacher) -> None:
        super().__init__()
        self.objective = objective
        self.teacher, self.config = teacher, config
        self.projection = _projection(objective.model, teacher, config.cosine)

    @property
    def model(self) -> Model:
        return self.objective.model

    def forward(self, batch: Batch) -> Loss:
        hidden = self.model.read(batch.input_ids, batch.context)
        terms = _reweight(self.objective.loss_of_hidden(hidden, batch), "mlm", self.config.hard)
        teacher_outputs = self.teacher.read(batch)
        if self.config.soft:
            positions = _real_positions(batch) if self.config.positions == "all" else batch.positions
            assert positions is not None
            student, teacher = (
                _vocab_logits(model, vectors.flatten(0, 1).index_select(0, positions))
                for model, vectors in ((self.model, hidden), (self.teacher.model(hidden.device), teacher_outputs))
            )
            lost = soft_token_loss(student, teacher, temperature=self.config.temperature)
            terms[SOFT] = Term(lost, len(positions), weight=self.config.soft)
        if self.config.cosine:
            positions = _real_positions(batch)
            distances = _cosine_distance(self.projection(hidden), teacher_outputs).flatten().index_select(0, positions)
            terms[COSINE] = Term(distances.sum(), len(positions), weight=self.config.cosine)
        return Loss(terms)

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the student without the teacher."""
        return self.objective.export_model()


class LabelDistillation(WrappedClassifier):
    """Add ``soft``, a mean over the texts, and ``cosine`` to the loss on the labels.

    Multi-label: each label is a distribution, and the loss of a text is the mean over its labels.
    """

    def __init__(self, objective: HasLogits, teacher: Teacher, config: LabelTeacher, labels: Labels) -> None:
        super().__init__(objective)
        self.teacher, self.config, self.multi_label = teacher, config, labels.multi_label
        self.projection = _projection(objective.model, teacher, config.cosine)
        self._teacher_logits: Callable[[Batch], Tensor] = teacher.logits
        if config.cache:
            self._teacher_logits = LogitCache(teacher, config.cache, labels=len(labels), limit=config.cache_size)

    def output(self, batch: Batch) -> ClassifierOutput:
        """Compute the output of the student; its loss has the terms ``soft`` and ``cosine``."""
        student_output = self.objective.output(for_segments_of(self.model, batch))
        terms = _reweight(student_output.loss, "loss", self.config.hard)
        hidden = None
        if self.config.cosine:
            hidden = self.teacher.read(batch)
            terms[COSINE] = self._cosine_term(student_output.hidden, hidden, batch)
        if self.config.soft:
            teacher_outputs = self._teacher_logits(batch) if hidden is None else self.teacher.logits(batch, hidden)
            distances = self._soft_loss(student_output.logits, teacher_outputs)
            terms[SOFT] = Term(distances.sum(), len(distances), weight=self.config.soft)
        return replace(student_output, loss=Loss(terms))

    def _soft_loss(self, logits: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Compute the (texts,) loss from (texts, labels) logits of student and teacher."""
        if self.multi_label:
            logits, teacher_outputs = binary_log_probs(logits), binary_log_probs(teacher_outputs)
        losses = soft_label_loss(logits, teacher_outputs, temperature=self.config.temperature)
        return losses.mean(-1) if self.multi_label else losses

    def _cosine_term(self, hidden: Tensor, teacher_outputs: Tensor, batch: Batch) -> Term:
        """Compute the mean distance over the tokens of a text, including all its chunks."""
        keep = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
        distances = (_cosine_distance(self.projection(hidden), teacher_outputs) * keep).sum(1)  # (sequences,)
        tokens = keep.sum(1).to(distances.dtype)
        if batch.chunks is not None:
            present = batch.chunks >= 0
            distances, tokens = ((values[batch.chunks.clamp(min=0)] * present).sum(1) for values in (distances, tokens))
        return Term((distances / tokens.clamp(min=1)).sum(), len(distances), weight=self.config.cosine)


def _vocab_logits(model: Model, vectors: Tensor) -> VocabLogits:
    head = model.lm_head
    return VocabLogits(head.features(vectors), head.weight, head.bias)


def _reweight(loss: Loss, name: str, weight: float) -> dict[str, Term]:
    """Return the terms, with another weight for ``name``."""
    return loss.terms | {name: replace(loss.terms[name], weight=weight)}


def _cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute 1 - cosine, (batch, seq), of two (batch, seq, hidden) tensors."""
    return 1 - torch.cosine_similarity(student.float(), teacher.float(), dim=-1)


def _real_positions(batch: Batch) -> Tensor:
    """Return the (tokens,) positions into batch * seq of all tokens except padding."""
    if batch.attention_mask is None:
        return torch.arange(batch.input_ids.numel(), device=batch.input_ids.device)
    return batch.attention_mask.flatten().nonzero().squeeze(1)


def _projection(student: Model, teacher: Teacher, cosine: float) -> nn.Module:
    size, teacher_size = student.backbone.hidden_size, teacher.stored.model.backbone.hidden_size
    if size == teacher_size or not cosine:
        return nn.Identity()
    logger.info("hidden sizes: student %d, teacher %d; a projection maps the first to the second", size, teacher_size)
    projection = nn.Linear(size, teacher_size)
    initialise([projection], _INITIALIZER_RANGE)
    return projection
