"""Names of the tasks of a fit. They import nothing, so that options are checked before torch is imported."""

from __future__ import annotations

from typing import Literal, get_args

TextTaskName = Literal["auto", "classification", "multi-label", "regression"]
RunTaskName = Literal["language-model", "token-classification", "text-to-text"]
TaskName = TextTaskName | RunTaskName
TASKS: tuple[TaskName, ...] = (*get_args(TextTaskName), *get_args(RunTaskName))
"""Tasks of a fit; `homespun.fitting.runs` has those whose candidates are runs."""
