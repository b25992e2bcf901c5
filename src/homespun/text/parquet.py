"""Rows of Parquet files, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet
from pyarrow import compute

from homespun.errors import UserError
from homespun.text.byte_streams import FREE_BYTES, check_ratio

_ELEMENT = 8  # bytes of a number in a list
_WORD = 1 << 10  # bytes of a text that may be in any number of rows, such as a label


def parquet_rows(stream: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a seekable file.

    A file stores repeated texts once, in a dictionary, and so does Arrow. Few long texts are decoded at a time, and
    their total size is limited as for a compressed file. The number of list elements, which a file can repeat for a few
    bytes, is also limited before the first row is read.

    Args:
        stream: the file.
        name: of the file, in errors.

    Raises:
        UserError: the file is damaged, has two columns of one name, or has too large texts or lists.
    """
    try:
        yield from _rows(stream)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except pa.ArrowException as error:
        raise UserError(f"{name} is cut short or damaged: {str(error).splitlines()[0]}") from error


def _rows(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    compressed = stream.seek(0, io.SEEK_END)
    file = pyarrow.parquet.ParquetFile(stream)
    columns, names = file.schema, file.schema_arrow.names
    if repeated := [column for column in names if names.count(column) > 1]:
        raise UserError(f"two columns are named {repeated[0]!r}; rename one")
    check_ratio(_ELEMENT * _count_elements(file), compressed)
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    size = 0
    for batch in pyarrow.parquet.ParquetFile(stream, read_dictionary=texts).iter_batches(batch_size=256):
        longest, total = _text_sizes(batch)
        size += total
        check_ratio(size, compressed)
        count = max(1, FREE_BYTES // max(1, longest))
        for start in range(0, batch.num_rows, count):
            yield from batch.slice(start, count).to_pylist()


def _count_elements(file: pyarrow.parquet.ParquetFile) -> int:
    """Count the elements of all list columns."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    lists = [number for number, column in enumerate(file.schema) if column.max_repetition_level]
    return sum(group.column(number).num_values for group in groups for number in lists)


def _text_sizes(batch: pa.RecordBatch) -> tuple[int, int]:
    """Compute the bytes of the longest text, and of all texts longer than words."""
    longest = total = 0
    for column in batch.columns:
        for texts in _dictionaries(column):
            sizes = compute.binary_length(texts.dictionary).take(texts.indices)
            longest = max(longest, compute.max(sizes).as_py() or 0)
            total += compute.sum(sizes.filter(compute.greater(sizes, _WORD))).as_py() or 0
    return longest, total


def _dictionaries(column: pa.Array) -> Iterator[pa.DictionaryArray]:
    """Yield the dictionaries of texts in a column, including those in lists, maps and structs."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        yield column
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _dictionaries(column.field(number))
    elif pa.types.is_map(kind):
        yield from _dictionaries(column.keys)
        yield from _dictionaries(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _dictionaries(column.flatten())
