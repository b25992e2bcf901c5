"""Comparison: checks, search and trials in one folder, resumed after an interruption."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from homespun.compare.checks import check, plan_variants
from homespun.compare.executor import Executor, LocalExecutor
from homespun.compare.folder import check_folder, open_folder, open_records
from homespun.compare.recipe import CompareRecipe
from homespun.compare.runner import Runner
from homespun.compare.search import search_settings
from homespun.compare.store import Store
from homespun.compare.trials import trials
from homespun.errors import UserError
from homespun.io.atomic import entries
from homespun.io.lock import locked
from homespun.report.console import SILENT, Display

logger = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds to wait for the processes of a killed runner, which end within one


def run_comparison(
    recipe: CompareRecipe,
    out: str | Path,
    *,
    max_parallel: int | None = None,
    retry_failed: bool = False,
    on_ray: bool = False,
    store: str | None = None,
    display: Display = SILENT,
) -> dict[str, Any]:
    """Run the trials of ``recipe`` in the folder ``out``, and write the report.

    Before the first trial, all trials are built without weights and the data of the tasks is read. Each stage of a
    trial runs in a separate process. If a trial fails, the report gives the reason and the others continue. The same
    call resumes a stopped comparison: finished stages are kept, others resume from their checkpoints. Trials with the
    same pretraining settings and seed share one pretraining run.

    Args:
        recipe: from `homespun.compare.recipe.compare_recipe`.
        out: a new folder, or the folder of the same comparison.
        max_parallel: number of parallel trials, which share the threads; default: the recipe's.
        retry_failed: run failed trials again, from their checkpoints.
        on_ray: run the stages as tasks of Ray, on the cluster of ``RAY_ADDRESS`` or a local one.
        store: with ``on_ray``, the URL of a folder of an object store for the runs, if machines do not share ``out``. A
            missing ``out`` is restored from it.
        display: shows progress.

    Returns:
        ``trials`` and ``done`` (counts), ``failed`` (a list of name, seed, stage, why), ``notes``, ``overhead`` (share
        of the trials' processor time that benchmarks and this function took), ``page`` (the report).

    Example:
        ``run_comparison(compare_recipe("compare.yaml", ["seeds=5"]), "runs/which")["page"]``

    Raises:
        UserError: trials that cannot be built; a folder with other content, or with another runner; a store that cannot
            be used; the runner was stopped.
    """
    from homespun.report.comparison import write_comparison

    if max_parallel is not None and max_parallel < 1:
        raise UserError(f"--max-parallel must be 1 or more, not {max_parallel}")
    out, started = Path(out), time.process_time()
    check_folder(out)
    stored = None
    if store is not None:
        if not on_ray:
            raise UserError(f"--store {store} is for workers of a Ray cluster; add --ray, or leave out --store")
        out = Path(os.path.abspath(out))  # workers find its paths in the arguments of commands
        stored = Store(store, out)
        stored.sizes()  # before the checks, which take longer
    requested = trials(recipe)
    notes = check(recipe, requested)
    plans, unfit = plan_variants(recipe, requested)
    notes += unfit
    for note in notes:
        logger.warning("%s", note)
    with locked(out, patience=_PATIENCE) as descriptors, ExitStack() as ending:
        if stored is not None and not entries(out):
            stored.restore_comparison()
        open_folder(out, recipe)
        if on_ray:
            from homespun.compare.cluster import Cluster

            executor: Executor = (cluster := Cluster(max_parallel, gpus=recipe.gpus_per_trial, store=stored))
            ending.callback(cluster.publish_records)
        else:
            slots = max_parallel or recipe.max_parallel
            executor = LocalExecutor(slots, gpus=recipe.gpus_per_trial, inherit=descriptors)
        if recipe.search is not None:
            bare = recipe.model_copy(update={"benchmark": None})
            searching = Runner(out, bare, executor, display, report=lambda folder: folder, started=started)
            requested = trials(recipe, found=search_settings(recipe, searching, retry_failed=retry_failed))
        runner = Runner(out, recipe, executor, display, notes, report=write_comparison, started=started)
        records = open_records(out, recipe, requested)
        for record in records:
            record.result.plan = plans.get(record.trial.name)
        runner.add(records, retry_failed=retry_failed)
        runner.run()
        return runner.close()
