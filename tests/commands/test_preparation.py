"""From raw files to a corpus, and resuming a stopped build."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from commands_world import assert_refused, run, write_lines

from homespun.commands.preparation import file_lengths, make_corpus, train_tokenizer
from homespun.data import corpus_build
from homespun.data.corpus_build import build_corpus
from homespun.data.reading import reading
from homespun.errors import UserError
from homespun.fitting.fit import fit
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer


def stopped(documents: Iterator[Document]) -> Iterator[Document]:
    yield next(documents)
    raise KeyboardInterrupt


def test_exact_duplicates_are_dropped_of_a_corpus_alone(tmp_path: Path) -> None:
    """The default is that of `homespun corpus build`; a tokenizer, and lengths, are of all that is there."""
    path = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in ["b"] * 5 + ["a c", "a d"]])
    words = ("--input", path, "--vocab-size", "7", "--kind", "words")
    run("tokenizer", "train", *words, "--out", tmp_path / "tokenizer")
    built = run("corpus", "build", "--input", path, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "corpus")
    assert [document.text for document in reading([str(path)]).documents()] == ["b", "a c", "a d"]
    assert built["documents"] == 3
    assert file_lengths([str(path)], tmp_path / "tokenizer")[0]["count"] == 7
    kept, once = reading([str(path)], duplicates="keep"), reading([str(path)])
    assert len(list(kept.documents())) == 7
    trained, other = (
        train_tokenizer(what, tmp_path / name, kind="words", vocab_size=7).fingerprint
        for what, name in ((kept, "kept"), (once, "once"))
    )
    assert Tokenizer.load(tmp_path / "tokenizer").fingerprint == trained != other


def test_a_build_that_was_stopped_goes_on_over_the_same_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    tokenizer = Tokenizer.train(["one two three"] * 3, kind="words", vocab_size=8)
    read = reading([str(tmp_path / "*.jsonl")])
    for out in ("same", "other"):
        with pytest.raises(KeyboardInterrupt):
            build_corpus(stopped(read.documents()), tokenizer, tmp_path / out, inputs=read.describe())
    assert len(make_corpus(read, tokenizer, tmp_path / "same")) == 2
    path.write_text('{"text": "one"}\n{"text": "three"}\n')
    with pytest.raises(UserError, match=r"changed inputs .*\"files\": "):
        make_corpus(read, tokenizer, tmp_path / "other")


@pytest.mark.parametrize(
    "write", [partial(train_tokenizer, vocab_size=8), partial(make_corpus, tokenizer="missing"), fit]
)
def test_an_output_folder_inside_an_input_folder_is_refused(tmp_path: Path, write: Callable[..., object]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "label": "a"}\n')
    inputs = [str(tmp_path)] if write is fit else reading([str(tmp_path)])
    with pytest.raises(UserError, match=r"--out .*inside"):
        write(inputs, out=tmp_path / "inside")
    assert not (tmp_path / "inside").exists()


def test_a_corpus_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_build, "SHARD_TOKENS", 40)
    file = write_lines(tmp_path / "a.jsonl", [{"text": f"sale {n} of the year"} for n in range(100)])
    tokenizer = train_tokenizer(reading([str(file)]), tmp_path / "tokenizer", vocab_size=300)
    corpus = make_corpus(reading([str(file)]), tokenizer, tmp_path / "corpus")
    assert len(corpus.records) > 8
    facts = run("corpus", "verify", corpus.path)
    assert (facts["documents"], facts["tokens"]) == (100, corpus.num_tokens)
    for number in range(1, 8):
        path = corpus.path / corpus.records[number].name
        content = bytearray(path.read_bytes())
        content[content.index(corpus.shards[number].ids.tobytes())] ^= 1
        path.write_bytes(content)
    assert_refused(r"built: tokens-00001\.arrow, .*-00005\.arrow and 2 more; copy", "corpus", "verify", corpus.path)
    assert_refused("no corpus", "corpus", "verify", tmp_path / "none")
