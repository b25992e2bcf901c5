"""Fit: train and select a model on files within a time limit.

torch is imported when the files have been read, so that errors in them are printed at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from homespun.choices import TaskName, TextTaskName
from homespun.config import Tree, validate
from homespun.errors import UserError
from homespun.fitting.card import write_card
from homespun.fitting.inspection import Inspection, inspect
from homespun.fitting.page import write_page
from homespun.fitting.results import RESULT, SETTINGS, FitSettings, check_folder, open_folder, summarise, write_results
from homespun.fitting.run_tasks import find_run_task
from homespun.io.json import read_object
from homespun.report.console import SILENT, Display
from homespun.tasks.protocol import paths
from homespun.text.input_files import check_output, find_parts

Inputs = str | Path | Sequence[str | Path]
"""One input or several."""


def fit(
    train: Inputs,
    out: str | Path,
    *,
    test: Inputs = (),
    texts: Inputs = (),
    start_from: Inputs = (),
    seconds: float = 1800.0,
    memory: int | None = None,
    task: TaskName = "auto",
    text: Sequence[str] = (),
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    seed: int = 0,
    latency: float | None = None,
    resume: bool = False,
    display: Display = SILENT,
) -> Tree:
    """Train several models on labelled files or texts within a time limit, and select the best.

    The candidates for classification and regression are a linear model, networks if the time allows, and the average
    of both. For tags they are a linear tagger and networks, for pairs of source and target an extractive summarizer and
    networks, for unlabelled texts networks. Validation examples select the model; test examples are used once, for the
    result.

    Args:
        train: a labelled file, glob or folder, or several.
        out: a new folder; with ``resume`` the folder of a stopped fit.
        test: labelled test file or files; default: a fifth of ``train``, at most 10,000 examples (tags: 2,000, text to
            text: 500).
        texts: unlabelled text file or files for pretraining.
        start_from: pretrained model or models: runs, folders or hub names.
        seconds: time limit of the fit.
        memory: memory limit of each training, in bytes.
        task: ``auto``, ``classification``, ``multi-label``, ``regression``, ``token-classification``, ``text-to-text``
            or ``language-model``.
        text: columns of the text; detected by default.
        label: column of the label, or several columns of 0 and 1, one for each label; detected by default.
        columns: column names of a csv without a header.
        encoding: character encoding of the files; detected by default.
        seed: seed of splits and trainings.
        latency: maximum milliseconds to predict one text on this machine; slower networks are distilled into a smaller
            one.
        resume: continue the fit in ``out``; finished candidates are kept.
        display: shows decisions and progress.

    Returns:
        The content of ``result.json``.

    Example:
        ``fit("train.csv", "runs/mine", test="test.csv", seconds=1800)["test"]["accuracy"]``

    Raises:
        UserError: an argument is invalid, a file or column cannot be used, ``out`` has other content, or a checkpoint
            cannot be opened.
        Interrupted: Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = Path(out)
    train, test, texts, start_from = map(paths, (train, test, texts, start_from))
    if not seconds > 0:
        raise UserError(f"seconds={seconds:g} must be positive; set --time, such as 30m")
    if latency is not None and not latency > 0:
        raise UserError(f"latency={latency:g} must be positive; set --latency to milliseconds a text, such as 20")
    given = {
        "train": train,
        "test": test,
        "texts": texts,
        "start_from": start_from,
        "seconds": seconds,
        "memory": memory,
        "task": task,
        "text": text,
        "label": label,
        "columns": columns,
        "encoding": encoding,
        "seed": seed,
        "latency": latency,
    }
    settings = validate(FitSettings, given, source="fit")
    if resume and (folder / RESULT).is_file() and settings.is_stored(folder / SETTINGS):
        return read_object(folder / RESULT)
    check_folder(folder, settings, resume=resume)
    check_output(folder, (*train, *test, *texts))
    if task != "language-model" and (parts := next(filter(None, map(find_parts, train)), None)):
        raise UserError(f"{', '.join(train)} has training and test files; give {parts[0]} --test {parts[1]}")
    start = time.monotonic()
    if (run_task := find_run_task(settings)) is not None:
        from homespun.fitting.runs import fit_runs

        with _resumable(folder):
            return fit_runs(run_task, folder, settings, resume=resume, display=display, start=start)
    kind = cast(TextTaskName, task)  # the other tasks have returned
    inspection = inspect(
        train,
        test,
        text=text,
        label=settings.label,
        columns=columns,
        encoding=encoding,
        task=kind,
        seed=seed,
        display=display,
    )
    with _resumable(folder):
        return fit_examples(inspection, folder, settings, resume=resume, display=display, start=start)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Raise `Interrupted` with the way to continue, and the finished candidates, if the block is interrupted."""
    from homespun.training.trainer import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        if not (folder / SETTINGS).is_file():
            raise
        finished = [str(path.parent) for path in sorted(folder.glob("candidates/*/model"))]
        usable = f"; finished candidates, for predict: {', '.join(finished)}" if finished else ""
        raise Interrupted(f"stopped; continue with the same command and --resume{usable}") from error


def fit_examples(
    inspection: Inspection,
    folder: Path,
    settings: FitSettings,
    *,
    resume: bool = False,
    display: Display = SILENT,
    start: float | None = None,
) -> Tree:
    """Train and select a model on examples in memory; see `fit`.

    Of ``settings``, time, texts and pretrained models are used; with ``resume`` they must be those of the stopped fit
    in ``folder``. The time starts at ``start``, by `time.monotonic`; now by default.
    """
    from homespun.commands.trials import write_run_predictions
    from homespun.fitting.ladder import Ladder
    from homespun.fitting.networks import open_source

    start = time.monotonic() if start is None else start
    sources = [open_source(path, inspection) for path in settings.start_from]
    open_folder(folder, settings, inspection.train, inspection.validation, inspection.test, resume=resume)
    for line in inspection.decisions:
        display.line(line)
    for line in inspection.warnings:
        display.line(f"warning: {line}")
    ladder = Ladder(inspection, folder, settings, sources, display, start)
    ladder.climb()
    final = ladder.final()
    result, predictions = summarise(
        inspection, ladder.candidates, final, settings, ladder.skipped, start, plan=ladder.plan
    )
    for name, found in predictions.items():
        write_run_predictions(folder, name, inspection.measured_rows, found)
    write_page(result, folder)
    assert final.model is not None
    write_card(result, folder, final.model)
    write_results(folder, result)
    return result
