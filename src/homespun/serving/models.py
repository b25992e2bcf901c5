"""Served models by name: opening, capabilities, predictions, replacement."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from homespun.commands.pipeline import Pipeline, to_example
from homespun.commands.predict import RecordPredictor
from homespun.errors import UserError, first_line
from homespun.serving.errors import ApiError
from homespun.tasks.protocol import InputKind
from homespun.tasks.text_models import TextModel, predict_examples

if TYPE_CHECKING:
    from homespun.inference.quantization import Precision
    from homespun.models.bundle import ModelBundle

logger = logging.getLogger(__name__)

Capability = Literal["predict", "embed", "generate", "attention"]
Input = str | Sequence[str]
"""A text, a pair of texts, a question with its context, or the sentences of a document."""
Prediction = Mapping[str, object]

_TRIAL = "The quick brown fox jumps over the lazy dog."
_CHARACTERS = 4  # characters per token, about
_ALLOWED: Mapping[InputKind, str] = {
    "text": 'texts: "..."',
    "pair": 'pairs of texts: ["...", "..."]',
    "question": 'questions, each with its text: ["question", "text"]',
    "sentences": 'documents as lists of sentences: ["...", ...]',
}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """Open model with its capabilities."""

    name: str  # name in requests
    source: Path  # folder or hub name, as given
    pipeline: Pipeline
    task: str | None  # kind of its fine-tuning; "pairs" for pairs of texts
    capabilities: frozenset[Capability]
    labels: tuple[str, ...] | None
    parameters: int
    max_length: int | None  # tokens of a text; None: no limit
    run: Path | None  # folder with result.json
    input_kind: InputKind = "text"  # kind of the inputs of `predict`

    @classmethod
    def open(cls, name: str, source: str | Path, *, quantize: Precision | None = None) -> ServedModel:
        """Open a model, and test it by one prediction.

        Raises:
            UserError: there is no model, it is damaged, or cannot be quantized.
        """
        pipeline = Pipeline(source, quantize=quantize)
        bundle = pipeline.bundle
        for network in _networks(pipeline):
            _copy_weights(network)
        capabilities: set[Capability] = set() if bundle is None else _network_capabilities(bundle)
        opened = _open_task(pipeline)
        task = None
        if opened is not None:
            capabilities.add("predict")
            default = opened.data.default_objective
            kind = default if bundle is None else bundle.task.get("kind", default)
            task = "pairs" if opened.data.input_kind == "pair" else str(kind).replace("_", "-")
        served = cls(
            name=name,
            source=Path(source).expanduser(),
            pipeline=pipeline,
            task=task,
            capabilities=frozenset(capabilities),
            labels=None if opened is None or opened.labels is None else opened.labels.names,
            parameters=_count_parameters(pipeline),
            max_length=None if bundle is None else _max_length(bundle),
            run=_run_folder(Path(source).expanduser()),
            input_kind="text" if opened is None else opened.data.input_kind,
        )
        served._try()
        return served

    def require(self, capability: Capability) -> None:
        """Raise `ApiError` 409, which names the capabilities, if the model lacks one."""
        if capability not in self.capabilities:
            able = ", ".join(sorted(self.capabilities)) or "nothing that is served"
            raise ApiError(409, f"model {self.name!r} cannot {capability}; it can: {able}")

    def check_inputs(self, inputs: Sequence[Input]) -> None:
        """Raise `ApiError` 422 if an input does not have the kind of the model."""
        kind = self.input_kind
        for index, one in enumerate(inputs):
            single = isinstance(one, str)
            right = single if kind == "text" else not single and (kind == "sentences" or len(one) == 2)
            if not right:
                raise ApiError(422, f"texts.{index} does not fit model {self.name!r}, which reads {_ALLOWED[kind]}")

    def estimate_tokens(self, inputs: Sequence[Input]) -> list[int]:
        """Estimate the number of tokens of each input; counting would take as long as encoding."""
        lengths = [sum(map(len, [one] if isinstance(one, str) else one)) // _CHARACTERS + 2 for one in inputs]
        return [min(length, self.max_length or length) for length in lengths]

    def count_tokens(self, inputs: Sequence[Input]) -> list[int]:
        """Count the tokens of each input before truncation; estimated for a model without a tokenizer."""
        if (bundle := self.pipeline.bundle) is None:
            return self.estimate_tokens(inputs)
        joined = [one if isinstance(one, str) else " ".join(one) for one in inputs]
        return [len(ids) for ids in bundle.tokenizer.encode_batch(joined)]

    def predict(self, inputs: Sequence[Input]) -> list[Prediction]:
        """Predict; see `homespun.commands.predict.predict_texts`. The inputs must be of `input_kind`."""
        if self.pipeline.predictor is None:
            return list(predict_examples(self.pipeline.text_model, list(map(to_example, inputs))))
        return list(self.pipeline.predictor.predict_inputs(inputs))

    @cached_property
    def embedders(self) -> Mapping[str, Embedder]:
        """Functions that compute vectors, by pooling; always the same objects, so that texts share batches."""
        return {name: Embedder(self, name) for name in ("mean", "first", "last")}

    def _try(self) -> None:
        if "predict" in self.capabilities:
            self.predict([_TRIAL if self.input_kind == "text" else [_TRIAL, _TRIAL]])
        elif "embed" in self.capabilities:
            self.embedders["mean"]([_TRIAL])


@dataclass(frozen=True, eq=False)
class Embedder:
    """Function that computes vectors of texts by one pooling."""

    model: ServedModel
    pooling: str

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Compute the (hidden,) vector of each text."""
        length = self.model.max_length or 128
        return list(self.model.pipeline.embed(texts, pooling=self.pooling, max_length=length))


def _open_task(pipeline: Pipeline) -> TextModel | RecordPredictor | None:
    """Rebuild the task of a model; ``None`` for a language model or a pretrained encoder."""
    try:
        return pipeline.text_model if pipeline.predictor is None else pipeline.predictor
    except UserError:
        if pipeline.bundle is None or "kind" in pipeline.bundle.task:  # was fine-tuned
            raise
        return None


def _networks(pipeline: Pipeline) -> Sequence[ModelBundle]:
    if pipeline.bundle is not None:
        return (pipeline.bundle,)
    return () if pipeline.record_model is not None else pipeline.text_model.networks


def _copy_weights(bundle: ModelBundle) -> None:
    """Copy memory-mapped weights, so that a change of their file does not affect the server."""
    for tensor in (*bundle.model.parameters(), *bundle.model.buffers()):
        tensor.data = tensor.data.clone()


def _network_capabilities(bundle: ModelBundle) -> set[Capability]:
    from homespun.commands.attention_map import weighted_attentions
    from homespun.models.heads import LanguageModelHead

    found: set[Capability] = {"embed"}
    backbone = bundle.config.backbone
    if weighted_attentions(bundle.model):
        found.add("attention")
    if isinstance(bundle.model.head, LanguageModelHead) and (backbone.has_decoder or backbone.causal):
        found.add("generate")
    return found


def _count_parameters(pipeline: Pipeline) -> int:
    if pipeline.bundle is not None:
        return sum(parameter.numel() for parameter in pipeline.bundle.model.parameters())
    return (pipeline.record_model or pipeline.text_model).parameters


def _max_length(bundle: ModelBundle) -> int | None:
    limit = bundle.config.backbone.max_position_embeddings
    given = bundle.task.get("max_length") or bundle.task.get("max_source_length")
    return min(int(given), limit) if isinstance(given, int) else limit


def _run_folder(source: Path) -> Path | None:
    return next((folder for folder in (source, source.parent) if (folder / "result.json").is_file()), None)


class Models:
    """Models of folders or hub names, by name; a model is replaced when its folder changes."""

    def __init__(self, sources: Mapping[str, str | Path], *, quantize: Precision | None = None) -> None:
        self._quantize: Precision | None = quantize
        self._sources = dict(sources)
        self._open: dict[str, ServedModel] = {}
        self._signatures: dict[str, Signature] = {}
        self._changing: dict[str, Signature] = {}

    @property
    def names(self) -> list[str]:
        """Names of the models, the default first."""
        return list(self._sources)

    @property
    def loaded(self) -> bool:
        """True when every model is open."""
        return len(self._open) == len(self._sources)

    @property
    def all(self) -> list[ServedModel]:
        """The open models."""
        return list(self._open.values())

    def load(self) -> None:
        """Open every model. Raises `UserError` if one cannot be opened."""
        for name, source in self._sources.items():
            self._signatures[name] = read_signature(source)
            self._open[name] = ServedModel.open(name, source, quantize=self._quantize)

    def get(self, name: str | None) -> ServedModel:
        """Return a model by name; ``None``: the default.

        Raises:
            ApiError: no model has the name (404), or the models are not open yet (503).
        """
        if name is None:
            name = next(iter(self._sources))
        if name not in self._sources:
            raise ApiError(
                404, f"there is no model {name[:100]!r}; there are: {', '.join(self._sources)}", "model_not_found"
            )
        if name not in self._open:
            raise ApiError(503, f"model {name!r} is being opened; send the request again later")
        return self._open[name]

    def refresh(self) -> list[str]:
        """Replace models whose folder has changed and is not being written; returns their names.

        The new model is opened and tested while the old one serves. A model that cannot be opened is logged in one
        line and does not replace the old one.
        """
        replaced = []
        for name, source in self._sources.items():
            signature = read_signature(source)
            stable = self._changing.get(name) == signature
            self._changing[name] = signature
            if not stable or signature == self._signatures.get(name) or not signature:
                continue
            self._signatures[name] = signature
            try:
                self._open[name] = ServedModel.open(name, source, quantize=self._quantize)
            except Exception as error:  # a damaged file may raise anything
                logger.warning("model %s was not replaced: %s", name, first_line(error))
                continue
            replaced.append(name)
            logger.warning("model %s was replaced", name)
        return replaced


Signature = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change and number of each file of a model."""


def read_signature(source: str | Path) -> Signature:
    """Read the signature of a model folder; empty for a hub name, or while the folder is being replaced."""
    folder = Path(source).expanduser()
    folder = folder / "model" if (folder / "model").is_dir() else folder
    found = []
    try:
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
            if path.is_file():
                status = path.stat()
                found.append((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
    except OSError:
        return ()
    return tuple(found)
