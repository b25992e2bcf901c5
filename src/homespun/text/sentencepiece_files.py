"""Reader of SentencePiece models (Kudo and Richardson 2018), ``spm.model`` or ``spiece.model``.

For ALBERT, BigBird, DeBERTa-v2 and v3, PEGASUS, BigBird-Pegasus, Reformer and T5. The package ``sentencepiece`` parses
the file; sizes and values are checked, and a `tokenizers.Tokenizer` with the same ids is built.
`transformers.convert_slow_tokenizer` gives other ids: it omits the character table of BigBird and DeBERTa, and splits
ALBERT's pieces differently. Special tokens are in `homespun.text.sentencepiece_families`. There are two differences to
SentencePiece: a control token in a text is read as characters; combining marks are in NFC order.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine

from homespun.errors import UserError, first_line
from homespun.text.vocabularies import WORD_START

# limits of bytes, pieces, characters in a piece, bytes of the character table; released models have 5 MB, 256,000
# pieces and a table of 300 kB; parsing 16 MiB of empty pieces takes 0.5 GB
_BYTES, _PIECES, _CHARACTERS, _TABLE = 16 << 20, 1_000_000, 512, 4 << 20
_NORMAL, UNKNOWN, CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_UNIGRAM, _BPE = 1, 2
# marks that continue a grapheme: `tokenizers` looks up graphemes and drops code points after a match of the first, so
# each code point is looked up separately and composed afterwards; not at the start of the text, where it panics
_MARK = r"(?!\A)(?=[\p{M}\x{200c}\x{200d}\x{ff9e}\x{ff9f}\x{1f3fb}-\x{1f3ff}])|(?<=\r)(?=\n)"
_PRIVATE = 0xF0000  # private characters, which replace user-defined pieces during normalisation


@dataclass(frozen=True)
class Piece:
    """Token with its log probability (unigram) or negative rank (BPE), and its type in SentencePiece."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class Pieces:
    """Fields of a SentencePiece model that tokenization needs; pieces are indexed by id."""

    pieces: tuple[Piece, ...]
    model_type: int
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_pieces(path: Path) -> Pieces:
    """Read a SentencePiece model through the protocol buffer of the package ``sentencepiece``.

    Raises:
        UserError: the package is not installed; the file cannot be read, is damaged or too large, or has features that
            `tokenizers` lacks.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece.sentencepiece_model_pb2 import ModelProto
    except ImportError as error:
        raise UserError(
            f"{path} needs the packages sentencepiece and protobuf; pip install 'homespun[sentencepiece]'"
        ) from error
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= _BYTES else b""
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if size > _BYTES:
        raise UserError(f"{path} has {size:,} bytes; a SentencePiece model has at most {_BYTES:,}")
    try:
        proto = ModelProto.FromString(content)
        if len(proto.pieces) > _PIECES:
            raise UserError(f"{path} has {len(proto.pieces):,} pieces; a SentencePiece model has at most {_PIECES:,}")
        # protobuf returns bytes for invalid UTF-8
        pieces = tuple(
            Piece(p.piece.decode() if isinstance(p.piece, bytes) else p.piece, p.score, p.type) for p in proto.pieces
        )
    except (DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a SentencePiece model, or damaged: {first_line(error)}") from error
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UserError(f"{path} has treat_whitespace_as_suffix=true or escape_whitespaces=false; neither is supported")
    model = Pieces(
        pieces,
        model_type=trainer.model_type,
        charsmap=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
    )
    _check(model, path)
    return model


def _check(model: Pieces, path: Path) -> None:
    def refuse(reason: str) -> UserError:
        return UserError(f"{path} {reason}")

    if model.model_type not in (_UNIGRAM, _BPE):
        name = {3: "words", 4: "characters"}.get(model.model_type, f"type {model.model_type}")
        raise refuse(f"is a SentencePiece model of {name}; unigram and bpe are supported")
    unknown = [piece for piece in model.pieces if piece.type == UNKNOWN]
    if len(unknown) != 1:
        raise refuse(f"is not a SentencePiece model, or damaged: it has {len(unknown)} unknown pieces, not one")
    for place, piece in enumerate(model.pieces):
        if not piece.text or len(piece.text) > _CHARACTERS:
            raise refuse(f"is damaged: piece {place} has {len(piece.text)} characters, not 1 to {_CHARACTERS}")
        if not math.isfinite(piece.score) or piece.type not in (_NORMAL, UNKNOWN, CONTROL, _USER_DEFINED, _BYTE):
            raise refuse(f"is damaged: piece {place} has score {piece.score} and type {piece.type}")
    bytes_ = sum(piece.type == _BYTE for piece in model.pieces)
    if bytes_ and {p.text for p in model.pieces if p.type == _BYTE} != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise refuse(f"is damaged: it has {bytes_} pieces for bytes, not the 256 of <0x00> to <0xFF>")
    if not any(piece.type == _NORMAL for piece in model.pieces):
        raise refuse("is damaged: it has no normal piece")


def build_engine(pieces: Pieces, before: list[normalizers.Normalizer], added: list[AddedToken], path: Path) -> Engine:
    special = {token.content for token in added}
    user = [p.text for p in pieces.pieces if p.type == _USER_DEFINED and p.text not in special]
    user.sort(key=len, reverse=True)  # the longest matches first
    engine = Engine(_unigram(pieces) if pieces.model_type == _UNIGRAM else _byte_pairs(pieces, bool(user)))
    engine.normalizer = _normalizer(pieces, user, before, path)

    steps: list[pre_tokenizers.PreTokenizer] = []
    texts = [piece.text for piece in pieces.pieces if piece.type in (_NORMAL, _USER_DEFINED)]
    if WORD_START in texts and not any(WORD_START in text[1:] for text in texts):
        # no piece spans two words, so words can be tokenized separately, which is faster
        steps.append(pre_tokenizers.Split(Regex(WORD_START), "merged_with_next"))
    if pieces.model_type == _BPE and user:
        steps.append(pre_tokenizers.Split(Regex("|".join(map(_quoted, user))), "isolated"))
    if pieces.model_type == _UNIGRAM or user:
        reserved = [p.text for p in pieces.pieces if p.type in (UNKNOWN, CONTROL) or p.text in special]
        has_bytes = any(piece.type == _BYTE for piece in pieces.pieces)
        steps.append(_split_special(reserved, has_bytes, [text for text in texts if text not in special]))
    if steps:
        engine.pre_tokenizer = pre_tokenizers.Sequence(steps)

    spaces = [decoders.Strip(" ", 1, 0)] if pieces.add_dummy_prefix else []
    engine.decoder = decoders.Sequence(
        [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), *spaces]
    )
    control = [p.text for p in pieces.pieces if p.type in (UNKNOWN, CONTROL) and p.text not in special]
    engine.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    for token in added:
        (engine.add_special_tokens if token.special else engine.add_tokens)([token])
    return engine


def _unigram(pieces: Pieces) -> models.Unigram:
    lowest = min(piece.score for piece in pieces.pieces if piece.type == _NORMAL)
    # the lowest score is also that of unknown characters, so control pieces must not be below it
    others = {_USER_DEFINED: -0.1}  # SentencePiece ignores the score in the file
    vocabulary = [(p.text, p.score if p.type == _NORMAL else others.get(p.type, lowest)) for p in pieces.pieces]
    unknown = next(place for place, piece in enumerate(pieces.pieces) if piece.type == UNKNOWN)
    return models.Unigram(vocabulary, unknown, any(piece.type == _BYTE for piece in pieces.pieces))


def _byte_pairs(pieces: Pieces, word_first: bool) -> models.BPE:
    """Build the byte-pair merges: all pairs of pieces that make a piece, in the order of the scores.

    ``word_first`` looks up complete words before merging, which finds user-defined pieces.
    """
    scores = {piece.text: piece.score for piece in pieces.pieces if piece.type == _NORMAL}
    merges = []
    for text in sorted(scores, key=lambda text: -scores[text]):  # stable: equal scores by id
        merges += [
            (text[:cut], text[cut:]) for cut in range(1, len(text)) if text[:cut] in scores and text[cut:] in scores
        ]
    return models.BPE(
        {piece.text: place for place, piece in enumerate(pieces.pieces)},
        merges,
        unk_token=next(piece.text for piece in pieces.pieces if piece.type == UNKNOWN),
        fuse_unk=True,
        byte_fallback=any(piece.type == _BYTE for piece in pieces.pieces),
        ignore_merges=word_first,
    )


def _normalizer(
    pieces: Pieces, user: list[str], before: list[normalizers.Normalizer], path: Path
) -> normalizers.Normalizer:
    steps = list(before)
    if pieces.charsmap:
        steps += _precompiled(pieces.charsmap, path)
    changed = [text for text in user if steps and normalizers.Sequence(steps).normalize_str(text) != text]
    hidden = [(text, chr(_PRIVATE + 1 + number)) for number, text in enumerate(changed)]
    steps = [
        *(normalizers.Replace(text, character) for text, character in hidden),
        *steps,
        *(normalizers.Replace(character, text) for text, character in hidden),
    ]
    if pieces.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(r"\A +"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(rf"(?<![ {WORD_START}])[ {WORD_START}]+\z"), ""),
        ]
    if pieces.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", WORD_START)])


def _precompiled(charsmap: bytes, path: Path) -> list[normalizers.Normalizer]:
    """Build a character table that looks up each code point of a grapheme separately."""
    if (damage := _damage(charsmap)) is not None:
        raise UserError(f"{path} is damaged: its table of characters {damage}")
    try:
        table = normalizers.Precompiled(charsmap)
    except Exception as error:  # `tokenizers` raises bare Exception
        raise UserError(f"{path} is damaged: its table of characters cannot be read, {error}") from error
    if table.normalize_str("e\u0301") != "\u00e9":  # the table does not compose characters
        return [table]
    guard = chr(_PRIVATE)
    return [normalizers.Replace(Regex(_MARK), guard), table, normalizers.Replace(guard, ""), normalizers.NFC()]


def _damage(charsmap: bytes) -> str | None:
    """Describe the damage of a character table, or return None; `tokenizers` panics when a text reaches the damage.

    The table is the size of a trie in bytes, the trie as a double array (Aoe 1989) of 4-byte units, and zero-terminated
    texts that its leaves point to.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) > _TABLE or size % 4 or not 0 < size <= len(charsmap) - 4:
        return f"is cut short, or larger than {_TABLE:,} bytes"
    units = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    texts = np.frombuffer(charsmap, dtype=np.uint8, offset=4 + size)
    jumps = (units >> 10) << ((units & (1 << 9)) >> 6)
    characters = np.arange(1, 256)
    seen, places = np.zeros(len(units), dtype=np.bool_), jumps[:1]
    while len(places):
        if (places >= len(units)).any():
            return "leads beyond its end"
        places = np.unique(places[~seen[places]])  # ends are shared
        seen[places] = True
        reached: list[NDArray[np.int64]] = []
        for part in np.array_split(places, len(places) // 4096 + 1):
            following = part[:, None] ^ characters
            if (following >= len(units)).any():
                return "leads beyond its end"
            children = following[units[following] & ((1 << 31) | 0xFF) == characters]
            after = children ^ jumps[children]
            leaves = after[units[children] >> 8 & 1 == 1]
            if (leaves >= len(units)).any():
                return "leads beyond its end"
            starts = units[leaves] & ((1 << 31) - 1)
            if (starts >= len(texts)).any() or (texts[starts] & 0xC0 == 0x80).any():
                return "points between characters"
            reached.append(after)
        places = np.concatenate(reached)
    return None


def _split_special(reserved: list[str], has_bytes: bool, texts: list[str]) -> pre_tokenizers.PreTokenizer:
    """Split names of special tokens in a text, so that they are read as characters.

    The split is at a position that no piece of the vocabulary and no run of unknown characters crosses, if possible, so
    that other ids stay the same.
    """
    pairs = {text[place : place + 2] for text in texts for place in range(len(text) - 1)}
    known = {*texts}
    cuts: dict[str, None] = {r"(?<=<)(?=0x[0-9A-F]{2}>)": None} if has_bytes else {}
    for token in reserved:
        if len(token) > 1:
            candidates = (
                place
                for place in range(1, len(token))
                if token[place - 1 : place + 1] not in pairs and known & {*token[place - 1 : place + 1]}
            )
            place = next(candidates, 1)
            # numbered tokens of PEGASUS and T5 are one pattern
            rest = "".join(
                "[0-9]+" if part.isdecimal() else _quoted(part) for part in re.split("([0-9]+)", token[place:])
            )
            cuts[f"(?<={_quoted(token[:place])})(?={rest})"] = None
    return pre_tokenizers.Split(Regex("|".join(cuts) or r"\z"), "isolated")


def _quoted(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else rf"\x{{{ord(c):x}}}" for c in text)
