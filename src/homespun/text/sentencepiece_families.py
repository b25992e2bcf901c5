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
from homespun.text.vocabularies import unique

_NAMES, _CONFIG = ("*.model", "*.spm"), "tokenizer_config.json"
_GAP = 10_000  # maximum number of ids that are added before or after the pieces
_ORDER = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # order in which transformers adds missing tokens


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
    """Convert the SentencePiece file in ``folder`` to a tokenizer.json; also returns the token of each role.

    The family is ``tokenizer_class`` in ``tokenizer_config.json``, else ``model_type`` in ``config.json``; without both
    the pieces are used unchanged. Added tokens come from ``added_tokens.json``, ``tokenizer_config.json`` and
    ``special_tokens_map.json``.

    Raises:
        UserError: a file is damaged, too large, or of an unsupported kind; an unknown family.
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
    unknown = [piece.text for piece in pieces.pieces if piece.type == UNKNOWN]
    if not unknown:
        raise UserError(f"{path}: the added tokens of {folder / _CONFIG} replace its unknown piece; correct their ids")
    roles["unk"] = unknown[0]
    ids = unique([(piece.text, i) for i, piece in enumerate(pieces.pieces)], path)
    engine = build_engine(pieces, family.before(settings), [token for token, _ in added], path)
    if family.single:
        try:
            engine.post_processor = processors.TemplateProcessing(
                single=[part.format(**roles) for part in family.single.split()],
                pair=[part.format(**roles) for part in family.pair.split()],
                special_tokens=[(token, ids[token]) for token in dict.fromkeys(roles.values())],
            )
        except KeyError as error:
            raise UserError(f"{folder / _CONFIG}: {error.args[0]}_token is null, but required; set it") from error
        except Exception as error:  # `tokenizers` raises bare Exception, for example for a token with a colon
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
            f"{folder} has a SentencePiece model of {name!r}, which is not supported; supported are {known}; write a "
            f"tokenizer.json with save_pretrained of a fast tokenizer"
        )
    return _FAMILIES[name]


def _added(folder: Path, settings: Tree, roles: Mapping[str, str]) -> list[tuple[AddedToken, int | None]]:
    """Read the added tokens, each once, with their ids if the files have them."""
    tokens: dict[str, tuple[AddedToken, int | None]] = {}

    def add(value: object, number: object, *, special: bool) -> None:
        token = _content(value)
        if token is None or not (number is None or (isinstance(number, int) and number >= 0)):
            raise UserError(f"{folder}: {value!r} with the id {number!r} is no added token; correct it")
        if token in tokens:
            added, old = tokens[token]
            if None not in (number, old) and old != number:
                raise UserError(f"{folder}: {token!r} has the ids {old} and {number}; remove one")
            tokens[token] = (added, old if number is None else number)
            return
        details = value if isinstance(value, dict) else {}
        flags = {name: bool(details.get(name)) for name in ("lstrip", "rstrip", "single_word")}
        special = bool(details.get("special", special)) or token in roles.values()
        normalized = bool(details.get("normalized", not special))
        tokens[token] = (AddedToken(token, special=special, normalized=normalized, **flags), number)

    decoder = settings.get("added_tokens_decoder")
    for number, value in (decoder if isinstance(decoder, dict) else {}).items():
        add(value, int(number) if number.isdecimal() and len(number) < 10 else number, special=False)
    for role in (role for role in _ORDER if role in roles):
        value = settings.get(f"{role}_token")
        add(value if _content(value) == roles[role] else roles[role], None, special=True)
    for token, number in read_optional(folder / "added_tokens.json").items():
        add(token, number, special=False)
    for name in ("additional_special_tokens", "extra_special_tokens"):
        for value in _listed(settings, name):
            add(value, None, special=True)
    return list(tokens.values())


def _with_added(pieces: Pieces, added: list[tuple[AddedToken, int | None]], path: Path) -> Pieces:
    """Insert the added tokens at their ids; those without an id are appended."""
    merged = list(pieces.pieces)
    ids = {piece.text: place for place, piece in enumerate(merged)}
    limit = len(merged) + _GAP
    for token, number in added:
        text = token.content
        if number is None:
            continue
        if number >= limit:
            raise UserError(f"{path} has {len(pieces.pieces):,} pieces, and added token {text!r} the id {number:,}")
        if ids.get(text, number) != number:
            raise UserError(f"{path} has {text!r} at {ids[text]}, and the files next to it at {number}")
        merged += [Piece(f"<reserved_{place}>", 0.0, CONTROL) for place in range(len(merged), number + 1)]
        if merged[number].text != text:
            merged[number] = Piece(text, 0.0, CONTROL if merged[number].type != UNKNOWN else UNKNOWN)
            ids[text] = number
    present = {piece.text for piece in merged}
    merged += [Piece(token.content, 0.0, CONTROL) for token, _ in added if token.content not in present]
    return replace(pieces, pieces=tuple(merged))


def _content(value: object) -> str | None:
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) and token and not any("\ud800" <= c <= "\udfff" for c in token) else None


def _listed(settings: Tree, name: str) -> list[object]:
    tokens = settings.get(name) or []
    if not isinstance(tokens, (list, dict)):
        raise UserError(f"{_CONFIG}: {name}={tokens!r} must be a list of tokens")
    return list(tokens.values()) if isinstance(tokens, dict) else tokens


def _count(settings: Tree, name: str, default: int) -> int:
    count = settings.get(name, default)
    if not isinstance(count, int) or not 0 <= count <= _GAP:
        raise UserError(f"{_CONFIG}: {name}={count!r} must be a whole number from 0 to {_GAP:,}")
    return count


def _albert_pieces(pieces: Pieces, roles: dict[str, str], settings: Tree) -> Pieces:
    """Tokenize a comma after a digit separately, as ALBERT's postprocessing does."""
    merged = [
        replace(p, score=p.score - 100) if len(p.text) > 1 and p.text[-1] == "," and p.text[-2].isdigit() else p
        for p in pieces.pieces
    ]
    return replace(pieces, pieces=tuple(merged))


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
        raise UserError(f"{_CONFIG}: split_by_punct=true is not supported; write a tokenizer.json with transformers")
    return [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []


def _t5_pieces(pieces: Pieces, roles: dict[str, str], settings: Tree) -> Pieces:
    """Append the sentinels, in descending order."""
    listed = [t for t in _listed(settings, "additional_special_tokens") if "<extra_id_" in str(_content(t))]
    count = _count(settings, "extra_ids", len(listed) or 100)
    known = {piece.text for piece in pieces.pieces}
    sentinels = [f"<extra_id_{number}>" for number in range(count - 1, -1, -1)]
    more = [Piece(token, 0.0, CONTROL) for token in sentinels if token not in known]
    return replace(pieces, pieces=(*pieces.pieces, *more))


def _pegasus_pieces(pieces: Pieces, roles: dict[str, str], settings: Tree) -> Pieces:
    """Insert pretraining tokens after the first two pieces: <mask_1>, <mask_2>, <unk_2> to <unk_102>."""
    offset = _count(settings, "offset", 103)
    if not offset:
        return pieces
    masks = (_content(settings.get("mask_token_sent", "<mask_1>")), roles.get("mask"))
    if None in masks or masks[0] == masks[1]:
        raise UserError(f"{_CONFIG}: PEGASUS needs different mask_token and mask_token_sent, or offset=0")
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
