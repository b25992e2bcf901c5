"""Verdicts on the claims of the five sources, from the comparisons of `benchmarks.sources`.

Each claim of ``claims.yaml`` names the tests that decide it. A claim holds if all of its tests do:

- ``lower`` and ``higher``: the difference is significant, after Holm's correction for all pairs that claims name for a
  comparison and measure (planned comparisons), including those that have not been run; a pair that is judged again
  after more trainings counts once for each of its ``looks``. The claim does not hold if the order is the opposite one,
  or if the difference and what the comparison could have detected are together not larger than ``relevant``.
- ``within``: the difference and what the comparison could have detected are together not larger.
- ``at_most``: the same of the part by which ``higher`` is above ``lower``, so that the opposite order holds too.
- ``less_than_in``: `higher` is above `lower` by less than in this task, by the differences of the seeds.
- ``at_least``: the mean over seeds is above it, beyond its 95 % interval over seeds and test examples.

What is neither way cannot be decided. Verdicts are kept in ``--store``, so that comparisons may be run on several
machines, and ``--page`` is written from them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from benchmarks.paths import RESULTS
from homespun.comparison_results import SignificanceTest
from homespun.config import Config, read_yaml
from homespun.io.atomic import write_text
from homespun.report import formats
from homespun.report.comparison_quality import TaskComparison, compare_seeds, evaluate
from homespun.report.comparison_records import Comparison, Variant, is_comparison, read_comparison
from homespun.report.significance import LEVEL, wilson_interval

CLAIMS = Path(__file__).with_name("claims.yaml")
STORE, PAGE = RESULTS / "sources.json", RESULTS / "sources.md"
Verdict = Literal["holds", "does not hold", "cannot be decided"]


class Recorded(Config):
    """Verdict from a page of ``results``, for claims without a comparison."""

    verdict: Verdict
    page: str
    evidence: str


class ClaimTest(Config):
    """Test of a claim."""

    experiment: str = Field(description="folder of the comparison")
    of: str = Field(description="a task, loss (held-out, of pretraining), or STAGE.COST")
    lower: str = Field(default="", description="variation that has the lower value")
    higher: str = ""
    within: float | None = Field(default=None, description="the two do not differ by more")
    at_most: float | None = Field(default=None, description="`higher` is not above `lower` by more")
    less_than_in: str = Field(default="", description="task in which `higher` is above `lower` by more than in `of`")
    relevant: float | None = Field(default=None, description="half of the difference that the source reports")
    looks: int = Field(default=1, ge=1, description="times it was judged, with seeds added between or all run again")
    model: str = Field(default="", description="variation that has at least `at_least`")
    at_least: float | None = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> ClaimTest:
        if not (self.at_least is None) == (not self.model) == bool(self.lower and self.higher):
            raise ValueError("give lower and higher, or model and at_least")
        if None not in (self.within, self.at_most):
            raise ValueError("give within or at_most")
        if self.less_than_in and (self.model or self.within is not None or self.at_most is not None):
            raise ValueError("give less_than_in with lower and higher alone")
        return self


class Claim(Config):
    """Claim of a source."""

    source: str
    where: str
    claim: str
    tests: list[ClaimTest] = Field(default=[])
    recorded: Recorded | None = None


class Found(Config):
    """Verdict on a claim, with the evidence of each test."""

    verdict: Verdict
    evidence: list[str]


def run(arguments: list[str]) -> dict[str, Any]:
    """Judge the claims whose comparisons are below ``--out``, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks claims", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/sources"), help="of `python -m benchmarks sources`")
    parser.add_argument("--store", type=Path, default=STORE, help="JSON file of the verdicts")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    claims = read_claims()
    found = read_verdicts(options.store)
    experiments = Experiments(options.out, claims.values())
    for name, claim in claims.items():
        if (verdict := judge(claim, experiments)) is not None:
            found[name] = verdict
    stored = {name: found[name].model_dump() for name in claims if name in found}
    write_text(options.store, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    write_text(options.page, page(claims, found))
    counts = Counter(found[name].verdict if name in found else "not run" for name in claims)
    return {"claims": len(claims), "verdicts": dict(counts)}


def read_claims() -> dict[str, Claim]:
    """Read the claims by name."""
    return TypeAdapter(dict[str, Claim]).validate_python(read_yaml(CLAIMS))


def read_verdicts(store: Path) -> dict[str, Found]:
    """Read verdicts by the name of the claim; none without the file."""
    text = store.read_text(encoding="utf-8") if store.is_file() else "{}"
    return TypeAdapter(dict[str, Found]).validate_json(text)


class Experiments:
    """The comparisons below ``out``, with the pairs of variations that ``claims`` name."""

    def __init__(self, out: Path, claims: Iterable[Claim]) -> None:
        self._out = out
        self._planned: dict[str, dict[str, set[frozenset[str]]]] = {}  # by comparison, then by what is measured
        for test in (t for claim in claims for t in claim.tests if not t.model and not t.less_than_in):
            measured = self._planned.setdefault(test.experiment, {}).setdefault(test.of, set())
            measured.add(frozenset((test.lower, test.higher)))
            measured |= {frozenset((test.lower, test.higher, f"look {look}")) for look in range(1, test.looks)}
        self._tasks: dict[str, dict[str, TaskComparison]] = {}

    def tasks(self, name: str) -> dict[str, TaskComparison]:
        """Evaluate the tasks of a comparison, once for all of its claims."""
        if name not in self._tasks:
            found = evaluate(read_comparison(self._out / name), self._planned.get(name, {}))
            self._tasks[name] = {task.name: task for task in found}
        return self._tasks[name]

    def pairs(self, test: ClaimTest) -> set[frozenset[str]]:
        """Return the pairs for which the p-value of a test is corrected."""
        return self._planned.get(test.experiment, {}).get(test.of, set())

    def comparison(self, name: str) -> Comparison | None:
        """Read a comparison; None if it has not been run."""
        return read_comparison(self._out / name) if is_comparison(self._out / name) else None


def judge(claim: Claim, experiments: Experiments) -> Found | None:
    """Judge a claim by its tests, else by a page; None if a test has not been run and no page decides it."""
    judged = [one for test in claim.tests if (one := _judge(test, experiments)) is not None]
    verdicts = {verdict for verdict, _ in judged}
    if judged and (len(judged) == len(claim.tests) or "does not hold" in verdicts):
        worst: Verdict = next(v for v in ("does not hold", "cannot be decided", "holds") if v in verdicts)
        return Found(verdict=worst, evidence=[evidence for _, evidence in judged])
    if claim.recorded is None:
        return None
    evidence = f"{claim.recorded.evidence} ([{claim.recorded.page}]({claim.recorded.page}))"
    return Found(verdict=claim.recorded.verdict, evidence=[evidence])


def _judge(test: ClaimTest, experiments: Experiments) -> tuple[Verdict, str] | None:
    """Return verdict and evidence of a test.

    None unless every trial of its variations is done, with two seeds or more.
    """
    comparison = experiments.comparison(test.experiment)
    if comparison is None:
        return None
    named = [v for v in comparison.variants if v.name in (test.lower, test.higher, test.model)]
    if len(named) < (1 if test.model else 2) or any(len(v.done) < max(2, len(v.trials)) for v in named):
        return None
    if test.less_than_in:
        return interaction(test, experiments.tasks(test.experiment))
    if test.of in comparison.tasks:
        measured = _task(experiments.tasks(test.experiment)[test.of])
    else:
        measured = _pretraining(comparison, test.of, experiments.pairs(test))
    if not {v.name for v in named} <= {name for name, values in measured.values.items() if values}:
        return None
    return measured.threshold(test) if test.model else measured.difference(test)


@dataclass(frozen=True)
class _Measured:
    """Number of each training by variation, and the tests of planned pairs, the lower mean first."""

    values: Mapping[str, Sequence[float]]
    tests: Mapping[tuple[str, str], SignificanceTest]
    relevant: float
    write: Callable[[float, float | None], str]  # of a mean and its deviation
    write_gap: Callable[[float], str]
    rows: float | None = None  # test examples of a share

    def difference(self, test: ClaimTest) -> tuple[Verdict, str]:
        in_order = (test.lower, test.higher) in self.tests
        pair = self.tests[(test.lower, test.higher) if in_order else (test.higher, test.lower)]
        assert pair.gap is not None and pair.adjusted is not None and pair.detectable is not None  # noqa: PT018
        significant = pair.adjusted <= LEVEL
        bound = test.within if test.at_most is None else test.at_most
        if bound is not None:
            gap = pair.gap if in_order or test.at_most is None else -pair.gap
            holds, refuted = gap + pair.detectable <= bound, significant and gap > bound
        else:
            relevant = self.relevant if test.relevant is None else test.relevant
            gap = pair.gap if in_order else -pair.gap
            holds, refuted = significant and in_order, significant or gap + pair.detectable <= relevant
        lower, higher = (self.write(*_spread(self.values[name])) for name in (test.lower, test.higher))
        p = formats.probability(pair.adjusted)
        found = f"{test.lower} {lower}, {test.higher} {higher} (p {p}, detectable {self.write_gap(pair.detectable)})"
        return _verdict(holds=holds, refuted=refuted), found

    def threshold(self, test: ClaimTest) -> tuple[Verdict, str]:
        from scipy.stats import t

        least, values = test.at_least, self.values[test.model]
        assert least is not None
        mean, deviation = _spread(values)
        half = float(t.isf(LEVEL / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
        low, high = mean - half, mean + half
        if self.rows:
            of_rows = wilson_interval(mean, self.rows)
            low, high = min(low, of_rows[0]), max(high, of_rows[1])
        interval = f"{self.write(low, None)} to {self.write(high, None)}"
        found = f"{test.model} {self.write(mean, deviation)} (95 % interval {interval})"
        return _verdict(holds=low >= least, refuted=high < least), found


def _verdict(*, holds: bool, refuted: bool) -> Verdict:
    return "holds" if holds else "does not hold" if refuted else "cannot be decided"


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values)


def _task(task: TaskComparison) -> _Measured:
    tests = {(lower, higher): test.swapped() for (higher, lower), test in task.between.items()}
    models = {c.name: c.values for c in task.candidates if c.kind == "model"}
    rows = next((c.examples for c in task.candidates if c.examples), None)

    def write(mean: float, deviation: float | None) -> str:
        return formats.spread((mean, deviation))

    return _Measured(models, tests, 0.01, write, lambda gap: f"{100 * gap:.1f} points", rows)


def interaction(test: ClaimTest, tasks: Mapping[str, TaskComparison]) -> tuple[Verdict, str] | None:
    """Compare the differences of two variations in two tasks, seed by seed."""
    gaps = {}
    for name in (test.of, test.less_than_in):
        values = _task(tasks[name]).values if name in tasks else {}
        pairs = zip(values.get(test.higher, ()), values.get(test.lower, ()), strict=True)
        gaps[f"{test.higher} - {test.lower} in {name}"] = [higher - lower for higher, lower in pairs]
    if not all(gaps.values()):
        return None
    less, more = gaps
    write_gap = lambda gap: f"{100 * gap:.1f} points"  # noqa: E731
    write = lambda mean, deviation: f"{100 * mean:.1f} ± {write_gap(deviation or 0)}"  # noqa: E731
    measured = _Measured(gaps, compare_seeds(gaps), 0.01, write, write_gap)
    return measured.difference(
        ClaimTest(experiment=test.experiment, of=test.of, lower=less, higher=more, relevant=test.relevant)
    )


def _pretraining(comparison: Comparison, of: str, pairs: set[frozenset[str]]) -> _Measured:
    """Return held-out losses, or a cost of a stage, whose tests are of logarithms, so that gaps are shares."""
    if of == "loss":
        losses = {v.name: v.validation_losses() for v in comparison.variants}
        write_loss = lambda mean, deviation: f"{formats.loss_spread((mean, deviation))} nats"  # noqa: E731
        return _Measured(
            losses, compare_seeds(losses, pairs), 0.03, write_loss, lambda gap: f"{formats.loss(gap)} nats"
        )
    stage, _, cost = of.partition(".")
    costs = {v.name: _costs(v, stage, cost) for v in comparison.variants}
    logarithms = {name: [math.log(value) for value in values] for name, values in costs.items()}
    write = formats.memory if cost.endswith("_bytes") else lambda value: f"{formats.step_seconds(value)} s"
    return _Measured(costs, compare_seeds(logarithms, pairs), 0.05, lambda mean, _: write(mean), formats.percent)


def _costs(variant: Variant, stage: str, cost: str) -> list[float]:
    return [value for record in variant.records(stage) if (value := record.summary.get(cost)) is not None]


def page(claims: Mapping[str, Claim], found: Mapping[str, Found]) -> str:
    """Build the page in Markdown."""
    counts = Counter(found[name].verdict for name in claims if name in found)
    lines = [
        _BEFORE.format(
            claims=len(claims),
            decided=counts["holds"] + counts["does not hold"],
            holds=counts["holds"],
            refuted=counts["does not hold"],
            undecided=counts["cannot be decided"],
        )
    ]
    for source in dict.fromkeys(claim.source for claim in claims.values()):
        lines += [
            "",
            f"## {source}",
            "",
            "| claim | where | experiment | verdict | evidence |",
            "|---|---|---|---|---|",
        ]
        for name, claim in claims.items():
            if claim.source == source:
                experiments = ", ".join(dict.fromkeys(f"`{test.experiment}`" for test in claim.tests))
                verdict, evidence = (found[name].verdict, found[name].evidence) if name in found else ("", [])
                cells = (claim.claim, claim.where, experiments, verdict, "; ".join(evidence))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_BEFORE = """# The claims of the five sources

Made by `python -m benchmarks claims` from `benchmarks/claims.yaml` and the comparisons of `python -m benchmarks
sources EXPERIMENT`. Of {claims} claims {decided} are decided: {holds} hold, {refuted} do not. {undecided} were tested
and cannot be decided; the others have not been run. A verdict is for the scale of its experiment (minutes of one core,
small models), not for the one of the source.

p: paired permutation test on the test rows and Student's t over seeds, the larger of the two, corrected by Holm for the
pairs that the claims name, each as often as it was judged (before 2026-11-30: for all pairs of the comparison, see
[sources-runs.md](sources-runs.md)); of losses and costs over seeds alone. Detectable: the true difference that such a
comparison finds with a probability of 80 %. A claim of a difference does not hold if the order is the opposite one, or
if the difference and the detectable one are together at most 1 point of accuracy, 0.03 nats or 5 % of time or memory,
or, in verdicts since 2026-11-30, half of the difference of accuracies that the source reports, or the least of several
differences."""
