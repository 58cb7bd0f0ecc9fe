"""What is drawn on the map of a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.geodesy import project
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.reports import ground as module
from kappaplace.reports.ground import map_view
from kappaplace.reports.ground import write_table_map as show


def town(n: int = 200) -> PlaceImages:
    rng = np.random.default_rng(0)
    positions = rng.uniform(0, 300, (n, 2))
    positions[:3] = np.nan
    names = [f"<b>&{i}</script>.jpg" for i in range(n)]
    return PlaceImages.create(names, positions, is_query=np.arange(n) % 4 == 0, name="<town>")


@pytest.mark.parametrize("case", ["posed", "unposed", "no queries"])
def test_maps_of_every_kind(tmp_path, case):
    table = town()
    if case == "unposed":
        lists = [[i, i + 1] if i else [] for i in range(5)]
        table = PlaceImages.create(
            [str(i) for i in range(15)],
            is_query=[False] * 10 + [True] * 5,
            given_positives=Positives.from_lists(lists, 10),
        )
    if case == "no queries":
        table = table.references
    file = tmp_path / "deep" / "map.png"
    view = show(table, file)
    with Image.open(file) as image:
        assert image.size == (1430, 910)
    # The legend names what is drawn: pairs for a set without positions, no queries where there are none.
    legend = {"posed": ["reference", "line", "found", "lost"], "unposed": ["found", "lost"]}
    assert list(view.labels) == legend.get(case, ["reference"])


def test_view_tells_coverage(monkeypatch):
    view = map_view(town())
    (panel,) = view.panels
    assert panel.queries.shape[1] == 2
    assert len(panel.covered) == len(panel.queries) == 49  # one query is unposed
    assert "50 queries, 150 references" in view.sentence
    lengths = np.hypot(*(panel.lines[:, :2] - panel.lines[:, 2:]).T)
    assert lengths.max() <= 25
    assert view.labels["line"] == f"lines to positives ({len(panel.lines)})"
    assert view.labels["reference"] == "references (148 of 150 drawn)"  # two are unposed
    monkeypatch.setattr(module, "MAX_POINTS", 10)
    monkeypatch.setattr(module, "MAX_LINES", 5)
    thin = map_view(town())
    (few,) = thin.panels
    assert (len(few.references), len(few.queries), len(few.lines)) == (10, 10, 5)
    assert np.array_equal(few.lines, map_view(town()).panels[0].lines)
    assert thin.labels["line"] == f"lines to positives (5 of {len(panel.lines)} drawn)"
    assert thin.labels["reference"] == "references (10 of 150 drawn)"


def test_every_zone_has_its_panel(tmp_path):
    at = np.arange(90) % 3
    lat = np.array([51.4779, 42.36, -16.8])[at] + np.arange(90) * 1e-5
    lon = np.array([0.0, -71.06, 180.0])[at]
    positions, frame = project(lat, lon)
    table = PlaceImages.create(
        [str(i) for i in range(90)], positions, frame=frame, is_query=np.arange(90) % 2 == 0, name="world"
    )
    view = map_view(table)
    assert [panel.name for panel in view.panels] == frame.split(",")
    assert sum(len(panel.references) for panel in view.panels) == 45
    for panel in view.panels:
        drawn = np.concatenate([panel.references, panel.queries, panel.lines[:, 2:]])
        assert np.ptp(drawn, axis=0).max() < 200
        assert len(panel.lines)
    covered = np.concatenate([panel.covered for panel in view.panels])
    assert int(covered.sum()) == int((table.positives().counts > 0).sum())
    assert view.title == "world · 3 zones"
    show(table, tmp_path / "map.png")


def test_title_and_sentence_say_nothing_twice_or_wrong():
    table = replace(town(), name="pitts30k-test", protocol="pitts30k-test")
    assert map_view(table).title == "pitts30k-test · local"
    assert map_view(table.references).sentence == "no queries, 150 references, 2 images without a position"


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(KappaPlaceError, match=r"must be a \.png file"):
        show(town(), tmp_path / "map.pdf")
