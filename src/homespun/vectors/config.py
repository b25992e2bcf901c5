"""Settings of word vectors: the vocabulary and the training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from homespun.config import Config
from homespun.vectors.word_file import Unit


class WordsConfig(Config):
    """Vocabulary of word vectors."""

    unit: Unit = Field(default="words", description="words of the text, or tokens of the corpus, without special ones")
    lowercase: bool = Field(default=True, description="lowercase words of the text; tokens stay as they are")
    min_count: int = Field(default=5, ge=1, description="minimum frequency of a word")
    max_words: int = Field(default=400_000, ge=2, description="maximum size of the vocabulary")


class Word2VecConfig(Config):
    """word2vec with negative sampling and subsampling (Mikolov et al. 2013), by gensim."""

    kind: Literal["word2vec"] = "word2vec"
    architecture: Literal["skipgram", "cbow"] = Field(
        default="skipgram", description="skipgram: a word predicts its neighbours; cbow: they predict it"
    )
    size: int = Field(default=100, ge=1, description="dimensions of a vector")
    window: int = Field(default=5, ge=1, le=1000, description="maximum distance of a neighbour; drawn for each word")
    negative: int = Field(default=5, ge=1, description="negative samples for each neighbour")
    subsample: float = Field(default=1e-3, ge=0, description="threshold of the frequency for subsampling; 0: none")
    epochs: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=0.025, gt=0, description="initial; it falls linearly to zero")


class GloveConfig(Config):
    """GloVe (Pennington et al. 2014): weighted least squares on the logarithms of co-occurrence counts."""

    kind: Literal["glove"] = "glove"
    size: int = Field(default=100, ge=1, description="dimensions of a vector")
    window: int = Field(
        default=10, ge=1, le=1000, description="maximum distance of a co-occurrence, which counts 1 / distance"
    )
    epochs: int = Field(default=25, ge=1)
    learning_rate: float = Field(default=0.15, gt=0, description="of AdaGrad; a step is a block of the matrix")
    x_max: float = Field(default=100.0, gt=0, description="count from which the weight is 1")
    alpha: float = Field(default=0.75, ge=0, le=1, description="below x_max the weight is (count / x_max) ** alpha")


VectorsMethod = Annotated[Word2VecConfig | GloveConfig, Field(discriminator="kind")]


class VectorsConfig(Config):
    """Vocabulary and training of word vectors."""

    words: WordsConfig = WordsConfig()
    method: VectorsMethod
    seed: int = Field(default=0, ge=0)
    workers: int | None = Field(
        default=None, ge=1, description="threads; by default one a core. word2vec is reproducible with 1 only"
    )
