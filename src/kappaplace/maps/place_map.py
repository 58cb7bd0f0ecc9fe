"""`PlaceMap`: a map of images on disk, with all commands of ``kappaplace map`` as methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.build import Report, add_images, build_map
from kappaplace.maps.change import compact_map, reembed_map, remove_names, store_patches
from kappaplace.maps.exchange import export_map, import_map
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.options import AddOptions, BuildOptions, Patches
from kappaplace.maps.sources import Images, as_table
from kappaplace.maps.store import verify_folder
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.models.checkpoint import AnyModel
from kappaplace.retrieval import EngineOptions

if TYPE_CHECKING:
    from kappaplace.calibration.calibration import Calibration
    from kappaplace.calibration.options import CalibrateOptions
    from kappaplace.maps.directions import Directions
    from kappaplace.maps.options import FitOptions, LabelOptions
    from kappaplace.maps.tune.fit import FitResult
    from kappaplace.maps.tune.label_sheet import Sheet
    from kappaplace.maps.tune.monitor import MapMonitor
    from kappaplace.types import Json


class PlaceMap(OpenMap):
    """A map on disk. Create one with `PlaceMap.open` or `PlaceMap.build`.

    The object shows the map as it was when it was opened, even if another process changes it. `refresh` reads
    it again.

    Args:
        folder: Folder of the map.
        manifest: Manifest of the map.
        model: Model of the map. Default: the model that the manifest names.
        device: Device for embedding and search. Default: the first GPU, or the CPU.
        engine: Search engine: auto, exact, ivf-pq, milvus or postgres.
        engine_options: Options of the search engine, such as the URL of a database.
    """

    report: Report | None = None
    """Report of the last `build`, `add` or `reembed` of this object."""

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
        """Open a map. This reads one small file; everything else is read on first use.

        Args:
            folder: Folder of the map.
            model: Model of the map, or its folder, file or name. Default: the model that the map names.
            device: Device for embedding and search. Default: the first GPU, or the CPU.
            engine: Search engine: auto, exact, ivf-pq, milvus or postgres.
            engine_options: Options of the search engine, such as the URL of a database.

        Returns:
            The open map.

        Raises:
            KappaPlaceError: If there is no map in the folder, or it cannot be read.
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
        """Build a map of images. An interrupted build resumes where it stopped.

        Args:
            images: A folder, a table, or a list of image files.
            out: Folder of the map.
            model: Model, or its folder, file or name. Default: the pretrained model.
            options: Options of the build. Default: `BuildOptions` with its defaults.

        Returns:
            The open map. Its ``report`` summarizes the build.

        Raises:
            KappaPlaceError: If no image can be read, or the folder has another map.
        """
        options = options or BuildOptions()
        report, ready = build_map(images, Path(out), model, options)
        place_map = cls.open(out, model, device=options.device or None)
        place_map.report, place_map._model = report, ready
        return place_map

    def add(self, images: Images, options: AddOptions | None = None) -> Report:
        """Add images. Images that the map already has are skipped unless they have changed.

        Args:
            images: A folder, a table, or a list of image files.
            options: Options of the addition. Default: `AddOptions` with its defaults.

        Returns:
            Report of the addition.

        Raises:
            KappaPlaceError: If the map has another image of the same name and ``options.duplicates`` is
                "error".
        """
        options = self._on_device(options or AddOptions())
        self.report = add_images(self.folder, images, self.model, self.manifest.model.fingerprint, options)
        self.refresh()
        return self.report

    def remove(self, names: str | Iterable[str]) -> int:
        """Remove references by name, all of them or none.

        Args:
            names: Name of a reference, or several names.

        Returns:
            Number of removed references.

        Raises:
            KappaPlaceError: If the map has no reference of some name.
        """
        count = remove_names(self.folder, [names] if isinstance(names, str) else list(names))
        self.refresh()
        return count

    def compact(self, storage: str | None = None, dim: int | None = None) -> None:
        """Free the space of removed references, merge small segments, and compare all places again.

        Args:
            storage: New number format of the descriptors: float32, float16, int8, or pq (codes of at most 128
                bytes, learned from the descriptors of the map). A change to int8 or pq removes the
                calibration. Default: unchanged.
            dim: Dimension to whiten the descriptors to, fitted on these descriptors. This removes the
                calibration. Default: unchanged.

        Raises:
            KappaPlaceError: If the format is unknown, a file of the map is damaged, or the map has too few
                images for this dimension.
        """
        compact_map(self.folder, storage, dim)
        self.refresh()

    def reembed(
        self,
        model: AnyModel | str | Path | None = None,
        options: AddOptions | None = None,
        *,
        patches: Patches | None = None,
    ) -> Report:
        """Embed all images again, with another model or to store patches for patch matching.

        Another model removes the calibration, because scores change. Patches alone do not.

        Args:
            model: New model, or its folder, file or name. Default: unchanged.
            options: Options of the embedding. By default, an unreadable image raises an error.
            patches: Data to store for patch matching: none, compact or full. Default: unchanged.

        Returns:
            Report of the embedding.

        Raises:
            KappaPlaceError: If both ``model`` and ``patches`` are missing, an image cannot be read, or a
                reference has no image file.
        """
        options = self._on_device(options or AddOptions(on_error="stop"))
        if model is not None:
            self.report = reembed_map(self.folder, model, options, patches)
            self.model_source, self._model = model, None
        elif patches is not None:
            self.report = store_patches(self.folder, self.model, patches, options)
        else:
            raise KappaPlaceError("Nothing to embed, got neither a model nor patches. Pass one of them.")
        self.refresh()
        return self.report

    def info(self) -> dict[str, Json]:
        """Return a summary of the map as plain values."""
        manifest = self.manifest
        distinct, record, model = manifest.distinctiveness, manifest.calibration, manifest.model
        own = self.calibration
        difficulty = [] if own is None else [part.sentence for part in own.difficulty]
        unknown = manifest.rows - (distinct.rows if distinct else 0)
        return {
            "map": str(self.folder),
            "name": manifest.name,
            "references": manifest.count,
            "removed": manifest.rows - manifest.count,
            "unposed": manifest.unposed,
            "segments": len(manifest.segments),
            "bytes": sum(file.size for segment in manifest.segments for file in segment.files.values()),
            "dim": model.dim,
            **({} if manifest.whitening is None else {"whitened_from": manifest.whitening.rows - 1}),
            "storage": manifest.storage,
            "thumbnails": manifest.thumbnails,
            "patches": manifest.patches,
            "model": model.source or "not stored (pass --model)",
            "model_fingerprint": model.fingerprint,
            "kappa": model.kappa,
            "preprocessing": model.preprocessing,
            "frame": manifest.frame,
            "radius": manifest.radius,
            "neighbourhood": manifest.neighborhood,
            "distinctiveness": (distinct.how if distinct else "none")
            + (f", {unknown} not computed" if unknown else ""),
            "calibration": None if record is None else record["origin"],
            **({"difficulty": difficulty} if difficulty else {}),
            **({"groups": own.groups.sentence} if own is not None and own.groups is not None else {}),
            "version": manifest.version,
            "format": manifest.format,
            "protocol": manifest.protocol,
            "kappaplace": manifest.kappaplace,
            "borrowed": self.borrowed is not None,
        }

    def directions(self) -> Directions:
        """Count the references by cell and direction of view.

        Returns:
            Where and in which directions the map sees.
        """
        from kappaplace.maps.directions import directions_of

        return directions_of(self.store)

    def verify(self) -> list[str]:
        """Compare every file with its checksum.

        Returns:
            One message per problem; an empty list if the map is intact.
        """
        return verify_folder(self.folder)[1]

    def export(self, file: str | Path) -> Path:
        """Write all references of the map to one file.

        Args:
            file: A .parquet, .npz or .geojson file.

        Returns:
            Path of the file.

        Raises:
            KappaPlaceError: If the file type is not supported, or the map is empty.
        """
        return export_map(self.store, file)

    @classmethod
    def import_(
        cls,
        file: str | Path,
        out: str | Path,
        model: AnyModel | str | Path | None = None,
        root: str | Path | None = None,
    ) -> PlaceMap:
        """Build a map from an exported map, or from descriptors with names.

        Args:
            file: A .parquet or .npz file.
            out: Folder of the new map.
            model: Model of the descriptors. Default: the model that the file names, if it is a published one.
            root: Folder of the images. Default: the map has no images until they are added from their folder.

        Returns:
            The open map.

        Raises:
            KappaPlaceError: If the file cannot be imported, or the folder exists.
        """
        import_map(file, out, model, root)
        return cls.open(out, model)

    def calibrate(self, queries: Images, options: CalibrateOptions | None = None) -> Calibration:
        """Calibrate on labelled queries and store the calibration with the map.

        Args:
            queries: A table with the positions of the queries, or with the names of their correct references.
            options: Options of the calibration. Default: `CalibrateOptions` with its defaults.

        Returns:
            The calibration.

        Raises:
            KappaPlaceError: If there are too few queries, or too few to guarantee the risk.
        """
        from kappaplace.maps.tune.calibrate import calibrate_map

        return calibrate_map(self, as_table(queries), options)

    def self_calibrate(self, options: CalibrateOptions | None = None) -> Calibration:
        """Calibrate on degraded images of the map itself, without labels and without a guarantee.

        Args:
            options: Options of the calibration. Default: `CalibrateOptions` with its defaults.

        Returns:
            The calibration.

        Raises:
            KappaPlaceError: If the map is too small, images are missing, or places are unknown.
        """
        from kappaplace.maps.tune.self_calibrate import self_calibrate_map

        return self_calibrate_map(self, options)

    def calibrate_on_labels(
        self, file: str | Path, options: CalibrateOptions | None = None, *, root: str | Path | None = None
    ) -> Calibration:
        """Calibrate on matches that a person has labelled.

        Args:
            file: Labels file written by `label`.
            options: Options of the calibration. Default: `CalibrateOptions` with its defaults.
            root: Folder of the query images. Default: the folder that the labels file names.

        Returns:
            The calibration.

        Raises:
            KappaPlaceError: If the labels are too few, or do not belong to this map.
        """
        from kappaplace.maps.tune.label import calibrate_map_on_labels

        return calibrate_map_on_labels(self, file, options, root=root)

    def label(self, queries: Images, file: str | Path, options: LabelOptions | None = None) -> Sheet:
        """Sample queries at random and write their best matches to a file, for a person to label.

        Args:
            queries: Images like those that the map will localize.
            file: A .csv file. A file of the same sample keeps its labels.
            options: Options of the sampling. Default: `LabelOptions` with its defaults.

        Returns:
            The rows of the file.

        Raises:
            KappaPlaceError: If the file has another sample, or queries are images of the map.
        """
        from kappaplace.maps.tune.label import label_map

        return label_map(self, as_table(queries), file, options)

    def fit(
        self,
        options: FitOptions | None = None,
        calibrate_options: CalibrateOptions | None = None,
        *,
        calibrate: bool = True,
        say: Callable[[str], None] = lambda message: None,
    ) -> FitResult:
        """Fit κ on the map's own images, without labels, and calibrate on them.

        Descriptors do not change. The previous calibration is removed, because scores change.

        Args:
            options: Options of the fit. Default: `FitOptions` with its defaults.
            calibrate_options: Options of the calibration. Default: `CalibrateOptions` with its defaults.
            calibrate: Whether to calibrate the map afterwards.
            say: Function that is called with each progress message.

        Returns:
            Record of the fit, with how well κ follows degradation before and after.

        Raises:
            KappaPlaceError: If the map is too small, or its images are missing or have changed.
        """
        from kappaplace.maps.tune.fit import fit_map

        return fit_map(self, options, calibrate_options, calibrate=calibrate, say=say)

    def monitor(self, file: str | Path | None = None, *, window: int | None = None) -> MapMonitor:
        """Return a monitor that compares answers with the calibration and warns of drift.

        Args:
            file: File of the monitor's state. Default: next to the map.
            window: Number of queries per comparison. Default: the value in the file, or 200.

        Returns:
            The monitor, resumed from its file.

        Raises:
            KappaPlaceError: If the map is not calibrated, or the file is damaged.
        """
        from kappaplace.maps.tune.monitor import MapMonitor

        return MapMonitor.open(self.folder, file, window=window)

    def _on_device(self, options: AddOptions) -> AddOptions:
        return options if options.device else replace(options, device=self.device or "")
