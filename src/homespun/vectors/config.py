"""The settings of word vectors: how words are taken from a corpus, and how vectors are trained of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from homespun.config import Config
from homespun.vectors.word_file import Unit


class WordsConfig(Config):
    """What counts as a word."""

    unit: Unit = Field(
        default="words", description="words of the text, or tokens as the corpus's tokenizer has them, special ones out"
    )
    lowercase: bool = Field(default=True, description="words that are cut from the text; tokens stay as they are")
    min_count: int = Field(default=5, ge=1, description="words that stand there less often are left out")
    max_words: int = Field(default=400_000, ge=2, description="the most frequent so many at the most")


class Word2VecConfig(Config):
    """word2vec with negative sampling and subsampling (Mikolov et al. 2013), by gensim."""

    kind: Literal["word2vec"] = "word2vec"
    architecture: Literal["skipgram", "cbow"] = Field(
        default="skipgram", description="skipgram: a word tells its neighbours; cbow: they tell it"
    )
    size: int = Field(default=100, ge=1, description="width of a vector")
    window: int = Field(default=5, ge=1, le=1000, description="words to either side, drawn anew up to so many")
    negative: int = Field(default=5, ge=1, description="words drawn at random beside each true one")
    subsample: float = Field(
        default=1e-3, ge=0, description="words more frequent than that are left out at times; 0: no"
    )
    epochs: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=0.025, gt=0, description="at the start; it falls linearly")


class GloveConfig(Config):
    """GloVe (Pennington et al. 2014): weighted least squares on the logarithms of co-occurrence counts."""

    kind: Literal["glove"] = "glove"
    size: int = Field(default=100, ge=1, description="width of a vector")
    window: int = Field(default=10, ge=1, le=1000, description="words to either side, which count 1 / distance")
    epochs: int = Field(default=25, ge=1)
    learning_rate: float = Field(default=0.15, gt=0, description="of AdaGrad, a step being a block of the matrix")
    x_max: float = Field(default=100.0, gt=0, description="a count from which on a cell weighs 1")
    alpha: float = Field(default=0.75, ge=0, le=1, description="below x_max a cell weighs (count / x_max) ** alpha")


VectorsMethod = Annotated[Word2VecConfig | GloveConfig, Field(discriminator="kind")]


class VectorsConfig(Config):
    """Word vectors, whole."""

    words: WordsConfig = WordsConfig()
    method: VectorsMethod
    seed: int = Field(default=0, ge=0)
    workers: int | None = Field(
        default=None, ge=1, description="threads; by default one a core. word2vec repeats itself with 1 only"
    )
