"""Road, pavement and markings: a pattern across each axis, and a table that crosses the two."""

from __future__ import annotations

import numpy as np

from kappaplace.data.synthetic_city.atlas import pack
from kappaplace.data.synthetic_city.facades import PAVED, ROAD
from kappaplace.data.synthetic_city.world import PAVEMENT, PITCH, STREET_WIDTH, District

_SCALE = np.float32(8)  # steps per metre of the patterns
# What a coordinate is, seen along one axis: beside a block (three kinds), or within a street (five kinds).
_ZEBRA, _DASH, _GAP, _PAVEMENT, _KERB, _STRIPE, _ROAD, _MIDDLE = range(8)


def _pattern(pitch: float, blocks: int) -> np.ndarray:
    metres = np.arange(0, pitch, 1 / 8)
    beside = metres - STREET_WIDTH  # beyond the street: along a block
    block = pitch - STREET_WIDTH
    zebra = (np.abs(beside - 2.5) < 1.5) | (np.abs(block - beside - 2.5) < 1.5)
    dash = (beside % 6.0 < 3.0) & (beside > 6) & (beside < block - 6)
    codes = np.where(zebra, _ZEBRA, np.where(dash, _DASH, _GAP))
    across = np.abs(metres - STREET_WIDTH / 2)
    road = np.where(metres % 1.2 < 0.6, _STRIPE, _ROAD)
    street = np.where(across < 0.12, _MIDDLE, road)
    street = np.where(across >= STREET_WIDTH / 2 - PAVEMENT, _KERB, street)
    street = np.where(across >= STREET_WIDTH / 2 - PAVEMENT + 0.25, _PAVEMENT, street)
    one = np.where(metres < STREET_WIDTH, street, codes)
    return np.resize(one, (blocks + 1) * len(one)).astype(np.int32)


def _crossing(one: int, other: int) -> str:
    """Material where `one` (along east) meets `other` (along north)."""
    low, high = min(one, other), max(one, other)
    if low >= _PAVEMENT:  # a junction: road goes through, corners are paved
        return "road" if high >= _STRIPE else ("kerb" if low == high == _KERB else "pavement")
    if high in (_PAVEMENT, _KERB):
        return "pavement" if high == _PAVEMENT else "kerb"
    painted = (high == _STRIPE and low == _ZEBRA) or (high == _MIDDLE and low == _DASH)
    return "paint" if painted else "road"


_COLOURS = {
    "road": (88, 88, 92, ROAD),
    "paint": (215, 215, 205, ROAD),
    "pavement": (160, 155, 148, PAVED),
    "kerb": (190, 188, 182, PAVED),
}
_SHADES = 8
_TILE = 160  # the worn surface repeats every 20 m, so that it looks the same in repeated streets


def _table() -> np.ndarray:
    """Packed colour for (along east, along north, shade of the patch)."""
    table = np.empty((8, 8, _SHADES, 4), np.uint8)
    for one in range(8):
        for other in range(8):
            colour = np.array(_COLOURS[_crossing(one, other)])
            for shade in range(_SHADES):
                table[one, other, shade] = [*(colour[:3] * (0.92 + 0.16 * shade / _SHADES)), colour[3]]
    return pack(table).ravel()


class Ground:
    """Looks up the packed colour of any local position of a district."""

    def __init__(self, district: District, city_seed: int) -> None:
        self._patterns = [_pattern(float(PITCH[axis]), district.blocks[axis]) for axis in (0, 1)]
        self._patterns[0] = self._patterns[0] * 8 * _SHADES
        self._patterns[1] = self._patterns[1] * _SHADES
        rng = np.random.default_rng([city_seed, 11])
        worn = np.kron(rng.random((10, 10)), np.ones((16, 16))) + np.kron(
            rng.random((40, 40)), np.ones((4, 4))
        )
        self._shades = ((worn + rng.random((_TILE, _TILE))) / 3 * _SHADES).astype(np.int32).ravel()
        self._table = _table()

    def look_up(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        column = ((east + np.float32(PAVEMENT)) * _SCALE).astype(np.int32)
        row = ((north + np.float32(PAVEMENT)) * _SCALE).astype(np.int32)
        index = np.take(self._patterns[0], column, mode="clip")
        index += np.take(self._patterns[1], row, mode="clip")
        column %= _TILE
        row %= _TILE
        column *= _TILE
        column += row
        index += np.take(self._shades, column)
        return np.asarray(np.take(self._table, index))
