"""Flat pictures that stand in the street and turn to the camera: trees, street furniture, vehicles."""

from __future__ import annotations

import numpy as np

from kappaplace.data.synthetic_city.facades import LEAF, LIT, PLAIN, hsv
from kappaplace.data.synthetic_city.world import FEATURELESS, PAVEMENT, ROAD_WIDTH, District

SIZE = 96  # texels, both ways; stretched to the object's metres
TREES, LAMPS, STALLS, CARS, VANS, BUSES = (range(8 * kind, 8 * kind + 8) for kind in range(6))
VEHICLE_METRES = ((4.4, 1.5), (5.6, 2.4), (11.0, 3.3))  # length and height of cars, vans, buses
OBJECT_FIELDS = ("east", "north", "width", "height", "sprite")

_U, _Z = np.meshgrid(np.linspace(0, 1, SIZE), np.linspace(0, 1, SIZE), indexing="ij")


def _canvas() -> np.ndarray:
    return np.zeros((SIZE, SIZE, 4), np.uint8)


def _rectangle(
    picture: np.ndarray, box: tuple[float, float, float, float], colour: np.ndarray, material: int = PLAIN
) -> None:
    """Fill (left, right, low, high), all in [0, 1]."""
    left, right, low, high = box
    mask = (left <= _U) & (right > _U) & (low <= _Z) & (high > _Z)
    picture[mask] = [*np.clip(colour, 0, 255), material]


def _tree(rng: np.random.Generator) -> np.ndarray:
    picture = _canvas()
    trunk = rng.uniform(0.02, 0.04)
    bark = hsv(0.08, 0.4, rng.uniform(0.25, 0.4))
    _rectangle(picture, (0.5 - trunk, 0.5 + trunk, 0, 0.75), bark)
    for _ in range(14):  # branches, seen once the leaves have fallen
        tip = rng.uniform([0.1, 0.5], [0.9, 0.95])
        base = np.array([0.5, rng.uniform(0.3, 0.65)])
        for step in np.linspace(0, 1, 60):
            u, z = ((base + step * (tip - base)) * (SIZE - 1)).astype(int)
            picture[u : u + 2, z] = [*bark, PLAIN]
    crown = np.zeros((SIZE, SIZE), bool)
    for _ in range(int(rng.integers(6, 14))):
        u, z = rng.uniform([0.25, 0.45], [0.75, 0.85])
        crown |= (_U - u) ** 2 + (_Z - z) ** 2 < rng.uniform(0.1, 0.2) ** 2
    clump = np.kron(rng.random((SIZE // 4, SIZE // 4)), np.ones((4, 4)))
    leaves = crown & (clump > 0.08)
    light = 0.55 + 0.35 * _Z + 0.25 * clump
    green = hsv(rng.uniform(0.22, 0.36), rng.uniform(0.45, 0.7), rng.uniform(0.4, 0.65))
    picture[leaves, :3] = np.clip(green * light[..., None], 0, 255)[leaves]
    picture[leaves, 3] = LEAF + (clump[leaves] * 127).astype(np.uint8)
    return picture


def _lamp(rng: np.random.Generator) -> np.ndarray:
    picture = _canvas()
    metal = hsv(rng.random(), rng.uniform(0, 0.6), rng.uniform(0.15, 0.5))
    _rectangle(picture, (0.44, 0.56, 0, 0.92), metal)
    _rectangle(picture, (0.2, 0.8, 0.9, 1.0), np.array([250.0, 235, 190]), LIT)
    if rng.random() < 0.6:  # a banner
        _rectangle(picture, (0.56, 1.0, 0.5, 0.78), hsv(rng.random(), 0.9, 0.8))
    return picture


def _stall(rng: np.random.Generator) -> np.ndarray:
    """Kiosk, shelter or letter box, told apart by colour and proportion."""
    picture = _canvas()
    body = hsv(rng.random(), rng.uniform(0.5, 1), rng.uniform(0.35, 0.9))
    _rectangle(picture, (0.05, 0.95, 0, 0.85), body)
    _rectangle(picture, (0.15, 0.85, 0.35, rng.uniform(0.55, 0.75)), hsv(rng.random(), 0.3, 0.8), LIT)
    _rectangle(picture, (0, 1, 0.85, 0.97), hsv(rng.random(), 0.6, 0.5))
    return picture


def _vehicle(
    rng: np.random.Generator, metres: tuple[float, float], roof: float, hood: float, windows: float
) -> np.ndarray:
    """Side view. `hood`: share of the length that ends stay low, up to `roof`; `windows`: their low edge."""
    picture = _canvas()
    paint = hsv(rng.random(), rng.uniform(0, 0.9), rng.uniform(0.2, 0.95))
    glass = hsv(0.58, 0.3, 0.3)
    _rectangle(picture, (0.01, 0.99, 0.14, roof), paint)
    _rectangle(picture, (hood, 1 - 0.6 * hood, 0.14, 0.99), paint)
    _rectangle(picture, (hood + 0.03, 0.97 - 0.6 * hood, windows, 0.9), glass)
    for post in np.arange(hood + 0.2, 0.95 - 0.6 * hood, 0.18):
        _rectangle(picture, (post, post + 0.025, windows, 0.9), paint)
    _rectangle(picture, (0.01, 0.99, 0.14, 0.2), paint * 0.5)
    for centre in (0.2, 0.8):
        wheel = ((_U - centre) * metres[0]) ** 2 + ((_Z - 0.14) * metres[1]) ** 2 < (
            0.15 * metres[1] + 0.1
        ) ** 2
        picture[wheel] = [25, 25, 28, PLAIN]
    _rectangle(picture, (0.01, 0.04, 0.3, 0.4), np.array([250.0, 240, 200]), LIT)
    _rectangle(picture, (0.96, 0.99, 0.3, 0.4), np.array([200.0, 20, 20]), LIT)
    return picture


def paint_sprites(city_seed: int) -> list[np.ndarray]:
    """The whole catalogue, in the order of the index ranges above."""
    rng = np.random.default_rng([city_seed, 7])
    pictures = [_tree(rng) for _ in TREES] + [_lamp(rng) for _ in LAMPS] + [_stall(rng) for _ in STALLS]
    pictures += [_vehicle(rng, VEHICLE_METRES[0], 0.58, 0.2, 0.58) for _ in CARS]
    pictures += [_vehicle(rng, VEHICLE_METRES[1], 0.6, 0.08, 0.55) for _ in VANS]
    pictures += [_vehicle(rng, VEHICLE_METRES[2], 0.95, 0.0, 0.45) for _ in BUSES]
    return pictures


def street_objects(district: District, city_seed: int) -> np.ndarray:
    """Everything that stands on the pavements, float32 (objects × OBJECT_FIELDS), in local metres."""
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
    if kind == FEATURELESS:  # one kind of tree at one distance, again and again
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
