"""`PlaceMap`: a map of images on disk, with every verb of ``kappaplace map``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kappaplace.maps.build import Report, add_images, build_map, reembed_map
from kappaplace.maps.change import compact_map, remove_names
from kappaplace.maps.exchange import export_map, import_map
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.options import AddOptions, BuildOptions
from kappaplace.maps.sources import Images, as_table
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.maps.store.verify import verified
from kappaplace.models.checkpoint import AnyModel
from kappaplace.retrieval import EngineOptions

if TYPE_CHECKING:
    from kappaplace.calibration.calibration import Calibration
    from kappaplace.calibration.options import CalibrateOptions
    from kappaplace.maps.options import FitOptions, LabelOptions
    from kappaplace.maps.tune.fit import Fitted
    from kappaplace.maps.tune.label_sheet import Sheet
    from kappaplace.maps.tune.monitor import MapMonitor


class PlaceMap(OpenMap):
    """A map on disk. Use `PlaceMap.open` or `PlaceMap.build`.

    It shows the map as it was when it was opened, whatever others write; `refresh` reads it again.
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
        engine_options: EngineOptions | None = None,
    ) -> PlaceMap:
        """Open a map: one small file is read, everything else when it is needed.

        Args:
            folder: The map.
            model: Its model, if it has moved.
            device: Where queries are embedded and compared. Default: the first GPU, or the CPU.
            engine: auto, exact, ivf-pq, milvus or postgres.
            engine_options: Address of a database and the like.

        Returns:
            The open map.

        Raises:
            KappaPlaceError: If there is no map, or it cannot be read.
        """
        return cls(Path(folder), read_manifest(folder), model, device, engine, engine_options)

    @classmethod
    def build(
        cls,
        images: Images,
        out: str | Path,
        model: AnyModel | str | Path | None = None,
        options: BuildOptions | None = None,
    ) -> PlaceMap:
        """Build a map of images; a build that was stopped resumes where it was.

        Args:
            images: A folder, a table, or a list of image files.
            out: Folder of the map.
            model: A model, or its folder, file or name. Default: the pretrained one.
            options: How the map is built.

        Returns:
            The open map; its ``report`` says what was done.

        Raises:
            KappaPlaceError: If no image can be read, or the folder holds another map.
        """
        options = options or BuildOptions()
        report, ready = build_map(images, Path(out), model, options)
        place_map = cls.open(out, model, device=options.device or None)
        place_map.report, place_map._model = report, ready
        return place_map

    def add(self, images: Images, options: AddOptions | None = None) -> Report:
        """Add images; those that are in the map already and have not changed are left alone.

        Args:
            images: A folder, a table, or a list of image files.
            options: How they are added.

        Returns:
            What was done.

        Raises:
            KappaPlaceError: If the map has another image under one of the names, unless options allow it.
        """
        options = self._on_device(options or AddOptions())
        self.report = add_images(self.folder, images, self.model, self.manifest.model.fingerprint, options)
        self.refresh()
        return self.report

    def remove(self, names: str | Iterable[str]) -> int:
        """Remove references by name, all of them or none, and return their number."""
        count = remove_names(self.folder, [names] if isinstance(names, str) else list(names))
        self.refresh()
        return count

    def compact(self, storage: str | None = None) -> None:
        """Free the space of removed references, join small segments, and compare all places again.

        Args:
            storage: New storage type of the descriptors: float32, float16, int8, or pq (codes of at most 128
                bytes, learned from the map's own descriptors). With int8 and pq a calibration is dropped.
        """
        compact_map(self.folder, storage)
        self.refresh()

    def reembed(self, model: AnyModel | str | Path, options: AddOptions | None = None) -> Report:
        """Embed all images again with another model; the calibration is dropped, as scores change.

        Args:
            model: The new model, or its folder, file or name.
            options: How images are embedded. By default an unreadable image stops the work.

        Returns:
            What was done.
        """
        options = self._on_device(options or AddOptions(on_error="stop"))
        self.report = reembed_map(self.folder, model, options)
        self.given_model, self._model = model, None
        self.refresh()
        return self.report

    def verify(self) -> list[str]:
        """Compare every file with its checksum; return one message per problem."""
        return verified(self.folder)[1]

    def export(self, file: str | Path) -> Path:
        """Write the map as .parquet, .npz or .geojson, and return the file."""
        return export_map(self.store, file)

    @classmethod
    def import_(
        cls, file: str | Path, out: str | Path, model: AnyModel | str | Path | None = None
    ) -> PlaceMap:
        """Build a map from an exported one, or from descriptors with names.

        Args:
            file: A .parquet or .npz file.
            out: Folder of the map.
            model: The model that made the descriptors, if the file does not state it.

        Returns:
            The open map.
        """
        import_map(file, out, model)
        return cls.open(out, model)

    def calibrate(self, queries: Images, options: CalibrateOptions | None = None) -> Calibration:
        """Calibrate on labeled queries and store the result with the map.

        Args:
            queries: A table with the positions of the queries, or with their correct references by name.
            options: What is guaranteed, and how.

        Returns:
            The calibration.

        Raises:
            KappaPlaceError: If there are too few queries, or they cannot support the risk.
        """
        from kappaplace.maps.tune.calibrate import calibrate_map

        return calibrate_map(self, as_table(queries), options)

    def self_calibrate(self, options: CalibrateOptions | None = None) -> Calibration:
        """Calibrate on degraded images of the map itself; this gives probabilities, but no guarantee."""
        from kappaplace.maps.tune.self_calibrate import self_calibrate_map

        return self_calibrate_map(self, options)

    def calibrate_on_labels(
        self, file: str | Path, options: CalibrateOptions | None = None, *, root: str | Path | None = None
    ) -> Calibration:
        """Calibrate on matches that a person has labeled.

        Args:
            file: A file of `label`.
            options: What is guaranteed, and how.
            root: Folder of the queries' images, if they have moved.

        Returns:
            The calibration.
        """
        from kappaplace.maps.tune.label import calibrate_map_on_labels

        return calibrate_map_on_labels(self, file, options, root=root)

    def label(self, queries: Images, file: str | Path, options: LabelOptions | None = None) -> Sheet:
        """Draw queries at random and write their best matches to a file, for a person to label.

        Args:
            queries: Images like those in use.
            file: A .csv file; one of the same sample keeps its labels.
            options: Which queries are drawn.

        Returns:
            The rows of the file.
        """
        from kappaplace.maps.tune.label import label_map

        return label_map(self, as_table(queries), file, options)

    def fit(
        self,
        options: FitOptions | None = None,
        calibrate_options: CalibrateOptions | None = None,
        *,
        calibrate: bool = True,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> Fitted:
        """Fit κ on the map's own images, without labels, and calibrate on them.

        Descriptors do not change; an earlier calibration is dropped, as scores change.

        Args:
            options: How κ is fitted.
            calibrate_options: How the map is calibrated afterwards.
            calibrate: Whether it is.
            say: Receives what happens, line by line.

        Returns:
            How much better κ tells damage from before.
        """
        from kappaplace.maps.tune.fit import fit_map

        return fit_map(self, options, calibrate_options, calibrate=calibrate, say=say)

    def monitor(self, file: str | Path | None = None, *, window: int | None = None) -> MapMonitor:
        """Return a monitor that compares answers with the calibration and warns of drift.

        Args:
            file: Where it keeps what it has seen. Default: beside the map.
            window: Number of queries that are compared at a time. Default: 200, or as before.
        """
        from kappaplace.maps.tune.monitor import MapMonitor

        return MapMonitor.open(self.folder, file, window=window)

    def _on_device(self, options: AddOptions) -> AddOptions:
        return options if options.device else replace(options, device=self.device or "")
