"""Tokenizers: five kinds trained from a stream of texts, and any `tokenizer.json` loaded, behind one small face."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Engine

from homespun.errors import UserError, first_line, nearest
from homespun.io.atomic import write_text
from homespun.text.sentencepiece_families import convert_sentencepiece, is_sentencepiece
from homespun.text.special_tokens import ROLES, find_roles, find_token
from homespun.text.surrogates import without_surrogates
from homespun.text.template import SpecialTokensTemplate
from homespun.text.vocabularies import (
    KINDS,
    LEARN,
    SPECIAL_TOKENS,
    WORD_START,
    Kind,
    TextStream,
)
from homespun.text.vocabulary_files import load_vocabulary_files, refuse_duplicates, with_special_tokens

__all__ = ["KINDS", "SPECIAL_TOKENS", "Kind", "Tokenizer"]


def sentinel(number: int) -> str:
    """The token that stands for the span ``number``, from 0, that was cut out of a text (T5)."""
    return f"<extra_id_{number}>"


BYTE_LEVEL_SPACES = ("Ġ", "Ċ", "ĉ", "č")  # how byte-level vocabularies spell " ", "\n", "\t", "\r"


class Tokenizer:
    """Text to token ids and back; final. Made by `train` or `load`, never changed afterwards, and picklable.

    ``kind`` is one of `KINDS`:

    - ``bpe``: byte-pair encoding over bytes (GPT-2, RoBERTa). Nothing is unknown, ``decode`` returns the very text.
    - ``bpe-characters``: byte-pair encoding over characters, words marked by ``▁`` (SentencePiece). ``decode`` returns
      the NFC text with runs of white space as one space; characters too rare for the vocabulary become ``[UNK]``.
    - ``wordpiece``: BERT's; pieces inside a word begin with ``##``.
    - ``unigram``: the unigram language model of Kudo (2018), words marked by ``▁``.
    - ``words``: the most frequent words and punctuation marks, the rest ``[UNK]``.

    A special token that stands in a text, such as ``[MASK]`` in this sentence, is encoded as the ordinary characters it
    is made of: no text can smuggle in a control token.
    """

    def __init__(self, content: str, roles: Mapping[str, str]) -> None:
        """``content`` is a tokenizer.json; ``roles`` maps some of `ROLES` to tokens. Use `train` or `load`."""
        tree = json.loads(content)
        # These two are state of the last caller, not part of what the tokenizer is: rows are cut and padded later.
        tree["truncation"] = tree["padding"] = None
        self._content = json.dumps(tree, ensure_ascii=False, sort_keys=False)
        self._engine = Engine.from_str(self._content)
        self._engine.encode_special_tokens = True
        self._roles = dict(roles)
        self._vocabulary: dict[str, int] = self._engine.get_vocab(with_added_tokens=True)
        self.kind: Kind = _kind_of(tree)
        self.vocab_size: int = max(self._vocabulary.values()) + 1
        canonical = json.dumps(tree, ensure_ascii=False, sort_keys=True)
        self.fingerprint: str = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: Kind,
        vocab_size: int,
        lowercase: bool = False,
        max_characters: int = 1_000_000_000,
    ) -> Tokenizer:
        """A new tokenizer of exactly ``vocab_size`` tokens, of which ids 0-4 are `SPECIAL_TOKENS`.

        The texts are a stream, read once. What is held is the count of each distinct word, never the texts (44 MB of
        English cost 50 to 110 MB at the peak); reading stops after ``max_characters``, so that this too is bounded on
        an endless stream. Shuffle a stream that is longer than that and sorted.

        The same texts give the same tokenizer, to the bit.

        Raises:
            UserError: unknown kind; no text; ``vocab_size`` too small for the kind, or larger than the text allows.
        """
        if kind not in KINDS:
            raise UserError(f"unknown kind of tokenizer {kind!r}{nearest(str(kind), KINDS)}")
        if vocab_size <= len(SPECIAL_TOKENS):
            raise UserError(f"vocab_size={vocab_size} leaves no room beside the {len(SPECIAL_TOKENS)} special tokens")
        stream = TextStream(texts, max_characters)
        content = LEARN[kind](stream, vocab_size, lowercase)
        if stream.characters == 0:
            raise UserError("there is no text to train a tokenizer on: every text is empty")
        tokenizer = cls(content, dict(zip(ROLES, SPECIAL_TOKENS, strict=False)))
        if tokenizer.vocab_size < vocab_size:
            raise UserError(
                f"vocab_size={vocab_size} is larger than the text allows: {stream.characters:,} characters give "
                f"{tokenizer.vocab_size} {kind} tokens; ask for at most that many, or give more text"
            )
        if tokenizer.vocab_size > vocab_size:
            raise UserError(
                f"vocab_size={vocab_size} is too small: the characters of the text alone need {tokenizer.vocab_size} "
                f"{kind} tokens; ask for more than that, or use kind 'bpe'"
            )
        return tokenizer

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a folder that `save` or transformers wrote, or of a bare ``tokenizer.json`` of any origin.

        A folder without ``tokenizer.json`` may have ``vocab.txt`` or ``prophetnet.tokenizer``, or ``vocab.json`` and
        ``merges.txt``, or a file of SentencePiece.

        The tokens of each role are those that ``tokenizer_config.json`` or ``special_tokens_map.json`` beside it name,
        and otherwise those with a usual name. A role nobody has is an error only when it is asked for.

        Raises:
            UserError: no such file, or not a tokenizer, or one with an entry twice.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            older = load_vocabulary_files(path) if path.is_dir() else None
            if older is not None:
                roles = find_roles(json.loads(older.engine.to_str()), older.engine.get_vocab(), path)
                return cls(with_special_tokens(older, roles), roles)
            if path.is_dir() and is_sentencepiece(path):
                content, roles = convert_sentencepiece(path)
                vocabulary = Engine.from_str(content).get_vocab(with_added_tokens=True)
                others = find_roles(json.loads(content), vocabulary, path)
                if "cls" not in roles:  # a family that begins texts with a token says with which
                    others.pop("cls", None)
                return cls(content, others | roles)
            what = "a folder without tokenizer.json" if path.is_dir() else "no such file or folder"
            raise UserError(
                f"cannot load a tokenizer from {path}: {what}; "
                f"`homespun tokenizer train` and save_pretrained of a fast tokenizer write one"
            )
        try:
            content = file.read_text(encoding="utf-8")
            engine = Engine.from_str(content)
            tree = json.loads(content)
        except Exception as error:  # `tokenizers` raises bare Exception for a file that it does not understand
            raise UserError(f"{file} is not a tokenizer.json: {first_line(error)}") from error
        refuse_duplicates(content, engine, source=str(file))
        return cls(content, find_roles(tree, engine.get_vocab(with_added_tokens=True), file.parent))

    def save(self, folder: str | Path) -> None:
        """Writes ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``.

        `load` opens the folder, and so does ``transformers.AutoTokenizer``. Each file is replaced in one step.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = {f"{role}_token": token for role, token in self._roles.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
        write_text(folder / "special_tokens_map.json", json.dumps(names, ensure_ascii=False, indent=2))
        write_text(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2))
        write_text(folder / "tokenizer.json", self._content)  # last: without it the folder is not a tokenizer

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._content, self._roles)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size}, fingerprint={self.fingerprint!r})"

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text, without special tokens and uncut: ``uint16`` while 65,536 ids do, else ``uint32``.

        Texts are spread over the cores by `tokenizers` itself.
        """
        dtype = self.dtype
        encodings = _encodings(self._engine.encode_batch_fast, texts)
        return [np.array(encoding.ids, dtype=dtype) for encoding in encodings]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
        """The ids of each text as `encode_batch` gives them, and (tokens, 2) from where to where each stands in it.

        Offsets count characters. The white space that a token begins with is left out of its own: that of a token of
        nothing else is empty.
        """
        found = []
        for text, encoding in zip(texts, _encodings(self._engine.encode_batch, texts), strict=True):
            offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
            for place, (start, end) in enumerate(encoding.offsets):
                if text[start:end][:1].isspace():
                    offsets[place, 0] = end - len(text[start:end].lstrip())
            found.append((np.array(encoding.ids, dtype=self.dtype), offsets))
        return found

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``, any iterable of integers."""
        return str(self._engine.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens))

    def decode_batch(self, batch: Sequence[NDArray[Any]]) -> list[str]:
        """The text of each, without special tokens; spread over the cores by `tokenizers` itself."""
        return list(self._engine.decode_batch([ids.tolist() for ids in batch], skip_special_tokens=True))

    @cached_property
    def tokens(self) -> list[str]:
        """(vocab_size,) tokens by id, as the vocabulary spells them; empty where an id has none."""
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
        """The token of each of `ROLES` that it has."""
        return dict(self._roles)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of ``uint16`` and ``uint32`` that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    @property
    def pad_id(self) -> int:
        """Pads a batch: ``[PAD]``, or the end-of-text token where there is none, or what is unknown."""
        return self._role_id("pad")

    @property
    def unk_id(self) -> int | None:
        """``None`` where nothing is unknown, as with bytes."""
        token = self._roles.get("unk")
        return None if token is None else self._vocabulary[token]

    @property
    def cls_id(self) -> int:
        """Begins a sequence: ``[CLS]``, or the beginning-of-text token where there is none."""
        return self._role_id("cls")

    @property
    def sep_id(self) -> int:
        """Ends a sequence: ``[SEP]``, or the end-of-text token where there is none."""
        return self._role_id("sep")

    @property
    def mask_id(self) -> int:
        return self._role_id("mask")

    @property
    def template(self) -> tuple[list[int], list[int]]:
        """The special tokens before a text and after it: its template's, or else its own cls and sep, or none."""
        return self._template.single

    @property
    def pair_template(self) -> tuple[list[int], list[int], list[int]]:
        """The special tokens before the first text of a pair, between both, and after the second; see `template`."""
        return self._template.pair

    @cached_property
    def _template(self) -> SpecialTokensTemplate:
        template = SpecialTokensTemplate.of(self._engine)
        if template == SpecialTokensTemplate() and {"cls", "sep"} <= self._roles.keys():
            return SpecialTokensTemplate.between(self.cls_id, self.sep_id)
        return template

    def for_transformers(self) -> Tokenizer:
        """The same with what transformers cannot know by itself: its frame as a template, its padding by name."""
        tree = json.loads(self._content)
        if self._template != SpecialTokensTemplate.of(self._engine):
            self._template.add_to(tree, self.tokens)
        return Tokenizer(json.dumps(tree, ensure_ascii=False), self._roles | {"pad": self.tokens[self.pad_id]})

    @cached_property
    def sentinel_ids(self) -> NDArray[np.int64]:
        """(n,) of ``<extra_id_0>``, ``<extra_id_1>`` and on, as far as there are; see `homespun.text.sentinels`."""
        found = takewhile(lambda i: i is not None, (self._vocabulary.get(sentinel(n)) for n in count()))
        return np.array(list(found), dtype=np.int64)

    @cached_property
    def special_mask(self) -> NDArray[np.bool_]:
        """(vocab_size,) bool: never masked, never sampled. Roles, added special tokens, and ids without a token."""
        mask = np.ones(self.vocab_size, dtype=np.bool_)
        mask[list(self._vocabulary.values())] = False
        mask[[self._vocabulary[token] for token in self._roles.values()]] = True
        mask[[i for i, token in self._engine.get_added_tokens_decoder().items() if token.special]] = True
        return mask

    @cached_property
    def word_starts(self) -> NDArray[np.bool_]:
        """(vocab_size,) bool: the token begins a word.

        The first token of a text begins a word too, whatever this says (in byte-level vocabularies it has no space
        before it), and so does the first after a special token. Vocabularies that mark the *end* of words, as GPT-1's
        ``</w>``, cannot say it token by token: there every token counts as a word.
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

    def _role_id(self, role: str) -> int:
        token = find_token(role, self._roles)
        if token is None:
            have = ", ".join(f"{name}_token {value}" for name, value in self._roles.items()) or "no special token"
            raise UserError(
                f"this tokenizer has no {role} token (it has {have}); "
                f"name one as {role}_token in its tokenizer_config.json"
            )
        return self._vocabulary[token]


def _encodings(encode: Callable[..., list[Encoding]], texts: Sequence[str]) -> list[Encoding]:
    """What ``encode`` makes of the texts; `tokenizers` refuses the whole batch where one has a lone surrogate."""
    try:
        return encode(list(texts), add_special_tokens=False)
    except TypeError:
        return encode([without_surrogates(text) for text in texts], add_special_tokens=False)


def _kind_of(tree: dict[str, Any]) -> Kind:
    model = tree["model"]
    # Very old files do not name the type of their model; `tokenizers` then tells it by its fields, and so do we.
    name = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    if name == "BPE":
        steps = json.dumps([tree.get("normalizer"), tree.get("pre_tokenizer")])
        return "bpe" if '"ByteLevel"' in steps else "bpe-characters"
    kinds: dict[str, Kind] = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}
    return kinds[name]
