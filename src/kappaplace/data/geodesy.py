"""Latitude and longitude to metres and back, through pyproj.

A collection lies in one UTM zone, named in its frame ("EPSG:32610"). A collection that spans the globe has
several ("EPSG:32610,EPSG:32633"): zone number k of that list is moved east by k × 10,000 km, so that
distances within a zone stay true and two images of different zones are never near each other. Images that
lie near each other are therefore always given the same zone, whatever borders run between them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.errors import KappaPlaceError

LOCAL_FRAME = "local"  # metres in a frame of the collection's own, which lies nowhere on Earth
ZONE_SHIFT = 10_000_000.0  # metres between the zones of one table: farther than any zone is wide
FALSE_EASTING = 500_000.0  # where UTM puts its central meridian
# A collection this close to a central meridian stays in one zone (scale error < 0.6 %), and so does a chain
# of near images twice as long (< 2.2 %: a radius of 25 m is off by half a metre, not by 10,000 km).
ONE_ZONE_DEGREES, ONE_CHAIN_DEGREES = 6.0, 12.0
CELL_DEGREES = 0.25  # images in touching cells are chained; others are at least 2.9 km apart (at 84°)
_FRAME = re.compile(r"EPSG:(\d{4,6})")


def frame_codes(frame: str) -> tuple[int, ...]:
    """EPSG codes that a frame names, none for a local one; any other text is an error.

    >>> frame_codes("EPSG:32610,EPSG:32633"), frame_codes("local")
    ((32610, 32633), ())
    """
    if frame == LOCAL_FRAME:
        return ()
    found = [_FRAME.fullmatch(part) for part in frame.split(",")]
    codes = tuple(int(match[1]) for match in found if match)
    if len(codes) != len(found):
        raise KappaPlaceError(
            f"Frame {frame!r} is unknown: write local, EPSG:32632, or several as EPSG:32610,EPSG:32633."
        )
    return codes


def utm_epsg(latitude: ArrayLike, longitude: ArrayLike) -> NDArray[np.int64]:
    """EPSG code of the UTM zone of each point (WGS 84).

    >>> utm_epsg([37.77, -33.9], [-122.42, 151.2]).tolist()
    [32610, 32756]
    """
    lat, lon = np.asarray(latitude, dtype=float), np.asarray(longitude, dtype=float)
    zone = np.floor((np.mod(lon + 180.0, 360.0)) / 6.0).astype(np.int64) + 1
    return np.where(lat >= 0, 32600, 32700) + zone


def project(latitude: ArrayLike, longitude: ArrayLike) -> tuple[NDArray[np.float64], str]:
    """Degrees → metres (N×2, east and north) and the frame they are in; NaN stays NaN.

    One zone is chosen for the whole collection where it reaches, else one for each cluster of near images,
    so that a city on a zone border stays whole.
    """
    lat, lon = np.asarray(latitude, dtype=np.float64), np.asarray(longitude, dtype=np.float64)
    zones = _choose_zones(lat, lon)
    positions = np.full((len(lat), 2), np.nan)
    codes = sorted({int(zone) for zone in np.unique(zones) if zone})
    for number, zone in enumerate(codes):
        rows = zones == zone
        east, north = _transformer(4326, zone).transform(lon[rows], lat[rows])
        positions[rows] = np.column_stack([np.asarray(east) + number * ZONE_SHIFT, north])
    return positions, ",".join(f"EPSG:{zone}" for zone in codes) or LOCAL_FRAME


def join_zones(positions: NDArray[np.float64], zones: NDArray[np.int64]) -> tuple[NDArray[np.float64], str]:
    """Coordinates that came with a UTM zone each (EPSG code, 0 = unknown) → one frame.

    Zones are chosen anew as `project` does: images near each other share one, whatever zones they came in.
    Coordinates that need not move are kept to the last bit.
    """
    present = sorted({int(zone) for zone in np.unique(zones) if zone})
    if len(present) <= 1:
        return positions, f"EPSG:{present[0]}" if present else LOCAL_FRAME
    lost = int(((zones == 0) & np.isfinite(positions[:, 0])).sum())
    if lost:
        raise KappaPlaceError(
            f"{lost:,} images have coordinates without a UTM zone while others lie in {len(present)} zones: "
            "where they belong cannot be told; give every image its zone."
        )
    lat, lon = np.full(len(positions), np.nan), np.full(len(positions), np.nan)
    for zone in present:
        rows = zones == zone
        lon[rows], lat[rows] = _transformer(zone, 4326).transform(positions[rows, 0], positions[rows, 1])
    joined, frame = project(lat, lon)
    number = zone_index(joined, frame)
    for k, code in enumerate(frame_codes(frame)):  # exact where nothing had to move
        rows = (zones == code) & (number == k)
        joined[rows] = positions[rows] + [k * ZONE_SHIFT, 0.0]
    return joined, frame


def zone_index(positions: NDArray[np.float64], frame: str) -> NDArray[np.int64]:
    """Which zone of a frame each position lies in, 0 for the first; −1 where there is no position."""
    known = np.isfinite(positions[:, 0])
    number = np.where(known, 0, -1)
    if len(frame_codes(frame)) > 1:
        number[known] = np.rint((positions[known, 0] - FALSE_EASTING) / ZONE_SHIFT).astype(np.int64)
    return number


def unproject(positions: NDArray[np.float64], frame: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Metres of a frame → latitude and longitude; all NaN for a local frame, which lies nowhere on Earth."""
    lat, lon = np.full(len(positions), np.nan), np.full(len(positions), np.nan)
    number = zone_index(positions, frame)
    for k, code in enumerate(frame_codes(frame)):
        rows = number == k
        east = positions[rows, 0] - k * ZONE_SHIFT
        lon[rows], lat[rows] = _transformer(code, 4326).transform(east, positions[rows, 1])
    return lat, lon


def project_point(latitude: float, longitude: float, frame: str) -> tuple[float, float]:
    """Return x and y of a point in a frame that exists, in its nearest zone.

    >>> x, y = project_point(37.77, -122.42, "EPSG:32610")
    >>> round(x), round(y)
    (551081, 4180455)
    """
    one = np.array([latitude]), np.array([longitude])
    _check_degrees(*one, np.array([0]))
    found = [_transformer(4326, code).transform(longitude, latitude) for code in frame_codes(frame)]
    number = int(np.argmin([abs(east - FALSE_EASTING) for east, _ in found]))
    return float(found[number][0] + number * ZONE_SHIFT), float(found[number][1])


def circular_median(longitude: NDArray[np.float64]) -> float:
    """Median of longitudes, counted from their mean direction, so that 179.9° and −179.9° are neighbours.

    >>> abs(round(circular_median(np.array([179.9, -179.9, -179.8])), 6))
    179.9
    """
    turn = np.radians(longitude)
    centre = float(np.degrees(np.arctan2(np.sin(turn).mean(), np.cos(turn).mean())))
    return float(_wrap(centre + np.median(_wrap(longitude - centre))))


def _choose_zones(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.int64]:
    """EPSG code of the zone that each image is given, 0 where it has no position."""
    known = np.flatnonzero(np.isfinite(lat) & np.isfinite(lon))
    zones = np.zeros(len(lat), dtype=np.int64)
    if not len(known):
        return zones
    _check_degrees(lat, lon, known)
    main, reach = _main_zone(lat[known], lon[known])
    if reach <= ONE_ZONE_DEGREES:
        zones[known] = main
        return zones
    cluster = _clusters(lat[known], lon[known])
    order = np.argsort(cluster, kind="stable")
    for rows in np.split(known[order], np.flatnonzero(np.diff(cluster[order])) + 1):
        main, reach = _main_zone(lat[rows], lon[rows])
        # A chain too long for any zone is cut at the zones' own borders: no flat map can hold it.
        zones[rows] = main if reach <= ONE_CHAIN_DEGREES else utm_epsg(lat[rows], lon[rows])
    return zones


def _main_zone(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> tuple[int, float]:
    """The zone in the middle of some points, and how many degrees from its meridian they reach."""
    zone = int(utm_epsg(np.median(lat), circular_median(lon)))
    return zone, float(np.abs(_wrap(lon - ((zone % 100) * 6.0 - 183.0))).max())


def _clusters(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.int64]:
    """Cluster number of each point: points in touching cells of a coarse grid, chained around the globe."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    around, rows = round(360.0 / CELL_DEGREES), round(180.0 / CELL_DEGREES)
    row = np.floor((lat + 90.0) / CELL_DEGREES).astype(np.int64)
    column = np.floor(np.mod(lon + 180.0, 360.0) / CELL_DEGREES).astype(np.int64) % around
    cells, own = np.unique(row * around + column, return_inverse=True)
    links: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for up, right in ((0, 1), (1, -1), (1, 0), (1, 1)):  # the other four are the same links from behind
        beside = np.minimum(cells // around + up, rows) * around + (cells % around + right) % around
        at = np.minimum(np.searchsorted(cells, beside), len(cells) - 1)
        there = np.flatnonzero(cells[at] == beside)
        links.append((there, at[there]))
    start, end = (np.concatenate(side) for side in zip(*links, strict=True))
    graph = coo_array((np.ones(len(start), dtype=bool), (start, end)), shape=(len(cells), len(cells)))
    return connected_components(graph, directed=False)[1].astype(np.int64)[own]


def _wrap(degrees: Any) -> Any:
    """Into [−180, 180)."""
    return np.mod(degrees + 180.0, 360.0) - 180.0


def _check_degrees(lat: NDArray[Any], lon: NDArray[Any], known: NDArray[np.int64]) -> None:
    wrong = known[(np.abs(lat[known]) > 84.0) | (np.abs(lon[known]) > 360.0)]
    if len(wrong):
        row = int(wrong[0])
        raise KappaPlaceError(
            f"Row {row}: latitude {lat[row]:g}, longitude {lon[row]:g} is outside UTM (±84°, ±180°); "
            "are the columns swapped, or already metres?"
        )


def _transformer(source: int, target: int) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs(source, target, always_xy=True)
