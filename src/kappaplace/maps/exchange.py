"""Exchange of maps with other programs: Parquet and NumPy files in both directions, GeoJSON for a GIS."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from kappaplace.data.geodesy import LOCAL_FRAME, unproject
from kappaplace.errors import KappaPlaceError
from kappaplace.files import new_folder, replace_file, telling
from kappaplace.maps.build import SEGMENT_ROWS, save_patch_codebook
from kappaplace.maps.embed import is_published, keep_model, load_named_model, record_of
from kappaplace.maps.references import finish
from kappaplace.maps.store import UNIT, MapStore
from kappaplace.maps.store.manifest import Manifest, ModelRecord, of_this_protocol
from kappaplace.maps.store.schema import Column, has_half_positions
from kappaplace.maps.store.segments import POSE, Blobs, Rows
from kappaplace.maps.store.writer import writer_of
from kappaplace.models.aggregation import Whitening
from kappaplace.models.checkpoint import AnyModel
from kappaplace.records import from_plain, to_plain
from kappaplace.retrieval.patch_codes import PatchCodebook
from kappaplace.types import Json

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

META = "kappaplace_map"
FACTS = [
    "model",
    "frame",
    "radius",
    "neighbourhood",
    "storage",
    "thumbnails",
    "patches",
    "name",
    "calibration",
    "protocol",
]
"""Fields of the manifest that are the same for all references."""
PATCH_CODEBOOK = "patch_codebook"
"""Key of the codebook that decodes compact patches: float32 numbers in base64."""
WHITENING = "whitening"
"""Key of the whitening, which projects the descriptors of the model: (D+1)×d float32 numbers in base64."""
FIRST = {"protocol": 1}
"""Default values of fields that a file does not contain."""


class Part(NamedTuple):
    """References with the same image folder and prefix."""

    rows: Rows
    root: str
    prefix: str


def export_map(store: MapStore, file: str | Path) -> Path:
    """Write all references to one file.

    Args:
        store: The map.
        file: A .parquet, .npz or .geojson file.

    Returns:
        Path of the file.

    Raises:
        KappaPlaceError: If the file type is not supported, or the map is empty.
    """
    file = Path(file)
    writers = {".parquet": _write_parquet, ".npz": _write_npz, ".geojson": _write_geojson}
    if file.suffix.lower() not in writers:
        raise KappaPlaceError(f"Unknown file type of {file}. Choose from: {', '.join(writers)}.")
    store.check_not_empty()
    replace_file(file, lambda part: writers[file.suffix.lower()](store, part))
    return file


def import_map(
    file: str | Path,
    out: str | Path,
    model: AnyModel | str | Path | None = None,
    root: str | Path | None = None,
) -> None:
    """Build a map from an exported map, or from descriptors with names.

    The folder is created in one step when the map is complete. Image folders and paths of models in the file
    are not used, because the file may come from someone else.

    Args:
        file: A .parquet or .npz file.
        out: Folder of the new map.
        model: Model of the descriptors. Default: the model that the file names, if it is a published one.
        root: Folder of the images. Default: the map has no images until they are added from their folder.

    Raises:
        KappaPlaceError: If the file cannot be imported, or the folder exists.
    """
    file, out = Path(file), Path(out)
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if file.suffix.lower() not in readers:
        raise KappaPlaceError(f"Unknown file type of {file}. Choose from: {', '.join(readers)}.")
    if not file.is_file():
        raise KappaPlaceError(f"The file {file} does not exist. Check the path.")
    with new_folder(out) as part, telling(f"{file} cannot be imported as a map"):
        facts, parts = readers[file.suffix.lower()](file)
        book, whitening = _codebook(facts), _whitening(facts)
        ready = None
        if model is not None:
            plain, source = load_named_model(model)
            ready = plain.with_whitening(whitening), source
        manifest = _manifest_from(facts, ready, file, out.stem)
        folder = "" if root is None else os.path.abspath(root)
        seen: set[str] = set()
        with writer_of(part, create=manifest) as writer:
            if ready is not None:
                keep_model(part, manifest.model, ready[0])
            if book is not None:
                save_patch_codebook(writer, book)
            if whitening is not None:
                array = whitening.to_array()
                writer.commit(whitening=writer.extra("whitening", array, len(array)))
            for each in parts:
                _check(each.rows, manifest.model.dim, seen, file)
                writer.append(each.rows, folder, each.prefix)
            finish(writer)


def _facts(store: MapStore) -> dict[str, Json]:
    """Return the facts that are the same for all references."""
    manifest = store.manifest
    plain = to_plain(replace(manifest, model=_without_path(manifest.model)))
    if manifest.storage == "pq":  # exported descriptors are decoded
        plain["storage"] = "float16"
    if store.manifest.patches == "full":  # too large to exchange
        plain["patches"] = "none"
    facts = {key: plain[key] for key in FACTS}
    arrays = {PATCH_CODEBOOK: store.patch_codebook, WHITENING: store.whitening}
    for key, part in arrays.items():
        if part is not None:
            facts[key] = b64encode(part.to_array().tobytes()).decode("ascii")
    return facts


def _codebook(facts: dict[str, Json] | None) -> PatchCodebook | None:
    """Remove the codebook of compact patches from the facts of a file, and return it."""
    numbers = _numbers(facts, PATCH_CODEBOOK)
    return None if numbers is None else PatchCodebook.from_array(numbers)


def _whitening(facts: dict[str, Json] | None) -> Whitening | None:
    """Remove the whitening from the facts of a file, and return it."""
    numbers = _numbers(facts, WHITENING)
    if numbers is None or facts is None:
        return None
    dim = from_plain(ModelRecord, facts["model"]).dim
    return Whitening(torch.from_numpy(numbers.reshape(-1, dim).copy()))


def _numbers(facts: dict[str, Json] | None, key: str) -> NDArray[np.float32] | None:
    text = None if facts is None else facts.pop(key, None)
    return None if text is None else np.frombuffer(b64decode(str(text)), np.float32)


def _without_path(model: ModelRecord) -> ModelRecord:
    """Return the record without a path: the model of another machine or of another map must be passed."""
    return model if is_published(model.source) else replace(model, source="")


def _manifest_from(
    facts: Mapping[str, Json] | None, model: tuple[AnyModel, str] | None, file: Path, name: str
) -> Manifest:
    record = None if model is None else record_of(*model)
    if facts is None:
        if record is None:
            raise KappaPlaceError(
                f"{file} does not name the model of its descriptors. Pass it with --model (model=…)."
            )
        return Manifest(record, name=name)
    manifest = from_plain(Manifest, {**FIRST, **facts})
    if record is not None and record.fingerprint != manifest.model.fingerprint:
        raise KappaPlaceError(f"The descriptors in {file} are from another model. Pass that model.")
    source = _without_path(manifest.model) if record is None else record
    manifest = replace(manifest, model=replace(manifest.model, source=source.source))
    return of_this_protocol(manifest, file)


def _check(rows: Rows, dim: int, seen: set[str], file: Path) -> None:
    shape = rows.descriptors.shape
    if shape != (len(rows), dim):
        raise KappaPlaceError(
            f"The descriptors in {file} must have shape {(len(rows), dim)}, got {shape}. Check the file."
        )
    length = np.linalg.norm(rows.descriptors, axis=1)
    if not bool((np.abs(length - 1) <= UNIT).all()):
        raise KappaPlaceError(f"{file} has descriptors that are not of unit length. Normalize them first.")
    for name in rows.names:
        if name in seen:
            raise KappaPlaceError(
                f"{file} has the name {name!r} more than once. Names must be unique within a map."
            )
        seen.add(name)
    if has_half_positions(rows.poses):
        raise KappaPlaceError(f"{file} has positions with one coordinate only. Provide both or neither.")


def _columns(rows: Rows, distinctiveness: Column, digests: Mapping[str, Column]) -> dict[str, Column]:
    """Return the numeric columns of a file, in order."""
    return {
        **{column: rows.poses[:, i] for i, column in enumerate(POSE)},
        "route": rows.routes[:, 0],
        "frame_number": rows.routes[:, 1],
        "size": rows.stats[:, 0],
        "modified": rows.stats[:, 1],
        **digests,
        "kappa": rows.kappa,
        "distinctiveness": distinctiveness,
    }


# Parquet: one row per reference and one row group per segment, which limits the memory of both programs.


def _write_parquet(store: MapStore, file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        start = 0
        for segment, rows in store.blocks():
            distinct = store.distinctiveness[start : start + len(rows)]
            start += len(rows)
            names = [name.encode("utf-8", "surrogateescape") for name in rows.names]
            digests = pa.array([digest.tobytes() for digest in rows.digests], pa.binary(16))
            columns = {
                "name": pa.array(names, pa.binary()),
                **_columns(rows, distinct, {"digest": digests}),
                "root": pa.array([segment.record.root] * len(rows)),
                "prefix": pa.array([segment.record.prefix] * len(rows)),
                "descriptor": pa.FixedSizeListArray.from_arrays(
                    pa.array(rows.descriptors.reshape(-1)), rows.descriptors.shape[1]
                ),
            }
            if store.manifest.patches == "compact":
                flat = [None] * len(rows) if rows.patches is None else [row.tobytes() for row in rows.patches]
                columns["patches"] = pa.array(flat, pa.binary())
            if store.manifest.thumbnails:
                columns["thumbnail"] = pa.array(list(rows.thumbnails or [b""] * len(rows)), pa.binary())
            table = pa.table(columns).replace_schema_metadata({META: json.dumps(_facts(store))})
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _read_parquet(file: Path) -> tuple[dict[str, Json] | None, Iterator[Part]]:
    import pyarrow.parquet as pq

    stored = pq.ParquetFile(file)
    meta = (stored.schema_arrow.metadata or {}).get(META.encode())
    return (None if meta is None else json.loads(meta)), _parquet_parts(stored)


def _parquet_parts(stored: ParquetFile) -> Iterator[Part]:
    for batch in stored.iter_batches(batch_size=SEGMENT_ROWS):
        columns = {name: batch.column(name) for name in batch.schema.names}
        plain = {
            name: np.asarray(column.to_numpy(zero_copy_only=False))
            for name, column in columns.items()
            if name not in ("descriptor", "name", "digest", "root", "prefix", "thumbnail", "patches")
        }
        flat = np.asarray(columns["descriptor"].flatten().to_numpy(zero_copy_only=False), np.float32)
        names = [
            name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
            for name in columns["name"].to_pylist()
        ]
        plain["descriptors"] = flat.reshape(len(names), -1)
        if "digest" in columns:
            digests = [digest or bytes(16) for digest in columns["digest"].to_pylist()]
            plain["digests"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
        small = columns["thumbnail"].to_pylist() if "thumbnail" in columns else None
        sources = [columns[key].to_pylist() if key in columns else None for key in ("root", "prefix")]
        present = None
        if "patches" in columns:
            pieces = columns["patches"].to_pylist()
            present = [piece is not None for piece in pieces]
            size = max((len(piece) for piece in pieces if piece is not None), default=0)
            joined = b"".join(bytes(size) if piece is None else piece for piece in pieces)
            plain["patches"] = np.frombuffer(joined, np.uint8).reshape(len(names), -1)
        yield from _by_source(_rows(names, plain, small), sources[0], sources[1], present)


# NumPy: the same columns as arrays in one .npz file, for maps that fit in memory.


def _write_npz(store: MapStore, file: Path) -> None:
    parts = list(store.blocks())
    rows = Rows.join([rows for _, rows in parts])
    arrays = {
        "name": np.array(rows.names),
        **_columns(rows, store.distinctiveness, {"digests": rows.digests}),
        "root": np.array([segment.record.root for segment, part in parts for _ in range(len(part))]),
        "prefix": np.array([segment.record.prefix for segment, part in parts for _ in range(len(part))]),
        "descriptors": rows.descriptors,
        META: np.array(json.dumps(_facts(store))),
    }
    if store.manifest.patches == "compact":
        present = [part.patches is not None for _, part in parts for _ in range(len(part))]
        coded = [part.patches for _, part in parts if part.patches is not None]
        if coded:
            arrays["patches"], arrays["has_patches"] = np.concatenate(coded), np.array(present)
    if store.manifest.thumbnails and rows.thumbnails is not None:
        arrays["thumbnails"] = np.frombuffer(b"".join(rows.thumbnails), np.uint8)
        arrays["thumbnail_sizes"] = np.array([len(piece) for piece in rows.thumbnails], np.int64)
    with open(file, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]  # no array of ours is called allow_pickle


def _read_npz(file: Path) -> tuple[dict[str, Json] | None, Iterator[Part]]:
    with np.load(file, allow_pickle=False) as stored:
        columns = {key: stored[key] for key in stored.files}
    facts = json.loads(str(columns.pop(META))) if META in columns else None
    names = [str(name) for name in columns.pop("name")]
    sources = [
        [str(text) for text in columns.pop(key)] if key in columns else None for key in ("root", "prefix")
    ]
    small = None
    if "thumbnails" in columns:
        starts = np.concatenate([[0], np.cumsum(columns.pop("thumbnail_sizes"))])
        small = Blobs(starts, columns.pop("thumbnails")).all()
    present = columns.pop("has_patches").tolist() if "has_patches" in columns else None
    if present is not None:
        coded, width = columns["patches"], columns["patches"].shape[-1]
        columns["patches"] = np.zeros((len(names), width), np.uint8)
        columns["patches"][np.array(present)] = coded
    return facts, _by_source(_rows(names, columns, small), sources[0], sources[1], present)


def _rows(names: list[str], columns: Mapping[str, Column], small: list[bytes] | None) -> Rows:
    """Return references from columns. Only names and descriptors are required."""
    count = len(names)

    def column(key: str, unknown: float, dtype: npt.DTypeLike) -> Column:
        values = columns.get(key)
        return np.full(count, unknown, dtype) if values is None else np.asarray(values, dtype)

    return Rows(
        names,
        descriptors=np.asarray(columns["descriptors"], np.float32),
        kappa=column("kappa", np.nan, np.float32),
        poses=np.column_stack([column(key, np.nan, np.float64) for key in POSE]),
        routes=np.column_stack([column("route", 0, np.int64), column("frame_number", 0, np.int64)]),
        stats=np.column_stack([column("size", -1, np.int64), column("modified", -1, np.int64)]),
        digests=np.asarray(columns.get("digests", np.zeros((count, 16), np.uint8)), np.uint8),
        thumbnails=small,
        patches=columns.get("patches"),
    )


def _by_source(
    rows: Rows,
    roots: Sequence[str] | None,
    prefixes: Sequence[str] | None,
    patches: Sequence[bool] | None,
) -> Iterator[Part]:
    """Yield consecutive references of the same source, at most one segment at a time."""
    nothing, has = [""] * len(rows), patches or [False] * len(rows)
    sources = list(zip(roots or nothing, prefixes or nothing, has, strict=True))
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or end - start == SEGMENT_ROWS or sources[end] != sources[start]:
            part, (root, prefix, has_patches) = rows.take(np.arange(start, end)), sources[start]
            yield Part(part if has_patches else replace(part, patches=None), root, prefix)
            start = end


# GeoJSON: positions for a GIS, without descriptors.


def _write_geojson(store: MapStore, file: Path) -> None:
    poses, kappa = store.whole("poses"), store.whole("kappa")
    local = store.manifest.frame == LOCAL_FRAME
    east, north = poses[:, 0], poses[:, 1]
    if not local:
        north, east = unproject(np.ascontiguousarray(poses[:, :2]), store.manifest.frame)
    with open(file, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write('{"type": "FeatureCollection",\n')
        # The standard allows only WGS 84, so metres in a local frame are marked.
        stream.write(f'"kappaplace": {json.dumps({"coordinates": "metres" if local else "WGS 84"})},\n')
        stream.write('"features": [\n')
        for i, name in enumerate(store.names()):
            stream.write(
                (",\n" if i else "") + json.dumps(_feature(name, east[i], north[i], poses[i], kappa[i]))
            )
        stream.write("\n]}\n")


def _feature(
    name: str, east: float, north: float, pose: NDArray[np.float64], kappa: float
) -> dict[str, Json]:
    facts = {"heading": pose[2], "time": pose[3], "kappa": kappa}
    finite = {key: float(value) for key, value in facts.items() if np.isfinite(value)}
    point: Json = None
    if np.isfinite(east):
        point = {"type": "Point", "coordinates": [float(east), float(north)]}
    return {"type": "Feature", "geometry": point, "properties": {"name": name, **finite}}
