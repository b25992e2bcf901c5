"""The runner: starts the stages of all trials, as many at a time as there are slots, and goes on where it stopped."""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homespun.compare.checks import check
from homespun.compare.cost_plans import plan_variants
from homespun.compare.executor import Command, Executor, LocalExecutor, Outcome, Running, last_object
from homespun.compare.folder import Lock, Record, check_folder, open_folder, open_records
from homespun.compare.progress import seconds_left, share_of_trial
from homespun.compare.recipe import CompareRecipe
from homespun.compare.sharing import Baselines, Sharing
from homespun.compare.trials import Stage, trials
from homespun.errors import UserError
from homespun.report.console import Display, ProgressTask
from homespun.training.signals import Interruption

logger = logging.getLogger(__name__)

_POLL, _LOOK = 0.1, 5.0  # seconds between asking whether a process has ended; how far it is, and writing its time down
_REPORT_SHARE, _FIRST_REPORT = 0.01, 3.0  # of the time so far may go into reports on the way; seconds, until known
BENCHMARK = "benchmark"


def run_comparison(
    recipe: CompareRecipe,
    out: str | Path,
    *,
    max_parallel: int | None = None,
    retry_failed: bool = False,
    on_ray: bool = False,
    display: Display | None = None,
) -> dict[str, Any]:
    """Run the trials of ``recipe`` in the folder ``out``, and report on them.

    Before anything runs, every trial is built without its weights, and the data of its tasks is read. Each stage is
    then a process of its own, which ends when this one does; a trial whose process fails is a row that says why, and
    the others go on. Stopped in whatever way, the same call goes on: what is finished is not run again, and what was
    under way resumes from its checkpoint. Trials that would pretrain alike, to the setting and the seed, share one run.

    Args:
        recipe: see `homespun.compare.recipe.compare_recipe`.
        out: a new folder, or that of the same comparison.
        max_parallel: trials under way at a time, in place of the recipe's; threads are divided among them.
        retry_failed: run again what failed; it goes on from its checkpoint.
        on_ray: run the stages as tasks of Ray, on the cluster of ``RAY_ADDRESS`` or a local one.
        display: where progress is shown.

    Returns:
        ``trials`` and ``done`` (counts), ``failed`` (a list: name, seed, stage, why), ``notes``, ``overhead`` (share of
        the processor time of the trials that measuring and this function took), ``page`` (the report).

    Raises:
        UserError: trials that cannot be built, all at once; a folder of something else, or in which another runner is
            at work; the runner was stopped.
    """
    from homespun.compare.search import search_settings
    from homespun.report.comparison import write_comparison

    display = display or Display(json=True)
    if max_parallel is not None and max_parallel < 1:
        raise UserError(f"--max-parallel must be 1 or more, not {max_parallel}")
    out, started = Path(out), time.process_time()
    check_folder(out)
    requested = trials(recipe)
    notes = check(recipe, requested)
    planned, unfit = plan_variants(recipe, requested)
    notes += unfit
    for note in notes:
        logger.warning("%s", note)
    with Lock(out) as lock:
        open_folder(out, recipe)
        if on_ray:
            from homespun.compare.cluster import Cluster

            executor: Executor = Cluster(max_parallel)
        else:
            executor = LocalExecutor(max_parallel or recipe.max_parallel, inherit=lock.descriptors)
        if recipe.search is not None:
            bare = recipe.model_copy(update={"benchmark": None})
            tuner = Runner(out, bare, executor, display, report=_no_report, started=started)
            requested = trials(recipe, found=search_settings(recipe, tuner, retry_failed=retry_failed))
        runner = Runner(out, recipe, executor, display, notes, report=write_comparison, started=started)
        records = open_records(out, recipe, requested)
        for record in records:
            record.values["plan"] = planned.get(record.trial.name)
        runner.add(records, retry_failed=retry_failed)
        runner.run()
        return runner.close()


@dataclass
class Job:
    """A process of the comparison: a stage of a trial, its measurement, or the baselines of a task."""

    command: Command
    what: str
    record: Record | None = None
    stage: Stage | None = None
    running: Running | None = None
    started: float = 0.0
    counted: float = 0.0  # seconds of it that are in the record

    def count(self, seconds: float) -> None:
        """The record has so many seconds of the process."""
        assert self.record is not None
        more, self.counted = seconds - self.counted, seconds
        self.record.values["seconds"] += more
        if self.stage is not None:
            self.record.stage(self.stage.name)["seconds"] += more


class Runner:
    """The trials under way, and those that wait."""

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
        self._counted = started  # processor time of this process, up to which it is in a record
        self._reported, self._report_cost = time.monotonic(), _FIRST_REPORT
        self._unreported = False  # whether something has ended since the last report

    def add(self, records: Sequence[Record], *, retry_failed: bool = False) -> None:
        """More trials to run. One that would pretrain as another does is given that one's run."""
        self._records += records
        for record in records:
            record.values["notes"] = list(dict.fromkeys([*self.notes, *record.values["notes"]]))
            if record.status == "failed" and retry_failed:
                record.values |= {"status": "waiting", "why": None, "stage": None}
        self._sharing.add(records)
        self._baselines.add(records)
        for record in records:
            record.write()

    @property
    def slots(self) -> int:
        """Trials under way at a time."""
        return self._executor.slots

    def run(self, feed: Callable[[], bool] = lambda: False, *, total: int | None = None) -> None:
        """Until no trial waits.

        Args:
            feed: called between steps; may add trials, and says whether it waits for any.
            total: trials that there will be with those; None: as many as there are.

        Raises:
            UserError: Ctrl-C or SIGTERM; what was under way has written its checkpoint.
        """
        total = len(self._records) if total is None else total
        task = self._display.task(self.out.name, total=total, unit="trials")
        looked = 0.0
        try:
            with Interruption() as interruption:
                stopping = False
                while True:
                    more = not interruption.asked and feed()
                    if not self.step(idle=interruption.asked) and not more:
                        break
                    if interruption.asked and not stopping:
                        stopping = True
                        self._stop()
                    if time.monotonic() - looked > _LOOK:
                        looked = time.monotonic()
                        self._write_time()
                        self._show(task, total)
                    time.sleep(_POLL)
        finally:
            self._kill()
        self._show(task, total)
        if interruption.asked:
            raise UserError(
                f"stopped, with {self._counts()['done']} of {len(self._records)} trials done; give the same command "
                f"again to go on with {self.out}"
            )

    def step(self, *, idle: bool = False) -> bool:
        """Take what has ended, start what can be (nothing when ``idle``); False: there is nothing left to wait for."""
        ended = [(job, outcome) for job in self._jobs if job.running and (outcome := job.running.poll())]
        for job, outcome in ended:
            self._jobs.remove(job)
            self._take(job, outcome, stopped=idle)
        self._unreported |= bool(ended)
        if self._unreported and not idle:
            self._report_progress()
        while not idle and len(self._jobs) < self._executor.slots and (following := self._next()):
            following.running = self._executor.start(following.command)
            following.started = time.monotonic()
            self._jobs.append(following)
        return bool(self._jobs)

    def close(self) -> dict[str, Any]:
        """Write the report, and say what came of it all."""
        page = self._report()
        counts = self._counts()
        overhead = self._overhead()
        return {
            "kind": "compare",
            "out": str(self.out),
            "trials": len(self._records),
            "done": counts["done"],
            "failed": [
                {key: record.values[key] for key in ("name", "seed", "stage", "why")}
                for record in self._records
                if record.status == "failed"
            ],
            "notes": self.notes,
            "overhead": overhead,
            "page": str(page),
        }

    # what is next

    def _next(self) -> Job | None:
        """Trials under way come before those that wait; last what baselines are missing of those that are done."""
        busy = {id(job.record) for job in self._jobs}
        waiting = [r for r in self._records if r.status in ("waiting", "running") and id(r) not in busy]
        for record in sorted(waiting, key=lambda record: record.status != "running"):
            job = self._job_of(record)
            if job is not None:
                return job
        done = (record for record in self._records if record.status == "done")
        tasks = ((record, stage) for record in done for stage in record.trial.stages if stage.kind == "finetune")
        return next((job for found in tasks if (job := self._baselines_of(*found)) is not None), None)

    def _job_of(self, record: Record) -> Job | None:
        for stage in record.trial.stages:
            if record.is_finished(stage.name):
                continue
            if "shared_with" in record.stage(stage.name):
                if self._take_shared(record, stage):
                    continue
                return None
            if stage.kind == "finetune" and (baselines := self._baselines_of(record, stage)) is not None:
                return baselines
            if record.status != "running":
                record.update(status="running")
            return self._stage_job(record, stage)
        if self.recipe.benchmark is not None and record.values["inference"] is None:
            record.update(status="running")
            return self._measure_job(record)
        self._count_overhead(record)
        record.update(status="done", stage=None, why=None)
        return None

    def _take_shared(self, record: Record, stage: Stage) -> bool:
        """Whether the pretraining that another trial makes is there; where it failed, this one has failed too."""
        owner, known = self._sharing.owner(record), record.stage(stage.name)
        theirs = owner.stage(stage.name)
        if owner.is_finished(stage.name):
            known |= {key: theirs[key] for key in ("finished", "seconds")}
            record.values["seconds"] += theirs["seconds"]  # what the trial costs, whoever paid
            record.write()
            return True
        if owner.status == "failed":
            why = f"{owner.trial.subfolder}, whose pretraining it shares, failed: {owner.values['why']}"
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
        command = Command(tuple(arguments), record.folder / "logs" / f"{stage.name}.log")
        return Job(command, f"{record.trial.subfolder} {stage.name}", record, stage)

    def _measure_job(self, record: Record) -> Job:
        requested = self.recipe.benchmark
        assert requested is not None
        run = record.path_of(record.trial.stages[-1].name)
        arguments = [BENCHMARK, str(run), "--lengths", ",".join(map(str, requested.lengths))]
        arguments += ["--batch-size", str(requested.batch_size), "--json"]
        command = Command(tuple(arguments), record.folder / "logs" / f"{BENCHMARK}.log")
        return Job(command, f"{record.trial.subfolder} in use", record)

    def _baselines_of(self, record: Record, stage: Stage) -> Job | None:
        """The baselines of a task, when the first of its models is there; None: they are known, or being measured."""
        command = self._baselines.measure_command(record, stage)
        return None if command is None else Job(command, f"baselines of {command.log.stem}")

    # what has ended

    def _take(self, job: Job, outcome: Outcome, *, stopped: bool) -> None:
        record, stage = job.record, job.stage
        if record is None:
            if outcome.why is not None and not stopped:
                self.notes.append(f"{job.what} could not be measured: {outcome.why}")
                self._baselines.write_failure(job.command.log.stem, outcome.why)
            return
        job.count(outcome.seconds)
        if stage is None:
            self._take_measured(record, job, outcome, stopped=stopped)
            return
        known = record.stage(stage.name)
        known["processor_seconds"] += outcome.processor_seconds
        if outcome.why is None:
            known["finished"] = True
            record.write()
        elif stopped:
            record.update(status="waiting")
        else:
            self._count_overhead(record)
            record.update(status="failed", stage=stage.name, why=outcome.why)
            logger.warning("%s failed in %s: %s", record.trial.subfolder, stage.name, outcome.why)

    def _take_measured(self, record: Record, job: Job, outcome: Outcome, *, stopped: bool) -> None:
        record.values["overhead"]["processor_seconds"] += outcome.processor_seconds
        if outcome.why is None:
            record.values["inference"] = last_object(job.command.log)["inference"]
        elif not stopped:  # a trial is as good without; the next call does not try again
            record.values["inference"] = []
            record.values["notes"].append(f"could not be measured in use: {outcome.why}")
        record.write()

    def _count_overhead(self, record: Record) -> None:
        """What this process has spent since the last trial ended is of the trial at hand."""
        spent = time.process_time()
        record.values["overhead"]["processor_seconds"] += spent - self._counted
        self._counted = spent

    def _overhead(self) -> dict[str, float]:
        """Measuring and this process, against the trainings, in seconds of processor time."""
        extra = sum(record.values["overhead"]["processor_seconds"] for record in self._records)
        extra += time.process_time() - self._counted
        stages = [record.stage(stage.name) for record in self._records for stage in record.trial.stages]
        own = sum(stage["processor_seconds"] for stage in stages)
        return {"processor_seconds": extra, "trials_processor_seconds": own, "share": extra / own if own else 0.0}

    # stopping

    def _stop(self) -> None:
        for job in self._jobs:
            if job.running is not None:
                job.running.stop()

    def _write_time(self) -> None:
        """What the processes under way have taken so far, or a runner that is killed would lose it."""
        for job in self._jobs:
            if job.record is not None:
                job.count(time.monotonic() - job.started)
                job.record.write()

    def _kill(self) -> None:
        for job in self._jobs:
            if job.running is not None:
                job.running.kill()
            if job.record is not None:
                job.count(time.monotonic() - job.started)
                job.record.update(status="waiting")
        self._jobs = []

    # telling

    def _counts(self) -> Counter[str]:
        return Counter(record.status for record in self._records)

    def _show(self, task: ProgressTask, total: int) -> None:
        counts = self._counts()
        doing = ", ".join(job.what for job in self._jobs)
        left, without = seconds_left(self._records, slots=self.slots, to_come=max(0, total - len(self._records)))
        parts = [f"besides {', '.join(without)}, not timed yet" if without else "", f"{counts['done']} done"]
        parts += [f"{counts['failed']} failed" if counts["failed"] else "", doing]
        done = sum(map(share_of_trial, self._records))
        task.update(done, note="; ".join(part for part in parts if part), rate="", left=left)

    def _report_progress(self) -> None:
        """A report now and then, so that writing them stays cheap however many trials there are."""
        if self._report_cost > _REPORT_SHARE * (time.monotonic() - self._reported):
            return
        self._unreported = False
        try:
            self._report()
        except Exception:  # hours of training are worth more; the last report fails aloud
            self._reported = time.monotonic()
            logger.exception("the report could not be written; the trials go on")

    def _report(self) -> Path:
        started = time.monotonic()
        page = self._write_report(self.out)
        self._reported = time.monotonic()
        self._report_cost = self._reported - started
        return page


def _no_report(out: Path) -> Path:
    return out
