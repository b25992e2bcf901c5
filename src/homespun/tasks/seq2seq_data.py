"""Data of text-to-text tasks: pairs of source and target, from one data set or several with prefixes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from homespun.config import Config
from homespun.data.labels import read_rows
from homespun.data.source_target import BREAK, Listed, Paragraphs, SourceTargetPair, parse_pair
from homespun.errors import UserError, nearest
from homespun.models.generation.settings import TextGenerationConfig
from homespun.tasks.protocol import Part, TaskData, check_length, files_of, paths
from homespun.text.formats import Record

if TYPE_CHECKING:  # extractive summarizers need no torch
    from homespun.models.config import ModelConfig

logger = logging.getLogger(__name__)

_SWAPPED_SHARE = 0.9  # share of targets longer than their source, above which the columns may be swapped


class DataSet(Config):
    """One of several data sets that a model is trained on."""

    name: str = Field(default="", description="name in tables; by default the prefix")
    train: str | list[str] = Field(description="file, glob, folder or hub name, or several")
    test: str | list[str] = Field(default="", description="the same, for the last evaluation; or none")
    validation: str | list[str] = Field(default="", description="the same; by default the share data.validation of all")
    source: str | list[str] = Field(default="source", description="column of the source text")
    target: str | list[str] = Field(default="target", description="column of the target text")
    prefix: str = Field(default="", description='text before each source, such as "summarize: "')
    weight: float = Field(default=1.0, gt=0, description="factor of its share of the training")


class TextPairsData(TaskData):
    """Source texts with their target texts."""

    missing = "which pairs of texts? give data.train=FILE, with data.source=COLUMN and data.target=COLUMN"
    default_objective = "seq2seq"
    not_stored = ("sets", "limit", "encoding")
    not_for_baselines = ("max_source_length", "max_target_length", "prefix", "separator", "generation")
    text_settings, label_settings = ("source",), ("target",)

    kind: Literal["source_target"] = "source_target"
    source: str | list[str] = Field(default="source", description="column of the source; several are joined")
    target: str | list[str] = Field(default="target", description="column of the target; several are references")
    listed: Listed = Field(default="references", description="a list of targets: references, or sentences of one text")
    prefix: str = Field(default="", description='text before each source, such as "summarize: "')
    separator: str = Field(default=" TL;DR: ", description="text between source and target, for a causal model")
    max_source_length: int = Field(default=512, ge=8, description="maximum tokens of a source, with special tokens")
    max_target_length: int = Field(default=64, ge=4, description="maximum tokens of a target, with special tokens")
    sets: list[DataSet] | None = Field(default=None, min_length=1, description="several data sets, each with a prefix")
    limit: Annotated[int, Field(ge=1)] | None = Field(default=None, description="maximum size in the mixture of `sets`")
    paragraphs: Paragraphs | None = Field(default=None, description="read the best paragraphs of several documents")
    generation: TextGenerationConfig = Field(default=TextGenerationConfig(), description="generation in evaluation")

    @model_validator(mode="after")
    def _check_settings(self) -> TextPairsData:
        if self.sets is not None and (self.train or self.test or self.prefix):
            raise ValueError("each of the sets has its files and prefix; leave out train, test and prefix")
        if set(paths(self.source)) & set(paths(self.target)):
            raise ValueError(f"source and target are the same column, {self.source!r}; name two columns")
        if (least := self.generation.min_new_tokens) > self.max_target_length:
            raise ValueError(f"data.generation.min_new_tokens={least} exceeds max_target_length; lower it")
        return self

    @property
    def share(self) -> float | None:
        """Share of the training examples held out for validation; ``None`` with validation files."""
        return None if self.sets is not None and any(one.validation for one in self.sets) else super().share

    @property
    def all_sets(self) -> list[DataSet]:
        """All data sets; without ``sets`` the files of the config are the only one."""
        if self.sets is not None:
            return self.sets
        files = [] if isinstance(self.validation, float) else paths(self.validation)
        return [
            DataSet(
                train=self.train,
                test=self.test,
                validation=files,
                source=self.source,
                target=self.target,
                prefix=self.prefix,
            )
        ]

    def read(self, part: Part) -> list[SourceTargetPair] | None:
        """Read the pairs of a part, from all data sets."""
        pairs: list[SourceTargetPair] = []
        for number, data_set in enumerate(self.all_sets):
            if files := files_of(part, data_set, self.missing):
                rows = read_rows(files, columns=self.columns, encoding=self.encoding)
                pairs += [self._pair(record, data_set, number, where) for record, where in rows]
        return pairs or None

    def parse(self, record: Record, *, where: str) -> list[SourceTargetPair]:
        return [self._pair(record, self.all_sets[0], 0, where)]

    def _pair(self, record: Record, one: DataSet, number: int, where: str) -> SourceTargetPair:
        return parse_pair(
            record,
            source=paths(one.source),
            target=paths(one.target),
            where=where,
            listed=self.listed,
            data_set=number,
            between=self.between,
            title=self.title,
        )

    @property
    def between(self) -> str:
        """Separator of several texts of one source."""
        return " " if self.paragraphs is None else BREAK

    @property
    def title(self) -> str:
        """Column of a title, or empty."""
        return "" if self.paragraphs is None else self.paragraphs.title

    def check_pairs(self, config: ModelConfig, training: Sequence[SourceTargetPair]) -> None:
        """Check lengths and pairs; warns if the columns seem swapped.

        Raises:
            UserError: the lengths exceed the model's, or no pair has both texts.
        """
        self._check_lengths(config)
        filled = [pair for pair in training if not pair.is_empty]
        if not filled:
            columns = f"{self.source!r} and {self.target!r}"
            raise UserError(f"none of {len(training)} pairs has texts in {columns}; set data.source and data.target")
        longer = sum(min(map(len, pair.targets)) > len(pair.source) for pair in filled)
        if longer > _SWAPPED_SHARE * len(filled):
            message = "%d of %d targets are longer than their source; the columns %r and %r may be swapped"
            logger.warning(message, longer, len(filled), self.source, self.target)

    def _check_lengths(self, config: ModelConfig) -> None:
        backbone = config.backbone
        if backbone.has_decoder:
            check_length("max_source_length", self.max_source_length, backbone.encoder.max_position_embeddings)
            check_length("max_target_length", self.max_target_length, backbone.decoder.max_position_embeddings)
            return
        if self.paragraphs is not None:
            raise UserError(
                "data.paragraphs needs an encoder-decoder, and this model is one stack; start from one such as "
                "hierarchical-mini, or leave data.paragraphs out"
            )
        needed, limit = self.max_source_length + self.max_target_length, backbone.max_position_embeddings
        if needed > limit:
            raise UserError(
                f"data.max_source_length={self.max_source_length} and data.max_target_length={self.max_target_length} "
                f"are {needed} tokens in one row, and the model's max_position_embeddings={limit}; lower one of them"
            )

    def name_of(self, number: int) -> str:
        """Name of a data set in tables and on the command line; a repeated name ends in its number, from 0."""
        names = [one.name or one.prefix.strip(" :") or f"set {n}" for n, one in enumerate(self.all_sets)]
        return names[number] if names.index(names[number]) == number else f"{names[number]} {number}"

    def select_set(self, name: str | None, *, source: str) -> TextPairsData:
        """Select a data set with its prefix and columns; ``None`` selects the only one.

        Raises:
            UserError: an unknown name, or a missing one if there are several.
        """
        names = [self.name_of(number) for number in range(len(self.all_sets))]
        if name is None and len(names) > 1:
            raise UserError(f"{source} was trained on several data sets, {names}; choose one with --data-set")
        if name is not None and name not in names:
            raise UserError(f"{source} was not trained on --data-set {name!r}{nearest(name, names)}")
        one = self.all_sets[0 if name is None else names.index(name)]
        return self.model_copy(update={"sets": None, "source": one.source, "target": one.target, "prefix": one.prefix})

    def stored_settings(self) -> dict[str, object]:
        """Return the settings stored with a model, without files and weights of the data sets."""
        settings = super().stored_settings()
        if self.sets is not None:
            kept = {"name", "source", "target", "prefix"}
            settings["sets"] = [{"train": ""} | one.model_dump(mode="json", include=kept) for one in self.sets]
        return settings

    def record_of(self, text: str) -> Record:
        return {name: text if number == 0 else "" for number, name in enumerate(paths(self.all_sets[0].source))}

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields for the columns of the source and of the target."""
        source, target = list(text) if text else self.source, label or self.target
        if set(paths(source)) & set(paths(target)):
            raise UserError(f"source and target are the same column, {target!r}; name two columns")
        return {"source": source, "target": target}
