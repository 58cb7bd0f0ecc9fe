"""`PlaceMap`: build, append, open, localize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappaplace.maps.build import Options, Report, add_images, build_map, reembed_map
from kappaplace.maps.change import compact_map, remove_names
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.sources import Images
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.maps.store.verify import verified
from kappaplace.models.checkpoint import AnyModel
from kappaplace.retrieval import EngineOptions

if TYPE_CHECKING:
    from kappaplace.calibration.fit import CalibrateOptions
    from kappaplace.data.images import Preprocessing
    from kappaplace.maps.tune.fit import FitOptions, Fitted


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
        chosen = EngineOptions(**engine_options)
        return cls(Path(folder), read_manifest(folder), model, device, engine, chosen)

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
        neighborhood: str = "",
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
            neighborhood=neighborhood,
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
        terms: CalibrateOptions | None = None,
        *,
        calibrate: bool = True,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> Fitted:
        """Fit κ without labels on the map's own images, then calibrate on them; see `maps.tune.fit`.

        Descriptors stay as they are; a calibration that was there goes, for the scores are others.
        """
        from kappaplace.maps.tune.fit import fit_map

        return fit_map(self, options, terms, calibrate=calibrate, say=say)

    def verify(self) -> list[str]:
        """One sentence for each thing that is broken; empty for a sound map."""
        return verified(self.folder)[1]
