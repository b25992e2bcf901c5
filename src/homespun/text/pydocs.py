"""Documentation of installed Python packages, labelled by package.

Docstrings are parsed with `ast`, help pages are found by their suffix: no package is imported or executed.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
import multiprocessing
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from homespun.errors import UserError
from homespun.text.sources import Document


def _names(line: str) -> tuple[str, ...]:
    return tuple(line.split())


# dependencies of homespun and common packages, by the amount of documentation
PACKAGES = _names(
    "torch scipy sympy sklearn pandas networkx numpy matplotlib huggingface_hub datasets fontTools mpmath pydantic "
    "accelerate PIL rich pyparsing pyarrow mpl_toolkits fsspec click tokenizers jinja2 joblib dateutil"
)
_SKIPPED_FOLDERS = _names("tests test _vendor vendor vendored externals _externals extern third_party __pycache__")
_PAGES = (".rst", ".md", ".txt")
_NOT_PROSE = re.compile(
    r"licen[cs]e|copying|notice|authors|requirements|cmakelists|entry_points|top_level|sources", re.I
)
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FILES_A_TASK = 64
_MIN_CHARACTERS = 200  # of a document


class _Source(NamedTuple):
    package: str
    module: str
    path: str


def python_documentation(packages: Sequence[str] | None = None, *, workers: int = 1) -> Iterator[Document]:
    """Yield docstrings and help pages of installed packages, in the order of ``packages`` and of their files.

    A document is the docstring of a module, class or function; a text passed to `add_newdoc`, `add_docstr` and similar
    functions, or assigned to a variable called ``...doc...``; or a ``.rst``, ``.md`` or ``.txt`` page in the package.
    Its label is the package, its source ``package.module:qualified.name``. Tests and vendored packages are left out.

    Args:
        packages: importable names; None: the installed packages of `PACKAGES`.
        workers: processes that parse files; they do not change the order.

    Raises:
        UserError: a package of ``packages`` is not installed.
    """
    names = [name for name in PACKAGES if _folders(name)] if packages is None else list(packages)
    for name in names:
        if not _folders(name):
            raise UserError(f"Python package {name!r} is not installed or has no Python files; leave it out")
    sources = (source for name in names for source in _sources(name))
    tasks = iter(lambda: list(islice(sources, _FILES_A_TASK)), [])
    if workers <= 1:
        for task in tasks:
            yield from _documents(task)
        return
    # spawn: forking a process that runs threads of torch can hang
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for future in [pool.submit(_documents, task) for task in tasks]:
                yield from future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # the caller may stop early


def _folders(package: str) -> list[str]:
    """Find the folders, or the single file, of an installed top-level package without an import."""
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return list(spec.submodule_search_locations)
    return [spec.origin] if spec.origin and spec.origin.endswith(".py") else []


def _sources(package: str) -> Iterator[_Source]:
    for root in _folders(package):
        if os.path.isfile(root):
            yield _Source(package, package, root)
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("."))
            for name in sorted(files):
                path = Path(folder, name)
                if path.suffix in (".py", ".pyi") or (path.suffix in _PAGES and not _NOT_PROSE.search(name)):
                    parts = [package, *path.relative_to(root).with_suffix("").parts]
                    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                    yield _Source(package, module, str(path))


def _documents(sources: Sequence[_Source]) -> list[Document]:
    documents = []
    collecting = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and collecting them takes a third of the time
    try:
        for package, module, path in sources:
            data = Path(path).read_bytes()
            if path.endswith(_PAGES):
                texts = [("", page)] if (page := _page(data)) else []
            elif b'"""' in data or b"'''" in data:
                texts = [(f":{name}" if name else "", text) for name, text in _docstrings(data)]
            else:
                continue
            for name, text in texts:
                clean = inspect.cleandoc(text).strip()
                if len(clean) >= _MIN_CHARACTERS:
                    documents.append(Document(clean, package, f"{module}{name}"))
    finally:
        if collecting:
            gc.enable()
    return documents


def _page(data: bytes) -> str | None:
    """Decode a help page; None for a table, a word list or a template with the suffix ``.txt``."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    prose = sum(map(text.count, "etaoinshrdlu "))  # two thirds of English, less of markup
    return text if prose > 0.5 * len(text) else None


def _docstrings(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield (qualified name, text) of the documentation in a Python file; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # templates, invalid bytes
        return
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        name, node = pending.pop()
        body: list[ast.stmt] = getattr(node, "body", [])
        if isinstance(node, (ast.Module, *_DEFINITIONS)) and (text := ast.get_docstring(node, clean=False)):
            yield name, text
        inner: list[tuple[str, ast.AST]] = []
        for statement in [*body, *getattr(node, "orelse", [])]:
            if isinstance(statement, _DEFINITIONS):
                inner.append((f"{name}.{statement.name}".lstrip("."), statement))
            elif isinstance(statement, ast.If | ast.Try | ast.With | ast.For):
                inner.append((name, statement))
            elif isinstance(statement, ast.Expr | ast.Assign):
                yield from _documentation_strings(name, statement)
        pending.extend(reversed(inner))


def _documentation_strings(scope: str, statement: ast.Expr | ast.Assign) -> Iterator[tuple[str, str]]:
    """Yield texts in ``add_newdoc(...)``, ``add_docstr(...)``, ``__doc__ = ...``, ``_shared_docs["..."] = ...``."""
    if isinstance(statement, ast.Expr):
        if not isinstance(statement.value, ast.Call):
            return
        target, arguments = ast.unparse(statement.value.func), statement.value.args
    else:
        target, arguments = ast.unparse(statement.targets[0]), []
    if "doc" not in target.lower():
        return
    strings = list(_strings(statement.value))
    first = (
        ast.unparse(arguments[0]).strip("'\"") if arguments and not isinstance(arguments[0], ast.Constant) else target
    )
    names = [text for text in strings if text.isidentifier()]
    name = ".".join([scope, *(names or [first])]).lstrip(".")
    for text in strings:
        if " " in text:
            yield name, text


def _strings(node: ast.AST) -> Iterator[str]:
    """Yield string constants below ``node``, concatenated if they are joined by ``+``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield "".join([*_strings(node.left), *_strings(node.right)])
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)
