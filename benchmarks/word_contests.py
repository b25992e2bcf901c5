"""Word tagging and question answering for `benchmarks.tasks`: the files, and the loops with `transformers`."""

from __future__ import annotations

import json
import random
import re
import string
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peer_loop import fit

Sentence = tuple[list[str], list[str]]
_IGNORED = -100  # a label that is none, in torch and transformers
_STRIDE, _N_BEST, _LONGEST = 128, 20, 30  # as in the question answering example of transformers


def conll2000(data: Path, out: Path, most: int | None) -> dict[str, Path]:
    """Write the files; a tenth of the training sentences is the validation, which neither side trains on."""
    archive = data / "conll2000" / "conll2000.zip"
    _check(archive)
    parts = {}
    with zipfile.ZipFile(archive) as files:
        for part in ("train", "test"):
            text = files.read(f"conll2000/{part}.txt").decode("utf-8")
            parts[part] = [block for block in text.split("\n\n") if block.strip()]
    random.Random(0).shuffle(parts["train"])
    held = len(parts["train"]) // 10
    parts["validation"], parts["train"] = parts["train"][:held], parts["train"][held:]
    return {
        part: _write(out / f"conll2000-{part}.conll", "\n\n".join(block.strip() for block in blocks[:most]) + "\n")
        for part, blocks in parts.items()
    }


def xquad(data: Path, out: Path, most: int | None) -> dict[str, Path]:
    """Write the files: of the 48 articles, drawn once, 32 are for training, 4 for validation, 12 for the test."""
    source = data / "xquad" / "xquad.en.json"
    _check(source)
    articles = json.loads(source.read_text(encoding="utf-8"))["data"]
    random.Random(0).shuffle(articles)
    files = {}
    for part, own in (("train", articles[:32]), ("validation", articles[32:36]), ("test", articles[36:])):
        if most is not None:  # a paragraph has five questions
            own = own[: max(2, most // 25)]
        files[part] = _write(out / f"xquad-{part}.json", json.dumps({"version": "1.1", "data": own}))
    return files


def _check(path: Path) -> None:
    if not path.is_file():
        raise SystemExit(f"no {path}: give --data FOLDER with conll2000/ and xquad/")


def _write(path: Path, text: str) -> Path:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def peer_of_tags(model: Path, files: Mapping[str, Path], training: Any) -> float:
    """Return the F1 by chunk."""
    import transformers
    from seqeval.metrics import f1_score

    parts = {part: _sentences(files[part]) for part in ("train", "test")}
    names = sorted({tag for part in parts.values() for _, tags in part for tag in tags})
    torch.manual_seed(training.seed)
    automatic: Any = transformers.AutoModelForTokenClassification  # the classes of transformers have no types
    tokens: Any = transformers.AutoTokenizer
    tokenizer = tokens.from_pretrained(str(model))
    network = automatic.from_pretrained(str(model), num_labels=len(names))

    def batch(rows: Sequence[Sentence]) -> Any:
        encoded = tokenizer(
            [words for words, _ in rows],
            is_split_into_words=True,
            truncation=True,
            max_length=training.length,
            padding=True,
            return_tensors="pt",
        )
        labels = torch.full(encoded["input_ids"].shape, _IGNORED)
        for row, (_, tags) in enumerate(rows):
            for position, word in _first_pieces(encoded.word_ids(row)):
                labels[row, position] = names.index(tags[word])
        return encoded, labels

    def loss(rows: Sequence[Sentence]) -> torch.Tensor:
        encoded, labels = batch(rows)
        return network(**encoded, labels=labels).loss

    fit(network, parts["train"], loss, training)
    predicted = []
    for start in range(0, len(parts["test"]), 64):
        chunk = parts["test"][start : start + 64]
        encoded, _ = batch(chunk)
        with torch.no_grad():
            numbers = network(**encoded).logits.argmax(dim=-1)
        for row, (words, _) in enumerate(chunk):
            tags = ["O"] * len(words)  # of a word beyond the length
            for position, word in _first_pieces(encoded.word_ids(row)):
                tags[word] = names[int(numbers[row, position])]
            predicted.append(tags)
    return float(f1_score([tags for _, tags in parts["test"]], predicted))


def _sentences(path: Path) -> list[Sentence]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split() for line in block.splitlines()] for block in blocks]
    return [([cells[0] for cells in row], [cells[-1] for cells in row]) for row in rows]


def _first_pieces(words: Sequence[int | None]) -> list[tuple[int, int]]:
    before = [None, *words[:-1]]
    return [
        (position, word)
        for position, (word, last) in enumerate(zip(words, before, strict=True))
        if word is not None and word != last
    ]


def peer_of_answers(model: Path, files: Mapping[str, Path], training: Any) -> float:
    """Return exact match."""
    import transformers

    torch.manual_seed(training.seed)
    automatic: Any = transformers.AutoModelForQuestionAnswering
    tokens: Any = transformers.AutoTokenizer
    tokenizer = tokens.from_pretrained(str(model))
    network = automatic.from_pretrained(str(model))
    learned, asked = _questions(files["train"]), _questions(files["test"])
    windows = _windows(tokenizer, learned, training.length)

    def loss(rows: Sequence[dict[str, Any]]) -> torch.Tensor:
        ends = {name: torch.tensor([row[name] for row in rows]) for name in ("start_positions", "end_positions")}
        return network(**_padded(tokenizer, rows), **ends).loss

    fit(network, windows, loss, training)
    best: dict[int, tuple[float, str]] = {}
    tested = _windows(tokenizer, asked, training.length)
    for begin in range(0, len(tested), 32):
        chunk = tested[begin : begin + 32]
        with torch.no_grad():
            output = network(**_padded(tokenizer, chunk))
        for row, starts, ends in zip(chunk, output.start_logits.numpy(), output.end_logits.numpy(), strict=True):
            for first in np.argsort(-starts)[:_N_BEST].tolist():
                for last in np.argsort(-ends)[:_N_BEST].tolist():
                    spans = row["spans"]
                    if max(first, last) >= len(spans) or spans[first] is None or spans[last] is None:
                        continue
                    score = float(starts[first] + ends[last])
                    if first <= last < first + _LONGEST and score > best.get(row["question"], (-np.inf, ""))[0]:
                        context = asked[row["question"]]["context"]
                        best[row["question"]] = (score, context[spans[first][0] : spans[last][1]])
    right = [
        _plain(best.get(number, (0.0, ""))[1]) in {_plain(text) for text, _ in one["answers"]}
        for number, one in enumerate(asked)
    ]
    return sum(right) / len(right)


def _questions(path: Path) -> list[dict[str, Any]]:
    return [
        {
            "question": asked["question"],
            "context": paragraph["context"],
            "answers": [(answer["text"], answer["answer_start"]) for answer in asked["answers"]],
        }
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def _windows(tokenizer: Any, questions: Sequence[Mapping[str, Any]], length: int) -> list[dict[str, Any]]:
    encoded = tokenizer(
        [one["question"] for one in questions],
        [one["context"] for one in questions],
        truncation="only_second",
        max_length=length,
        stride=_STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = []
    for index, number in enumerate(encoded["overflow_to_sample_mapping"]):
        sides, offsets = encoded.sequence_ids(index), encoded["offset_mapping"][index]
        spans = [offset if side == 1 else None for side, offset in zip(sides, offsets, strict=True)]
        text, start = questions[number]["answers"][0]
        inside = [
            position
            for position, span in enumerate(spans)
            if span is not None and span[1] > start and span[0] < start + len(text)
        ]
        shown = [span for span in spans if span is not None]
        contained = inside and shown[0][0] <= start and shown[-1][1] >= start + len(text)
        windows.append(
            {name: encoded[name][index] for name in ("input_ids", "token_type_ids", "attention_mask")}
            | {"question": number, "spans": spans}
            | {"start_positions": inside[0] if contained else 0, "end_positions": inside[-1] if contained else 0}
        )
    return windows


def _padded(tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    names = ("input_ids", "token_type_ids", "attention_mask")
    return tokenizer.pad([{name: row[name] for name in names} for row in rows], return_tensors="pt")


def _plain(text: str) -> str:
    """Normalise a text as SQuAD's script."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
