"""Tokenizers with a fixed vocabulary: one token per byte, character or word of a given list."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine

from homespun.text.special_tokens import ROLES
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabularies import SPECIAL_TOKENS, UNK


def byte_tokenizer() -> Tokenizer:
    """Build a lossless tokenizer of one token per UTF-8 byte, 261 with the special tokens."""
    engine = Engine(models.BPE(_vocabulary(sorted(pre_tokenizers.ByteLevel.alphabet())), []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    return _tokenizer(engine)


def character_tokenizer(characters: Sequence[str]) -> Tokenizer:
    """Build a tokenizer of one token per character of ``characters``; others are ``[UNK]``."""
    engine = Engine(models.BPE(_vocabulary(characters), [], unk_token=UNK))
    engine.decoder = decoders.Fuse()
    return _tokenizer(engine)


def word_tokenizer(words: Sequence[str], *, ignored: str = "") -> Tokenizer:
    """Build a tokenizer of one token per word of ``words``, split at white space; others are ``[UNK]``.

    ``ignored`` characters are removed.
    """
    engine = Engine(models.WordLevel(_vocabulary(words), unk_token=UNK))
    if ignored:
        engine.normalizer = normalizers.Replace(Regex("|".join(rf"\x{{{ord(c):x}}}" for c in ignored)), "")
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _tokenizer(engine)


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate([*SPECIAL_TOKENS, *tokens])}


def _tokenizer(engine: Engine) -> Tokenizer:
    engine.add_special_tokens(list(SPECIAL_TOKENS))
    return Tokenizer(engine.to_str(), dict(zip(ROLES, SPECIAL_TOKENS, strict=False)))
