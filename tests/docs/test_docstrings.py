"""Everything that a package exports explains its arguments: `Args:`, `Returns:` and `Raises:`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kappaplace

PACKAGES = [path.parent.name for path in Path(kappaplace.__file__).parent.glob("*/__init__.py")]
MODULES = ["kappaplace_city", *(f"kappaplace.{name}" for name in ["client", "sharing", *sorted(PACKAGES)])]
LEAST = 3
"""A function with fewer parameters may explain them in its first sentence."""


def problems(function: Callable[..., Any], doc: str) -> list[str]:
    """Return what the docstring of a function lacks."""
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls") and name[0] != "_"]
    if len(names) < LEAST:
        return []
    lacks = [name for name in names if not re.search(rf"^ +\**{name}(, \w+)*( \(.*\))?:", doc, re.M)]
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if returns and not re.search(r"^(Returns|Yields):$", doc, re.M):
        lacks.append("Returns:")
    if re.search(r"^\s+raise [A-Z]", inspect.getsource(function), re.M) and "\nRaises:\n" not in doc:
        lacks.append("Raises:")
    return lacks


def exported(module: str) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield the exported functions of a module and the methods of its classes, with their docstrings."""
    names = import_module(module)
    for name in getattr(names, "__all__", vars(names)):
        each = getattr(names, name)
        if name[0] == "_" or not str(getattr(each, "__module__", "")).startswith("kappaplace"):
            continue
        if inspect.isfunction(each):
            yield f"{module}.{name}", inspect.unwrap(each), inspect.getdoc(each) or ""
        if not inspect.isclass(each):
            continue
        for key, value in vars(each).items():
            method = inspect.unwrap(getattr(value, "__func__", value))
            if key == "__init__" and inspect.isfunction(method) and not dataclasses.is_dataclass(each):
                yield f"{module}.{name}", method, f"{inspect.getdoc(each)}\n{inspect.getdoc(method)}"
            elif key[0] != "_" and inspect.isfunction(method):
                yield f"{module}.{name}.{key}", method, inspect.getdoc(method) or ""


@pytest.mark.parametrize("module", MODULES)
def test_arguments_are_documented(module: str) -> None:
    missing = {name: lacks for name, method, doc in exported(module) if (lacks := problems(method, doc))}
    assert not missing


def test_the_check_finds_what_is_missing() -> None:
    def close(a: int, b: int, c: int) -> bool:
        """Compare.

        Args:
            a: One number.
            b, c: Two more.
        """
        if a:
            raise ValueError
        return bool(b + c)

    assert problems(close, inspect.getdoc(close) or "") == ["c", "Returns:", "Raises:"]
    assert problems(close, "") == ["a", "b", "c", "Returns:", "Raises:"]
    assert sum(1 for module in MODULES for _ in exported(module)) > 300
