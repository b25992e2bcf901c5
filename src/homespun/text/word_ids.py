"""Encoding with a cache: texts repeat their words, and `tokenizers` takes several microseconds for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from homespun.config import Tree
from homespun.text.decoding import without_surrogates

_MOST_BYTES = 64_000_000  # of the cache, about; a word takes 200 and its characters
_BYTES_OF_A_WORD = 200
_MARK = "\0"
# A byte-level pattern matches white space up to its last character but one together. So a part of a text begins only
# before the first character of white space, or before the last if a word follows.
_INSIDE = re.compile(r"\s[ \n](?:\s|\Z)")
_BEGINS_PART = re.compile(r"(?<!\s)[ \n]|[ \n](?=\S)")
_SPACES_DROPPED = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_KEEPS_SPACES = {"Lowercase", "NFC", "NFD"}
_OTHERS = {"BertNormalizer", "NFKC", "NFKD", "StripAccents"}  # may insert or remove white space


def encodes_words(tree: Tree) -> bool:
    """True if the ids of a text are those of its words, each with the space before it, for the tokenizer.json ``tree``.

    Known for pre-tokenizers that split at white space (WordPiece, Unigram) and for byte-level BPE with the pattern of
    GPT-2, no match of which has white space after another character. False for others, even if they do so too.
    """
    normalizers = {step["type"] for step in _steps(tree.get("normalizer"), "normalizers")}
    first, *others = _steps(tree.get("pre_tokenizer"), "pretokenizers") or [{"type": None}]
    if any(not token["special"] for token in tree.get("added_tokens") or []) or tree["model"].get("dropout"):
        return False
    if first["type"] in _SPACES_DROPPED:
        return normalizers <= _KEEPS_SPACES | _OTHERS
    if first["type"] != "ByteLevel" or others or first["add_prefix_space"] or not first.get("use_regex", True):
        return False
    return normalizers <= _KEEPS_SPACES


def _steps(step: Tree | None, name: str) -> list[Tree]:
    """Steps of a normalizer or pre-tokenizer; ``name`` is the key of those of a sequence."""
    if step is None:
        return []
    return [one for part in step[name] for one in _steps(part, name)] if step["type"] == "Sequence" else [step]


class WordIds:
    """Encoder with a cache, for tokenizers of which `encodes_words` holds. Can be called by several threads.

    Args:
        encode: encodes each of several texts to (tokens,) ids.
        dtype: type of the ids.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[NDArray[np.integer[Any]]]], dtype: np.dtype[Any]) -> None:
        self._encode, self._dtype = encode, dtype
        self._known: dict[str, bytes] = {}
        self._size = 0

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.integer[Any]]]:
        """Encode each text to (tokens,) ids."""
        if not texts or any(_MARK in text for text in texts):
            return self._encode(texts)
        marked = [_mark_words(text) for text in texts]
        words = _split(_MARK.join(marked))
        ids = self._look_up(words.dictionary.to_pylist())
        lengths = np.fromiter(map(len, ids), np.int64, len(ids)) // self._dtype.itemsize
        lists = pa.LargeListArray.from_arrays(
            _array(np.concatenate([[0], np.cumsum(lengths)])), _array(np.frombuffer(b"".join(ids), self._dtype))
        ).take(words.indices)
        ends = np.cumsum([text.count(_MARK) + 1 for text in marked])
        offsets = np.frombuffer(lists.offsets.buffers()[1], np.int64, len(lists) + 1)
        tokens = np.frombuffer(lists.values.buffers()[1], self._dtype, len(lists.values))
        return [part.copy() for part in np.split(tokens, offsets[ends[:-1]])]

    def _look_up(self, words: list[str]) -> list[bytes]:
        """Ids of each of several words."""
        if self._size > _MOST_BYTES:
            self._known, self._size = {}, 0
        known = self._known  # another thread may replace it
        if new := [word for word in words if word not in known]:
            self._size += sum(map(len, new)) + _BYTES_OF_A_WORD * len(new)
            known.update(zip(new, (ids.tobytes() for ids in self._encode(new)), strict=True))
        return [known[word] for word in words]


def _mark_words(text: str) -> str:
    """Put a mark before each word but the first; the ids of the text are those of the parts."""
    if _INSIDE.search(text):
        return _BEGINS_PART.sub(rf"{_MARK}\g<0>", text).removeprefix(_MARK)
    return text.replace(" ", f"{_MARK} ").replace("\n", f"{_MARK}\n").removeprefix(_MARK)


def _split(marked: str) -> pa.DictionaryArray:
    """Split at marks, with each word once in the dictionary; `pyarrow.array` would import pandas, which takes 0.4 s."""
    data = without_surrogates(marked).encode()
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)])), pa.py_buffer(data))
    return pc.split_pattern(text, _MARK).values.dictionary_encode()


def _array(numbers: NDArray[np.integer[Any]]) -> pa.Array:
    """Build an Arrow array without a copy; see `_split`."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])
