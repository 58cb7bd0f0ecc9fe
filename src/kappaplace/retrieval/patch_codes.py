"""Codes of patch maps, by which matches are compared: at most 4 KiB per reference.

A patch map is coded in blocks of 4×4 cells, because neighboring cells look alike. A cosine transform of each
block concentrates the differences in few numbers, as do the strongest directions of the channels. These
numbers are divided among the bytes of a code so that all bytes represent the same amount of information. The
codebook is fitted on images of the map. It also stores a factor for the agreement of decoded patches, which
is lower than the agreement of exact patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.codes import (
    VALUES,
    byte_groups,
    k_means,
    nearest_center,
    piece_by_piece,
    split_columns,
)

CODE_BYTES = 4096
"""Maximum size of the code of a patch map, in bytes."""
BYTES_PER_BLOCK = 160
"""Bytes per block of 4×4 cells; more of them change agreements little."""
SIDE = 4
CHANNELS = 64
"""Number of directions of the channels in a code; weaker ones have no influence on agreements."""
SAMPLE_IMAGES = 64
"""Number of images that a codebook is fitted on."""
SAMPLE_CELLS = 1 << 15
ROUNDS = 8
Codes: TypeAlias = NDArray[np.uint8]
_HEAD = 6  # numbers at the start of a stored codebook


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """Local features of images: unit vectors on a grid."""

    cells: Tensor
    """Difference of each cell from the mean of its image, as unit vectors N×HW×d, row by row."""
    size: tuple[int, int]
    """Height and width of the grid."""
    basis: Tensor | None = None
    """Basis C×d of the cells: directions of the channels. Default: the channels themselves."""
    gain: Tensor | None = None
    """Factor of the agreement with each image (N). Default: 1."""

    @classmethod
    def of(cls, maps: Tensor) -> LocalFeatures:
        """Return the features of feature maps N×C×H×W."""
        flat = maps.flatten(2).transpose(1, 2).float()
        cells = F.normalize(flat - flat.mean(1, keepdim=True), dim=2)
        return cls(cells, (maps.shape[2], maps.shape[3]))

    def within(self, basis: Tensor | None) -> LocalFeatures:
        """Return the same features in a basis; the features must be given in the channels."""
        if basis is None:
            return self
        basis = basis.to(self.cells)
        return replace(self, cells=self.cells @ basis, basis=basis)

    def take(self, rows: NDArray[np.int64]) -> LocalFeatures:
        """Return the features of some images."""
        if np.array_equal(rows, np.arange(len(self.cells))):
            return self
        gain = None if self.gain is None else self.gain[torch.from_numpy(rows).to(self.gain.device)]
        return replace(self, cells=self.cells[torch.from_numpy(rows).to(self.cells.device)], gain=gain)

    @classmethod
    def join(cls, parts: Sequence[LocalFeatures]) -> LocalFeatures:
        """Return the features of several lists of images in the same basis, one after the other."""
        if len(parts) == 1:
            return parts[0]
        gains = [
            torch.ones(len(part.cells)).to(part.cells) if part.gain is None else part.gain for part in parts
        ]
        cells = torch.cat([part.cells.to(parts[0].cells) for part in parts])
        return replace(parts[0], cells=cells, gain=torch.cat([gain.to(gains[0]) for gain in gains]))

    def scaled(self, agreement: Tensor) -> Tensor:
        """Return the agreement with each image in the scale of exact patches, at most 1."""
        return agreement if self.gain is None else (agreement * self.gain.to(agreement)).clamp(max=1)


class _Parts(NamedTuple):
    """Tables of a codebook on a device."""

    table: Tensor
    """One row per value of each byte; short rows end in zeros."""
    starts: Tensor
    """First row of each byte in ``table``."""
    columns: Tensor
    """Column of each coefficient in the concatenated rows of all bytes."""
    basis: Tensor
    """Directions of decoded cells."""
    inverse: Tensor
    """Inverse cosine transform."""


@dataclass(frozen=True, eq=False)
class PatchCodebook:
    """Conversion between patch maps and codes."""

    shape: tuple[int, int, int]
    """Channels, height and width of a patch map."""
    directions: NDArray[np.float32]
    """Directions of the channels, the strongest first, C×c."""
    order: NDArray[np.int64]
    """Number of the coefficient (of 16 × c per block) behind each column of ``values``."""
    sizes: tuple[int, ...]
    """Number of columns of each byte."""
    values: NDArray[np.float16]
    """Numbers that each value of a byte represents, 256×m."""
    gain: float = 1.0
    """Ratio of the agreement with exact patch maps to the agreement with decoded ones."""
    _tables: dict[torch.device, _Parts] = field(default_factory=dict, init=False, repr=False)

    @property
    def width(self) -> int:
        """Bytes per image."""
        return self._grid[0] * self._grid[1] * len(self.sizes)

    @property
    def _grid(self) -> tuple[int, int]:
        """Blocks of a patch map, down and across."""
        return -(-self.shape[1] // SIDE), -(-self.shape[2] // SIDE)

    def encode(self, maps: Tensor) -> Codes:
        """Return the codes of patch maps N×C×H×W, N×width."""
        cells = LocalFeatures.of(maps).cells.cpu() @ torch.from_numpy(self.directions)
        blocks = _blocks(cells, self.shape)[:, torch.from_numpy(self.order)].numpy()
        codes = np.empty((len(blocks), len(self.sizes)), np.uint8)
        with piece_by_piece() as pool:
            pieces, centers = (
                split_columns(part, self.sizes) for part in (blocks, self.values.astype(np.float32))
            )
            for column, nearest in enumerate(pool.map(nearest_center, pieces, centers)):
                codes[:, column] = nearest
        return codes.reshape(len(maps), self.width)

    def decode(self, codes: Codes, device: torch.device | str = "cpu") -> LocalFeatures:
        """Return the local features that codes N×width represent, on a device."""
        channels, height, width = self.directions.shape[1], *self.shape[1:]
        parts = self._on(torch.device(device))
        rows = torch.from_numpy(codes.reshape(-1, len(self.sizes)).astype(np.int64)).to(device) + parts.starts
        wide = parts.table.index_select(0, rows.view(-1)).view(len(rows), -1)
        blocks = wide.index_select(1, parts.columns).view(-1, SIDE * SIDE, channels)
        down, across = self._grid
        cells = torch.matmul(parts.inverse, blocks)
        grid = cells.view(len(codes), down, across, SIDE, SIDE, channels).transpose(2, 3)
        grid = grid.reshape(len(codes), down * SIDE, across * SIDE, channels)[:, :height, :width]
        unit = F.normalize(grid.reshape(len(codes), height * width, channels), dim=2)
        gain = torch.full((len(codes),), self.gain, device=device)
        return LocalFeatures(unit, (height, width), parts.basis, gain)

    def basis(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the directions of decoded cells, on a device."""
        return self._on(torch.device(device)).basis

    def _on(self, device: torch.device) -> _Parts:
        if device not in self._tables:
            self._tables[device] = _Parts(*(part.to(device) for part in self._parts()))
        return self._tables[device]

    def _parts(self) -> _Parts:
        """Return the tables that decode a code; the numbers of a byte are one row of a table."""
        widest = max(self.sizes) + 1  # the last column is zero
        pieces = split_columns(self.values.astype(np.float32), self.sizes)
        table = np.zeros((len(self.sizes) * VALUES, widest), np.float32)
        for byte, piece in enumerate(pieces):
            table[byte * VALUES : (byte + 1) * VALUES, : piece.shape[1]] = piece
        starts = np.repeat(np.arange(len(self.sizes)) * widest, self.sizes)
        within = np.concatenate([np.arange(size) for size in self.sizes])
        # Coefficients without bytes are zero.
        columns = np.full(SIDE * SIDE * self.directions.shape[1], len(self.sizes) * widest - 1)
        columns[self.order] = starts + within
        rows = np.arange(len(self.sizes)) * VALUES
        arrays = [torch.from_numpy(array) for array in (table, rows, columns, self.directions)]
        return _Parts._make([*arrays, _cosines().T])

    def to_array(self) -> NDArray[np.float32]:
        """Return the codebook as one array of numbers."""
        channels = self.directions.shape[1]
        head = [*self.shape, channels, len(self.sizes), self.gain]
        parts = [np.array(head), np.array(self.sizes), self.order, self.directions.ravel()]
        return np.concatenate([*parts, self.values.ravel()]).astype(np.float32)

    @classmethod
    def from_array(cls, array: NDArray[np.floating]) -> PatchCodebook:
        """Return the codebook that `to_array` stored.

        Args:
            array: The stored array.

        Returns:
            The codebook.

        Raises:
            KappaPlaceError: If the array is not a codebook.
        """
        numbers = np.array(array, np.float32).ravel()
        if len(numbers) > _HEAD and np.isfinite(numbers).all() and (numbers[:_HEAD] > 0).all():
            *shape, channels, bytes_ = (int(value) for value in numbers[: _HEAD - 1])
            sizes = numbers[_HEAD : _HEAD + bytes_].astype(np.int64)
            columns, most = int(sizes.sum()), SIDE * SIDE * channels
            ends = np.cumsum([_HEAD + bytes_, columns, shape[0] * channels])
            order = numbers[ends[0] : ends[1]].astype(np.int64)
            fits = len(numbers) == ends[2] + VALUES * columns and (sizes > 0).all()
            if fits and len(np.unique(order)) == columns and order.min() >= 0 and order.max() < most:
                return cls(
                    (shape[0], shape[1], shape[2]),
                    numbers[ends[1] : ends[2]].reshape(shape[0], channels),
                    order,
                    tuple(sizes.tolist()),
                    numbers[ends[2] :].reshape(VALUES, columns).astype(np.float16),
                    float(numbers[_HEAD - 1]),
                )
        raise KappaPlaceError(
            f"An array of {numbers.size:,} numbers is not a codebook of patches. Run `kappaplace map verify`."
        )


@torch.inference_mode()
def learn_patch_codebook(
    maps: Tensor, *, code_bytes: int = CODE_BYTES, rounds: int = ROUNDS
) -> PatchCodebook:
    """Fit a codebook; its gain is 1.

    Args:
        maps: Patch maps N×C×H×W of images of the map, of different places if possible.
        code_bytes: Largest number of bytes per image.
        rounds: Number of k-means iterations.

    Returns:
        The codebook.

    Raises:
        KappaPlaceError: If the patch maps have so many cells that a code would need more bytes.
    """
    shape = (maps.shape[1], maps.shape[2], maps.shape[3])
    blocks_per_image = -(-shape[1] // SIDE) * -(-shape[2] // SIDE)
    bytes_ = min(BYTES_PER_BLOCK * code_bytes // CODE_BYTES, code_bytes // blocks_per_image)
    if bytes_ < 1:
        raise KappaPlaceError(
            f"Patch maps of {shape[1]}×{shape[2]} cells do not fit into codes of {code_bytes} bytes. Use "
            "smaller images, or store the maps with --patches full."
        )
    cells = LocalFeatures.of(maps).cells.cpu()
    flat = cells.reshape(-1, shape[0])
    rng = np.random.default_rng(0)
    some = flat[np.sort(rng.choice(len(flat), min(SAMPLE_CELLS, len(flat)), replace=False))].double()
    energy, vectors = np.linalg.eigh((some.T @ some / len(some)).numpy())
    directions = np.ascontiguousarray(vectors[:, ::-1][:, : min(CHANNELS, shape[0])]).astype(np.float32)
    blocks = _blocks(cells @ torch.from_numpy(directions), shape).numpy()
    few = len(blocks) <= VALUES  # then every block is its own center, and no coefficient may be omitted
    spread = np.ones(blocks.shape[1]) if few else np.maximum(blocks.var(axis=0), 1e-9 * energy.max() + 1e-12)
    groups = sorted(byte_groups(spread, min(bytes_, len(spread))), key=len)
    order, sizes = np.concatenate([np.array(group) for group in groups]), tuple(map(len, groups))
    start = rng.permutation(len(blocks))[np.arange(VALUES) % len(blocks)]
    with piece_by_piece() as pool:
        pieces = split_columns(blocks[:, order], sizes)
        centers = list(pool.map(lambda piece: k_means(piece, piece[start], 0 if few else rounds), pieces))
    return PatchCodebook(shape, directions, order, sizes, np.concatenate(centers, axis=1).astype(np.float16))


def _cosines() -> Tensor:
    """Return the orthonormal cosine transform of a block of SIDE×SIDE cells, one coefficient per row."""
    k, n = np.arange(SIDE)[:, None], np.arange(SIDE)[None]
    rows = np.sqrt(2 / SIDE) * np.cos(np.pi * k * (2 * n + 1) / (2 * SIDE))
    rows[0] /= np.sqrt(2)
    return torch.from_numpy(np.kron(rows, rows).astype(np.float32))


def _blocks(cells: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return the coefficients of all blocks, (N·blocks)×(16·c), from cells N×HW×c."""
    count, channels = len(cells), cells.shape[2]
    grid = cells.transpose(1, 2).reshape(count, channels, shape[1], shape[2])
    grid = F.pad(grid, (0, -shape[2] % SIDE, 0, -shape[1] % SIDE), mode="replicate")
    down, across = grid.shape[2] // SIDE, grid.shape[3] // SIDE
    grid = grid.view(count, channels, down, SIDE, across, SIDE).permute(0, 2, 4, 3, 5, 1)
    coefficients = torch.matmul(_cosines(), grid.reshape(-1, SIDE * SIDE, channels))
    return coefficients.reshape(count * down * across, SIDE * SIDE * channels)
