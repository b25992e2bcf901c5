"""Commands `homespun vectors ...`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from homespun.choices import Projection
from homespun.cli.options import CommandGroup, Json, Out, Overrides, print_result, split_list, writing

vectors_app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Train, query, evaluate and plot word vectors.")
Vectors = Annotated[Path, typer.Argument(help="Folder of word vectors, or a .txt, .vec or .bin file of word2vec.")]
VectorsOut = Annotated[Path, typer.Option("--out", help="Output: folder, or word2vec file .txt, .vec or .bin.")]
Count = Annotated[int, typer.Option("--count", help="Number of words to show.")]


@vectors_app.command("train")
def vectors_train(
    method: Annotated[str, typer.Argument(help="Method: word2vec (gensim) or glove.")],
    corpus: Annotated[Path, typer.Option("--corpus", help="Corpus folder of `homespun corpus build`.")],
    out: VectorsOut,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train word vectors on a corpus."""
    from homespun.commands.vectors import train_vectors, vectors_config

    config = vectors_config(method, overrides or ())
    with writing(out, as_json, as_one=True) as display:
        result = train_vectors(corpus, config, out, display=display)
    print_result(result, as_json)


@vectors_app.command("similar", short_help="List the most similar words.")
def vectors_similar(
    vectors: Vectors,
    word: Annotated[str, typer.Argument(help="Query word.")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """List the words with the highest cosine similarity to a word."""
    from homespun.vectors.store import open_vectors

    _print_words(open_vectors(vectors).similar(word, count), as_json)


@vectors_app.command("analogy")
def vectors_analogy(
    vectors: Vectors,
    a: Annotated[str, typer.Argument(help="A of A : B = C : ?")],
    b: Annotated[str, typer.Argument(help="B of A : B = C : ?")],
    c: Annotated[str, typer.Argument(help="C of A : B = C : ?")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """Solve A : B = C : ? with words near the vector B - A + C."""
    from homespun.vectors.store import open_vectors

    _print_words(open_vectors(vectors).analogy(a, b, c, count), as_json)


@vectors_app.command("evaluate", short_help="Evaluate word vectors on analogies and word similarities.")
def vectors_evaluate(
    vectors: Vectors,
    data: Annotated[Path, typer.Option("--data", help="File or folder of analogies and word similarities.")],
    as_json: Json = False,
) -> None:
    """Evaluate word vectors on analogies and word similarities."""
    from homespun.commands.vectors import measure_vectors

    result = measure_vectors(vectors, data)
    if as_json:
        print_result(result, as_json)
        return
    facts: dict[str, str] = {}
    for name, scores in result["analogies"].items():
        for section, score in scores["sections"].items():
            facts[f"{name}: {section}"] = _format_accuracy(score)
        facts[name] = _format_accuracy(scores)
    for name, scores in result["similarities"].items():
        spearman = "-" if scores["spearman"] is None else f"{scores['spearman']:.3f}"
        facts[name] = f"Spearman {spearman} on {scores['covered']:,} of {scores['pairs']:,} pairs"
    print_result(facts, as_json)


@vectors_app.command("map")
def vectors_map(
    vectors: Vectors,
    out: Annotated[Path, typer.Option("--out", help="Output file, .png or .svg.")],
    words: Annotated[str | None, typer.Option("--words", help="Comma-separated words to plot.")] = None,
    top: Annotated[int | None, typer.Option("--top", help="Number of most frequent words to plot.")] = None,
    method: Annotated[Projection, typer.Option("--method", help="Projection.")] = "pca",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Plot words in two dimensions."""
    from homespun.commands.vectors import map_vectors

    result = map_vectors(vectors, out, words=split_list(words), top=top, method=method, seed=seed)
    print_result(result, as_json)


@vectors_app.command("convert", short_help="Convert word vectors.")
def vectors_convert(
    vectors: Vectors,
    out: VectorsOut,
    as_json: Json = False,
) -> None:
    """Convert word vectors to a folder, or to the text or binary format of word2vec."""
    from homespun.io.lock import locked
    from homespun.vectors.store import open_vectors, save_vectors

    opened = open_vectors(vectors)
    with locked(out, as_one=True):
        save_vectors(opened, out)
    print_result({"vectors": str(out), "words": len(opened), "size": opened.size}, as_json)


@vectors_app.command("init-model", short_help="Write an untrained model with word vectors as embeddings.")
def vectors_init_model(
    recipe: Annotated[str, typer.Argument(help="Pretraining recipe that defines the model: name or .yaml file.")],
    vectors: Annotated[Path, typer.Option("--vectors", help="Word vectors to initialise the embeddings with.")],
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="Folder or tokenizer.json.")],
    out: Out,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write an untrained model with word vectors as embeddings, to use with `finetune --from`."""
    from homespun.commands.vectors import init_model
    from homespun.io.lock import locked

    with locked(out, as_one=True):
        result = init_model(recipe, overrides or (), out, tokenizer=tokenizer, vectors=vectors)
    print_result(result, as_json)


def _print_words(words: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        print_result({"words": [{"word": word, "cosine": cosine} for word, cosine in words]}, as_json)
    else:
        print_result({word: f"{cosine:.3f}" for word, cosine in words}, as_json)


def _format_accuracy(score: Mapping[str, float | None]) -> str:
    accuracy = "-" if score["accuracy"] is None else f"{100 * score['accuracy']:.1f} %"
    return f"{accuracy}, {score['covered']:,} answered of {score['questions']:,} questions"
