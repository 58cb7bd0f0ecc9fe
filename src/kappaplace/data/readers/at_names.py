"""Poses in file names: ``@utm_east@utm_north@…@.jpg``.

All fields: east, north, zone number, zone letter, latitude, longitude, panorama, tile, heading, pitch, roll,
height, time, note. Only the two coordinates are required.

SF-XL uses this convention, and so does the VPR downloader (Pitts30k, Tokyo 24/7, St Lucia, Nordland, SVOX,
MSLS, AmsterTime).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import join_zones
from kappaplace.data.readers.layout import Reader, check_folder, first_folder, images_or_error, unix_time
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.progress import track

_DATABASE = ("database", "gallery", "ref", "references")
_BANDS = "CDEFGHJKLMNPQRSTUVWX"  # latitude letters of UTM from south to north; N starts at the equator
_EAST, _NORTH, _ZONE, _LETTER, _HEADING, _TIME, _NOTE = 1, 2, 3, 4, 9, 13, 14


def read(
    folder: str | Path,
    *,
    split: str = "",
    queries: str = "",
    database: str = "",
    radius: float = DEFAULT_RADIUS,
) -> PlaceImages:
    """Read ``folder[/images][/split]/{database, queries…}``, or a plain folder of references.

    Args:
        folder: Folder of the dataset.
        split: train, val or test. Required if several exist.
        queries: Query folder: v1, v2, night, occlusion, …, with or without queries_. Required if several
            exist.
        database: Reference folder. Default: database, gallery, ref or references.
        radius: Distance in metres within which a reference is a positive. Default: 25.

    Returns:
        The table.
    """
    root = check_folder(folder)
    base = _split_folder(root, split)
    reference = first_folder(base, (database,) if database else _DATABASE)
    if reference is None and (queries or database):
        raise KappaPlaceError(
            f"{base} has no folder {database or 'database'}, only {_listing(base)}. "
            f"Name the folder with database=…."
        )
    parts = [(reference or base, False)]
    if reference is not None and (query := _query_folder(base, queries)) is not None:
        parts.append((query, True))
    paths, is_query = [], []
    for part, role in parts:
        head = "" if part == root else part.relative_to(root).as_posix() + "/"
        images = images_or_error(part)
        paths += [head + image for image in images]
        is_query += [role] * len(images)
    return _table(paths, is_query, root, radius)


def _split_folder(root: Path, split: str) -> Path:
    if split and root.name == split and first_folder(root, _DATABASE) is not None:
        return root
    for base in (root, root / "images"):
        if split and (base / split).is_dir():
            return base / split
        if not split and first_folder(base, _DATABASE) is not None:
            return base
    splits = [s for b in (root, root / "images") for s in ("train", "val", "test") if (b / s).is_dir()]
    if split or splits:
        problem = f"has no split {split!r}" if split else "contains several splits"
        raise KappaPlaceError(f"{root} {problem}. Choose one of {', '.join(splits) or 'none'} with split=….")
    return root


def _query_folder(base: Path, name: str) -> Path | None:
    if name:
        for candidate in (name, f"queries_{name}"):
            if (base / candidate).is_dir():
                return base / candidate
        raise KappaPlaceError(
            f"{base} has no query folder {name!r}, only {_listing(base)}. Choose one with queries=…."
        )
    folders = sorted(p for p in base.iterdir() if p.is_dir() and p.name.startswith(("queries", "query")))
    if len(folders) > 1:
        names = ", ".join(p.name for p in folders)
        raise KappaPlaceError(f"{base} has several query folders ({names}). Choose one with queries=….")
    return folders[0] if folders else None


def _listing(folder: Path) -> str:
    return ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir())) or "no folder"


def _table(paths: list[str], is_query: list[bool], root: Path, radius: float) -> PlaceImages:
    n = len(paths)
    positions = np.empty((n, 2))
    zones = np.zeros(n, dtype=np.int64)
    heading, timestamp = np.full(n, np.nan), np.full(n, np.nan)
    notes = []
    with track("Reading file names", n) as bar:
        for row, path in enumerate(paths):
            cells = path.rpartition("/")[2].split("@")
            try:
                positions[row] = float(cells[_EAST]), float(cells[_NORTH])
                zones[row] = _epsg(cells)
                heading[row] = float(cells[_HEADING] or "nan") if len(cells) > _HEADING + 1 else np.nan
            except (IndexError, ValueError):
                raise KappaPlaceError(
                    f"{root / path} does not follow the @utm_east@utm_north@…@.jpg convention. "
                    "Use the layout csv for poses in a CSV file."
                ) from None
            timestamp[row] = unix_time(cells[_TIME]) if len(cells) > _TIME + 1 else np.nan
            notes.append(cells[_NOTE] if len(cells) > _NOTE + 1 else "")
            if row % 4096 == 0:
                bar.advance(min(4096, n - row))
    _check_zones(zones, paths, root)
    joined, frame = join_zones(positions, zones)
    return PlaceImages.create(
        paths,
        joined,
        heading=heading,
        timestamp=timestamp,
        condition=np.array(notes, dtype=np.dtypes.StringDType()),
        is_query=is_query,
        root=root,
        frame=frame,
        name=root.name,
        radius=radius,
    )


def _epsg(cells: list[str]) -> int:
    """Return the EPSG code of zone number and latitude letter; 0 if the name has none."""
    if len(cells) <= _LETTER + 1 or not cells[_ZONE] or not cells[_LETTER]:
        return 0
    zone, letter = int(cells[_ZONE]), cells[_LETTER].upper()
    if not 1 <= zone <= 60 or len(letter) != 1 or letter not in _BANDS:
        raise KappaPlaceError(
            f"{'@'.join(cells)} has the UTM zone {cells[_ZONE]}{cells[_LETTER]}, which does not exist. "
            "Zones are 1 to 60 with a letter from C to X."
        )
    return (32600 if letter >= "N" else 32700) + zone


def _check_zones(zones: NDArray[np.int64], paths: list[str], root: Path) -> None:
    """Fail if only some images have a zone: the others would be treated as positions in the same zone."""
    if zones.any() and not zones.all():
        without = paths[int(np.argmin(zones))]
        raise KappaPlaceError(
            f"{root / without} has no UTM zone but {int((zones > 0).sum()):,} of {len(paths):,} do. "
            "Add the zone to all names, or to none."
        )


READER = Reader(
    "at-names",
    "poses in file names, @utm_east@utm_north@…@.jpg, in SPLIT/{database, queries…} (SF-XL, VPR downloader)",
    read,
)
