"""Convert latitude and longitude to metres and back, with pyproj.

A frame is the EPSG code of one UTM zone ("EPSG:32610"), or of several if a collection spans the globe
("EPSG:32610,EPSG:32633"). Zone k of the list is shifted east by k × 10,000 km. Distances within a zone remain
correct, and images of different zones are never near each other. Images that are near each other on Earth
always get the same zone, even across the borders of zones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from pyproj import Transformer

    from kappaplace.data.near import Circle

LOCAL_FRAME = "local"  # metres in a separate frame without a location on Earth
ZONE_SHIFT = 10_000_000.0  # metres between the zones of a table: more than the width of any zone
FALSE_EASTING = 500_000.0  # easting of the central meridian in UTM
# A collection this close to a central meridian gets one zone (scale error < 0.6%), as does a chain of near
# images twice as long (< 2.2%: a radius of 25 m is wrong by half a metre, instead of by 10,000 km).
ONE_ZONE_DEGREES, ONE_CHAIN_DEGREES = 6.0, 12.0
CELL_DEGREES = 0.25  # images in adjacent cells form a chain; others are at least 2.9 km apart (at 84°)
_FRAME = re.compile(r"EPSG:(\d{4,6})")


def frame_codes(frame: str) -> tuple[int, ...]:
    """Return the EPSG codes of a frame.

    >>> frame_codes("EPSG:32610,EPSG:32633"), frame_codes("local")
    ((32610, 32633), ())

    Args:
        frame: "local", or EPSG codes separated by commas.

    Returns:
        The codes; empty for a local frame.

    Raises:
        KappaPlaceError: If the text has another form.
    """
    if frame == LOCAL_FRAME:
        return ()
    matches = [_FRAME.fullmatch(part) for part in frame.split(",")]
    codes = tuple(int(match[1]) for match in matches if match)
    if len(codes) != len(matches):
        raise KappaPlaceError(f"Unknown frame {frame!r}. Write local, EPSG:32610 or EPSG:32610,EPSG:32633.")
    return codes


def utm_epsg(latitude: ArrayLike, longitude: ArrayLike) -> NDArray[np.int64]:
    """Return the EPSG code of the UTM zone of each point (WGS 84).

    >>> utm_epsg([37.77, -33.9], [-122.42, 151.2]).tolist()
    [32610, 32756]
    """
    lat, lon = np.asarray(latitude, dtype=float), np.asarray(longitude, dtype=float)
    zone = np.floor((np.mod(lon + 180.0, 360.0)) / 6.0).astype(np.int64) + 1
    return np.where(lat >= 0, 32600, 32700) + zone


def project(latitude: ArrayLike, longitude: ArrayLike) -> tuple[NDArray[np.float64], str]:
    """Convert degrees to metres.

    The whole collection gets one zone if it is small enough. Otherwise, every cluster of images gets one,
    so that a city on the border of two zones is not divided.

    Args:
        latitude: Degrees (WGS 84), N; NaN if unknown.
        longitude: Degrees, N; NaN if unknown.

    Returns:
        Metres east and north, N×2 (NaN if unknown), and their frame.

    Raises:
        KappaPlaceError: If a point is outside UTM.
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
    """Convert coordinates in several UTM zones to one frame.

    Zones are chosen again as in `project`, so that images near each other get the same zone. Coordinates that
    do not change their zone remain exactly the same.

    Args:
        positions: Metres east and north, N×2.
        zones: EPSG code of the zone of each position, N; 0 if unknown.

    Returns:
        Metres east and north, N×2, and their frame.

    Raises:
        KappaPlaceError: If there are several zones and one is unknown.
    """
    present = sorted({int(zone) for zone in np.unique(zones) if zone})
    if len(present) <= 1:
        return positions, f"EPSG:{present[0]}" if present else LOCAL_FRAME
    lost = int(((zones == 0) & np.isfinite(positions[:, 0])).sum())
    if lost:
        raise KappaPlaceError(
            f"{lost:,} images have coordinates without a UTM zone, and the others span {len(present)} zones. "
            "Specify the zone of every image."
        )
    lat, lon = np.full(len(positions), np.nan), np.full(len(positions), np.nan)
    for zone in present:
        rows = zones == zone
        lon[rows], lat[rows] = _transformer(zone, 4326).transform(positions[rows, 0], positions[rows, 1])
    joined, frame = project(lat, lon)
    number = zone_index(joined, frame)
    for k, code in enumerate(frame_codes(frame)):  # exact for images that do not change their zone
        rows = (zones == code) & (number == k)
        joined[rows] = positions[rows] + [k * ZONE_SHIFT, 0.0]
    return joined, frame


def zone_index(positions: NDArray[np.float64], frame: str) -> NDArray[np.int64]:
    """Return the zone of each position.

    Args:
        positions: Metres of the frame, N×2.
        frame: The frame.

    Returns:
        Index into the codes of the frame, N; −1 for an unknown position.
    """
    posed = np.isfinite(positions[:, 0])
    number = np.where(posed, 0, -1)
    if len(frame_codes(frame)) > 1:
        number[posed] = np.rint((positions[posed, 0] - FALSE_EASTING) / ZONE_SHIFT).astype(np.int64)
    return number


def unproject(positions: NDArray[np.float64], frame: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Convert metres to degrees.

    Args:
        positions: Metres of the frame, N×2.
        frame: The frame.

    Returns:
        Latitude and longitude in degrees, N each; NaN for unknown positions and for a local frame.
    """
    lat, lon = np.full(len(positions), np.nan), np.full(len(positions), np.nan)
    number = zone_index(positions, frame)
    for k, code in enumerate(frame_codes(frame)):
        rows = number == k
        east = positions[rows, 0] - k * ZONE_SHIFT
        lon[rows], lat[rows] = _transformer(code, 4326).transform(east, positions[rows, 1])
    return lat, lon


def project_point(latitude: float, longitude: float, frame: str) -> tuple[float, float]:
    """Convert one point to a given frame, in its nearest zone.

    >>> x, y = project_point(37.77, -122.42, "EPSG:32610")
    >>> round(x), round(y)
    (551081, 4180455)

    Args:
        latitude: Degrees (WGS 84).
        longitude: Degrees.
        frame: A frame that is not local.

    Returns:
        x and y in metres.

    Raises:
        KappaPlaceError: If the point is outside UTM.
    """
    _check_degrees(np.array([latitude]), np.array([longitude]), np.array([0]))
    points = [_transformer(4326, code).transform(longitude, latitude) for code in frame_codes(frame)]
    number = int(np.argmin([abs(east - FALSE_EASTING) for east, _ in points]))
    return float(points[number][0] + number * ZONE_SHIFT), float(points[number][1])


def circle_in_frame(area: Circle, frame: str) -> Circle:
    """Return a circle in metres of a frame.

    >>> x, y, radius = circle_in_frame((37.77, -122.42, 100.0), "EPSG:32610")
    >>> round(x), round(y), radius
    (551081, 4180455, 100.0)

    Args:
        area: Latitude and longitude in degrees, or x and y in metres, and a radius in metres. In a frame that
            is not local, values up to 90 and 180 are degrees: no UTM coordinate is that small.
        frame: The frame.

    Returns:
        x, y and radius in metres.

    Raises:
        KappaPlaceError: If the point is outside UTM.
    """
    first, second, radius = area
    if frame == LOCAL_FRAME or abs(first) > 90 or abs(second) > 180:
        return area
    return (*project_point(first, second, frame), radius)


def circular_median(longitude: NDArray[np.float64]) -> float:
    """Return the median longitude, relative to the mean direction, so that 179.9° and −179.9° are close.

    >>> abs(round(circular_median(np.array([179.9, -179.9, -179.8])), 6))
    179.9
    """
    turn = np.radians(longitude)
    center = float(np.degrees(np.arctan2(np.sin(turn).mean(), np.cos(turn).mean())))
    return float(_wrap(center + np.median(_wrap(longitude - center))))


def _choose_zones(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the EPSG code of the zone for each image, 0 if its position is unknown."""
    posed = np.flatnonzero(np.isfinite(lat) & np.isfinite(lon))
    zones = np.zeros(len(lat), dtype=np.int64)
    if not len(posed):
        return zones
    _check_degrees(lat, lon, posed)
    main, reach = _main_zone(lat[posed], lon[posed])
    if reach <= ONE_ZONE_DEGREES:
        zones[posed] = main
        return zones
    cluster = _clusters(lat[posed], lon[posed])
    order = np.argsort(cluster, kind="stable")
    for rows in np.split(posed[order], np.flatnonzero(np.diff(cluster[order])) + 1):
        main, reach = _main_zone(lat[rows], lon[rows])
        # A chain too long for any zone is cut at the borders of the zones: no flat map can contain it.
        zones[rows] = main if reach <= ONE_CHAIN_DEGREES else utm_epsg(lat[rows], lon[rows])
    return zones


def _main_zone(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> tuple[int, float]:
    """Return the zone in the middle of points, and their largest distance from its meridian in degrees."""
    zone = int(utm_epsg(np.median(lat), circular_median(lon)))
    return zone, float(np.abs(_wrap(lon - ((zone % 100) * 6.0 - 183.0))).max())


def _clusters(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the cluster number of each point: chains of adjacent cells of a coarse grid around the globe."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    around, rows = round(360.0 / CELL_DEGREES), round(180.0 / CELL_DEGREES)
    row = np.floor((lat + 90.0) / CELL_DEGREES).astype(np.int64)
    column = np.floor(np.mod(lon + 180.0, 360.0) / CELL_DEGREES).astype(np.int64) % around
    cells, cell = np.unique(row * around + column, return_inverse=True)
    links: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for up, right in ((0, 1), (1, -1), (1, 0), (1, 1)):  # the other four are the same links in reverse
        neighbor = np.minimum(cells // around + up, rows) * around + (cells % around + right) % around
        index = np.minimum(np.searchsorted(cells, neighbor), len(cells) - 1)
        linked = np.flatnonzero(cells[index] == neighbor)
        links.append((linked, index[linked]))
    start, end = (np.concatenate(side) for side in zip(*links, strict=True))
    graph = coo_array((np.ones(len(start), dtype=bool), (start, end)), shape=(len(cells), len(cells)))
    return connected_components(graph, directed=False)[1].astype(np.int64)[cell]


def _wrap(degrees: ArrayLike) -> NDArray[np.float64]:
    """Return the same angles in [−180, 180)."""
    return np.mod(np.add(degrees, 180.0), 360.0) - 180.0


def _check_degrees(lat: NDArray[np.float64], lon: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
    outside = rows[(np.abs(lat[rows]) > 84.0) | (np.abs(lon[rows]) > 360.0)]
    if len(outside):
        row = int(outside[0])
        raise KappaPlaceError(
            f"Row {row}: latitude {lat[row]:g}, longitude {lon[row]:g} is outside UTM (±84°, ±180°). "
            "Check whether the columns are swapped, or are already metres."
        )


def _transformer(source: int, target: int) -> Transformer:
    from pyproj import Transformer

    return Transformer.from_crs(source, target, always_xy=True)
