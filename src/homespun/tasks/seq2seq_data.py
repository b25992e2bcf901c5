"""Pairs of texts, to read and to write: data of text-to-text tasks, one data set or several with a prefix each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from homespun.config import Config
from homespun.data.source_target import BREAK, Listed, Paragraphs, SourceTargetPair, read_source_target
from homespun.errors import UserError, nearest
from homespun.inference.batch_generation import TextGenerationConfig
from homespun.models.config import ModelConfig
from homespun.tasks.protocol import Part, TaskData, check_length, files_of, paths

logger = logging.getLogger(__name__)

_CONFUSED = 0.9  # of the pairs have a target longer than its source


class DataSet(Config):
    """One of several data sets that a model is trained on together."""

    name: str = Field(default="", description="in tables; its prefix where not given")
    train: str | list[str] = Field(description="file, glob, folder or hub name, or several")
    test: str | list[str] = Field(default="", description="the same, for the last evaluation; or none")
    validation: str | list[str] = Field(default="", description="the same; or the share of all that data.validation is")
    source: str | list[str] = Field(default="source", description="column of the text to read")
    target: str | list[str] = Field(default="target", description="column of the text to write")
    prefix: str = Field(default="", description='stands before every source: "summarize: "')
    weight: float = Field(default=1.0, gt=0, description="multiplies its share of the training")


class TextPairsData(TaskData):
    """Texts with the text to write for each."""

    missing = "which pairs of texts? give data.train=FILE, with data.source=COLUMN and data.target=COLUMN"
    default_objective = "seq2seq"
    not_stored = ("sets", "limit", "encoding")

    kind: Literal["source_target"] = "source_target"
    source: str | list[str] = Field(
        default="source", description="column of the text to read; several, or a list, are joined with a space"
    )
    target: str | list[str] = Field(default="target", description="column of the text to write; several: each is right")
    listed: Listed = Field(default="references", description="a list there: references, or sentences of one text")
    prefix: str = Field(default="", description='stands before every source: "summarize: "')
    separator: str = Field(default=" TL;DR: ", description="of one causal stack: between source and target")
    max_source_length: int = Field(
        default=512, ge=8, description="tokens of a source at the most, special ones included"
    )
    max_target_length: int = Field(
        default=64, ge=4, description="tokens of a target at the most, special ones included"
    )
    sets: list[DataSet] | None = Field(
        default=None, min_length=1, description="several data sets instead, each with its prefix"
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of sets: the most pairs that one counts for in the mixture"
    )
    paragraphs: Paragraphs | None = Field(
        default=None, description="the source is several documents, read by paragraphs of which the best are taken"
    )
    generation: TextGenerationConfig = Field(
        default=TextGenerationConfig(), description="how the texts are written that are measured"
    )

    @model_validator(mode="after")
    def _check_settings(self) -> TextPairsData:
        if self.sets is not None and (self.train or self.test or self.prefix):
            raise ValueError("give each of the sets its files and its prefix, and leave out train, test and prefix")
        if set(paths(self.source)) & set(paths(self.target)):
            raise ValueError(
                f"source and target are the same column, {self.source!r}; name the one to read and the one to write"
            )
        if self.generation.min_new_tokens > self.max_target_length:
            raise ValueError(
                f"data.generation.min_new_tokens={self.generation.min_new_tokens} are more than "
                f"data.max_target_length={self.max_target_length}"
            )
        return self

    @property
    def share(self) -> float | None:
        """Share of the training examples held out for validation; ``None`` also where the sets have files for it."""
        return None if self.sets is not None and any(one.validation for one in self.sets) else super().share

    @property
    def all_sets(self) -> list[DataSet]:
        """All data sets: one without ``sets``."""
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
        """Read the pairs of a part, of all data sets."""
        found: list[SourceTargetPair] = []
        for number, one in enumerate(self.all_sets):
            files = files_of(part, one, self.missing)
            found += self._pairs(files, one, number) if files else []
        return found or None

    def read_files(self, inputs: Sequence[str]) -> list[SourceTargetPair]:
        """Read pairs from any files."""
        return self._pairs(inputs, self.all_sets[0], 0)

    def _pairs(self, inputs: Sequence[str], one: DataSet, number: int) -> list[SourceTargetPair]:
        return read_source_target(
            inputs,
            source=paths(one.source),
            target=paths(one.target),
            columns=self.columns,
            encoding=self.encoding,
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
        """Column of a title; empty where there is none."""
        return "" if self.paragraphs is None else self.paragraphs.title

    def check_pairs(self, config: ModelConfig, training: Sequence[SourceTargetPair]) -> None:
        """Refuse lengths beyond the model's and pairs without texts; warn of sources shorter than their targets.

        Raises:
            UserError: naming the settings.
        """
        self._check_lengths(config)
        filled = [pair for pair in training if not pair.is_empty]
        if not filled:
            raise UserError(
                f"none of {len(training)} pairs has both a text in {self.source!r} and one in {self.target!r}; name "
                f"the columns with data.source and data.target"
            )
        longer = sum(min(map(len, pair.targets)) > len(pair.source) for pair in filled)
        if longer > _CONFUSED * len(filled):
            logger.warning(
                "%d of %d targets are longer than their source: are data.source and data.target confused?",
                longer,
                len(filled),
            )

    def _check_lengths(self, config: ModelConfig) -> None:
        backbone = config.backbone
        if backbone.has_decoder:
            check_length("max_source_length", self.max_source_length, backbone.encoder.max_position_embeddings)
            check_length("max_target_length", self.max_target_length, backbone.decoder.max_position_embeddings)
            return
        if self.paragraphs is not None:
            raise UserError(
                "data.paragraphs are for an encoder with a decoder, and this model is one stack; start from one "
                "such as hierarchical-mini, or leave data.paragraphs out"
            )
        needed, limit = self.max_source_length + self.max_target_length, backbone.max_position_embeddings
        if needed > limit:
            raise UserError(
                f"data.max_source_length={self.max_source_length} and data.max_target_length={self.max_target_length} "
                f"are {needed} tokens in one row, and the model's max_position_embeddings={limit}; lower one of them"
            )

    def name_of(self, number: int) -> str:
        """Return the name of a data set for tables and the command line."""
        one = self.all_sets[number]
        return one.name or one.prefix.strip(" :") or f"set {number}"

    def select_set(self, name: str | None, *, source: str) -> TextPairsData:
        """Select one data set with its prefix and its columns; ``None``: the only one.

        Raises:
            UserError: there is none of that name, or none is named and there are several.
        """
        names = [self.name_of(number) for number in range(len(self.all_sets))]
        if name is None and len(names) > 1:
            raise UserError(f"it learned several data sets, each with its prefix; say which with --data-set: {names}")
        if name is not None and name not in names:
            raise UserError(f"--data-set {name!r}: it learned no such data set{nearest(name, names)}")
        one = self.all_sets[0 if name is None else names.index(name)]
        return self.model_copy(update={"sets": None, "source": one.source, "target": one.target, "prefix": one.prefix})

    def stored_settings(self) -> dict[str, object]:
        """Return the settings that are stored with a model; of the data sets, no files and no weights."""
        settings = super().stored_settings()
        if self.sets is not None:
            kept = {"name", "source", "target", "prefix"}
            settings["sets"] = [{"train": ""} | one.model_dump(mode="json", include=kept) for one in self.sets]
        return settings

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Take ``text`` for the columns of the source, ``label`` for that of the target."""
        source, target = list(text) if text else self.source, label or self.target
        if set(paths(source)) & set(paths(target)):
            raise UserError(f"the text to read and the one to write are the same column, {target!r}; name two")
        return {"source": source, "target": target}
