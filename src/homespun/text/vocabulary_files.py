"""Vocabularies in files older than tokenizer.json: ``vocab.txt`` of BERT, ``vocab.json`` and ``merges.txt`` of GPT-2.

What they leave open is read as their first programs had it: BERT's lower case unless ``tokenizer_config.json`` says
otherwise, byte-level BPE without a space before the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from homespun.errors import UserError

WORDPIECE, VOCABULARY, MERGES = "vocab.txt", "vocab.json", "merges.txt"


def engine_from_files(folder: Path) -> Engine | None:
    """The tokenizer that the files of ``folder`` describe, without special tokens; None: there are no such files.

    Raises:
        UserError: files that are cut short or have an entry twice.
    """
    if (folder / WORDPIECE).is_file():
        return _wordpiece(folder)
    if (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        return _byte_pairs(folder)
    return None


def with_special_tokens(engine: Engine, roles: Mapping[str, str]) -> str:
    """The tokenizer.json of ``engine`` with the tokens of ``roles`` special, and put around texts as BERT or RoBERTa
    do where it has a beginning and an end for that."""
    of_bytes = isinstance(engine.model, models.BPE)
    # before <mask> RoBERTa takes the space as a part of it
    engine.add_special_tokens(
        [AddedToken(token, lstrip=of_bytes and role == "mask", special=True) for role, token in roles.items()]
    )
    if "cls" in roles and "sep" in roles:
        ids = engine.get_vocab()
        cls, sep = ((roles[role], ids[roles[role]]) for role in ("cls", "sep"))
        engine.post_processor = (
            processors.RobertaProcessing(sep, cls, add_prefix_space=False)
            if of_bytes
            else processors.TemplateProcessing(
                single=f"{cls[0]} $A {sep[0]}",
                pair=f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1",
                special_tokens=[cls, sep],
            )
        )
    return str(engine.to_str())


def refuse_duplicates(content: str, *, source: str) -> None:
    """Look for an entry that stands twice in a tokenizer.json.

    Raises:
        UserError: a token or an id does.
    """
    model = json.loads(content, object_pairs_hook=lambda pairs: _unique(pairs, source))["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        _different_ids(vocabulary, source)
    elif isinstance(vocabulary, list):
        _unique([(piece, score) for piece, score in vocabulary], source)


def _wordpiece(folder: Path) -> Engine:
    path = folder / WORDPIECE
    tokens = _text(path).split("\n")
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    vocabulary = {str(token): number for token, number in _unique([(t, n) for n, t in enumerate(tokens)], path).items()}
    config = _settings(folder)
    unknown = config.get("unk_token", "[UNK]")
    unknown = unknown.get("content") if isinstance(unknown, dict) else unknown
    if unknown not in vocabulary:
        raise UserError(f"{path} has no {unknown!r}, the token for what is unknown")
    engine = Engine(models.WordPiece(vocabulary, unk_token=unknown))
    engine.normalizer = normalizers.BertNormalizer(
        lowercase=bool(config.get("do_lower_case", True)),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    return engine


def _byte_pairs(folder: Path) -> Engine:
    path = folder / VOCABULARY
    try:
        vocabulary = json.loads(_text(path), object_pairs_hook=lambda pairs: _unique(pairs, path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        raise UserError(f"{path} must map tokens to their numbers")
    _different_ids(vocabulary, path)
    if lacking := sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys()):
        raise UserError(
            f"{path} is no vocabulary of bytes, it lacks {lacking[0]!r}; "
            f"save_pretrained of a fast tokenizer writes the tokenizer.json that can be read"
        )
    lines = [line for line in _text(folder / MERGES).split("\n") if line and not line.startswith("#version")]
    pairs = [tuple(line.split(" ")) for line in lines]
    if wrong := [line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2]:
        raise UserError(f"{folder / MERGES}: {wrong[0]!r} is not a pair of tokens")
    try:
        engine = Engine(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in pairs]))
    except Exception as error:  # `tokenizers` raises bare Exception for a merge of tokens that are not there
        raise UserError(f"{folder / MERGES} does not fit {VOCABULARY}: {error}") from error
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(_settings(folder).get("add_prefix_space")))
    engine.decoder = decoders.ByteLevel()
    return engine


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _unique(pairs: list[tuple[str, Any]], source: object) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise UserError(f"{source} has {twice!r} twice; a vocabulary has each entry once")
    return found


def _different_ids(vocabulary: Mapping[str, int], source: object) -> None:
    places: dict[int, str] = {}
    for token, number in vocabulary.items():
        if number in places:
            raise UserError(f"{source} gives {places[number]!r} and {token!r} the same number, {number}")
        places[number] = token
