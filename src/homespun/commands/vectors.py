"""Word vectors: training on a corpus, evaluation, plots, and models initialised with them."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import torch

from homespun.choices import Projection
from homespun.commands.recipe import pretrain_recipe
from homespun.commands.workload import with_vocabulary
from homespun.config import Tree, override, validate
from homespun.data.corpus import Corpus
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, entries
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.report.console import SILENT, Display
from homespun.report.plots import draw_embeddings
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.embedding_init import init_embeddings
from homespun.vectors.evaluation import evaluate_vectors, read_lists
from homespun.vectors.store import check_output_path, open_vectors, save_vectors
from homespun.vectors.training import VectorsConfig, require_gensim
from homespun.vectors.word_file import OnProgress, write_words
from homespun.vectors.word_vectors import WordVectors, frequent_words, project_2d

METHODS = ("word2vec", "glove")


def vectors_config(method: str, overrides: Sequence[str] = ()) -> VectorsConfig:
    """Return the settings of ``method`` with ``KEY=VALUE`` overrides, such as ``method.size=50``.

    Raises:
        UserError: unknown method, key or value.
    """
    if method not in METHODS:
        raise UserError(f"method must be {' or '.join(METHODS)}, not {method!r}")
    return validate(VectorsConfig, override({"method": {"kind": method}}, overrides), source=f"vectors train {method}")


def train_vectors(
    corpus: str | Path, config: VectorsConfig, out: str | Path, *, display: Display = SILENT
) -> dict[str, object]:
    """Train word vectors on a corpus and write them to ``out``.

    Temporary files (word ids, and co-occurrence counts of GloVe) are written next to ``out``.

    Args:
        corpus: corpus of `homespun corpus build`, with any tokenizer.
        config: settings of `vectors_config`.
        out: a folder, or a word2vec file .txt, .vec or .bin.
        display: where progress is shown; nowhere by default.

    Returns:
        ``vectors`` (the path), ``words`` (number of words), ``size``, ``text_words`` (words of the text without rare
        ones), ``cells`` (of GloVe's matrix), ``loss`` (GloVe's, of the last epoch), ``seconds`` {counting words,
        counting pairs, training}.

    Raises:
        UserError: there is no corpus, no word in it, ``out`` has other files, or gensim is missing.
    """
    out = Path(out)
    check_output_path(out)
    if config.method.uses_gensim:
        require_gensim()
    opened = Corpus.open(corpus)
    out.parent.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    stage = functools.partial(_timed_stage, seconds=seconds, display=display)
    # a name as of `homespun.io.atomic.atomic_path`, so that the folder of a killed process is found
    prefix = f"{TEMPORARY}{os.getpid()}-"
    with tempfile.TemporaryDirectory(f"-{out.name}", prefix, out.parent) as folder:
        with stage("counting words") as on_progress:
            text = write_words(opened, Path(folder) / "words", config.words, on_progress=on_progress)
        vectors, facts = config.method.train(text, Path(folder), stage, seed=config.seed, workers=config.workers)
        facts = {"text_words": int(text.ends[-1]), **facts}
        about = {"config": config.model_dump(mode="json"), "corpus": str(corpus), **facts}
        save_vectors(WordVectors(text.words, vectors, text.counts, about), out)
    size = config.method.size
    return {"vectors": str(out), "words": len(text.words), "size": size, **facts, "seconds": seconds}


@contextmanager
def _timed_stage(name: str, seconds: dict[str, float], display: Display) -> Iterator[OnProgress]:
    """Show and time a stage."""
    task, start = display.task(name, total=1.0), time.perf_counter()
    try:
        yield task.update
    finally:
        seconds[name] = round(time.perf_counter() - start, 3)


def measure_vectors(vectors: str | Path, data: str | Path) -> Tree:
    """Evaluate word vectors on analogies and similarities.

    Args:
        vectors: word vectors for `open_vectors`.
        data: file or folder of word lists.

    Returns:
        ``analogies`` and ``similarities``, each by the name of the list: ``accuracy`` or ``spearman``, and the numbers
        of questions or pairs, in all and ``covered`` by the vectors.

    Raises:
        UserError: there are no vectors or no lists, or a file is damaged.
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
    """Plot words in two dimensions; give either ``words`` or ``top``.

    Args:
        vectors: word vectors for `open_vectors`.
        out: a .png or .svg file.
        words: words to plot.
        top: number of most frequent words to plot, of those with a letter.
        method: projection, see `homespun.vectors.word_vectors.project_2d`.
        seed: random seed of the projection.

    Returns:
        ``map`` (the file) and ``words``, their number.

    Raises:
        UserError: a word has no vector, there are fewer than three words, or ``out`` has another suffix.
    """
    out = Path(out)
    if out.suffix not in (".png", ".svg"):
        raise UserError(f"--out must end in .png or .svg, not {out.name!r}")
    if method not in get_args(Projection):
        raise UserError(f"--method must be {' or '.join(get_args(Projection))}, not {method!r}")
    if (words is None) == (top is None):
        raise UserError("give either --words a,b,c or --top N")
    opened = open_vectors(vectors)
    chosen = list(dict.fromkeys(words)) if words is not None else frequent_words(opened, top or 0)
    positions = project_2d(opened, chosen, method=method, seed=seed)
    names = ("first component", "second component") if method == "pca" else ("t-SNE 1", "t-SNE 2")
    plot = draw_embeddings(
        out.stem, chosen, positions, axes_names=names, title=f"{len(chosen)} words of {Path(vectors).name}"
    )
    plot.write(out)
    return {"map": str(out), "words": len(chosen)}


def init_model(
    recipe: str, overrides: Sequence[str], out: str | Path, *, tokenizer: str | Path, vectors: str | Path
) -> dict[str, object]:
    """Write an untrained model with word vectors as embeddings, which `finetune --from` can start from.

    Args:
        recipe: name or .yaml file of a pretraining recipe, for the model and the seed.
        overrides: changes to the recipe, such as ``model.embedding_size=100``.
        out: a new or empty folder, which becomes a ``model/`` folder.
        tokenizer: a tokenizer folder, such as ``tokenizer/`` of a corpus.
        vectors: word vectors for `open_vectors`.

    Returns:
        ``model`` (the folder), ``parameters`` and ``vectors``, the coverage of the vocabulary.

    Raises:
        UserError: the vectors do not fit the model or the tokenizer, or ``out`` has files.
    """
    loaded_recipe = pretrain_recipe(recipe, overrides)
    loaded = Tokenizer.load(tokenizer)
    folder = Path(out)
    if folder.exists() and (folder.is_file() or entries(folder)):
        raise UserError(f"--out {folder} exists; give a new or empty folder")
    opened = open_vectors(vectors)
    torch.manual_seed(loaded_recipe.train.seed)
    length = loaded_recipe.data.max_length
    config = ModelConfig(backbone=with_vocabulary(loaded_recipe.backbone, loaded, length))
    model = config.build()
    initialized = init_embeddings(model, loaded, opened, source=str(vectors)).summary()
    save_model(folder, model, config, loaded, task={"max_length": length, "vectors": initialized})
    return {"model": str(folder), "parameters": sum(p.numel() for p in model.parameters()), "vectors": initialized}
