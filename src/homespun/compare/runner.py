"""Runner of a comparison: starts the stages of its trials in its slots."""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homespun.compare.executor import Command, Executor, Outcome, Running, last_object
from homespun.compare.folder import Record
from homespun.compare.progress import seconds_left, share_of_trial
from homespun.compare.recipe import CompareRecipe
from homespun.compare.sharing import Baselines, Sharing
from homespun.compare.trials import Stage
from homespun.comparison_results import InferenceCost
from homespun.errors import UserError, quantity
from homespun.report.console import Display, ProgressTask
from homespun.training.processes import Interruption

logger = logging.getLogger(__name__)

_POLL, _SHOW = 0.1, 5.0  # seconds between polls of the processes; between updates of progress and records
_REPORT_SHARE, _FIRST_REPORT = 0.01, 3.0  # share of time for interim reports; assumed seconds of the first report
BENCHMARK = "benchmark"


@dataclass
class Job:
    """Process for a stage of a trial (``record`` and ``stage``), its benchmark (``record``), or baselines (neither)."""

    command: Command
    what: str
    record: Record | None = None
    stage: Stage | None = None
    running: Running | None = None
    started: float = 0.0
    counted: float = 0.0  # seconds that are in the record

    def count(self, seconds: float) -> None:
        """Set the duration of the process in the record to ``seconds``."""
        if self.record is None:
            return
        more, self.counted = seconds - self.counted, seconds
        self.record.result.seconds = (self.record.result.seconds or 0.0) + more
        if self.stage is not None:
            known = self.record.stage(self.stage.name)
            known.seconds = (known.seconds or 0.0) + more


class Runner:
    """Scheduler of running and waiting trials.

    Args:
        out: folder of the comparison.
        notes: notes on the comparison, which are added to each trial.
        report: writes the report of a folder and returns its page.
        started: processor time of this process when the comparison started.
    """

    def __init__(
        self,
        out: Path,
        recipe: CompareRecipe,
        executor: Executor,
        display: Display,
        notes: Sequence[str] = (),
        *,
        report: Callable[[Path], Path],
        started: float,
    ) -> None:
        self.out = out
        self.recipe = recipe
        self.notes = list(notes)
        self._executor = executor
        self._display = display
        self._write_report = report
        self._records: list[Record] = []
        self._sharing = Sharing()
        self._jobs: list[Job] = []
        self._baselines = Baselines(out / "baselines")
        self._counted = started  # processor time of this process that is in a record
        self._reported, self._report_cost = time.monotonic(), _FIRST_REPORT
        self._unreported = False  # whether a process has ended since the last report

    def add(self, records: Sequence[Record], *, retry_failed: bool = False) -> None:
        """Add trials; trials with equal pretraining share one run."""
        self._records += records
        for record in records:
            record.result.notes = list(dict.fromkeys([*self.notes, *record.result.notes]))
            if record.status == "failed" and retry_failed:
                record.result.status, record.result.why, record.result.stage = "waiting", None, None
        self._sharing.add(records)
        self._baselines.add(records)
        for record in records:
            record.write()

    @property
    def slots(self) -> int:
        """Maximum number of parallel trials."""
        return self._executor.slots

    def run(self, feed: Callable[[], bool] = lambda: False, *, total: int | None = None) -> None:
        """Run until no trial waits.

        Args:
            feed: called between steps; may add trials, and returns whether more may come.
            total: number of trials including future ones; None: those added so far.

        Raises:
            UserError: Ctrl-C or SIGTERM; running stages have written their checkpoints.
        """
        total = len(self._records) if total is None else total
        task = self._display.task(self.out.name, total=total, unit="trials")
        shown = 0.0
        try:
            with Interruption() as interruption:
                stopping = False
                while True:
                    more = not interruption.requested and feed()
                    if not self.step(idle=interruption.requested) and not more:
                        break
                    if interruption.requested and not stopping:
                        stopping = True
                        for job in self._jobs:
                            if job.running is not None:
                                job.running.stop()
                    if time.monotonic() - shown > _SHOW:
                        shown = time.monotonic()
                        self._write_time()
                        self._show(task, total)
                    time.sleep(_POLL)
        finally:
            self._kill()
        self._show(task, total)
        if interruption.requested:
            raise UserError(
                f"stopped, with {self._counts()['done']} of {quantity(len(self._records), 'trial')} done; run the same "
                f"command again to resume {self.out}"
            )

    def step(self, *, idle: bool = False) -> bool:
        """Process ended jobs and fill free slots, unless ``idle``; False if no process runs."""
        ended = [(job, outcome) for job in self._jobs if job.running and (outcome := job.running.poll())]
        for job, outcome in ended:
            self._jobs.remove(job)
            self._take(job, outcome, stopped=idle)
        self._unreported |= bool(ended)
        if self._unreported and not idle:
            self._report_progress()
        while not idle and len(self._jobs) < self.slots and (job_to_start := self._next()):
            job_to_start.running = self._executor.start(job_to_start.command)
            job_to_start.started = time.monotonic()
            self._jobs.append(job_to_start)
        return bool(self._jobs)

    def close(self) -> dict[str, Any]:
        """Write the report and return the result of `homespun.compare.comparison.run_comparison`."""
        page = self._report()
        results = [record.result for record in self._records]
        extra = sum(result.overhead.processor_seconds for result in results) + time.process_time() - self._counted
        own = sum(stage.processor_seconds for result in results for stage in result.stages.values())
        failed = [result for result in results if result.status == "failed"]
        return {
            "kind": "compare",
            "out": str(self.out),
            "trials": len(self._records),
            "done": self._counts()["done"],
            "failed": [{key: getattr(result, key) for key in ("name", "seed", "stage", "why")} for result in failed],
            "notes": self.notes,
            "overhead": {
                "processor_seconds": extra,
                "trials_processor_seconds": own,
                "share": extra / own if own else 0.0,
            },
            "page": str(page),
        }

    # jobs to start

    def _next(self) -> Job | None:
        """Return the next job: of running trials, then of waiting trials, then missing baselines of finished trials."""
        busy = {id(job.record) for job in self._jobs}
        waiting = [r for r in self._records if r.status in ("waiting", "running") and id(r) not in busy]
        for record in sorted(waiting, key=lambda record: record.status != "running"):
            if (job := self._job_of(record)) is not None:
                return job
        done = (record for record in self._records if record.status == "done")
        tasks = ((record, stage) for record in done for stage in record.trial.stages if stage.kind == "finetune")
        return next((job for found in tasks if (job := self._baselines_job(*found)) is not None), None)

    def _job_of(self, record: Record) -> Job | None:
        for stage in record.trial.stages:
            if record.is_finished(stage.name):
                continue
            if record.stage(stage.name).shared_with is not None:
                if self._take_shared(record, stage):
                    continue
                return None
            if stage.kind == "finetune" and (baselines := self._baselines_job(record, stage)) is not None:
                return baselines
            if record.status != "running":
                record.update(status="running")
            return self._stage_job(record, stage)
        if self.recipe.benchmark is not None and record.result.inference is None:
            record.update(status="running")
            run = record.path_of(record.trial.stages[-1].name)
            arguments = [BENCHMARK, str(run), "--lengths", ",".join(map(str, self.recipe.benchmark.lengths))]
            arguments += ["--batch-size", str(self.recipe.benchmark.batch_size), "--json"]
            command = Command(tuple(arguments), record.folder / "logs" / f"{BENCHMARK}.log")
            return Job(command, f"{record.trial.subfolder} {BENCHMARK}", record)
        self._count_overhead(record)
        record.update(status="done", stage=None, why=None)
        return None

    def _take_shared(self, record: Record, stage: Stage) -> bool:
        """True if the shared pretraining is finished; if it failed, this trial fails too."""
        owner, known = self._sharing.owner(record), record.stage(stage.name)
        if owner.is_finished(stage.name):
            known.finished, known.seconds = True, owner.stage(stage.name).seconds
            # a trial costs its pretraining, whoever ran it
            record.update(seconds=(record.result.seconds or 0.0) + (known.seconds or 0.0))
            return True
        if owner.status == "failed":
            why = f"{owner.trial.subfolder}, whose pretraining it shares, failed: {owner.result.why}"
            record.update(status="failed", stage=stage.name, why=why)
        return False

    def _stage_job(self, record: Record, stage: Stage) -> Job:
        path = record.path_of(stage.name)
        if path.is_dir() and not (path / "config.yaml").is_file():
            shutil.rmtree(path)  # killed before it was a run
        start_from = stage.start_from
        if start_from is None and stage.kind == "finetune":
            start_from = str(record.path_of("pretrain"))
        arguments = [stage.kind, stage.recipe, *stage.settings, "--out", str(path), "--resume", "--json"]
        arguments += [] if start_from is None else ["--from", start_from]
        arguments += [] if stage.vectors is None else ["--vectors", stage.vectors]
        log, processes = record.folder / "logs" / f"{stage.name}.log", self.recipe.gpus_per_trial
        command = Command(tuple(arguments), log, processes=processes)
        return Job(command, f"{record.trial.subfolder} {stage.name}", record, stage)

    def _baselines_job(self, record: Record, stage: Stage) -> Job | None:
        command = self._baselines.measure_command(record, stage)
        return None if command is None else Job(command, f"baselines of {command.log.stem}")

    # jobs that have ended

    def _take(self, job: Job, outcome: Outcome, *, stopped: bool) -> None:
        job.count(outcome.seconds)
        record, stage, failed = job.record, job.stage, outcome.why is not None and not stopped
        if record is None:
            if failed:
                self.notes.append(f"{job.what} could not be measured: {outcome.why}")
                self._baselines.write_failure(job.command.log.stem, str(outcome.why))
        elif stage is None:
            record.result.overhead.processor_seconds += outcome.processor_seconds
            if outcome.why is None:
                measured = last_object(job.command.log)["inference"]
                record.result.inference = [InferenceCost.model_validate(cost) for cost in measured]
            elif failed:  # the trial is complete without it; the next call does not try again
                record.result.inference = []
                record.result.notes.append(f"{BENCHMARK} failed: {outcome.why}")
            record.write()
        else:
            record.stage(stage.name).processor_seconds += outcome.processor_seconds
            if outcome.why is None:
                record.stage(stage.name).finished = True
                record.write()
            elif stopped:
                record.update(status="waiting")
            else:
                self._count_overhead(record)
                record.update(status="failed", stage=stage.name, why=outcome.why)
                logger.warning("%s failed in %s: %s", record.trial.subfolder, stage.name, outcome.why)

    def _count_overhead(self, record: Record) -> None:
        """Add the time of this process since the last trial ended to ``record``."""
        spent = time.process_time()
        record.result.overhead.processor_seconds += spent - self._counted
        self._counted = spent

    def _write_time(self) -> None:
        """Write the seconds of running processes, which would be lost if the runner is killed."""
        for job in self._jobs:
            if job.record is not None:
                job.count(time.monotonic() - job.started)
                job.record.write()

    def _kill(self) -> None:
        for job in self._jobs:
            if job.running is not None:
                job.running.kill()
            job.count(time.monotonic() - job.started)
            if job.record is not None:
                job.record.update(status="waiting")
        self._jobs = []

    # progress

    def _counts(self) -> Counter[str]:
        return Counter(record.status for record in self._records)

    def _show(self, task: ProgressTask, total: int) -> None:
        counts = self._counts()
        left, without = seconds_left(self._records, slots=self.slots, to_come=max(0, total - len(self._records)))
        parts = [f"without {', '.join(without)}, not timed yet" if without else "", f"{counts['done']} done"]
        parts += [f"{counts['failed']} failed" if counts["failed"] else "", ", ".join(job.what for job in self._jobs)]
        done = sum(map(share_of_trial, self._records))
        task.update(done, note="; ".join(part for part in parts if part), rate="", left=left)

    def _report_progress(self) -> None:
        """Write an interim report, unless reports have exceeded their share of the time."""
        if self._report_cost > _REPORT_SHARE * (time.monotonic() - self._reported):
            return
        self._unreported = False
        try:
            self._report()
        except Exception:  # hours of training are worth more; an error of the last report is raised
            self._reported = time.monotonic()
            logger.exception("the report could not be written; the trials go on")

    def _report(self) -> Path:
        started = time.monotonic()
        page = self._write_report(self.out)
        self._reported = time.monotonic()
        self._report_cost = self._reported - started
        return page
