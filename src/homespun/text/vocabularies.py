"""Training of each kind of vocabulary: a stream of texts to the content of a tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Engine

from homespun.errors import UserError
from homespun.text.formats import without_surrogates

Kind = Literal["bpe", "bpe-characters", "wordpiece", "unigram", "words"]
KINDS: tuple[Kind, ...] = get_args(Kind)

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_TRAINER: dict[str, Any] = {"special_tokens": list(SPECIAL_TOKENS), "show_progress": False}

WORD_START = "▁"  # U+2581, as in SentencePiece


class TextStream:
    """Texts up to ``limit`` characters; counts the characters."""

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
        raise UserError(
            f"vocab_size={vocab_size} is too small for kind 'bpe': it needs {len(alphabet)} tokens for the bytes "
            f"and {len(SPECIAL_TOKENS)} special ones"
        )
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
    # The trainer iterates over a hash map, whose order differs between runs. So do the last digits of its sums, and the
    # order of the required single characters on a ladder of scores (from the lowest up, 0.0001 apart). Rounding and
    # sorting makes them deterministic.
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
    # `WordPieceTrainer` numbers the "##" alphabet in hash map order: two runs give two vocabularies. Its merges
    # are those of BPE, so merge words that begin with a mark, and then write "▁th" as "th" and "ing" as "##ing".
    mark = "\ue000"  # private use: the normalizer removes it from texts
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    words = pre_tokenizers.BertPreTokenizer()
    merger = Engine(models.BPE(unk_token=UNK))
    merger.normalizer = normalizer
    merger.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(mark, prepend_scheme="always")])
    limit = _alphabet_limit(vocab_size)
    # Merging the mark with a first character adds nothing to the vocabulary, hence more merges than tokens.
    trainer = trainers.BpeTrainer(vocab_size=vocab_size + limit + 1, limit_alphabet=limit, show_progress=False)
    merged = json.loads(_trained(merger, trainer, stream))["model"]["vocab"]
    tokens = [token for token in sorted(merged, key=merged.__getitem__) if token != mark]
    characters = [token for token in tokens if len(token) == 1]
    inside = [
        f"##{c}" for c in characters if len(words.pre_tokenize_str(normalizer.normalize_str(f"a{c}"))) == 1
    ]  # punctuation is always a word of its own
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


# (stream, vocab_size, lowercase) -> tokenizer.json, which may have fewer or more tokens than was asked for.
LEARN: dict[Kind, Callable[[TextStream, int, bool], str]] = {
    "bpe": _learn_bpe,
    "bpe-characters": _learn_bpe_characters,
    "wordpiece": _learn_wordpiece,
    "unigram": _learn_unigram,
    "words": _learn_words,
}


def _marked_words(model: models.Model, lowercase: bool) -> Engine:
    """An engine that marks word starts by ``▁`` and splits punctuation from letters (as SentencePiece, by script)."""
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
    """Alphabet size: BERT's 1,000, a quarter of a smaller vocabulary, at least 128; the rarest become ``[UNK]``."""
    return min(1000, max(128, (vocab_size - len(SPECIAL_TOKENS)) // 4))


def _trained(engine: Engine, trainer: Any, stream: TextStream) -> str:
    try:
        engine.train_from_iterator(stream, trainer)
    except (UserError, OSError):  # of the reader
        raise
    except Exception as error:  # `tokenizers` raises bare Exception, as for an alphabet larger than the vocabulary
        if stream.characters == 0:
            raise UserError("there is no text to train a tokenizer on; give files with text") from error
        raise UserError(f"no tokenizer of vocab_size={trainer.vocab_size} could be trained: {error}") from error
    return _with_template(engine)


def _with_template(engine: Engine) -> str:
    """The tokenizer.json with the template [CLS] A [SEP] B [SEP]."""
    ids = engine.get_vocab(with_added_tokens=True)
    if CLS in ids:
        engine.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
        )
    return str(engine.to_str())
