"""Training of vocabularies of each kind, and vocabulary files older than tokenizer.json (BERT, ProphetNet, GPT-2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Engine

from homespun.choices import TokenizerKind
from homespun.errors import UserError, first_line
from homespun.io.json import read_optional
from homespun.text.decoding import without_surrogates

KINDS: tuple[TokenizerKind, ...] = get_args(TokenizerKind)

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_TRAINER: dict[str, Any] = {"special_tokens": list(SPECIAL_TOKENS), "show_progress": False}

WORD_START = "▁"  # U+2581, as in SentencePiece


class TextStream:
    """Texts up to ``limit`` characters, with a count of the characters."""

    def __init__(self, texts: Iterable[str], limit: int) -> None:
        self._texts = texts
        self._limit = limit
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.characters += len(text)
            yield without_surrogates(text)
            if self.characters >= self._limit:
                return


def _learn_bpe(stream: TextStream, vocab_size: int, lowercase: bool) -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(SPECIAL_TOKENS) + len(alphabet):
        least = len(alphabet) + len(SPECIAL_TOKENS)
        raise UserError(f"vocab_size={vocab_size} is too small for kind 'bpe'; set it to {least} or more")
    engine = Engine(models.BPE())
    if lowercase:
        engine.normalizer = normalizers.Lowercase()
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, **_TRAINER)
    return _trained(engine, trainer, stream)


def _learn_bpe_characters(stream: TextStream, vocab_size: int, lowercase: bool) -> str:
    engine = _marked_words(models.BPE(unk_token=UNK, fuse_unk=True), lowercase)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, limit_alphabet=_alphabet_limit(vocab_size), **_TRAINER)
    return _trained(engine, trainer, stream)


def _learn_unigram(stream: TextStream, vocab_size: int, lowercase: bool) -> str:
    engine = _marked_words(models.Unigram(), lowercase)
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, unk_token=UNK, **_TRAINER)
    tree = json.loads(_trained(engine, trainer, stream))
    # The trainer iterates over a hash map in random order, which changes the last digits of its sums, and the order of
    # the required single characters, whose scores ascend by 0.0001 from the lowest. Rounding and sorting fix both.
    special, pieces = tree["model"]["vocab"][: len(SPECIAL_TOKENS)], dict(tree["model"]["vocab"][len(SPECIAL_TOKENS) :])
    lowest = min(pieces.values(), default=0.0)
    ladder: list[str] = []
    for piece in sorted(pieces, key=pieces.__getitem__):
        if len(piece) == 1 and abs(pieces[piece] - lowest - 1e-4 * len(ladder)) < 1e-6:
            ladder.append(piece)
    pieces |= dict(zip(sorted(ladder), [pieces[piece] for piece in ladder], strict=True))
    ordered = sorted(
        ((piece, round(score, 6)) for piece, score in pieces.items()), key=lambda pair: (-pair[1], pair[0])
    )
    tree["model"]["vocab"] = special + ordered
    return json.dumps(tree, ensure_ascii=False)


def _learn_wordpiece(stream: TextStream, vocab_size: int, lowercase: bool) -> str:
    # `WordPieceTrainer` numbers the "##" alphabet in random order. Its merges are those of BPE, so merge words that
    # begin with a mark, and then convert "▁th" to "th" and "ing" to "##ing".
    mark = "\ue000"  # private use: the normalizer removes it from texts
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    words = pre_tokenizers.BertPreTokenizer()
    merger = Engine(models.BPE(unk_token=UNK))
    merger.normalizer = normalizer
    merger.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(mark, prepend_scheme="always")])
    limit = _alphabet_limit(vocab_size)
    # merges of the mark with a first character add no token, hence more merges than tokens
    trainer = trainers.BpeTrainer(vocab_size=vocab_size + limit + 1, limit_alphabet=limit, show_progress=False)
    merged = json.loads(_trained(merger, trainer, stream))["model"]["vocab"]
    tokens = [token for token in sorted(merged, key=merged.__getitem__) if token != mark]
    characters = [token for token in tokens if len(token) == 1]
    inside = [
        f"##{c}" for c in characters if len(words.pre_tokenize_str(normalizer.normalize_str(f"a{c}"))) == 1
    ]  # punctuation marks are separate words
    merges = [token[1:] if token.startswith(mark) else f"##{token}" for token in tokens if len(token) > 1]
    alphabet = [*SPECIAL_TOKENS, *characters, *inside]
    vocabulary = list(dict.fromkeys(alphabet + merges))[: max(vocab_size, len(alphabet))]

    engine = Engine(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token=UNK))
    engine.normalizer = normalizer
    engine.pre_tokenizer = words
    engine.decoder = decoders.WordPiece()
    engine.add_special_tokens(list(SPECIAL_TOKENS))
    return _with_template(engine)


def _learn_words(stream: TextStream, vocab_size: int, lowercase: bool) -> str:
    engine = Engine(models.WordLevel(unk_token=UNK))
    engine.normalizer = _normalizer(lowercase)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # words, and each punctuation mark alone
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, **_TRAINER)
    return _trained(engine, trainer, stream)


# (stream, vocab_size, lowercase) -> tokenizer.json, whose size may differ from vocab_size
LEARN: dict[TokenizerKind, Callable[[TextStream, int, bool], str]] = {
    "bpe": _learn_bpe,
    "bpe-characters": _learn_bpe_characters,
    "wordpiece": _learn_wordpiece,
    "unigram": _learn_unigram,
    "words": _learn_words,
}


def _marked_words(model: models.Model, lowercase: bool) -> Engine:
    """Build an engine that marks word starts by ``▁`` and splits punctuation from letters, as SentencePiece."""
    engine = Engine(model)
    engine.normalizer = _normalizer(lowercase)
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(WORD_START, prepend_scheme="always"),
            pre_tokenizers.Split(Regex(rf"{WORD_START}?[\p{{P}}$+<=>^`|~]+"), "isolated"),
        ]
    )
    engine.decoder = decoders.Metaspace(WORD_START, prepend_scheme="always")
    return engine


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]) if lowercase else normalizers.NFC()


def _alphabet_limit(vocab_size: int) -> int:
    """Return the alphabet size: BERT's 1,000, or a quarter of a smaller vocabulary, at least 128.

    Rarer characters are ``[UNK]``.
    """
    return min(1000, max(128, (vocab_size - len(SPECIAL_TOKENS)) // 4))


def _trained(engine: Engine, trainer: Any, stream: TextStream) -> str:
    try:
        engine.train_from_iterator(stream, trainer)
    except (UserError, OSError):  # raised by the reader of the texts
        raise
    except Exception as error:  # `tokenizers` raises bare Exception, for example for too large an alphabet
        if stream.characters:
            raise UserError(f"no tokenizer of vocab_size={trainer.vocab_size} could be trained: {error}") from error
    if not stream.characters:
        raise UserError("there is no text to train a tokenizer on; give files with text")
    return _with_template(engine)


def _with_template(engine: Engine) -> str:
    """Return the tokenizer.json with the template [CLS] A [SEP] B [SEP]."""
    ids = engine.get_vocab(with_added_tokens=True)
    if CLS in ids:
        engine.post_processor = _bert_template((CLS, ids[CLS]), (SEP, ids[SEP]))
    return str(engine.to_str())


WORDPIECE, PROPHETNET, VOCABULARY, MERGES = "vocab.txt", "prophetnet.tokenizer", "vocab.json", "merges.txt"
VOCABULARIES = (WORDPIECE, PROPHETNET, VOCABULARY, MERGES)
Token = tuple[str, int]
_CONFIG = "tokenizer_config.json"
_IDS = 2**31  # upper limit of ids
_SEPARATOR = "[X_SEP]"  # ProphetNet's separator of sentences


@dataclass(frozen=True)
class VocabularyFiles:
    """Content of vocabulary files."""

    engine: Engine  # tokenizer without special tokens
    around: tuple[str, ...]  # roles of the tokens around texts
    template: Callable[..., processors.PostProcessor]  # builds the post-processor from `around` with ids
    special: tuple[str, ...] = ()  # tokens without a role


def load_vocabulary_files(folder: Path) -> VocabularyFiles | None:
    """Load the vocabulary files of ``folder``; None if there are none.

    Defaults are those of the original implementations: BERT and ProphetNet lower-case, unless ``tokenizer_config.json``
    sets another value; byte-level BPE adds no space before the text.

    Raises:
        UserError: files are truncated or have a duplicate entry.
    """
    if (folder / WORDPIECE).is_file():
        return VocabularyFiles(_wordpiece(folder, WORDPIECE), ("cls", "sep"), _bert_template)
    if (folder / PROPHETNET).is_file():
        engine = _wordpiece(folder, PROPHETNET)
        special = (_SEPARATOR,) if engine.token_to_id(_SEPARATOR) is not None else ()
        return VocabularyFiles(engine, ("sep",), _prophetnet_template, special)
    if (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        return VocabularyFiles(_byte_pairs(folder), ("cls", "sep"), _roberta_template)
    return None


def with_special_tokens(files: VocabularyFiles, roles: Mapping[str, str]) -> str:
    """Build the tokenizer.json of ``files`` with the special tokens of ``roles``, and the template if its tokens exist.

    Raises:
        UserError: a token cannot be in a template.
    """
    engine = files.engine
    is_byte_level = isinstance(engine.model, models.BPE)
    # RoBERTa's <mask> includes the space before it
    added = [AddedToken(token, lstrip=is_byte_level and role == "mask", special=True) for role, token in roles.items()]
    engine.add_special_tokens([*added, *(AddedToken(token, special=True) for token in files.special)])
    if all(role in roles for role in files.around):
        tokens = [roles[role] for role in files.around]
        try:
            engine.post_processor = files.template(*((token, engine.token_to_id(token)) for token in tokens))
        except Exception as error:  # `tokenizers` raises bare Exception, for example for a token with a colon
            raise UserError(f"{' and '.join(map(repr, tokens))} cannot be special: {first_line(error)}") from error
    return str(engine.to_str())


def refuse_duplicates(content: str, engine: Engine, *, source: str) -> None:
    """Raise `UserError` for a duplicate token or id in a tokenizer.json.

    ``engine`` was made from ``content``; an added token with different ids in both is an error too.
    """
    tree = json.loads(content, object_pairs_hook=lambda pairs: unique(pairs, source))
    vocabulary = tree["model"].get("vocab")
    if isinstance(vocabulary, dict):
        _different_ids(vocabulary, source)
    elif isinstance(vocabulary, list):
        unique([(piece, score) for piece, score in vocabulary], source)
    added = unique([(token["content"], token["id"]) for token in tree.get("added_tokens") or []], source)
    for token, number in added.items():
        if (free := engine.token_to_id(token)) != number:
            raise UserError(f"{source} has added token {token!r} with id {number}, not the next free id, {free}")


def _bert_template(cls: Token, sep: Token) -> processors.PostProcessor:
    single, pair = f"{cls[0]} $A {sep[0]}", f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1"
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[cls, sep])


def _prophetnet_template(sep: Token) -> processors.PostProcessor:
    return processors.TemplateProcessing(single=f"$A {sep[0]}", pair=f"$A {sep[0]} $B {sep[0]}", special_tokens=[sep])


def _roberta_template(cls: Token, sep: Token) -> processors.PostProcessor:
    return processors.RobertaProcessing(sep, cls, add_prefix_space=False)


def _wordpiece(folder: Path, name: str) -> Engine:
    path = folder / name
    tokens = _text(path).split("\n")
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    vocabulary = unique([(token, number) for number, token in enumerate(tokens)], path)
    config = read_optional(folder / _CONFIG)
    unknown = config.get("unk_token", "[UNK]")
    unknown = unknown.get("content") if isinstance(unknown, dict) else unknown
    if not isinstance(unknown, str) or unknown not in vocabulary:
        raise UserError(f"{path} has no unknown token {unknown!r}; set unk_token in {_CONFIG}")
    accents = config.get("strip_accents")
    if accents is not None and not isinstance(accents, bool):
        raise UserError(f"{folder / _CONFIG}: strip_accents={accents!r} must be true, false or null")
    engine = Engine(models.WordPiece(vocabulary, unk_token=unknown))
    engine.normalizer = normalizers.BertNormalizer(
        lowercase=bool(config.get("do_lower_case", True)),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=accents,
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    return engine


def _byte_pairs(folder: Path) -> Engine:
    path = folder / VOCABULARY
    try:
        vocabulary = json.loads(_text(path), object_pairs_hook=lambda pairs: unique(pairs, path))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {first_line(error)}") from error
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        raise UserError(f"{path} must map tokens to ids")
    if wrong := [token for token, number in vocabulary.items() if not 0 <= number < _IDS]:
        raise UserError(f"{path} has {wrong[0]!r} with id {vocabulary[wrong[0]]}; ids are 0 or more")
    _different_ids(vocabulary, path)
    if missing := sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys()):
        raise UserError(f"{path} lacks {missing[0]!r} of a byte-level vocabulary; write a tokenizer.json instead")
    lines = [line for line in _text(folder / MERGES).split("\n") if line and not line.startswith("#version")]
    pairs = [tuple(line.split(" ")) for line in lines]
    if odd := [line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2]:
        raise UserError(f"{folder / MERGES}: {odd[0]!r} is not a pair of tokens")
    try:
        engine = Engine(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in pairs]))
    except Exception as error:  # `tokenizers` raises bare Exception for a merge of missing tokens
        raise UserError(f"{folder / MERGES} does not fit {VOCABULARY}: {first_line(error)}") from error
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(read_optional(folder / _CONFIG).get("add_prefix_space"))
    )
    engine.decoder = decoders.ByteLevel()
    return engine


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def unique(pairs: list[tuple[str, Any]], source: object) -> dict[str, Any]:
    """Return ``pairs`` as a dictionary. Raises `UserError` for a duplicate key."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise UserError(f"{source} has {name!r} twice; remove one")
        values[name] = value
    return values


def _different_ids(vocabulary: Mapping[str, int], source: object) -> None:
    tokens: dict[int, str] = {}
    for token, number in vocabulary.items():
        if number in tokens:
            raise UserError(f"{source} has {tokens[number]!r} and {token!r} with the same id, {number}; change one")
        tokens[number] = token
