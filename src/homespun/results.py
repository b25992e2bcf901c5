"""Typed contents of result files: ``result.json`` of a run, ``trial.json`` and ``comparison.json`` of a comparison.

Every key is optional, so that files of earlier versions can be read. Unknown keys are kept: counts of truncated inputs,
fields of a task, the plan of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Self, TypeGuard

from pydantic import BaseModel, ConfigDict, JsonValue, StringConstraints

from homespun.config import validate
from homespun.errors import UserError
from homespun.io.json import read_optional
from homespun.migration import migrate, migrate_result

VERSION = 1
"""Version of the files; a file without one has version 1."""
Number = int | float
Spread = tuple[float, float | None]
"""Mean and sample standard deviation; None for a single training."""
FILE_NAME = r"[^/\\.][^/\\]*"
FileName = Annotated[str, StringConstraints(pattern=f"^{FILE_NAME}$")]
"""Name of a file or folder of the run, which a file from others must not lead out of its folder."""


def is_number(value: object) -> TypeGuard[Number]:
    """True for a finite number."""
    # compared, since math.isfinite fails for integers that no float can hold
    return isinstance(value, Number) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


class Part(BaseModel):
    """A JSON object with optional keys."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    def number(self, key: str) -> Number | None:
        """Value of a key, declared or not, if it is a finite number."""
        value = getattr(self, key, None)
        return value if is_number(value) else None

    def numbers(self) -> dict[str, Number]:
        """All finite numbers at the top level, in order."""
        return {key: value for key, _ in self if key != "version" and (value := self.number(key)) is not None}


class ClassMetrics(Part):
    """Metrics of one class; support is its number of test examples."""

    precision: Number | None = None
    recall: Number | None = None
    f1: Number | None = None
    support: Number | None = None


class ConfusionMatrix(Part):
    """Counts of test examples, (classes, classes): rows are the truth, columns the prediction."""

    labels: list[str] = []
    counts: list[list[Number]] = []

    @property
    def is_square(self) -> bool:
        """True if there is a row and a column for each label."""
        return bool(self.labels) and [len(row) for row in self.counts] == [len(self.labels)] * len(self.labels)

    @property
    def is_readable(self) -> bool:
        """True for few enough classes for a coloured table."""
        return len(self.labels) <= 40

    def percent(self) -> list[list[float]]:
        """Return (classes, classes) percent of each row; the diagonal is the recall."""
        return [[100 * n / max(1.0, sum(row)) for n in row] for row in self.counts]


class ReliabilityBin(Part):
    """Predictions of similar confidence: number, mean confidence and accuracy."""

    count: Number | None = None
    confidence: Number | None = None
    right: Number | None = None


class CalibrationError(Part):
    """Expected calibration error and log loss on the test set."""

    ece: Number | None = None
    log_loss: Number | None = None
    bins: list[ReliabilityBin] = []


class Calibration(Part):
    """Calibration before and after temperature scaling."""

    before: CalibrationError = CalibrationError()
    after: CalibrationError = CalibrationError()


class Metrics(Part):
    """Metrics on one test set, by name; means over folds carry their deviations in ``std``."""

    rows: Number | None = None
    per_class: dict[str, ClassMetrics] = {}
    confusion: ConfusionMatrix | None = None
    calibration: Calibration | None = None
    by_set: dict[str, Metrics] = {}
    std: dict[str, Number | None] = {}

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation of a metric; earlier files have them as ``{mean, std}``."""
        if (value := self.number(metric)) is not None:
            return value, self.std.get(metric)
        summed = getattr(self, metric, None)
        return (summed["mean"], summed.get("std")) if isinstance(summed, dict) and "mean" in summed else None


class Validation(Part):
    """Held-out losses at the end of training, by term."""

    loss: Number | None = None
    losses: dict[str, Number | None] = {}


class CurvePoint(Part):
    """Metrics after training on ``examples``."""

    examples: int
    test: Metrics = Metrics()
    seeds: list[Metrics] = []
    baselines: dict[FileName, Metrics] = {}


class DuplicatePair(Part):
    """Test example and its near-duplicate in the training examples."""

    row: int | None = None
    text: str = ""
    training: str = ""
    similarity: Number | None = None


class Leakage(Part):
    """Near-duplicates between training and test examples; mean score on all examples and on the unseen ones."""

    rows: Number = 0
    near: Number = 0
    same: Number = 0
    all: Number | None = None
    unseen: Number | None = None
    pairs: list[DuplicatePair] = []


class ExamplePrediction(Part):
    """A test example with its prediction."""

    row: int | None = None
    text: str | None = None
    truth: JsonValue = None
    predicted: JsonValue = None
    loss: Number | None = None
    score: Number | None = None


class DecisionRule(Part):
    """Temperature and decision thresholds found on the validation examples, with reasons if none was."""

    temperature: Number | None = None
    temperature_why: str | None = None
    thresholds: list[Number] = []
    thresholds_for: str | None = None
    thresholds_why: str | None = None


class Export(Part):
    """Export to transformers, or the reason that there is none."""

    folder: str | None = None
    architecture: str | None = None
    notes: list[str] = []


class Corpus(Part):
    """Size of the pretraining corpus."""

    documents: Number | None = None
    tokens: Number | None = None


class Vectors(Part):
    """Word vectors that initialised the embeddings."""

    source: str | None = None
    found: Number | None = None
    tokens: Number | None = None


class LayerMix(Part):
    """Weights of a learned mix of layers, and its scale."""

    weights: list[Number] = []
    gamma: Number | None = None


class Change(Part):
    """A value before and after adaptation."""

    before: JsonValue = None
    after: JsonValue = None


class Shape(Part):
    """Size and attention of an adapted stack."""

    num_hidden_layers: Change | None = None
    max_position_embeddings: Change | None = None
    attention: Change | None = None


class TransferredTensors(Part):
    """Tensors by origin: copied, changed and how, newly initialised, unused."""

    copied: Number | None = None
    changed: dict[str, str] = {}
    fresh: list[str] = []
    left: list[str] = []


class Adaptation(Shape):
    """Changes of a checkpoint before further training, and losses of the changed model."""

    start_from: str | None = None
    loss: Number | None = None
    losses: dict[str, Number | None] = {}
    vocabulary: Change | None = None
    tokens_per_word: Change | None = None
    decoder: Shape | None = None
    moved: list[dict[str, JsonValue]] = []
    tensors: TransferredTensors = TransferredTensors()


class TeacherStudent(Part):
    """One quantity of both models; std is the student's deviation over seeds."""

    teacher: Number | None = None
    student: Number | None = None
    std: Number | None = None


class Timing(TeacherStudent):
    """Seconds of both models for batches of one size and length."""

    batch_size: int = 1
    length: int | None = None


class Distillation(Part):
    """Comparison of a student with its teacher."""

    teacher: str = ""
    layers: list[int] | None = None
    parameters: TeacherStudent | None = None
    bytes: TeacherStudent | None = None
    speed: list[Timing] = []
    quality: dict[str, TeacherStudent] | None = None
    quality_why: str | None = None


class ResultFile(Part):
    """A JSON file with a version."""

    version: int = VERSION

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; an empty result if there is none.

        Raises:
            UserError: the file is damaged, or of another version.
        """
        tree = migrate_result(read_optional(path))
        if tree.get("version", VERSION) != VERSION:
            version = tree["version"]
            raise UserError(
                f"{path} has version {version!r}, not {VERSION}; use the homespun that wrote it, or run again"
            )
        if "task" in tree:
            tree["task"] = migrate(tree["task"], ("objective", "kind"))
        return validate(cls, tree, source=str(path))

    def to_json(self) -> dict[str, Any]:
        """Keys that were set."""
        return self.model_dump(exclude_unset=True, by_alias=True)


class RunResult(ResultFile):
    """``result.json`` of one run."""

    kind: str | None = None
    name: str | None = None
    start_from: str | None = None
    parameters: Number | None = None
    flops_per_token: Number | None = None
    steps: Number | None = None
    tokens: Number | None = None
    peak_bytes: Number | None = None
    seconds: Number | None = None
    seconds_per_step: Number | None = None
    tokens_per_second: Number | None = None
    train: dict[str, Number | None] = {}
    validation: Validation = Validation()
    corpus: Corpus | None = None
    unigram_baseline: dict[str, Number | None] = {}  # loss by term
    task: str = "classification"
    task_description: str = ""
    count_titles: dict[str, str] = {}  # counts of examples to show, by key
    measures: list[str] = []
    measured_on: str = "test"
    labels: list[str] | None = None
    test: Metrics = Metrics()
    seeds: list[Metrics] = []
    baselines: dict[FileName, Metrics] = {}
    curve: list[CurvePoint] = []
    decision_rule: DecisionRule = DecisionRule()
    calibration: Calibration | None = None
    overlap: Leakage | None = None
    top_errors: list[ExamplePrediction] = []
    most_confident: list[ExamplePrediction] = []
    lengths: list[dict[str, JsonValue]] = []
    layers: LayerMix | None = None
    export: Export | None = None
    vectors: Vectors | None = None
    adaptation: Adaptation | None = None
    distillation: Distillation | None = None

    def trainings(self) -> list[Metrics]:
        """Test metrics of every seed or fold, or of the single training."""
        return self.seeds or [self.test]


class Event(Part):
    """One line of ``metrics.jsonl``."""

    event: str
    step: Number = 0
    time: Number = 0  # seconds of training
    tokens: Number | None = None
    loss: Number | None = None  # in earlier files; now ``loss/total``
    losses: dict[str, Number | None] = {}  # in earlier files; now ``loss/TERM``
    reason: str | None = None

    def all_losses(self) -> dict[str, Number]:
        """Finite losses by term, the total as ``loss``."""
        extra = (self.model_extra or {}).items()
        terms = {key[5:].replace("total", "loss"): value for key, value in extra if key.startswith("loss/")}
        losses = {**self.losses, "loss": self.loss, **terms}
        return {term: value for term, value in losses.items() if is_number(value)}


def mean_over_trainings(tests: Sequence[Metrics], metric: str) -> Spread | None:
    """Mean and deviation of a metric over seeds or folds, or those of a single training."""
    if len(tests) == 1:
        return tests[0].spread(metric)
    return mean_and_deviation([found[0] for test in tests if (found := test.spread(metric))])


def mean_and_deviation(values: Sequence[float]) -> Spread | None:
    """Mean and sample deviation; None for no values."""
    return (fmean(values), stdev(values) if len(values) > 1 else None) if values else None
