"""A map in hand: one version of what lies on disk, with its model, its calibration and its search.

Everything is got when it is first needed. What another process takes away meanwhile (segments by compacting,
a model by giving the map another) makes this version stale, and then the map is looked at anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from kappaplace.calibration.model import Calibration
from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.borrowed import borrowed_calibration
from kappaplace.maps.info import map_info
from kappaplace.maps.manifest import Manifest, read_manifest
from kappaplace.maps.map_models import model_of, preprocessing_of
from kappaplace.maps.notes import standing_notes
from kappaplace.maps.references import MapReferences
from kappaplace.maps.segments import StaleMap
from kappaplace.maps.store import MapStore
from kappaplace.models.embedding import embed_images, embed_patches
from kappaplace.models.exported import ExportedModel
from kappaplace.models.loading import AnyModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval import open_search
from kappaplace.retrieval.references import Queries
from kappaplace.types import Embeddings


class OpenMap:
    """A map as it was when it was opened, whatever others write since; `refresh` looks again."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        model: AnyModel | str | Path | None = None,
        device: str | None = None,
        engine: str = "auto",
        engine_options: Mapping[str, Any] | None = None,
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
        return borrowed_calibration(self.manifest)

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
