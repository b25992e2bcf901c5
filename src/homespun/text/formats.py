"""Readers of one file: bytes to records, as a stream; plain text, csv, tsv, JSON, JSON lines, parquet, CoNLL."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from homespun.errors import UserError

Record = Mapping[str, Any]  # of a file of unknown content
NumberedRecord = tuple[int, Record]  # the line, or where a format has no lines the number of the record, from 1


class ReadOptions(NamedTuple):
    """Encoding of the files (None: detected), and column names of csv and tsv files without a header."""

    encoding: str | None = None
    columns: Sequence[str] | None = None


Reader = Callable[[BinaryIO, str, ReadOptions], Iterator[NumberedRecord]]

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


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate, which JSON can carry, by ``?``; the length stays."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def decode_stream(stream: BinaryIO, name: str, encoding: str | None) -> Iterator[str]:
    """Decode ``stream`` in pieces.

    Without ``encoding``: the byte order mark decides, else UTF-8 if it fits, else the non-ASCII letters of the first
    part.

    Raises:
        UserError: bytes that the encoding does not allow, with their offset; an unknown encoding.
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
                f"set the encoding of the file, for example encoding='cp1252'"
            ) from error
        if text:
            yield text
        if not chunk:
            return
        plain = plain and chunk.isascii()
        consumed += len(chunk)
        chunk = stream.read(CHUNK)


def split_lines(texts: Iterable[str]) -> Iterator[str]:
    r"""Lines without their ends: ``\n``, ``\r\n`` or ``\r``, nothing else."""
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


def read_text(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """One record with the file under ``text``; none if it is blank."""
    text = "".join(decode_stream(stream, name, options.encoding))
    if text.strip():
        yield 1, {"text": text}


def read_csv(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """RFC 4180. The separator is a comma, unless the first line has more of ``;``, tab or ``|``."""
    rows = split_lines(decode_stream(stream, name, options.encoding))
    first = next(rows, "")
    separator = max(",;\t|", key=first.count)  # the comma wins a tie
    return _table(itertools.chain([first], rows), name, options.columns, delimiter=separator, quoted=True)


def read_tsv(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Cells between tabs, verbatim, unless a program quoted the first lines."""
    rows = split_lines(decode_stream(stream, name, options.encoding))
    sample = list(itertools.islice(rows, SAMPLE_LINES))
    return _table(itertools.chain(sample, rows), name, options.columns, delimiter="\t", quoted=_is_quoted(sample))


def read_jsonl(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """One JSON object a line; empty lines are skipped."""
    for number, line in enumerate(split_lines(decode_stream(stream, name, options.encoding)), start=1):
        if line and not line.isspace():
            try:
                value = json.loads(line)
                if "\\ud" in line or "\\uD" in line:  # no line of UTF-8 has a surrogate but by such an escape
                    value = _as_text(value)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{name}, line {number}: not a JSON value: {error}") from error
            yield number, _object(value, f"{name}, line {number}")


def read_json(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """An array of objects, streamed; several objects in a row; or one object.

    One object is unwrapped if its only array of objects is its only key, or is called ``data``, ``rows`` or
    ``records``.
    """
    values = _json_values(decode_stream(stream, name, options.encoding), name)
    first = next(values, None)
    if first is None:
        return
    second = next(values, None)
    rest = itertools.chain([first] if second is None else [first, second], values)
    if second is None and isinstance(first, dict):
        lists = {key: value for key, value in first.items() if value and isinstance(value, list)}
        arrays = [key for key, items in lists.items() if all(isinstance(item, dict) for item in items)]
        if len(arrays) == 1 and (len(first) == 1 or arrays[0] in ("data", "rows", "records")):
            rest = iter(first[arrays[0]])
    for number, value in enumerate(rest, start=1):
        where = f"{name}, value {number}"
        try:
            cleaned = _as_text(value)
        except RecursionError as error:
            raise UserError(f"{where}: not a JSON value that can be read: {error}") from error
        yield number, _object(cleaned, where)


def read_conll(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Apply `conll_sentences` to the file."""
    return conll_sentences(split_lines(decode_stream(stream, name, options.encoding)), name, options.columns)


def conll_sentences(rows: Iterable[str], name: str, columns: Sequence[str] | None) -> Iterator[NumberedRecord]:
    """A record a sentence, with a list for every column: a line a word with its tags, an empty line after each
    sentence.

    Without ``columns`` they are ``words``, ``column_2`` and on, ``tags``. Lines that begin with -DOCSTART-, and
    comments before a sentence (``# text = ``), are skipped.

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


def read_parquet(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Rows in batches; ``stream`` must be seekable."""
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(stream).iter_batches(batch_size=256)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except pyarrow.ArrowException as error:
        raise UserError(f"{name} is cut short or damaged: {str(error).splitlines()[0]}") from error


READERS: dict[str, Reader] = {
    **dict.fromkeys((".txt", ".text", ".md"), read_text),
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": read_json,
    **dict.fromkeys((".jsonl", ".ndjson"), read_jsonl),
    ".parquet": read_parquet,
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), read_conll),
}


def _likely_encoding(head: bytes, name: str) -> str:
    if head.count(0) > len(head) // 4:  # Latin text in two bytes a letter; no text in one byte has zeros
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        from charset_normalizer import from_bytes

        # in English pages a few accents decide: only lines with non-ASCII bytes
        lines = b"\n".join(line for line in head.split(b"\n") if not line.isascii())
        fitting = from_bytes(lines[: 1 << 15])
        best = fitting.best()
        if best is None:
            raise UserError(
                f"{name}: unknown encoding (byte 0x{head[error.start]:02x} is not UTF-8, and no other fits); "
                f"set it, for example encoding='cp1252'"
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
    rows: Iterable[str], name: str, columns: Sequence[str] | None, *, delimiter: str, quoted: bool
) -> Iterator[NumberedRecord]:
    csv.field_size_limit(FIELD_LIMIT)
    lines = (f"{row}\n" for row in rows)
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
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
                    f"({', '.join(header)}); correct the line, or name the columns of a file without header by columns="
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(
            f"{name}, line {reader.line_num}: {error}; a quote inside a quoted cell is written twice"
        ) from error


def _is_quoted(sample: Sequence[str]) -> bool:
    """True if a program that quotes wrote the lines of a tsv file."""
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
    # quoted speech may span rows too; a program that quotes leaves lines of other widths, or doubles quotes
    unquoted_widths = {len(line.split("\t")) for line in sample if line}
    if spanning and not doubled and len(unquoted_widths) == 1 and unquoted_widths != {1}:
        return False
    return len(widths - {0}) == 1


def _json_values(texts: Iterator[str], name: str) -> Iterator[Any]:
    """Elements of an array, or consecutive values, decoded as soon as they are complete."""
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
        # read as much again as is left: a huge value is then decoded a logarithmic number of times
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


def _object(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise UserError(f"{where}: a JSON {type(value).__name__}, but a record is an object such as {{'text': ...}}")
    return value


def _as_text(value: Any) -> Any:
    """Apply `without_surrogates` to every text in the value."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {without_surrogates(key): _as_text(part) for key, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, list) else value
