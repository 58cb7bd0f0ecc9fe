"""The plan of one district: a closed grid of streets with its façades.

Local coordinates are metres east and north of the district's origin. The road of street `i` fills the class
cell [pitch·i, pitch·i + 10). The usual 10 m cells of place recognition therefore contain whole stretches of
road.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kappaplace.checks import choice

SPLITS = ("train", "val", "test")  # one district each
CELL = 10.0  # metres; the usual class cell of place recognition
STREET_WIDTH = 16.0  # wall to wall: 10 m of road and 3 m of pavement on either side
PAVEMENT = 3.0
ROAD_WIDTH = STREET_WIDTH - 2 * PAVEMENT
PITCH = np.array([80.0, 60.0])  # from street to street, along east and along north; whole class cells

UNIQUE, ALIASED, FEATURELESS = 0, 1, 2
# Direction of a street: along NORTH (its walls face east and west) or along EAST.
EAST, NORTH = 0, 1


@dataclass(frozen=True)
class Segment:
    """A street between two junctions, with its walls; it can be repeated or blank."""

    axis: int  # EAST or NORTH: its direction
    street: int
    index: int
    seed: int  # aliased segments share it
    kind: int  # UNIQUE, ALIASED or FEATURELESS

    @property
    def start(self) -> np.ndarray:
        """Local (east, north) of the start of the segment, in the middle of the road."""
        start = np.empty(2)
        start[1 - self.axis] = self.street * PITCH[1 - self.axis] + ROAD_WIDTH / 2
        start[self.axis] = self.index * PITCH[self.axis] + ROAD_WIDTH + PAVEMENT
        return start

    @property
    def length(self) -> float:
        """Metres between the junctions."""
        return float(PITCH[self.axis] - STREET_WIDTH)


@dataclass(frozen=True)
class Face:
    """One stretch of wall; `side` 0..3 is west, east, south, north of its street."""

    seed: int
    side: int
    length: float
    kind: int


@dataclass(frozen=True)
class District:
    """Geometry of a district; faces and sprites are painted elsewhere from the same seeds."""

    blocks: tuple[int, int]
    segments: tuple[Segment, ...]
    faces: tuple[Face, ...]
    # Index of the face on wall line k across axis a, in interval j along the other axis; -1 is open.
    walls: tuple[np.ndarray, np.ndarray]
    edges: tuple[np.ndarray, np.ndarray]
    face_kind: np.ndarray = field(repr=False)

    @property
    def low(self) -> np.ndarray:
        """South-west corner, in local metres."""
        return np.array([self.edges[0][0], self.edges[1][0]])

    @property
    def high(self) -> np.ndarray:
        """North-east corner, in local metres."""
        return np.array([self.edges[0][-1], self.edges[1][-1]])


def split_number(split: str) -> int:
    """Return the number of a split; fail for an unknown name."""
    choice(split, SPLITS, "split")
    return SPLITS.index(split)


def _interval(coordinate: np.ndarray, pitch: float) -> np.ndarray:
    """Return the number of the street (even) or block (odd) at a coordinate along one axis."""
    shifted = coordinate + np.float32(PAVEMENT)
    number = np.floor(shifted / np.float32(pitch))
    in_block = shifted - number * np.float32(pitch) >= np.float32(STREET_WIDTH)
    return 2 * number.astype(np.int32) + in_block


def on_street(district: District, local: np.ndarray, margin: float = 0.3) -> np.ndarray:
    """Check whether each local position (N×2) is road or pavement, at least `margin` metres from any wall."""
    inside = np.all((local >= district.low + margin) & (local <= district.high - margin), axis=1)
    free = np.zeros(len(local), bool)
    for axis in (EAST, NORTH):
        across = (local[:, axis] + PAVEMENT) % PITCH[axis]
        free |= (across >= margin) & (across <= STREET_WIDTH - margin)
    return np.asarray(inside & free)


def _plan_segments(
    blocks: tuple[int, int], first_seed: int, rng: np.random.Generator, aliased: float, featureless: float
) -> tuple[Segment, ...]:
    places = [(NORTH, street, row) for street in range(blocks[0] + 1) for row in range(blocks[1])]
    places += [(EAST, street, column) for street in range(blocks[1] + 1) for column in range(blocks[0])]
    count = len(places)
    seeds = first_seed + np.arange(count)
    kinds = np.full(count, UNIQUE)
    blank = rng.permutation(count)[: round(featureless * count)]
    kinds[blank] = FEATURELESS
    # Four or more blank streets look alike, so that a blank wall does not give its street away.
    seeds[blank] = first_seed + count + np.arange(len(blank)) % max(1, len(blank) // 4)
    pair_count = round(aliased * count / 2)
    for axis in (NORTH, EAST):  # only streets in the same direction can look the same
        of_axis = [number for number, place in enumerate(places) if place[0] == axis]
        free = rng.permutation([number for number in of_axis if kinds[number] == UNIQUE])
        pairs = min(len(free) // 2, (pair_count + (axis == NORTH)) // 2)
        for one, other in free[: 2 * pairs].reshape(-1, 2):
            kinds[[one, other]] = ALIASED
            seeds[other] = seeds[one]
    return tuple(
        Segment(*place, int(seed), int(kind)) for place, seed, kind in zip(places, seeds, kinds, strict=True)
    )


def plan_district(
    blocks: tuple[int, int], first_seed: int, entropy: tuple[int, ...], aliased: float, featureless: float
) -> District:
    """Plan the streets and walls of one district, with its repeated and blank segments.

    Args:
        blocks: Building blocks along east and north.
        first_seed: Seed of the first segment.
        entropy: Random seed of the plan.
        aliased: Fraction of segments that look like another one.
        featureless: Fraction of blank segments.

    Returns:
        The plan of the district.
    """
    rng = np.random.default_rng(entropy)
    segments = _plan_segments(blocks, first_seed, rng, aliased, featureless)
    faces: list[Face] = []
    walls = []
    edges = []
    for axis in (EAST, NORTH):
        corners = np.arange(blocks[axis] + 1)[:, None] * PITCH[axis] + [-PAVEMENT, ROAD_WIDTH + PAVEMENT]
        edges.append(corners.ravel().astype(np.float32))
        walls.append(np.full((2 * blocks[axis] + 2, 2 * blocks[1 - axis] + 1), -1, np.int32))
    for segment in segments:
        across = 1 - segment.axis
        for far in (0, 1):
            walls[across][2 * segment.street + far, 2 * segment.index + 1] = len(faces)
            faces.append(Face(segment.seed, 2 * across + far, segment.length, segment.kind))
    # The outermost walls also close the streets that would leave the district.
    junction_seed = first_seed + 2 * len(segments)
    for axis in (EAST, NORTH):
        for far, line in ((0, 0), (1, len(edges[axis]) - 1)):
            for interval in range(0, walls[axis].shape[1], 2):
                walls[axis][line, interval] = len(faces)
                faces.append(Face(junction_seed, 2 * axis + far, STREET_WIDTH, UNIQUE))
                junction_seed += 1
    kinds = np.array([face.kind for face in faces], np.int8)
    return District(blocks, segments, tuple(faces), (walls[0], walls[1]), (edges[0], edges[1]), kinds)


def cast(
    district: District, origin: np.ndarray, ray: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the first wall on each ray.

    There are few wall lines and they are parallel to the axes, so every ray is intersected with every line.

    Args:
        district: The plan.
        origin: Start of each ray, 2 × C float32.
        ray: Direction of each ray, 2 × C float32.

    Returns:
        Distance in units of the ray, face, and metres along the face, each C.
    """
    count = origin.shape[1]
    nearest = np.full(count, np.inf, np.float32)
    face = np.zeros(count, np.int32)
    along = np.zeros(count, np.float32)
    for axis in (EAST, NORTH):
        across_ray = np.where(np.abs(ray[axis]) < 1e-6, np.float32(1e-6), ray[axis])
        table = district.walls[axis]
        other_pitch = float(PITCH[1 - axis])
        for line, edge in enumerate(district.edges[axis]):
            distance = (edge - origin[axis]) / across_ray
            hit = np.flatnonzero((distance > 1e-4) & (distance < nearest))
            if not len(hit):
                continue
            position = origin[1 - axis][hit] + distance[hit] * ray[1 - axis][hit]
            interval = np.clip(_interval(position, other_pitch), 0, table.shape[1] - 1)
            faces = table[line][interval]
            solid = faces >= 0
            hit, interval, position = hit[solid], interval[solid], position[solid]
            nearest[hit] = distance[hit]
            face[hit] = faces[solid]
            along[hit] = position - district.edges[1 - axis][interval]
    return nearest, face, along
