"""Check the layers, count the code and write the architecture page.

python -m tools.architecture           # print the graph of packages, forbidden imports and the counts
python -m tools.architecture --write   # write docs/architecture.md
python -m tools.architecture --check   # fail if docs/architecture.md is out of date
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "kappaplace"
LAYERS = (
    ("errors", "types", "version", "files", "records", "checks", "progress", "_names"),
    ("vmf", "metrics"),
    ("data",),
    ("models",),
    ("retrieval",),
    ("uncertainty",),
    ("calibration",),
    ("training",),
    ("evaluation", "maps"),
    ("slam", "sharing"),
    ("reports",),
    ("serve", "client"),
    ("cli",),
)
"""Imports point from a later layer to an earlier one; the modules of the first may import each other."""
FRONT = ("slam", "sharing", "reports", "serve", "cli")
"""These import other packages only through their ``__init__``: they prove that the public API suffices."""
COUNTED = ("src", "benchmarks", "recipes")
"""Folders whose code lines the ratchet counts: moving code out of the package is no saving."""
MOST_PARAMETERS = 8


@dataclass(frozen=True, order=True)
class Import:
    """One module of the package imports another."""

    importer: str
    """Dotted, without the name of the package: ``maps.build``."""
    imported: str
    lazy: bool
    """Inside a function, or for type checking only."""

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}"


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return every module of the package by its dotted name, without the package's own name."""
    top = root / "src" / PACKAGE
    names = {}
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(root: Path = ROOT) -> list[Import]:
    """Return all imports between modules of the package: top-level, lazy and for type checking."""
    known = modules(root)
    return sorted({edge for name, path in known.items() for edge in _imports_of(name, path, known)})


def home(module: str) -> str:
    """Return the package that a module belongs to; a module at the top is its own."""
    return module.split(".")[0]


def layer_of(package: str) -> int | None:
    """Return the layer of a package; None if it is in no layer."""
    return next((number for number, names in enumerate(LAYERS) if package in names), None)


def wrong_way(edges: list[Import]) -> list[Import]:
    """Return the imports that do not point to an earlier layer."""
    return [edge for edge in edges if _is_wrong(edge)]


def lazy_cycles(edges: list[Import]) -> list[tuple[str, str]]:
    """Return pairs of modules that import each other, one of them inside a function."""
    pairs = {(edge.importer, edge.imported) for edge in edges}
    return sorted(pair for pair in pairs if pair[0] < pair[1] and pair[::-1] in pairs)


def deep_imports(source: str, own: str = "", root: Path = ROOT) -> list[str]:
    """Return the modules inside packages that some code imports, past the public names of the package.

    Args:
        source: Python code.
        own: The package that the code belongs to; its modules are not listed.
        root: Folder of the repository.
    """
    names = modules(root)
    packages = {name for name, path in names.items() if path.name == "__init__.py" and name}
    targets = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            package = node.module.partition(".")[2]
            public = exports(names[package]) if package in packages else set()
            inner = [name for alias in node.names if (name := f"{package}.{alias.name}") in names]
            hidden = [name for name in inner if name.rpartition(".")[2] not in public]
            targets += [f"{PACKAGE}.{name}" for name in hidden] or [node.module]
    paths = [name.split(".")[1:] for name in targets if name.split(".")[0] == PACKAGE]
    return sorted({".".join(p) for p in paths if len(p) > 1 and p[0] in packages and p[0] != own})


def exports(init: Path) -> set[str]:
    """Return the names that an ``__init__.py`` imports or defines."""
    nodes = list(ast.walk(_parsed(init)))
    imported = {
        alias.asname or alias.name for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names
    }
    return imported | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@dataclass(frozen=True)
class Counts:
    """What the ratchet holds."""

    files: int
    """In ``src/kappaplace``."""
    code_lines: int
    """In ``src/kappaplace``, without docstrings, comments and blank lines."""
    all_code_lines: int
    """The same over ``src``, ``benchmarks`` and ``recipes``."""
    wide_functions: int
    """Functions of the package with more than eight parameters."""
    any_lines: int
    """Lines of the package on which ``Any`` is used."""


def count(root: Path = ROOT) -> Counts:
    """Count the package, and the code lines of everything that the ratchet holds."""
    own = list(modules(root).values())
    everything = [path for folder in COUNTED for path in sorted((root / folder).rglob("*.py"))]
    trees = [_parsed(path) for path in own]
    return Counts(
        files=len(own),
        code_lines=sum(map(code_lines, own)),
        all_code_lines=sum(map(code_lines, everything)),
        wide_functions=sum(_width(node) > MOST_PARAMETERS for tree in trees for node in ast.walk(tree)),
        any_lines=sum(len(_any_lines(tree)) for tree in trees),
    )


def code_lines(path: Path) -> int:
    """Count the lines of a file that hold code: no docstrings, comments or blank lines."""
    tree = _parsed(path)
    texts = {line for node in ast.walk(tree) for line in _docstring_lines(node)}
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(number not in texts and bool(_code(line)) for number, line in lines)


def _code(line: str) -> str:
    text = line.strip()
    return "" if text.startswith("#") else text


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _docstring_lines(node: ast.AST) -> Iterator[int]:
    """Yield the lines of strings that stand alone: docstrings of modules, classes, functions and fields."""
    for part in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
        value = part.value if isinstance(part, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)


def _imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    tree = _parsed(path)
    top_level = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        for target in _targets(node, name, path):
            module = _longest(target, known)
            if module is not None and module != name:
                yield Import(name, module, id(node) not in top_level)


def _targets(node: ast.AST, name: str, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:  # relative: count up from the package that holds the module
            here = [PACKAGE, *name.split(".")] if name else [PACKAGE]
            up = here[: len(here) - node.level + (path.name == "__init__.py")]
            base = ".".join([*up, *([node.module] if node.module else [])])
        if base.split(".")[0] == PACKAGE:
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _longest(dotted: str, known: dict[str, Path]) -> str | None:
    parts = dotted.split(".")[1:]
    for length in range(len(parts), -1, -1):
        if (name := ".".join(parts[:length])) in known:
            return name
    return None


def _is_wrong(edge: Import) -> bool:
    importer, imported = home(edge.importer), home(edge.imported)
    if edge.importer in ("", "__main__") or importer == imported:
        return False
    if edge.imported == "":
        return True  # the package's front door: nothing inside goes through it
    first, second = layer_of(importer), layer_of(imported)
    if first is None or second is None:
        return True
    return second > first or (second == first and first > 0)


def _width(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    given = node.args
    return len(
        [a for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg not in ("self", "cls")]
    )


def _any_lines(tree: ast.Module) -> set[int]:
    uses = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any")
    return {node.lineno for node in uses}


def graph(edges: list[Import]) -> dict[str, list[str]]:
    """Return for each package the other packages that it imports, in the order of the layers."""
    order = [name for names in LAYERS for name in names]
    return {
        name: sorted(
            {home(e.imported) for e in edges if home(e.importer) == name} - {name, ""}, key=order.index
        )
        for name in order
    }


def page(root: Path = ROOT) -> str:
    """Return docs/architecture.md: the layers, the spine, and one line per module."""
    files = modules(root)
    tests = _tests(root)
    parts = [_HEAD, "```text", *_picture(), "```", _SPINE]
    bases = set(LAYERS[0]) | {"", "__main__", "client", "sharing"}
    for title, text, package in [("Base and top level", "", "")] + [
        (f"kappaplace.{name}", _sentence(files[name]), name)
        for names in LAYERS[1:]
        for name in names
        if files.get(name, root).name == "__init__.py"
    ]:
        own = [n for n in files if (home(n) == package if package else n in bases) and n != package]
        parts += [f"## {title}", *([text] if text else []), ""]
        parts += ["| module | contents | test |", "|---|---|---|"]
        parts += [f"| `{n}` | {_sentence(files[n])} | {_test_of(n, tests)} |" for n in own]
        parts += [""]
    return "\n".join(parts).rstrip() + "\n"


_PAGE = Path("docs") / "architecture.md"
_HEAD = """# Architecture

<!-- Written by `python -m tools.architecture --write`. -->

A package imports only packages of the lines above it. `slam`, `sharing`, `reports`, `serve` and `cli` use
the other packages only through the names that these export. `tests/test_architecture.py` checks both.
`kappaplace_city`, the synthetic city, is a package of its own next to `kappaplace`.
"""
_SPINE = """
One chain of functions does the work, and the packages hold its steps:

```text
PlaceImages                                 data           images with positions and roles
→ Encoder.embed → Embeddings                models         unit descriptors and κ
→ retrieve → Evidence                       retrieval      the k most similar references per query
→ score                                     uncertainty    uncertainty per query and per match
→ fit_calibration, judge → Calibration      calibration    probability; accept, doubtful or reject
→ PlaceMap.localize → Localization          maps           all of it over a map on disk
```

`evaluate`, `PlaceMap.calibrate` and loop closing in `slam` call the same functions with other references.
"""


def _picture() -> Iterator[str]:
    width = max(len(", ".join(names)) for names in LAYERS[1:])
    for number, names in enumerate(LAYERS):
        shown = ", ".join(name for name in names if not name.startswith("_"))
        yield f"{shown:^{width}}".rstrip() if number else shown
        if number < len(LAYERS) - 1:
            yield f"{'↑':^{width}}".rstrip()


def _sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, fit for a table."""
    text = (ast.get_docstring(_parsed(path)) or "").partition("\n\n")[0]
    first = re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]
    return first.replace("``", "`").replace("|", "\\|")


def _tests(root: Path) -> dict[str, str]:
    """Return the text of every test file by its path."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _test_of(module: str, tests: dict[str, str]) -> str:
    """Return the test of a module: the file of its name, or one that imports it, or those of its package."""
    package, _, name = module.rpartition(".")
    folder = f"tests/{home(module)}/" if package else "tests/"
    near = [path for path in tests if path.startswith(folder)]
    importing = rf"(?m)^\s*(from kappaplace\.{re.escape(module)} |import kappaplace\.{re.escape(module)}\b"
    importing += (
        rf"|from kappaplace{re.escape('.' * bool(package) + package)} import .*\b{re.escape(name)}\b)"
    )
    found = [path for path in near if Path(path).stem == f"test_{name.strip('_')}"]
    found += [path for path in (*near, *tests) if re.search(importing, tests[path])]
    found += [path for path in near if Path(path).stem == f"test_{package.rpartition('.')[2]}"]
    return f"`{[*found, folder][0]}`"


def main(arguments: list[str] | None = None) -> int:
    """Print the graph of packages, forbidden imports and the counts; or write or check the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="Write docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="Fail if docs/architecture.md is out of date.")
    options = parser.parse_args(arguments)
    file = ROOT / _PAGE
    if options.write:
        file.write_text(page(), encoding="utf-8")
        return 0
    if options.check:
        fresh = file.is_file() and file.read_text(encoding="utf-8") == page()
        if not fresh:
            print(f"{_PAGE} is out of date. Run: python -m tools.architecture --write", file=sys.stderr)
        return 0 if fresh else 1
    edges = imports()
    for name, used in graph(edges).items():
        print(f"{name:<12} {' '.join(used)}")
    for edge in wrong_way(edges):
        print("against the layers:", edge, "(lazy)" if edge.lazy else "")
    for first, second in lazy_cycles(edges):
        print(f"cycle: {first} <-> {second}")
    print(count())
    return 0


if __name__ == "__main__":
    sys.exit(main())
