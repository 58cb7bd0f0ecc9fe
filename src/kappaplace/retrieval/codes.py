"""Product quantization: descriptors as codes of at most 128 bytes, with a codebook fitted on the map.

The codes minimize the error of similarities, not the error of descriptors. An error in a direction counts
more if queries vary more in that direction. Each strong direction therefore gets a byte, and weak
directions share one. Rounding shortens vectors, some more than others, so the last byte stores how much to
lengthen the weak directions: similarities are then correct on average. Only NumPy and torch are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

CODE_BYTES = 128
FEWEST = 1000
"""Smallest number of references to fit a codebook on, because each byte has 256 centers."""
SAMPLE = 1 << 15
"""Largest number of references to fit a codebook on."""
VALUES = 256  # values of a byte
BITS = 8  # bits of a byte
ROUNDS = 12  # k-means iterations; more of them reduce the error by less than 0.1%
STEP = 1 << 14  # rows that are encoded at once
CACHED = 1 << 9  # points per comparison with the centers: their distances fit in the CPU cache (15× as fast)
WHOLE: dict[int, np.dtype] = {1: np.dtype("f4"), 2: np.dtype("c8"), 4: np.dtype("c16")}
"""Data types by size, as a number of float32 values."""
POWER = 0.75
"""Weight of an error: energy ** POWER. With 0, errors of similarities are a third larger."""
ODD = 0.001  # fraction of gains at either end that the last byte clips
WEAKEST = 0.01  # lowest energy in the weight of a direction, as a fraction of the mean energy
NOT_FINITE = "Some descriptors are NaN or infinite. Check the model and the images."


class Column(Protocol):
    """An array, or an object that is read like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: NDArray[np.int64] | slice, /) -> NDArray[np.floating]: ...


def check_finite(descriptors: NDArray[np.floating]) -> None:
    """Raise an error if a descriptor is NaN or infinite."""
    if not np.isfinite(descriptors).all():
        raise KappaPlaceError(NOT_FINITE)


@dataclass(frozen=True, eq=False)
class Codebook:
    """Conversion between descriptors and codes."""

    rotation: NDArray[np.float32]
    """Rotation to the stored directions, d×m. The directions of one byte are adjacent."""
    values: NDArray[np.float32]
    """Center that each value of a byte represents, 256×m."""
    sizes: tuple[int, ...]
    """Number of directions of each byte; equal numbers are adjacent."""
    weights: NDArray[np.float32] | None = None
    """Weight of a squared error in each direction, m. None in old maps: no weights, no gain, and decoded
    vectors have unit length."""
    gains: tuple[float, float] = (0.0, 0.0)
    """Gains that the values 0 and 255 of the last byte represent."""

    @property
    def width(self) -> int:
        """Bytes per descriptor."""
        return len(self.sizes) + (self.weights is not None)

    def turn(self, descriptors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Rotate descriptors into the space of the codes, which preserves inner products."""
        return np.asarray(descriptors, np.float32) @ self.rotation

    def encode(self, descriptors: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Return the codes of descriptors: the nearest center (by weighted error) per byte, and the gain."""
        codes = np.empty((len(descriptors), self.width), np.uint8)
        scale = np.float32(1) if self.weights is None else np.sqrt(self.weights)
        centers = split_columns(self.values * scale, self.sizes)
        with piece_by_piece() as pool:
            for start in range(0, len(codes), STEP):
                block = np.asarray(descriptors[start : start + STEP], np.float32)
                rotated, part = self.turn(block), codes[start : start + STEP]
                pieces = split_columns(rotated * scale, self.sizes)
                for column, nearest in enumerate(pool.map(nearest_center, pieces, centers)):
                    part[:, column] = nearest
                if self.weights is not None:
                    length = np.einsum("nd,nd->n", block, block)
                    part[:, -1] = self._gain_bytes(_gains(rotated, length, self._centers(part), self.weights))
        return codes

    def decode(self, codes: NDArray[np.uint8], *, turned: bool = False) -> NDArray[np.float32]:
        """Return the vectors that codes represent.

        The products of these vectors with descriptors are correct on average, so their length is slightly
        above 1.

        Args:
            codes: Codes of shape (..., width).
            turned: Return vectors in the space of the codes, which is faster.

        Returns:
            Vectors of shape (..., d), or (..., m) in the space of the codes.
        """
        flat = np.asarray(codes).reshape(-1, self.width)
        wide = np.empty((len(flat), self.values.shape[1]), np.float32)
        for start in range(0, len(flat), CACHED):
            part = flat[start : start + CACHED]
            centers = self._centers(part)
            if self.weights is None:
                centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-6)
            else:
                centers *= 1 + self._gain(part[:, -1:]) * _weak(self.weights)
            wide[start : start + CACHED] = centers
        if not turned:
            wide = (torch.from_numpy(wide) @ torch.from_numpy(self.rotation).T).numpy()
        return wide.reshape(*np.shape(codes)[:-1], wide.shape[1])

    def products(self, query: NDArray[np.float32], codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the inner products of one query with codes, without decoding them.

        A table contains the contribution of each byte value to the product and to its correction. Both are
        parts of one complex number, so that one lookup returns them. For a single query, this is several
        times as fast as decoding.

        Args:
            query: One query in the space of the codes, m.
            codes: Codes, N×width.

        Returns:
            Products (N).
        """
        starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        product = query * self.values
        correction = self.values**2 if self.weights is None else product * _weak(self.weights)
        table = np.empty(VALUES * len(self.sizes), np.complex64)
        table.real, table.imag = (
            np.add.reduceat(part, starts, axis=1).T.ravel() for part in (product, correction)
        )
        offsets = np.arange(0, len(table), VALUES, dtype=np.int32)
        products = np.empty(len(codes), np.float32)
        for start in range(0, len(codes), CACHED):
            part = np.asarray(codes[start : start + CACHED])
            total = table.take(part[:, : len(offsets)] + offsets).sum(axis=1)
            products[start : start + CACHED] = (
                total.real / np.maximum(np.sqrt(total.imag), 1e-6)
                if self.weights is None
                else total.real + self._gain(part[:, -1]) * total.imag
            )
        return products

    def _centers(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Look up the centers of all bytes, N×m; bytes of equal size at once."""
        wide = np.empty((len(codes), self.values.shape[1]), np.float32)
        byte, column = 0, 0
        for table in self._tables:
            count = len(table) // len(self.values)
            end = column + count * table.itemsize // 4
            offsets = np.arange(0, len(table), len(self.values), dtype=np.int32)
            centers = np.take(table, codes[:, byte : byte + count] + offsets)
            wide[:, column:end] = centers.view(np.float32).reshape(len(codes), -1)
            byte, column = byte + count, end
        return wide

    @cached_property
    def _tables(self) -> list[NDArray]:
        """All centers of bytes of equal size, one array element per center.

        Taking whole elements is several times as fast as taking rows of numbers.
        """
        tables, column = [], 0
        for size, run in groupby(self.sizes):
            count = len(list(run))
            end = column + count * size
            table = self.values[:, column:end].reshape(-1, count, size).transpose(1, 0, 2)
            element = WHOLE.get(size, np.dtype((np.void, 4 * size)))
            tables.append(np.ascontiguousarray(table).view(element).ravel())
            column = end
        return tables

    def _gain(self, byte: NDArray[np.uint8]) -> NDArray[np.float32]:
        lowest, highest = self.gains
        return lowest + byte.astype(np.float32) * np.float32((highest - lowest) / (VALUES - 1))

    def _gain_bytes(self, gains: NDArray[np.float32]) -> NDArray[np.uint8]:
        lowest, highest = self.gains
        fraction = (gains - lowest) / max(highest - lowest, 1e-9)
        return np.rint(np.clip(fraction, 0, 1) * (VALUES - 1)).astype(np.uint8)

    def to_array(self) -> NDArray[np.float32]:
        """Return the codebook as one array of m columns.

        Its rows are the rotation, the 256 centers, and (with weights) weight, byte number, lowest and highest
        gain.
        """
        parts = [self.rotation, self.values]
        if self.weights is not None:
            columns = self.rotation.shape[1]
            byte = np.repeat(np.arange(len(self.sizes)), self.sizes)
            parts.append(np.stack([self.weights, byte, *(np.full(columns, gain) for gain in self.gains)]))
        return np.concatenate(parts).astype(np.float32)

    @classmethod
    def from_array(cls, array: NDArray[np.floating], dim: int) -> Codebook:
        """Return the codebook that `to_array` stored.

        Args:
            array: The stored array.
            dim: Dimension of the descriptors.

        Returns:
            The codebook.

        Raises:
            KappaPlaceError: If the array is not a codebook for this dimension.
        """
        wide = np.array(array, np.float32)
        if wide.ndim == 2 and wide.size and np.isfinite(wide).all():
            rotation, values, more = np.split(wide, [dim, dim + VALUES])
            if wide.shape == (dim + VALUES, int(np.prod(_cut(dim)))):  # old maps without weights
                bytes_, together = _cut(dim)
                return cls(rotation, values, (together,) * bytes_)
            if len(wide) == dim + VALUES + 4 and (more[0] > 0).all():
                byte, sizes = np.unique(more[1], return_counts=True)
                in_order = np.array_equal(np.repeat(np.arange(len(sizes)), sizes), more[1])
                if in_order and len(byte) < CODE_BYTES:
                    gains = float(more[2, 0]), float(more[3, 0])
                    return cls(rotation, values, tuple(map(int, sizes)), more[0], gains)
        raise KappaPlaceError(
            f"The codebook of shape {wide.shape} does not fit {dim} dimensions. Run `kappaplace map verify`."
        )


@torch.inference_mode()
def learn_codebook(descriptors: Column, *, rounds: int = ROUNDS) -> Codebook:
    """Fit a codebook; the same descriptors always give the same codebook.

    Args:
        descriptors: Descriptors N×d, at least 1,000.
        rounds: Number of k-means iterations.

    Returns:
        The codebook.

    Raises:
        KappaPlaceError: If there are too few descriptors, or if some are not finite.
    """
    count = descriptors.shape[0]
    if count < FEWEST:
        raise KappaPlaceError(
            f"Codes (pq) need at least {FEWEST:,} references, got {count:,}. Store them as float16 or int8."
        )
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(count, min(SAMPLE, count), replace=False))
    sample = np.asarray(descriptors[rows], np.float32)
    check_finite(sample)
    energy, directions = np.linalg.eigh(sample.T @ sample / len(sample))
    weight = np.maximum(energy, WEAKEST * energy.mean()) ** POWER
    # Unlike in PCA, nothing is centered: inner products must not change.
    spread = weight * np.maximum((sample @ directions.astype(np.float32)).var(axis=0), 1e-9 * energy.max())
    groups = sorted(byte_groups(spread, min(CODE_BYTES - 1, sample.shape[1])), key=len)
    order = np.concatenate([np.array(group) for group in groups])
    rotation, weights = directions[:, order].astype(np.float32), weight[order].astype(np.float32)
    sizes, rotated = tuple(map(len, groups)), sample @ rotation
    start = rng.choice(len(sample), VALUES, replace=False)
    with piece_by_piece() as pool:
        pieces = split_columns(rotated * np.sqrt(weights), sizes)
        centers = list(pool.map(lambda piece: k_means(piece, piece[start], rounds), pieces))
    values = np.concatenate(centers, axis=1) / np.sqrt(weights)
    book = Codebook(rotation, values, sizes, weights)
    length = np.einsum("nd,nd->n", sample, sample)
    gains = _gains(rotated, length, book._centers(book.encode(sample)), weights)
    # Outliers are clipped, because a single one would leave few steps for the others.
    lowest, highest = np.quantile(gains, [ODD, 1 - ODD]).tolist()
    return Codebook(rotation, values, sizes, weights, (lowest, highest))


def byte_groups(spread: NDArray[np.floating], bytes_: int) -> list[list[int]]:
    """Return the directions of each byte, so that all bytes represent the same amount of information.

    A direction gets half a bit for every factor of two by which its weighted variance exceeds a level, from 0
    to 8 bits. The level is chosen so that all bytes are used (reverse water-filling, optimal for Gaussian
    data).
    """
    low, high = np.log2(spread.min()) - 2 * BITS - 1, np.log2(spread.max())
    for _ in range(60):
        level = (low + high) / 2
        bits = np.clip((np.log2(spread) - level) / 2, 0, BITS)
        low, high = (level, high) if bits.sum() > BITS * bytes_ else (low, level)
    groups: list[list[int]] = [[] for _ in range(bytes_)]
    load = np.zeros(bytes_)
    for direction in np.argsort(-bits, kind="stable"):
        lightest = int(load.argmin())
        if bits[direction] > 0:
            groups[lightest].append(int(direction))
            load[lightest] += bits[direction]
    return [group for group in groups if group]


def _weak(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the fraction of the gain that each direction gets. Weak directions get more, which adds the
    least error."""
    return weights.min() / weights


def _gains(
    rotated: NDArray[np.float32],
    length: NDArray[np.float32],
    centers: NDArray[np.float32],
    weights: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the gain at which the product of a descriptor with its own code is its squared length."""
    product = rotated * centers
    short = length - product.sum(axis=1)
    return np.asarray(short / np.maximum(product @ _weak(weights), 1e-6 * length + 1e-12), np.float32)


def _cut(dim: int) -> tuple[int, int]:
    """Return bytes per descriptor and numbers per byte of codes in old maps without weights."""
    together = -(-dim // CODE_BYTES)
    return -(-dim // together), together


@contextmanager
def piece_by_piece() -> Iterator[ThreadPoolExecutor]:
    """Provide threads that each process whole pieces, with one torch thread per piece.

    Torch's own threads would split these small products and wait for each other, which is three times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(before, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def split_columns(rotated: NDArray[np.float32], sizes: Sequence[int]) -> list[NDArray[np.float32]]:
    """Split the columns into pieces of these sizes."""
    return [np.ascontiguousarray(piece) for piece in np.split(rotated, np.cumsum(sizes)[:-1], axis=1)]


def nearest_center(points: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the nearest center c of each point p, which minimizes ‖c‖²/2 − p·c."""
    half = 0.5 * np.einsum("nd,nd->n", centers, centers)
    weights = torch.from_numpy(np.concatenate([-centers, half[:, None]], 1).T.copy())
    wide = torch.from_numpy(np.concatenate([points, np.ones((len(points), 1), np.float32)], 1))
    nearest, distances = np.empty(len(points), np.int64), torch.empty(CACHED, len(centers))
    for start in range(0, len(points), CACHED):
        part = wide[start : start + CACHED]
        # NumPy's argmin and torch's product are each several times as fast as the other library's.
        product = torch.mm(part, weights, out=distances[: len(part)])
        nearest[start : start + CACHED] = product.numpy().argmin(1)
    return nearest


def k_means(points: NDArray[np.float32], centers: NDArray[np.float32], rounds: int) -> NDArray[np.float32]:
    """Run Lloyd's algorithm; a center that loses all its points does not move."""
    for _ in range(rounds):
        nearest = nearest_center(points, centers)
        count = np.bincount(nearest, minlength=len(centers))[:, None]
        total = np.stack([np.bincount(nearest, column, len(centers)) for column in points.T], 1)
        centers = np.where(count > 0, total / np.maximum(count, 1), centers).astype(np.float32)
    return centers
