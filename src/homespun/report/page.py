"""Reports as files: one self-contained HTML page, tables, figures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from homespun.errors import UserError
from homespun.io.atomic import write_bytes, write_text
from homespun.report.document import Document, Section, compose
from homespun.report.markdown import csv_text, markdown
from homespun.report.plots import Plot
from homespun.report.records import read_runs
from homespun.report.sentences import environment

__all__ = ["Section", "html", "write_report"]


def write_report(runs: Sequence[Path], out: Path, *, title: str, sections: Sequence[Section] = ()) -> Path:
    """Write the report of ``runs`` into the folder ``out`` and return its page, ``out/index.html``.

    Several runs are drawn on shared axes, in the order given. The folder also gets ``report.md``, ``tables/*.csv``
    (raw values), ``plots/*.svg`` and ``*.png``. Files are written atomically, the page last; other files stay.

    Args:
        runs: run directories; unfinished runs are shown up to their last step.
        out: folder of the report.
        title: heading of the page.
        sections: text, tables and commands from the caller.

    Raises:
        UserError: no run, or a folder that is not a run directory, or a damaged file in one, or ``out`` is a file.
    """
    return write_document(compose(read_runs(runs), title=title, sections=sections), Path(out))


def write_document(document: Document, out: Path) -> Path:
    """Write a report into the folder ``out``: tables and figures, ``report.md``, and last ``index.html``, which is
    returned.

    Raises:
        UserError: ``out`` is a file, or under one.
    """
    try:
        for folder in (out, out / "tables", out / "plots"):
            folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"cannot write a report to {out}: a file is in the way; name a folder") from error
    for table in document.tables():
        write_text(out / "tables" / f"{table.name}.csv", csv_text(table))
    for plot in document.plots():
        write_bytes(out / "plots" / f"{plot.name}.svg", plot.svg)
        write_bytes(out / "plots" / f"{plot.name}.png", plot.png)
    write_text(out / "report.md", markdown(document))
    page = out / "index.html"
    write_text(page, html(document))
    return page


def html(document: Document) -> str:
    """The document as one HTML page without other files, network or scripts."""
    return environment().get_template("report.html.j2").render(document=document, data_uri=_data_uri)


def _data_uri(plot: Plot) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(plot.svg).decode()}"
