"""Images into a map: a new one, one that a killed process left, or one that grows."""

from __future__ import annotations

from pathlib import Path

from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Neighbourhood
from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.extend import Options, Report, extend
from kappaplace.maps.manifest import Manifest, ModelRecord
from kappaplace.maps.map_models import as_fitted, keep_model, loaded, record_of
from kappaplace.maps.sources import Images, Wanted, as_table, into_frame, wanted_images
from kappaplace.maps.writer import MapWriter, writer_of
from kappaplace.models.loading import AnyModel


def new_manifest(
    table: PlaceImages,
    record: ModelRecord,
    *,
    radius: float | None = None,
    neighbourhood: str = "",
    storage: str = "float32",
    thumbnails: bool = False,
    name: str = "",
) -> Manifest:
    """The manifest of a map that is still empty; what is not stated is the table's."""
    table = table if radius is None else table.with_radius(radius)
    near = Neighbourhood.parse(neighbourhood) if neighbourhood else table.neighbourhood
    if not neighbourhood and near.kind == "metres" and not table.references.posed.any():
        near = Neighbourhood("self")  # nothing is known of where anything lies
    return Manifest(
        record,
        frame=table.frame,
        radius=table.radius,
        neighbourhood=str(near),
        storage=storage,
        thumbnails=thumbnails,
        name=name or table.name,
    )


def build_map(
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
    options: Options | None = None,
) -> Report:
    """Make a map of images, or go on with one that was not finished; the same command does both."""
    options, out = options or Options(), Path(out)
    table = as_table(images, layout, skip_unreadable=options.on_error == "skip")
    ready, source = loaded(model)
    record = record_of(ready, source, preprocessing)
    given = {"radius": radius, "neighbourhood": neighbourhood, "storage": storage, "thumbnails": thumbnails}
    manifest = new_manifest(table, record, name=name or out.stem, **given)  # type: ignore[arg-type]
    wanted = wanted_images(table, prefix)
    with writer_of(out, create=manifest) as writer:
        ready = as_fitted(out, writer.manifest.model, ready)
        _refuse_another(out, manifest, writer.manifest)
        keep_model(out, writer.manifest.model, ready)
        return extend(writer, _in_frame(writer, table, prefix, wanted), ready, options)


def add_images(
    folder: Path,
    images: Images,
    model: AnyModel,
    fingerprint: str,
    *,
    layout: str = "",
    prefix: str = "",
    options: Options | None = None,
) -> Report:
    """Put more images into a map; ``fingerprint`` is that of the model."""
    options = options or Options()
    table = as_table(images, layout, skip_unreadable=options.on_error == "skip")
    wanted = wanted_images(table, prefix)
    with writer_of(folder) as writer:
        if writer.manifest.model.fingerprint != fingerprint:
            raise KappaPlaceError(
                f"The map {folder} was embedded with another model meanwhile; open it again."
            )
        return extend(writer, _in_frame(writer, table, prefix, wanted), model, options)


def _refuse_another(out: Path, asked: Manifest, found: Manifest) -> None:
    """A second `build` goes on with the first one, so it must ask for the same."""
    if asked.model.fingerprint not in (found.model.fingerprint, found.model.base):
        raise KappaPlaceError(
            f"The map {out} was made with another model; use that one, run `kappaplace map reembed`, or "
            "build into another folder."
        )
    if found.model.preprocessing != asked.model.preprocessing:
        raise KappaPlaceError(
            f"The map {out} was made with other preprocessing of the images; keep it, or build another map."
        )
    for what in ("storage", "neighbourhood", "radius", "thumbnails"):
        there, wanted = getattr(found, what), getattr(asked, what)
        if there != wanted:
            raise KappaPlaceError(
                f"The map {out} is there already with {what} {there}, not {wanted}; use `kappaplace map "
                "add`, state the same, or build into another folder."
            )


def _in_frame(writer: MapWriter, table: PlaceImages, prefix: str, wanted: Wanted) -> Wanted:
    """The images in the map's frame; a map that knows no position yet takes over theirs."""
    manifest = writer.manifest
    nowhere = manifest.unposed == manifest.count
    moved = into_frame(table, manifest.frame, nowhere)
    if moved.frame != manifest.frame and moved.posed.any():
        writer.commit(frame=moved.frame)
    return wanted if moved is table else wanted_images(moved, prefix)
