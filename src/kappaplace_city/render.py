"""From poses to pictures without weather: walls by ray casting, then ground and sky, then sprites in front.

Arrays are laid out by image column (C = images × width) and then by row, because a column of the picture sees
one wall, one distance and one column of its texture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace_city.facades import LEAF, SKY, TEXELS, paint_face
from kappaplace_city.scenery import (
    BUSES,
    CARS,
    LEVELS,
    SIZE,
    VANS,
    VEHICLE_METRES,
    Atlas,
    Ground,
    build_atlas,
    column_starts,
    pack,
    paint_sprites,
    sample,
    street_objects,
    unpack,
)
from kappaplace_city.world import District, cast

NEAREST_OBJECTS = 24  # per image; those further away are hidden or tiny
LAYERS = 3  # sprites that one column can show behind each other
VEHICLES = 8  # per image at full occlusion
SKY_DEPTH = np.float32(400)


@dataclass(frozen=True)
class Camera:
    """A level pinhole camera."""

    height: float = 2.0  # metres above the road
    field_of_view: float = 80.0  # degrees, across the picture

    def __post_init__(self) -> None:
        if not (0.5 <= self.height <= 5 and 10 <= self.field_of_view <= 150):
            raise KappaPlaceError("A camera stands 0.5 to 5 m high and has a field of view of 10° to 150°.")

    def focal(self, width: int) -> float:
        """Focal length in pixels."""
        return width / 2 / float(np.tan(np.radians(self.field_of_view) / 2))


@dataclass(frozen=True)
class Scenery:
    """A district with everything painted that a camera can see in it."""

    district: District
    walls: Atlas
    sprites: Atlas
    objects: np.ndarray
    ground: Ground
    wall_axis: np.ndarray  # per face: the axis its wall is square to


@dataclass(frozen=True)
class Picture:
    """Packed colours and materials, and depth in metres: both N × width × height (columns first)."""

    texels: np.ndarray
    depth: np.ndarray


@dataclass(frozen=True)
class _Rays:
    origin: np.ndarray  # 2 × C
    ray: np.ndarray  # 2 × C; one unit of it is one metre of depth
    across: np.ndarray  # W: metres to the right per metre of depth
    down: np.ndarray  # H: metres down per metre of depth
    focal: float


def paint_scenery(district: District, city_seed: int) -> Scenery:
    painted: dict[tuple[int, int], np.ndarray] = {}
    for face in district.faces:
        if (face.seed, face.side) not in painted:
            painted[face.seed, face.side] = paint_face(face, city_seed)
    walls = build_atlas([painted[face.seed, face.side] for face in district.faces])
    axes = np.array([face.side // 2 for face in district.faces], np.int8)
    sprites = build_atlas(paint_sprites(city_seed))
    return Scenery(
        district, walls, sprites, street_objects(district, city_seed), Ground(district, city_seed), axes
    )


def make_rays(camera: Camera, local: np.ndarray, heading: np.ndarray, width: int, height: int) -> _Rays:
    """Rays of all columns; `local` N×2 metres in the district, `heading` N degrees clockwise from north."""
    focal = camera.focal(width)
    across = (np.arange(width) + 0.5 - width / 2) / focal
    down = (np.arange(height) + 0.5 - height / 2) / focal
    angle = np.radians(heading.astype(np.float64))[:, None]
    east = np.sin(angle) + across * np.cos(angle)
    north = np.cos(angle) - across * np.sin(angle)
    ray = np.stack([east.ravel(), north.ravel()]).astype(np.float32)
    origin = np.repeat(local.T.astype(np.float32), width, axis=1)
    return _Rays(origin, ray, across.astype(np.float32), down.astype(np.float32), focal)


def _sky(down: np.ndarray) -> np.ndarray:
    """Packed colours from the horizon to the top of the picture."""
    share = np.clip(-down / 0.8, 0, 1)[:, None]
    colour = np.array([206.0, 220, 232]) * (1 - share) + np.array([108.0, 158, 214]) * share
    return pack(np.concatenate([colour, np.full((len(down), 1), SKY)], axis=1).astype(np.uint8))


def _draw_walls(scenery: Scenery, camera: Camera, rays: _Rays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texels and depth (C × H) of walls, ground and sky, and the depth of each column's wall."""
    distance, face, along = cast(scenery.district, rays.origin, rays.ray)
    walls = scenery.walls
    share = along * np.float32(TEXELS) / walls.widths[face]
    square = np.where(scenery.wall_axis[face] == 0, np.abs(rays.ray[0]), np.abs(rays.ray[1]))
    slant = np.hypot(rays.ray[0], rays.ray[1]) / np.maximum(square, np.float32(0.02))
    texels_per_pixel = distance * np.float32(TEXELS / rays.focal) * np.sqrt(slant)
    level = np.clip(np.rint(np.log2(texels_per_pixel)), 0, LEVELS - 1).astype(np.int32)
    starts = column_starts(walls, face, share, level)
    up = (np.float32(camera.height) - distance[:, None] * rays.down) * np.float32(TEXELS)
    texels = sample(walls, starts, level, up)
    depth = np.broadcast_to(distance[:, None], texels.shape).copy()

    above = rays.down <= 0
    split = int(above.sum())
    sky = np.broadcast_to(_sky(rays.down), texels.shape)
    empty = texels < np.uint32(1 << 24)  # material 0, the highest byte
    texels[empty] = sky[empty]
    depth[empty] = SKY_DEPTH

    ground_depth = np.float32(camera.height) / rays.down[split:]
    east = rays.origin[0][:, None] + ground_depth * rays.ray[0][:, None]
    north = rays.origin[1][:, None] + ground_depth * rays.ray[1][:, None]
    ground = scenery.ground.look_up(east, north)
    is_ground = up[:, split:] < 0
    texels[:, split:] = np.where(is_ground, ground, texels[:, split:])
    depth[:, split:] = np.where(is_ground, ground_depth, depth[:, split:])
    return texels, depth, distance


def _visible_objects(scenery: Scenery, camera: Camera, local: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """Nearest objects in view, N × K × (right, depth, width, height, sprite); depth is inf where none."""
    objects = scenery.objects
    angle = np.radians(heading.astype(np.float64))[:, None]
    east = objects[:, 0] - local[:, :1]
    north = objects[:, 1] - local[:, 1:]
    depth = east * np.sin(angle) + north * np.cos(angle)
    right = east * np.cos(angle) - north * np.sin(angle)
    edge = np.tan(np.radians(camera.field_of_view) / 2)
    seen = (depth > 1.0) & (depth < 120) & (np.abs(right) < depth * edge + objects[:, 2])
    depth = np.where(seen, depth, np.inf)
    nearest = np.argsort(depth, axis=1, kind="stable")[:, :NEAREST_OBJECTS]
    out = np.empty((*nearest.shape, 5), np.float32)
    out[..., 0] = np.take_along_axis(right, nearest, axis=1)
    out[..., 1] = np.take_along_axis(depth, nearest, axis=1)
    out[..., 2:] = objects[nearest, 2:]
    return out


def _vehicles(camera: Camera, level: float, seed: int, wall_depth: np.ndarray) -> np.ndarray:
    """VEHICLES × (right, depth, width, height, sprite): a higher level brings more of them, and nearer."""
    rng = np.random.default_rng([seed, 1])
    edge = np.tan(np.radians(camera.field_of_view) / 2)
    stations = (rng.permutation(VEHICLES) + rng.random(VEHICLES)) / VEHICLES
    kinds = np.sort(rng.choice(3, size=VEHICLES, p=[0.45, 0.3, 0.25]))  # small ones come first
    number = rng.integers(0, 8, VEHICLES)
    enters = 0.8 * (np.arange(VEHICLES) + rng.random(VEHICLES)) / VEHICLES
    enters[0] = 0.0
    near = 11 - 7 * np.clip((level - enters) / (1 - enters), 0, 1)
    column = np.clip((stations * len(wall_depth)).astype(int), 0, len(wall_depth) - 1)
    depth = np.minimum(near, 0.85 * wall_depth[column])
    length, height = np.array(VEHICLE_METRES)[kinds].T
    sprite = np.array([CARS[0], VANS[0], BUSES[0]])[kinds] + number
    right = (2 * stations - 1) * edge * depth
    depth = np.where(level > enters, depth, np.inf)
    return np.stack([right, depth, length, height, sprite], axis=1).astype(np.float32)


def _draw_sprites(
    scenery: Scenery,
    camera: Camera,
    rays: _Rays,
    things: np.ndarray,
    wall_depth: np.ndarray,
    fallen: np.ndarray,
    texels: np.ndarray,
    depth: np.ndarray,
) -> None:
    """Paint `things` (N × K × 5) over texels and depth (C × H), far first; leaves below `fallen` are gone."""
    images, width = len(things), len(rays.across)
    order = np.argsort(things[..., 1], axis=1, kind="stable")
    things = np.take_along_axis(things, order[..., None], axis=1)
    right, far, wide, high, sprite = (things[..., number] for number in range(5))
    far = np.where(np.isfinite(far), far, np.float32(1e6))
    share = (rays.across * far[..., None] - right[..., None]) / wide[..., None] + np.float32(0.5)
    hit = (share >= 0) & (share < 1) & (far[..., None] < wall_depth.reshape(images, 1, width))
    layers = []
    for _ in range(LAYERS):
        first = hit.argmax(axis=1)
        image, column = np.nonzero(np.take_along_axis(hit, first[:, None], axis=1)[:, 0])
        thing = first[image, column]
        hit[image, thing, column] = False
        layers.append((image, column, thing))
    for image, column, thing in reversed(layers):
        if not len(image):
            continue
        at = far[image, thing]
        tall = high[image, thing]
        index = sprite[image, thing].astype(np.int32)
        texels_per_pixel = at * np.float32(SIZE / rays.focal) / np.minimum(tall, wide[image, thing])
        level = np.clip(np.floor(np.log2(texels_per_pixel)), 0, LEVELS - 1).astype(np.int32)
        starts = column_starts(scenery.sprites, index, share[image, thing, column], level)
        up = (np.float32(camera.height) - at[:, None] * rays.down) * (np.float32(SIZE) / tall)[:, None]
        drawn = sample(scenery.sprites, starts, level, up)
        material = drawn >> np.uint32(24)
        solid = (material > 0) & (up >= 0) & (up < SIZE)
        solid &= (material < LEAF) | (material >= LEAF + fallen[image, None])
        row = image * width + column
        texels[row] = np.where(solid, drawn, texels[row])
        depth[row] = np.where(solid, at[:, None], depth[row])


def draw(
    scenery: Scenery,
    camera: Camera,
    local: np.ndarray,
    heading: np.ndarray,
    occlusion: np.ndarray,
    season: np.ndarray,
    seeds: np.ndarray,
    height: int,
    width: int,
) -> Picture:
    """Draw N pictures with their vehicles and without fallen leaves, in the colours of a clear summer day."""
    rays = make_rays(camera, local, heading, width, height)
    texels, depth, wall_depth = _draw_walls(scenery, camera, rays)
    objects = _visible_objects(scenery, camera, local, heading)
    of_image = wall_depth.reshape(len(local), width)
    traffic = np.full((len(local), VEHICLES, 5), np.inf, np.float32)
    traffic[..., [0, 2, 3, 4]] = 1
    for row in np.flatnonzero(occlusion > 0):
        traffic[row] = _vehicles(camera, float(occlusion[row]), int(seeds[row]), of_image[row])
    things = np.concatenate([objects, traffic], axis=1)
    fallen = (np.clip(season - 0.3, 0, 1) / 0.6 * 128).astype(np.uint32)  # all gone at 0.9
    _draw_sprites(scenery, camera, rays, things, wall_depth, fallen, texels, depth)
    shape = (len(local), width, height)
    return Picture(texels.reshape(shape), depth.reshape(shape))


def wall_kinds(district: District, camera: Camera, local: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """Kind of the wall (UNIQUE, ALIASED, FEATURELESS) seen by each of 64 columns: N × 64."""
    rays = make_rays(camera, local, heading, 64, 1)
    _, face, _ = cast(district, rays.origin, rays.ray)
    return np.asarray(district.face_kind[face].reshape(len(local), 64))


def to_image(texels: np.ndarray) -> np.ndarray:
    """Packed N × width × height → uint8 N × height × width × 4 (colour and material)."""
    return unpack(texels.transpose(0, 2, 1))
