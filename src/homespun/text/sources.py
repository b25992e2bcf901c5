"""Streams of records and documents from files, folders, globs, archives, URLs and hub names."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from homespun.errors import UserError, first_line, nearest, quantity
from homespun.text.byte_streams import DAMAGE, DECOMPRESSORS, CompleteTar, check_ratio
from homespun.text.formats import MAX_CHARACTERS, READERS, ReadOptions, Record, read_text
from homespun.text.input_files import (
    HUB_NAME,
    is_hidden,
    is_hub_name,
    is_local,
    known_kinds,
    local_files,
    remote_files,
    save_as,
    suffixes,
)


@dataclass(frozen=True)
class Document:
    """Text with its label, if any, and its location (``file:line``)."""

    text: str
    label: str | None = None
    source: str = ""


class EmptyInput(UserError):
    """Error of an input without a text or a record that is short enough."""


class ReadProgress:
    """Number of bytes read of local input files, as they are on disk (compressed)."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self.done = 0
        self.total = _size(inputs)

    @property
    def share(self) -> float | None:
        """Finished share, 0 to 1; None if the size of the inputs is unknown."""
        return min(1.0, self.done / self.total) if self.total else None


def _size(inputs: Sequence[str]) -> int | None:
    if not all(map(is_local, inputs)):
        return None
    try:
        return sum(os.path.getsize(file.name) for entry in inputs for file in local_files(entry))
    except (OSError, UserError):  # raised again when they are read
        return None


def read_records(
    inputs: Sequence[str],
    *,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    read_progress: ReadProgress | None = None,
) -> Iterator[Record]:
    """Stream the records of ``inputs`` in order; files of a folder or glob are sorted by name.

    An input is

    - a file: ``.txt .text .md`` (one record, ``{"text": ...}``), ``.csv``, ``.tsv``, ``.json`` (an array of objects, or
      an object), ``.jsonl .ndjson``, ``.parquet``, CoNLL, each also compressed: ``.gz .xz .bz2 .zst``;
    - a ``.zip`` or ``.tar`` archive of such files (``.tar.gz``, ``.tgz`` ...), read without unpacking it;
    - a folder with its subfolders, or a glob (``data/**/*.csv``): files of other kinds are skipped. Texts in class
      folders (`homespun.text.input_files.local_files`) have the name of their folder under ``label``;
    - a URL: ``https://...``, or any that `fsspec` supports, such as ``hf://``;
    - a data set on the Hugging Face hub, ``owner/name`` or ``owner/name/configuration``, with ``:split`` (default
      ``train``).

    Memory: one record, a `json` file that is one object, a text file, or 256 rows of parquet.

    Args:
        inputs: see above.
        encoding: character encoding of all inputs; None: detected for each file.
        columns: names of the columns of csv and tsv files without a header.
        read_progress: updated while reading.

    Raises:
        UserError: an input is missing, of an unknown kind, without records, truncated or damaged; bytes cannot be
            decoded; a line has the wrong number of cells.
    """
    for record in _read(inputs, ReadOptions(encoding, columns), read_progress):
        yield record.values


def read_documents(
    inputs: Sequence[str],
    *,
    text_field: str | Sequence[str] = "text",
    label_field: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    max_characters: int = MAX_CHARACTERS,
    read_progress: ReadProgress | None = None,
) -> Iterator[Document]:
    """Stream the documents in ``inputs`` (see `read_records`), without blank texts.

    Several fields ``text_field`` are joined with a space. A plain text file is one document, for any ``text_field``.
    Labels become strings. Text files, JSON lines and texts of more than ``max_characters`` are left out; a warning has
    their number.

    Raises:
        UserError: as in `read_records`; a missing field; a text that is not a string; no text.
    """
    fields = [text_field] if isinstance(text_field, str) else list(text_field)
    is_empty = True
    skipped: list[str] = []
    for record in _read(inputs, ReadOptions(encoding, columns, max_characters, skipped), read_progress):
        text = record.text(["text"] if record.is_text_file else fields)
        if len(text) > max_characters:
            skipped.append(record.source)
            continue
        if not text or text.isspace():
            continue
        label = None if label_field is None else record.field(label_field)
        if label is not None and not isinstance(label, str | int | float):
            raise UserError(
                f"{record.source}: the label {label_field!r} is {type(label).__name__}, not a word or number"
            )
        is_empty = False
        yield Document(text, None if label is None else str(label), record.source)
    if skipped:
        warnings.warn(
            f"left out {quantity(len(skipped), 'document')} of more than {max_characters:,} characters, the first is "
            f"{skipped[0]}; split them, or raise the limit",
            stacklevel=2,
        )
    if is_empty and skipped:
        limit = f"{max_characters:,} characters"
        raise EmptyInput(f"{', '.join(inputs)}: all texts are empty or have more than {limit}; raise the limit")
    if is_empty:
        names = ", ".join(map(repr, fields))
        raise EmptyInput(f"{', '.join(inputs)}: no text; {names} is empty in all records; name another column")


class _Located(NamedTuple):
    values: Record
    source: str
    is_text_file: bool

    def field(self, name: str) -> Any:
        if name not in self.values:
            hint = nearest(name, self.values)
            hint = hint if "did you mean" in hint else ""
            raise UserError(f"{self.source}: no column {name!r}{hint}; there are: {', '.join(map(str, self.values))}")
        value = self.values[name]
        return None if value != value else value  # tables have NaN for a missing value

    def text(self, names: Sequence[str]) -> str:
        """Return one text unchanged, or join several texts and numbers with a space."""
        several, parts = len(names) > 1, []
        for name, value in zip(names, map(self.field, names), strict=True):
            if not isinstance(value, str | None | (int | float if several else None)):
                raise UserError(f"{self.source}: {name!r} is {type(value).__name__}, not text; name another column")
            if value is not None:
                parts.append(str(value).strip() if several else str(value))
        return " ".join(filter(None, parts))


def _read(inputs: Sequence[str], options: ReadOptions, read_progress: ReadProgress | None) -> Iterator[_Located]:
    if not inputs:
        raise UserError("no input was given; name files, folders, globs, URLs or hub data sets")
    for entry in inputs:
        records = _hub(entry) if is_hub_name(entry) else _files_records(entry, options, read_progress)
        first = next(records, None)
        if first is None and options.skipped:
            limit = f"{options.max_characters:,} characters"
            raise EmptyInput(f"{options.skipped[-1]} has more than {limit}; split it, or raise the limit")
        if first is None:
            raise EmptyInput(f"{entry} is empty: it has no record; leave it out")
        yield first
        yield from records


def _files_records(entry: str, options: ReadOptions, read_progress: ReadProgress | None) -> Iterator[_Located]:
    for file in remote_files(entry) if "://" in entry else local_files(entry):
        try:
            with contextlib.closing(file.open()) as stream:
                records = _file_records(file.name, stream, options, label=file.label)
                if read_progress is None or not read_progress.total:
                    yield from records
                    continue
                before = read_progress.done
                for record in records:
                    read_progress.done = before + stream.tell()
                    yield record
                read_progress.done = before + os.path.getsize(file.name)
        except UserError:
            raise
        except NotImplementedError as error:  # an unsupported compression of zipfile
            raise UserError(f"cannot read {file.name}: {first_line(error)}") from error
        except DAMAGE as error:
            raise UserError(f"{file.name} is cut short or damaged: {error}; copy or download it again") from error
        except OSError as error:
            raise UserError(f"cannot read {file.name}: {first_line(error)}") from error


def _file_records(
    name: str, stream: BinaryIO, options: ReadOptions, *, member: str | None = None, label: str | None = None
) -> Iterator[_Located]:
    """Yield the records of a file, or of the ``member`` of an archive in ``stream``; ``label`` is added to a text."""
    suffix, compressions = suffixes(name if member is None else member)
    if label is not None:
        suffix = suffix or ".txt"
    for compression in compressions:
        stream = DECOMPRESSORS[compression](stream)
    direct = not compressions and member is None
    if suffix in READERS:
        is_text_file = READERS[suffix] is read_text
        with _seekable(stream, direct=direct) if suffix == ".parquet" else contextlib.nullcontext(stream) as content:
            for number, record in READERS[suffix](content, name, options):
                values = record if label is None else {**record, "label": label}
                yield _Located(values, name if is_text_file else f"{name}:{number}", is_text_file)
    elif suffix == ".zip" and member is None:
        with _seekable(stream, direct=direct) as seekable, zipfile.ZipFile(seekable) as archive:
            for info in archive.infolist():
                if _is_readable_member(info.filename) and not info.is_dir():
                    if info.flag_bits & 1:
                        raise UserError(f"{name}: {info.filename} is encrypted; unpack it with its password first")
                    # the sizes in an archive are not trusted
                    check_ratio(info.file_size, min(info.compress_size, seekable.seek(0, os.SEEK_END)))
                    with archive.open(info) as inner:
                        path, content = f"{name}/{info.filename}", cast(BinaryIO, inner)
                        yield from _file_records(path, content, options, member=info.filename)
    elif suffix == ".tar" and member is None:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=CompleteTar) as tar:
            for entry in tar:
                if entry.isfile() and _is_readable_member(entry.name):
                    if entry.issparse():
                        raise UserError(f"{name}: {entry.name} is sparse; pack it again without holes")
                    extracted = cast(BinaryIO, tar.extractfile(entry))  # a file object, not a file on disk
                    yield from _file_records(f"{name}/{entry.name}", extracted, options, member=entry.name)
        while stream.read(1 << 20):  # detects a compressed archive that is truncated after its last member
            pass
    else:
        raise UserError(f"{name}: unknown kind of file{save_as(name)}; known are {known_kinds()}")


def _is_readable_member(name: str) -> bool:
    # nested archives are skipped: they may be bombs
    return suffixes(name)[0] in READERS and not is_hidden(PurePosixPath(name))


@contextlib.contextmanager
def _seekable(stream: BinaryIO, *, direct: bool) -> Iterator[BinaryIO]:
    """Copy a stream that cannot seek to a temporary file: zip and parquet have their directory at the end."""
    if direct and stream.seekable():
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield cast(BinaryIO, copy)


def _hub(entry: str) -> Iterator[_Located]:
    match = HUB_NAME.fullmatch(entry)
    assert match is not None
    name, configuration, split = match.group("name", "configuration", "split")
    import datasets
    import huggingface_hub

    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=20)  # one request; `datasets` retries for half a minute
        rows = datasets.load_dataset(name, configuration, split=split or "train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield _Located(row, f"{entry}:{number}", False)
    except Exception as error:  # network, hub and formats raise different exceptions
        raise UserError(
            f"{entry}: no such file or folder, and no data set that could be read from the hub: {first_line(error)}"
        ) from error
