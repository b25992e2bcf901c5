"""Vocabulary extension: frequent words that a tokenizer splits become one token each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer as Engine

from homespun.config import Tree
from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer, sentinel
from homespun.text.vocabularies import WORD_START

_GROWING = ("model.ignore_merges", "model.vocab", "added_tokens")  # fields that an extension changes
_CAPACITY = 1_000_000  # distinct words that are counted
_MIN_COUNT = 2  # minimum count of a new word
_BETWEEN = str.maketrans("", "", "-'’")


@dataclass(frozen=True)
class Word:
    """New word: its token, its number of occurrences, and its pieces before the extension."""

    token: str
    count: int
    pieces: int

    @property
    def gain(self) -> int:
        """Number of tokens saved; an unknown word counts as one for each occurrence."""
        return self.count * max(1, self.pieces - 1)


@dataclass(frozen=True)
class AddedTokens:
    """Added ids from ``first`` on, each with its ``pieces`` in the original tokenizer.

    Pieces are empty if the original tokenizer has none, as WordPiece for a line end.
    """

    first: int
    pieces: tuple[tuple[int, ...], ...] = ()


def extend(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> tuple[Tokenizer, list[Word]]:
    """Add the ``count`` words of ``texts`` that save the most tokens.

    Existing ids are unchanged. Byte-pair encoding then looks up complete words first (``ignore_merges``), so a new word
    needs no merges and no other word changes. In WordPiece and unigram vocabularies a new word can also begin a longer
    word. ``texts`` are read once.

    Returns:
        The tokenizer and the new words.

    Raises:
        UserError: too few words, or the tokenizer cannot be extended.
    """
    if count < 1:
        raise UserError(f"--add {count} must be 1 or more; raise it")
    tree = json.loads(tokenizer.content)
    _refuse(tree, tokenizer)
    engine = Engine.from_str(tokenizer.content)
    known = engine.get_vocab(with_added_tokens=True)
    marked = {"bpe": "Ġ", "bpe-characters": WORD_START, "unigram": WORD_START}.get(tokenizer.kind, "")
    words = []
    for word, times in _counted(_words(engine, texts)).items():
        if times < _MIN_COUNT or word in known or not word.startswith(marked) or not _is_word(engine, word):
            continue
        pieces = engine.model.tokenize(word)
        unknown = any(piece.id == tokenizer.unk_id for piece in pieces)
        if len(pieces) > 1 or unknown:
            words.append(Word(word, times, len(pieces)))
    words.sort(key=lambda word: (-word.gain, word.token))
    if len(words) < count:
        raise UserError(
            f"--add {count}: only {len(words)} words of this text have several pieces and occur {_MIN_COUNT} times; "
            f"lower --add to that, or give more text"
        )
    chosen = words[:count]
    return _with_words(tokenizer, tree, engine, chosen), chosen


def find_added_tokens(before: Tokenizer, after: Tokenizer) -> AddedTokens | None:
    """Find tokens that ``after`` has and ``before`` lacks; None unless ``after`` extends ``before``."""
    first = before.vocab_size
    if before.fingerprint == after.fingerprint:
        return AddedTokens(first)
    trees = [json.loads(tokenizer.content) for tokenizer in (before, after)]
    vocabularies = [Engine.from_str(t.content).get_vocab(with_added_tokens=True) for t in (before, after)]
    for tree in trees:
        for name in _GROWING:
            *path, last = name.split(".")
            (tree[path[0]] if path else tree).pop(last, None)
    more = vocabularies[1].items() - vocabularies[0].items()
    same = trees[0] == trees[1] and vocabularies[0].items() <= vocabularies[1].items()
    if not same or before.roles != after.roles or sorted(i for _, i in more) != [*range(first, after.vocab_size)]:
        return None
    texts = [after.decode([number], skip_special_tokens=False) for number in range(first, after.vocab_size)]
    return AddedTokens(first, tuple(tuple(int(i) for i in ids) for ids in before.encode_batch(texts)))


def _refuse(tree: Tree, tokenizer: Tokenizer) -> None:
    model = tree["model"]
    if model.get("end_of_word_suffix"):
        suffix = model["end_of_word_suffix"]
        raise UserError(f"a tokenizer that marks the ends of words ({suffix}) cannot be extended; train a new one")
    if tree.get("pre_tokenizer") is None:
        raise UserError("a tokenizer that does not split texts into words cannot be extended; train a new one")
    if tokenizer.kind == "unigram" and len(model["vocab"]) != tokenizer.vocab_size:
        raise UserError("a unigram tokenizer with tokens after its vocabulary cannot be extended; train a new one")


def _words(engine: Engine, texts: Iterable[str]) -> Iterator[str]:
    """Yield words in the form that the model gets: normalised, with their marks."""
    for text in texts:
        normal = text if engine.normalizer is None else engine.normalizer.normalize_str(text)
        yield from (word for word, _ in engine.pre_tokenizer.pre_tokenize_str(normal))


def _counted(words: Iterable[str]) -> Counter[str]:
    """Count words. Beyond `_CAPACITY` distinct words all counts are lowered by the smallest count.

    Every word with a share above 1 / `_CAPACITY` is found (Misra and Gries 1982).
    """
    counts: Counter[str] = Counter()
    for word in words:
        counts[word] += 1
        if len(counts) > 2 * _CAPACITY:
            rarest = sorted(counts.values(), reverse=True)[_CAPACITY]
            counts = Counter({known: times - rarest for known, times in counts.items() if times > rarest})
    return counts


def _is_word(engine: Engine, token: str) -> bool:
    """True for letters, with hyphens and apostrophes between them, after the word mark."""
    word = token if engine.decoder is None else engine.decoder.decode([token]).strip()
    return len(word) > 1 and word[0].isalpha() and word[-1].isalpha() and word.translate(_BETWEEN).isalpha()


def _with_words(tokenizer: Tokenizer, tree: Tree, engine: Engine, words: list[Word]) -> Tokenizer:
    model, first = tree["model"], tokenizer.vocab_size
    known = engine.get_vocab(with_added_tokens=True)
    if tokenizer.kind == "unigram":
        scores = dict(model["vocab"])
        for word in words:
            pieces = [scores[piece.value] for piece in engine.model.tokenize(word.token) if piece.value in scores]
            # half of the sum of log probabilities: higher than the sum, so the word wins over its pieces
            model["vocab"].append([word.token, round(sum(pieces) / 2, 6) if pieces else min(scores.values())])
    else:
        # added tokens are renumbered from the size of the vocabulary, unless it contains them
        model["vocab"] |= {token: i for token, i in known.items() if token not in model["vocab"]}
        model["vocab"] |= {word.token: first + number for number, word in enumerate(words)}
    if model.get("type") == "BPE" or "merges" in model:
        model["ignore_merges"] = True
    extended = Tokenizer(json.dumps(tree, ensure_ascii=False), tokenizer.roles)
    if find_added_tokens(tokenizer, extended) is None:
        raise UserError(f"this {tokenizer.kind} tokenizer cannot be extended: its ids would change; train a new one")
    return extended


def with_sentinels(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """Add ``count`` sentinels after the other ids, in descending order, as in T5's released tokenizers.

    Existing ids are unchanged. Sentinels are special tokens, so no text can contain one.

    Raises:
        UserError: the tokenizer has sentinels, or cannot be extended.
    """
    if len(tokenizer.sentinel_ids):
        raise UserError(f"this tokenizer has {len(tokenizer.sentinel_ids)} sentinels already; leave --sentinels out")
    if count < 1:
        raise UserError(f"--sentinels {count} must be 1 or more; T5 has 100")
    tree = json.loads(tokenizer.content)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = tokenizer.vocab_size
    tree["added_tokens"] += [{"id": first + n, "content": sentinel(count - 1 - n), **plain} for n in range(count)]
    extended = Tokenizer(json.dumps(tree, ensure_ascii=False), tokenizer.roles)
    if extended.sentinel_ids.tolist() != list(range(first + count - 1, first - 1, -1)):
        raise UserError(f"this {tokenizer.kind} tokenizer cannot be extended: its ids would change; train a new one")
    return extended
