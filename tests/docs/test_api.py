"""The API reference has exactly what the packages export, and pages import public names only."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from docs.reference import pages
from tools.architecture import deep_imports

import kappaplace
from tests.docs.markdown import ROOT, blocks

API = (ROOT / "docs/api.md").read_text(encoding="utf-8")
SECTIONS = {
    module: re.findall(r"- (\w+)", names)
    for text in pages().values()
    for module, names in re.findall(r"^::: (\S+)\n    options:\n      members:\n((?: +- \w+\n)+)", text, re.M)
}
PACKAGES = [
    f"kappaplace.{path.parent.name}" for path in Path(kappaplace.__file__).parent.glob("*/__init__.py")
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "kappaplace.cli"])
def test_every_exported_name_is_documented(package: str) -> None:
    assert sorted(SECTIONS[package]) == sorted(import_module(package).__all__)


def test_every_documented_name_exists() -> None:
    for module, names in SECTIONS.items():
        for name in names:
            assert getattr(import_module(module), name) is not None


def test_the_table_lists_the_names_of_kappaplace() -> None:
    rows = dict(re.findall(r"^\| \[?`(\w+)`\]?(?:\[([\w.]+)\])? \|", API, re.M))
    assert set(rows) == set(kappaplace.__all__)
    for name, target in rows.items():
        module, _, last = target.rpartition(".")
        if target and target not in SECTIONS:
            assert last in SECTIONS[module], target
            assert getattr(import_module(module), last) is getattr(kappaplace, name)


def sources(page: Path) -> list[str]:
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [page.read_text(encoding="utf-8")] if page.suffix == ".py" else blocks(page)


def new_module(source: str) -> bool:
    """Whether a block is a template: a module to be added inside the package."""
    return source.startswith("# src/kappaplace/")


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS, *SCRIPTS], ids=lambda page: page.name)
def test_pages_import_public_names_only(page: Path) -> None:
    assert not [name for text in sources(page) if not new_module(text) for name in deep_imports(text)]


def test_the_check_itself_can_fail() -> None:
    assert sum(map(new_module, sources(ROOT / "CONTRIBUTING.md"))) == 5
    assert deep_imports("from kappaplace.data.table import PlaceImages") == ["data.table"]
    assert len(NOTEBOOKS) == 3
    assert SCRIPTS
