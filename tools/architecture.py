"""The house in figures: which module imports which, and how much code there is.

python -m tools.architecture      # imports against the layers, and the counts of the ratchet
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "kappaplace"
LAYERS = (
    ("errors", "types", "version", "files", "records", "checks", "progress", "_moved"),
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


def main() -> None:
    """Print the imports that point the wrong way, the lazy cycles and the counts."""
    edges = imports()
    for edge in wrong_way(edges):
        print(edge, "(lazy)" if edge.lazy else "")
    for first, second in lazy_cycles(edges):
        print(f"{first} <-> {second}")
    print(count())


if __name__ == "__main__":
    main()
