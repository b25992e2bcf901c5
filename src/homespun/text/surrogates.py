"""Halves of characters, which JSON can carry: an emoji cut in two."""

from __future__ import annotations


def without_surrogates(text: str) -> str:
    """The text, as long as before, with ``?`` for each lone surrogate: they are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
