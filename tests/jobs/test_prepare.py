"""From raw files to a corpus: what is read, and what a build that was stopped is held against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from homespun.data.corpus import build_corpus
from homespun.errors import UserError
from homespun.jobs.prepare import make_corpus, reading
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer


def stopped(documents: Iterator[Document]) -> Iterator[Document]:
    yield next(documents)
    raise KeyboardInterrupt


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
    with pytest.raises(
        UserError, match=r"of inputs that have changed, .*\"files\": .*; give another folder, or delete"
    ):
        make_corpus(read, tokenizer, tmp_path / "other")
