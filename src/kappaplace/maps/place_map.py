"""`PlaceMap`: build, append, open, localize."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.calibration.model import Calibration
from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.build import add_images, build_map
from kappaplace.maps.change import compact_map, remove_names
from kappaplace.maps.extend import Options, Report
from kappaplace.maps.localization import Localization
from kappaplace.maps.localize import locate
from kappaplace.maps.manifest import read_manifest
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.queries import Near, circle_of, is_one_image, query_names
from kappaplace.maps.reembed import reembed_map
from kappaplace.maps.segments import StaleMap
from kappaplace.maps.sources import Images
from kappaplace.maps.verify import verified
from kappaplace.maps.writer import writer_of
from kappaplace.models.embedding import as_sources
from kappaplace.models.loading import AnyModel
from kappaplace.types import Embeddings

if TYPE_CHECKING:
    from kappaplace.calibration.examples import Terms
    from kappaplace.data.images import Preprocessing
    from kappaplace.maps.fit import FitOptions, Fitted

LOOKS = 5
"""Times that a map is looked at anew while another process compacts it again and again."""


class PlaceMap(OpenMap):
    """A map on disk. Get one with `PlaceMap.open` or `PlaceMap.build`.

    It shows the map as it was when it was opened, whatever others write since; `refresh` looks again.
    """

    report: Report | None = None
    """What the last `build`, `add` or `reembed` of this object did."""

    @classmethod
    def open(
        cls,
        folder: str | Path,
        model: AnyModel | str | Path | None = None,
        *,
        device: str | None = None,
        engine: str = "auto",
        **engine_options: Any,
    ) -> PlaceMap:
        """Open a map: one small file is read, everything else when it is needed.

        ``model`` says where its model lies now, if it is not where the manifest says; ``device`` is where
        queries are embedded and compared. ``engine`` and its options (``uri`` of a database) are those of
        `kappaplace.retrieval.open_engine`; by default it is chosen by the size of the map.
        """
        return cls(Path(folder), read_manifest(folder), model, device, engine, engine_options)

    @classmethod
    def build(
        cls,
        images: Images,
        out: str | Path,
        model: AnyModel | str | Path | None = None,
        *,
        layout: str = "",
        prefix: str = "",
        preprocessing: Preprocessing | None = None,
        radius: float | None = None,
        neighbourhood: str = "",
        storage: str = "float32",
        thumbnails: bool = False,
        name: str = "",
        **options: Any,
    ) -> PlaceMap:
        """Make a map of a folder, a table or a list of images; what a killed build left is gone on with.

        Without ``model`` it is made with the pretrained one that comes with the package.
        ``options`` are the fields of `kappaplace.maps.build.Options`; ``report`` of the result says what was
        done.
        """
        report = build_map(
            images,
            out,
            model,
            layout=layout,
            prefix=prefix,
            preprocessing=preprocessing,
            radius=radius,
            neighbourhood=neighbourhood,
            storage=storage,
            thumbnails=thumbnails,
            name=name,
            options=Options(**options),
        )
        made = cls.open(out, model, device=options.get("device"))
        made.report = report
        return made

    def add(self, images: Images, *, layout: str = "", prefix: str = "", **options: Any) -> Report:
        """Add images; those that are there already and unchanged are left alone."""
        chosen = Options(**({"device": self.device} | options))
        made_by = (self.model, self.manifest.model.fingerprint)
        self.report = add_images(self.folder, images, *made_by, layout=layout, prefix=prefix, options=chosen)
        self.refresh()
        return self.report

    def remove(self, names: Iterable[str]) -> int:
        """Take references out by name, all or none; how many there were."""
        count = remove_names(self.folder, [names] if isinstance(names, str) else list(names))
        self.refresh()
        return count

    def compact(self, storage: str | None = None) -> None:
        """Free the space of removed references, join small segments, and compare all places anew.

        ``storage`` changes how descriptors are kept: float32, float16, int8, or pq (codes of at most 128
        bytes, learnt from the map's own descriptors). A calibration goes when int8 or pq rounds them.
        """
        compact_map(self.folder, storage)
        self.refresh()

    def reembed(self, model: AnyModel | str | Path, **options: Any) -> Report:
        """Embed all images again with another model; its calibration goes, for the scores are others."""
        chosen = Options(**({"on_error": "raise", "device": self.device} | options))
        self.report = reembed_map(self.folder, model, chosen)
        self.given_model, self._model = model, None
        self.refresh()
        return self.report

    def fit(
        self,
        options: FitOptions | None = None,
        terms: Terms | None = None,
        *,
        calibrate: bool = True,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> Fitted:
        """Fit κ without labels on the map's own images, then calibrate on them; see `kappaplace.maps.fit`.

        Descriptors stay as they are; a calibration that was there goes, for the scores are others.
        """
        from kappaplace.maps.fit import fit_map

        return fit_map(self, options, terms, calibrate=calibrate, say=say)

    def verify(self) -> list[str]:
        """One sentence for each thing that is broken; empty for a sound map."""
        return verified(self.folder)[1]

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

    def localize(
        self,
        images: Iterable[Source] | Source,
        k: int = 10,
        *,
        near: Near | None = None,
        rerank: bool = False,
        outside_rate: float | None = None,
        verify: int | None = None,
        batch_size: int = 32,
    ) -> Any:
        """Where images were taken: one `Localization` for one image, a list for several.

        ``near`` is ((x, y), radius): only references in this circle are searched. ``rerank`` orders matches
        by probability. ``outside_rate`` is the share of queries expected from outside the map, if it differs
        from the one at calibration. ``verify`` is how many matches are compared with the query cell by cell
        and ordered by it, which reads their images; None: as many as the calibration was fitted with.

        >>> import tempfile
        >>> from PIL import Image
        >>> from kappaplace.data.images import Preprocessing
        >>> from kappaplace.models.place_model import PlaceModel
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     names = [f"{folder}/{colour}.png" for colour in ("red", "green", "blue")]
        ...     for name, colour in zip(names, ("red", "green", "blue"), strict=True):
        ...         Image.new("RGB", (32, 32), colour).save(name)
        ...     model = PlaceModel.create("resnet_tiny", dim=8, preprocessing=Preprocessing(32, "exact"))
        ...     town = PlaceMap.build(names, f"{folder}/town.map", model.eval())
        ...     answer = town.localize(names[1], k=2)
        >>> answer.matches[0].name, round(answer.matches[0].similarity, 3), answer.probability
        ('green.png', 1.0, None)
        """
        sources = as_sources(images)
        if not sources:
            raise KappaPlaceError("There is nothing to localize: the list of images is empty.")
        start = time.perf_counter()
        made = self.embed(sources, batch_size)
        seconds = {"embed": (time.perf_counter() - start) / len(sources)}
        options: dict[str, Any] = {"k": k, "near": near, "rerank": rerank, "outside_rate": outside_rate}
        options |= {"verify": verify, "images": sources, "seconds": seconds}
        answers = self.localize_embeddings(made, query_names(sources), **options)
        return answers[0] if is_one_image(images) and len(answers) == 1 else answers

    def localize_embeddings(
        self,
        embeddings: Embeddings,
        names: Sequence[str],
        k: int = 10,
        *,
        near: Near | None = None,
        rerank: bool = False,
        outside_rate: float | None = None,
        verify: int | None = None,
        images: Sequence[Source] | None = None,
        seconds: dict[str, float] | None = None,
    ) -> list[Localization]:
        """The same for queries that the map's model has embedded already; ``verify`` needs their images."""
        if np.shape(embeddings.descriptor) != (len(names), self.manifest.model.dim):
            raise KappaPlaceError(
                f"Descriptors of shape {np.shape(embeddings.descriptor)} do not fit {len(names)} queries and "
                f"{self.manifest.model.dim} dimensions; embed them with the map's own model."
            )
        settings: dict[str, Any] = {"k": k, "near": circle_of(near), "rerank": rerank}
        settings |= {"outside_rate": outside_rate, "verify": verify}
        for left in reversed(range(LOOKS)):
            try:
                return locate(
                    self.references,
                    self.queries(embeddings, images),
                    names,
                    calibration=self.calibration,
                    borrowed=self.borrowed,
                    notes=self.notes(),
                    seconds=seconds,
                    **settings,
                )
            except StaleMap:  # compacted while we looked: the new files hold the same references
                fingerprint = self.manifest.model.fingerprint
                if not left or not self.refresh():
                    raise
                if self.manifest.model.fingerprint != fingerprint:
                    raise self._another_model() from None
        raise AssertionError("unreachable")
