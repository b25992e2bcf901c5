"""Typed contents of ``trial.json`` and ``comparison.json``."""

# ruff: noqa: RUF012 - pydantic copies defaults; ruff knows that of direct subclasses of BaseModel alone

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from homespun.results import FILE_NAME, FileName, Number, Part, ResultFile

# in this trial, or in another one of the comparison
_RUN = rf"^((\.\.[/\\]){{1,3}}({FILE_NAME}[/\\]){{1,3}})?{FILE_NAME}$"


class TrialStage(Part):
    """One stage of a trial: pretraining, or fine-tuning for one task."""

    model_config = ConfigDict(frozen=False)

    kind: Literal["pretrain", "finetune"] | None = None
    path: str | None = Field(default=None, pattern=_RUN)  # relative to the folder of the trial
    recipe: str | None = None
    recipe_digest: str | None = None  # digest of a recipe file; None: a shipped recipe
    start_from: str | None = None
    vectors: str | None = None
    finished: bool = False
    shared_with: str | None = None  # ``NAME/seed-K``: the trial that runs this pretraining
    seconds: Number | None = None
    processor_seconds: Number = 0.0
    baselines: FileName | None = None  # folder below ``baselines/``; None: the name of the task


class InferenceCost(Part):
    """Cost of inference at one length in tokens."""

    length: Number | None = None
    batch_size: int | None = None
    seconds_per_text: Number | None = None
    peak_bytes: Number | None = None


class Overhead(Part):
    """Processor time of scheduling and measuring; for a comparison also that of the stages, and the ratio."""

    model_config = ConfigDict(frozen=False)

    processor_seconds: Number = 0.0
    stages_processor_seconds: Number | None = None
    share: Number | None = None


class TrialResult(ResultFile):
    """``trial.json`` of one variant with one seed."""

    model_config = ConfigDict(frozen=False)

    name: str | None = None
    seed: int | None = None
    about: str = ""
    varied: dict[str, JsonValue] = {}  # values of the grid
    plan: dict[str, JsonValue] | None = None
    status: Literal["waiting", "running", "done", "failed"] = "waiting"
    why: str | None = None  # reason of a failure
    stage: str | None = None  # stage that failed
    seconds: Number | None = None
    settings: dict[str, list[str]] = {}  # ``KEY=VALUE`` by stage
    stages: dict[FileName, TrialStage] = {}
    inference: list[InferenceCost] | None = None  # None: not measured yet
    notes: list[str] = []
    overhead: Overhead = Overhead()


class SignificanceTest(Part):
    """Test of a candidate against a better one; the best candidate has only ``not_worse``."""

    not_worse: bool = Field(default=False, validation_alias="alike", serialization_alias="alike")
    gap: float | None = None  # difference to the better one: on the same examples, or of the means
    interval: tuple[float, float] | None = None  # 95 % confidence interval of the gap
    texts: float | None = None  # p over test examples
    trainings: float | None = None  # p over seeds
    adjusted: float | None = None  # the larger p, corrected for all pairs (Holm)
    detectable: float | None = None  # true difference that both tests would find with a probability of 80 %

    def swapped(self) -> SignificanceTest:
        """The test of the better candidate against the other."""
        interval = None if self.interval is None else (-self.interval[1], -self.interval[0])
        return self.model_copy(update={"gap": None if self.gap is None else -self.gap, "interval": interval})


class CandidateResult(SignificanceTest):
    """A variant or baseline in one task, with its test against the best."""

    name: str
    kind: Literal["model", "baseline"]
    trials: str = ""  # numbers of trials by status, for example done and failed
    why: str | None = None
    values: list[float] = []  # one value of the measure for each training
    mean: float | None = None
    deviation: float | None = None
    own_baselines: dict[str, SignificanceTest] = {}


class TaskResult(Part):
    """Verdict on one task."""

    measure: str
    level: float
    pairs: int
    best: str | None = None
    among_best: list[str] = Field(default=[], validation_alias="alike", serialization_alias="alike")
    contenders: list[CandidateResult] = []


class Crossover(Part):
    """Length beyond which ``cheaper`` costs less than ``dearer``, estimated between the measured lengths around it."""

    cheaper: str
    dearer: str
    length: float
    after: float
    until: float


class TableResult(Part):
    """A table of the report with raw values."""

    title: str
    columns: list[str]
    rows: list[list[JsonValue]]


class ComparisonResult(ResultFile):
    """``comparison.json``."""

    trials: dict[str, int] = {}  # number by status
    advice: list[str] = []
    notices: list[str] = []
    tasks: dict[str, TaskResult] = {}
    fronts: dict[str, dict[str, list[str]]] = {}  # Pareto front by task and cost
    crossovers: dict[str, list[Crossover]] = {}
    overhead: Overhead = Overhead()
    tables: dict[str, TableResult] = {}
