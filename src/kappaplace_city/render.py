"""Render images without weather: walls by ray casting, then ground and sky, then sprites in front.

Arrays are ordered by image column (C = images × width) and then by row. All pixels of a column show the same
wall at the same distance, and the same column of the wall's texture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kappaplace.checks import within
from kappaplace_city.facades import LEAF, SKY, TEXELS, paint_face
from kappaplace_city.scenery import (
    BUSES,
    CARS,
    LEVELS,
    SIZE,
    VANS,
    VEHICLE_METERS,
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

NEAREST_OBJECTS = 24  # per image; objects further away are hidden or tiny
LAYERS = 3  # sprites that one column can show behind each other
VEHICLES = 8  # per image at full occlusion
SKY_DEPTH = np.float32(400)


@dataclass(frozen=True)
class Camera:
    """A level pinhole camera."""

    height: float = 2.0  # metres above the road
    field_of_view: float = 80.0  # degrees, horizontal

    def __post_init__(self) -> None:
        within(self.height, "height", 0.5, 5)
        within(self.field_of_view, "field_of_view", 10, 150)

    def focal(self, width: int) -> float:
        """Focal length in pixels."""
        return width / 2 / float(np.tan(np.radians(self.field_of_view) / 2))


@dataclass(frozen=True)
class Scenery:
    """A district with all its painted textures."""

    district: District
    walls: Atlas
    sprites: Atlas
    objects: np.ndarray
    ground: Ground
    wall_axis: np.ndarray  # per face: the axis perpendicular to its wall


@dataclass(frozen=True)
class Photos:
    """N photographs to draw in one district."""

    local: np.ndarray  # N × 2 metres in the district
    heading: np.ndarray  # N degrees clockwise from north
    occlusion: np.ndarray  # N levels of occlusion by vehicles
    season: np.ndarray  # N levels: leaves fall from 0.3 to 0.9
    seeds: np.ndarray  # N random seeds, for the vehicles


@dataclass(frozen=True)
class Rendering:
    """Packed colours and materials, and depth in metres, both N × width × height (columns first)."""

    texels: np.ndarray
    depth: np.ndarray


@dataclass(frozen=True)
class _Rays:
    origin: np.ndarray  # 2 × C
    ray: np.ndarray  # 2 × C; one unit is one metre of depth
    across: np.ndarray  # W: metres to the right per metre of depth
    down: np.ndarray  # H: metres down per metre of depth
    focal: float


def paint_scenery(district: District, city_seed: int) -> Scenery:
    """Paint all textures of a district."""
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


def make_rays(camera: Camera, local: np.ndarray, heading: np.ndarray, size: tuple[int, int]) -> _Rays:
    """Return the rays of all image columns.

    Args:
        camera: The camera.
        local: Positions, N×2 metres in the district.
        heading: Directions, N degrees clockwise from north.
        size: Height and width of the images in pixels.

    Returns:
        Rays of all columns, image after image.
    """
    height, width = size
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
    """Return packed colours from the horizon to the top of the image."""
    blend = np.clip(-down / 0.8, 0, 1)[:, None]
    color = np.array([206.0, 220, 232]) * (1 - blend) + np.array([108.0, 158, 214]) * blend
    return pack(np.concatenate([color, np.full((len(down), 1), SKY)], axis=1).astype(np.uint8))


def _draw_walls(scenery: Scenery, camera: Camera, rays: _Rays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return texels and depth (C × H) of walls, ground and sky, and the depth of each column's wall."""
    distance, face, along = cast(scenery.district, rays.origin, rays.ray)
    walls = scenery.walls
    position = along * np.float32(TEXELS) / walls.widths[face]
    square = np.where(scenery.wall_axis[face] == 0, np.abs(rays.ray[0]), np.abs(rays.ray[1]))
    slant = np.hypot(rays.ray[0], rays.ray[1]) / np.maximum(square, np.float32(0.02))
    texels_per_pixel = distance * np.float32(TEXELS / rays.focal) * np.sqrt(slant)
    level = np.clip(np.rint(np.log2(texels_per_pixel)), 0, LEVELS - 1).astype(np.int32)
    starts = column_starts(walls, face, position, level)
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
    """Return the nearest visible objects, N × K × (right, depth, width, height, sprite)."""
    objects = scenery.objects
    angle = np.radians(heading.astype(np.float64))[:, None]
    east = objects[:, 0] - local[:, :1]
    north = objects[:, 1] - local[:, 1:]
    depth = east * np.sin(angle) + north * np.cos(angle)
    right = east * np.cos(angle) - north * np.sin(angle)
    edge = np.tan(np.radians(camera.field_of_view) / 2)
    visible = (depth > 1.0) & (depth < 120) & (np.abs(right) < depth * edge + objects[:, 2])
    depth = np.where(visible, depth, np.inf)
    nearest = np.argsort(depth, axis=1, kind="stable")[:, :NEAREST_OBJECTS]
    out = np.empty((*nearest.shape, 5), np.float32)
    out[..., 0] = np.take_along_axis(right, nearest, axis=1)
    out[..., 1] = np.take_along_axis(depth, nearest, axis=1)
    out[..., 2:] = objects[nearest, 2:]
    return out


def _vehicles(camera: Camera, level: float, seed: int, wall_depth: np.ndarray) -> np.ndarray:
    """Return VEHICLES × (right, depth, width, height, sprite); a higher level has more and nearer ones."""
    rng = np.random.default_rng([seed, 1])
    edge = np.tan(np.radians(camera.field_of_view) / 2)
    stations = (rng.permutation(VEHICLES) + rng.random(VEHICLES)) / VEHICLES
    kinds = np.sort(rng.choice(3, size=VEHICLES, p=[0.45, 0.3, 0.25]))  # small vehicles first
    number = rng.integers(0, 8, VEHICLES)
    enters = 0.8 * (np.arange(VEHICLES) + rng.random(VEHICLES)) / VEHICLES
    enters[0] = 0.0
    near = 11 - 7 * np.clip((level - enters) / (1 - enters), 0, 1)
    column = np.clip((stations * len(wall_depth)).astype(int), 0, len(wall_depth) - 1)
    depth = np.minimum(near, 0.85 * wall_depth[column])
    length, height = np.array(VEHICLE_METERS)[kinds].T
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
    """Paint `things` (N × K × 5) over texels and depth (C × H), far first, without leaves below `fallen`."""
    images, width = len(things), len(rays.across)
    order = np.argsort(things[..., 1], axis=1, kind="stable")
    things = np.take_along_axis(things, order[..., None], axis=1)
    right, far, wide, high, sprite = (things[..., number] for number in range(5))
    far = np.where(np.isfinite(far), far, np.float32(1e6))
    along = (rays.across * far[..., None] - right[..., None]) / wide[..., None] + np.float32(0.5)
    hit = (along >= 0) & (along < 1) & (far[..., None] < wall_depth.reshape(images, 1, width))
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
        starts = column_starts(scenery.sprites, index, along[image, thing, column], level)
        up = (np.float32(camera.height) - at[:, None] * rays.down) * (np.float32(SIZE) / tall)[:, None]
        pixels = sample(scenery.sprites, starts, level, up)
        material = pixels >> np.uint32(24)
        solid = (material > 0) & (up >= 0) & (up < SIZE)
        solid &= (material < LEAF) | (material >= LEAF + fallen[image, None])
        row = image * width + column
        texels[row] = np.where(solid, pixels, texels[row])
        depth[row] = np.where(solid, at[:, None], depth[row])


def draw(scenery: Scenery, camera: Camera, photos: Photos, size: tuple[int, int]) -> Rendering:
    """Draw photographs with vehicles and without fallen leaves, in the colours of a clear summer day.

    Args:
        scenery: The painted district.
        camera: The camera.
        photos: Poses and conditions.
        size: Height and width in pixels.

    Returns:
        Colours, materials and depth of the images.
    """
    count, (height, width) = len(photos.local), size
    rays = make_rays(camera, photos.local, photos.heading, size)
    texels, depth, wall_depth = _draw_walls(scenery, camera, rays)
    objects = _visible_objects(scenery, camera, photos.local, photos.heading)
    walls = wall_depth.reshape(count, width)
    traffic = np.full((count, VEHICLES, 5), np.inf, np.float32)
    traffic[..., [0, 2, 3, 4]] = 1
    for row in np.flatnonzero(photos.occlusion > 0):
        traffic[row] = _vehicles(camera, float(photos.occlusion[row]), int(photos.seeds[row]), walls[row])
    things = np.concatenate([objects, traffic], axis=1)
    fallen = (np.clip(photos.season - 0.3, 0, 1) / 0.6 * 128).astype(np.uint32)  # all leaves at 0.9
    _draw_sprites(scenery, camera, rays, things, wall_depth, fallen, texels, depth)
    shape = (count, width, height)
    return Rendering(texels.reshape(shape), depth.reshape(shape))


def wall_kinds(district: District, camera: Camera, local: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """Return the kind of wall (UNIQUE, ALIASED, FEATURELESS) in each of 64 image columns, N × 64."""
    rays = make_rays(camera, local, heading, (1, 64))
    _, face, _ = cast(district, rays.origin, rays.ray)
    return np.asarray(district.face_kind[face].reshape(len(local), 64))


def to_image(texels: np.ndarray) -> np.ndarray:
    """Unpack N × width × height to uint8 N × height × width × 4 (colour and material)."""
    return unpack(texels.transpose(0, 2, 1))
