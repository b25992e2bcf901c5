"""Tokenizers: five kinds trained from a stream of texts, and any `tokenizer.json`, with one interface."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Engine

from homespun.choices import TokenizerKind
from homespun.config import Tree
from homespun.errors import UserError, VocabularyTooLarge, first_line, nearest
from homespun.io.atomic import write_text
from homespun.text.decoding import without_surrogates
from homespun.text.panics import refuse_panics
from homespun.text.sentencepiece_families import convert_sentencepiece, is_sentencepiece
from homespun.text.special_tokens import ROLES, SpecialTokensTemplate, find_roles, find_token
from homespun.text.vocabularies import (
    KINDS,
    LEARN,
    SPECIAL_TOKENS,
    WORD_START,
    TextStream,
    load_vocabulary_files,
    refuse_duplicates,
    with_special_tokens,
)
from homespun.text.word_ids import WordIds, encodes_words

__all__ = ["KINDS", "SPECIAL_TOKENS", "Tokenizer"]


def sentinel(number: int) -> str:
    """Return the sentinel token of the span ``number``, from 0 (T5)."""
    return f"<extra_id_{number}>"


TokenIds = NDArray[np.integer[Any]]
"""(tokens,) uint16 or uint32."""

# in the order of writing: a folder without the last is not a tokenizer
FILES = ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json")
_CHUNK = 1024  # texts encoded at a time
BYTE_LEVEL_SPACES = ("Ġ", "Ċ", "ĉ", "č")  # how byte-level vocabularies spell " ", "\n", "\t", "\r"


class Tokenizer:
    """Conversion of text to token ids and back. Made by `train` or `load`; immutable and picklable.

    ``kind`` is one of `KINDS`:

    - ``bpe``: byte-pair encoding over bytes (GPT-2, RoBERTa). No token is unknown, ``decode`` returns the exact text.
    - ``bpe-characters``: byte-pair encoding over characters, words marked by ``▁`` (SentencePiece). ``decode`` returns
      the NFC text with single spaces; rare characters become ``[UNK]``.
    - ``wordpiece``: BERT's; pieces inside a word begin with ``##``.
    - ``unigram``: the unigram language model of Kudo (2018), words marked by ``▁``.
    - ``words``: the most frequent words and punctuation marks; others are ``[UNK]``.

    A special token in a text, such as ``[MASK]`` in this sentence, is encoded as ordinary characters.
    """

    def __init__(self, content: str, roles: Mapping[str, str]) -> None:
        """``content`` is a tokenizer.json; ``roles`` maps names in `ROLES` to tokens. Use `train` or `load`."""
        tree = json.loads(content)
        # rows are truncated and padded later
        tree["truncation"] = tree["padding"] = None
        self._content = json.dumps(tree, ensure_ascii=False, sort_keys=False)
        with refuse_panics(self._content):
            self._engine = Engine.from_str(self._content)
        self._engine.encode_special_tokens = True
        self._roles = dict(roles)
        self._vocabulary: dict[str, int] = self._engine.get_vocab(with_added_tokens=True)
        self.kind: TokenizerKind = _kind_of(tree)
        self.vocab_size: int = max(self._vocabulary.values()) + 1
        canonical = json.dumps(tree, ensure_ascii=False, sort_keys=True)
        self.fingerprint: str = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._encode = WordIds(self._encode_texts, self.dtype) if encodes_words(tree) else self._encode_texts

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: TokenizerKind,
        vocab_size: int,
        lowercase: bool = False,
        max_characters: int = 1_000_000_000,
    ) -> Tokenizer:
        """Train a tokenizer of exactly ``vocab_size`` tokens, with ids 0-4 for `SPECIAL_TOKENS`; deterministic.

        The texts are read once, up to ``max_characters``; shuffle a longer stream that is sorted. Memory is the counts
        of distinct words (44 MB of English: 50 to 110 MB).

        Raises:
            UserError: an unknown kind; no text; ``vocab_size`` is too small for the kind.
            VocabularyTooLarge: ``vocab_size`` is larger than the text allows.
        """
        if kind not in KINDS:
            raise UserError(f"unknown kind of tokenizer {kind!r}{nearest(str(kind), KINDS)}")
        if vocab_size <= len(SPECIAL_TOKENS):
            raise UserError(f"vocab_size={vocab_size} must exceed the {len(SPECIAL_TOKENS)} special tokens; raise it")
        stream = TextStream(texts, max_characters)
        tokenizer = cls(LEARN[kind](stream, vocab_size, lowercase), dict(zip(ROLES, SPECIAL_TOKENS, strict=False)))
        if tokenizer.vocab_size < vocab_size:
            raise VocabularyTooLarge(
                f"vocab_size={vocab_size} is larger than the text allows: {stream.characters:,} characters give "
                f"{tokenizer.vocab_size} {kind} tokens; lower it to that, or give more text",
                tokenizer.vocab_size,
            )
        if tokenizer.vocab_size > vocab_size:
            raise UserError(
                f"vocab_size={vocab_size} is too small: the characters of the text need {tokenizer.vocab_size} {kind} "
                f"tokens; raise it, or use kind 'bpe'"
            )
        return tokenizer

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load a folder written by `save` or transformers, or a ``tokenizer.json``.

        A folder without ``tokenizer.json`` may have ``vocab.txt``, ``prophetnet.tokenizer``, ``vocab.json`` with
        ``merges.txt``, or a SentencePiece file. Tokens of roles are those in ``tokenizer_config.json`` or
        ``special_tokens_map.json``, else those with a default name.

        Raises:
            UserError: no such file, no tokenizer, or one with a duplicate entry.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            files = load_vocabulary_files(path) if path.is_dir() else None
            if files is not None:
                roles = find_roles(json.loads(files.engine.to_str()), files.engine.get_vocab(), path)
                return cls(with_special_tokens(files, roles), roles)
            if path.is_dir() and is_sentencepiece(path):
                content, roles = convert_sentencepiece(path)
                vocabulary = Engine.from_str(content).get_vocab(with_added_tokens=True)
                others = find_roles(json.loads(content), vocabulary, path)
                if "cls" not in roles:  # the family has no cls token
                    others.pop("cls", None)
                return cls(content, others | roles)
            reason = "a folder without tokenizer.json" if path.is_dir() else "no such file or folder"
            raise UserError(
                f"cannot load a tokenizer from {path}: {reason}; "
                f"`homespun tokenizer train` and save_pretrained of a fast tokenizer write one"
            )
        try:
            content = file.read_text(encoding="utf-8")
            tree = json.loads(content)  # first: it refuses a tree that is too deep
            with refuse_panics(content):
                engine = Engine.from_str(content)
        except UserError:
            raise
        except Exception as error:  # `tokenizers` raises bare Exception for an invalid file
            raise UserError(f"{file} is not a tokenizer.json: {first_line(error)}") from error
        refuse_duplicates(content, engine, source=str(file))
        return cls(content, find_roles(tree, engine.get_vocab(with_added_tokens=True), file.parent))

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``, each atomically.

        `load` and ``transformers.AutoTokenizer`` read the folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = {f"{role}_token": token for role, token in self._roles.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
        plain = (json.dumps(tree, ensure_ascii=False, indent=2) for tree in (names, config))
        for name, content in zip(FILES, (*plain, self._content), strict=True):
            write_text(folder / name, content)

    def __reduce__(self) -> tuple[object, ...]:
        return Tokenizer, (self._content, self._roles)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size}, fingerprint={self.fingerprint!r})"

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode each text without special tokens and without truncation; caches the ids of words."""
        return self._encode(texts)

    def encode_truncated(self, texts: Sequence[str], length: int) -> tuple[list[TokenIds], NDArray[np.bool_]]:
        """Encode the first ``length`` tokens of each text, in chunks.

        Returns:
            Ids of each text, and (texts,) True if the text is longer.
        """
        ids: list[TokenIds] = []
        cut: list[bool] = []
        for start in range(0, len(texts), _CHUNK):
            for encoded in self.encode_batch(texts[start : start + _CHUNK]):
                ids.append(encoded[:length].copy())
                cut.append(len(encoded) > length)
        return ids, np.array(cut, dtype=np.bool_)

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[tuple[TokenIds, NDArray[np.int64]]]:
        """Encode as `encode_batch`, in chunks, with the (tokens, 2) start and end of each token in characters.

        Leading white space is not part of a token's span; a token of white space has an empty span.
        """
        for first in range(0, len(texts), _CHUNK):
            part = texts[first : first + _CHUNK]
            for text, encoding in zip(part, self._encodings(self._engine.encode_batch, part), strict=True):
                offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
                for position, (start, end) in enumerate(encoding.offsets):
                    if text[start:end][:1].isspace():
                        offsets[position, 0] = end - len(text[start:end].lstrip())
                yield np.array(encoding.ids, dtype=self.dtype), offsets

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Decode ``ids``."""
        with refuse_panics(self._content):
            return str(self._engine.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens))

    def decode_batch(self, batch: Sequence[TokenIds]) -> list[str]:
        """Decode each sequence without special tokens; parallel in `tokenizers`."""
        with refuse_panics(self._content):
            return list(self._engine.decode_batch([ids.tolist() for ids in batch], skip_special_tokens=True))

    @cached_property
    def tokens(self) -> list[str]:
        """(vocab_size,) tokens by id; empty for an unused id."""
        names = [""] * self.vocab_size
        for token, i in self._vocabulary.items():
            names[i] = token
        return names

    @property
    def content(self) -> str:
        """The tokenizer.json."""
        return self._content

    @property
    def roles(self) -> dict[str, str]:
        """Token by role, of `ROLES`."""
        return dict(self._roles)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smaller of ``uint16`` and ``uint32`` that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    @property
    def pad_id(self) -> int:
        """``[PAD]``, or the end-of-text or unknown token."""
        return self._role_id("pad")

    @property
    def unk_id(self) -> int | None:
        """``[UNK]``; None without unknown tokens, as with bytes."""
        token = self._roles.get("unk")
        return None if token is None else self._vocabulary[token]

    @property
    def cls_id(self) -> int:
        """``[CLS]``, or the beginning-of-text token."""
        return self._role_id("cls")

    @property
    def sep_id(self) -> int:
        """``[SEP]``, or the end-of-text token."""
        return self._role_id("sep")

    @property
    def mask_id(self) -> int:
        return self._role_id("mask")

    @property
    def template(self) -> tuple[list[int], list[int]]:
        """Ids before and after a text: from the template, else cls and sep, or none."""
        return self._template.single

    @property
    def pair_template(self) -> tuple[list[int], list[int], list[int]]:
        """Ids before the first text of a pair, between both, and after the second; see `template`."""
        return self._template.pair

    @cached_property
    def _template(self) -> SpecialTokensTemplate:
        with refuse_panics(self._content):
            template = SpecialTokensTemplate.of(self._engine)
        if template == SpecialTokensTemplate() and {"cls", "sep"} <= self._roles.keys():
            return SpecialTokensTemplate.between(self.cls_id, self.sep_id)
        return template

    def for_transformers(self) -> Tokenizer:
        """Return the tokenizer with an explicit template and padding token, which transformers needs."""
        tree = json.loads(self._content)
        if self._template != SpecialTokensTemplate.of(self._engine):
            self._template.add_to(tree, self.tokens)
        return Tokenizer(json.dumps(tree, ensure_ascii=False), self._roles | {"pad": self.tokens[self.pad_id]})

    @cached_property
    def sentinel_ids(self) -> NDArray[np.int64]:
        """(n,) ids of ``<extra_id_0>``, ``<extra_id_1>``, ...; see `homespun.text.vocabulary_extension`."""
        ids = takewhile(lambda i: i is not None, (self._vocabulary.get(sentinel(n)) for n in count()))
        return np.array(list(ids), dtype=np.int64)

    @cached_property
    def special_mask(self) -> NDArray[np.bool_]:
        """(vocab_size,) mask of roles, special added tokens and unused ids, which are never masked or sampled."""
        mask = np.ones(self.vocab_size, dtype=np.bool_)
        mask[list(self._vocabulary.values())] = False
        mask[[self._vocabulary[token] for token in self._roles.values()]] = True
        mask[[i for i, token in self._engine.get_added_tokens_decoder().items() if token.special]] = True
        return mask

    @cached_property
    def word_starts(self) -> NDArray[np.bool_]:
        """(vocab_size,) mask of tokens that begin a word.

        The first token of a text and the first after a special token begin a word too (byte-level vocabularies have no
        space there). In vocabularies that mark the *end* of words, as GPT-1's ``</w>``, each token counts as a word.
        """
        starts = np.ones(self.vocab_size, dtype=np.bool_)
        model = json.loads(self._content)["model"]
        prefix = model.get("continuing_subword_prefix") or ""
        for token, i in self._vocabulary.items():
            if self.kind == "bpe":
                starts[i] = token.startswith(BYTE_LEVEL_SPACES)
            elif self.kind == "unigram" or (self.kind == "bpe-characters" and not model.get("end_of_word_suffix")):
                starts[i] = token.startswith(WORD_START)
            elif prefix:
                starts[i] = not token.startswith(prefix)
        starts[self.special_mask] = True
        return starts

    def _encode_texts(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode each text by `tokenizers`, parallel unless ``TOKENIZERS_PARALLELISM`` is false."""
        return [
            np.array(encoding.ids, self.dtype) for encoding in self._encodings(self._engine.encode_batch_fast, texts)
        ]

    def _encodings(self, encode: Callable[..., list[Encoding]], texts: Sequence[str]) -> list[Encoding]:
        """Encode texts after replacing lone surrogates, which `tokenizers` refuses."""
        with refuse_panics(self._content):
            try:
                return encode(list(texts), add_special_tokens=False)
            except TypeError:
                return encode([without_surrogates(text) for text in texts], add_special_tokens=False)

    def _role_id(self, role: str) -> int:
        token = find_token(role, self._roles)
        if token is None:
            tokens = ", ".join(f"{name}_token {value}" for name, value in self._roles.items()) or "no special token"
            raise UserError(
                f"this tokenizer has no {role} token (it has {tokens}); set {role}_token in its tokenizer_config.json"
            )
        return self._vocabulary[token]


def _kind_of(tree: Tree) -> TokenizerKind:
    model = tree["model"]
    # old files do not have the type of the model; its fields decide, as in `tokenizers`
    name = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    if name == "BPE":
        steps = json.dumps([tree.get("normalizer"), tree.get("pre_tokenizer")])
        return "bpe" if '"ByteLevel"' in steps else "bpe-characters"
    kinds: dict[str, TokenizerKind] = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}
    return kinds[name]
