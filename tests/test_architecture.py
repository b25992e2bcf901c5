"""The architecture, checked by reading the source: layers, forbidden calls, sizes, docstrings, unions."""

import ast
import functools
import importlib
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "homespun"
MODULES = sorted(PACKAGE.rglob("*.py"))
CODE = [*MODULES, *sorted((ROOT / "benchmarks").rglob("*.py"))]

# the package's own entry points join everything, and nothing in the package may import them
ENTRANCES = {"__init__", "__main__"}


def read_floors() -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Layer of each package, and arrows `(below, above)` between packages of one layer, from docs/architecture.md."""
    floors: dict[str, int] = {}
    arrows: set[tuple[str, str]] = set()
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4 or not cells[1].isdigit():
            continue
        below = None
        for sign, name in re.findall(r"(<-|,|^)\s*`(\w+)/?`", cells[2]):
            floors[name] = int(cells[1])
            if sign == "<-":
                assert below is not None
                arrows.add((below, name))
            below = name
    return floors, arrows


FLOORS, ARROWS = read_floors()


def name_of(path: Path) -> str:
    root = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Every node of a file, the module first."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def name_called(node: ast.Call) -> str:
    """``f`` or ``module.f``; empty for what is called in another way."""
    match node.func:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(owner), name):
            return f"{owner}.{name}"
    return ""


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, those inside functions too, with the line."""
    inside = path.relative_to(PACKAGE.parent).parts[:-1] if path.is_relative_to(PACKAGE) else ()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = [*inside[: len(inside) - node.level + 1]] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_the_table_of_floors_is_read() -> None:
    floors = [FLOORS[name] for name in ("cli", "commands", "training", "models", "nn", "errors")]
    assert floors == sorted(set(floors), reverse=True)
    assert floors[-1] == 0
    assert ("text", "data") in ARROWS


def test_every_package_has_a_layer() -> None:
    packages = {package_of(path) for path in MODULES if path.read_text(encoding="utf-8").strip()} - ENTRANCES
    assert packages <= set(FLOORS), f"no floor in docs/architecture.md for {sorted(packages - set(FLOORS))}"


def test_imports_run_only_downward() -> None:
    wrong = []
    for path in MODULES:
        own = package_of(path)
        if own in ENTRANCES or own not in FLOORS:
            continue
        for module, line in imports(path):
            top, _, rest = module.partition(".")
            target = rest.partition(".")[0]
            if top != "homespun" or target in (own, "__version__"):
                continue
            allowed = target in FLOORS and (FLOORS[target] < FLOORS[own] or (target, own) in ARROWS)
            if not allowed:
                wrong.append(f"{where(path, line)}: {own} (floor {FLOORS[own]}) imports {module}")
    assert not wrong, "\n".join(wrong)


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions and for type checkers count too; only those of the entrances do not."""
    files = {name_of(path): path for path in CODE if path.stem not in ENTRANCES or path.parent != PACKAGE}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        modules = [module for module, _ in imports(path)]
        graph[name] = {module if module in files else module.rpartition(".")[0] for module in modules} & {*files}
    assert "homespun.commands.probe" in graph["benchmarks.planner"]
    assert "homespun.commands.few_shot" in graph["homespun.cli.generate"]  # in a function
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_peers_are_for_tests_and_benchmarks_only() -> None:
    peers, own = {"transformers", "performer_pytorch", "linformer"}, "auto_classes.py"  # classes of transformers
    files = [path for path in MODULES if path.name != own]
    wrong = [where(p, line) for p in files for module, line in imports(p) if module.partition(".")[0] in peers]
    assert not wrong


def test_no_file_is_named_for_nothing() -> None:
    nothing = {"utils", "util", "common", "helpers", "helper", "base", "misc", "core", "shared"}
    assert not [where(p, 1) for p in CODE if p.stem in nothing or p.parent.name in nothing]


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"}


UNSAFE_KEYWORDS = ("allow_pickle", "shell", "trust_remote_code")


def unsafe_calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Calls through which a file or an argument could run code."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = name_called(node)
        keywords = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg in (*UNSAFE_KEYWORDS, "weights_only")}
        if called in FORBIDDEN_CALLS:
            yield called, node.lineno
        if called == "torch.load" and keywords.get("weights_only") != "True":
            yield "torch.load without weights_only=True", node.lineno
        for name in UNSAFE_KEYWORDS:
            if keywords.get(name, "False") != "False":
                yield f"{called}({name}={keywords[name]})", node.lineno


def test_untrusted_input_stays_data() -> None:
    wrong = []
    for path in CODE:
        wrong += [f"{where(path, line)}: {what}" for what, line in unsafe_calls(nodes_of(path))]
        wrong += [f"{where(path, n)}: {m}" for m, n in imports(path) if m.partition(".")[0] in FORBIDDEN_MODULES]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("eval('1')", 1),
        ("model.eval()", 0),
        ("yaml.load(f)", 1),
        ("yaml.safe_load(f)", 0),
        ("torch.load(f)", 1),
        ("torch.load(f, weights_only=False)", 1),
        ("torch.load(f, map_location='cpu', weights_only=True)", 0),
        ("np.load(f, allow_pickle=True)", 1),
        ("subprocess.run(c, shell=True)", 1),
        ("subprocess.run(c, shell=False)", 0),
    ],
)
def test_unsafe_calls_are_recognised(code: str, found: int) -> None:
    assert len(list(unsafe_calls(ast.walk(ast.parse(code))))) == found


def test_files_stay_small() -> None:
    long = {where(p, n): n for p in CODE if (n := len(p.read_text(encoding="utf-8").splitlines())) > 420}
    assert not long


def test_every_module_has_a_docstring() -> None:
    silent = [
        where(path, 1) for path in CODE if (module := nodes_of(path)[0]).body and ast.get_docstring(module) is None
    ]
    assert not silent


def kinds_of(union: object) -> list[str]:
    """The tags of a union's members, nested unions opened."""
    if typing.get_origin(union) is not None:
        members = typing.get_args(union)
        if typing.get_origin(union) is typing.Annotated:
            members = members[:1]
        return [kind for member in members for kind in kinds_of(member)]
    field = typing.cast(typing.Any, union).model_fields["kind"]
    assert typing.get_origin(field.annotation) is typing.Literal, f"{union}: kind must be a Literal"
    assert typing.get_args(field.annotation) == (field.default,), f"{union}: kind must default to its tag"
    return [field.default]


def unions() -> Iterator[tuple[str, object]]:
    for path in MODULES:
        if path.stem == "__main__":
            continue
        for name, value in vars(importlib.import_module(name_of(path))).items():
            if typing.get_origin(value) is typing.Annotated:
                fields = [part for part in typing.get_args(value)[1:] if isinstance(part, FieldInfo)]
                if any(part.discriminator == "kind" for part in fields):
                    yield f"{name_of(path)}.{name}", value


def test_every_member_of_a_union_has_its_own_tag() -> None:
    found = dict(unions())
    assert "homespun.models.config.HeadConfig" in found
    for name, union in found.items():
        kinds = kinds_of(union)
        assert len(set(kinds)) == len(kinds), f"{name}: {kinds}"


KINDS_ASKED = {  # isinstance checks on kinds of configs, without `hf/`, which translates them, and `build` methods
    "commands": 13,
}


def test_few_modules_ask_for_the_class_of_a_config() -> None:
    """A new kind must not need a case elsewhere: what others ask of a config is an attribute or method of it."""
    classes = [node for path in MODULES for node in nodes_of(path)[0].body if isinstance(node, ast.ClassDef)]
    kinds = {
        node.name
        for node in classes
        if any(isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "kind" for line in node.body)
    }
    asked: Counter[str] = Counter()
    for path in MODULES:
        package = path.relative_to(PACKAGE).parts[0]
        builds = {id(n) for f in nodes_of(path) if getattr(f, "name", "") == "build" for n in ast.walk(f)}
        for node in nodes_of(path):
            names: set[str] = set()
            if isinstance(node, ast.Call) and name_called(node) == "isinstance":
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            elif isinstance(node, ast.MatchClass):
                names = {ast.unparse(node.cls)}
            if names & kinds and package != "hf" and id(node) not in builds:
                asked[package] += 1
    assert asked == KINDS_ASKED, "use a capability of the config; lower the number here if one is gone"
