"""Commands `homespun tokenizer ...` and `homespun corpus ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.choices import TokenizerKind
from homespun.cli.options import (
    Columns,
    CommandGroup,
    Encoding,
    Input,
    Json,
    LabelField,
    MaxCharacters,
    Normalise,
    Out,
    RemovedDuplicates,
    TextFields,
    check_inputs,
    print_result,
    split_list,
    writing_from,
)
from homespun.errors import UserError

tokenizer_app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Train or extend a tokenizer.")
corpus_app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Build and verify a corpus, show text lengths.")


@tokenizer_app.command("train")
def tokenizer_train(
    inputs: Input,
    out: Out,
    kind: Annotated[TokenizerKind, typer.Option(help="Kind.")] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Vocabulary size, special tokens included.")] = 16_000,
    lowercase: Annotated[bool, typer.Option(help="Convert all text to lower case.")] = False,
    sentinels: Annotated[
        int, typer.Option(min=0, help="Number of sentinel tokens, which span corruption (T5) needs.")
    ] = 0,
    text_fields: TextFields = None,
    encoding: Encoding = None,
    columns: Columns = None,
    normalise: Normalise = True,
    max_characters: MaxCharacters = "64M",
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Train on a sample that the Ray cluster of RAY_ADDRESS draws; see docs/scaling."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on your text."""
    from homespun.config import parse_count, parse_option
    from homespun.data.reading import reading

    text = reading(
        inputs,
        text_fields=text_fields or ("text",),
        encoding=encoding,
        columns=split_list(columns),
        normalise=normalise,
        duplicates="keep",
        max_characters=parse_option(parse_count, max_characters, "--max-characters") or 0,
    )
    from homespun.commands.preparation import train_tokenizer

    with writing_from(inputs, out, "reading for the tokenizer", as_json) as progress:
        tokenizer = train_tokenizer(
            text,
            out,
            kind=kind,
            vocab_size=vocab_size,
            lowercase=lowercase,
            sentinels=sentinels,
            ray=ray,
            **progress,
        )
    print_result(
        {
            "tokenizer": str(out),
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
        },
        as_json,
    )


@tokenizer_app.command("extend", short_help="Add tokens to a tokenizer.")
def tokenizer_extend(
    source: Annotated[str, typer.Argument(help="Run, model or tokenizer folder.")],
    out: Out,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", callback=check_inputs, help="File, glob or folder for --add; repeatable."),
    ] = None,
    add: Annotated[
        int, typer.Option("--add", min=0, help="Number of words to add; those that save the most tokens are chosen.")
    ] = 0,
    sentinels: Annotated[
        int, typer.Option(min=0, help="Number of sentinel tokens to add, which span corruption (T5) needs.")
    ] = 0,
    text_fields: TextFields = None,
    encoding: Encoding = None,
    columns: Columns = None,
    normalise: Normalise = True,
    as_json: Json = False,
) -> None:
    """Add words or sentinel tokens to the tokenizer of a model, to continue pretraining with them (`--from`)."""
    from homespun.commands.preparation import extend_tokenizer
    from homespun.data.reading import reading

    if inputs and not add:
        raise UserError("--input needs --add COUNT, the number of words to take from it; give --add, or leave it out")
    text = None
    if add:
        text = reading(
            inputs or [],
            text_fields=text_fields or ("text",),
            encoding=encoding,
            columns=split_list(columns),
            normalise=normalise,
            duplicates="keep",
        )
    with writing_from(inputs or [], out, "reading for new words", as_json) as progress:
        tokenizer, words = extend_tokenizer(source, text, out, add=add, sentinels=sentinels, **progress)
    first = tokenizer.vocab_size - sentinels - len(words)
    shown = [tokenizer.decode([first + number]).strip() for number in range(len(words))]
    print_result(
        {
            "tokenizer": str(out),
            "vocab_size": tokenizer.vocab_size,
            "tokens_saved": sum(word.gain for word in words),
            "words": shown if as_json else f"{', '.join(shown[:12])}{' ...' if len(shown) > 12 else ''}",
            "fingerprint": tokenizer.fingerprint,
        },
        as_json,
    )


@corpus_app.command("build")
def corpus_build(
    inputs: Input,
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="Tokenizer: folder or tokenizer.json.")],
    out: Out,
    text_fields: TextFields = None,
    label_field: LabelField = None,
    encoding: Encoding = None,
    columns: Columns = None,
    normalise: Normalise = True,
    duplicates: RemovedDuplicates = "exact",
    max_characters: MaxCharacters = "64M",
    sentences: Annotated[
        bool, typer.Option(help="Store sentence ends, for next sentence prediction and encoder-decoders.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Number of threads; default: one per core.")] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Build on the Ray cluster at RAY_ADDRESS, or on a local one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tokenize text into a memory-mapped corpus.

    After an interruption, the same command continues.
    """
    if ray and workers is not None:
        raise UserError("--workers is the number of threads of one machine; leave it out with --ray")
    from homespun.config import parse_count, parse_option
    from homespun.data.reading import reading

    text = reading(
        inputs,
        text_fields=text_fields or ("text",),
        label_field=label_field,
        encoding=encoding,
        columns=split_list(columns),
        normalise=normalise,
        duplicates=duplicates,
        max_characters=parse_option(parse_count, max_characters, "--max-characters") or 0,
    )
    from homespun.commands.preparation import describe_corpus, make_corpus

    with writing_from(inputs, out, "building the corpus", as_json) as progress:
        corpus = make_corpus(text, tokenizer, out, workers=workers, sentences=sentences, ray=ray, **progress)
    print_result(describe_corpus(corpus, out), as_json)


@corpus_app.command("verify", short_help="Compare the checksums of a corpus.")
def corpus_verify(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder.")],
    as_json: Json = False,
) -> None:
    """Read all files of a corpus and compare their checksums, such as after copying it."""
    from homespun.commands.preparation import verify_corpus
    from homespun.report.console import Display

    with Display(json=as_json) as display:
        print_result(verify_corpus(corpus, display=display), as_json)


@corpus_app.command("lengths", short_help="Show text lengths in tokens by class and split.")
def corpus_lengths(
    corpus: Annotated[Path | None, typer.Argument(help="Corpus folder; or --input with --tokenizer.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", callback=check_inputs, help="Labelled file, one per split; repeatable."),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Tokenizer for --input.")] = None,
    text_fields: TextFields = None,
    label_field: LabelField = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Show the mean, median, minimum, maximum and histogram of text lengths in tokens, by class and split."""
    from homespun.commands.preparation import corpus_lengths, file_lengths

    if (corpus is None) == (not inputs):
        raise UserError("give either a corpus folder, or --input files with --tokenizer")
    if corpus is not None:
        rows = corpus_lengths(corpus)
    else:
        if tokenizer is None:
            raise UserError("--input needs --tokenizer FOLDER, to count tokens")
        rows = file_lengths(
            inputs or [],
            tokenizer,
            text_fields=text_fields or ("text",),
            label_field=label_field,
            encoding=encoding,
            columns=split_list(columns),
        )
    if as_json:
        print_result({"lengths": rows}, as_json)
        return
    from homespun.report.console import print_lengths

    print_lengths(rows)
