"""Every name on the page Method exists, every recipe and score is known, every label has its table."""

from __future__ import annotations

import importlib
import re

import pytest

from kappaplace.training.recipes import RECIPES, settings_for
from kappaplace.uncertainty import SCORES, VARIANTS
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
ROOMS = (
    "vmf",
    "training",
    "models",
    "metrics",
    "data",
    "evaluation",
    "slam",
    "calibration",
    "uncertainty",
    "maps",
)
NAMES = sorted(set(re.findall(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)", PAGE)))


def resolve(name: str) -> object:
    """A module, or an attribute of the longest part of the name that is one."""
    parts = f"kappaplace.{name}".split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_names_resolve(name: str) -> None:
    assert resolve(name) is not None


def test_there_are_names_at_all() -> None:
    assert len(NAMES) > 15


def test_scores_and_recipes_are_known() -> None:
    for line in re.findall(r"^\|.*\| scores? (.+?) \|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`([a-z0-9-]+)`", line):
            assert name in {**SCORES, **VARIANTS}, name
    (table,) = re.findall(r"## Training\n(.*?)\n## ", PAGE, re.DOTALL)
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    recipes = set(re.findall(r"`([a-z-]+)`", " ".join(cells[2:])))
    assert recipes <= set(RECIPES)
    assert len(recipes) > 7


def test_settings_that_are_named_exist() -> None:
    named = sorted(set(re.findall(r"`((?:loss|model|classes|optimizer|stop|anchors)\.\w+=[^`\s]+)", PAGE)))
    assert named
    for option in named:
        settings_for("kappa-jt", options=[option])


def test_every_table_of_the_protocol_is_on_the_page() -> None:
    source = (ROOT / "src/kappaplace/evaluation/paper.toml").read_text(encoding="utf-8")
    labels = set(re.findall(r"\"((?:tab|fig):\w+)\"", source))
    assert labels
    shown = set(re.findall(r"`((?:tab|fig):\w+)`", PAGE))
    assert labels <= shown, labels - shown
