"""The model of a map, and the embedding of its images block by block.

Descriptors of different models must not be compared. Embeddings that do not fill a segment yet are stored on
disk, so that an interrupted build embeds at most one block again.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.identity import DIGEST, file_digest, same_file
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, make_folder, replace_file
from kappaplace.maps.options import OnError
from kappaplace.maps.sources import ReferenceList
from kappaplace.maps.store.manifest import ModelRecord
from kappaplace.maps.store.schema import Column
from kappaplace.maps.store.segments import COLUMNS, Blobs, Rows
from kappaplace.maps.store.writer import writer_of
from kappaplace.models.aggregation import Whitening
from kappaplace.models.checkpoint import CARD, AnyModel, load_model, save_model, trainable
from kappaplace.models.embedding.ray import Started, Starter
from kappaplace.models.encoder import whitened_fingerprint
from kappaplace.models.exported import ExportedModel
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.registry import HUB
from kappaplace.models.shipped import DEFAULT, is_shipped
from kappaplace.retrieval.patch_codes import PatchCodebook
from kappaplace.retrieval.patches import learn_codes
from kappaplace.types import Embeddings


def load_named_model(model: AnyModel | str | Path | None) -> tuple[AnyModel, str]:
    """Load a model that the user names.

    Args:
        model: Model, or its folder, file or name. None loads the pretrained model.

    Returns:
        The model, and its name; the name is empty unless the model is published.

    Raises:
        KappaPlaceError: If there is no such model.
    """
    if isinstance(model, ExportedModel | PlaceModel | FrozenEncoder):
        return model.with_whitening(None), ""  # the whitening of a map's model belongs to that map
    name = DEFAULT if model is None else str(model)
    is_name = model is None or (isinstance(model, str) and is_published(name))
    return load_model(name), name if is_name else ""


def is_published(name: str) -> bool:
    """Return whether `load_model` loads a published or a shipped model by this name."""
    return is_shipped(name) or (name in HUB and not Path(name).exists())


def record_of(model: AnyModel, source: str, preprocessing: Preprocessing | None = None) -> ModelRecord:
    """Return the record of a model for a manifest.

    Args:
        model: The model.
        source: Name of a published model, otherwise empty. The map keeps a copy of an unpublished model.
            Exceptions are your own encoder and exported files, which must be passed at every use.
        preprocessing: Preprocessing of the images. Default: the preprocessing of the model.

    Returns:
        The record.
    """
    fingerprint = model.fingerprint
    if not source and _is_storable(model):
        source = f"./model-{fingerprint[:12]}"
    preprocessing = preprocessing or model.preprocessing
    return ModelRecord(fingerprint, source, model.dim, model.has_kappa, preprocessing.to_dict())


def keep_model(folder: Path, record: ModelRecord, model: AnyModel) -> None:
    """Save a model in the map if its record names a folder inside the map.

    Args:
        folder: Folder of the map.
        record: Record of the model.
        model: The model.
    """
    if record.inside and not (folder / record.inside / CARD).is_file():
        save_model(trainable(model), folder / record.inside)


def adopt_model(folder: Path, record: ModelRecord, model: AnyModel) -> bool:
    """Copy a passed model into a map that cannot load its model, so that the user passes it only once.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        model: The model, with the fingerprint of the record.

    Returns:
        Whether the model was copied; False if another process writes to the map, or the map is read-only.
    """
    if record.inside or is_published(record.source) or not _is_storable(model):
        return False
    new = replace(record, source=record_of(model, "").source)
    with suppress(KappaPlaceError, OSError), writer_of(folder) as writer:
        if writer.manifest.model == record:
            keep_model(folder, new, model)
            writer.commit(model=new)
            return True
    return False


def model_of(
    folder: Path,
    record: ModelRecord,
    source: AnyModel | str | Path | None = None,
    whitening: Whitening | None = None,
) -> AnyModel:
    """Load the model of a map.

    A map may come from an untrusted source. Unless a model is passed, only published models and a model
    folder inside the map are loaded, whose files are safetensors and JSON.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        source: Model, or its folder, file or name. Default: the model that the record names.
        whitening: Whitening of the map.

    Returns:
        The model, with the whitening.

    Raises:
        KappaPlaceError: If the model cannot be loaded, or it differs from the model of the map.
    """
    if source is None:
        own = _own_folder(folder, record)
        if own is None and not is_published(record.source):
            need = "does not contain its model"
            if record.source:
                need = f"needs the model {record.source!r}, which is neither published nor stored in the map"
            raise KappaPlaceError(f"The map {folder} {need}. Pass it with --model (model=…).")
        try:
            model = whitened(load_model(record.source if own is None else own), record, whitening)
        except KappaPlaceError as error:
            raise KappaPlaceError(
                f"The model of the map {folder} cannot be loaded ({str(error).rstrip('.')}). Pass it with "
                "--model (model=…)."
            ) from None
    else:
        model = with_fitted_kappa(folder, record, load_named_model(source)[0], whitening)
    if model.fingerprint != record.fingerprint:
        raise KappaPlaceError(
            f"The map {folder} was built with another model, so descriptors cannot be compared. Use that "
            "model, or run `kappaplace map reembed`."
        )
    return model


def _own_folder(folder: Path, record: ModelRecord) -> Path | None:
    """Return the model's folder inside the map; None if there is none, or if it is a file or a link."""
    own = folder / record.inside
    return None if not record.inside or own.is_file() or own.is_symlink() else own


def whitened_record(record: ModelRecord, whitening: Whitening) -> ModelRecord:
    """Return the record of a model with a whitening."""
    base = whitened_fingerprint(record.base, whitening) if record.base else ""
    fingerprint = whitened_fingerprint(record.fingerprint, whitening)
    return replace(record, fingerprint=fingerprint, base=base, dim=whitening.dim)


def whitened(model: AnyModel, record: ModelRecord, whitening: Whitening | None) -> AnyModel:
    """Return a model with the whitening of a map, unless it is an exported file, which already contains
    it."""
    if whitening is None or model.fingerprint == record.fingerprint or model.dim != whitening.inputs:
        return model
    return model.with_whitening(whitening)


def with_fitted_kappa(
    folder: Path, record: ModelRecord, model: AnyModel, whitening: Whitening | None = None
) -> AnyModel:
    """Return the model with the whitening of the map, and with the κ that was fitted for it.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        model: A model. The fitted κ replaces its κ if this is the map's model before the fit.
        whitening: Whitening of the map.

    Returns:
        The model of the map.
    """
    own, model = _own_folder(folder, record), whitened(model, record, whitening)
    if own is None or not record.base or model.fingerprint != record.base:
        return model
    fitted = load_model(own, encoder=model.encoder if isinstance(model, FrozenEncoder) else None)
    return whitened(fitted, record, whitening)


def preprocessing_of(record: ModelRecord) -> Preprocessing:
    """Return the preprocessing of the map's images, which queries need as well."""
    return Preprocessing.from_dict(record.preprocessing)


def _is_storable(model: AnyModel) -> bool:
    if isinstance(model, ExportedModel):
        return False  # the user passes its file whenever it is used
    return isinstance(model, PlaceModel) or model.name in HUB


class Pending:
    """Blocks of embeddings on disk that are not in a segment yet.

    Args:
        folder: Folder of the blocks.
        key: Identifies the model and its preprocessing. Blocks with another key are ignored.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self._rows: dict[str, tuple[Rows, int]] = {}
        self._next = 0
        for file in sorted(folder.glob("*.npz")) if folder.is_dir() else []:
            self._next = max(self._next, int(file.stem) + 1 if file.stem.isdigit() else 0)
            rows = _read(file, key)
            if rows is not None:
                self._rows |= {name: (rows, i) for i, name in enumerate(rows.names)}

    def find(self, name: str) -> tuple[Rows, int] | None:
        """Return the block that has an image, and its row in the block; None if there is none."""
        return self._rows.get(name)

    def keep(self, rows: Rows) -> None:
        """Write a block, without waiting for the disk, because it can be embedded again."""
        make_folder(self.folder)
        thumbnails = list(rows.thumbnails or [])
        arrays: dict[str, NDArray[np.generic]] = {
            "names": np.frombuffer("\0".join(rows.names).encode("utf-8", "surrogateescape"), np.uint8),
            "thumbnails": np.frombuffer(b"".join(thumbnails), np.uint8),
            "starts": np.concatenate([[0], np.cumsum([len(jpeg) for jpeg in thumbnails])]).astype(np.int64),
            "has_thumbnails": np.array(rows.thumbnails is not None),
            "key": np.array(self.key),
            **({} if rows.patches is None else {"patches": rows.patches}),
            **{column: getattr(rows, column) for column in COLUMNS},
        }

        def write(part: Path) -> None:
            with open(part, "wb") as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle

        replace_file(self.folder / f"{self._next:06d}.npz", write, sync=False)
        self._next += 1

    def clear(self) -> None:
        """Delete all blocks, because a segment has their rows now."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._rows, self._next = {}, 0


def _read(file: Path, key: str) -> Rows | None:
    """Return a block; None if it is damaged or of another model, because it can be embedded again."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            names = stored["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")
            small = Blobs(stored["starts"], stored["thumbnails"]) if bool(stored["has_thumbnails"]) else None
            columns = {column: stored[column] for column in COLUMNS}
            patches = stored["patches"] if "patches" in stored.files else None
            rows = Rows(names, **columns, thumbnails=None if small is None else small.all(), patches=patches)
    except DAMAGED_ARRAYS:
        return None
    complete = all(len(getattr(rows, column)) == len(names) for column in COLUMNS)
    return rows if complete else None


@dataclass(eq=False)
class BlockEmbedder:
    """Embedding of a list of images, block by block. Images in pending blocks are not embedded again."""

    images: ReferenceList
    stats: NDArray[np.int64]
    """Size and modification time of each image file, N×2."""
    embedder: Starter
    preprocessing: Preprocessing
    on_error: OnError
    thumbnails: bool
    """Whether to make a thumbnail of each image."""
    skipped: list[tuple[str, str]]
    """Receives the name of each image that cannot be read, and the reason."""
    patches: str
    """Kind of patches to store, as in the manifest."""
    codebook: PatchCodebook | None
    """Codebook of compact patches; fitted on the first images if there is none."""
    save: Callable[[PatchCodebook], None]
    """Receives a new codebook before the first patches are coded with it."""
    pending: Pending = field(init=False)
    sampled: dict[int, tuple[Rows, int]] = field(default_factory=dict)
    """Rows of the images that the codebook was fitted on."""
    added: int = 0
    """Number of embedded images."""
    unposed: int = 0
    """Number of embedded images without a position."""

    def sample(self, rows: list[int]) -> None:
        """Embed images before the others, so that the codebook is fitted on images from the whole list."""
        before = len(self.skipped)
        result = self._embedded(rows, self._begin(rows))
        del self.skipped[before:]  # unreadable images are reported later, in their block
        if result is not None:
            self.sampled = {row: (result[1], i) for i, row in enumerate(result[0])}

    def rows(self, blocks: Iterable[NDArray[np.int64]]) -> Iterator[tuple[int, Rows | None]]:
        """Yield the size and the rows of each block in order, while the next blocks are being embedded."""
        queue: deque[tuple[int, Callable[[], Rows | None]]] = deque()
        for block in blocks:
            queue.append((len(block), self._start(block.tolist())))
            while len(queue) > self.embedder.ahead:
                count, result = queue.popleft()
                yield count, result()
        for count, result in queue:
            yield count, result()

    def _start(self, block: list[int]) -> Callable[[], Rows | None]:
        stored = {row: place for row in block if (place := self._stored(row)) is not None}
        new = [row for row in block if row not in stored]
        return partial(self._finish, stored, new, self._begin(new) if new else None)

    def _begin(self, rows: list[int]) -> Started:
        return self.embedder.begin([self.images.paths[row] for row in rows])

    def _finish(
        self, places: dict[int, tuple[Rows, int]], new: list[int], started: Started | None
    ) -> Rows | None:
        """Return the rows of a block without unreadable images; None if none is left."""
        if started is not None and (result := self._embedded(new, started)) is not None:
            new, rows = result
            self.pending.keep(rows)
            places |= {row: (rows, i) for i, row in enumerate(new)}
        if not places:
            return None
        order = np.array(sorted(places), np.int64)
        joined = Rows.join([rows.take(np.array([i], np.int64)) for _, (rows, i) in sorted(places.items())])
        # Only the model's outputs are reused from an earlier run. Poses come from the current table.
        joined = replace(joined, poses=self.images.poses[order], routes=self.images.routes[order])
        self.added += len(joined)
        self.unposed += int(np.isnan(joined.poses[:, 0]).sum())
        return joined

    def _stored(self, row: int) -> tuple[Rows, int] | None:
        if row in self.sampled:
            return self.sampled[row]
        place = self.pending.find(self.images.names[row])
        if place is None or (place[0].thumbnails is None) == self.thumbnails:
            return None
        rows, i = place
        same = same_file(self.images.paths[row], self.stats[row], rows.stats[i], rows.digests[i])
        return place if same else None

    def _embedded(self, rows: list[int], started: Started) -> tuple[list[int], Rows] | None:
        try:
            embeddings = started()
        except KappaPlaceError:
            if self.on_error == "stop":
                raise
            readable = [row for row in rows if self._is_readable(row)]
            if len(readable) == len(rows):  # the images did not cause the error
                raise
            return self._embedded(readable, self._begin(readable)) if readable else None
        self._check(embeddings, rows)
        return rows, self._rows(rows, embeddings)

    def _is_readable(self, row: int) -> bool:
        try:
            self.preprocessing.image(self.images.paths[row])
        except KappaPlaceError as error:
            self.skipped.append((self.images.names[row], str(error)))
            return False
        return True

    def _check(self, embeddings: Embeddings, rows: list[int]) -> None:
        descriptors = np.asarray(embeddings.descriptor)
        finite = np.isfinite(descriptors).all(axis=1)
        if len(descriptors) != len(rows):
            raise KappaPlaceError(
                f"The model returned {len(descriptors)} descriptors for {len(rows)} images. Check the model."
            )
        if not finite.all():
            name = self.images.names[rows[int(np.argmin(finite))]]
            raise KappaPlaceError(
                f"The descriptor of {name} is NaN or infinite. Check the model and the image."
            )

    def _rows(self, rows: list[int], embeddings: Embeddings) -> Rows:
        order, paths = np.array(rows, np.int64), [self.images.paths[row] for row in rows]
        unknown = np.full(len(rows), np.nan, np.float32)
        return Rows(
            [self.images.names[row] for row in rows],
            np.asarray(embeddings.descriptor, np.float32),
            unknown if embeddings.kappa is None else np.asarray(embeddings.kappa, np.float32),
            self.images.poses[order],
            self.images.routes[order],
            self.stats[order],
            np.stack([file_digest(path) for path in paths]).reshape(-1, DIGEST.itemsize),
            [_thumbnail(path) for path in paths] if self.thumbnails else None,
            patches=self._patches(embeddings),
        )

    def _patches(self, embeddings: Embeddings) -> Column | None:
        if self.patches == "none" or embeddings.patches is None:  # a function of the caller may have none
            return None
        if self.patches == "full":
            return np.asarray(embeddings.patches, np.float16)
        maps = torch.from_numpy(embeddings.patches)
        if self.codebook is None:
            self.codebook = learn_codes(maps)
            self.save(self.codebook)
        return self.codebook.encode(maps)


def _thumbnail(path: str) -> bytes:
    from kappaplace.data.decoding import thumbnail

    small = thumbnail(path)
    return b"" if small is None else small.jpeg
