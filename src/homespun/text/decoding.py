"""Character encodings of text files: detection and decoding."""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from homespun.errors import UserError

CHUNK = 1 << 18  # bytes read at a time; the encoding is detected on the first chunk
# the option of a command, the setting of a recipe, and the argument in Python
_OPTIONS = "--encoding, data.encoding or encoding="
_SET_ENCODING = f"give its encoding, such as cp1252, by {_OPTIONS}"

_BYTE_ORDER_MARKS = (  # UTF-32 first: its marks begin with those of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode_stream(stream: BinaryIO, name: str, encoding: str | None) -> Iterator[str]:
    """Decode ``stream`` in pieces.

    Without ``encoding`` it is detected: by the byte order mark, else UTF-8 if it fits, else, with a warning, from the
    non-ASCII letters of the first chunk.

    Raises:
        UserError: invalid bytes for the encoding, with their offset; an unknown encoding.
    """
    head = stream.read(CHUNK)
    mark, mark_codec = next((pair for pair in _BYTE_ORDER_MARKS if head.startswith(pair[0])), (b"", None))
    if encoding is None:
        codec = mark_codec or _likely_encoding(head, name)
    else:
        codec = _checked(encoding)
        if codec != mark_codec:  # "utf-16" reads its mark itself
            mark = b""
    decoder = codecs.getincrementaldecoder(codec)()
    undecided = encoding is None and codec == "utf-8"  # only ASCII so far
    consumed, chunk = len(mark), head[len(mark) :]
    while True:
        pending = decoder.getstate()[0]
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            if undecided and chunk[: error.start].isascii():
                undecided, codec = False, _likely_encoding(chunk, name)
                decoder = codecs.getincrementaldecoder(codec)()
                continue
            where = f"byte 0x{error.object[error.start]:02x} at offset {consumed - len(pending) + error.start}"
            raise UserError(f"{name}: {where} is not {codec}; correct it, or {_SET_ENCODING}") from error
        except UnicodeError as error:  # UTF-16 and UTF-32 without a byte order mark
            raise UserError(f"{name} is not {codec}: {error}; {_SET_ENCODING}") from error
        if text:
            yield text
        if not chunk:
            return
        undecided = undecided and chunk.isascii()
        consumed += len(chunk)
        chunk = stream.read(CHUNK)


def _likely_encoding(head: bytes, name: str) -> str:
    if head.count(0) > len(head) // 4:  # Latin letters in two bytes each
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        text = head.decode(errors="replace")
        if len(text) - sum(map(str.isascii, text)) > 2 * text.count("\ufffd"):
            return "utf-8"  # damaged: other encodings are rarely valid UTF-8; `decode_stream` names the byte
        from charset_normalizer import from_bytes

        # detect on the lines with non-ASCII bytes: English pages have few of them
        lines = b"\n".join(line for line in head.split(b"\n") if not line.isascii())
        fitting = from_bytes(lines[: 1 << 15])
        best = fitting.best()
        if best is None:
            byte = f"byte 0x{head[error.start]:02x} is not UTF-8"
            raise UserError(f"{name}: unknown encoding ({byte}); {_SET_ENCODING}") from error
        # a few accents fit several code pages equally well; cp1252 is by far the most common
        western = any(m.chaos <= best.chaos + 0.01 for m in fitting if "cp1252" in m.could_be_from_charset)
        encoding = "cp1252" if western else best.encoding
        warnings.warn(
            f"{name} is not UTF-8: read as {encoding}, guessed from its letters; if they are wrong, "
            f"give another by {_OPTIONS}",
            stacklevel=2,
        )
        return encoding
    return "utf-8"


def _checked(encoding: str) -> str:
    try:
        "".encode(encoding)  # fails for codecs that are no text encodings, such as "hex"
    except LookupError as error:
        raise UserError(f"unknown encoding {encoding!r}; common ones are utf-8, cp1252, latin-1, utf-16") from error
    return codecs.lookup(encoding).name


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate, which JSON escapes can contain, by ``?``; keeps the length."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
