"""Streaming readers of single files: plain text, csv, tsv, JSON, JSON lines, parquet, CoNLL."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from homespun.errors import UserError, quantity
from homespun.text.decoding import CHUNK, decode_stream, without_surrogates
from homespun.text.quoting import SAMPLE_LINES, is_quoted

Record = Mapping[str, Any]  # values by column
NumberedRecord = tuple[int, Record]  # line number, or record number in formats without lines, from 1


MAX_CHARACTERS = 64_000_000  # characters of a document


class ReadOptions(NamedTuple):
    """Options of the readers."""

    encoding: str | None = None  # character encoding of the files; None: detected
    columns: Sequence[str] | None = None  # column names for csv and tsv files without a header
    max_characters: int = MAX_CHARACTERS  # maximum length of a text file, of a line and of a JSON value
    # collects the locations of longer text files and JSON lines; None: they are errors
    skipped: list[str] | None = None

    def skip(self, where: str) -> None:
        """Record the location of content longer than ``max_characters``.

        Raises:
            UserError: ``skipped`` is None.
        """
        if self.skipped is None:
            raise UserError(f"{where} has more than {self.max_characters:,} characters; split it")
        self.skipped.append(where)


Reader = Callable[[BinaryIO, str, ReadOptions], Iterator[NumberedRecord]]

FIELD_LIMIT = 1 << 27  # characters of a csv cell; a longer one is an unclosed quote
# the option of a command, the setting of a recipe, and the argument in Python
_COLUMNS = "--columns, data.columns or columns="


def _lines(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[str]:
    r"""Yield lines without their ends, ``\n``, ``\r\n`` or ``\r``; skipped lines are empty."""
    limit = max(options.max_characters, CHUNK)  # the lines of a chunk are in memory anyway
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    parts: list[str] = []  # parts of the current line, joined once: a huge line takes linear time
    size = count = 0  # characters of the current line, and lines before it
    for text in itertools.chain(decode_stream(stream, name, options.encoding), ("",)):
        head, *rest = newlines.decode(text, final=not text).split("\n")
        if size <= limit < size + len(head):
            options.skip(f"{name}, line {count + 1}")
        size += len(head)
        if size <= limit:
            parts.append(head)
        else:
            parts.clear()
        if rest:
            yield "".join(parts)
            yield from rest[:-1]
            parts, size = [rest[-1]], len(rest[-1])
            count += len(rest)
    if last := "".join(parts):
        yield last


def read_text(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Yield one record with the content under ``text``; none if it is blank."""
    parts: list[str] = []
    size = 0
    for part in decode_stream(stream, name, options.encoding):
        parts.append(part)
        size += len(part)
        if size > options.max_characters:
            options.skip(name)
            return
    text = "".join(parts)
    if text.strip():
        yield 1, {"text": text}


def read_csv(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Read RFC 4180 csv; the separator is a comma unless the first line has more unquoted ``;``, tabs or ``|``."""
    rows = _lines(stream, name, options._replace(skipped=None))
    empty, first = 0, next(rows, "")
    while not first and (row := next(rows, None)) is not None:
        empty, first = empty + 1, row
    unquoted = re.sub(r'(?<![^,;\t|])"(?:[^"]|"")*', "", first)
    separator = max(",;\t|", key=unquoted.count)  # the comma wins a tie
    rows = itertools.chain(itertools.repeat("", empty), [first], rows)
    return _table(rows, name, options.columns, delimiter=separator, quoted=True)


def read_tsv(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Read cells between tabs, verbatim unless the first lines seem quoted."""
    rows = _lines(stream, name, options._replace(skipped=None))
    sample = list(itertools.islice(rows, SAMPLE_LINES))
    return _table(itertools.chain(sample, rows), name, options.columns, delimiter="\t", quoted=is_quoted(sample))


def read_jsonl(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Read a JSON object from each line; empty lines are skipped."""
    for number, line in enumerate(_lines(stream, name, options), start=1):
        if line and not line.isspace():
            try:
                value = json.loads(line)
                if "\\ud" in line or "\\uD" in line:  # only such an escape can give a surrogate
                    value = _as_text(value)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{name}, line {number} is not JSON: {error}") from error
            yield number, _object(value, f"{name}, line {number}", "; name a file of one array .json")


def read_json(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Read an array of objects as a stream, consecutive objects, or one object.

    One object is unwrapped if its only array of objects is its only key, or is called ``data``, ``rows`` or
    ``records``.
    """
    values = _json_values(decode_stream(stream, name, options.encoding), name, options._replace(skipped=None))
    head = list(itertools.islice(values, 2))
    records = itertools.chain(head, values)
    if len(head) == 1 and isinstance(only := head[0], dict):
        lists = {key: value for key, value in only.items() if value and isinstance(value, list)}
        arrays = [key for key, items in lists.items() if all(isinstance(item, dict) for item in items)]
        if len(arrays) == 1 and (len(only) == 1 or arrays[0] in ("data", "rows", "records")):
            records = iter(only[arrays[0]])
    for number, value in enumerate(records, start=1):
        where = f"{name}, value {number}"
        try:
            yield number, _object(_as_text(value), where)
        except RecursionError as error:
            raise UserError(f"{where} is nested too deeply: {error}") from error


def read_conll(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Apply `conll_sentences` to the file."""
    return conll_sentences(_lines(stream, name, options._replace(skipped=None)), name, options.columns)


def conll_cells(row: str) -> list[str]:
    """Split a line of a word and its tags at tabs, or at spaces. A word may have a no-break space."""
    return [cell.strip() for cell in (row.split("\t") if "\t" in row else re.split(" +", row.strip()))]


_CONLL_MARKS = ("# newdoc", "# newpar")


def conll_sentences(rows: Iterable[str], name: str, columns: Sequence[str] | None) -> Iterator[NumberedRecord]:
    """Yield a record for each sentence, with a list for each column.

    The input has a line for each word, and a blank line after a sentence. Columns are called ``words``, ``column_2``,
    ``column_3`` ... and ``tags`` unless ``columns`` names them. Lines that begin with -DOCSTART-, and comments before a
    sentence (``# text = ``, ``# newdoc``, ``# newpar``), are skipped.

    Raises:
        UserError: a line with more or fewer cells than the others.
    """
    header = None if columns is None else list(columns)
    sentence: list[list[str]] = []
    first = 0
    for number, row in enumerate(itertools.chain(rows, ("",)), start=1):
        if not row.strip() or row.startswith("-DOCSTART-"):
            if sentence and header is not None:
                yield first, {key: list(cells) for key, cells in zip(header, zip(*sentence, strict=True), strict=True)}
            sentence = []
            continue
        if not sentence and row.startswith("# ") and (" = " in row or row.rstrip() in _CONLL_MARKS):
            continue
        cells = conll_cells(row)
        if header is None:
            header = ["words", *(f"column_{column}" for column in range(2, len(cells))), "tags"][: max(len(cells), 1)]
        if len(cells) != len(header):
            raise UserError(
                f"{name}, line {number} has {quantity(len(cells), 'cell')} for {len(header)} columns "
                f"({', '.join(header)}); write each word with its tags on a line, and a blank line between sentences"
            )
        if not sentence:
            first = number
        sentence.append(cells)


def read_parquet(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[NumberedRecord]:
    """Read rows in batches; ``stream`` must be seekable."""
    from homespun.text.parquet import parquet_rows  # imports pyarrow

    yield from enumerate(parquet_rows(stream, name), start=1)


READERS: dict[str, Reader] = {
    **dict.fromkeys((".txt", ".text", ".md"), read_text),
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": read_json,
    **dict.fromkeys((".jsonl", ".ndjson"), read_jsonl),
    ".parquet": read_parquet,
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), read_conll),
}


def _table(
    rows: Iterable[str], name: str, columns: Sequence[str] | None, *, delimiter: str, quoted: bool
) -> Iterator[NumberedRecord]:
    """Yield a record for each row of a table.

    The first row has the names of the columns unless ``columns`` are given: then it is a header only if it has these
    names, since other files of a model that was trained without a header may have one.

    Raises:
        UserError: two columns of one name, a row with more or fewer cells than the others, or a stray quote.
    """
    csv.field_size_limit(FIELD_LIMIT)
    lines = (f"{row}\n" for row in rows)
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
    header: list[str] | None = None
    names = "the header"
    try:
        for row in reader:
            if not row:
                continue
            if header is None and columns is not None and not _is_header(row, columns):
                header, names = list(columns), "columns"
            elif header is None:
                header = [cell.strip() for cell in row]
                # Excel writes empty names for columns that were once used
                if repeated := [cell for i, cell in enumerate(header) if cell and cell in header[:i]]:
                    raise UserError(f"{name} has two columns {repeated[0]!r}; rename one, or set {_COLUMNS}")
                continue
            if len(row) != len(header):
                raise UserError(
                    f"{name}, line {reader.line_num} has {quantity(len(row), 'cell')}, {names} has {len(header)} "
                    f"({', '.join(header)}); correct the line, or set {_COLUMNS} for a file without a header"
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: {error}; double each quote inside a quoted cell") from error


def _is_header(row: Sequence[str], columns: Sequence[str]) -> bool:
    """True for a first row of the names ``columns``, or with several of them.

    One name among other cells may be a value, such as the label ``spam`` in a column ``spam``.
    """
    cells = [cell.strip() for cell in row]
    return cells == list(columns) or len(set(cells) & set(columns)) > 1


def _json_values(texts: Iterator[str], name: str, options: ReadOptions) -> Iterator[Any]:
    """Decode the elements of an array, or consecutive values, as soon as each is complete."""
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
                    raise UserError(f"{name} has text after the end of the JSON array; delete it")
                return
            if in_array and count and buffer[at] != "," and not ended:
                raise UserError(f"{name} is not JSON: a comma is missing after value {count}")
            start = _skip(buffer, at + 1, " \t\r\n") if in_array and count and buffer[at] == "," else at
            try:
                value, end = decode(buffer, start)
            except (ValueError, RecursionError) as error:
                if ended or isinstance(error, RecursionError):
                    raise UserError(f"{name}, value {count + 1} is not JSON, or truncated: {error}") from error
            else:
                if end < len(buffer) or ended or buffer[end - 1] in '}]"':  # a number may continue
                    yield value
                    count, at = count + 1, end
                    continue
        elif ended:
            if in_array:
                raise UserError(f"{name} is truncated: the JSON array has no end after value {count}")
            return
        # double the buffer, so that a huge value is decoded a logarithmic number of times
        parts = [buffer[at:]]
        if len(parts[0]) > 2 * options.max_characters:
            options.skip(f"{name}, value {count + 1}")
        size, at = -len(parts[0]), 0
        while size <= 0 and not ended:
            piece = next(texts, None)
            ended = piece is None
            parts.append(piece or "")
            size += len(parts[-1])
        buffer = "".join(parts)


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _object(value: object, where: str, hint: str = "") -> Record:
    if not isinstance(value, dict):
        found = f"{where} is a JSON {type(value).__name__}"
        raise UserError(f"{found}; a record must be an object such as {{'text': ...}}{hint}")
    return value


def _as_text(value: Any) -> Any:
    """Apply `without_surrogates` to each text in ``value``."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {without_surrogates(key): _as_text(part) for key, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, list) else value
