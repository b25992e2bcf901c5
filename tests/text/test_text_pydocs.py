"""Documentation of installed packages, found without importing or running them."""

import subprocess
import sys
from pathlib import Path

import pytest

from homespun.errors import UserError
from homespun.text.pydocs import python_documentation

LONG = "It explains at some length what this thing is for, and why. " * 5

PACKAGE = {
    "__init__.py": f'"""The package. {LONG}"""\nraise SystemExit("it was run")\n',
    "core.py": f'''
class Loom:
    """A loom.

        {LONG}
    """

    def weave(self):
        r"""Weaves \\d. {LONG}"""

    def short(self):
        """Too short."""

if True:
    async def late():
        """Late. {LONG}"""

add_newdoc("numpy.core", "ndarray", ("flat", """Flat. {LONG}"""))
add_docstr(torch.acos, r"""Acos. """ + r"""{LONG}""".format(**args))
_shared_docs["merge"] = """Merge. {LONG}"""
QUERY = """select {LONG}"""
''',
    "stubs.pyi": f'def fast(x: int) -> int:\n    """Fast. {LONG}"""\n',
    "broken.py": f'"""{LONG}"""\nprint "python 2"\n',
    "odd.py": f'# -*- coding: latin-1 -*-\n"""{LONG}"""\n'.encode("latin-1") + b"x = '\xe9'\n",
    "help/page.rst": f"A page\n======\n\n{LONG}",
    "help/table.txt": "1.5 2.5 3.5 4.5\n" * 50,
    "LICENSE.txt": LONG,
    "tests/test_core.py": f'"""{LONG}"""\n',
    "_vendor/other.py": f'"""{LONG}"""\n',
}


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, content in PACKAGE.items():
        path = tmp_path / "loomlib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.syspath_prepend(str(tmp_path))
    return "loomlib"


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_found(loom: str, workers: int) -> None:
    documents = list(python_documentation([loom], workers=workers))
    assert {d.label for d in documents} == {loom}
    assert [(d.source, d.text.split()[0]) for d in documents] == [
        ("loomlib", "The"),
        ("loomlib.core:ndarray.flat", "Flat."),
        ("loomlib.core:torch.acos", "Acos."),
        ("loomlib.core:_shared_docs['merge']", "Merge."),
        ("loomlib.core:Loom", "A"),
        ("loomlib.core:Loom.weave", "Weaves"),
        ("loomlib.core:late", "Late."),
        ("loomlib.odd", "It"),
        ("loomlib.stubs:fast", "Fast."),
        ("loomlib.help.page", "A"),
    ]
    assert all(len(d.text) >= 200 for d in documents)
    assert next(d for d in documents if d.source.endswith(":Loom")).text.startswith("A loom.\n\nIt explains")
    assert loom not in sys.modules


def test_a_missing_package_is_named() -> None:
    for name in ("no_such_package", "numpy.linalg", ""):
        with pytest.raises(UserError, match="is not installed"):
            list(python_documentation([name]))


def test_this_environment_documents_itself() -> None:
    code = (
        "import sys; from homespun.text.pydocs import python_documentation as docs\n"
        "texts = [d.text for d in docs(['numpy', 'networkx'])]\n"
        "print(sum(map(len, texts)) > 2_000_000, {'numpy', 'networkx'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "True set()"
