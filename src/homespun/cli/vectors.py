"""The verbs of word vectors: `homespun vectors ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import CommandGroup, Json, Out, Overrides, print_result, split_list

vectors_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Train word vectors, ask them, measure them, draw them."
)
Vectors = Annotated[Path, typer.Argument(help="Folder of word vectors, or a .txt, .vec or .bin file of word2vec.")]
Count = Annotated[int, typer.Option("--count", help="How many words to show.")]


@vectors_app.command("train")
def vectors_train(
    method: Annotated[str, typer.Argument(help="word2vec (by gensim) or glove.")],
    corpus: Annotated[Path, typer.Option("--corpus", help="Folder made by `homespun corpus build`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder, or a .txt, .vec or .bin file of word2vec.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train word vectors of a corpus."""
    from homespun.commands.vectors import train_vectors, vectors_config
    from homespun.report.console import Display

    config = vectors_config(method, overrides or ())
    with Display(json=as_json) as display:
        result = train_vectors(corpus, config, out, display=display)
    print_result(result, as_json)


@vectors_app.command("similar", short_help="The words nearest to a word, with their cosines.")
def vectors_similar(
    vectors: Vectors,
    word: Annotated[str, typer.Argument(help="Whose neighbours to show.")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """The words whose vectors are nearest to a word's, with their cosines."""
    from homespun.vectors.store import open_vectors

    _print_words(open_vectors(vectors).similar(word, count), as_json)


@vectors_app.command("analogy")
def vectors_analogy(
    vectors: Vectors,
    a: Annotated[str, typer.Argument(help="A is to B")],
    b: Annotated[str, typer.Argument(help="as")],
    c: Annotated[str, typer.Argument(help="C is to what is shown.")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """What is to C as B is to A: the words nearest to B - A + C."""
    from homespun.vectors.store import open_vectors

    _print_words(open_vectors(vectors).analogy(a, b, c, count), as_json)


@vectors_app.command("evaluate", short_help="Measure them by analogies and similarities.")
def vectors_evaluate(
    vectors: Vectors,
    data: Annotated[Path, typer.Option("--data", help="Lists of analogies and similarities: a file or a folder.")],
    as_json: Json = False,
) -> None:
    """Accuracy of analogies by section, rank correlation with people's similarities, and how much is covered."""
    from homespun.commands.vectors import measure_vectors

    found = measure_vectors(vectors, data)
    if as_json:
        print_result(found, as_json)
        return
    facts: dict[str, Any] = {}
    for name, list_ in found["analogies"].items():
        for section, score in list_["sections"].items():
            facts[f"{name}: {section}"] = _format_accuracy(score)
        facts[name] = _format_accuracy(list_)
    for name, list_ in found["similarities"].items():
        measured = "-" if list_["spearman"] is None else f"{list_['spearman']:.3f}"
        facts[name] = f"Spearman {measured} on {list_['covered']:,} of {list_['pairs']:,} pairs"
    print_result(facts, as_json)


@vectors_app.command("map")
def vectors_map(
    vectors: Vectors,
    out: Annotated[Path, typer.Option("--out", help="A .png or .svg file.")],
    words: Annotated[str | None, typer.Option("--words", help="Which: a,b,c.")] = None,
    top: Annotated[int | None, typer.Option("--top", help="Or so many of the most frequent.")] = None,
    how: Annotated[str, typer.Option("--how", help="pca or tsne.")] = "pca",
    seed: Annotated[int, typer.Option(help="Of what is drawn at random.")] = 0,
    as_json: Json = False,
) -> None:
    """A picture of words in a plane."""
    from homespun.cli.options import check_choice
    from homespun.commands.vectors import map_vectors
    from homespun.vectors.projection import PROJECTIONS

    print_result(
        map_vectors(
            vectors, out, words=split_list(words), top=top, how=check_choice(how, PROJECTIONS, "--how"), seed=seed
        ),
        as_json,
    )


@vectors_app.command("convert", short_help="Write word vectors in another form.")
def vectors_convert(
    vectors: Vectors,
    out: Annotated[Path, typer.Option("--out", help="Folder, or a .txt, .vec or .bin file of word2vec.")],
    as_json: Json = False,
) -> None:
    """Write word vectors in another form: our folder, or word2vec's text or binary, which gensim reads."""
    from homespun.vectors.store import open_vectors, save_vectors

    opened = open_vectors(vectors)
    save_vectors(opened, out)
    print_result({"vectors": str(out), "words": len(opened), "size": opened.size}, as_json)


@vectors_app.command("begin", short_help="Write an untrained model that begins with word vectors.")
def vectors_begin(
    recipe: Annotated[str, typer.Argument(help="A recipe of pretraining, whose model is taken, or a .yaml file.")],
    vectors: Annotated[Path, typer.Option("--vectors", help="Word vectors for its embeddings.")],
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="Folder or tokenizer.json.")],
    out: Out,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write an untrained model that begins with word vectors, for `finetune --from`."""
    from homespun.commands.vectors import init_model

    print_result(init_model(recipe, overrides or (), out, tokenizer=tokenizer, vectors=vectors), as_json)


def _print_words(words: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        print_result({"words": [{"word": word, "cosine": cosine} for word, cosine in words]}, as_json)
    else:
        print_result({word: f"{cosine:.3f}" for word, cosine in words}, as_json)


def _format_accuracy(score: dict[str, Any]) -> str:
    accuracy = "-" if score["accuracy"] is None else f"{100 * score['accuracy']:.1f} %"
    return f"{accuracy} of {score['covered']:,} answered, of {score['questions']:,} questions"
