"""Prediction, embedding and generation from raw texts."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from homespun.commands.predict import RecordPredictor, prepare_networks, record_predictor, task_predictor
from homespun.data.labels import LabelledRows, Labels
from homespun.errors import UserError, escape
from homespun.tasks.record_models import find_record_model, open_record_model
from homespun.tasks.text_models import TextModel, find_text_model, open_text_model, predict_examples
from homespun.tasks.text_outputs import to_predictions
from homespun.tasks.texts import LabelledText

if TYPE_CHECKING:
    from homespun.inference.quantization import Precision
    from homespun.models.bundle import ModelBundle
    from homespun.models.generation.settings import GenerationArguments

Text = str | Sequence[str]
"""A text, a pair of texts, the words of a sentence, a question with its text, or the sentences of a document."""


class Pipeline:
    """Model with tokenizer, labels and decision rule, for use on raw texts.

    Long texts are read as in training.

    Args:
        source: a fit, a run, a ``model/`` folder, a Hugging Face folder or a hub name.
        quantize: precision of linear layers, see `homespun.inference.quantization.quantize`; default: float32.

    Example:
        ``homespun.open("runs/mine").predict(["Margins fell for the third quarter."])``

    Raises:
        UserError: there is no model in ``source``, or it cannot be quantized.
    """

    def __init__(self, source: str | Path, *, quantize: Precision | None = None) -> None:
        self.source, self.precision = str(source), quantize
        self.bundle: ModelBundle | None = None
        """Network with its tokenizer; ``None`` for a linear model or an average."""
        folder = find_record_model(source)
        self.record_model = None if folder is None else open_record_model(folder)
        """Linear tagger or extractive summarizer; ``None`` for other models."""
        if self.record_model is not None:
            prepare_networks([], quantize, self.source)
        elif find_text_model(source) is None:
            from homespun.hf.open import open_for_inference  # imports torch, as networks need it

            self.bundle = open_for_inference(source)
            prepare_networks([self.bundle], quantize, self.source)

    @cached_property
    def text_model(self) -> TextModel:
        """Classifier or regressor of the model.

        Raises:
            UserError: the model was not fine-tuned for either.
        """
        if self.bundle is None:
            model = open_text_model(self.source)
            prepare_networks(model.networks, self.precision, self.source)
            return model
        from homespun.tasks.network_text_model import NetworkTextModel

        return NetworkTextModel.of(self.bundle, source=self.source)

    @cached_property
    def predictor(self) -> RecordPredictor | None:
        """Predictor of other tasks, such as token classification; ``None`` for a classifier or regressor of texts.

        Raises:
            UserError: the model was not fine-tuned.
        """
        if self.record_model is not None:
            return record_predictor(self.record_model)
        if self.bundle is None:
            return None
        from homespun.tasks.config import stored_task
        from homespun.tasks.network_text_model import TextTask

        task = stored_task(self.bundle, source=self.source)
        return None if isinstance(task, TextTask) else task_predictor(self.bundle, task)

    @property
    def labels(self) -> Labels | None:
        """Classes or tags; ``None`` without any."""
        return self.text_model.labels if self.predictor is None else self.predictor.labels

    def predict(
        self, texts: Sequence[Text]
    ) -> list[str] | list[tuple[str, ...]] | NDArray[np.float64] | list[dict[str, object]]:
        """Predict an output for each text.

        Args:
            texts: texts; for other tasks than text classification pairs of texts, lists of words, questions with their
                text, or lists of sentences.

        Returns:
            Labels; tuples of labels for a multi-label classifier; (texts,) numbers for a regression. Other tasks return
            a dictionary for each text, such as ``words``, ``tags``, ``offsets`` and ``entities`` of a tagger.

        Raises:
            UserError: the model was not fine-tuned, reads other inputs, or ``texts`` is one string.
        """
        _refuse_string(texts)
        if self.predictor is not None:
            for row, text in enumerate(texts):
                if not isinstance(text, str):
                    self._check_texts(row, text)
            return self.predictor.predict_inputs(texts)
        predictions = list(predict_examples(self.text_model, self._examples(texts))) if len(texts) else []
        if self.labels is None:
            return np.array([one["number"] for one in predictions], dtype=np.float64)
        return [one["label"] for one in predictions]  # type: ignore[return-value]

    def predict_proba(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Compute (texts, classes) probabilities, in the order of `labels`.

        Raises:
            UserError: the model is not a classifier.
        """
        _refuse_string(texts)
        model = self.text_model
        if model.labels is None:
            raise UserError(f"{self.source} predicts numbers and has no classes; use predict")
        if not len(texts):
            return np.zeros((0, len(model.labels)))
        return to_predictions(model.outputs(self._examples(texts)).values, model.labels, model.decision)

    def embed(self, texts: Sequence[str], *, pooling: str = "mean", max_length: int = 128) -> NDArray[np.float32]:
        """Compute (texts, hidden) vectors of the encoder, or of a decoder without one.

        Args:
            texts: the texts.
            pooling: ``mean`` of the tokens, ``first`` or ``last`` token.
            max_length: maximum tokens of a text; longer texts are truncated.

        Raises:
            UserError: the model has no network, or no such pooling.
        """
        from homespun.inference.predict import embed_rows
        from homespun.models.model import Model

        bundle = self._network
        self._refuse_other_than_strings(texts)
        model = Model(bundle.model.backbone.stacks[0])  # an encoder-decoder's encoder
        if not len(texts):
            return np.zeros((0, model.backbone.hidden_size), dtype=np.float32)
        length = min(max_length, bundle.config.backbone.max_position_embeddings)
        rows = LabelledRows(list(texts), None, bundle.tokenizer, length=length)
        return embed_rows(model, rows, pad_id=bundle.tokenizer.pad_id, poolings=(pooling,))[pooling]

    def generate(self, prompts: Sequence[str], **arguments: Unpack[GenerationArguments]) -> list[list[str]]:
        """Generate text after each prompt; a list for each, of ``num_return_sequences`` texts.

        Raises:
            UserError: the model generates no text, or as in `homespun.models.model.Model.generate`.
        """
        from homespun.inference.generation import TextGenerator

        generator = TextGenerator(self._network)
        self._refuse_other_than_strings(prompts)
        return [[one.text for one in found] for found in generator.generate(prompts, **arguments)]

    @property
    def _network(self) -> ModelBundle:
        if self.bundle is None:
            raise UserError(f"{self.source} is a linear model or an average; embed and generate need a network")
        return self.bundle

    def _examples(self, texts: Sequence[Text]) -> list[LabelledText]:
        if self.text_model.data.input_kind == "pair":
            for row, text in enumerate(texts):
                self._check_texts(row, text, pair=True)
        else:
            self._refuse_other_than_strings(texts)
        return list(map(to_example, texts))

    def _refuse_other_than_strings(self, texts: Sequence[Text]) -> None:
        _refuse_string(texts)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise self._wrong_input(row, text, "single texts; give a string")

    def _check_texts(self, row: int, texts: Text, *, pair: bool = False) -> None:
        """Raise `UserError` unless ``texts`` are several strings: two for a pair."""
        several = isinstance(texts, list | tuple | np.ndarray) and all(isinstance(text, str) for text in texts)
        if not several or (pair and len(texts) != 2):
            raise self._wrong_input(
                row, texts, "pairs of texts; give two strings" if pair else "a string or a list of strings"
            )

    def _wrong_input(self, row: int, text: Text, allowed: str) -> UserError:
        return UserError(f"texts[{row}] is {escape(reprlib.repr(text))}, and {self.source} reads {allowed}")


def _refuse_string(texts: Sequence[object]) -> None:
    if isinstance(texts, str):  # a sequence of its characters
        raise UserError(f"a list of texts is needed, not the string {texts[:40]!r}; write [text]")


def to_example(text: Text) -> LabelledText:
    """Build an example without a label of a text or a pair of texts."""
    return LabelledText(text, "") if isinstance(text, str) else LabelledText(text[0], "", text[1])


def open_pipeline(source: str | Path, *, quantize: Precision | None = None) -> Pipeline:
    """Open a model for use on raw texts; see `Pipeline` for arguments, methods and errors."""
    return Pipeline(source, quantize=quantize)
