"""Command line of the benchmarks: `python -m benchmarks` lists them, `python -m benchmarks NAME [options]` runs one.

The result is printed last, as one line of JSON: the figures of homespun and of the peer, the ratios and the machine.

A benchmark is a file or package of this folder with ``run(arguments: list[str]) -> dict``, which takes the command
line and returns the result. Other output goes to standard error.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path


def benchmarks() -> dict[str, str]:
    """Return the benchmarks by name, with the first line of each docstring, without importing them."""
    found = {}
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            name = path.parent.name if path.stem == "__init__" else path.stem
            found[name.replace("_", "-")] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main(arguments: list[str]) -> int:
    known = benchmarks()
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, known), default=0)
        for name, about in known.items():
            print(f"{name:<{width}}  {about}")
        return 0
    name, *options = arguments
    if name not in known:
        print(f"no benchmark {name!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    from benchmarks.measure import machine  # imports torch, which the list does not need
    from homespun.errors import UserError

    try:
        result = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"benchmark": name, **result, "machine": machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
