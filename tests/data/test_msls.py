"""Mapillary SLS: sequences are kept, and a broken download names its missing file."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.data.near import Neighborhood
from kappaplace.data.readers import read_layout
from kappaplace.data.split import find_sessions
from kappaplace.errors import KappaPlaceError


def write_csv(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def city(root: Path, *, lon: float = 12.57, lat: float = 55.68, easting: bool = True) -> None:
    """Two sequences of four frames each, numbered from 0, for the queries and for the references."""
    for role in ("database", "query"):
        folder = root / "train_val" / "cph" / role
        keys = [f"{role}{i}" for i in range(8)]
        lons = [lon + 1e-4 * (-1) ** i for i in range(8)]
        raw = [
            {"key": k, "lon": x, "lat": lat, "ca": 0, "pano": False} for k, x in zip(keys, lons, strict=True)
        ]
        post: list[dict[str, object]] = [{"key": k, "night": False} for k in keys]
        if easting:
            post = [row | {"easting": 347000.0, "northing": 6172000.0} for row in post]
        order = [
            {"key": k, "sequence_key": f"{role[0]}{i // 4}", "frame_number": i % 4}
            for i, k in enumerate(keys)
        ]
        for name, rows in (("raw", raw), ("postprocessed", post), ("seq_info", order)):
            write_csv(folder / f"{name}.csv", rows)


def test_sequences_are_sessions_and_routes(tmp_path):
    city(tmp_path)
    table = read_layout("msls", tmp_path, cities="cph")
    assert set(table.condition.tolist()) == {"cph day d0", "cph day d1", "cph day q0", "cph day q1"}
    pairs = set(zip(table.condition.tolist(), table.frame_numbers().tolist(), strict=True))
    assert len(pairs) == len(table)  # a frame number never repeats within a condition
    sessions = find_sessions(table)
    assert (sessions.source, len(sessions)) == ("condition", 4)
    by_frames = replace(table, neighborhood=Neighborhood("frames", 1))
    assert by_frames.near(3).tolist() == [2, 3]  # the last of its sequence is not near the next one's first
    assert by_frames.near(4).tolist() == [4, 5]


def test_a_city_without_raw_csv_names_that_file(tmp_path):
    city(tmp_path)
    (tmp_path / "train_val" / "cph" / "query" / "raw.csv").unlink()
    with pytest.raises(KappaPlaceError, match=r"cph/query/raw\.csv is missing"):
        read_layout("msls", tmp_path, cities="cph")


@pytest.mark.parametrize("lon", [6.0, 180.0])
def test_a_city_on_a_zone_border_stays_whole(tmp_path, lon):
    city(tmp_path, lon=lon, easting=False)
    table = read_layout("msls", tmp_path, cities="cph")
    assert "," not in table.frame
    assert np.ptp(table.positions, axis=0).max() < 25
    assert (table.positives().counts == 8).all()
