"""Embeddings on disk: made once for a model and a list of images, resumed where a run was stopped.

A list of images (the queries of a table, or its references) is one folder with memory-mapped float32
descriptors, one κ an image, and a mark for every image that is done. Its name is made of the model's weights,
the preprocessing and the content of the images: the four San Francisco sets share one map, and neither
another model nor another picture can be mistaken for the one wanted. Images that another list of the same
model holds already are copied from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.identity import DIGEST, image_digests
from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, make_folder, reserve_array
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import embed_images, embed_patches
from kappaplace.models.exported import ExportedModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import cache_folder
from kappaplace.progress import track
from kappaplace.types import Embeddings

VERSION = 1  # part of the key: raised when the same model and images would give other numbers
BLOCK = 1024  # images between two marks: what a killed process may have to embed again
COPY = 1 << 16  # rows copied from another list at a time
_COLUMNS = Embeddings._fields
_IMAGES, _DONE = "images.npy", "done.npy"


def default_cache() -> Path:
    """``$KAPPAPLACE_CACHE``, else the user's cache folder."""
    return cache_folder() / "embeddings"


@dataclass(frozen=True)
class EmbeddingStore:
    """Embeds with one model, or finds what it embedded before."""

    model: AnyModel
    preprocessing: Preprocessing
    folder: Path
    fingerprint: str
    batch_size: int = 32
    device: str | None = None

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
        """A cache in ``folder``; a known ``fingerprint`` spares the weights from being hashed once more."""
        where = default_cache() if folder is None else Path(folder)
        known = fingerprint or model.fingerprint
        return cls(model, preprocessing or model.preprocessing, where, known, batch_size, device)

    @property
    def patch_maps(self) -> Callable[[Sequence[Source]], Tensor] | None:
        """Feature maps of images, if the model shows them; not kept on disk, for they are a hundred times as
        large as descriptors."""
        if not isinstance(self.model, PlaceModel | ExportedModel) or not self.model.shows_patches:
            return None
        return partial(embed_patches, self.model, self.preprocessing, batch_size=self.batch_size)

    def embed(self, images: Sequence[str]) -> Embeddings:
        """Embeddings of image files in their order; descriptors are a memory map."""
        digests = image_digests(images, self.folder / "files")
        group = make_folder(self.folder / self._group())
        store = _List(group / hashlib.sha256(digests.tobytes()).hexdigest()[:32], digests)
        with track("Embedding", len(images)) as bar:
            if not store.exists():
                _copy_known(store, group)
            bar.advance(len(images) - len(store.missing()))
            for rows in _blocks(store.missing()):
                made = embed_images(
                    self.model,
                    self.preprocessing,
                    [images[int(row)] for row in rows],
                    batch_size=self.batch_size,
                    device=self.device,
                    progress=False,
                )
                store.write(rows, made)
                bar.advance(len(rows))
        return store.read()

    def _group(self) -> str:
        """The folder of all lists that this model embedded with this preprocessing."""
        text = json.dumps([VERSION, self.fingerprint, self.preprocessing.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class _List:
    """One list of images: descriptors, κ and variance as files, and which rows are done."""

    def __init__(self, folder: Path, digests: NDArray[np.void]) -> None:
        self.folder, self.digests = folder, digests
        self._arrays: dict[str, NDArray[Any]] = {}

    def exists(self) -> bool:
        return (self.folder / _DONE).is_file()

    def missing(self) -> NDArray[np.int64]:
        if not self.exists():
            return np.arange(len(self.digests))
        return np.flatnonzero(self.loaded("done") == 0)

    def write(self, rows: NDArray[np.int64], made: Embeddings) -> None:
        """Values first, marks after them, so that a mark never stands for something that is not there."""
        if not self.exists():
            self._create({c: v.shape[1:] for c, v in zip(_COLUMNS, made, strict=True) if v is not None})
        for column, values in zip(_COLUMNS, made, strict=True):
            if values is not None:
                self._put(column, rows, values)
        self._put("done", rows, 1)

    def read(self) -> Embeddings:
        """Descriptors as a memory map (a page is copied where written to), the rest in memory."""
        columns: dict[str, Any] = {}
        for column in _COLUMNS:
            file = self.folder / f"{column}.npy"
            if file.is_file():
                columns[column] = self.loaded(column, "c" if column == "descriptor" else None)
        return Embeddings(**columns)

    def loaded(self, column: str, mmap_mode: Any = None) -> NDArray[Any]:
        """A column with a row for each image: one that was cut short must not pass for an answer."""
        file = self.folder / f"{column}.npy"
        array = _load(file, mmap_mode)
        if len(array) != len(self.digests):
            raise _damaged(file, f"{len(array)} rows for {len(self.digests)} images")
        return array

    def _put(self, column: str, rows: NDArray[np.int64], values: Any) -> None:
        if column not in self._arrays:
            self._arrays[column] = self.loaded(column, "r+")
        array = self._arrays[column]
        array[rows] = values
        array.flush()  # type: ignore[attr-defined]  # a memory map

    def _create(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """All files at once under another name, so that half a store is never found."""
        part = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.part")
        make_folder(part)
        n = len(self.digests)
        try:
            for column, shape in shapes.items():
                reserve_array(part / f"{column}.npy", (n, *shape), np.float32)
            np.save(part / _IMAGES, self.digests.view(np.uint8).reshape(n, DIGEST.itemsize))
            np.save(part / _DONE, np.zeros(n, np.uint8))
            os.rename(part, self.folder)
        except OSError as error:
            if not self.exists():  # else another process was quicker: its store will do
                raise KappaPlaceError(
                    f"Cannot keep embeddings in {self.folder.parent}: {error.strerror or error}; make room "
                    "there, or choose another cache folder."
                ) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]


def _load(file: Path, mmap_mode: Any = None) -> NDArray[Any]:
    try:
        return np.load(file, mmap_mode=mmap_mode)
    except DAMAGED_ARRAYS as error:
        raise _damaged(file, str(error)) from None


def _damaged(file: Path, reason: str) -> KappaPlaceError:
    return KappaPlaceError(
        f"The cached embeddings in {file.parent} are damaged ({file.name}: {reason}); remove that folder to "
        "make them anew."
    )


def _copy_known(store: _List, group: Path) -> None:
    """Take over what other lists of the same model hold already."""
    for other in sorted(group.iterdir()):
        if other.name.startswith(".") or not (other / _DONE).is_file():
            continue
        try:
            theirs = _load(other / _IMAGES).view(DIGEST).ravel()
            known = _List(other, theirs)
            done, embeddings = np.flatnonzero(known.loaded("done")), known.read()
        except (KappaPlaceError, ValueError):  # damaged: told of when it is asked for itself
            continue
        rows = store.missing()
        order = np.argsort(theirs[done], kind="stable")
        ordered = theirs[done][order]
        if not len(ordered) or not len(rows):
            continue
        place = np.minimum(np.searchsorted(ordered, store.digests[rows]), len(ordered) - 1)
        shared = ordered[place] == store.digests[rows]
        rows, source = rows[shared], done[order[place[shared]]]
        for start in range(0, len(rows), COPY):
            part = slice(start, start + COPY)
            store.write(rows[part], embeddings.take(source[part]))
