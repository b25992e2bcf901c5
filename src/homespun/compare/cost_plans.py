"""What the planner makes of a memory limit, for every variation, before one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homespun.commands.adaptation import split_overrides
from homespun.commands.recipe import load_recipe
from homespun.compare.recipe import CompareRecipe
from homespun.compare.trials import Trial, first_trials
from homespun.errors import UserError
from homespun.planning.predict import NothingFits


def plan_variants(recipe: CompareRecipe, trials: Sequence[Trial]) -> tuple[dict[str, Any], list[str]]:
    """By variation, the plan of the stage that the budget is of; and a note for each that does not fit.

    Only a limit on memory is planned for: how large micro-batches may be. A variation that does not fit into it fails
    when it runs, and is a row that says why.

    Raises:
        UserError: none fits; each with the least memory that it would fit into. Or one cannot be planned at all.
    """
    found: dict[str, Any] = {}
    refused: dict[str, str] = {}
    if recipe.budget is None or recipe.budget.memory is None:
        return {}, []
    from homespun.commands.plan import plan

    for trial in first_trials(trials):
        stage = trial.stages[0]
        try:
            settings, changes = (stage.settings, None) if stage.start_from is None else split_overrides(stage.settings)
            found[trial.name] = plan(load_recipe(stage.recipe, settings), start_from=stage.start_from, changes=changes)
        except NothingFits as error:
            refused[trial.name] = str(error)
        except UserError as error:
            raise UserError(f"variation {trial.name}: {error}") from error
    if refused and not found:
        listed = " ".join(f"({n}) {name}: {why}" for n, (name, why) in enumerate(refused.items(), start=1))
        raise UserError(f"no variation fits into the budget's memory, so nothing was begun: {listed}")
    return found, [f"{name} does not fit into the budget: {why}" for name, why in refused.items()]
