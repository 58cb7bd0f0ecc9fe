"""Objects and ground of the streets, and the textures for drawing them.

- Sprites are flat images that face the camera: trees, street furniture, vehicles.
- The ground is a pattern along each axis, and a table that combines the two.
- An atlas contains many textures in one flat array at several sizes, so that drawing needs one look-up per
  pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kappaplace_city.facades import LEAF, LIT, PAVED, PLAIN, ROAD, hsv
from kappaplace_city.world import FEATURELESS, PAVEMENT, PITCH, ROAD_WIDTH, STREET_WIDTH, District

SIZE = 96  # texels, both ways; stretched to the object's metres
TREES, LAMPS, STALLS, CARS, VANS, BUSES = (range(8 * kind, 8 * kind + 8) for kind in range(6))
VEHICLE_METERS = ((4.4, 1.5), (5.6, 2.4), (11.0, 3.3))  # length and height of cars, vans, buses
OBJECT_FIELDS = ("east", "north", "width", "height", "sprite")

_U, _Z = np.meshgrid(np.linspace(0, 1, SIZE), np.linspace(0, 1, SIZE), indexing="ij")


def _canvas() -> np.ndarray:
    return np.zeros((SIZE, SIZE, 4), np.uint8)


def _rectangle(
    canvas: np.ndarray, box: tuple[float, float, float, float], color: np.ndarray, material: int = PLAIN
) -> None:
    """Fill a rectangle (left, right, low, high); coordinates are in [0, 1]."""
    left, right, low, high = box
    mask = (left <= _U) & (right > _U) & (low <= _Z) & (high > _Z)
    canvas[mask] = [*np.clip(color, 0, 255), material]


def _tree(rng: np.random.Generator) -> np.ndarray:
    canvas = _canvas()
    trunk = rng.uniform(0.02, 0.04)
    bark = hsv(0.08, 0.4, rng.uniform(0.25, 0.4))
    _rectangle(canvas, (0.5 - trunk, 0.5 + trunk, 0, 0.75), bark)
    for _ in range(14):  # branches, visible without leaves
        tip = rng.uniform([0.1, 0.5], [0.9, 0.95])
        base = np.array([0.5, rng.uniform(0.3, 0.65)])
        for step in np.linspace(0, 1, 60):
            u, z = ((base + step * (tip - base)) * (SIZE - 1)).astype(int)
            canvas[u : u + 2, z] = [*bark, PLAIN]
    crown = np.zeros((SIZE, SIZE), bool)
    for _ in range(int(rng.integers(6, 14))):
        u, z = rng.uniform([0.25, 0.45], [0.75, 0.85])
        crown |= (_U - u) ** 2 + (_Z - z) ** 2 < rng.uniform(0.1, 0.2) ** 2
    clump = np.kron(rng.random((SIZE // 4, SIZE // 4)), np.ones((4, 4)))
    leaves = crown & (clump > 0.08)
    light = 0.55 + 0.35 * _Z + 0.25 * clump
    green = hsv(rng.uniform(0.22, 0.36), rng.uniform(0.45, 0.7), rng.uniform(0.4, 0.65))
    canvas[leaves, :3] = np.clip(green * light[..., None], 0, 255)[leaves]
    canvas[leaves, 3] = LEAF + (clump[leaves] * 127).astype(np.uint8)
    return canvas


def _lamp(rng: np.random.Generator) -> np.ndarray:
    canvas = _canvas()
    metal = hsv(rng.random(), rng.uniform(0, 0.6), rng.uniform(0.15, 0.5))
    _rectangle(canvas, (0.44, 0.56, 0, 0.92), metal)
    _rectangle(canvas, (0.2, 0.8, 0.9, 1.0), np.array([250.0, 235, 190]), LIT)
    if rng.random() < 0.6:  # a banner
        _rectangle(canvas, (0.56, 1.0, 0.5, 0.78), hsv(rng.random(), 0.9, 0.8))
    return canvas


def _stall(rng: np.random.Generator) -> np.ndarray:
    """Paint a kiosk, shelter or letter box, which differ in colour and proportion."""
    canvas = _canvas()
    body = hsv(rng.random(), rng.uniform(0.5, 1), rng.uniform(0.35, 0.9))
    _rectangle(canvas, (0.05, 0.95, 0, 0.85), body)
    _rectangle(canvas, (0.15, 0.85, 0.35, rng.uniform(0.55, 0.75)), hsv(rng.random(), 0.3, 0.8), LIT)
    _rectangle(canvas, (0, 1, 0.85, 0.97), hsv(rng.random(), 0.6, 0.5))
    return canvas


def _vehicle(
    rng: np.random.Generator, meters: tuple[float, float], roof: float, hood: float, windows: float
) -> np.ndarray:
    """Paint the side view of a vehicle.

    Args:
        rng: Random generator.
        meters: Length and height.
        roof: Height of the low ends, as a fraction.
        hood: Length of the low ends, as a fraction.
        windows: Lower edge of the windows, as a fraction.

    Returns:
        The sprite, uint8 (width, height, 4).
    """
    canvas = _canvas()
    paint = hsv(rng.random(), rng.uniform(0, 0.9), rng.uniform(0.2, 0.95))
    glass = hsv(0.58, 0.3, 0.3)
    _rectangle(canvas, (0.01, 0.99, 0.14, roof), paint)
    _rectangle(canvas, (hood, 1 - 0.6 * hood, 0.14, 0.99), paint)
    _rectangle(canvas, (hood + 0.03, 0.97 - 0.6 * hood, windows, 0.9), glass)
    for post in np.arange(hood + 0.2, 0.95 - 0.6 * hood, 0.18):
        _rectangle(canvas, (post, post + 0.025, windows, 0.9), paint)
    _rectangle(canvas, (0.01, 0.99, 0.14, 0.2), paint * 0.5)
    for center in (0.2, 0.8):
        radius = 0.15 * meters[1] + 0.1
        wheel = ((_U - center) * meters[0]) ** 2 + ((_Z - 0.14) * meters[1]) ** 2 < radius**2
        canvas[wheel] = [25, 25, 28, PLAIN]
    _rectangle(canvas, (0.01, 0.04, 0.3, 0.4), np.array([250.0, 240, 200]), LIT)
    _rectangle(canvas, (0.96, 0.99, 0.3, 0.4), np.array([200.0, 20, 20]), LIT)
    return canvas


def paint_sprites(city_seed: int) -> list[np.ndarray]:
    """Paint all sprites, in the order of the index ranges above."""
    rng = np.random.default_rng([city_seed, 7])
    sprites = [_tree(rng) for _ in TREES] + [_lamp(rng) for _ in LAMPS] + [_stall(rng) for _ in STALLS]
    sprites += [_vehicle(rng, VEHICLE_METERS[0], 0.58, 0.2, 0.58) for _ in CARS]
    sprites += [_vehicle(rng, VEHICLE_METERS[1], 0.6, 0.08, 0.55) for _ in VANS]
    sprites += [_vehicle(rng, VEHICLE_METERS[2], 0.95, 0.0, 0.45) for _ in BUSES]
    return sprites


def street_objects(district: District, city_seed: int) -> np.ndarray:
    """Place the objects on the pavements, float32 (objects × OBJECT_FIELDS) in local metres."""
    rows: list[tuple[float, ...]] = []
    for segment in district.segments:
        rng = np.random.default_rng([city_seed, segment.seed, 4])
        for side in (-1, 1):
            across = side * (ROAD_WIDTH / 2 + PAVEMENT / 2)
            for along, width, height, sprite in _row_of_objects(rng, segment.length, segment.kind):
                local = segment.start.copy()
                local[segment.axis] += along
                local[1 - segment.axis] += across
                rows.append((local[0], local[1], width, height, sprite))
    return np.array(rows, np.float32).reshape(-1, len(OBJECT_FIELDS))


def _row_of_objects(
    rng: np.random.Generator, length: float, kind: int
) -> list[tuple[float, float, float, int]]:
    if kind == FEATURELESS:  # the same tree at equal distances
        return [(along, 5.0, 6.5, TREES[0]) for along in np.arange(4.0, length, 12.0)]
    objects: list[tuple[float, float, float, int]] = []
    spacing = rng.choice([0.0, 0.0, 9.0, 13.0, 18.0])
    tree = int(rng.choice(TREES))
    if spacing:
        for along in np.arange(rng.uniform(2, spacing), length - 1, spacing):
            height = rng.uniform(4.5, 8.0)
            objects.append((along + rng.uniform(-1, 1), 0.75 * height, height, tree))
    lamp = int(rng.choice(LAMPS))
    objects += [(along, 0.8, 5.5, lamp) for along in np.arange(rng.uniform(3, 12), length, 22.0)]
    for along in rng.uniform(2, length - 2, rng.integers(0, 4)):
        objects.append((along, rng.uniform(0.8, 2.6), rng.uniform(1.3, 2.6), int(rng.choice(STALLS))))
    return objects


LEVELS = 5  # each has half the resolution of the previous one


@dataclass(frozen=True)
class Atlas:
    """Textures at several resolutions: `levels[l]` contains all as packed uint32 texels, `up` fastest."""

    levels: tuple[np.ndarray, ...]
    offsets: np.ndarray  # LEVELS × textures: start of each texture
    widths: np.ndarray  # texels of level 0, per texture
    height: int  # texels of level 0, the same for all


def pack(texture: np.ndarray) -> np.ndarray:
    """Pack uint8 (…, 4) into uint32 (…)."""
    return np.ascontiguousarray(texture).view(np.uint32)[..., 0]


def unpack(texels: np.ndarray) -> np.ndarray:
    """Unpack uint32 (…) to uint8 (…, 4)."""
    return np.ascontiguousarray(texels)[..., None].view(np.uint8)


def _halve(texture: np.ndarray) -> np.ndarray:
    """Average 2 × 2 texels; empty ones (material 0) add no colour, and win only if they are the majority."""
    quarters = [texture[i::2, j::2] for i in (0, 1) for j in (0, 1)]
    solid = [quarter[..., 3] > 0 for quarter in quarters]
    count = np.add.reduce(solid, dtype=np.uint16)
    # Empty texels are black, so that a sum ignores them.
    total = np.add.reduce([quarter[..., :3] for quarter in quarters], dtype=np.uint16)
    color = (total + count[..., None] // 2) // np.maximum(count, 1)[..., None]
    material = np.zeros(count.shape, np.uint8)
    for quarter, mask in zip(quarters, solid, strict=True):
        material = np.where(mask & (material == 0), quarter[..., 3], material)
    material[count < 2] = 0
    color[count < 2] = 0
    return np.concatenate([color, material[..., None]], axis=2).astype(np.uint8)


def build_atlas(textures: list[np.ndarray]) -> Atlas:
    """Build an atlas of textures (width, height, 4) of equal height, sides divisible by 2^(LEVELS−1)."""
    levels = []
    offsets = []
    current = textures
    for number in range(LEVELS):
        current = [_halve(texture) for texture in current] if number else textures
        sizes = [texture.shape[0] * texture.shape[1] for texture in current]
        offsets.append(np.concatenate([[0], np.cumsum(sizes)[:-1]]))
        levels.append(np.concatenate([pack(texture).ravel() for texture in current]))
    widths = np.array([len(texture) for texture in textures], np.int32)
    return Atlas(tuple(levels), np.array(offsets, np.int32), widths, textures[0].shape[1])


def column_starts(atlas: Atlas, texture: np.ndarray, along: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return the index of the lowest texel of texture columns.

    Args:
        atlas: The textures.
        texture: Numbers of the textures.
        along: Positions along the textures, in [0, 1).
        level: Levels of resolution.

    Returns:
        Indices into the arrays of the atlas, one per column.
    """
    width = atlas.widths[texture] >> level
    column = np.clip((along * width).astype(np.int32), 0, width - 1)
    return np.asarray(atlas.offsets[level, texture] + column * (atlas.height >> level))


def sample(atlas: Atlas, starts: np.ndarray, level: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Look up packed texels, C columns × H rows.

    Args:
        atlas: The textures.
        starts: Lowest texel of each column.
        level: Level of resolution of each column.
        height: Height of each pixel in texels of level 0, C × H; clipped to the texture.

    Returns:
        Packed texels, C × H.
    """
    out = np.empty(height.shape, np.uint32)
    for number in range(LEVELS):
        columns = np.flatnonzero(level == number)
        if not len(columns):
            continue
        rows = np.clip(height[columns], 0, atlas.height - 1) * np.float32(0.5**number)
        index = rows.astype(np.int32)
        index += starts[columns, None]
        out[columns] = atlas.levels[number][index]
    return out


_SCALE = np.float32(8)  # steps per metre of the patterns
# Kinds of coordinates along one axis: next to a block (three kinds), or within a street (five kinds).
_ZEBRA, _DASH, _GAP, _PAVEMENT, _KERB, _STRIPE, _ROAD, _MIDDLE = range(8)


def _pattern(pitch: float, blocks: int) -> np.ndarray:
    meters = np.arange(0, pitch, 1 / 8)
    beside = meters - STREET_WIDTH  # beyond the street: along a block
    block = pitch - STREET_WIDTH
    zebra = (np.abs(beside - 2.5) < 1.5) | (np.abs(block - beside - 2.5) < 1.5)
    dash = (beside % 6.0 < 3.0) & (beside > 6) & (beside < block - 6)
    codes = np.where(zebra, _ZEBRA, np.where(dash, _DASH, _GAP))
    across = np.abs(meters - STREET_WIDTH / 2)
    road = np.where(meters % 1.2 < 0.6, _STRIPE, _ROAD)
    street = np.where(across < 0.12, _MIDDLE, road)
    street = np.where(across >= STREET_WIDTH / 2 - PAVEMENT, _KERB, street)
    street = np.where(across >= STREET_WIDTH / 2 - PAVEMENT + 0.25, _PAVEMENT, street)
    one = np.where(meters < STREET_WIDTH, street, codes)
    return np.resize(one, (blocks + 1) * len(one)).astype(np.int32)


def _crossing(one: int, other: int) -> str:
    """Return the material at the intersection of `one` (along east) and `other` (along north)."""
    low, high = min(one, other), max(one, other)
    if low >= _PAVEMENT:  # a junction: the road continues, corners are paved
        return "road" if high >= _STRIPE else ("kerb" if low == high == _KERB else "pavement")
    if high in (_PAVEMENT, _KERB):
        return "pavement" if high == _PAVEMENT else "kerb"
    painted = (high == _STRIPE and low == _ZEBRA) or (high == _MIDDLE and low == _DASH)
    return "paint" if painted else "road"


_COLORS = {
    "road": (88, 88, 92, ROAD),
    "paint": (215, 215, 205, ROAD),
    "pavement": (160, 155, 148, PAVED),
    "kerb": (190, 188, 182, PAVED),
}
_SHADES = 8
_TILE = 160  # the worn surface repeats every 20 m, so that it looks the same in repeated streets


def _table() -> np.ndarray:
    """Return packed colours by (kind along east, kind along north, shade)."""
    table = np.empty((8, 8, _SHADES, 4), np.uint8)
    for one in range(8):
        for other in range(8):
            color = np.array(_COLORS[_crossing(one, other)])
            for shade in range(_SHADES):
                table[one, other, shade] = [*(color[:3] * (0.92 + 0.16 * shade / _SHADES)), color[3]]
    return pack(table).ravel()


class Ground:
    """The ground of a district."""

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
        """Return packed colours at local positions."""
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
