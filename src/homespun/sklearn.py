"""scikit-learn estimators that train as `homespun fit` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from homespun.config import parse_bytes, parse_duration, parse_option, validate
from homespun.data.labels import Labels, label_name
from homespun.fitting.fit import fit_examples
from homespun.fitting.inspection import split_examples
from homespun.fitting.results import FitSettings
from homespun.report.console import Display
from homespun.tasks.protocol import paths
from homespun.tasks.text_models import open_text_model
from homespun.tasks.text_outputs import to_predictions
from homespun.tasks.texts import LabelledData, LabelledText


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters and training of both estimators; see `TextClassifier`."""

    def __init__(
        self,
        *,
        time: str | float = "10m",
        start_from: str | Path | Sequence[str | Path] = (),
        texts: str | Path | Sequence[str | Path] = (),
        memory: str | int | None = None,
        folder: str | Path | None = None,
        random_state: int | np.random.RandomState | None = 0,
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
        seed = self._draw_seed()
        given = {
            "train": [],
            "texts": paths(self.texts),
            "start_from": paths(self.start_from),
            "seconds": parse_option(parse_duration, self.time, "time"),
            "memory": parse_option(parse_bytes, self.memory, "memory"),
            "task": "regression" if classes is None else "classification",
            "seed": seed,
        }
        settings = validate(FitSettings, given, source=type(self).__name__)
        labelled = enumerate(zip(texts, labels, strict=True), start=1)
        examples = [LabelledText(text, label, row=row) for row, (text, label) in labelled]
        inspection = split_examples(LabelledData(), examples, classes, seed=seed)
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) if self.folder is None else _new_folder(Path(self.folder))
            self.folder_ = None if self.folder is None else folder
            with Display(json=not self.verbose) as display:
                self.result_ = fit_examples(inspection, folder, settings, display=display)
            self.model_ = open_text_model(folder)

    def _draw_seed(self) -> int:
        random = check_random_state(self.random_state)
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(random.randint(np.iinfo(np.int32).max))

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
        start_from: pretrained model to try, a run, a folder or a hub name, or several.
        texts: unlabelled text file for pretraining, or several.
        memory: memory limit of each training, such as ``"8GB"``.
        folder: folder in which each fit makes a new folder, ``fit-1``, ``fit-2``, ..., of its candidates and result;
            default: a temporary folder.
        random_state: seed of the validation split and of trainings; None or a generator: each fit draws another seed.
        verbose: show decisions and progress on standard error.

    Attributes:
        classes_: labels, sorted.
        folder_: folder of the fit, for `homespun predict`; None without ``folder``.
        model_: the selected model.
        result_: scores of all candidates, as in ``result.json`` of `homespun fit`.

    Example:
        ``TextClassifier(time="5m").fit(texts, labels).predict(["Margins fell."])``
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on texts ``X`` and labels ``y``.

        Raises:
            ValueError: a text or label is missing, texts and labels have different lengths, labels are continuous
                numbers, or there is one class.
        """
        texts, labels = _texts(X), _targets(y)
        check_consistent_length(texts, labels)
        check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"TextClassifier needs at least two classes; y has one class, {self.classes_[0]}")
        names = _class_names(self.classes_)
        self._train(texts, [names[index] for index in indices], Labels.collect(names))
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute (texts, classes) probabilities, in the order of ``classes_``."""
        outputs, labels = self._outputs(X), self.model_.labels  # in the order of `Labels.collect`
        assert labels is not None
        return outputs[:, [labels.index(name) for name in _class_names(self.classes_)]]

    def predict(self, X: ArrayLike) -> NDArray[np.generic]:
        """Predict the label of each text."""
        probabilities = self.predict_proba(X)  # raises `NotFittedError` if there are no classes yet
        return self.classes_[probabilities.argmax(axis=1)]


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """Text regressor that trains as `homespun fit` does. The arguments are those of `TextClassifier`.

    Attributes:
        folder_: folder of the fit, for `homespun predict`; None without ``folder``.
        model_: the selected model.
        result_: scores of all candidates, as in ``result.json`` of `homespun fit`.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on texts ``X`` and numbers ``y``.

        Raises:
            ValueError: a text or number is missing, texts and numbers have different lengths, a number is infinite, or
                all numbers are equal.
        """
        texts, numbers = _texts(X), _targets(y).astype(np.float64)
        check_consistent_length(texts, numbers)
        if not np.isfinite(numbers).all():
            raise ValueError("y has infinite numbers; remove their rows")
        self._train(texts, [repr(float(number)) for number in numbers], None)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict a number for each text."""
        return self._outputs(X)


def _texts(X: ArrayLike) -> list[str]:
    if isinstance(X, str):
        raise ValueError("X must be a sequence of texts, not a single text")
    values = np.asarray(X, dtype=object)
    if not values.ndim:  # such as a sparse matrix, a generator or a set
        raise ValueError(f"X must be a sequence of texts, not a {type(X).__name__}; give a list, without a vectorizer")
    if values.size != len(values):
        raise ValueError(f"X must be one column of texts, not an array of shape {values.shape}")
    texts: list[str] = values.ravel().tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"X[{row}] is {text!r}, not a text; fill in or remove missing texts")
    if not texts:
        raise ValueError("X has no texts")
    return texts


def _targets(y: ArrayLike) -> NDArray[np.generic]:
    # numpy converts a missing value among texts to the text "nan"
    for row, value in enumerate(np.asarray(y, dtype=object).ravel()):
        if value is None or (str(value) in _MISSING and not isinstance(value, str)):
            raise ValueError(f"y has missing values: y[{row}] is {value!r}; remove these rows, or give them a label")
    targets: NDArray[np.generic] = column_or_1d(y)
    return targets


_MISSING = ("nan", "NaT", "<NA>")  # of float, numpy and pandas


def _class_names(classes: NDArray[np.generic]) -> list[str]:
    """Return names for `homespun predict`, or numbers from 0 if a name is empty, or equal to another."""
    names = [re.sub(r"^(-?\d+)\.0+$", r"\1", label_name(value)) for value in classes.tolist()]
    return names if all(names) and len(set(names)) == len(names) else list(map(str, range(len(names))))


def _new_folder(parent: Path) -> Path:
    """Make the first free folder of ``parent``; fits may run in parallel."""
    for number in count(1):
        try:
            (folder := parent / f"fit-{number}").mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError
