"""Recipes: complete settings of a training. Shipped ones are the YAML files in `homespun.recipes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from homespun.config import Config, Tree, json_schema, override, read_yaml, validate
from homespun.errors import UserError, nearest
from homespun.migration import RENAMED_RECIPES
from homespun.models.config import FAMILIES, AutoSizeConfig, BackboneConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig, default_kind
from homespun.models.presets import PRESETS, family_of
from homespun.models.recurrent import RecurrentConfig
from homespun.objectives.config import PretrainingObjective
from homespun.objectives.tbptt import StatefulCausalLM
from homespun.tasks.calibration import Calibration
from homespun.tasks.classification import Classification
from homespun.tasks.config import FinetuneData, FinetuneObjective
from homespun.tasks.texts import LabelledData
from homespun.training.config import TrainConfig


class CorpusData(Config):
    """Corpus and rows of a pretraining."""

    corpus: str = Field(default="", description="folder made by `homespun corpus build`")
    max_length: int = Field(default=128, ge=8, description="tokens in a row, special tokens included")
    validation: float = Field(default=0.02, gt=0, lt=0.5, description="share of the documents held out")
    split_seed: int = Field(
        default=0, ge=0, description="seed of the held-out documents and of their masks, independent of train.seed"
    )
    validation_rows: int = Field(default=512, ge=1, description="maximum number of held-out rows per validation")


def _kind_of_model(tree: object) -> object:
    if isinstance(tree, dict):
        size = tree.get("size")
        if size == "auto" or (size is None and tree.get("preset") in FAMILIES):
            return {"kind": "auto_size"} | tree
    return default_kind(tree)


RecipeModel = Annotated[
    EncoderConfig | EncoderDecoderConfig | RecurrentConfig | AutoSizeConfig,
    Field(discriminator="kind"),
    BeforeValidator(_kind_of_model),
]


class PretrainRecipe(Config):
    """Pretraining: a corpus, a model, an objective, a training plan."""

    kind: Literal["pretrain"] = "pretrain"
    description: str = Field(default="", description="purpose, in one line")
    data: CorpusData = CorpusData()
    model: RecipeModel
    embeddings: Literal["random", "cooccurrence"] = Field(
        default="random",
        description="how word embeddings start without --from and --vectors; cooccurrence: from counts over the "
        "corpus, which takes seconds and saves tokens (`homespun.vectors.spectral`)",
    )
    objective: PretrainingObjective
    train: TrainConfig

    @model_validator(mode="before")
    @classmethod
    def _default_streams(cls, tree: Any) -> object:
        objective, train = (tree.get(name) if isinstance(tree, dict) else None for name in ("objective", "train"))
        if not isinstance(objective, dict) or not isinstance(train, dict) or objective.get("kind") != "stateful_clm":
            return tree
        rows = train.get("batch_size", TrainConfig.model_fields["batch_size"].default)
        return tree | {"objective": {"streams": rows} | {k: v for k, v in objective.items() if k != "streams" or v}}

    @model_validator(mode="after")
    def _check_streams(self) -> PretrainRecipe:
        if isinstance(self.objective, StatefulCausalLM) and 0 < self.objective.streams < self.train.batch_size:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} rows of objective.streams={self.objective.streams} streams "
                f"would go on from each other in one step; give as many streams, or leave objective.streams out"
            )
        return self

    @property
    def backbone(self) -> BackboneConfig:
        """The model, where its size is known.

        Raises:
            UserError: it is still to be chosen (``model.size=auto``).
        """
        if isinstance(self.model, AutoSizeConfig):
            sizes = ", ".join(self.model.candidates())
            raise UserError(f"model.size=auto is chosen by pretrain and plan alone; set model.size to one of {sizes}")
        return self.model


class FinetuneRecipe(Config):
    """Fine-tuning: data, what is learned from it on a pretrained backbone, a training plan."""

    kind: Literal["finetune"] = "finetune"
    description: str = Field(default="", description="purpose, in one line")
    data: FinetuneData = LabelledData()
    objective: FinetuneObjective = Classification()
    train: TrainConfig
    seeds: int = Field(default=1, ge=1, description="number of seeds to repeat with; mean and deviation are reported")
    folds: int | None = Field(default=None, ge=2, description="number of cross-validation folds, instead of a test set")
    train_sizes: list[Annotated[int, Field(ge=1)] | Literal["all"]] | None = Field(
        default=None, min_length=1, description="numbers of training examples, each trained in turn: [10, 100, all]"
    )
    baselines: bool = Field(default=True, description="measure baselines")
    calibration: Calibration = Field(
        default=Calibration(), description="calibration on the validation examples after training"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, tree: object) -> object:
        # recipes and run directories from before there were other kinds
        if not isinstance(tree, dict):
            return tree
        kinds = {"data": "texts", "objective": "classification"}
        return tree | {
            name: {"kind": kind} | tree[name] for name, kind in kinds.items() if isinstance(tree.get(name), dict)
        }


Recipe = Annotated[PretrainRecipe | FinetuneRecipe, Field(discriminator="kind")]
_KINDS: dict[str, type[PretrainRecipe] | type[FinetuneRecipe]] = {
    "pretrain": PretrainRecipe,
    "finetune": FinetuneRecipe,
}


_COMPARISON = "compare-"
_INSTEAD = {
    "bigbird-pegasus": "pegasus-mini",
    "bigru": "bilstm-mini",
    "distil-base": "distil-mini model.preset=bert-base model.num_hidden_layers=6",
    "gru": "lstm-mini",
    "rnn": "lstm-mini",
    "rnn-seq2seq-plain": "rnn-seq2seq-mini",
    "t5-v1.1": "t5-mini objective.head.tie_word_embeddings=false",
}
"""The recipe and settings for a family of presets whose recipe is not its ``-mini``, and for one removed recipe."""


def recipe_names() -> list[str]:
    """The shipped recipes, of one training each."""
    return [name for name in _shipped() if not name.startswith(_COMPARISON)]


def comparison_names() -> list[str]:
    """The shipped comparisons, which `homespun.compare` reads."""
    return [name for name in _shipped() if name.startswith(_COMPARISON)]


def _shipped() -> list[str]:
    folder = resources.files("homespun.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def _instead(name: str) -> str:
    """The recipe and settings that train a preset which has no recipe of its name; empty if there are none."""
    if name not in PRESETS:
        return _INSTEAD[name] if name == "distil-base" else ""
    family = family_of(name)
    recipe = _INSTEAD.get(family, f"{family}-mini")
    return f"{recipe} model.preset={name}" if recipe.split(" ")[0] in _shipped() else ""


def recipe_tree(name: str) -> Tree:
    """The mapping of a shipped recipe, or of a YAML file.

    Raises:
        UserError: no such recipe or file; the nearest name is given, or the new one.
    """
    if name.endswith((".yaml", ".yml")):
        return read_yaml(name)
    if name in RENAMED_RECIPES:
        raise UserError(f"recipe {name} was renamed to {RENAMED_RECIPES[name]}")
    names = _shipped()
    if name not in names:
        if instead := _instead(name):
            raise UserError(f"{name!r} is not a recipe; use `homespun pretrain {instead}`")
        raise UserError(f"unknown recipe {name!r}{nearest(name, names)} (or give the path of a .yaml file)")
    tree = yaml.safe_load((resources.files("homespun.recipes") / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(tree, dict)
    return tree


def load_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe | FinetuneRecipe:
    """A recipe with ``KEY=VALUE`` overrides applied, validated.

    Raises:
        UserError: unknown recipe, key or value, each with what is near or allowed.
    """
    tree = override(recipe_tree(name), overrides)
    kind = tree.get("kind")
    if kind == "compare":
        raise UserError(f"{name} is a comparison of several trainings, for `homespun compare`; give the recipe of one")
    if kind not in _KINDS:
        raise UserError(f"{name}: kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    return validate(_KINDS[kind], tree, source=name)


def pretrain_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe:
    """`load_recipe` for pretraining."""
    recipe = load_recipe(name, overrides)
    if not isinstance(recipe, PretrainRecipe):
        raise UserError(f"recipe {name!r} is for `homespun finetune`; for pretraining there are: {_of(PretrainRecipe)}")
    return recipe


def finetune_recipe(name: str, overrides: Sequence[str] = ()) -> FinetuneRecipe:
    """`load_recipe` for fine-tuning."""
    recipe = load_recipe(name, overrides)
    if not isinstance(recipe, FinetuneRecipe):
        raise UserError(f"recipe {name!r} is for `homespun pretrain`; for fine-tuning there are: {_of(FinetuneRecipe)}")
    return recipe


def _of(kind: type[PretrainRecipe] | type[FinetuneRecipe]) -> str:
    return ", ".join(n for n in recipe_names() if _KINDS[recipe_tree(n)["kind"]] is kind)


def schema() -> Tree:
    """The JSON schema of every recipe, for editors."""
    return json_schema(Recipe)


def as_recipe(tree: Mapping[str, object]) -> PretrainRecipe | FinetuneRecipe:
    """A recipe from the complete config of a run."""
    return TypeAdapter[PretrainRecipe | FinetuneRecipe](Recipe).validate_python(tree)
