"""scikit-learn estimators that train as `homespun fit` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from homespun.config import parse_bytes, parse_duration, parse_option
from homespun.data.labels import Labels
from homespun.fitting.fit import fit_examples
from homespun.fitting.inspection import split_examples
from homespun.fitting.results import FitSettings
from homespun.report.console import Display
from homespun.tasks.text_models import open_text_model
from homespun.tasks.text_outputs import to_predictions
from homespun.tasks.texts import LabelledData, LabelledText


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters and training of both estimators; see `TextClassifier`."""

    def __init__(
        self,
        *,
        time: str | float = "10m",
        start_from: Sequence[str] = (),
        texts: Sequence[str] = (),
        memory: str | int | None = None,
        folder: str | None = None,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.time = time
        self.start_from = start_from
        self.texts = texts
        self.memory = memory
        self.folder = folder
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, texts: list[str], labels: Sequence[str], classes: Labels | None) -> None:
        settings = FitSettings(
            train=[],
            texts=list(self.texts),
            start_from=list(self.start_from),
            seconds=parse_option(parse_duration, self.time, "time") or 0.0,
            memory=parse_option(parse_bytes, self.memory, "memory"),
            task="regression" if classes is None else "classification",
            seed=self.random_state,
        )
        examples = [LabelledText(text, label) for text, label in zip(texts, labels, strict=True)]
        inspection = split_examples(LabelledData(), examples, classes, seed=self.random_state)
        with TemporaryDirectory() as temporary:
            folder = Path(self.folder or f"{temporary}/fit")
            with Display(json=not self.verbose) as display:
                self.result_ = fit_examples(inspection, folder, settings, display=display)
            self.model_ = open_text_model(folder)

    def _outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self, "model_")
        examples = [LabelledText(text, "") for text in _texts(X)]
        model = self.model_
        return to_predictions(model.outputs(examples).values, model.labels, model.decision)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.non_deterministic = True  # trainings are limited by time
        return tags


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """Text classifier that trains as `homespun fit` does.

    Args:
        time: time limit of the training in seconds, or a string such as ``"10m"``.
        start_from: pretrained models to try: runs, folders or hub names.
        texts: unlabelled text files for pretraining.
        memory: memory limit of each training, such as ``"8GB"``.
        folder: new folder for the candidates and the result; default: a temporary folder.
        random_state: seed of the validation split and of trainings.
        verbose: show decisions and progress on standard error.

    Attributes:
        classes_: labels, sorted.
        model_: the selected model.
        result_: scores of all candidates, as in ``result.json`` of `homespun fit`.

    Example:
        ``TextClassifier(time="5m").fit(texts, labels).predict(["Margins fell."])``
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on texts ``X`` and labels ``y``.

        Raises:
            ValueError: a text is missing, texts and labels have different lengths, labels are continuous numbers, or
                there is one class.
        """
        texts, labels = _texts(X), column_or_1d(y)
        check_consistent_length(texts, labels)
        check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"TextClassifier needs at least two classes; y has one class, {self.classes_[0]!r}")
        names = tuple(map(str, range(len(self.classes_))))
        self._train(texts, [names[index] for index in indices], Labels(names))
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute (texts, classes) probabilities, in the order of ``classes_``."""
        return self._outputs(X)

    def predict(self, X: ArrayLike) -> NDArray[np.generic]:
        """Predict the label of each text."""
        best = self._outputs(X).argmax(axis=1)
        return self.classes_[best]


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """Text regressor that trains as `homespun fit` does. The arguments are those of `TextClassifier`.

    Attributes:
        model_: the selected model.
        result_: scores of all candidates, as in ``result.json`` of `homespun fit`.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on texts ``X`` and numbers ``y``.

        Raises:
            ValueError: a text is missing, texts and numbers have different lengths, or a number is not finite.
        """
        texts, numbers = _texts(X), column_or_1d(y).astype(np.float64)
        check_consistent_length(texts, numbers)
        if not np.isfinite(numbers).all():
            raise ValueError("y has NaN or infinity")
        self._train(texts, [repr(float(number)) for number in numbers], None)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict a number for each text."""
        return self._outputs(X)


def _texts(X: ArrayLike) -> list[str]:
    if isinstance(X, str):
        raise ValueError("X must be a sequence of texts, not a single text")
    values = np.asarray(X, dtype=object)
    if values.size != len(values):
        raise ValueError(f"X must be one column of texts, not an array of shape {values.shape}")
    texts: list[str] = values.ravel().tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"X[{row}] is {text!r}, not a text; fill in or remove missing texts")
    if not texts:
        raise ValueError("X has no texts")
    return texts
