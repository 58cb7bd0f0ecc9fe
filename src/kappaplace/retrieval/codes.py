"""Product-quantised codes: a descriptor in at most 128 bytes, from a codebook learnt on the map's own.

The descriptor is turned so that each byte holds the same share of the energy, then cut into pieces, and each
piece is replaced by the nearest of 256. Plain NumPy and torch: a map of codes needs no further library.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

CODE_BYTES = 128
FEWEST = 1000  # references: with fewer, 256 pieces to choose from are hardly fewer than there are to tell
SAMPLE = 1 << 15  # references a codebook is learnt from
VALUES = 256  # of a byte
ROUNDS = 12  # of k-means; more gains less than a per mille of the error
STEP = 1 << 14  # rows encoded together
CACHED = 1 << 9  # points compared with the centres at a time: their distances stay in the cache, 15 × as fast


@dataclass(frozen=True, eq=False)
class Codebook:
    """How descriptors become codes and back."""

    rotation: NDArray[np.float32]
    """d×m: to the directions that were kept (all of them, and zeros where they do not fill the pieces)."""
    centres: NDArray[np.float32]
    """bytes × 256 × numbers a piece."""

    @property
    def width(self) -> int:
        """Bytes a descriptor."""
        return len(self.centres)

    def turn(self, descriptors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Into the space of the codes, where inner products are the same."""
        return np.asarray(descriptors, np.float32) @ self.rotation

    def encode(self, descriptors: NDArray[np.floating]) -> NDArray[np.uint8]:
        """One byte a piece: the number of the nearest centre."""
        codes = np.empty((len(descriptors), self.width), np.uint8)
        with _piece_by_piece() as pool:
            for start in range(0, len(codes), STEP):
                pieces = _pieces(self.turn(descriptors[start : start + STEP]), self.width)
                for column, found in enumerate(pool.map(_nearest, pieces, self.centres)):
                    codes[start : start + STEP, column] = found
        return codes

    def decode(self, codes: NDArray[np.uint8], *, turned: bool = False) -> NDArray[np.float32]:
        """The unit vectors that codes stand for; ``turned``: in the space of the codes, which is quicker."""
        flat = np.asarray(codes).reshape(-1, self.width)
        table = torch.from_numpy(self.centres.reshape(-1, self.centres.shape[2]))
        rows = torch.from_numpy(flat.astype(np.int32)) + torch.arange(
            0, len(table), VALUES, dtype=torch.int32
        )
        wide = torch.nn.functional.embedding(rows, table).reshape(len(flat), self.rotation.shape[1])
        wide /= wide.norm(dim=1, keepdim=True).clamp_min(1e-6)
        if not turned:
            wide = wide @ torch.from_numpy(self.rotation).T
        return wide.numpy().reshape(*np.shape(codes)[:-1], wide.shape[1])

    def to_array(self) -> NDArray[np.float32]:
        """All of it as one (d + 256)×m array: the rotation, and below it what each value of a byte means."""
        values = self.centres.transpose(1, 0, 2).reshape(VALUES, -1)
        return np.concatenate([self.rotation, values])

    @classmethod
    def from_array(cls, array: NDArray[np.floating], dim: int) -> Codebook:
        """Of `to_array`, for descriptors of ``dim`` dimensions."""
        wide = np.array(array, np.float32)
        bytes_, together = _cut(dim)
        if wide.shape != (dim + VALUES, bytes_ * together) or not np.isfinite(wide).all():
            raise KappaPlaceError(f"The codebook of shape {wide.shape} does not fit {dim} dimensions.")
        centres = wide[dim:].reshape(VALUES, bytes_, together).transpose(1, 0, 2)
        return cls(wide[:dim], np.ascontiguousarray(centres))


@torch.inference_mode()
def learn_codebook(descriptors: Any, *, rounds: int = ROUNDS) -> Codebook:
    """A codebook for descriptors like these, N×d, read by index; the same ones give the same codebook."""
    count = len(descriptors)
    if count < FEWEST:
        raise KappaPlaceError(
            f"Codes (pq) are learnt from at least {FEWEST:,} references, and here are {count:,}; "
            "keep them as float16 or int8."
        )
    rng = np.random.default_rng(0)
    sample = np.asarray(
        descriptors[np.sort(rng.choice(count, min(SAMPLE, count), replace=False))], np.float32
    )
    if not np.isfinite(sample).all():
        raise KappaPlaceError("Some descriptors are NaN or infinite; check the model and the images.")
    width, together = _cut(sample.shape[1])
    rotation = balanced_rotation(sample, width, together)
    start = rng.choice(len(sample), VALUES, replace=False)
    pieces = _pieces(sample @ rotation, width)
    with _piece_by_piece() as pool:
        centres = list(pool.map(lambda piece: _k_means(piece, piece[start], rounds), pieces))
    return Codebook(rotation, np.stack(centres))


def _cut(dim: int) -> tuple[int, int]:
    """Bytes, and numbers that share one: as few as 128 bytes allow."""
    together = -(-dim // CODE_BYTES)
    return -(-dim // together), together


def balanced_rotation(sample: NDArray[np.float32], pieces: int, together: int) -> NDArray[np.float32]:
    """The directions with the most energy, dealt out so that every piece has the same product of energies.

    That is the best allocation for Gaussian data (parametric OPQ). Not centred, unlike PCA: inner products
    must survive. d×(pieces·together), with columns of zeros where there are fewer directions than places.
    """
    energy, directions = np.linalg.eigh(sample.T @ sample)
    strongest = np.argsort(-energy)[: pieces * together]
    weight = np.log(np.maximum(energy[strongest], 1e-9 * energy.max()))
    weight -= weight[-1]
    dealt: list[list[int]] = [[] for _ in range(pieces)]
    load = np.zeros(pieces)
    for direction, share in zip(strongest, weight, strict=True):
        lightest = int(load.argmin())
        dealt[lightest].append(int(direction))
        load[lightest] = load[lightest] + share if len(dealt[lightest]) < together else np.inf
    turn = np.zeros((sample.shape[1], pieces, together), np.float32)
    for piece, mine in enumerate(dealt):
        turn[:, piece, : len(mine)] = directions[:, mine]
    return turn.reshape(len(turn), -1)


@contextmanager
def _piece_by_piece() -> Iterator[ThreadPoolExecutor]:
    """Threads that take whole pieces.

    Torch's own would share products so small that they wait for each other: two were three times slower than
    one alone.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(before, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def _pieces(turned: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """N×m as count × N × numbers a piece."""
    return np.ascontiguousarray(turned.reshape(len(turned), count, -1).transpose(1, 0, 2))


def _nearest(points: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """Of each point the nearest centre, by ‖c‖²/2 − p·c: the product of p and a one with −c and ‖c‖²/2."""
    half = 0.5 * np.einsum("nd,nd->n", centres, centres)
    weights = torch.from_numpy(np.concatenate([-centres, half[:, None]], 1).T.copy())
    wide = torch.from_numpy(np.concatenate([points, np.ones((len(points), 1), np.float32)], 1))
    found, distances = np.empty(len(points), np.int64), torch.empty(CACHED, len(centres))
    for start in range(0, len(points), CACHED):
        part = wide[start : start + CACHED]
        # NumPy's argmin and torch's product: each is several times as fast as the other's.
        here = torch.mm(part, weights, out=distances[: len(part)])
        found[start : start + CACHED] = here.numpy().argmin(1)
    return found


def _k_means(points: NDArray[np.float32], centres: NDArray[np.float32], rounds: int) -> NDArray[np.float32]:
    """Lloyd's rounds from given centres; one that loses all its points stays where it was."""
    for _ in range(rounds):
        nearest = _nearest(points, centres)
        count = np.bincount(nearest, minlength=len(centres))[:, None]
        total = np.stack([np.bincount(nearest, column, len(centres)) for column in points.T], 1)
        centres = np.where(count > 0, total / np.maximum(count, 1), centres).astype(np.float32)
    return centres
