"""An open map: one version of what is stored, with its model, its calibration and its search.

Everything is loaded when it is first needed. What another process removes in the meantime (segments by
compacting, a model by re-embedding) makes this version stale, and then the map is read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from torch import Tensor

from kappaplace._moved import renamed
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.domain import Domain
from kappaplace.calibration.fit import Examples
from kappaplace.calibration.options import RERANK
from kappaplace.calibration.sources import bank_for, calibration_with
from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.answer import Localization
from kappaplace.maps.localize import locate
from kappaplace.maps.models import model_of, preprocessing_of
from kappaplace.maps.notes import map_info, standing_notes
from kappaplace.maps.options import LocalizeOptions, Order
from kappaplace.maps.references import MapReferences
from kappaplace.maps.store.manifest import Manifest, read_manifest
from kappaplace.maps.store.reader import MapStore
from kappaplace.maps.store.segments import StaleMap
from kappaplace.maps.store.writer import writer_of
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import as_sources, embed_images, embed_patches
from kappaplace.models.exported import ExportedModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval import Circle, EngineOptions, open_search
from kappaplace.retrieval.columns import COARSE
from kappaplace.retrieval.references import Queries, draw
from kappaplace.types import Embeddings


def is_one_image(images: Any) -> bool:
    """Whether what was given is an image rather than a list of them, so that one answer is expected."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4
    return isinstance(images, str | os.PathLike | bytes) or not isinstance(images, Sequence | Iterator)


def query_names(sources: Sequence[Source]) -> list[str]:
    """A name for each query: its path, or its number."""
    return [
        os.fspath(source) if isinstance(source, str | os.PathLike) else f"query {i}"
        for i, source in enumerate(sources)
    ]


LOOKS_AT_IMAGES = 50
"""Images of the map that must be readable for patches to be compared by default."""
LOOKS = 5
"""Times that a map is looked at anew while another process compacts it again and again."""


class OpenMap:
    """A map as it was when it was opened, whatever others write since; `refresh` looks again."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        model: AnyModel | str | Path | None = None,
        device: str | None = None,
        engine: str = "auto",
        engine_options: EngineOptions | None = None,
    ) -> None:
        self.folder, self.given_model, self.device = folder, model, device
        self.engine, self.engine_options = engine, engine_options
        self._model: AnyModel | None = None
        self._references: MapReferences | None = None
        self._calibration: Calibration | None = None
        self._use(manifest)

    def __len__(self) -> int:
        return self.manifest.count

    @property
    def store(self) -> MapStore:
        """The references: names, poses, descriptors."""
        return self._store

    @property
    def model(self) -> AnyModel:
        """The model of the map, loaded when it is first needed."""
        if self._model is None:
            self._model = self._loaded()
        return self._model

    @property
    def calibration(self) -> Calibration | None:
        """What turns scores into probabilities; None for a map that is not calibrated."""
        if self._calibration is None and self.manifest.calibration is not None:
            self._calibration = Calibration.from_dict(self.manifest.calibration["calibration"])
        return self._calibration

    @property
    def borrowed(self) -> Calibration | None:
        """What came with the model, for a map without a calibration of its own; it promises nothing."""
        if self.manifest.calibration is not None:
            return None
        if self.manifest.storage in COARSE:  # rounded descriptors give other scores
            return None
        model = self.manifest.model
        return calibration_with(model.fingerprint, preprocessing_of(model))

    @property
    def bank(self) -> Domain | None:
        """What correctly answered queries of other places look like, for a calibration with too few
        queries."""
        model, own = self.manifest.model, self.calibration
        coarse = self.manifest.storage in COARSE
        rerank = 0 if own is None else own.rerank
        return bank_for(model.fingerprint, preprocessing_of(model), rerank, coarse=coarse)

    def prior(self, examples: Examples) -> Calibration | None:
        """Return the shipped calibration of the model if these examples have all of its scores."""
        model = self.manifest.model
        shipped = calibration_with(model.fingerprint, preprocessing_of(model))
        if shipped is None or self.manifest.storage in COARSE or shipped.rerank != examples.rerank:
            return None
        return shipped if set(shipped.scores) <= set(examples.scores) else None

    def rerank_count(self, rerank: int | None) -> int:
        """Return how many matches a calibration should compare patch by patch.

        Args:
            rerank: What the user chose. Default: as many as usual, if the model shows patches and the images
                of the map can be read; a map of few images compares a quarter of them.

        Returns:
            The number of matches, 0 for none.
        """
        if rerank is not None:
            return rerank
        model = self.model
        if not isinstance(model, PlaceModel | ExportedModel) or not model.shows_patches:
            return 0
        sample = draw(len(self), LOOKS_AT_IMAGES)
        readable = all(os.path.isfile(self._store.image_path(row)) for row in sample.tolist())
        return min(RERANK, len(self) // 4) if readable else 0

    @property
    def references(self) -> MapReferences:
        """What queries are compared with: this version of the map."""
        if self._references is None:
            engine = open_search(self._store.source(), self.engine, self.device, self.engine_options)
            self._references = MapReferences(self._store, engine, self._patch_maps)
        return self._references

    def queries(self, embeddings: Embeddings, images: Sequence[Source] | None = None) -> Queries:
        """Return queries that the map's model has embedded, with their images if patches are compared."""
        return Queries(embeddings, images, None if images is None else self._patch_maps)

    def embed(self, sources: Sequence[Source], batch_size: int = 32) -> Embeddings:
        """Embed queries as the map's own images were."""
        model = self.model  # before the preprocessing: loading may find that both have changed
        settings: dict[str, Any] = {"batch_size": batch_size, "device": self.device}
        return embed_images(model, preprocessing_of(self.manifest.model), sources, **settings)

    def notes(self) -> list[str]:
        """What an answer of this map must say of itself."""
        return standing_notes(self.folder, self.manifest, self.calibration)

    def info(self) -> dict[str, Any]:
        """What the map is, as plain values."""
        return map_info(self.folder, self.manifest) | {"borrowed": self.borrowed is not None}

    def refresh(self) -> bool:
        """See what others have written; says whether there was anything new."""
        manifest = read_manifest(self.folder)
        if manifest == self.manifest:
            return False
        before = self.manifest.model.fingerprint
        self._use(manifest)
        if self.manifest.model.fingerprint != before:
            self._model = None
        return True

    def close(self) -> None:
        """Let go of the search engine, be it a connection; the next question opens it again."""
        if self._references is not None:
            self._references.engine.close()
            self._references = None

    def calibrate_with(self, calibration: Calibration, origin: str, **facts: Any) -> None:
        """Keep a calibration with the map; ``origin`` says in words what it was fitted on."""
        record = {
            "origin": origin,
            "references": len(self),
            "calibration": calibration.to_dict(),
            **facts,
        }
        with writer_of(self.folder) as writer:
            now, then = writer.manifest, self.manifest
            if (now.model.fingerprint, now.storage) != (then.model.fingerprint, then.storage):
                raise KappaPlaceError(
                    f"The map {self.folder} got another model or storage meanwhile; calibrate it again."
                )
            writer.commit(calibration=record)
        self.refresh()

    @overload
    def localize(  # type: ignore[overload-overlap]  # text is a sequence of text
        self,
        images: str | os.PathLike[str] | bytes | PIL.Image.Image | NDArray[np.uint8],
        k: int = 10,
        *,
        area: Circle | None = None,
        order: Order = "similarity",
        outside_rate: float | None = None,
        rerank: int | None = None,
        batch_size: int = 32,
    ) -> Localization: ...

    @overload
    def localize(
        self,
        images: Iterable[Source],
        k: int = 10,
        *,
        area: Circle | None = None,
        order: Order = "similarity",
        outside_rate: float | None = None,
        rerank: int | None = None,
        batch_size: int = 32,
    ) -> list[Localization]: ...

    @renamed(near="area", verify="rerank")
    def localize(
        self,
        images: Iterable[Source] | Source,
        k: int = 10,
        *,
        area: Circle | None = None,
        order: Order = "similarity",
        outside_rate: float | None = None,
        rerank: int | None = None,
        batch_size: int = 32,
    ) -> Localization | list[Localization]:
        """Find where images were taken.

        Args:
            images: One image, or several: files, bytes, arrays H×W×3 of uint8 or PIL images.
            k: Number of matches per query.
            area: Search only this circle: x, y and radius in meters of the map.
            order: Order of the matches: similarity or probability.
            outside_rate: Expected fraction of queries from outside the map. Default: as at calibration.
            rerank: Number of top matches to compare patch by patch and to order by agreement; this reads
                their images. Default: as at calibration.
            batch_size: Number of images to embed at once.

        Returns:
            One answer for one image, a list for several.

        Raises:
            KappaPlaceError: If an image cannot be read, or the map cannot answer so.

        >>> import tempfile
        >>> from PIL import Image
        >>> from kappaplace import PlaceMap, PlaceModel, Preprocessing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     names = [f"{folder}/{color}.png" for color in ("red", "green", "blue")]
        ...     for name, color in zip(names, ("red", "green", "blue"), strict=True):
        ...         Image.new("RGB", (32, 32), color).save(name)
        ...     model = PlaceModel.create("resnet_tiny", dim=8, preprocessing=Preprocessing(32, "exact"))
        ...     town = PlaceMap.build(names, f"{folder}/town.map", model.eval())
        ...     answer = town.localize(names[1], k=2)
        >>> answer.matches[0].name, round(answer.matches[0].similarity, 3), answer.probability
        ('green.png', 1.0, None)
        """
        options = LocalizeOptions(k, area, order, outside_rate, rerank)
        sources = as_sources(images)
        if not sources:
            raise KappaPlaceError("There is nothing to localize: the list of images is empty.")
        start = time.perf_counter()
        embeddings = self.embed(sources, batch_size)
        seconds = {"embed": (time.perf_counter() - start) / len(sources)}
        names = query_names(sources)
        answers = self.localize_embeddings(embeddings, names, options, images=sources, seconds=seconds)
        return answers[0] if is_one_image(images) and len(answers) == 1 else answers

    def localize_embeddings(
        self,
        embeddings: Embeddings,
        names: Sequence[str],
        options: LocalizeOptions | None = None,
        *,
        images: Sequence[Source] | None = None,
        seconds: dict[str, float] | None = None,
    ) -> list[Localization]:
        """Answer queries that the map's model has embedded already.

        Args:
            embeddings: Of the queries.
            names: Of the queries.
            options: How they are answered.
            images: Of the queries, to compare patches.
            seconds: Time spent before, per query.

        Returns:
            One answer per query.
        """
        if np.shape(embeddings.descriptor) != (len(names), self.manifest.model.dim):
            raise KappaPlaceError(
                f"Descriptors of shape {np.shape(embeddings.descriptor)} do not fit {len(names)} queries and "
                f"{self.manifest.model.dim} dimensions; embed them with the map's own model."
            )
        for left in reversed(range(LOOKS)):
            try:
                return locate(
                    self.references,
                    self.queries(embeddings, images),
                    names,
                    options or LocalizeOptions(),
                    calibration=self.calibration,
                    shipped=self.borrowed,
                    bank=self.bank,
                    notes=self.notes(),
                    seconds=seconds,
                )
            except StaleMap:  # compacted while we looked: the new files hold the same references
                fingerprint = self.manifest.model.fingerprint
                if not left or not self.refresh():
                    raise
                if self.manifest.model.fingerprint != fingerprint:
                    raise self._another_model() from None
        raise AssertionError("unreachable")

    def _another_model(self) -> KappaPlaceError:
        """What is told to whoever has embeddings of the model that the map had before."""
        return KappaPlaceError(f"The map {self.folder} was embedded with another model meanwhile; ask again.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder}: {len(self):,} references, {self.manifest.frame})"

    def _loaded(self) -> AnyModel:
        try:
            return model_of(self.folder, self.manifest.model, self.given_model)
        except KappaPlaceError:  # gone, perhaps, since the map has another one now
            if not self.refresh():
                raise
        return model_of(self.folder, self.manifest.model, self.given_model)

    def _patch_maps(self, images: Sequence[Source]) -> Tensor:
        before = self.manifest.model.fingerprint
        model = self.model
        if self.manifest.model.fingerprint != before:
            raise self._another_model()
        if not isinstance(model, PlaceModel | ExportedModel):
            raise KappaPlaceError(
                "Comparing matches cell by cell needs a model that shows its stages (ResNet, "
                "EfficientNet-Lite); the map's encoder does not."
            )
        return embed_patches(model, preprocessing_of(self.manifest.model), images)

    def _use(self, manifest: Manifest) -> None:
        self.close()
        while True:
            try:
                self._store = MapStore(self.folder, manifest)
                break
            except StaleMap:  # compacted between the manifest and the look at its segments
                before, manifest = manifest, read_manifest(self.folder)
                if manifest == before:
                    raise
        self.manifest = manifest
        self._calibration = None
