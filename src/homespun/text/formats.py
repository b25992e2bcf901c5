"""Bytes of one file to records, as a stream: decoding, plain text, csv and tsv, JSON, JSON lines, parquet, CoNLL."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from homespun.errors import UserError
from homespun.text.surrogates import without_surrogates

Record = dict[str, Any]
NumberedRecord = tuple[int, Record]  # the line, or where a format has no lines the number of the record, from 1
Reader = Callable[[BinaryIO, str, str | None, Sequence[str] | None], Iterator[NumberedRecord]]

CHUNK = 1 << 18  # bytes read at a time; the first of them decide on the encoding
FIELD_LIMIT = 1 << 27  # characters of one csv cell: beyond this it is an unclosed quote that swallows the file
SAMPLE_LINES = 1000  # of a tsv file, to see whether its quotes are quoting

_BYTE_ORDER_MARKS = (  # those of UTF-32 first: they begin with those of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode_stream(stream: BinaryIO, name: str, encoding: str | None) -> Iterator[str]:
    """The text of ``stream`` in pieces.

    Without ``encoding`` it is told by the byte order mark, else UTF-8 if that fits, else by the letters of the first
    part of the file that is not ASCII.

    Raises:
        UserError: bytes that the encoding does not allow, with their offset; an encoding that does not exist.
    """
    head = stream.read(CHUNK)
    mark, marked = next((pair for pair in _BYTE_ORDER_MARKS if head.startswith(pair[0])), (b"", None))
    if encoding is None:
        codec = marked or _likely_encoding(head, name)
    else:
        codec = _checked(encoding)
        if codec != marked:  # "utf-16" reads its mark itself
            mark = b""
    decoder = codecs.getincrementaldecoder(codec)()
    plain = encoding is None and codec == "utf-8"  # and nothing but ASCII so far: the encoding is still open
    consumed, chunk = len(mark), head[len(mark) :]
    while True:
        pending = decoder.getstate()[0]
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            if plain and chunk[: error.start].isascii():
                plain, codec = False, _likely_encoding(chunk, name)
                decoder = codecs.getincrementaldecoder(codec)()
                continue
            offset = consumed - len(pending) + error.start
            raise UserError(
                f"{name}: byte 0x{error.object[error.start]:02x} at offset {offset} is not {codec}; "
                f"say which encoding it is, for example encoding='cp1252'"
            ) from error
        if text:
            yield text
        if not chunk:
            return
        plain = plain and chunk.isascii()
        consumed += len(chunk)
        chunk = stream.read(CHUNK)


def split_lines(texts: Iterable[str]) -> Iterator[str]:
    r"""Lines without their ends, which are ``\n``, ``\r\n`` or ``\r`` and nothing else."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    parts: list[str] = []  # of a line that has not ended: joined once, so that a huge line costs no more than its size
    for text in itertools.chain(texts, ("",)):
        head, *rest = newlines.decode(text, final=not text).split("\n")
        parts.append(head)
        if rest:
            yield "".join(parts)
            yield from rest[:-1]
            parts = [rest[-1]]
    if last := "".join(parts):
        yield last


def read_text(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """One record: the whole file under ``text``; none if there is nothing in it but white space."""
    text = "".join(decode_stream(stream, name, encoding))
    if text.strip():
        yield 1, {"text": text}


def read_csv(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """RFC 4180. The separator is a comma, unless the first line has more of ``;``, tab or ``|``."""
    rows = split_lines(decode_stream(stream, name, encoding))
    first = next(rows, "")
    separator = max(",;\t|", key=first.count)  # the comma wins a tie
    return _table(itertools.chain([first], rows), name, columns, delimiter=separator, quoting=csv.QUOTE_MINIMAL)


def read_tsv(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """Cells are what stands between the tabs, quotes and all, unless the first lines were quoted by a program."""
    rows = split_lines(decode_stream(stream, name, encoding))
    sample = list(itertools.islice(rows, SAMPLE_LINES))
    quoting = csv.QUOTE_MINIMAL if _is_quoted(sample) else csv.QUOTE_NONE
    return _table(itertools.chain(sample, rows), name, columns, delimiter="\t", quoting=quoting)


def read_jsonl(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """One JSON object a line; empty lines are skipped."""
    for number, line in enumerate(split_lines(decode_stream(stream, name, encoding)), start=1):
        if line and not line.isspace():
            try:
                value = json.loads(line)
                if "\\ud" in line or "\\uD" in line:  # no line of UTF-8 has a surrogate but by such an escape
                    value = _as_text(value)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{name}, line {number}: not a JSON value: {error}") from error
            yield number, _object(value, f"{name}, line {number}")


def read_json(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """An array of objects, as a stream; several objects one after the other; or one object.

    One object whose only array of objects is called ``data``, ``rows`` or ``records``, or has no other key beside it,
    is a wrapper: the records are that array.
    """
    values = _json_values(decode_stream(stream, name, encoding), name)
    first = next(values, None)
    if first is None:
        return
    second = next(values, None)
    rest = itertools.chain([first] if second is None else [first, second], values)
    if second is None and isinstance(first, dict):
        arrays = [key for key, value in first.items() if _is_array_of_objects(value)]
        if len(arrays) == 1 and (len(first) == 1 or arrays[0] in ("data", "rows", "records")):
            rest = iter(first[arrays[0]])
    for number, value in enumerate(rest, start=1):
        try:
            cleaned = _as_text(value)
        except RecursionError as error:
            raise UserError(f"{name}, value {number}: not a JSON value that can be read: {error}") from error
        yield number, _object(cleaned, f"{name}, value {number}")


def read_conll(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """`conll_sentences` of the file."""
    return conll_sentences(split_lines(decode_stream(stream, name, encoding)), name, columns)


def conll_sentences(rows: Iterable[str], name: str, columns: Sequence[str] | None) -> Iterator[NumberedRecord]:
    """A record a sentence: a word a line with its tags behind it, and an empty line after each sentence.

    A record has a list for every column. Without ``columns`` the first are the ``words``, the last the ``tags``, and
    those between ``column_2`` and on. Lines that begin with -DOCSTART-, and comments before a sentence (``# text = ``),
    are passed over.

    Raises:
        UserError: a line with more or fewer cells than the others.
    """
    header = None if columns is None else list(columns)
    found: list[list[str]] = []
    first = 0
    for number, row in enumerate(itertools.chain(rows, ("",)), start=1):
        if not row.strip() or row.startswith("-DOCSTART-"):
            if found and header is not None:
                yield first, {key: list(cells) for key, cells in zip(header, zip(*found, strict=True), strict=True)}
            found = []
            continue
        if not found and row.startswith("# ") and " = " in row:
            continue
        cells = [cell.strip() for cell in row.split("\t")] if "\t" in row else row.split()
        if header is None:
            header = ["words", *(f"column_{place}" for place in range(2, len(cells))), "tags"][: max(len(cells), 1)]
        if len(cells) != len(header):
            raise UserError(
                f"{name}, line {number}: {len(cells)} cells where there are {len(header)} columns "
                f"({', '.join(header)}); give every word its tags, and an empty line between sentences"
            )
        if not found:
            first = number
        found.append(cells)


def read_parquet(
    stream: BinaryIO, name: str, encoding: str | None, columns: Sequence[str] | None
) -> Iterator[NumberedRecord]:
    """Rows in batches; ``stream`` must be seekable."""
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(stream).iter_batches(batch_size=256)
        number = itertools.count(1)
        for batch in batches:
            for row in batch.to_pylist():
                yield next(number), row
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} is not a whole parquet file: {str(error).splitlines()[0]}") from error


READERS: dict[str, Reader] = {
    ".txt": read_text,
    ".text": read_text,
    ".md": read_text,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
    ".conll": read_conll,
    ".iob": read_conll,
    ".iob2": read_conll,
    ".bio": read_conll,
}


def _likely_encoding(head: bytes, name: str) -> str:
    if head.count(0) > len(head) // 4:  # Latin text in two bytes a letter; no text in one byte has zeros
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        from charset_normalizer import from_bytes

        # Only the telling lines: in pages of English, a few accents decide.
        telling = b"\n".join(line for line in head.split(b"\n") if not line.isascii())
        fitting = from_bytes(telling[: 1 << 15])
        best = fitting.best()
        if best is None:
            raise UserError(
                f"{name}: cannot tell its encoding (byte 0x{head[error.start]:02x} is not UTF-8, and no other fits); "
                f"say which it is, for example encoding='cp1252'"
            ) from error
        # Few accents fit half a dozen code pages equally well, and the Western one is by far the most common.
        western = any(m.chaos <= best.chaos + 0.01 for m in fitting if "cp1252" in m.could_be_from_charset)
        return "cp1252" if western else best.encoding
    return "utf-8"


def _checked(encoding: str) -> str:
    try:
        "".encode(encoding)  # refuses codecs that are not text, such as "hex"
    except LookupError as error:
        raise UserError(f"unknown encoding {encoding!r}; common ones are utf-8, cp1252, latin-1, utf-16") from error
    return codecs.lookup(encoding).name


def _table(
    rows: Iterable[str], name: str, columns: Sequence[str] | None, *, delimiter: str, quoting: Any
) -> Iterator[NumberedRecord]:
    csv.field_size_limit(FIELD_LIMIT)
    reader = csv.reader((f"{row}\n" for row in rows), delimiter=delimiter, quoting=quoting, strict=True)
    header = None if columns is None else list(columns)
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = row
                if repeated := [cell for i, cell in enumerate(row) if cell in row[:i]]:
                    raise UserError(f"{name}: two columns are called {repeated[0]!r}; rename one, or give columns=")
                continue
            if len(row) != len(header):
                given = "columns= names" if columns is not None else "the header names"
                raise UserError(
                    f"{name}, line {reader.line_num}: {len(row)} cells, but {given} {len(header)} "
                    f"({', '.join(header)}); mend the line, or name the columns of a file without header by columns="
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(
            f"{name}, line {reader.line_num}: {error}; a quote inside a quoted cell is written twice"
        ) from error


def _is_quoted(sample: Sequence[str]) -> bool:
    """Whether the lines of a tsv file are the work of a program that quotes: all of them, down to the last quote."""
    if not any(cell.startswith('"') for line in sample for cell in line.split("\t")):
        return False
    reader = csv.reader((f"{line}\n" for line in sample), delimiter="\t", strict=True)
    widths, finished, spanning, doubled = set(), 0, False, False
    try:
        for row in reader:
            widths.add(len(row))
            spanning |= reader.line_num > finished + 1
            doubled |= any('"' in cell for cell in row)
            finished = reader.line_num
    except csv.Error:
        # The sample may end within a cell of a few lines; a stray quote swallows many more than a few.
        if len(sample) < SAMPLE_LINES or reader.line_num < len(sample) or len(sample) - finished > 20:
            return False
        spanning = True
    # What somebody says over several rows is in quotes too; a program that quotes leaves lines of other widths, or
    # writes quotes twice.
    unquoted_widths = {len(line.split("\t")) for line in sample if line}
    if spanning and not doubled and len(unquoted_widths) == 1 and unquoted_widths != {1}:
        return False
    return len(widths - {0}) == 1


def _json_values(texts: Iterator[str], name: str) -> Iterator[Any]:
    """The elements of an array, or the values one after the other, decoded as soon as they are whole."""
    decode = json.JSONDecoder().raw_decode
    buffer, at, ended, count, in_array = "", 0, False, 0, False
    while True:
        at = _skip(buffer, at, " \t\r\n\ufeff")
        if at < len(buffer):
            if count == 0 and not in_array and buffer[at] == "[":
                in_array, at = True, at + 1
                continue
            if in_array and buffer[at] == "]":
                at = _skip(buffer, at + 1, " \t\r\n")
                if at < len(buffer) or any(not text.isspace() for text in texts):
                    raise UserError(f"{name}: more text after the end of the JSON array")
                return
            if in_array and count and buffer[at] != "," and not ended:
                raise UserError(f"{name}, after value {count}: not JSON: a comma is missing")
            start = _skip(buffer, at + 1, " \t\r\n") if in_array and count and buffer[at] == "," else at
            try:
                value, end = decode(buffer, start)
            except (ValueError, RecursionError) as error:
                if ended or isinstance(error, RecursionError):
                    raise UserError(f"{name}, value {count + 1}: not JSON, or cut short: {error}") from error
            else:
                if end < len(buffer) or ended or buffer[end - 1] in '}]"':  # else a number that may go on
                    yield value
                    count, at = count + 1, end
                    continue
        elif ended:
            if in_array:
                raise UserError(f"{name}: cut short: the JSON array has no end after value {count}")
            return
        # As much again as is left over, so that a huge value is not decoded anew for every little piece of it.
        buffer, at = buffer[at:], 0
        more, size = [], 0
        while size <= len(buffer) and not ended:
            piece = next(texts, None)
            ended = piece is None
            more.append(piece or "")
            size += len(more[-1])
        buffer += "".join(more)


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _is_array_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _object(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise UserError(f"{where}: a JSON {type(value).__name__}, but a record is an object such as {{'text': ...}}")
    return value


def _as_text(value: Any) -> Any:
    """The value with every text in it `without_surrogates`."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {without_surrogates(key): _as_text(part) for key, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, list) else value
