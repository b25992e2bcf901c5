"""Word vectors: training on a corpus, evaluation, plots, and models that start from them."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from homespun.commands.recipe import pretrain_recipe
from homespun.commands.workload import with_vocabulary
from homespun.config import Tree, override, validate
from homespun.data.corpus import Corpus
from homespun.errors import UserError
from homespun.io.atomic import write_bytes
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.report.console import Display
from homespun.report.plots import draw_embeddings
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.embedding_init import init_embeddings
from homespun.vectors.evaluation import evaluate_vectors, read_lists
from homespun.vectors.store import check_output_path, open_vectors, save_vectors
from homespun.vectors.training import VectorsConfig, require_gensim
from homespun.vectors.word_file import OnProgress, write_words
from homespun.vectors.word_vectors import PROJECTIONS, Projection, WordVectors, frequent_words, project_2d

METHODS = ("word2vec", "glove")


def vectors_config(method: str, overrides: Sequence[str] = ()) -> VectorsConfig:
    """The settings of ``method`` with ``KEY=VALUE`` overrides: ``method.size=50``, ``words.min_count=2``.

    Raises:
        UserError: an unknown method, key or value.
    """
    if method not in METHODS:
        raise UserError(f"vectors are trained by {' or '.join(METHODS)}, not {method!r}")
    return validate(VectorsConfig, override({"method": {"kind": method}}, overrides), source=f"vectors train {method}")


def train_vectors(
    corpus: str | Path, config: VectorsConfig, out: str | Path, *, display: Display | None = None
) -> dict[str, object]:
    """Train word vectors of ``corpus`` and write them to ``out``; returns what came of it.

    Args:
        corpus: made by `homespun corpus build`, with any tokenizer.
        config: of `vectors_config`.
        out: a folder, or a file of word2vec's that ends in .txt, .vec or .bin. All words in numbers, and the counts of
            pairs for GloVe, are written to the same folder meanwhile.
        display: where progress is shown; nowhere by default.

    Returns:
        ``vectors``, ``words``, ``size``, ``text_words`` (how many were read, those of rare words left out), ``cells``
        (of GloVe's matrix), ``loss`` (GloVe's, of the last epoch), ``seconds`` {counting words, counting pairs,
        training}.

    Raises:
        UserError: no corpus, no words in it, ``out`` holds something else, or gensim is missing.
    """
    display = display or Display(json=True)
    out = Path(out)
    check_output_path(out)
    if config.method.uses_gensim:
        require_gensim()
    opened = Corpus.open(corpus)
    out.parent.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    stage = functools.partial(_TimedStage, seconds=seconds, display=display)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        with stage("counting words") as on_progress:
            text = write_words(opened, Path(folder) / "words", on_progress=on_progress, **config.words.model_dump())
        vectors, facts = config.method.train(text, Path(folder), stage, seed=config.seed, workers=config.workers)
        read = int(text.ends[-1])
        about = {"config": config.model_dump(mode="json"), "corpus": str(corpus), "text_words": read, **facts}
        save_vectors(WordVectors(text.words, vectors, text.counts, about), out)
    size = config.method.size
    return {
        "vectors": str(out),
        "words": len(text.words),
        "size": size,
        "text_words": read,
        **facts,
        "seconds": seconds,
    }


class _TimedStage:
    """A part of the work: shown, and timed."""

    def __init__(self, name: str, seconds: dict[str, float], display: Display) -> None:
        self.name, self.seconds, self.task = name, seconds, display.task(name, total=1.0)

    def __enter__(self) -> OnProgress:
        self.began = time.perf_counter()
        return self.task.update

    def __exit__(self, *error: object) -> None:
        self.seconds[self.name] = round(time.perf_counter() - self.began, 3)


def measure_vectors(vectors: str | Path, data: str | Path) -> Tree:
    """Analogies and similarities of the lists in ``data``: see `homespun.vectors.evaluation.evaluate_vectors`.

    Raises:
        UserError: no vectors, no lists, or a damaged one.
    """
    return evaluate_vectors(open_vectors(vectors), read_lists(data))


def map_vectors(
    vectors: str | Path,
    out: str | Path,
    *,
    words: Sequence[str] | None = None,
    top: int | None = None,
    method: Projection = "pca",
    seed: int = 0,
) -> dict[str, object]:
    """Draw words in a plane, into the .png or .svg file ``out``.

    Args:
        vectors: what `open_vectors` opens.
        out: the picture.
        words: which; or
        top: so many of the most frequent that have a letter in them.
        method: see `homespun.vectors.word_vectors.project_2d`.
        seed: of what is drawn at random.

    Raises:
        UserError: a word without a vector, fewer than three words, another kind of picture.
    """
    out = Path(out)
    if out.suffix not in (".png", ".svg"):
        raise UserError(f"--out is a .png or .svg file, not {out}")
    if method not in PROJECTIONS:
        raise UserError(f"words are laid out by {' or '.join(PROJECTIONS)}, not {method!r}")
    if (words is None) == (top is None):
        raise UserError("which words? give either --words a,b,c or --top N")
    opened = open_vectors(vectors)
    chosen = list(dict.fromkeys(words)) if words is not None else frequent_words(opened, top or 0)
    positions = project_2d(opened, chosen, method=method, seed=seed)
    names = ("first component", "second component") if method == "pca" else ("t-SNE 1", "t-SNE 2")
    plot = draw_embeddings(
        out.stem, chosen, positions, axes_names=names, title=f"{len(chosen)} words of {Path(vectors).name}"
    )
    write_bytes(out, plot.png if out.suffix == ".png" else plot.svg)
    return {"map": str(out), "words": len(chosen)}


def init_model(
    recipe: str,
    overrides: Sequence[str],
    out: str | Path,
    *,
    tokenizer: str | Path,
    vectors: str | Path,
) -> dict[str, object]:
    """Write the model of a pretraining recipe into the ``model/`` folder ``out`` as it is drawn, but with the
    embeddings of ``vectors``: what `finetune --from` can start from without any pretraining.

    Args:
        recipe: shipped, or a file; its model and its seed are read.
        overrides: ``model.embedding_size=100`` and the like.
        out: a new folder.
        tokenizer: a folder, or a corpus's ``tokenizer/``.
        vectors: what `open_vectors` opens.

    Raises:
        UserError: vectors that do not fit the model or the tokenizer, ``out`` holds something else.
    """
    read = pretrain_recipe(recipe, overrides)
    loaded = Tokenizer.load(tokenizer)
    folder = Path(out)
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder} exists; give --out a new or empty folder")
    opened = open_vectors(vectors)
    torch.manual_seed(read.train.seed)
    config = ModelConfig(backbone=with_vocabulary(read.backbone, loaded, read.data.max_length))
    model = config.build()
    initialized = init_embeddings(model, loaded, opened, source=str(vectors)).summary()
    save_model(folder, model, config, loaded, task={"max_length": read.data.max_length, "vectors": initialized})
    return {"model": str(folder), "parameters": sum(p.numel() for p in model.parameters()), "vectors": initialized}
