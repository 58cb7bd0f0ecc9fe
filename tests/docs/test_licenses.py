"""The list of licences names every model and backbone of the registries, with the licence they state."""

from __future__ import annotations

from pathlib import Path

from kappaplace.models.backbones import BACKBONES
from kappaplace.models.registry import HUB
from kappaplace.models.shipped import SHIPPED

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (Path(__file__).parents[2] / "docs" / "about.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
STATED = {name.strip("`"): row[1:] for row in ROWS for name in row[0].split(", ")}


def test_every_model_and_backbone_is_listed() -> None:
    assert set(STATED) == {*HUB, *BACKBONES, *SHIPPED}


def test_licenses_are_those_of_the_registries() -> None:
    for name, model in HUB.items():
        assert STATED[name][0] == model.license, name
        runs = {"torch.hub": "its authors'", "timm": "timm's"}.get(model.kind, "ours")
        assert STATED[name][2] == runs, name
        assert STATED[name][1] in model.location, name
    for name, spec in BACKBONES.items():
        assert STATED[name][0] == spec.license, name
