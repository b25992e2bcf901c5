"""Cleaning of texts: normalisation, and splitting into words and sentences."""

from __future__ import annotations

import re
import unicodedata

# C0 and C1 controls but tab and line ends, zero-width characters, byte order marks, direction marks.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_LINE_ENDS = re.compile("[\x0b\x0c\r\x85\u2028\u2029]")
_WIDE_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_RUNS_OF_SPACES = re.compile("  +")
_BLANK_LINES = re.compile("\n\n\n+")
# Thai, Lao, Burmese, Khmer, Chinese and Japanese are written without spaces between words.
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003fffd])"
)


def normalise(text: str) -> str:
    r"""Normalise to NFC with single spaces, ``\n`` line ends and at most one blank line, without control characters.

    Idempotent. Removes indentation, so it suits only prose.
    """
    # Substring tests are far cheaper than regular expressions, and most texts need no change.
    if not text.isascii():
        text = _WIDE_SPACES.sub(" ", unicodedata.normalize("NFC", _CONTROLS.sub("", text)))
    elif not text.isprintable():
        text = _CONTROLS.sub("", text)
    text = _LINE_ENDS.sub("\n", text.replace("\r\n", "\n")) if not text.isprintable() else text
    text = text.replace("\t", " ")
    if "  " in text:
        text = _RUNS_OF_SPACES.sub(" ", text)
    text = text.replace(" \n", "\n").replace("\n ", "\n")
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()


def split_words(text: str) -> list[str]:
    """Split a text at white space; in scripts without spaces each character is a word."""
    return space_characters(text).split()


def space_characters(text: str) -> str:
    """Put spaces around each character of a script without spaces between words."""
    return text if text.isascii() else _UNSPACED.sub(r" \1 ", text)


# candidates for a sentence end: closing marks with closing quotes and white space; an ideographic full stop, which
# needs no space; a blank line. Runs are matched from their first character and without backtracking: a page may have
# thousands of dots or spaces in a row
_BLANK_LINE = r"\n[ \t\r]*\n"
_END = re.compile(
    r"""(?<![.!?…])(?P<mark>[.!?…]++)["'”’»)\]]*+(?P<gap>\s++)"""
    rf"""|(?P<ideographic>[。！？]+["'”’」』）]*)\s*|(?<!\s)\s*{_BLANK_LINE}\s*"""
)
_LETTER = re.compile(r"[^\W\d_]")
_LAST_WORD = re.compile(r"(?:[^\W_]|[.&'’-])+$")
_OPENING = "\"'“‘«([{—–-•*"


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


# abbreviations that never end a sentence
_BINDING = _words(
    "mr mrs ms mx dr prof st gen sen rep gov sgt capt lt col maj cmdr rev hon messrs mme mlle fr pres supt amb "
    "e.g i.e eg ie cf viz vs v al approx ca resp esp incl excl ed eds trans dept univ assn bros mt ft"
)
# abbreviations that end a sentence unless a number follows
_BEFORE_NUMBERS = _words(
    "no nos fig figs eq eqs eqn sec secs ch chap vol vols p pp para art ref refs tab item ex "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# abbreviations that end a sentence only if the next word is in _STARTERS
_AMBIGUOUS = _words(
    "inc ltd co corp llc plc jr sr etc u.s u.k u.n e.u d.c a.m p.m am pm ph.d m.d b.a m.a b.sc m.sc ave blvd rd est"
)
_STARTERS = _words(
    "the a an this that these those it its he she they we i you his her their our my your in on at by for from to with "
    "as if when while where after before since because although though however but and or so yet then there here what "
    "who why how which one some many most all no not is are was were do does did can could will would should may might "
    "according also another both each during despite under over until unlike meanwhile moreover furthermore thus hence "
    "therefore instead still today yesterday now"
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Split a text into sentences, as (start, end) in characters without surrounding white space.

    Other characters belong to exactly one sentence. The rules are for English, and for scripts without capitals:
    abbreviations, initials, decimals, quotes, ellipses and list numbers do not end a sentence; a blank line always
    does.
    """
    spans = []
    start, letter = len(text) - len(text.lstrip()), -1  # of the sentence, and of the first letter from there on
    for match in _END.finditer(text, start):
        if letter < start:
            found = _LETTER.search(text, start)
            letter = len(text) if found is None else found.start()
        if match["mark"] is None or _ends(text, start, match, has_letter=letter < match.start()):
            gap, ideographic = match.start("gap"), match.end("ideographic")
            end = gap if match["mark"] else ideographic if match["ideographic"] else match.start()
            if end > start:
                spans.append((start, end))
            start = match.end()
    end = len(text.rstrip())
    if end > start:
        spans.append((start, end))
    return spans


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, without the white space between them; see `sentence_spans`."""
    return [text[start:end] for start, end in sentence_spans(text)]


def _ends(text: str, start: int, match: re.Match[str], *, has_letter: bool) -> bool:
    """True if the mark of ``match`` ends the sentence that begins at ``start``, which may have a letter."""
    after = match.end()
    if after == len(text):
        return False  # the caller ends the last sentence
    if re.search(_BLANK_LINE, match["gap"]):
        return True
    first = text[after]
    while first in _OPENING and after + 1 < len(text):
        after += 1
        first = text[after]
    if first.islower():
        return False
    if match["mark"] != ".":
        return True
    last_word = _LAST_WORD.search(text, max(start, match.start() - 40), match.start())
    if last_word is None:
        return has_letter
    word = last_word.group().lower().strip("-'’")
    if word.isdigit() and last_word.start() == start:
        return False  # "1. Introduction"
    if word in _BINDING:
        return False
    if word in _BEFORE_NUMBERS:
        return not first.isdigit()
    initials = len(word) == 1 or all(len(part) == 1 for part in word.split("."))
    if (initials and word.replace(".", "").isalpha()) or word in _AMBIGUOUS:
        following = re.match(r"[^\W\d_]+", text[after : after + 40])
        # "Plan B. It failed." ends; "J. Smith" and "the U.S. Senate" do not.
        return following is not None and following.group().lower() in _STARTERS
    return True
