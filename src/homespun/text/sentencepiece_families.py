"""SentencePiece checkpoints by family: ids of added tokens, text normalisation, special tokens around texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Regex, normalizers, processors

from homespun.config import Tree
from homespun.errors import UserError
from homespun.io.json import read_optional
from homespun.text.sentencepiece_files import CONTROL, UNKNOWN, Piece, Pieces, build_engine, read_pieces

_NAMES, _CONFIG = ("*.model", "*.spm"), "tokenizer_config.json"
_GAP = 10_000  # ids that may be added behind the pieces, or before them
_ORDER = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in which transformers adds the tokens that are missing


@dataclass(frozen=True)
class _Family:
    """Roles, template, ids and normalisation of a tokenizer class of transformers."""

    roles: Mapping[str, str]
    single: str = ""
    pair: str = ""
    numbered: Callable[[Pieces, dict[str, str], Tree], Pieces] = lambda pieces, roles, settings: pieces
    before: Callable[[Tree], list[normalizers.Normalizer]] = lambda settings: []


def is_sentencepiece(folder: Path) -> bool:
    """True if ``folder`` has a SentencePiece file."""
    return bool(_files(folder))


def convert_sentencepiece(folder: Path) -> tuple[str, dict[str, str]]:
    """The tokenizer.json of the SentencePiece file in ``folder``, and the token of each role.

    The family follows from ``tokenizer_class`` in ``tokenizer_config.json``, else ``model_type`` in ``config.json``;
    with neither, the pieces are taken as they are. Added tokens come from ``added_tokens.json``,
    ``tokenizer_config.json`` and ``special_tokens_map.json``.

    Raises:
        UserError: a file that is damaged, too large, or of an unsupported kind; an unknown family.
    """
    files = _files(folder)
    if len(files) > 1:
        raise UserError(f"{folder} has {len(files)} vocabularies, {files[0].name} and {files[1].name}; keep one")
    path = files[0]
    settings = {**read_optional(folder / "special_tokens_map.json"), **read_optional(folder / _CONFIG)}
    family = _family(folder, settings)
    roles = dict(family.roles)
    for role in _ORDER:
        if f"{role}_token" in settings:
            token = _content(settings[f"{role}_token"])
            if token is None:
                roles.pop(role, None)
            else:
                roles[role] = token
    pieces = family.numbered(read_pieces(path), roles, settings)
    roles.pop("unk", None)
    added = _added(folder, settings, roles)
    pieces = _with_added(pieces, added, path)
    roles["unk"] = next(piece.text for piece in pieces.pieces if piece.type == UNKNOWN)
    places = {piece.text: place for place, piece in enumerate(pieces.pieces)}
    if len(places) < len(pieces.pieces):
        twice = next(piece.text for place, piece in enumerate(pieces.pieces) if places[piece.text] != place)
        raise UserError(f"{path} has {twice!r} twice; a vocabulary has each entry once")
    engine = build_engine(pieces, family.before(settings), [token for token, _ in added], path)
    if family.single:
        try:
            engine.post_processor = processors.TemplateProcessing(
                single=[part.format(**roles) for part in family.single.split()],
                pair=[part.format(**roles) for part in family.pair.split()],
                special_tokens=[(token, places[token]) for token in dict.fromkeys(roles.values())],
            )
        except KeyError as error:
            raise UserError(f"{folder / _CONFIG}: {error.args[0]}_token is null, which goes around texts") from error
        except Exception as error:  # `tokenizers` raises bare Exception, as for a token with a colon in it
            raise UserError(f"{folder}: {error}") from error
    return str(engine.to_str()), roles


def _files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _NAMES for path in folder.glob(pattern) if path.is_file()})


def _family(folder: Path, settings: Tree) -> _Family:
    config = read_optional(folder / "config.json")
    name = settings.get("tokenizer_class") or config.get("tokenizer_class") or config.get("model_type")
    name = _CLASSES.get(str(name), str(name).removesuffix("Fast")) if name else "PreTrainedTokenizer"
    if name not in _FAMILIES:
        known = ", ".join(sorted({*_FAMILIES} - set(_PLAIN)))
        raise UserError(
            f"{folder} has pieces of SentencePiece for {name!r}, which numbers its tokens in a way that is not known "
            f"here; known are {known}; save_pretrained of a fast tokenizer writes the tokenizer.json that can be read"
        )
    return _FAMILIES[name]


def _added(folder: Path, settings: Tree, roles: Mapping[str, str]) -> list[tuple[AddedToken, int | None]]:
    """Added tokens, each once, with their ids if the files give them."""
    found: dict[str, tuple[AddedToken, int | None]] = {}

    def add(value: object, number: object, *, special: bool) -> None:
        token = _content(value)
        if token is None or not (number is None or (isinstance(number, int) and number >= 0)):
            raise UserError(f"{folder}: {value!r} with the id {number!r} is no added token")
        before = found.get(token)
        if before is not None and None not in (number, before[1]) and before[1] != number:
            raise UserError(f"{folder}: {token!r} has the ids {before[1]} and {number}; a token has one")
        if before is not None:
            found[token] = (before[0], before[1] if number is None else number)
            return
        details = value if isinstance(value, dict) else {}
        flags = {name: bool(details.get(name)) for name in ("lstrip", "rstrip", "single_word")}
        special = bool(details.get("special", special)) or token in roles.values()
        normalized = bool(details.get("normalized", not special))
        found[token] = (AddedToken(token, special=special, normalized=normalized, **flags), number)

    named = settings.get("added_tokens_decoder")
    for number, value in (named if isinstance(named, dict) else {}).items():
        add(value, int(number) if number.isdecimal() and len(number) < 10 else number, special=False)
    for role in (role for role in _ORDER if role in roles):
        value = settings.get(f"{role}_token")
        add(value if _content(value) == roles[role] else roles[role], None, special=True)
    for token, number in read_optional(folder / "added_tokens.json").items():
        add(token, number, special=False)
    for name in ("additional_special_tokens", "extra_special_tokens"):
        for value in _listed(settings, name):
            add(value, None, special=True)
    return list(found.values())


def _with_added(pieces: Pieces, added: list[tuple[AddedToken, int | None]], path: Path) -> Pieces:
    """The pieces with the added tokens at their ids, those without one last."""
    made = list(pieces.pieces)
    places = {piece.text: place for place, piece in enumerate(made)}
    limit = len(made) + _GAP
    for token, number in added:
        text = token.content
        if number is None:
            continue
        if number >= limit:
            raise UserError(
                f"{path} has {len(pieces.pieces):,} pieces; the added token {text!r} is far off, at {number:,}"
            )
        if places.get(text, number) != number:
            raise UserError(f"{path} has {text!r} at {places[text]}, and the files beside it at {number}")
        made += [Piece(f"<reserved_{place}>", 0.0, CONTROL) for place in range(len(made), number + 1)]
        if made[number].text != text:
            made[number] = Piece(text, 0.0, CONTROL if made[number].type != UNKNOWN else UNKNOWN)
            places[text] = number
    here = {piece.text for piece in made}
    made += [Piece(token.content, 0.0, CONTROL) for token, _ in added if token.content not in here]
    return replace(pieces, pieces=tuple(made))


def _content(value: object) -> str | None:
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) and token and not any("\ud800" <= c <= "\udfff" for c in token) else None


def _listed(settings: Tree, name: str) -> list[object]:
    found = settings.get(name) or []
    if not isinstance(found, (list, dict)):
        raise UserError(f"{_CONFIG}: {name} must be a list of tokens, not {found!r}")
    return list(found.values()) if isinstance(found, dict) else found


def _count(settings: Tree, name: str, default: int) -> int:
    count = settings.get(name, default)
    if not isinstance(count, int) or not 0 <= count <= _GAP:
        raise UserError(f"{_CONFIG}: {name} must be a whole number from 0 to {_GAP:,}, not {count!r}")
    return count


def _albert_pieces(pieces: Pieces, roles: dict[str, str], settings: Tree) -> Pieces:
    """Make a comma after a digit a token, as ALBERT's postprocessing does."""
    made = [
        replace(p, score=p.score - 100) if len(p.text) > 1 and p.text[-1] == "," and p.text[-2].isdigit() else p
        for p in pieces.pieces
    ]
    return replace(pieces, pieces=tuple(made))


def _albert_text(settings: Tree) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if settings.get("do_lower_case", True) else steps


def _deberta_text(settings: Tree) -> list[normalizers.Normalizer]:
    if settings.get("split_by_punct"):
        raise UserError(f"{_CONFIG}: split_by_punct is not known here for a vocabulary of SentencePiece")
    return [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []


def _t5_pieces(pieces: Pieces, roles: dict[str, str], settings: Tree) -> Pieces:
    """Sentinels after the pieces, the first of them last."""
    listed = [t for t in _listed(settings, "additional_special_tokens") if "<extra_id_" in str(_content(t))]
    count = _count(settings, "extra_ids", len(listed) or 100)
    known = {piece.text for piece in pieces.pieces}
    sentinels = [f"<extra_id_{number}>" for number in range(count - 1, -1, -1)]
    more = [Piece(token, 0.0, CONTROL) for token in sentinels if token not in known]
    return replace(pieces, pieces=(*pieces.pieces, *more))


def _pegasus_pieces(pieces: Pieces, roles: dict[str, str], settings: Tree) -> Pieces:
    """Pretraining tokens after the first two pieces: <mask_1>, <mask_2>, <unk_2> to <unk_102>."""
    offset = _count(settings, "offset", 103)
    if not offset:
        return pieces
    masks = (_content(settings.get("mask_token_sent", "<mask_1>")), roles.get("mask"))
    if None in masks or masks[0] == masks[1]:
        raise UserError(f"{_CONFIG}: PEGASUS has a mask_token and a mask_token_sent, or offset 0")
    front = [roles.get("pad"), roles.get("eos"), *masks, *(f"<unk_{number}>" for number in range(2, offset))]
    return replace(pieces, pieces=(*(Piece(str(token), 0.0, CONTROL) for token in front), *pieces.pieces[2:]))


_BRACKETS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_AROUND = ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
_PLAIN = ("PreTrainedTokenizer", "TokenizersBackend")
_FAMILIES = {
    "AlbertTokenizer": _Family({"pad": "<pad>", **_BRACKETS}, *_AROUND, numbered=_albert_pieces, before=_albert_text),
    "BigBirdTokenizer": _Family({"pad": "<pad>", "bos": "<s>", "eos": "</s>", **_BRACKETS}, *_AROUND),
    "DebertaV2Tokenizer": _Family({"pad": "[PAD]", **_BRACKETS}, *_AROUND, before=_deberta_text),
    "PegasusTokenizer": _Family(
        {"pad": "<pad>", "eos": "</s>", "mask": "<mask_2>"}, "$A {eos}", "$A $B {eos}", numbered=_pegasus_pieces
    ),
    "ReformerTokenizer": _Family({"eos": "</s>"}),
    "T5Tokenizer": _Family({"pad": "<pad>", "eos": "</s>"}, "$A {eos}", "$A {eos} $B {eos}", numbered=_t5_pieces),
    **{name: _Family({}) for name in _PLAIN},
}
# classes of the same kind, and model types whose tokenizer_config.json names no class
_CLASSES = {
    "albert": "AlbertTokenizer",
    "big_bird": "BigBirdTokenizer",
    "bigbird_pegasus": "PegasusTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "MT5Tokenizer": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "reformer": "ReformerTokenizer",
    "t5": "T5Tokenizer",
}
