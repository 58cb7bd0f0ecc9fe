"""Façade textures: every building is painted from its own random numbers.

A texture is uint8 (along, up, 4): red, green, blue and a material code. Index 0 of `up` is the pavement.
"""

from __future__ import annotations

import colorsys

import numpy as np

from kappaplace_city.world import FEATURELESS, Face

TEXELS = 8  # per metre
TEXTURE_HEIGHT = 176  # texels: 22 m; buildings are at most 19 m high, so that the top row is always sky
MAX_BUILDING = 19.0

# Material codes. Leaves of trees have LEAF + rank, and fall in the order of their rank.
SKY, PLAIN, LIT, LEDGE, ROAD, PAVED = 0, 1, 2, 3, 4, 5
LEAF = 128

# Light on the walls west, east, south and north of a street: shading that distinguishes headings.
_LIGHT = (1.0, 0.82, 0.72, 0.95)

# Hues of brick, sandstone, ochre, plaster, sage, slate and dusty rose.
_WALL_HUES = (0.0, 0.03, 0.06, 0.09, 0.12, 0.14, 0.3, 0.47, 0.56, 0.61, 0.94)


def hsv(hue: float, saturation: float, value: float) -> np.ndarray:
    """Return a colour as red, green, blue from 0 to 255."""
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value)) * 255.0


def _grain(rng: np.random.Generator, shape: tuple[int, int], strength: float) -> np.ndarray:
    """Return soft noise around 1 that is visible from a distance: a coarse field and some fine grain."""
    coarse = rng.normal(0, 1, (shape[0] // 8 + 1, shape[1] // 8 + 1))
    field = np.kron(coarse, np.ones((8, 8)))[: shape[0], : shape[1]]
    return 1 + strength * (0.6 * field + 0.4 * rng.normal(0, 1, shape))


def _stripe_mask(length: int, count: int, fill: float) -> np.ndarray:
    """Return `count` equal stripes over `length` texels; each fills the fraction `fill` of its bay."""
    bay = (np.arange(length) / length - 0.06) / 0.88 * count
    inside = (bay >= 0) & (bay < count)
    return np.asarray(inside & (np.abs(bay % 1.0 - 0.5) < fill / 2))


class _Plot:
    """A canvas for one building, with methods to draw parts of façades."""

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.width = width
        self.rgb = np.zeros((width, TEXTURE_HEIGHT, 3))
        self.material = np.zeros((width, TEXTURE_HEIGHT), np.uint8)
        self.u = np.arange(width)
        self.z = np.arange(TEXTURE_HEIGHT)

    def fill(self, mask: np.ndarray, color: np.ndarray, material: int = PLAIN) -> None:
        """Fill a mask (along × up)."""
        self.rgb[mask] = color
        self.material[mask] = material

    def box(
        self, along: np.ndarray, low: float, high: float, color: np.ndarray, material: int = PLAIN
    ) -> None:
        """Fill the columns `along` (mask) between two heights in texels."""
        rows = slice(max(0, int(np.ceil(low))), max(0, int(np.ceil(high))))
        self.rgb[along, rows] = color
        self.material[along, rows] = material

    def span(self, start: float, stop: float) -> np.ndarray:
        """Return the mask of the columns from start to stop."""
        return np.asarray((self.u >= start) & (self.u < stop))


def _wall(plot: _Plot, height: int, color: np.ndarray) -> None:
    rng = plot.rng
    every = np.ones(plot.width, bool)
    plot.box(every, 0, height, color)
    wall = np.s_[:, :height]
    pattern = rng.integers(5)
    if pattern == 0:  # courses of stone
        plot.rgb[:, : height : int(rng.integers(4, 9))] *= 0.78
    elif pattern == 1:  # vertical cladding
        plot.rgb[:: int(rng.integers(3, 9)), :height] *= 0.78
    elif pattern == 2:  # bricks: short dark joints in every second course
        course = (plot.z // 3) % 2
        joint = ((plot.u[:, None] + 3 * course) % 6 == 0) | (plot.z % 3 == 0)
        plot.rgb[joint & (plot.z < height)] *= 0.85
    elif pattern == 3:  # bands of a second colour
        band = (plot.z // int(rng.integers(8, 20))) % 2 == 0
        plot.rgb[:, band & (plot.z < height)] *= rng.uniform(0.6, 0.9, 3)
    plot.rgb[wall] *= _grain(rng, (plot.width, height), 0.05)[..., None]


def _windows(plot: _Plot, bottom: int, storey: int, storeys: int) -> None:
    rng = plot.rng
    columns = max(1, round(plot.width / TEXELS / rng.uniform(1.7, 3.6)))
    wide, tall = rng.uniform(0.35, 0.8), rng.uniform(0.45, 0.75)  # fractions of a bay and of a storey
    bays = _stripe_mask(plot.width, columns, wide)
    frames = _stripe_mask(plot.width, columns, min(wide + 0.14, 0.95))
    bay_number = np.clip(((plot.u / plot.width - 0.06) / 0.88 * columns).astype(int), 0, columns - 1)
    mullion = _stripe_mask(plot.width, columns, 0.06) if rng.random() < 0.6 else np.zeros(plot.width, bool)
    frame = hsv(rng.choice(_WALL_HUES), rng.uniform(0, 0.4), rng.choice([0.2, 0.92]))
    glass = hsv(rng.uniform(0.5, 0.65), rng.uniform(0.15, 0.5), rng.uniform(0.2, 0.5))
    sill = hsv(0.1, 0.1, rng.uniform(0.6, 0.95))
    balcony = rng.random() < 0.3
    shutters = hsv(rng.random(), 0.6, 0.55) if rng.random() < 0.3 else None
    for floor in range(storeys):
        low = bottom + floor * storey + 0.22 * storey
        high = low + tall * storey
        if shutters is not None:
            plot.box(_stripe_mask(plot.width, columns, min(wide + 0.35, 1.0)), low, high, shutters)
        plot.box(frames, low - 1, high + 1, frame)
        lit = rng.random(columns)[bay_number] < 0.45
        plot.box(bays & lit, low, high, glass * 1.15, LIT)
        plot.box(bays & ~lit, low, high, glass)
        # The sky is reflected in the upper pane.
        plot.box(bays, high - 0.35 * (high - low), high, glass * 1.5, PLAIN)
        plot.box(mullion, low, high, frame)
        plot.box(frames, low - 2, low - 1, sill, LEDGE)
        if balcony:
            plot.box(frames, low - 2, low + 0.3 * storey, frame * 0.4)
            rails = frames & (plot.u % 2 == 0)
            plot.box(rails, low - 1, low + 0.3 * storey, glass)


def _sign(plot: _Plot, start: int, stop: int, low: int, high: int) -> None:
    """Draw a lit sign: blocks of letters on a background."""
    rng = plot.rng
    ground = hsv(rng.random(), rng.uniform(0.5, 1), rng.uniform(0.4, 1))
    plot.box(plot.span(start, stop), low, high, ground, LIT)
    letters = np.repeat(rng.random((stop - start) // 3 + 1) < 0.65, 3)[: stop - start]
    along = np.zeros(plot.width, bool)
    along[start:stop] = letters
    ink = np.full(3, 250.0) if ground.mean() < 140 else hsv(rng.random(), 0.8, 0.2)
    plot.box(along, low + 2, high - 2, ink, LIT)


def _door(plot: _Plot, center: float, color: np.ndarray) -> None:
    plot.box(plot.span(center - 6, center + 6), 0, 20, color * 0.5)
    plot.box(plot.span(center - 5, center + 5), 0, 18, color)


def _ground_floor(plot: _Plot, height: int) -> None:
    rng = plot.rng
    width = plot.width
    use = rng.integers(4)
    door = hsv(rng.random(), rng.uniform(0.4, 1), rng.uniform(0.25, 0.8))
    every = np.ones(width, bool)
    if use <= 1:  # shop: glass, sign, sometimes a striped awning
        plot.box(every, 0, height, hsv(rng.random(), rng.uniform(0.1, 0.7), rng.uniform(0.2, 0.9)))
        panes = _stripe_mask(width, int(rng.integers(1, 5)), 0.88)
        plot.box(panes, 5, height - 9, hsv(rng.random(), 0.25, rng.uniform(0.3, 0.6)), LIT)
        _sign(plot, int(0.06 * width), int(0.94 * width), height - 8, height)
        if rng.random() < 0.5:
            awning = hsv(rng.random(), 0.8, 0.8)
            plot.box(every, height - 14, height - 8, awning)
            plot.box((plot.u // 5) % 2 == 0, height - 14, height - 8, np.full(3, 235.0))
    elif use == 2:  # garage doors
        plot.box(_stripe_mask(width, max(1, width // 32), 0.85), 0, 0.75 * height, door)
        for z in range(4, int(0.75 * height), 4):
            plot.rgb[:, z] *= 0.85
    else:
        plot.box(_stripe_mask(width, max(1, width // 24), 0.5), 9, 0.75 * height, hsv(0.58, 0.3, 0.35), LIT)
    _door(plot, rng.uniform(0.15, 0.85) * width, door)


def _roof(plot: _Plot, eaves: int) -> None:
    rng = plot.rng
    room = TEXTURE_HEIGHT * MAX_BUILDING / 22 - eaves
    color = hsv(rng.choice([0.02, 0.05, 0.6, 0.1]), rng.uniform(0.1, 0.7), rng.uniform(0.25, 0.6))
    edge = np.minimum(plot.u, plot.width - 1 - plot.u)
    kind = rng.integers(5)
    rise = min(room, rng.uniform(10, 26))
    if kind == 0:  # flat, with a parapet
        top = np.full(plot.width, eaves + 3.0)
    elif kind == 1:  # gable
        top = eaves + rise * edge / (plot.width / 2)
    elif kind == 2:  # stepped gable
        top = eaves + rise * np.ceil(4 * (edge + 1) / (plot.width / 2)) / 4
    elif kind == 3:  # mansard
        top = eaves + np.minimum(rise, 2.0 * edge)
    else:  # sawtooth
        top = eaves + rise * 0.7 * ((plot.u / plot.width * 3) % 1)
    plot.fill((plot.z >= eaves) & (plot.z < top[:, None]), color, LEDGE)
    if kind == 3 and rise > 12:
        dormers = _stripe_mask(plot.width, max(2, plot.width // 30), 0.35)
        plot.box(dormers, eaves + 3, eaves + 10, hsv(0.6, 0.2, 0.8), LIT)
    cornice = hsv(rng.choice(_WALL_HUES), rng.uniform(0, 0.4), rng.uniform(0.4, 0.95))
    plot.box(np.ones(plot.width, bool), eaves - 3, eaves, cornice, LEDGE)
    if rng.random() < 0.4:
        chimney = rng.uniform(0.15, 0.8) * plot.width
        plot.box(plot.span(chimney, chimney + 7), eaves, min(eaves + 14, eaves + room), color * 0.7)


def _building(width: int, rng: np.random.Generator) -> _Plot:
    plot = _Plot(width, rng)
    ground = int(TEXELS * rng.uniform(3.0, 4.4))
    storey = int(TEXELS * rng.uniform(2.7, 3.6))
    storeys = int(rng.integers(1, 5))
    storeys = min(storeys, int((15.5 * TEXELS - ground) // storey))
    eaves = ground + storeys * storey
    vivid = rng.random() < 0.15
    hue = rng.choice(_WALL_HUES) + rng.normal(0, 0.015)
    saturation = rng.uniform(0.5, 0.75) if vivid else rng.uniform(0.04, 0.5)
    _wall(plot, eaves, hsv(hue, saturation, rng.uniform(0.4, 0.95)))
    _windows(plot, ground, storey, storeys)
    _ground_floor(plot, ground)
    _roof(plot, eaves)
    if rng.random() < 0.25:  # a vertical sign on the front
        start = int(rng.uniform(0.1, 0.8) * width)
        _sign(plot, start, min(start + 9, width), ground, min(eaves, ground + 40))
    if rng.random() < 0.12:  # a mural
        tiles = rng.uniform(40, 250, (3, 3, 3))
        rows = np.linspace(0, 2.99, eaves - ground).astype(int)
        columns = np.linspace(0, 2.99, width // 2).astype(int)
        plot.rgb[: width // 2, ground:eaves] = tiles[columns][:, rows]
    return plot


def _blank_face(width: int, rng: np.random.Generator) -> np.ndarray:
    """Paint a hedge, concrete or plaster: a repeated 4 m tile, so that all positions look the same."""
    plot = _Plot(width, rng)
    kind = rng.integers(3)
    height = int(TEXELS * rng.uniform(6, 9))
    colors = (hsv(0.29, 0.55, 0.4), hsv(0.1, 0.06, 0.62), hsv(0.11, 0.2, 0.75))
    plot.box(np.ones(width, bool), 0, height, colors[kind])
    tile = _grain(rng, (4 * TEXELS, TEXTURE_HEIGHT), 0.14 if kind == 0 else 0.025)
    plot.rgb *= np.resize(np.tile(tile, (width // len(tile) + 1, 1)), (width, TEXTURE_HEIGHT))[..., None]
    if kind == 1:
        plot.rgb[:: 4 * TEXELS, :height] *= 0.75
    plot.box(np.ones(width, bool), height - 3, height, colors[kind] * 0.9, LEDGE)
    return np.dstack([np.clip(plot.rgb, 0, 255), plot.material]).astype(np.uint8)


def paint_face(face: Face, city_seed: int) -> np.ndarray:
    """Paint one wall, uint8 (length · TEXELS, TEXTURE_HEIGHT, 4); it depends only on seeds and side."""
    rng = np.random.default_rng([city_seed, face.seed, face.side])
    width = round(face.length * TEXELS)
    if face.kind == FEATURELESS:
        texture = _blank_face(width, np.random.default_rng([city_seed, face.seed]))
    else:
        plots = []
        left = width
        while left:
            size = int(rng.integers(7, 15)) * TEXELS
            size = left if left - size < 6 * TEXELS else size
            plots.append(_building(size, rng))
            left -= size
        rgb = np.concatenate([plot.rgb for plot in plots])
        material = np.concatenate([plot.material for plot in plots])
        texture = np.dstack([np.clip(rgb, 0, 255), material]).astype(np.uint8)
    texture[..., :3] = texture[..., :3] * _LIGHT[face.side]
    return texture
