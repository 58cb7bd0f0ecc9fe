"""An open map: one stored version, with its model, calibration and search engine.

Everything is loaded on first use. Another process can delete files of this version: segments by compacting,
a model by re-embedding. Then the map is stale and is read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace._names import renamed
from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.domain import Domain
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.options import RERANK
from kappaplace.calibration.sources import bank_for, calibration_with
from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.answer import Localization
from kappaplace.maps.embed import adopt_model, model_of, preprocessing_of
from kappaplace.maps.follow import Follower
from kappaplace.maps.localize import Calibrations, locate, rerank_of
from kappaplace.maps.options import LocalizeOptions, Order, SequenceOptions
from kappaplace.maps.references import MapReferences
from kappaplace.maps.store import MapStore
from kappaplace.maps.store.manifest import PROTOCOL, Manifest, read_manifest
from kappaplace.maps.store.segments import StaleMap
from kappaplace.maps.store.writer import writer_of
from kappaplace.maps.tune.monitor import drift_note
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import as_sources, embed_images, patch_maps_of
from kappaplace.retrieval import Circle, EngineOptions, open_search
from kappaplace.retrieval.agreement import PatchMatches
from kappaplace.retrieval.columns import COARSE
from kappaplace.retrieval.patch_codes import LocalFeatures
from kappaplace.retrieval.patches import patch_matches
from kappaplace.retrieval.references import Queries, draw
from kappaplace.types import Embeddings, Json


def is_one_image(images: Iterable[Source] | Source) -> bool:
    """Return whether the argument is a single image rather than a list of images."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4
    return isinstance(images, str | os.PathLike | bytes) or not isinstance(images, Sequence | Iterator)


def query_names(sources: Sequence[Source], first: int = 0) -> list[str]:
    """Return a name for each query: its path, or its number, counted from ``first``."""
    return [
        os.fspath(source) if isinstance(source, str | os.PathLike) else f"query {i}"
        for i, source in enumerate(sources, first)
    ]


LOOKS_AT_IMAGES = 50
"""Number of images of the map to check. Patch matching is on by default if all of them are readable."""
IN_MEMORY = 1024
"""Largest number of queries whose patch maps stay in memory. For longer lists, they are computed again."""
ATTEMPTS = 5
"""Number of attempts to read a map that another process compacts repeatedly."""
GROWN = 0.2
"""Answers have a note if the map grew or shrank by more than this fraction since its calibration."""
OLDER = (
    "The map was written with protocol {then} and this version uses {now}, so its scores differ. Its "
    "calibration is ignored; calibrate the map again."
)


class OpenMap:
    """An open map for queries, as it was when it was opened. `PlaceMap` adds methods that change the map."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        model: AnyModel | str | Path | None = None,
        device: str | None = None,
        engine: str = "auto",
        engine_options: EngineOptions | None = None,
    ) -> None:
        self.folder, self.model_source, self.device = folder, model, device
        self.engine, self.engine_options = engine, engine_options
        self._model: AnyModel | None = None
        self._references: MapReferences | None = None
        self._calibration: Calibration | None = None
        self._use(manifest)

    def __len__(self) -> int:
        return self.manifest.count

    @property
    def store(self) -> MapStore:
        """Names, poses and descriptors of the references."""
        return self._store

    @property
    def model(self) -> AnyModel:
        """Model of the map, loaded on first use."""
        if self._model is None:
            self._model = self._load_model()
        return self._model

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the map; None if it is not calibrated."""
        if self._calibration is None and self.manifest.calibration is not None:
            self._calibration = Calibration.from_dict(self.manifest.calibration["calibration"])
        return self._calibration

    @property
    def borrowed(self) -> Calibration | None:
        """Shipped calibration of the model, without a guarantee; None if the map has its own calibration."""
        if self.manifest.calibration is not None:
            return None
        if self.manifest.storage in COARSE:  # compressed descriptors give other scores
            return None
        model = self.manifest.model
        return calibration_with(model.fingerprint, preprocessing_of(model))

    @property
    def bank(self) -> Domain | None:
        """Statistics of correctly answered queries of other places, for a calibration with too few
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
        """Return the number of matches that a calibration should re-rank by patch matching.

        Args:
            rerank: Number that the user passed. Default: `RERANK`, but at most a quarter of the references.
                The default is 0 if the model has no patch maps, or images of the map cannot be read.

        Returns:
            The number of matches; 0 turns patch matching off.
        """
        if rerank is not None:
            return rerank
        if patch_maps_of(self.model) is None:
            return 0
        sample = draw(len(self), LOOKS_AT_IMAGES)
        sample = sample[~self._store.has_patches(sample)]
        readable = all(os.path.isfile(self._store.image_path(row)) for row in sample.tolist())
        return min(RERANK, len(self) // 4) if readable else 0

    @property
    def references(self) -> MapReferences:
        """References that queries are compared with."""
        if self._references is None:
            engine = open_search(self._store.source(), self.engine, self.device, self.engine_options)
            device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            self._references = MapReferences(self._store, engine, self._patch_maps, device)
        return self._references

    def queries(self, embeddings: Embeddings, images: Sequence[Source] | None = None) -> Queries:
        """Return queries from embeddings of the map's model, with images if patch matching is used."""
        return Queries(embeddings, images, None if images is None else self._patch_maps)

    def embed(self, sources: Sequence[Source], batch_size: int = 32, *, patches: bool = False) -> Embeddings:
        """Embed queries in the same way as the images of the map.

        Args:
            sources: The queries.
            batch_size: Number of images to embed at once.
            patches: Also return patch maps, unless there are many queries.

        Returns:
            The embeddings.
        """
        model = self.model  # before the preprocessing: loading the model may refresh the manifest
        preprocessing = preprocessing_of(self.manifest.model)
        return embed_images(
            model,
            preprocessing,
            sources,
            batch_size=batch_size,
            device=self.device,
            patches=patches and len(sources) <= IN_MEMORY,
        )

    def compares(self, rerank: int | None) -> bool:
        """Return whether queries with this setting are re-ranked by patch matching."""
        count = rerank_of(self.calibration or self.borrowed) if rerank is None else rerank
        return count > 0 and getattr(self.model, "shows_patches", False)

    def notes(self) -> list[str]:
        """Return the notes that apply to every answer: on the calibration, and on unknown positions."""
        manifest, calibration, notes = self.manifest, self.calibration, []
        if manifest.protocol < PROTOCOL:
            notes.append(OLDER.format(then=manifest.protocol, now=PROTOCOL))
        record = manifest.calibration
        if record is not None and calibration is not None:
            if not record.get("guarantee", False):
                notes.append(f"Calibrated on {record['origin']}; no risk is guaranteed.")
            then, now = int(record["references"]), manifest.count
            if abs(now - then) > GROWN * max(then, 1):
                notes.append(
                    f"The map had {then:,} references when it was calibrated and now has {now:,}. Calibrate "
                    "it again."
                )
            if drift := self._drift_note():
                notes.append(drift)
        if manifest.unposed:
            notes.append(f"{manifest.unposed:,} of {manifest.count:,} references have no position.")
        return notes

    def _drift_note(self) -> str:
        """Return the warning of the map's monitor; empty if there is none."""
        return "" if self.calibration is None else drift_note(self.folder, self.calibration.fingerprint)

    def refresh(self) -> bool:
        """Read the map again, and return whether another process has changed it."""
        manifest = read_manifest(self.folder)
        if manifest == self.manifest:
            return False
        before = self.manifest.model.fingerprint
        self._use(manifest)
        if self.manifest.model.fingerprint != before:
            self._model = None
        return True

    def close(self) -> None:
        """Close the search engine. The next query opens it again."""
        if self._references is not None:
            self._references.engine.close()
            self._references = None

    def calibrate_with(self, calibration: Calibration, origin: str, **facts: Json) -> None:
        """Store a calibration with the map.

        Args:
            calibration: The calibration.
            origin: Description of the data that it was fitted on.
            facts: Further values to store.

        Raises:
            KappaPlaceError: If another process has changed the model or the storage of the map.
        """
        record = {"origin": origin, "references": len(self), "calibration": calibration.to_dict(), **facts}
        with writer_of(self.folder) as writer:
            now, then = writer.manifest, self.manifest
            if (now.model.fingerprint, now.storage) != (then.model.fingerprint, then.storage):
                raise KappaPlaceError(
                    f"Another process changed the model or the storage of {self.folder}. Calibrate it again."
                )
            writer.commit(calibration=record)
        self.refresh()

    @overload
    def localize(  # type: ignore[overload-overlap]  # text is a sequence of text
        self,
        images: str | os.PathLike[str] | bytes | PIL.Image.Image | NDArray[np.uint8],
        k: int | LocalizeOptions = 10,
        *,
        area: Circle | None = None,
        order: Order = "similarity",
        outside_rate: float | None = None,
        rerank: int | None = None,
        heading: float | None = None,
        batch_size: int = 32,
    ) -> Localization: ...

    @overload
    def localize(
        self,
        images: Iterable[Source],
        k: int | LocalizeOptions = 10,
        *,
        area: Circle | None = None,
        order: Order = "similarity",
        outside_rate: float | None = None,
        rerank: int | None = None,
        heading: float | None = None,
        batch_size: int = 32,
    ) -> list[Localization]: ...

    @renamed(near="area", verify="rerank")
    def localize(
        self,
        images: Iterable[Source] | Source,
        k: int | LocalizeOptions = 10,
        *,
        area: Circle | None = None,
        order: Order = "similarity",
        outside_rate: float | None = None,
        rerank: int | None = None,
        heading: float | None = None,
        batch_size: int = 32,
    ) -> Localization | list[Localization]:
        """Estimate where images were taken.

        Args:
            images: One image or several: paths, bytes, Pillow images or H×W×3 uint8 arrays.
            k: Number of matches per query, or a record with all options, such as ``coverage`` and ``group``.
            area: Search only this circle: x, y and radius in metres in the frame of the map, or latitude,
                longitude (degrees) and radius (metres).
            order: Order of the matches: "similarity" or "probability".
            outside_rate: Expected fraction of out-of-map queries. Default: the calibrated one.
            rerank: Number of top matches to re-rank by patch matching. Default: the number at calibration,
                or 0. The images of the map are read only if it does not store their patches.
            heading: Direction in which the images look, in degrees clockwise from north. A note tells you if
                the map has no such image there.
            batch_size: Number of images to embed at once.

        Returns:
            One answer for a single image, otherwise a list in input order.

        Raises:
            KappaPlaceError: If an image cannot be read, or the map does not support an option.

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
        options = LocalizeOptions.of(
            k,
            LocalizeOptions(
                area=area, order=order, outside_rate=outside_rate, rerank=rerank, heading=heading
            ),
        )
        sources = as_sources(images)
        if not sources:
            raise KappaPlaceError("The list of images to localize is empty. Pass at least one image.")
        start = time.perf_counter()
        embeddings = self.embed(sources, batch_size, patches=self.compares(options.rerank))
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
        """Localize queries that were embedded with the model of the map.

        Args:
            embeddings: Embeddings of the queries.
            names: Name of each query.
            options: Options of the localization. Default: `LocalizeOptions` with its defaults.
            images: Images of the queries, for patch matching.
            seconds: Seconds per query that earlier stages took, to include in the answers.

        Returns:
            One answer per query.

        Raises:
            KappaPlaceError: If the embeddings do not fit the map, or the map does not support an option.
        """
        if np.shape(embeddings.descriptor) != (len(names), self.manifest.model.dim):
            raise KappaPlaceError(
                f"Expected descriptors of shape {(len(names), self.manifest.model.dim)}, got "
                f"{np.shape(embeddings.descriptor)}. Embed the queries with the model of the map."
            )
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return locate(
                    self.references,
                    self.queries(embeddings, images),
                    names,
                    options or LocalizeOptions(),
                    Calibrations(self.calibration, self.borrowed, self.bank, bool(self._drift_note())),
                    notes=self.notes(),
                    seconds=seconds,
                )
            except StaleMap:  # another process compacted the map: new files have the same references
                fingerprint = self.manifest.model.fingerprint
                if not attempts_left or not self.refresh():
                    raise
                if self.manifest.model.fingerprint != fingerprint:
                    raise self._another_model() from None
        raise AssertionError("unreachable")

    def follow(self, step: float | None = None) -> Follower:
        """Follow a camera through the map: fuse the answers to its images, one after another.

        Args:
            step: Typical distance in metres between two consecutive images. Default: estimated from them.

        Returns:
            State of the sequence, for `localize_sequence`.

        Raises:
            KappaPlaceError: If the map has no positions and no frame numbers, or no calibration.
        """
        self._store.check_not_empty()
        return Follower(self._store, self.calibration or self.borrowed, step)

    def localize_sequence(
        self,
        images: Iterable[Source],
        options: LocalizeOptions | None = None,
        sequence: SequenceOptions | None = None,
        *,
        follower: Follower | None = None,
        batch_size: int = 32,
    ) -> list[Localization]:
        """Estimate where the images of a sequence were taken, each with the help of the others.

        Args:
            images: Images in the order in which they were taken. Not all of them are in memory at once.
            options: Options of the localization. Default: `LocalizeOptions` with its defaults.
            sequence: Options of the sequence. Default: `SequenceOptions` with its defaults.
            follower: State of earlier images, from `follow`. Then each image is answered from the images
                before it, and the next call continues the sequence.
            batch_size: Number of images to embed at once.

        Returns:
            One answer per image, in order. Its probability is that of the sequence, without a guarantee.

        Raises:
            KappaPlaceError: If an image cannot be read, the map has no calibration or no positions, or a
                candidate set or a group is requested.
        """
        options, sequence = options or LocalizeOptions(), sequence or SequenceOptions()
        if options.coverage is not None or options.group is not None:
            raise KappaPlaceError(
                "Sequences have neither candidate sets nor groups, because no risk is guaranteed for them. "
                "Omit coverage and group."
            )
        causal = sequence.causal or follower is not None
        follower = follower or self.follow(sequence.step)
        answers: list[Localization] = []
        descriptors: list[NDArray[np.floating]] = []
        stream = iter(images)
        while sources := as_sources(list(islice(stream, batch_size))):
            embeddings = self.embed(sources, batch_size, patches=self.compares(options.rerank))
            names = query_names(sources, len(answers))
            part = self.localize_embeddings(embeddings, names, options, images=sources)
            if self._store is not follower.store:
                raise KappaPlaceError(
                    f"The map {self.folder} has changed during the sequence. Start it again."
                )
            if causal:
                part = [follower.add(*pair) for pair in zip(part, embeddings.descriptor, strict=True)]
            answers += part
            descriptors += list(embeddings.descriptor)
        if not answers:
            raise KappaPlaceError("The sequence to localize is empty. Pass at least one image.")
        return answers if causal else follower.fuse(answers, np.stack(descriptors))

    def match_evidence(
        self, query: Source, reference: int, patches: NDArray[np.float16] | None = None
    ) -> PatchMatches:
        """Return the patches of a query that agree with a reference: the evidence behind a match.

        Args:
            query: Image of the query.
            reference: Number of the reference in the map.
            patches: Feature map of the query, 1×C×H×W. Default: computed from the image.

        Returns:
            The pairs of patches.

        Raises:
            KappaPlaceError: If the model has no patch maps, or patches of the reference are neither stored
                nor can be computed.
        """
        maps = self._patch_maps([query]) if patches is None else torch.from_numpy(patches)
        other = self.references.local(np.array([reference]))
        return patch_matches(LocalFeatures.of(maps.to(other.cells.device)), other)

    def _another_model(self) -> KappaPlaceError:
        """Return the error for embeddings of the previous model of the map."""
        return KappaPlaceError(
            f"Another process embedded the map {self.folder} with another model. Localize again."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder}: {len(self):,} references, {self.manifest.frame})"

    def _load_model(self) -> AnyModel:
        try:
            model = self._model_of()
        except KappaPlaceError:  # another process may have given the map another model
            if not self.refresh():
                raise
            model = self._model_of()
        if self.model_source is not None and adopt_model(self.folder, self.manifest.model, model):
            self.refresh()
        return model

    def _model_of(self) -> AnyModel:
        return model_of(self.folder, self.manifest.model, self.model_source, self._store.whitening)

    def _patch_maps(self, images: Sequence[Source]) -> Tensor:
        before = self.manifest.model.fingerprint
        model = self.model
        if self.manifest.model.fingerprint != before:
            raise self._another_model()
        patch_maps = patch_maps_of(model, preprocessing_of(self.manifest.model))
        if patch_maps is None:
            raise KappaPlaceError(
                "Patch matching needs a model that provides patch maps (ResNet, EfficientNet-Lite), and the "
                "model of this map does not. Pass rerank=0."
            )
        return patch_maps(images)

    def _use(self, manifest: Manifest) -> None:
        self.close()
        while True:
            try:
                self._store = MapStore(self.folder, manifest)
                self._store.check()
                break
            except StaleMap:  # another process compacted the map after its manifest was read
                before, manifest = manifest, read_manifest(self.folder)
                if manifest == before:
                    raise
        self.manifest = manifest
        self._calibration = None
