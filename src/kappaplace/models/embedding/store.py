"""Embeddings on disk, computed once per model and list of images. An interrupted run resumes.

Each list of images (the queries or the references of a table) has a folder. It contains memory-mapped float32
descriptors, κ of each image, and a checksum of every finished row. A row that does not match its checksum is
embedded again. The name of the folder is a checksum of the model's weights, the preprocessing and the content
of the images. Embeddings are therefore never used for another model or image. Tables with the same images
share a folder. Embeddings of images that are also in another list of the same model are copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kappaplace.data.identity import DIGEST, image_digests
from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, make_folder, reserve_array
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import embed_images, patch_maps_of
from kappaplace.models.published import cache_folder
from kappaplace.progress import track
from kappaplace.types import Embeddings

VERSION = 2  # part of the key; increase it if the embeddings of the same model and images change
BLOCK = 1024  # images between two writes, which a killed process has to embed again
COPY = 1 << 16  # rows that are compared, or copied from another list, at once
MmapMode: TypeAlias = Literal["r", "r+", "c"] | None
_COLUMNS = Embeddings._fields
_IMAGES, _SUMS = "images.npy", "sums.npy"


def default_cache() -> Path:
    """Return the folder of the embeddings in ``$KAPPAPLACE_CACHE``, or in the user's cache folder."""
    return cache_folder() / "embeddings"


@dataclass(frozen=True)
class EmbeddingStore:
    """Embeddings of one model, computed once and stored."""

    model: AnyModel
    """The model."""
    preprocessing: Preprocessing
    """Preprocessing of the images."""
    folder: Path
    """Folder of the store."""
    fingerprint: str
    """Checksum of the model."""
    batch_size: int = 32
    """Number of images to embed at once."""
    device: str | None = None
    """Device to move the model to. None: do not move it."""
    block: int | None = None
    """Number of images between two writes, which are lost if the process ends early. None: 1,024."""

    @classmethod
    def of(
        cls,
        model: AnyModel,
        folder: str | Path | None = None,
        preprocessing: Preprocessing | None = None,
        *,
        batch_size: int = 32,
        device: str | None = None,
        fingerprint: str = "",
    ) -> EmbeddingStore:
        """Open a store.

        Args:
            model: The model.
            folder: Folder of the store. Default: the user's cache folder.
            preprocessing: Preprocessing of the images. Default: the preprocessing of the model.
            batch_size: Number of images to embed at once.
            device: Device to move the model to. Default: do not move it.
            fingerprint: Checksum of the model. Default: computed from its weights.

        Returns:
            The store.
        """
        root = default_cache() if folder is None else Path(folder)
        preprocessing = preprocessing or model.preprocessing
        return cls(model, preprocessing, root, fingerprint or model.fingerprint, batch_size, device)

    @property
    def patch_maps(self) -> Callable[[Sequence[Source]], Tensor] | None:
        """Function from images to feature maps; None if the model does not provide them.

        Feature maps are not stored, because they are a hundred times as large as descriptors.
        """
        return patch_maps_of(self.model, self.preprocessing, batch_size=self.batch_size)

    def embed(self, images: Sequence[str]) -> Embeddings:
        """Return the embeddings of image files in their order; descriptors are a memory map."""
        digests = image_digests(images, self.folder / "files")
        group = make_folder(self.folder / self._group())
        store = _List(group / hashlib.sha256(digests.tobytes()).hexdigest()[:32], digests)
        with track("Embedding", len(images)) as bar:
            if not store.exists():
                _copy_from_others(store, group)
            missing = store.missing()
            bar.advance(len(images) - len(missing))
            block = self.block or BLOCK
            for start in range(0, len(missing), block):
                rows = missing[start : start + block]
                embeddings = embed_images(
                    self.model,
                    self.preprocessing,
                    [images[int(row)] for row in rows],
                    batch_size=self.batch_size,
                    device=self.device,
                    progress=False,
                )
                store.write(rows, embeddings)
                bar.advance(len(rows))
        return store.read()

    def _group(self) -> str:
        """Return the folder name of all lists of this model and preprocessing."""
        text = json.dumps([VERSION, self.fingerprint, self.preprocessing.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class _List:
    """One list of images: descriptors, κ and variance, and a checksum per row (0 if it is missing)."""

    def __init__(self, folder: Path, digests: NDArray[np.void]) -> None:
        self.folder, self.digests = folder, digests
        self._arrays: dict[str, NDArray] = {}

    def exists(self) -> bool:
        return (self.folder / _SUMS).is_file()

    def missing(self) -> NDArray[np.int64]:
        """Return the rows without embeddings, and those whose embeddings have changed on disk."""
        if not self.exists():
            return np.arange(len(self.digests))
        sums, stored = self.load("sums"), self.read()
        for start in range(0, len(sums), COPY):
            part = slice(start, start + COPY)
            sums[part] *= _row_sums(stored.take(part)) == sums[part]
        return np.flatnonzero(sums == 0)

    def write(self, rows: NDArray[np.int64], embeddings: Embeddings) -> None:
        """Write values, then checksums, so that every checksum has its values."""
        columns = {c: v for c, v in zip(_COLUMNS, embeddings, strict=True) if v is not None}
        if not self.exists():
            self._create({column: values.shape[1:] for column, values in columns.items()})
        for column, values in columns.items():
            self._put(column, rows, values)
        self._put("sums", rows, _row_sums(embeddings))

    def read(self) -> Embeddings:
        """Read the embeddings: descriptors as a copy-on-write memory map, the rest in memory."""
        return Embeddings(
            *(
                self.load(column, "c" if column == "descriptor" else None)
                if (self.folder / f"{column}.npy").is_file()
                else None
                for column in _COLUMNS
            )
        )

    def load(self, column: str, mmap_mode: MmapMode = None) -> NDArray:
        """Read a column; raise an error unless it has a row of numbers per image."""
        file = self.folder / f"{column}.npy"
        array = _load(file, mmap_mode)
        dtype = np.dtype(np.uint32 if column == "sums" else np.float32)
        if array.dtype != dtype or array.shape[:1] != (len(self.digests),):
            raise _damaged(file, f"{array.dtype} of shape {array.shape} for {len(self.digests)} images")
        return array

    def _put(self, column: str, rows: NDArray[np.int64], values: ArrayLike) -> None:
        if column not in self._arrays:
            self._arrays[column] = self.load(column, "r+")
        array = self._arrays[column]
        array[rows] = values
        array.flush()  # type: ignore[attr-defined]  # a memory map

    def _create(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Create all files under another name, then rename the folder, so that it is complete."""
        part = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.part")
        make_folder(part)
        n = len(self.digests)
        try:
            for column, shape in shapes.items():
                reserve_array(part / f"{column}.npy", (n, *shape), np.float32)
            np.save(part / _IMAGES, self.digests.view(np.uint8).reshape(n, DIGEST.itemsize))
            np.save(part / _SUMS, np.zeros(n, np.uint32))
            os.rename(part, self.folder)
        except OSError as error:
            if not self.exists():  # otherwise, another process has created it in the meantime
                raise KappaPlaceError(
                    f"Cannot store embeddings in {self.folder.parent}: {error.strerror or error}. Free disk "
                    "space, or choose another cache folder."
                ) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _row_sums(embeddings: Embeddings) -> NDArray[np.uint32]:
    """Return the CRC-32 of every row of all columns; never 0."""
    columns = [np.ascontiguousarray(values, np.float32) for values in embeddings if values is not None]
    sums = np.zeros(len(columns[0]), np.uint32)
    for values in columns:
        for row, piece in enumerate(values):
            sums[row] = zlib.crc32(piece, int(sums[row]))
    return np.maximum(sums, 1)


def _load(file: Path, mmap_mode: MmapMode = None) -> NDArray:
    try:
        return np.load(file, mmap_mode=mmap_mode)
    except DAMAGED_ARRAYS as error:
        raise _damaged(file, str(error)) from None


def _damaged(file: Path, reason: str) -> KappaPlaceError:
    return KappaPlaceError(
        f"The cached embeddings in {file.parent} are damaged ({file.name}: {reason}). Remove this folder to "
        "compute them again."
    )


def _copy_from_others(store: _List, group: Path) -> None:
    """Copy embeddings of the same images from other lists of the model."""
    for other in sorted(group.iterdir()):
        if other.name.startswith(".") or not (other / _SUMS).is_file():
            continue
        try:
            digests = _load(other / _IMAGES).view(DIGEST).ravel()
            source = _List(other, digests)
            done, embeddings = np.setdiff1d(np.arange(len(digests)), source.missing()), source.read()
        except (KappaPlaceError, ValueError):  # damaged: reported when this list itself is read
            continue
        rows = store.missing()
        order = np.argsort(digests[done], kind="stable")
        ordered = digests[done][order]
        if not len(ordered) or not len(rows):
            continue
        place = np.minimum(np.searchsorted(ordered, store.digests[rows]), len(ordered) - 1)
        shared = ordered[place] == store.digests[rows]
        rows, source_rows = rows[shared], done[order[place[shared]]]
        for start in range(0, len(rows), COPY):
            part = slice(start, start + COPY)
            store.write(rows[part], embeddings.take(source_rows[part]))
