"""Training of word vectors by word2vec and GloVe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from torch import Tensor

from homespun.config import Config
from homespun.errors import UserError
from homespun.io.cores import available_cores
from homespun.vectors.cooccurrence import Block, Cooccurrence, count_pairs
from homespun.vectors.word_file import OnProgress, WordFile, WordsConfig

Stage = Callable[[str], AbstractContextManager[OnProgress]]
Trained = tuple[NDArray[np.float32], dict[str, JsonValue]]

_LINE = 10_000  # words of a line, the maximum of gensim
_EPS = 1e-8  # AdaGrad's epsilon


class Word2VecConfig(Config):
    """word2vec with negative sampling and subsampling (Mikolov et al. 2013), by gensim."""

    kind: Literal["word2vec"] = "word2vec"
    uses_gensim: ClassVar[bool] = True
    architecture: Literal["skipgram", "cbow"] = Field(
        default="skipgram",
        description="skipgram: a word predicts its neighbours; cbow: the neighbours predict the word",
    )
    size: int = Field(default=100, ge=1, description="dimensions of a vector")
    window: int = Field(default=5, ge=1, le=1000, description="maximum distance of a neighbour; sampled for each word")
    negative: int = Field(default=5, ge=1, description="negative samples for each neighbour")
    subsample: float = Field(default=1e-3, ge=0, description="threshold of the frequency for subsampling; 0: none")
    epochs: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=0.025, gt=0, description="initial; decays linearly to zero")

    def train(self, text: WordFile, folder: Path, stage: Stage, *, seed: int, workers: int | None) -> Trained:
        """Train (words, size) vectors of ``text`` in timed stages; also returns values for the result."""
        with stage("training") as on_progress:
            return train_word2vec(text, self, folder, seed=seed, workers=workers, on_progress=on_progress), {}


class GloveConfig(Config):
    """GloVe (Pennington et al. 2014): weighted least squares on the logarithms of co-occurrence counts."""

    kind: Literal["glove"] = "glove"
    uses_gensim: ClassVar[bool] = False
    size: int = Field(default=100, ge=1, description="dimensions of a vector")
    window: int = Field(
        default=10, ge=1, le=1000, description="maximum distance of a co-occurrence, which counts 1 / distance"
    )
    epochs: int = Field(default=25, ge=1)
    learning_rate: float = Field(
        default=0.15, gt=0, description="learning rate of AdaGrad; a step is a block of the matrix"
    )
    x_max: float = Field(default=100.0, gt=0, description="count from which the weight is 1")
    alpha: float = Field(default=0.75, ge=0, le=1, description="below x_max the weight is (count / x_max) ** alpha")

    def train(self, text: WordFile, folder: Path, stage: Stage, *, seed: int, workers: int | None) -> Trained:
        """Train as `Word2VecConfig.train`.

        Raises:
            UserError: no pairs of words.
        """
        with stage("counting pairs") as on_progress:
            matrix = count_pairs(text, folder, window=self.window, workers=workers, on_progress=on_progress)
        if not matrix.cells:
            raise UserError("no two words of the corpus co-occur; give documents of more than one word")
        threads = torch.get_num_threads()
        torch.set_num_threads(workers or available_cores())
        try:
            with stage("training") as on_progress:
                glove = Glove(matrix, self, seed=seed)
                for epoch in glove.epochs(self.epochs):
                    on_progress(epoch.share)
        finally:
            torch.set_num_threads(threads)
        return glove.vectors, {"cells": matrix.cells, "loss": epoch.loss}


VectorsMethod = Annotated[Word2VecConfig | GloveConfig, Field(discriminator="kind")]


class VectorsConfig(Config):
    """Vocabulary and training of word vectors."""

    words: WordsConfig = WordsConfig()
    method: VectorsMethod
    seed: int = Field(default=0, ge=0)
    workers: int | None = Field(
        default=None, ge=1, description="threads; default: one per core. word2vec is reproducible only with 1"
    )


def require_gensim() -> ModuleType:
    """Import ``gensim.models``.

    Raises:
        UserError: gensim is not installed.
    """
    try:
        from gensim import models
    except ImportError as error:
        raise UserError("word2vec needs gensim; pip install 'homespun[vectors]', or train GloVe") from error
    return models


def train_word2vec(
    text: WordFile,
    config: Word2VecConfig,
    folder: str | Path,
    *,
    seed: int,
    workers: int | None = None,
    on_progress: OnProgress = lambda share: None,
) -> NDArray[np.float32]:
    """Train (words, size) vectors by word2vec, with a temporary file of 2 to 7 bytes per word in ``folder``.

    ``workers`` are threads, by default one per core; the training is reproducible with one.

    Raises:
        UserError: gensim is not installed.
    """
    models = require_gensim()
    path = Path(folder) / "words.txt"
    lines = 0
    with path.open("w", encoding="ascii") as stream:
        for ids in text.documents():
            for start in range(0, len(ids), _LINE):
                stream.write(" ".join(map(str, ids[start : start + _LINE].tolist())) + "\n")
                lines += 1
    model = models.Word2Vec(
        vector_size=config.size,
        window=config.window,
        min_count=1,
        sg=int(config.architecture == "skipgram"),
        hs=0,
        negative=config.negative,
        sample=config.subsample,
        alpha=config.learning_rate,
        seed=seed,
        workers=max(1, min(workers or available_cores(), lines)),
    )
    frequencies = {str(index): count for index, count in enumerate(text.counts.tolist())}
    model.build_vocab_from_freq(frequencies, corpus_count=lines)
    model.train(
        corpus_file=str(path),
        total_examples=lines,
        total_words=int(text.counts.sum()),
        epochs=config.epochs,
        callbacks=[_Epochs(config.epochs, on_progress)],
    )
    path.unlink()
    rows = np.array([model.wv.key_to_index[str(index)] for index in range(len(text.words))])
    return np.asarray(model.wv.vectors, np.float32)[rows]


class _Epochs:
    """Callback of gensim that reports progress."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self.total, self.on_progress, self.done = total, on_progress, 0

    def on_epoch_end(self, model: object) -> None:
        self.done += 1
        self.on_progress(self.done / self.total)

    def on_epoch_begin(self, model: object) -> None: ...
    def on_train_begin(self, model: object) -> None: ...
    def on_train_end(self, model: object) -> None: ...


@dataclass(frozen=True)
class Epoch:
    """Progress of GloVe."""

    share: float  # completed share of all epochs
    loss: float  # mean weighted squared error of a cell


@dataclass(frozen=True)
class _Side:
    """Vectors of words or contexts, (words, size + 2).

    The last two columns are the bias and 1 for words, 1 and the bias for contexts, so that the product of two rows
    includes both biases.
    """

    values: Tensor
    squares: Tensor  # sums of squared gradients
    ones: int  # the column that stays 1

    @classmethod
    def random(cls, words: int, size: int, ones: int, generator: torch.Generator) -> _Side:
        values = (torch.rand(words, size + 2, generator=generator) - 0.5) / size
        values[:, ones] = 1.0
        return cls(values, torch.zeros_like(values), ones)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        gradient[:, self.ones] = 0.0
        self.squares.addcmul_(gradient, gradient)
        self.values.addcdiv_(gradient, self.squares.sqrt().add_(_EPS), value=-learning_rate)


class Glove:
    """Training of GloVe vectors: iterate over `epochs`, then read `vectors`.

    ``seed`` determines the initialisation and the order of blocks.
    """

    def __init__(self, matrix: Cooccurrence, config: GloveConfig, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.matrix, self.config = matrix, config
        size = config.size
        self.words = _Side.random(matrix.words, size, size + 1, generator)
        self.contexts = _Side.random(matrix.words, size, size, generator)
        self._order = np.random.default_rng(seed)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Sum of word and context vectors, (words, size) (section 4.2)."""
        return (self.words.values + self.contexts.values)[:, : self.config.size].numpy()

    def epochs(self, count: int) -> Iterator[Epoch]:
        """Train ``count`` epochs; yield the progress after each block."""
        blocks = self.matrix.blocks
        for number in range(count):
            total = seen = 0.0
            for index, block in enumerate(self._order.permutation(blocks)):
                loss, cells = self._update(self.matrix.block(int(block)))
                total, seen = total + loss, seen + cells
                yield Epoch((number + (index + 1) / blocks) / count, total / max(seen, 1))

    def _update(self, block: Block) -> tuple[float, int]:
        """Update words, then contexts; return the summed loss before the updates and the number of cells."""
        counts = torch.from_numpy(np.array(block.weights))
        weights = (counts / self.config.x_max).clamp_(max=1.0).pow_(self.config.alpha)
        targets = counts.log_().neg_()
        starts, columns = (torch.from_numpy(np.array(part)) for part in (block.row_starts, block.columns))
        words = torch.from_numpy(block.words)
        loss = 0.0
        for side, other in ((self.words, self.contexts), (self.contexts, self.words)):
            fixed = other.values[words]
            shape = (self.matrix.words, len(words))
            errors = torch.sparse.sampled_addmm(_csr(starts, columns, targets, shape), side.values, fixed.T)
            weighted = errors.values() * weights
            loss += float(torch.dot(weighted, errors.values()))
            gradient = torch.mm(_csr(starts, columns, weighted, shape), fixed)
            side.step(gradient, self.config.learning_rate)
        return loss / 2, len(weights)


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # beta
        return torch.sparse_csr_tensor(starts, columns, values, size=shape, check_invariants=False)
