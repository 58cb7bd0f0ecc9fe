"""Maps: what is drawn, as PNG and as HTML."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

from kappaplace.data import show as module
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import Positives
from kappaplace.data.show import map_view, show
from kappaplace.errors import KappaPlaceError


def town(n: int = 200) -> PlaceImages:
    rng = np.random.default_rng(0)
    positions = rng.uniform(0, 300, (n, 2))
    positions[:3] = np.nan
    names = [f"<b>&{i}</script>.jpg" for i in range(n)]
    return PlaceImages.create(names, positions, is_query=np.arange(n) % 4 == 0, name="<town>")


@pytest.mark.parametrize("case", ["posed", "unposed", "no queries"])
@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_maps_of_every_kind(tmp_path, case, suffix):
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
    file = tmp_path / "deep" / f"map{suffix}"
    show(table, file)
    if suffix == ".png":
        with Image.open(file) as image:
            assert image.size == (1430, 910)
    else:
        page = file.read_text(encoding="utf-8")
        assert "http" not in page.replace("http-equiv", "")  # needs nothing from elsewhere
        text = re.search(r'id="data">(.*?)</script>', page, re.S)[1]
        data = json.loads(text)
        assert len(data["names"]) == 2
        assert "<town>" not in page


def test_view_tells_coverage(monkeypatch):
    view = map_view(town())
    assert view.queries.shape[1] == 2
    assert len(view.covered) == len(view.queries) == 49  # one query is unposed
    assert "50 queries, 150 references" in view.sentence
    lengths = np.hypot(*(view.lines[:, :2] - view.lines[:, 2:]).T)
    assert lengths.max() <= 25
    monkeypatch.setattr(module, "MAX_POINTS", 10)
    monkeypatch.setattr(module, "MAX_LINES", 5)
    thin = map_view(town())
    assert (len(thin.references), len(thin.queries), len(thin.lines)) == (10, 10, 5)
    assert np.array_equal(thin.lines, map_view(town()).lines)


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(KappaPlaceError, match=r"neither \.png nor \.html"):
        show(town(), tmp_path / "map.pdf")
