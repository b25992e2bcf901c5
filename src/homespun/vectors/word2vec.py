"""word2vec by gensim, which reads words as numbers, so that any word is safe in its files."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError
from homespun.vectors.config import Word2VecConfig
from homespun.vectors.word_file import OnProgress, WordFile, split_into_lines

_LINE = 10_000  # words of a line, the limit of gensim's compiled loop


def require_gensim() -> ModuleType:
    """Import ``gensim.models``.

    Raises:
        UserError: it is not installed.
    """
    try:
        from gensim import models
    except ImportError as error:
        raise UserError(
            "word2vec needs gensim, which is not installed: pip install 'homespun[vectors]' (GloVe needs none)"
        ) from error
    module: ModuleType = models
    return module


def train_word2vec(
    text: WordFile,
    config: Word2VecConfig,
    folder: str | Path,
    *,
    seed: int,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> NDArray[np.float32]:
    """Train word2vec.

    Args:
        text: the words.
        config: the settings.
        folder: for a temporary file of all words, of 2 to 7 bytes each.
        seed: of the training, which is reproducible with one worker; several update the same vectors.
        workers: threads; by default one a core.
        on_progress: called after each epoch, with the share that is done.

    Returns:
        (words, size) vectors.

    Raises:
        UserError: gensim is not installed.
    """
    models = require_gensim()
    path = Path(folder) / "words.txt"
    lines = 0
    with path.open("w", encoding="ascii") as stream:
        for line in split_into_lines(text.documents(), _LINE):
            stream.write(" ".join(map(str, line)) + "\n")
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
        workers=max(1, min(workers or os.cpu_count() or 1, lines)),
    )
    model.build_vocab_from_freq({str(index): count for index, count in enumerate(text.counts.tolist())}, lines)
    model.train(
        corpus_file=str(path),
        total_examples=lines,
        total_words=int(text.counts.sum()),
        epochs=config.epochs,
        callbacks=[_Epochs(config.epochs, on_progress)],
    )
    path.unlink()
    rows = np.array([model.wv.key_to_index[str(index)] for index in range(len(text.words))])
    vectors: NDArray[np.float32] = np.asarray(model.wv.vectors, np.float32)[rows]
    return vectors


class _Epochs:
    """Callback of gensim that reports progress."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self.total, self.on_progress, self.done = total, on_progress, 0

    def on_epoch_end(self, model: object) -> None:
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done / self.total)

    def on_epoch_begin(self, model: object) -> None: ...
    def on_train_begin(self, model: object) -> None: ...
    def on_train_end(self, model: object) -> None: ...
