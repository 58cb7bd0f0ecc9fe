"""Mapillary Street-Level Sequences as downloaded: ``train_val/CITY/{query, database}`` with CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import choice
from kappaplace.data.geodesy import (
    ZONE_SHIFT,
    circular_median,
    frame_codes,
    join_zones,
    project,
    utm_epsg,
    zone_index,
)
from kappaplace.data.readers.layout import Reader, Row, check_folder, number, read_rows, unix_time
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError

CITIES = {
    "val": ("cph", "sf"),
    "train": (
        *("trondheim", "london", "boston", "melbourne", "amsterdam", "helsinki", "tokyo", "toronto"),
        *("saopaulo", "moscow", "zurich", "paris", "bangkok", "budapest", "austin", "berlin", "ottawa"),
        *("phoenix", "goa", "amman", "nairobi", "manila"),
    ),
    "test": ("miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala"),
}


class _Columns(NamedTuple):
    """Columns of one city's queries or references."""

    paths: NDArray[np.str_]
    positions: NDArray[np.float64]
    zone: NDArray[np.int64]
    heading: NDArray[np.float64]
    timestamp: NDArray[np.float64]
    condition: NDArray[np.str_]
    is_query: NDArray[np.bool_]
    frame_number: NDArray[np.float64]


def read(
    folder: str | Path,
    *,
    cities: str = "val",
    queries: str = "all",
    subtask: str = "all",
    radius: float = DEFAULT_RADIUS,
) -> PlaceImages:
    """Read one or more cities, without panoramas, as in every published evaluation.

    Args:
        folder: Folder of the dataset.
        cities: val, train, test, or names separated by commas. Default: val.
        queries: all, or subtask for the images that the column subtask marks and their queries with a
            positive: in the two validation cities, the 740 queries of most papers. Default: all.
        subtask: Column of subtask_index.csv: all, s2w, w2s, o2n, n2o, d2n or n2d. Default: all.
        radius: Distance in metres within which a reference is a positive. Default: 25.

    Returns:
        The table.
    """
    root = check_folder(folder)
    choice(queries, ("all", "subtask"), "selection of queries")
    parts = []
    for city in CITIES.get(cities) or tuple(cities.split(",")):
        city_folder = _city_folder(root, city)
        for role in ("database", "query"):
            parts.append(_read_role(city_folder / role, root, city, subtask if queries == "subtask" else ""))
    columns = _Columns(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    positions, frame = join_zones(columns.positions, columns.zone)
    table = PlaceImages.create(
        columns.paths,
        positions,
        heading=columns.heading,
        timestamp=columns.timestamp,
        condition=columns.condition,
        is_query=columns.is_query,
        frame_number=_frame_numbers(columns.frame_number),
        root=root,
        frame=frame,
        name=f"msls-{cities}",
        radius=radius,
    )
    if queries == "subtask" and table.posed.any():
        keep = np.ones(len(table), dtype=bool)
        keep[table.query_rows] = table.positives().counts > 0
        table = table.select(np.flatnonzero(keep))
    return table


def _frame_numbers(frames: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return frame numbers; None if no city has seq_info.csv. Other cities without it get the file order."""
    finite = np.isfinite(frames)
    return np.where(finite, frames, np.arange(len(frames))).astype(np.int64) if finite.any() else None


def _city_folder(root: Path, city: str) -> Path:
    for base in (root / "train_val", root / "test", root):
        if (base / city).is_dir():
            return base / city
    raise KappaPlaceError(
        f"{root} contains no city {city!r}, neither in train_val/ nor in test/. Check its name."
    )


def _read_role(folder: Path, root: Path, city: str, subtask: str) -> _Columns:
    """Read one city's queries or references; the rows of all its CSV files correspond."""
    # Only the test cities are published without poses; elsewhere a missing raw.csv is a broken download.
    posed = "test" not in folder.relative_to(root).parts[:-2] and city not in CITIES["test"]
    posed = posed or (folder / "raw.csv").is_file()
    index = read_rows(folder / "subtask_index.csv") if subtask or not posed else []
    raw = read_rows(folder / "raw.csv", ("key", "lon", "lat", "pano")) if posed else index
    post = read_rows(folder / "postprocessed.csv", ("key",)) if posed else index
    sequence = read_rows(folder / "seq_info.csv") if (folder / "seq_info.csv").is_file() else []
    for other in (post, sequence, index):
        if other and len(other) != len(raw):
            raise KappaPlaceError(
                f"CSV files in {folder} must have the same number of rows, got {len(raw)} and {len(other)}. "
                "Download them again."
            )
    keep = np.array([row.get("pano") != "True" for row in raw], dtype=bool)
    if subtask:
        if index and subtask not in index[0]:
            raise KappaPlaceError(
                f"{folder}/subtask_index.csv has no subtask {subtask!r}. Choose one of its columns."
            )
        keep &= np.array([row[subtask] == "True" for row in index], dtype=bool)
    rows = np.flatnonzero(keep)
    positions, zone = _positions(raw, post, posed)
    head = folder.relative_to(root).as_posix() + "/images/"
    conditions = [_condition(city, post[i], sequence[i] if sequence else {}) for i in rows]
    frames = [number(sequence[i].get("frame_number")) if sequence else np.nan for i in rows]
    return _Columns(
        paths=np.array([f"{head}{raw[i]['key']}.jpg" for i in rows], dtype=np.dtypes.StringDType()),
        positions=positions[rows],
        zone=zone[rows],
        heading=np.array([number(raw[i].get("ca")) for i in rows]),
        timestamp=np.array([unix_time(raw[i].get("captured_at", "")) for i in rows]),
        condition=np.array(conditions, dtype=np.dtypes.StringDType()),
        is_query=np.full(len(rows), folder.name == "query"),
        frame_number=np.array(frames, dtype=np.float64),
    )


def _positions(raw: list[Row], post: list[Row], posed: bool) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if not posed or not raw:
        return np.full((len(raw), 2), np.nan), np.zeros(len(raw), dtype=np.int64)
    lat = np.array([number(row["lat"]) for row in raw])
    lon = np.array([number(row["lon"]) for row in raw])
    if "easting" in post[0]:
        positions = np.array([[number(row["easting"]), number(row["northing"])] for row in post])
        finite = np.isfinite(lat) & np.isfinite(lon)
        zone = int(utm_epsg(np.median(lat[finite]), circular_median(lon[finite]))) if finite.any() else 0
        return positions, np.full(len(raw), zone)
    positions, frame = project(lat, lon)
    at = zone_index(positions, frame)
    codes = np.array((*frame_codes(frame), 0), dtype=np.int64)  # the last is for images without a position
    positions[:, 0] -= np.maximum(at, 0) * ZONE_SHIFT
    return positions, codes[at]


def _condition(city: str, row: Row, sequence: dict[str, str]) -> str:
    """Return city, light and sequence: a sequence is a drive, with its own frame numbers."""
    light = "" if "night" not in row else "night" if row["night"] == "True" else "day"
    return " ".join(part for part in (city, light, sequence.get("sequence_key", "")) if part)


READER = Reader(
    "msls", "Mapillary SLS: train_val/CITY/{query, database}/{raw, postprocessed, …}.csv and images/", read
)
