"""Recipes: complete settings of a training. Shipped ones are the YAML files in `homespun.recipes`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from homespun.config import Config, Tree, json_schema, validate
from homespun.errors import UserError
from homespun.models.config import AutoSizeConfig, BackboneConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.presets import kind_of_model
from homespun.models.recurrent import RecurrentConfig
from homespun.objectives.config import PretrainingObjective
from homespun.recipes import recipe_with, refuse_other_kind
from homespun.tasks.calibration import Calibration
from homespun.tasks.classification import Classification
from homespun.tasks.config import FinetuneData, FinetuneObjective
from homespun.tasks.texts import LabelledData
from homespun.training.config import TrainConfig


class CorpusData(Config):
    """Corpus and rows of a pretraining."""

    corpus: str = Field(default="", description="folder made by `homespun corpus build`")
    max_length: int = Field(default=128, ge=8, description="tokens in a row, special tokens included")
    packing: Literal["documents", "stream"] = Field(
        default="documents",
        description="rows of packed documents, or of a stream of documents: for corpora of many shards, in memory that "
        "does not depend on their size; holds out complete shards",
    )
    validation: float = Field(default=0.02, gt=0, lt=0.5, description="share of the documents held out")
    split_seed: int = Field(
        default=0, ge=0, description="seed of the held-out documents and of their masks, independent of train.seed"
    )
    validation_rows: int = Field(default=512, ge=1, description="maximum number of held-out rows per validation")


RecipeModel = Annotated[
    EncoderConfig | EncoderDecoderConfig | RecurrentConfig | AutoSizeConfig,
    Field(discriminator="kind"),
    BeforeValidator(kind_of_model),
]


class PretrainRecipe(Config):
    """Pretraining: corpus, model, objective and training settings."""

    kind: Literal["pretrain"] = "pretrain"
    description: str = Field(default="", description="purpose, in one line")
    data: CorpusData = CorpusData()
    model: RecipeModel
    embeddings: Literal["random", "cooccurrence"] = Field(
        default="random",
        description="initial word embeddings without --from and --vectors; cooccurrence: from counts over the corpus, "
        "which takes seconds and saves tokens (`homespun.vectors.embedding_init`)",
    )
    objective: PretrainingObjective
    train: TrainConfig

    @model_validator(mode="after")
    def _check_packing(self) -> PretrainRecipe:
        if self.data.packing == "stream" and not self.objective.supports_stream:
            raise ValueError(
                f"data.packing=stream is for packed rows, which objective.kind={self.objective.kind} has not; set "
                f"data.packing=documents"
            )
        if self.data.packing == "stream" and self.embeddings != "random":
            raise ValueError("data.packing=stream trains with embeddings=random; set it, or data.packing=documents")
        return self

    @model_validator(mode="after")
    def _pass_batch_size(self) -> PretrainRecipe:
        self.__dict__["objective"] = self.objective.with_batch_size(self.train.batch_size)
        return self

    @property
    def backbone(self) -> BackboneConfig:
        """Config of the model.

        Raises:
            UserError: its size is not chosen yet (``model.size=auto``).
        """
        if isinstance(self.model, AutoSizeConfig):
            sizes = ", ".join(self.model.candidates())
            raise UserError(f"model.size=auto is only for pretrain and plan; set model.size to one of {sizes}")
        return self.model


class FinetuneRecipe(Config):
    """Fine-tuning of a pretrained model: data, objective and training settings."""

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
        # recipes and runs of early versions have no kinds
        if not isinstance(tree, dict):
            return tree
        kinds = {"data": "texts", "objective": "classification"}
        return tree | {
            name: {"kind": kind} | tree[name] for name, kind in kinds.items() if isinstance(tree.get(name), dict)
        }


R = TypeVar("R", PretrainRecipe, FinetuneRecipe, PretrainRecipe | FinetuneRecipe)
Recipe = Annotated[PretrainRecipe | FinetuneRecipe, Field(discriminator="kind")]
_KINDS: dict[str, type[PretrainRecipe] | type[FinetuneRecipe]] = {
    "pretrain": PretrainRecipe,
    "finetune": FinetuneRecipe,
}


def load_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe | FinetuneRecipe:
    """Load a recipe, apply ``KEY=VALUE`` overrides and validate it.

    Args:
        name: name of a shipped recipe, or a path that ends in ``.yaml``.
        overrides: changed settings, such as ``"train.budget.time=2h"``; values are YAML.

    Raises:
        UserError: unknown recipe, key or value; the error suggests similar or allowed ones.
    """
    tree = recipe_with(name, overrides)
    return validate(_KINDS[tree["kind"]], tree, source=name)


def pretrain_recipe(name: str, overrides: Sequence[str] = ()) -> PretrainRecipe:
    """Load a pretraining recipe, see `load_recipe`."""
    tree = recipe_with(name, overrides)
    refuse_other_kind(name, tree["kind"], "pretrain")
    return validate(PretrainRecipe, tree, source=name)


def finetune_recipe(name: str, overrides: Sequence[str] = ()) -> FinetuneRecipe:
    """Load a fine-tuning recipe, see `load_recipe`."""
    tree = recipe_with(name, overrides)
    refuse_other_kind(name, tree["kind"], "finetune")
    return validate(FinetuneRecipe, tree, source=name)


def with_train(recipe: R, **changes: object) -> R:
    """Return a copy of a recipe with other training settings."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})


def schema() -> Tree:
    """Return the JSON schema of recipes, for editors."""
    return json_schema(Recipe)


def settings_schema() -> str:
    """Return ``settings.json`` of `homespun.recipes`: the schema without texts and without defaults except kinds."""
    return json.dumps(_without_texts(schema()), indent=1) + "\n"


def _without_texts(schema: Tree) -> Tree:
    kept: Tree = {}
    for name, value in schema.items():
        match value:
            case {} if name in ("properties", "$defs"):
                kept[name] = {key: _without_texts(each) for key, each in value.items()}
            case {"kind": kind} if name == "default":
                kept[name] = {"kind": kind}
            case dict() if name != "default":
                kept[name] = _without_texts(value)
            case [{}, *_]:
                kept[name] = [_without_texts(each) for each in value]
            case _ if name not in ("title", "description", "default", "examples", "required"):
                kept[name] = value
    return kept


def as_recipe(tree: Mapping[str, object]) -> PretrainRecipe | FinetuneRecipe:
    """Return the recipe of the complete config of a run."""
    return TypeAdapter[PretrainRecipe | FinetuneRecipe](Recipe).validate_python(tree)
