"""Text to text: summaries, headlines, questions, translations; one task, or several told apart by their prefixes."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from homespun.baselines import sentence_baselines
from homespun.config import Config
from homespun.data.loader import Loader
from homespun.data.paragraphs import BREAK, Paragraphs
from homespun.data.rows import Row, Rows
from homespun.data.source_target import (
    Listed,
    Mixture,
    SourceTargetPair,
    SourceTargetRows,
    SourceTargetTemplate,
    get_source,
    get_title,
    read_source_target,
)
from homespun.errors import UserError, nearest
from homespun.inference.batch_generation import TextGenerationConfig, generate_batch
from homespun.metrics.rouge import METRICS, Rouge, mean_scores
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.generation.settings import check_beams
from homespun.models.model import Model
from homespun.objectives.text_to_text import TextToText
from homespun.tasks.files import Part, files_of, paths
from homespun.tasks.protocol import Lesson, Measured, Task, TaskData, check_length
from homespun.text.tokenizer import Tokenizer
from homespun.training.validation import EvalResult, evaluate_loss

logger = logging.getLogger(__name__)

_AHEAD = 256  # texts read ahead in prediction, and sorted by length together
_CONFUSED = 0.9  # of the pairs have a target longer than its source


class DataSet(Config):
    """One of several data sets that a model learns from together."""

    name: str = Field(default="", description="in tables; its prefix where not given")
    train: str | list[str] = Field(description="file, glob, folder or hub name, or several")
    test: str | list[str] = Field(default="", description="the same, for the last evaluation; or none")
    validation: str | list[str] = Field(default="", description="the same; or the share of all that data.validation is")
    source: str | list[str] = Field(default="source", description="column of the text to read")
    target: str | list[str] = Field(default="target", description="column of the text to write")
    prefix: str = Field(default="", description='stands before every source: "summarize: "')
    weight: float = Field(default=1.0, gt=0, description="multiplies its share of the training")


class TextPairsData(TaskData):
    """Texts to read, and what to write of each."""

    missing = "which pairs of texts? give data.train=FILE, with data.source=COLUMN and data.target=COLUMN"
    objectives = ("text_to_text",)

    kind: Literal["pairs_of_texts"] = "pairs_of_texts"
    source: str | list[str] = Field(
        default="source", description="column of the text to read; several, or a list, are joined with a space"
    )
    target: str | list[str] = Field(default="target", description="column of the text to write; several: each is right")
    listed: Listed = Field(default="references", description="a list there: references, or sentences of one text")
    prefix: str = Field(default="", description='stands before every source: "summarize: "')
    separator: str = Field(default=" TL;DR: ", description="of one causal stack: between source and target")
    source_length: int = Field(default=512, ge=8, description="tokens of a source at the most, special ones included")
    target_length: int = Field(default=64, ge=4, description="tokens of a target at the most, special ones included")
    sets: list[DataSet] | None = Field(
        default=None, min_length=1, description="several data sets instead, each with its prefix"
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of sets: the most pairs that one counts for in the mixture"
    )
    paragraphs: Paragraphs | None = Field(
        default=None, description="the source is several documents, read by paragraphs of which the best are taken"
    )
    writing: TextGenerationConfig = Field(
        default=TextGenerationConfig(), description="how the texts are written that are measured"
    )

    @model_validator(mode="after")
    def _apart(self) -> TextPairsData:
        if self.sets is not None and (self.train or self.test or self.prefix):
            raise ValueError("give each of the sets its files and its prefix, and none beside them")
        if set(paths(self.source)) & set(paths(self.target)):
            raise ValueError(
                f"source and target are the same column, {self.source!r}; name the one to read and the one to write"
            )
        if self.writing.min_new_tokens > self.target_length:
            raise ValueError(
                f"writing.min_new_tokens={self.writing.min_new_tokens} are more than target_length={self.target_length}"
            )
        return self

    @property
    def share(self) -> float | None:
        """As in `TaskData`; the sets may have validation files."""
        return None if self.sets is not None and any(one.validation for one in self.sets) else super().share

    @property
    def all_sets(self) -> list[DataSet]:
        """The data sets, of which there is one where ``sets`` are not given."""
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

    def read(self, part: Part) -> list[Any] | None:
        """The pairs of a part, of all data sets."""
        found: list[SourceTargetPair] = []
        for number, one in enumerate(self.all_sets):
            files = files_of(part, one, self.missing)
            found += self._pairs(files, one, number) if files else []
        return found or None

    def read_files(self, inputs: Sequence[str]) -> list[SourceTargetPair]:
        """The pairs of any files."""
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
        """What stands between several texts of one source."""
        return " " if self.paragraphs is None else BREAK

    @property
    def title(self) -> str:
        """Column of a title; empty where there is none."""
        return "" if self.paragraphs is None else self.paragraphs.title

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """Writing the targets.

        Raises:
            UserError: another objective, a model that does not write or is too short, no pair that is not empty, or
                ROUGE is not installed.
        """
        self.check_objective(objective)
        self._check_room(stored.config)
        check_beams(self.writing.num_beams, stored.config.backbone.vocab_size)
        whole = [pair for pair in training if not pair.is_empty]
        if not whole:
            raise UserError(
                f"none of {len(training)} pairs has both a text in {self.source!r} and one in {self.target!r}; name "
                f"the columns with data.source and data.target"
            )
        longer = sum(min(map(len, pair.targets)) > len(pair.source) for pair in whole)
        if longer > _CONFUSED * len(whole):
            logger.warning(
                "%d of %d targets are longer than their source: are data.source and data.target confused?",
                longer,
                len(whole),
            )
        return TextToTextTask(self, stored)

    def _check_room(self, config: ModelConfig) -> None:
        backbone = config.backbone
        if not isinstance(backbone, EncoderDecoderConfig):
            if self.paragraphs is not None:
                raise UserError(
                    "data.paragraphs are for an encoder with a decoder, and this model is one stack; start from one "
                    "such as hierarchical-mini, or leave data.paragraphs out"
                )
            needed, limit = self.source_length + self.target_length, backbone.max_position_embeddings
            if needed > limit:
                raise UserError(
                    f"data.source_length={self.source_length} and data.target_length={self.target_length} are "
                    f"{needed} tokens in one row, and the model's max_position_embeddings={limit}; lower one of them"
                )
            return
        for name, given, stack in (
            ("source", self.source_length, backbone.encoder),
            ("target", self.target_length, backbone.decoder),
        ):
            check_length(f"{name}_length", given, stack.max_position_embeddings)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """Writing, as the model was fine-tuned for it.

        Raises:
            UserError: more beams than half of its vocabulary.
        """
        check_beams(self.writing.num_beams, stored.config.backbone.vocab_size)
        return TextToTextTask(self, stored)

    def name_of(self, number: int) -> str:
        """Of a data set, in tables and on the command line."""
        one = self.all_sets[number]
        return one.name or one.prefix.strip(" :") or f"set {number}"

    def of_one(self, name: str | None) -> TextPairsData:
        """One data set alone, with its prefix and its columns; ``None``: that of the only one.

        Raises:
            UserError: there is none of that name, or none is named and there are several.
        """
        names = [self.name_of(number) for number in range(len(self.all_sets))]
        if name is None and len(names) > 1:
            raise UserError(f"it learned several data sets, each with its prefix; say which with --data-set: {names}")
        if name is not None and name not in names:
            raise UserError(f"--data-set {name!r}: it learned no such data set{nearest(name, names)}")
        one = self.all_sets[0 if name is None else names.index(name)]
        own = {"source": one.source, "target": one.target, "prefix": one.prefix}
        return self.model_copy(update={"sets": None, **own})

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """``text`` are the columns of the source, ``label`` that of the target."""
        source, target = list(text) if text else self.source, label or self.target
        if set(paths(source)) & set(paths(target)):
            raise UserError(f"the text to read and the one to write are the same column, {target!r}; name two")
        return {"source": source, "target": target}


class TextToTextTask:
    """Texts of texts; see `homespun.tasks.protocol.Task`."""

    labels = None
    measures = METRICS

    def __init__(self, data: TextPairsData, stored: ModelBundle) -> None:
        self.data = data
        self.tokenizer: Tokenizer = stored.tokenizer
        backbone = stored.config.backbone
        if isinstance(backbone, EncoderDecoderConfig):
            self.template = SourceTargetTemplate.for_encoder_decoder(
                self.tokenizer, bos_id=backbone.bos_token_id, eos_id=backbone.eos_token_id
            )
        else:
            self.template = SourceTargetTemplate.for_decoder(self.tokenizer, data.separator)
        self._rouge = Rouge()

    def strata(self, examples: Sequence[SourceTargetPair]) -> NDArray[np.int64]:
        """Nothing is kept in proportion but the data sets, where there are several."""
        if len(self.data.all_sets) == 1:
            return np.zeros((len(examples), 0), dtype=np.int64)
        return np.array([pair.data_set for pair in examples], dtype=np.int64)

    def texts(self, examples: Sequence[SourceTargetPair]) -> list[str]:
        """The sources."""
        return [pair.source for pair in examples]

    def rows(self, examples: Sequence[SourceTargetPair]) -> SourceTargetRows:
        """A row a target."""
        return SourceTargetRows(
            examples,
            self.tokenizer,
            source_length=self.data.source_length,
            target_length=self.data.target_length,
            template=self.template,
            prefixes=[one.prefix for one in self.data.all_sets],
            paragraphs=self.data.paragraphs,
        )

    def lesson(self, objective: TextToText, stored: ModelBundle, training: SourceTargetRows) -> Lesson:
        """The model as it is, or under a new head."""
        module = objective.build(copy.deepcopy(stored.model), stored.config)
        rows: Rows = training
        if (sets := self.data.sets) is not None:
            weights = [one.weight for one in sets]
            rows = Mixture(training, training.data_sets, weights=weights, limit=self.data.limit)
        return Lesson(module, module.model, rows, objective.collate(module.config), module.export_model)

    def validate(self, lesson: Lesson, rows: SourceTargetRows, *, batch_size: int) -> EvalResult:
        """The loss by teacher forcing: nothing is written."""
        loader = Loader(rows, lesson.collate, batch_size=batch_size, seed=0)
        return evaluate_loss(lesson.objective, loader.once(), next(lesson.model.parameters()).device)

    def measure(self, model: Model, rows: SourceTargetRows, *, batch_size: int) -> Measured:
        """ROUGE of what it writes."""
        sources = [rows.source(place) for place in range(len(rows.usable))]
        written = self._write(model, sources, batch_size)
        texts = [""] * len(rows.pairs)
        for index, text in zip(rows.usable.tolist(), written, strict=True):
            texts[index] = text
        return self._measured(rows.pairs, texts)

    def _write(self, model: Model, sources: Sequence[Row], batch_size: int) -> list[str]:
        return generate_batch(
            model,
            sources,
            self.tokenizer,
            end_id=self.template.after_target[0],
            max_new_tokens=self.data.target_length,
            writing=self.data.writing,
            batch_size=batch_size,
        )

    def _measured(self, pairs: Sequence[SourceTargetPair], texts: Sequence[str]) -> Measured:
        """Empty pairs count for nothing."""
        scores = [
            None if pair.is_empty else self._rouge.scores(text, pair.targets)
            for pair, text in zip(pairs, texts, strict=True)
        ]
        said = [
            {"truth": list(pair.targets), "predicted": text}
            | ({} if score is None else {"score": score["rougeL"]} | score)
            for pair, text, score in zip(pairs, texts, scores, strict=True)
        ]
        return Measured(self._metrics(pairs, texts, scores), said)

    def _metrics(
        self, pairs: Sequence[SourceTargetPair], texts: Sequence[str], scores: Sequence[dict[str, float] | None]
    ) -> dict[str, Any]:
        whole = [(p, t, s) for p, t, s in zip(pairs, texts, scores, strict=True) if s is not None]
        if not whole:
            raise UserError("there is nothing to measure: in every pair the source or the target is empty")
        metrics = _mean_of(whole)
        sets = self.data.all_sets
        if len(sets) > 1:
            by_set = {}
            for number in range(len(sets)):
                own = [each for each in whole if each[0].data_set == number]
                if own:
                    by_set[self.data.name_of(number)] = _mean_of(own)
            metrics["by_set"] = by_set
        return metrics

    def baselines(self, training: Sequence[SourceTargetPair], test: Sequence[SourceTargetPair]) -> dict[str, Measured]:
        """The first sentences of the source, and as many at random."""
        targets = [pair.targets[0] for pair in training if not pair.is_empty]
        made = sentence_baselines(targets, [pair.source for pair in test])
        return {name: self._measured(test, texts) for name, texts in made.items()}

    def facts(self) -> dict[str, Any]:
        """How much is read and written."""
        return {"source_length": self.data.source_length, "target_length": self.data.target_length}

    def describe(self) -> dict[str, Any]:
        """How the texts are read and written. The files of the data sets are left out."""
        told = self.data.to_metadata("sets", "limit", "encoding")
        if self.data.sets is not None:
            kept = ("name", "source", "target", "prefix")
            told |= {"sets": [{"train": ""} | one.model_dump(mode="json", include=set(kept)) for one in self.data.sets]}
        return {"kind": "text_to_text", "data": self.data.kind} | told

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """``text``: what is written."""
        columns = paths(self.data.all_sets[0].source)
        waiting = enumerate(records, start=1)
        while chunk := list(islice(waiting, _AHEAD)):
            pairs = []
            for number, record in chunk:
                where = f"row {number} of {source}"
                text = get_source(record, columns, where=where, between=self.data.between)
                pairs.append(SourceTargetPair(text, ("?",), title=get_title(record, self.data.title, where=where)))
            rows = self.rows(pairs)
            places = {index: place for place, index in enumerate(rows.usable.tolist())}
            written = self._write(model, [rows.source(place) for place in range(len(places))], 32)
            for index in range(len(pairs)):
                place = places.get(index)
                yield {
                    "text": "" if place is None else written[place],
                    "truncated": place is not None and bool(rows.cut[place]),
                }


def _mean_of(written: Sequence[tuple[SourceTargetPair, str, dict[str, float]]]) -> dict[str, Any]:
    """The metrics of pairs, each with what was written of it, and its scores."""
    targets = [pair.targets[0] for pair, _, _ in written]
    return mean_scores([score for _, _, score in written], [text for _, text, _ in written], targets)
