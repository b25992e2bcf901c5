"""New words for a tokenizer that is there: whole words of a text that it cuts into many pieces become one token each.

They go into the tokenizer's own vocabulary, behind the ids that are there, and not into the list of added tokens: a
word then keeps the space before it, stands for whole words only, is normalised as all text is, and decodes to what it
was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Engine

from homespun.errors import UserError
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabularies import WORD_START

_GROWING = ("model.ignore_merges", "model.vocab", "added_tokens")  # where an extension differs from what it extends
_BETWEEN = str.maketrans("", "", "-'’")


@dataclass(frozen=True)
class Word:
    """A new word: its token, how often it was seen, in how many pieces it was, how many pieces are saved."""

    token: str
    count: int
    pieces: int

    @property
    def gain(self) -> int:
        """Pieces saved; a word that was unknown as a whole counts as one."""
        return self.count * max(1, self.pieces - 1)


@dataclass(frozen=True)
class AddedTokens:
    """What one tokenizer has beyond another: ids from ``first`` on, each with the ids of its ``pieces``.

    A token has no pieces where the other tokenizer makes nothing of it, as WordPiece of a line's end.
    """

    first: int
    pieces: tuple[tuple[int, ...], ...] = ()


def extend(
    tokenizer: Tokenizer, texts: Iterable[str], count: int, *, capacity: int = 1_000_000, least: int = 2
) -> tuple[Tokenizer, list[Word]]:
    """The tokenizer with ``count`` words of ``texts`` more, and these, those first that save the most pieces.

    All ids stay. Byte-pair encoding looks for a whole word first from then on (``ignore_merges``), so that a new word
    needs no merges and no other word is cut in another way. In WordPiece and unigram vocabularies a new word can also
    be the beginning of a longer one, as any word there.

    Args:
        texts: a stream, read once.
        capacity: distinct words to count at once. Where there are more, all counts are lowered by that of the rarest
            (Misra and Gries 1982): no word can be missed that is more than one in ``capacity``.
        least: how often a word must have been seen.

    Raises:
        UserError: fewer words than that are worth a token, or a tokenizer that cannot be extended.
    """
    if count < 1:
        raise UserError(f"--add {count}: give the number of words to add, 1 or more")
    tree = json.loads(tokenizer.content)
    _refuse(tree, tokenizer)
    engine = Engine.from_str(tokenizer.content)
    known = engine.get_vocab(with_added_tokens=True)
    marked = {"bpe": "Ġ", "bpe-characters": WORD_START, "unigram": WORD_START}.get(tokenizer.kind, "")
    found = []
    for word, times in _counted(_words(engine, texts), capacity).items():
        if times < least or word in known or not word.startswith(marked) or not _is_word(engine, word):
            continue
        pieces = engine.model.tokenize(word)
        unknown = any(piece.id == tokenizer.unk_id for piece in pieces)
        if len(pieces) > 1 or unknown:
            found.append(Word(word, times, len(pieces)))
    found.sort(key=lambda word: (-word.gain, word.token))
    if len(found) < count:
        raise UserError(
            f"--add {count}: only {len(found)} words of this text are in several pieces and there {least} times; "
            f"ask for at most that many, or give more text"
        )
    chosen = found[:count]
    return _with_words(tokenizer, tree, engine, chosen), chosen


def find_added_tokens(before: Tokenizer, after: Tokenizer) -> AddedTokens | None:
    """What ``after`` has beyond ``before``; None where it is not the same tokenizer with more tokens."""
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


def _refuse(tree: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    model = tree["model"]
    if model.get("end_of_word_suffix"):
        raise UserError(
            f"a tokenizer that marks the ends of words ({model['end_of_word_suffix']}) cannot be extended; "
            f"train one on the text"
        )
    if tree.get("pre_tokenizer") is None:
        raise UserError("this tokenizer does not part texts into words, so none can be added; train one on the text")
    if tokenizer.kind == "unigram" and len(model["vocab"]) != tokenizer.vocab_size:
        raise UserError("this unigram tokenizer has tokens behind its vocabulary, so none can be added to it")


def _words(engine: Engine, texts: Iterable[str]) -> Iterator[str]:
    """The words as the model gets them: normalised, with their marks."""
    for text in texts:
        normal = text if engine.normalizer is None else engine.normalizer.normalize_str(text)
        yield from (word for word, _ in engine.pre_tokenizer.pre_tokenize_str(normal))


def _counted(words: Iterable[str], capacity: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word in words:
        counts[word] += 1
        if len(counts) > 2 * capacity:
            rarest = sorted(counts.values(), reverse=True)[capacity]
            counts = Counter({known: times - rarest for known, times in counts.items() if times > rarest})
    return counts


def _is_word(engine: Engine, token: str) -> bool:
    """Letters, with hyphens and apostrophes between them, once the mark of the beginning is off."""
    word = token if engine.decoder is None else engine.decoder.decode([token]).strip()
    return len(word) > 1 and word[0].isalpha() and word[-1].isalpha() and word.translate(_BETWEEN).isalpha()


def _with_words(tokenizer: Tokenizer, tree: dict[str, Any], engine: Engine, words: list[Word]) -> Tokenizer:
    model, first = tree["model"], tokenizer.vocab_size
    known = engine.get_vocab(with_added_tokens=True)
    if tokenizer.kind == "unigram":
        scores = dict(model["vocab"])
        for word in words:
            pieces = [scores[piece.value] for piece in engine.model.tokenize(word.token) if piece.value in scores]
            # half of a sum of logarithms is above it: the word wins over its own pieces, and over no other word's
            model["vocab"].append([word.token, round(sum(pieces) / 2, 6) if pieces else min(scores.values())])
    else:
        # added tokens are numbered from the size of the vocabulary unless they stand in it: there they keep their ids
        model["vocab"] |= {token: i for token, i in known.items() if token not in model["vocab"]}
        model["vocab"] |= {word.token: first + number for number, word in enumerate(words)}
    if model.get("type") == "BPE" or "merges" in model:
        model["ignore_merges"] = True
    extended = Tokenizer(json.dumps(tree, ensure_ascii=False), tokenizer.roles)
    if find_added_tokens(tokenizer, extended) is None:
        raise UserError(f"this {tokenizer.kind} tokenizer numbers its tokens in a way that none can be added to it")
    return extended
