"""`python -m benchmarks` lists them; `python -m benchmarks NAME [options]` runs one and prints its result last.

The result is one line of JSON: ours, the peer's, the ratios and the machine.

A benchmark is a file of this folder with ``run(arguments: list[str]) -> dict``: the options of its command line in, and
ours, the peer's and the ratios out. What it has to say on the way goes to standard error.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path


def benchmarks() -> dict[str, str]:
    """The benchmarks by name, with the first line of each file's docstring; no file is run for it."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            found[path.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").partition("\n")[0]
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
    from benchmarks.measure import machine  # brings torch, which the list can do without

    result = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run(options)
    print(json.dumps({"benchmark": name, **result, "machine": machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
