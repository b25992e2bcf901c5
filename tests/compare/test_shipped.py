"""Every comparison that is shipped or measured: its stages are recipes; what they train from nothing can be built."""

import re
from pathlib import Path

import pytest
import torch

from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe, load_recipe
from homespun.compare.recipe import compare_recipe
from homespun.compare.trials import trials
from homespun.recipes import comparison_names, split_overrides

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "comparisons"
EVERY = [*comparison_names(), *map(str, sorted(MEASURED.glob("*.yaml")))]


@pytest.mark.parametrize("name", EVERY, ids=lambda name: Path(name).stem)
def test_a_comparison_is_made_of_recipes(name: str) -> None:
    every = [trial for trial in trials(compare_recipe(name)) if trial.seed == 0]
    assert len(every) >= 2
    for trial in every:
        for stage in trial.stages:
            settings, changes = list(stage.settings), {}
            if stage.kind == "pretrain" and stage.start_from is not None:
                settings, changes = split_overrides(settings, has_checkpoint=True)
            recipe = load_recipe(stage.recipe, settings)
            assert recipe.kind == stage.kind
            if isinstance(recipe, PretrainRecipe) and stage.start_from is None:
                backbone = recipe.model.with_tokens(1009, 0)
                with torch.device("meta"):
                    assert backbone.build().hidden_size > 0
            elif stage.kind == "pretrain":
                assert set(changes) <= {"attention"}


def test_data_that_is_named_is_on_the_hub() -> None:
    named = set()
    for name in comparison_names():
        for stage in (stage for trial in trials(compare_recipe(name)) if trial.seed == 0 for stage in trial.stages):
            recipe = load_recipe(stage.recipe, stage.settings)
            if isinstance(recipe, FinetuneRecipe):
                named |= {recipe.data.train, recipe.data.test} - {""}  # files are the user's to give
    assert "fancyzhx/ag_news:test" in named
    assert not [name for name in named if not re.fullmatch(r"[\w.-]+/[\w.-]+(:\w+)?", name)]
