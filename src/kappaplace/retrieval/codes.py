"""Product-quantised codes: a descriptor in at most 128 bytes, from a codebook learnt on the map's own.

What counts is the error of a similarity, not of a descriptor, and an error in a direction weighs as much as
queries reach into it. So strong directions are kept finest, a byte holds one of them or several weak ones,
and the last byte says by how much to lengthen the weak ones so that similarities are right on average:
rounding shortens them, one reference's more than another's. Plain NumPy and torch: a map of codes needs no
further library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError

CODE_BYTES = 128
FEWEST = 1000  # references: with fewer, 256 pieces to choose from are hardly fewer than there are to tell
SAMPLE = 1 << 15  # references a codebook is learnt from
VALUES = 256  # of a byte
BITS = 8  # of a byte
ROUNDS = 12  # of k-means; more gains less than a per mille of the error
STEP = 1 << 14  # rows encoded together
CACHED = 1 << 9  # points compared with the centres at a time: their distances stay in the cache, 15 × as fast
WHOLE = {1: np.dtype(np.float32), 2: np.dtype(np.complex64), 4: np.dtype(np.complex128)}  # as many float32
POWER = 0.75  # of the energy: the weight of an error; at 0 similarities err a third more, at 1 about the same
ODD = 0.001  # share of gains at either end that the last byte need not tell apart
WEAKEST = 0.01  # of the mean energy: directions with less are all weighted as if they had this much


@dataclass(frozen=True, eq=False)
class Codebook:
    """How descriptors become codes and back."""

    rotation: NDArray[np.float32]
    """d×m: to the directions that were kept, those of one byte side by side."""
    values: NDArray[np.float32]
    """256×m: what each value of a byte means in its directions."""
    sizes: tuple[int, ...]
    """Directions of each byte, the same ones next to each other."""
    weights: NDArray[np.float32] | None = None
    """m: by which the square of an error counts. None in maps from before there were weights: all the same,
    no gain, and what is decoded has unit length."""
    gains: tuple[float, float] = (0.0, 0.0)
    """What the lowest and the highest value of the last byte mean."""

    @property
    def width(self) -> int:
        """Bytes a descriptor."""
        return len(self.sizes) + (self.weights is not None)

    def turn(self, descriptors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Into the space of the codes, where inner products are the same."""
        return np.asarray(descriptors, np.float32) @ self.rotation

    def encode(self, descriptors: NDArray[np.floating]) -> NDArray[np.uint8]:
        """A byte a piece, the number of the nearest centre by the weighted error, and one for the gain."""
        codes = np.empty((len(descriptors), self.width), np.uint8)
        scale = np.float32(1) if self.weights is None else np.sqrt(self.weights)
        centres = _pieces(self.values * scale, self.sizes)
        with _piece_by_piece() as pool:
            for start in range(0, len(codes), STEP):
                block = np.asarray(descriptors[start : start + STEP], np.float32)
                turned, part = self.turn(block), codes[start : start + STEP]
                found = pool.map(_nearest, _pieces(turned * scale, self.sizes), centres)
                for column, nearest in enumerate(found):
                    part[:, column] = nearest
                if self.weights is not None:
                    length = np.einsum("nd,nd->n", block, block)
                    part[:, -1] = self._gain_bytes(
                        _gains(turned, length, self._looked_up(part), self.weights)
                    )
        return codes

    def decode(self, codes: NDArray[np.uint8], *, turned: bool = False) -> NDArray[np.float32]:
        """The vectors that codes stand for; ``turned``: in the space of the codes, which is quicker.

        Their products with descriptors are right on average, for which they are a little longer than one.
        """
        flat = np.asarray(codes).reshape(-1, self.width)
        wide = np.empty((len(flat), self.values.shape[1]), np.float32)
        for start in range(0, len(flat), CACHED):
            part = flat[start : start + CACHED]
            centres = self._looked_up(part)
            if self.weights is None:
                centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-6)
            else:
                centres *= 1 + self._gain(part[:, -1:]) * _weak(self.weights)
            wide[start : start + CACHED] = centres
        if not turned:
            wide = (torch.from_numpy(wide) @ torch.from_numpy(self.rotation).T).numpy()
        return wide.reshape(*np.shape(codes)[:-1], wide.shape[1])

    def products(self, query: NDArray[np.float32], codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of one query, in the space of the codes, with what codes stand for, which is not decoded.

        A table says what each value of each byte adds to the product, and to what lengthens it: a complex
        number, so that both are looked up at once. For one query several times as fast as decoding.
        """
        starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        product = query * self.values
        other = self.values**2 if self.weights is None else product * _weak(self.weights)
        both = (np.add.reduceat(part, starts, axis=1).T.ravel() for part in (product, other))
        table = np.empty(VALUES * len(self.sizes), np.complex64)
        table.real, table.imag = both
        offsets = np.arange(0, len(table), VALUES, dtype=np.int32)
        found = np.empty(len(codes), np.float32)
        for start in range(0, len(codes), CACHED):
            part = np.asarray(codes[start : start + CACHED])
            total = table.take(part[:, : len(offsets)] + offsets).sum(axis=1)
            if self.weights is None:
                found[start : start + CACHED] = total.real / np.maximum(np.sqrt(total.imag), 1e-6)
            else:
                found[start : start + CACHED] = total.real + self._gain(part[:, -1]) * total.imag
        return found

    def _looked_up(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The centres of all pieces side by side; bytes of one size at once."""
        wide = np.empty((len(codes), self.values.shape[1]), np.float32)
        byte, column = 0, 0
        for table in self._tables:
            count = len(table) // len(self.values)
            end = column + count * table.itemsize // 4
            offsets = np.arange(0, len(table), len(self.values), dtype=np.int32)
            taken = np.take(table, codes[:, byte : byte + count] + offsets)
            wide[:, column:end] = taken.view(np.float32).reshape(len(codes), -1)
            byte, column = byte + count, end
        return wide

    @cached_property
    def _tables(self) -> list[NDArray[Any]]:
        """For bytes of one size, what all their values mean, a piece as one element: it is taken as a whole,
        several times as fast as a row of numbers."""
        tables, column = [], 0
        for size, run in groupby(self.sizes):
            count = len(list(run))
            end = column + count * size
            table = self.values[:, column:end].reshape(-1, count, size).transpose(1, 0, 2)
            whole: Any = WHOLE.get(size, np.dtype((np.void, 4 * size)))
            tables.append(np.ascontiguousarray(table).view(whole).ravel())
            column = end
        return tables

    def _gain(self, byte: NDArray[np.uint8]) -> NDArray[np.float32]:
        lowest, highest = self.gains
        return lowest + byte.astype(np.float32) * np.float32((highest - lowest) / (VALUES - 1))

    def _gain_bytes(self, gains: NDArray[np.float32]) -> NDArray[np.uint8]:
        lowest, highest = self.gains
        share = (gains - lowest) / max(highest - lowest, 1e-9)
        return np.rint(np.clip(share, 0, 1) * (VALUES - 1)).astype(np.uint8)

    def to_array(self) -> NDArray[np.float32]:
        """All of it as one array of m columns: the rotation, below it what each value of a byte means, and
        below that weight, number of the byte, lowest and highest gain."""
        parts = [self.rotation, self.values]
        if self.weights is not None:
            columns = self.rotation.shape[1]
            byte = np.repeat(np.arange(len(self.sizes)), self.sizes)
            parts.append(np.stack([self.weights, byte, *(np.full(columns, gain) for gain in self.gains)]))
        return np.concatenate(parts).astype(np.float32)

    @classmethod
    def from_array(cls, array: NDArray[np.floating], dim: int) -> Codebook:
        """Of `to_array`, for descriptors of ``dim`` dimensions."""
        wide = np.array(array, np.float32)
        if wide.ndim == 2 and wide.size and np.isfinite(wide).all():
            rotation, values, more = np.split(wide, [dim, dim + VALUES])
            if wide.shape == (dim + VALUES, int(np.prod(_cut(dim)))):  # from before there were weights
                bytes_, together = _cut(dim)
                return cls(rotation, values, (together,) * bytes_)
            if len(wide) == dim + VALUES + 4 and (more[0] > 0).all():
                byte, sizes = np.unique(more[1], return_counts=True)
                if (
                    np.array_equal(np.repeat(np.arange(len(sizes)), sizes), more[1])
                    and len(byte) < CODE_BYTES
                ):
                    gains = float(more[2, 0]), float(more[3, 0])
                    return cls(rotation, values, tuple(map(int, sizes)), more[0], gains)
        raise KappaPlaceError(f"The codebook of shape {wide.shape} does not fit {dim} dimensions.")


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
    energy, directions = np.linalg.eigh(sample.T @ sample / len(sample))
    weight = np.maximum(energy, WEAKEST * energy.mean()) ** POWER
    # Not centred, unlike PCA: inner products must survive. What there is to tell apart is the variance.
    spread = weight * np.maximum((sample @ directions.astype(np.float32)).var(axis=0), 1e-9 * energy.max())
    dealt = sorted(_dealt(spread, min(CODE_BYTES - 1, sample.shape[1])), key=len)
    order = np.concatenate([np.array(piece) for piece in dealt])
    rotation, weights = directions[:, order].astype(np.float32), weight[order].astype(np.float32)
    sizes, turned = tuple(map(len, dealt)), sample @ rotation
    start = rng.choice(len(sample), VALUES, replace=False)
    with _piece_by_piece() as pool:
        pieces = _pieces(turned * np.sqrt(weights), sizes)
        centres = list(pool.map(lambda piece: _k_means(piece, piece[start], rounds), pieces))
    values = np.concatenate(centres, axis=1) / np.sqrt(weights)
    book = Codebook(rotation, values, sizes, weights)
    length = np.einsum("nd,nd->n", sample, sample)
    gains = _gains(turned, length, book._looked_up(book.encode(sample)), weights)
    # Nearly all: a single odd descriptor would leave the others few steps.
    lowest, highest = np.quantile(gains, [ODD, 1 - ODD]).tolist()
    return Codebook(rotation, values, sizes, weights, (lowest, highest))


def _dealt(spread: NDArray[np.floating], bytes_: int) -> list[list[int]]:
    """The directions of each byte, so that every byte has as much to tell.

    A direction is worth half a bit for every factor of two by which its weighted variance exceeds a level
    (none below it, no more than a byte holds), and the level is such that all bytes are used up: reverse
    water-filling, the best for Gaussian data.
    """
    low, high = np.log2(spread.min()) - 2 * BITS - 1, np.log2(spread.max())
    for _ in range(60):
        level = (low + high) / 2
        bits = np.clip((np.log2(spread) - level) / 2, 0, BITS)
        low, high = (level, high) if bits.sum() > BITS * bytes_ else (low, level)
    dealt: list[list[int]] = [[] for _ in range(bytes_)]
    load = np.zeros(bytes_)
    for direction in np.argsort(-bits, kind="stable"):
        lightest = int(load.argmin())
        if bits[direction] > 0:
            dealt[lightest].append(int(direction))
            load[lightest] += bits[direction]
    return [piece for piece in dealt if piece]


def _weak(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """How much of a gain each direction gets: the weaker, the more, for there it does the least harm."""
    return weights.min() / weights


def _gains(
    turned: NDArray[np.float32],
    length: NDArray[np.float32],
    centres: NDArray[np.float32],
    weights: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Of each descriptor, what makes the product with its own code that with itself."""
    product = turned * centres
    short = length - product.sum(axis=1)
    return np.asarray(short / np.maximum(product @ _weak(weights), 1e-6 * length + 1e-12), np.float32)


def _cut(dim: int) -> tuple[int, int]:
    """Bytes, and numbers that share one, of codes from before there were weights."""
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


def _pieces(turned: NDArray[np.float32], sizes: Sequence[int]) -> list[NDArray[np.float32]]:
    """N×m, cut into pieces of these sizes."""
    return [np.ascontiguousarray(piece) for piece in np.split(turned, np.cumsum(sizes)[:-1], axis=1)]


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
