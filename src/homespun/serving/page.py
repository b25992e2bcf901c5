"""Routes of the web page: its files, jobs that label a CSV file, reports and model cards."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import FileResponse
from pydantic import BaseModel

from homespun.commands.predict import predict
from homespun.errors import UserError, first_line
from homespun.serving.errors import ApiError, error_responses
from homespun.serving.models import ServedModel
from homespun.serving.requests import get_model
from homespun.tasks.input_columns import check_input_columns
from homespun.text.sources import read_records

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 * 2**20
"""Of an uploaded CSV file."""
MAX_BODY_BYTES = MAX_FILE_BYTES + 2**16
"""Of a request with a file and the other fields of the form."""
MAX_JOBS = 8
"""Jobs that are kept; the oldest finished one makes room for a new one."""
FILES_PATH = "/files"
_PAGE = Path(__file__).with_name("page")
_STATIC = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
}
PAGE_PATHS = frozenset(_STATIC)
"""Paths of the page itself, which asks for the key of the server."""
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
_PAGE_HEADERS = _ALWAYS | {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
}
_FILE_HEADERS = _ALWAYS | {  # headers of pages without scripts, with styles in the page
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'none'"
}

State = Literal["waiting", "running", "done", "failed"]


class _Ended(Exception):
    """Exception of jobs during shutdown."""


class FileAccepted(BaseModel):
    """File that is being labelled."""

    id: str
    rows: int


class FileState(FileAccepted):
    """Progress of a file; ``error`` is the reason of a failure."""

    done: int
    state: State
    error: str | None


@dataclass(eq=False)
class FileJobs:
    """Jobs of a server, one at a time, in a temporary folder."""

    _folder: tempfile.TemporaryDirectory[str] | None = None
    _jobs: dict[str, FileState] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="files"))
    _ended: threading.Event = field(default_factory=threading.Event)

    def add(self, model: ServedModel, content: BinaryIO, column: str | None) -> FileState:
        """Store and validate a CSV file, and queue its job.

        Raises:
            ApiError: too many jobs (429), the file is too large (413), it is not a CSV file with rows and the columns
                of the model, or ``column`` is given for a model of pairs (422).
        """
        pairs = model.input_kind == "pair"
        if pairs and column is not None:
            raise ApiError(
                422,
                f"column names one column, and model {model.name!r} reads pairs of texts; leave column out, and name "
                f"the columns of the file as in training",
            )
        job = FileState(id=secrets.token_urlsafe(16), rows=0, done=0, state="waiting", error=None)
        with self._lock:
            if len(self._jobs) >= MAX_JOBS:
                self._remove_oldest()
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="homespun-serve-", ignore_cleanup_errors=True)
            self._jobs[job.id] = job
            folder = Path(self._folder.name) / job.id
        try:
            folder.mkdir()
            _store(content, folder / "input.csv")
            file, text = str(folder / "input.csv"), None if column is None else [column]
            check_input_columns(str(model.source), [file], text=text)
            job.rows = sum(1 for _ in read_records([file]))
            self._pool.submit(self._run, job, model, folder, text)
        except BaseException as error:
            with self._lock:
                self._remove(job)
            if isinstance(error, UserError):
                message, option, _ = str(error).replace(f"{folder}/", "").partition("; name the text")
                if option:
                    message += "; rename the columns of the file" if pairs else "; name the text in the field column"
                raise ApiError(422, message) from None
            raise
        return job

    def get(self, name: str) -> FileState:
        """Return a job. Raises `ApiError` 404 for an unknown name."""
        if (job := self._jobs.get(name)) is None:
            raise ApiError(404, f"there is no file {name!r}; it was removed, or the server was started again")
        return job

    def result(self, name: str) -> Path:
        """Return the labelled file of a finished job. Raises `ApiError` 404 or 409."""
        job = self.get(name)
        if job.state != "done" or self._folder is None:
            raise ApiError(409, f"the file {name!r} is not labelled: {job.error or job.state}")
        return Path(self._folder.name) / name / "predictions.csv"

    def close(self) -> None:
        """Stop the jobs and remove their files."""
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        if self._folder is not None:
            self._folder.cleanup()

    def _remove_oldest(self) -> None:
        finished = (job for job in self._jobs.values() if job.state in ("done", "failed"))
        oldest = next(finished, None)
        if oldest is None:
            raise ApiError(429, f"{len(self._jobs)} files are being labelled; send the file again later")
        self._remove(oldest)

    def _remove(self, job: FileState) -> None:
        del self._jobs[job.id]
        assert self._folder is not None
        shutil.rmtree(Path(self._folder.name) / job.id, ignore_errors=True)

    def _run(self, job: FileState, model: ServedModel, folder: Path, text: list[str] | None) -> None:
        def report(done_bytes: int, done_documents: int) -> None:
            job.done = done_documents
            if self._ended.is_set():
                raise _Ended

        job.state = "running"
        labelled, bundle = folder / "predictions.csv", model.pipeline.bundle
        precision = model.pipeline.precision if bundle is None else None  # an open network has it
        try:
            predict(
                str(model.source),
                [str(folder / "input.csv")],
                labelled,
                stored=bundle,
                quantize=precision,
                progress=report,
                text=text,
            )
            job.done = job.rows
        except UserError as error:
            job.error = first_line(error).replace(f"{folder}/", "")
        except _Ended:
            job.error = "the server was shut down"
        except Exception:
            logger.exception("a file was not labelled")
            job.error = "an internal error, which the log of the server describes"
        finally:
            job.state = "done" if job.error is None else "failed"


_BINARY = {b"PAR1": "Parquet", b"PK\x03\x04": "an Excel workbook or a zip archive", b"\x1f\x8b": "gzip"}


def _store(content: BinaryIO, path: Path) -> None:
    start = content.read(4)
    content.seek(0)
    for magic, title in _BINARY.items():
        if start.startswith(magic):
            raise ApiError(422, f"the file is {title}, not CSV; save its table as CSV")
    size = 0
    with path.open("wb") as stream:
        while chunk := content.read(2**20):
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                raise ApiError(413, f"the file has more than {MAX_FILE_BYTES // 2**20} MiB; divide it")
            stream.write(chunk)


def find_report(model: ServedModel) -> Path | None:
    """Return the report folder of a run, if it has one."""
    folder = None if model.run is None else model.run / "report"
    return folder if folder is not None and (folder / "index.html").is_file() else None


def find_card(model: ServedModel) -> Path | None:
    """Return the model card of a run, if it has one."""
    if model.run is None:
        return None
    return next((path for path in (model.run / "README.md", model.run / "hf" / "README.md") if path.is_file()), None)


router = APIRouter()


@router.get("/", include_in_schema=False)
@router.get("/page/page.css", include_in_schema=False)
@router.get("/page/page.js", include_in_schema=False)
async def static(request: Request) -> FileResponse:
    name, media_type = _STATIC[request.scope["route"].path]
    return FileResponse(_PAGE / name, headers=_PAGE_HEADERS, media_type=media_type)


def _jobs(request: Request) -> FileJobs:
    return request.app.state.jobs


@router.post(
    FILES_PATH, status_code=202, summary="Label the rows of a CSV file", responses=error_responses(404, 409, 429)
)
def add_file(
    request: Request,
    file: UploadFile,
    column: Annotated[str | None, Form(description="column of the text; default: as in training")] = None,
    model: Annotated[str | None, Form(description="name of the model; default: the first one")] = None,
) -> FileAccepted:
    served = get_model(request, model or None)
    served.require("predict")
    return _jobs(request).add(served, file.file, column or None)


@router.get("/files/{name}", summary="Return the progress of a file", responses=error_responses(404))
def file_state(request: Request, name: str) -> FileState:
    return _jobs(request).get(name)


@router.get(
    "/files/{name}/predictions.csv",
    summary="Return a labelled file",
    response_class=FileResponse,
    responses=error_responses(404, 409) | {200: {"content": {"text/csv": {}}, "description": "The labelled file"}},
)
def labelled_file(request: Request, name: str) -> FileResponse:
    file = _jobs(request).result(name)
    return FileResponse(file, headers=_ALWAYS, media_type="text/csv", filename="predictions.csv")


@router.get("/report/{name}/{path:path}", include_in_schema=False)
def report(request: Request, name: str, path: str) -> FileResponse:
    folder = find_report(get_model(request, name))
    file = None if folder is None else _file_inside(folder, path or "index.html")
    if file is None:
        raise ApiError(404, f"the report of {name!r} has no file {path[:100]!r}")
    return FileResponse(file, headers=_FILE_HEADERS)


def _file_inside(folder: Path, path: str) -> Path | None:
    try:
        file = (folder / path).resolve()
        return file if file.is_relative_to(folder.resolve()) and file.is_file() else None
    except (OSError, ValueError):  # the name is too long, or has a null byte
        return None


@router.get("/card/{name}", include_in_schema=False)
def card(request: Request, name: str) -> FileResponse:
    file = find_card(get_model(request, name))
    if file is None:
        raise ApiError(404, f"model {name!r} has no model card; homespun fit writes one")
    return FileResponse(file, headers=_FILE_HEADERS, media_type="text/plain; charset=utf-8")
