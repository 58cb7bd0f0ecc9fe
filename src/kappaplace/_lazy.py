"""Names that a package loads on first use, so that importing the package stays quick."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy_exports(package: str, file: str) -> tuple[list[str], Callable[[str], object]]:
    """Read the exports of a package from the imports in the ``if TYPE_CHECKING:`` block of its ``__init__``.

    So every name is listed once: type checkers follow these imports, and at run time each of them happens
    when its name is first used.

    Args:
        package: Name of the package.
        file: Its ``__init__.py``.

    Returns:
        ``__all__`` and ``__getattr__`` of the package.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    homes = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def export(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        if module == package:  # a module of the package
            return import_module(f"{package}.{original}")
        return getattr(import_module(module), original)

    return sorted(homes), export
