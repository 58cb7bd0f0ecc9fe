"""The list of licences names every model and backbone of the registries, with the licence they state."""

from __future__ import annotations

from pathlib import Path

from kappaplace.models.backbones import BACKBONES
from kappaplace.models.published import HUB
from kappaplace.models.shipped import SHIPPED

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (Path(__file__).parents[2] / "docs" / "licences.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
STATED = {name.strip("`"): row[1:] for row in ROWS for name in row[0].split(", ")}


def test_every_model_and_backbone_is_listed() -> None:
    assert set(STATED) == {*HUB, *BACKBONES, *SHIPPED}


def test_licences_are_those_of_the_registries() -> None:
    for name, model in HUB.items():
        assert STATED[name][0] == model.licence, name
        assert (STATED[name][2] == "its authors'") == (model.kind == "torch.hub"), name
        assert STATED[name][1] in model.where, name
    for name, spec in BACKBONES.items():
        assert STATED[name][0] == spec.licence, name
