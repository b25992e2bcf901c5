"""Names and docstrings follow docs/glossary.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(
    path.name for path in (ROOT / "src" / "homespun").iterdir() if path.is_dir() and path.name != "recipes"
)
ALLOWED = {"apart", "whole_words"}  # keys of configs
BANNED = {"told", "said", "begun", "beside", "alike", "apart", "whole", "some"}
PRONOUN = re.compile(
    r"(That|Those|What|Which|Who|Whose|Whether|It|They|Its|Their|This|These|Where|There|None|How|Why|When|Nothing|Here)\b"
)


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every identifier that is defined, bound or read, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def findings(source: str) -> list[str]:
    """Banned identifiers and docstrings that begin with a pronoun, as `line: text`."""
    tree = ast.parse(source)
    found = [
        f"{line}: {name}"
        for name, line in identifiers(tree)
        if name not in ALLOWED and BANNED & set(name.lower().split("_"))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if PRONOUN.match(docstring):
                found.append(f"{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}")
    return found


@pytest.mark.parametrize("files", [*(f"{package}/**/*.py" for package in PACKAGES), "*.py"])
def test_names_and_docstrings(files: str) -> None:
    folder = ROOT / "src" / "homespun"
    wrong = [f"{path.name}:{text}" for path in sorted(folder.glob(files)) for text in findings(path.read_text("utf-8"))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("told = 1", 1),
        ("def write_said(): pass", 1),
        ("x.beside", 1),
        ('def f():\n    """What it is."""', 1),
        ('def f():\n    """Whatever is given."""', 0),
        ("untold = wholesome = 1", 0),
    ],
)
def test_findings(source: str, count: int) -> None:
    assert len(findings(source)) == count


def test_glossary_has_one_row_a_term() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    terms = [row.strip() for row in rows if not set(row) <= {"-"} and row.strip() != "term"]
    assert len(terms) >= 50
    assert terms == sorted(set(terms), key=str.lower)
