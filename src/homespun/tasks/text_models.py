"""Models of texts behind one interface: networks, linear models, and weighted averages of models.

Each is stored in the ``model/`` folder of a run: a network as in `homespun.models.bundle`, a linear model as in
`homespun.linear`, and an average as ``average.json`` with a folder for each member.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, TypeAlias, Unpack

import numpy as np
from pydantic import Field

from homespun.config import Config, validate
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.io.atomic import atomic_path
from homespun.io.json import read_object
from homespun.linear import LinearModel, is_linear
from homespun.metrics.calibration import DEFAULT_RULE, DecisionRule
from homespun.metrics.classification import check_memory
from homespun.ngrams import features
from homespun.tasks.protocol import Measured, ReadOptions, task_metadata
from homespun.tasks.stored_data import StoredData, stored_data
from homespun.tasks.text_outputs import (
    Floats,
    Outputs,
    average,
    choose_decision,
    measure_outputs,
    output_predictions,
    texts_of,
    to_predictions,
)
from homespun.tasks.texts import LabelledData, LabelledText, PairsData, TextsData, unlabelled_texts
from homespun.text.formats import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

    from homespun.models.bundle import ModelBundle

    Vectors: TypeAlias = NDArray[np.float32] | csr_matrix

AVERAGE = "average.json"


class TextModel(Protocol):
    """Interface of classifiers and regressors of texts or pairs of texts."""

    @property
    def kind(self) -> str:
        """``network``, ``linear`` or ``average``."""

    @property
    def data(self) -> TextsData:
        """Columns of the texts and of the label."""

    @property
    def labels(self) -> Labels | None:
        """Classes; ``None`` for regression."""

    @property
    def decision(self) -> DecisionRule:
        """Temperature and thresholds of the logits."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""

    @property
    def networks(self) -> Sequence[ModelBundle]:
        """Networks of the model."""

    @property
    def members(self) -> Mapping[str, TextModel]:
        """Models whose mean this is, by name; empty for a single model."""

    @property
    def weights(self) -> Sequence[float]:
        """One weight for each member, with sum 1."""

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        """Compute logits or numbers."""

    def vectors(self, examples: Sequence[LabelledText]) -> Vectors:
        """Compute (texts, size) vectors whose cosine is the similarity of texts."""

    def calibrate(self, values: Floats, examples: Sequence[LabelledText]) -> TextModel:
        """Return the model with temperature and thresholds chosen by its outputs on validation examples.

        A linear model has chosen them by cross-validation.
        """

    def refit(self, fit: RefitLinear) -> TextModel:
        """Return the model with its linear parts fitted to other examples."""

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder."""


@dataclass(frozen=True)
class LinearTextModel:
    """Linear model on TF-IDF n-grams."""

    model: LinearModel
    data: TextsData
    decision: DecisionRule = DEFAULT_RULE
    kind: Literal["linear"] = "linear"
    members: ClassVar[Mapping[str, TextModel]] = {}
    weights: ClassVar[tuple[float, ...]] = ()

    @property
    def labels(self) -> Labels | None:
        return self.model.labels

    @property
    def parameters(self) -> int:
        return self.model.parameters

    @property
    def networks(self) -> tuple[ModelBundle, ...]:
        return ()

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        return Outputs(self.model.outputs(texts_of(examples)), np.zeros(len(examples), dtype=bool))

    def vectors(self, examples: Sequence[LabelledText]) -> Vectors:
        """Compute (texts, features) TF-IDF vectors."""
        return features(self.model.vectorizers, texts_of(examples))

    def calibrate(self, values: Floats, examples: Sequence[LabelledText]) -> LinearTextModel:
        """Return the model itself: cross-validation has chosen its temperature and thresholds."""
        return self

    def refit(self, fit: RefitLinear) -> LinearTextModel:
        """Return the model fitted to other examples."""
        return fit(self)

    def save(self, folder: Path) -> None:
        kind = "regression" if self.labels is None else "classification"
        task = task_metadata(kind, self.data) | {"decision": self.decision.model_dump(mode="json")}
        replace(self.model, task=task).save(folder)


@dataclass(frozen=True)
class AverageTextModel:
    """Weighted mean of the probabilities, or of the numbers, of several models."""

    members: Mapping[str, TextModel]  # models of the same classes, by name
    weights: tuple[float, ...]  # one weight for each member, with sum 1
    decision: DecisionRule = DEFAULT_RULE  # temperature and thresholds of the logits of the mean probabilities
    kind: Literal["average"] = "average"

    @property
    def data(self) -> TextsData:
        return next(iter(self.members.values())).data

    @property
    def labels(self) -> Labels | None:
        return next(iter(self.members.values())).labels

    @property
    def parameters(self) -> int:
        """Number of parameters of all members."""
        return sum(member.parameters for member in self.members.values())

    @property
    def networks(self) -> tuple[ModelBundle, ...]:
        return tuple(network for member in self.members.values() for network in member.networks)

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        """Compute logits of the mean probabilities, or mean numbers."""
        return _mean_outputs(self, [member.outputs(examples) for member in self.members.values()])

    def vectors(self, examples: Sequence[LabelledText]) -> Vectors:
        """Compute the vectors of the first network, or of the first member without networks."""
        members = sorted(self.members.values(), key=lambda member: member.kind != "network")
        return members[0].vectors(examples)

    def calibrate(self, values: Floats, examples: Sequence[LabelledText]) -> AverageTextModel:
        """Return the average with another temperature and other thresholds."""
        return replace(self, decision=choose_decision(values, examples, self.labels))

    def refit(self, fit: RefitLinear) -> AverageTextModel:
        """Return the average with its linear members fitted to other examples."""
        return replace(self, members={name: member.refit(fit) for name, member in self.members.items()})

    def save(self, folder: Path) -> None:
        for name, member in self.members.items():
            (folder / name).mkdir()
            member.save(folder / name)
        described = {
            "format": 1,
            "weights": dict(zip(self.members, self.weights, strict=True)),
            "decision": self.decision.model_dump(mode="json"),
        }
        (folder / AVERAGE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def _mean_outputs(model: TextModel, found: Sequence[Outputs]) -> Outputs:
    """Average the outputs of the members of a model."""
    predicted = [
        to_predictions(one.values, model.labels, member.decision)
        for one, member in zip(found, model.members.values(), strict=True)
    ]
    truncated = np.any([one.truncated for one in found], axis=0)
    return Outputs(average(predicted, model.weights, model.labels), truncated)


RefitLinear = Callable[[LinearTextModel], LinearTextModel]
"""Fits a linear model again, on other examples."""


class _StoredTexts(StoredData):
    data: Annotated[LabelledData | PairsData, Field(discriminator="kind")]


class _StoredDecision(Config):
    decision: DecisionRule = DEFAULT_RULE


class _StoredAverage(Config):
    format: Literal[1]
    weights: dict[str, float]
    decision: DecisionRule


def measure(model: TextModel, examples: Sequence[LabelledText]) -> Measured:
    """Evaluate a model on labelled examples, with the metrics of its task."""
    if model.labels is not None:
        check_memory(model.labels, len(examples), evaluated=True)
    return measure_all({"model": model}, examples)["model"]


def measure_all(models: Mapping[str, TextModel], examples: Sequence[LabelledText]) -> dict[str, Measured]:
    """Evaluate models on the same examples; a model that is also a member of an average is computed once."""
    computed: dict[int, Outputs] = {}

    def outputs(model: TextModel) -> Outputs:
        if id(model) not in computed:
            found = list(map(outputs, model.members.values()))
            computed[id(model)] = _mean_outputs(model, found) if found else model.outputs(examples)
        return computed[id(model)]

    return {
        name: measure_outputs(outputs(model).values, examples, model.labels, model.decision)
        for name, model in models.items()
    }


def predict(model: TextModel, records: Iterable[Record], *, source: str, first: int = 1) -> Iterator[dict[str, object]]:
    """Yield a prediction for each record, in order and in bounded memory.

    Raises:
        UserError: a record lacks the columns; the message begins with ``source``.
    """
    for texts in unlabelled_texts(records, model.data, source=source, first=first):
        yield from predict_examples(model, texts)


def predict_examples(model: TextModel, examples: Sequence[LabelledText]) -> Iterator[dict[str, object]]:
    """Yield a prediction for each text or pair: ``label``, ``probability`` and ``probabilities``, or ``number``."""
    yield from output_predictions(model.outputs(examples), model.labels, model.decision)


def save_text_model(folder: Path, model: TextModel) -> None:
    """Write the ``model/`` folder atomically, replacing an existing one."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        model.save(temporary)


def find_text_model(run: str | Path) -> Path | None:
    """Return the folder of a linear or average model in a run, or ``None`` if there is none."""
    folder = Path(run).expanduser()
    return next((f for f in (folder, folder / "model") if is_linear(f) or (f / AVERAGE).is_file()), None)


def open_text_model(run: str | Path, **options: Unpack[ReadOptions]) -> TextModel:
    """Open a classifier or regressor of texts: a run, a ``model/`` folder, a Hugging Face folder or a hub name.

    ``options`` are columns that differ from training.

    Raises:
        UserError: there is no model, it has another task, or its files are damaged.
    """
    folder = find_text_model(run)
    if folder is None:
        from homespun.tasks.network_text_model import open_network  # imports torch

        return open_network(run, **options)
    if is_linear(folder):
        model = LinearModel.load(folder)
        data = stored_data(_StoredTexts, model.task, source=str(run), **options)
        assert isinstance(data, TextsData)
        decided = {name: value for name, value in model.task.items() if name == "decision"}
        decision = validate(_StoredDecision, decided, source=str(folder)).decision
        return LinearTextModel(model, data if model.labels is None else data.with_labels(model.labels), decision)
    path = folder / AVERAGE
    stored_average = validate(_StoredAverage, read_object(path), source=str(path))
    names = list(stored_average.weights)
    if not names or any(Path(name).name != name or name.startswith(".") for name in names):
        raise UserError(f"{path} must name folders next to it, not {names}")
    members = {name: open_text_model(folder / name, **options) for name in names}
    if len({member.labels for member in members.values()}) > 1:
        raise UserError(f"{path}: its members have different classes; fit the model again")
    return AverageTextModel(members, tuple(stored_average.weights.values()), stored_average.decision)
