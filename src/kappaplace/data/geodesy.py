"""Latitude and longitude to metres and back, through pyproj.

A collection lies in one UTM zone, named in its frame ("EPSG:32610"). A collection that spans the globe has
several ("EPSG:32610,EPSG:32633"): zone number k of that list is moved east by k × 10,000 km, so that
distances within a zone stay exact and two images of different zones are never near each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.errors import KappaPlaceError

ZONE_SHIFT = 10_000_000.0  # metres between the zones of one table: farther than any zone is wide
ONE_ZONE_DEGREES = (
    6.0  # a collection this close to a central meridian stays in one zone (scale error < 0.6 %)
)


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

    One zone is chosen for the whole collection where it reaches, so that a city on a zone border stays whole.
    """
    lat, lon = np.asarray(latitude, dtype=np.float64), np.asarray(longitude, dtype=np.float64)
    known = np.isfinite(lat) & np.isfinite(lon)
    positions = np.full((len(lat), 2), np.nan)
    if not known.any():
        return positions, "local"
    _check_degrees(lat, lon, known)
    own = utm_epsg(lat, np.where(known, lon, 0.0))
    middle = np.median(lon[known])
    main = int(utm_epsg(np.median(lat[known]), middle))
    meridian = (main % 100) * 6.0 - 183.0
    apart = np.abs(np.mod(lon[known] - meridian + 180.0, 360.0) - 180.0)
    zones = [main] if apart.max() <= ONE_ZONE_DEGREES else sorted(set(own[known].tolist()))
    for number, zone in enumerate(zones):
        rows = known if len(zones) == 1 else known & (own == zone)
        east, north = _transformer(4326, zone).transform(lon[rows], lat[rows])
        positions[rows] = np.column_stack([np.asarray(east) + number * ZONE_SHIFT, north])
    return positions, ",".join(f"EPSG:{zone}" for zone in zones)


def join_zones(positions: NDArray[np.float64], zones: NDArray[np.int64]) -> tuple[NDArray[np.float64], str]:
    """Coordinates that came with a UTM zone each (EPSG code, 0 = unknown) → one frame.

    Neighbouring zones are brought into one; zones that lie apart stay as they are, side by side.
    """
    present = sorted({int(zone) for zone in np.unique(zones) if zone})
    if len(present) <= 1:
        return positions, f"EPSG:{present[0]}" if present else "local"
    lat, lon = np.full(len(positions), np.nan), np.full(len(positions), np.nan)
    for zone in present:
        rows = zones == zone
        lon[rows], lat[rows] = _transformer(zone, 4326).transform(positions[rows, 0], positions[rows, 1])
    joined, frame = project(lat, lon)
    for number, code in enumerate(frame.split(",")):  # exact where nothing had to move
        rows = zones == int(code.removeprefix("EPSG:"))
        joined[rows] = positions[rows] + [number * ZONE_SHIFT, 0.0]
    return joined, frame


def unproject(positions: NDArray[np.float64], frame: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Metres of a frame → latitude and longitude; all NaN for a local frame, which lies nowhere on Earth."""
    lat, lon = np.full(len(positions), np.nan), np.full(len(positions), np.nan)
    codes = [part.removeprefix("EPSG:") for part in frame.split(",") if part.startswith("EPSG:")]
    number = np.zeros(len(positions), dtype=np.int64)
    if len(codes) > 1:
        number = np.floor(np.nan_to_num(positions[:, 0]) / ZONE_SHIFT).astype(np.int64)
    for k, code in enumerate(codes):
        rows = (number == k) & np.isfinite(positions[:, 0])
        east = positions[rows, 0] - k * ZONE_SHIFT
        lon[rows], lat[rows] = _transformer(int(code), 4326).transform(east, positions[rows, 1])
    return lat, lon


def _check_degrees(lat: NDArray[Any], lon: NDArray[Any], known: NDArray[np.bool_]) -> None:
    wrong = known & ((np.abs(lat) > 84.0) | (np.abs(lon) > 360.0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise KappaPlaceError(
            f"Row {row}: latitude {lat[row]:g}, longitude {lon[row]:g} is outside UTM (±84°, ±180°); "
            "are the columns swapped, or already metres?"
        )


def _transformer(source: int, target: int) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs(source, target, always_xy=True)
