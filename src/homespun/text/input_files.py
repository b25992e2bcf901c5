"""Input files: files, folders, globs, object stores and web pages."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, NoReturn

from homespun.errors import UserError, first_line
from homespun.text.byte_streams import DECOMPRESSORS, download
from homespun.text.formats import READERS

_SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
_ARCHIVES = (".zip", ".tar")
_SAVE_AS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".xml"), ".csv"),
    **dict.fromkeys((".pdf", ".docx", ".doc", ".rtf", ".html", ".htm"), ".txt"),
    **dict.fromkeys((".arrow", ".feather", ".pkl", ".pickle"), ".parquet"),
    **dict.fromkeys((".rar", ".7z"), ".zip"),
}
"""Formats that are not read: suffix to save a file with."""
_ARROW_FOLDERS = (("dataset_dict.json",), ("dataset_info.json", "state.json"))  # files of `save_to_disk`
_WEB = ("http://", "https://")
_UNLABELLED = ("unsup", "unsupervised", "unlabeled", "unlabelled")  # folders of texts without a class, as IMDb has
_PARTS = ("train", "training", "validation", "valid", "val", "dev", "test")  # folders of parts of a data set
# owner/name, owner/name/configuration, and either with :split
HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(/(?P<configuration>[\w.-]+))?(:(?P<split>[\w.-]+))?")


class InputFile(NamedTuple):
    """Name of a file, with a function that opens it."""

    name: str
    open: Callable[[], BinaryIO]
    label: str | None = None  # name of its class folder, empty outside of one; None: the input has no class folders


def check_inputs(inputs: Sequence[str]) -> None:
    """Check that each local input has a file.

    Raises:
        UserError: naming the first input without a file.
    """
    for entry in filter(is_local, inputs):
        next(local_files(entry))


def list_files(inputs: Sequence[str]) -> list[tuple[str, int]]:
    """List names and sizes in bytes of all files of ``inputs``, in reading order.

    Raises:
        UserError: an input is missing, a pipe, a web page or a data set of the hub.
    """
    files = []
    for entry in inputs:
        if is_hub_name(entry):
            raise UserError(
                f"{entry} is a data set of the hub, which has no files here; download it, and name its files"
            )
        if entry.startswith(_WEB):
            raise UserError(f"{entry} is a web page, which only one machine reads; download it, and name the file")
        if "://" in entry:
            for file in remote_files(entry):
                with contextlib.closing(file.open()) as stream:
                    files.append((file.name, stream.seek(0, os.SEEK_END)))
            continue
        for file in local_files(entry):
            if not os.path.isfile(file.name):
                raise UserError(f"{file.name} can be read only once, and not by other machines; write it to a file")
            files.append((file.name, os.path.getsize(file.name)))
    return files


def digest_files(inputs: Sequence[str]) -> str:
    """Compute a digest of the names, sizes and modification times of all local files, except pipes.

    Raises:
        UserError: an input is missing.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in itertools.chain.from_iterable(map(local_files, filter(is_local, inputs))):
        if os.path.isfile(file.name):
            status = os.stat(file.name)
            digest.update(os.fsencode(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0"))
    return digest.hexdigest()


def is_hub_name(entry: str) -> bool:
    """True for ``owner/name`` if no such path and no folder ``owner`` exists."""
    return (
        HUB_NAME.fullmatch(entry) is not None
        and not _is_known(entry)
        and not entry.startswith(".")
        and not Path(entry).exists()
        and not Path(entry.split("/")[0]).is_dir()
    )


def is_local(entry: str) -> bool:
    """True for a file, folder or glob of this machine."""
    return "://" not in entry and not is_hub_name(entry)


def check_output(out: str | Path, inputs: Iterable[str]) -> None:
    """Raise `UserError` if the folder ``out`` lies in an input folder, whose files would include the output."""
    for entry in inputs:
        folder = Path(entry).expanduser()
        if folder.is_dir() and Path(out).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"--out {out} lies in {entry}, whose files are read; give a folder outside it")


def local_files(entry: str) -> Iterator[InputFile]:
    """Yield the files of a path, folder or glob, sorted by name, with their labels if the folder has class folders.

    Class folders are the layout of scikit-learn's ``load_files``: two or more subfolders, one for each class, with text
    files (``.txt``, ``.text``, or names that are a number, as in 20 newsgroups). At most as many text files may lie
    outside of them, and no files of other formats. Those files, and the ones in a folder ``unsup`` or ``unlabeled``,
    have an empty label. Folders of parts (``train``, ``test`` ...) are no class folders.

    Raises:
        UserError: there are no files.
    """
    path = Path(entry).expanduser()
    labels: Sequence[str] | None = None
    if path.is_dir():
        paths = sorted(
            p for p in _inside(path) if not is_hidden(Path(p.name)) and (_is_known(p.name) or p.name.isdecimal())
        )
        labels = _class_labels(path, paths)
        if labels is None:
            paths = [p for p in paths if _is_known(p.name)]
        if not paths:
            remedy = next(filter(None, (save_as(p.name) for p in _inside(path))), "")
            raise UserError(f"the folder {entry} has no file of a known kind{remedy} ({known_kinds()})")
        if any(all((path / name).is_file() for name in names) for names in _ARROW_FOLDERS):
            raise UserError(
                f"{entry} is a data set in Arrow files (save_to_disk of Hugging Face datasets), which are not read; "
                f"save each part as parquet: datasets.load_from_disk(PART).to_parquet('train.parquet')"
            )
    elif path.exists():
        paths = [path]
    elif glob.has_magic(entry):
        matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        paths = [match for match in matches if match.is_file() and _is_known(match.name)]
        if not paths:
            kinds = f"only files of other kinds than {known_kinds()}" if matches else "nothing"
            raise UserError(f"the pattern {entry} matches {kinds}; correct it")
    else:
        raise UserError(f"{entry}: no such file or folder; a data set on the hub is named owner/name")
    for path, label in zip(paths, labels or itertools.repeat(None, len(paths)), strict=True):
        yield InputFile(str(path), functools.partial(_open, path), label)


def class_names(entry: str) -> list[str]:
    """Return the sorted names of the classes of an input of class folders (`local_files`); empty for other inputs."""
    if not is_local(entry) or not Path(entry).expanduser().is_dir():
        return []
    return sorted({file.label for file in local_files(entry) if file.label})


def _class_labels(root: Path, paths: Sequence[Path]) -> list[str] | None:
    """Return the label of each of the ``paths`` in ``root``; None if these are no class folders, see `local_files`."""
    parts = [path.parts[len(root.parts) :] for path in paths]
    folders = {part[0] for part in parts if len(part) > 1}
    outside = sum(len(part) == 1 for part in parts)
    if len(folders) < 2 or outside > len(folders) or any(folder.lower() in _PARTS for folder in folders):
        return None
    if not all(len(part) <= 2 and _is_text(part[-1], in_folder=len(part) == 2) for part in parts):
        return None
    return ["" if len(part) == 1 or part[0].lower() in _UNLABELLED else part[0] for part in parts]


def _is_text(name: str, *, in_folder: bool) -> bool:
    suffix = suffixes(name)[0]
    return suffix in (".txt", ".text") or (name.isdecimal() if in_folder else suffix == ".md")


def _inside(root: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders that are not hidden, each folder once; links to folders last."""

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}; name the files to read") from error

    waiting, seen = [str(root)], set[str]()
    for top in waiting:
        for folder, folders, names in os.walk(top, onerror=refuse):
            real_path = os.path.realpath(folder)
            if real_path in seen:  # reached through a link
                folders.clear()
                continue
            seen.add(real_path)
            folders[:] = sorted(name for name in folders if not is_hidden(Path(name)))
            waiting += [link for name in folders if os.path.islink(link := os.path.join(folder, name))]
            yield from (Path(folder, name) for name in names)


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def remote_files(entry: str) -> Iterator[InputFile]:
    """Yield the files of a URL or of an object store of fsspec. Raises `UserError` if it cannot be reached."""
    if entry.startswith(_WEB):
        yield InputFile(entry, functools.partial(download, entry))
        return
    import fsspec  # type: ignore[import-untyped]

    try:
        filesystem, path = fsspec.core.url_to_fs(entry)
        if glob.has_magic(path):
            paths = [p for p in sorted(filesystem.glob(path)) if _is_known(p)]
        elif filesystem.isdir(path):
            paths = [p for p in sorted(filesystem.find(path)) if _is_known(p)]
        else:
            paths = [path]
    except Exception as error:  # file systems raise different exceptions
        raise UserError(f"cannot reach {entry}: {first_line(error)}") from error
    if not paths:
        raise UserError(f"{entry} has no file of a known kind ({known_kinds()})")
    for path in paths:
        yield InputFile(filesystem.unstrip_protocol(path), functools.partial(filesystem.open, path, "rb"))


def _is_known(name: str) -> bool:
    suffix = suffixes(name)[0]
    return suffix in READERS or suffix in _ARCHIVES


def save_as(name: str) -> str:
    """Return the end of an error about a file in a format that is not read: the format to save it in, if known."""
    suffix = suffixes(name)[0]
    return f"; save {suffix} files as {_SAVE_AS[suffix]}" if suffix in _SAVE_AS else ""


def find_parts(entry: str) -> tuple[str, str] | None:
    """Return the paths of the training and of the test part of a local folder that has both."""
    folder = Path(entry).expanduser()
    if not is_local(entry) or not folder.is_dir():
        return None
    stems = {path.name.lower().split(".")[0]: str(path) for path in sorted(folder.glob("*"))}
    return (stems["train"], stems["test"]) if {"train", "test"} <= stems.keys() else None


def is_hidden(path: Path | PurePosixPath) -> bool:
    """True for hidden files and folders, and for macOS metadata in archives."""
    return any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in path.parts)


def known_kinds() -> str:
    """Return the suffixes of supported formats, for messages."""
    return " ".join([*READERS, *_ARCHIVES, *(f"+{suffix}" for suffix in DECOMPRESSORS)])


def suffixes(name: str) -> tuple[str, list[str]]:
    """Return the suffix of the format, and the suffixes of compressions, outermost first."""
    path = PurePosixPath(re.sub(r"[?#].*$", "", name) if name.startswith(_WEB) else Path(name).name)
    found = [s.lower() for s in path.suffixes]
    if found and found[-1] in _SHORT:
        found[-1:] = [f".{part}" for part in _SHORT[found[-1]].split(".")[1:]]
    compressions = []
    while found and found[-1] in DECOMPRESSORS:
        compressions.append(found.pop())
    return (found[-1] if found else ""), compressions
