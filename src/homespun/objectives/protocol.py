"""Interfaces of objectives: configs, modules that compute a loss, and objectives that can be wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.config import Config
from homespun.data.corpus import Corpus
from homespun.data.document_set import DocumentSet
from homespun.data.loader import Collate, Order
from homespun.data.packed_rows import PackedRows
from homespun.data.rows import Row, Rows
from homespun.models.config import HeadConfig, ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class UnigramTerm:
    """Loss term with a unigram baseline."""

    name: str
    mask_share: float = 1.0  # share of the targets that are masked in the input, or absent from it
    # share of the targets that are a random token in the input; the others are unchanged in the input
    random_share: float = 0.0


class PretrainingConfig(Config):
    """Interface of the configs of pretraining objectives.

    Defaults are those of objectives without a decoder. A config also has ``collate(tokenizer)``, the function from rows
    to a batch, and ``build(model, tokenizer)``, which returns the `Objective`.

    Attributes:
        row_order: order of the rows of an epoch; ``bucketed`` rows have one document each, others are packed.
        max_processes: processes that can train in parallel; None: any number.
    """

    row_order: ClassVar[Order] = "shuffled"
    max_processes: ClassVar[int | None] = None

    @property
    def packs(self) -> bool:
        """True if a row may hold several documents."""
        return self.row_order != "bucketed"

    @property
    def supports_stream(self) -> bool:
        """True if the objective trains on rows of a stream of documents, see `homespun.data.stream_rows`."""
        return self.packs and type(self).rows is PretrainingConfig.rows

    @property
    def lighter(self) -> str:
        """Setting that needs less memory, for error messages; empty if there is none."""
        return ""

    @property
    def unigram_term(self) -> UnigramTerm | None:
        """Term with a unigram baseline; ``None`` if there is none."""
        return None

    def with_batch_size(self, batch_size: int) -> Self:
        """Return the config for steps of ``batch_size`` rows.

        Raises:
            ValueError: the objective needs a smaller batch.
        """
        return self

    def rows(self, corpus: Corpus, documents: DocumentSet, *, length: int, seed: int) -> Rows:
        """Build training rows of at most ``length`` tokens; by default packed documents."""
        return PackedRows(corpus, documents, length=length)

    def target_length(self, length: int) -> int:
        """Return the maximum number of predicted decoder tokens for a row of ``length``; 0 without a decoder."""
        return 0


class Objective(nn.Module):
    """Interface of objectives: a model, trained in place, with the loss of a batch."""

    def __init__(self, model: Model, config: ModelConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> Loss:
        """Compute the loss terms, named as in ``Batch.targets``."""
        raise NotImplementedError

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the model to save after training, with its config."""
        return self.model, self.config


def reuse_head(model: ModelConfig, new: HeadConfig) -> ModelConfig:
    """Return the config with the head of ``model`` if it has the kind of ``new``, else with ``new``."""
    same_kind = model.head is not None and model.head.kind == new.kind
    return ModelConfig(backbone=model.backbone, head=model.head if same_kind else new)


@dataclass(frozen=True)
class ClassifierOutput:
    """Logits of a batch, with their loss."""

    hidden: Tensor  # (sequences, seq, hidden) input of the head
    logits: Tensor  # (texts, labels) float32
    loss: Loss  # terms; ``loss`` is the loss on the labels


class HasLogits(Protocol):
    """Interface of objectives that predict labels of texts; a `torch.nn.Module`."""

    @property
    def model(self) -> Model:
        """Trained model."""

    def logits(self, batch: Batch) -> Tensor:
        """Compute (texts, labels) float32 logits."""

    def output(self, batch: Batch) -> ClassifierOutput:
        """Compute logits, hidden states and loss."""

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the model to save after training, with its config."""


class WrappedClassifier(nn.Module):
    """Base of objectives that add terms to the loss of another one, whose model is trained and exported."""

    def __init__(self, objective: HasLogits) -> None:
        super().__init__()
        self.objective = objective

    @property
    def model(self) -> Model:
        return self.objective.model

    def logits(self, batch: Batch) -> Tensor:
        return self.objective.logits(batch)

    def output(self, batch: Batch) -> ClassifierOutput:
        """Compute the output of the wrapped objective with more terms in its loss."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Loss:
        return self.output(batch).loss

    def export_model(self) -> tuple[Model, ModelConfig]:
        return self.objective.export_model()


@dataclass(frozen=True)
class WithTargetCounts:
    """Collate that adds target counts of further terms: the count of the named term, or of rows for None."""

    collate: Collate
    terms: Mapping[str, str | None]

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = self.collate(rows, row_seeds)
        added = {
            name: float(batch.num_rows) if like is None else batch.targets[like] for name, like in self.terms.items()
        }
        return replace(batch, targets=batch.targets | added)


def unigram_losses(
    term: UnigramTerm | None, counts: Callable[[], np.ndarray], held_out: Iterable[Batch], tokenizer: Tokenizer
) -> dict[str, float]:
    """Compute the unigram baseline: the loss of the best prediction from token frequencies and the input token.

    Args:
        term: predicted term; ``None``: the result is empty.
        counts: returns (vocabulary,) frequencies in the training text; called only if ``term`` is given. Special tokens
            count as often as in ``held_out``.
        held_out: batches of the validation loss.
        tokenizer: tokenizer of the text.

    Returns:
        Mean loss in nats a target, by name of the term.
    """
    if term is None:
        return {}
    labels, inputs = _labels_and_inputs(held_out)
    special = torch.from_numpy(tokenizer.special_mask)
    framing = torch.bincount(labels[special[labels]], minlength=len(special)) / max(int((~special[labels]).sum()), 1)
    count = (torch.from_numpy(counts()).double() + 1.0).masked_fill(special, 0.0)
    count += framing * count.sum()
    share = count / count.sum()
    kept_share = 1.0 - term.mask_share - term.random_share
    if not kept_share and not term.random_share:
        return {term.name: float(-share[labels].log().mean())}
    kept = kept_share * share
    kept /= (kept + term.random_share / int((~special).sum())).clamp_min(torch.finfo(torch.float64).tiny)
    sure = torch.where(inputs == tokenizer.mask_id, 0.0, kept[inputs])
    return {term.name: float(-((1.0 - sure) * share[labels] + sure * (inputs == labels)).log().mean())}


def _labels_and_inputs(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Return the (targets,) labels, and the (targets,) input tokens at their positions."""
    labels, inputs = [], []
    for batch in batches:
        assert batch.positions is not None
        assert batch.labels is not None
        labels.append(batch.labels)
        inputs.append(batch.input_ids.flatten()[batch.positions])
    return torch.cat(labels), torch.cat(inputs)
