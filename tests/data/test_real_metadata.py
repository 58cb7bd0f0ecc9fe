"""The readers on real files, where KAPPAPLACE_DATA points to a folder that holds them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kappaplace.data.geodesy import unproject
from kappaplace.data.protocols import read_protocol
from kappaplace.data.readers import read_layout

DATA = Path(os.environ.get("KAPPAPLACE_DATA", "/nonexistent"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="KAPPAPLACE_DATA points to no folder")

GT_JSON = {
    "st_lucia": (1316, 1261, "frames:5"),
    "nordland_winter_summer": (1622, 1622, "frames:2"),
    "sped": (607, 607, "self"),
    "gp_dayleft_dayright": (200, 200, "frames:2"),
    "gp_nightright_dayleft": (200, 200, "frames:2"),
    "essex3in1": (210, 210, "self"),
    "berlin_kudamm": (222, 201, "frames:2"),
}
PITTS = {
    "pitts30k_train": (7416, 10000),
    "pitts30k_val": (7608, 10000),
    "pitts30k_test": (6816, 10000),
    "pitts250k_train": (7824, 91464),
    "pitts250k_val": (7608, 78648),
    "pitts250k_test": (8280, 83952),
}


def folder(*names: str) -> Path:
    place = DATA.joinpath(*names)
    if not place.exists():
        pytest.skip(f"{place} is not there")
    return place


@pytest.mark.parametrize("name", GT_JSON)
def test_gt_json(name):
    queries, references, near = GT_JSON[name]
    table = read_layout("gt-json", folder(name))
    assert (len(table.query_rows), len(table.reference_rows), str(table.neighborhood)) == (
        queries,
        references,
        near,
    )
    assert (table.positives().counts > 0).all()
    assert all(Path(path).is_file() for path in table.image_paths())


@pytest.mark.parametrize("name", PITTS)
def test_pitts_mat(name):
    table = read_layout("pitts-mat", folder("metadata", "pitts_mat"), mat=f"{name}.mat")
    assert (len(table.query_rows), len(table.reference_rows)) == PITTS[name]
    assert (table.positives().counts > 0).all()
    lat, lon = unproject(table.positions, table.frame)  # the zone is ours to know: it must be Pittsburgh
    assert np.abs(lat - 40.44).max() < 0.05
    assert np.abs(lon + 79.99).max() < 0.08


def test_verified_protocols():
    for name, place in (("pitts30k-test", "pitts_mat"), ("amstertime", "amstertime")):
        table, check = read_protocol(name, folder("metadata", place))
        assert table.protocol == name
        assert check.warnings == ()


def test_amstertime_test_list():
    table = read_layout("amstertime-csv", folder("metadata", "amstertime"), split="test")
    assert len(table.query_rows) == len(table.reference_rows) == 247


def test_tmbud_columns_are_guessed():
    asked: list[str] = []
    table = read_layout("csv", folder("tmbud"), ask=lambda words: not asked.append(words))
    assert len(table) == 1358
    assert "2 rows repeat an image" in asked[0]
    assert len(np.unique(table.place)) == 133
    assert table.posed.all()
    assert table.frame == "EPSG:32634"
