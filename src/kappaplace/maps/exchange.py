"""Maps for other programs, and from them: Parquet and NumPy hold everything, GeoJSON where things lie."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import LOCAL_FRAME, unproject
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file, telling
from kappaplace.maps.build import SEGMENT_ROWS
from kappaplace.maps.models import loaded, record_of
from kappaplace.maps.references import finish
from kappaplace.maps.store.manifest import MODEL_FOLDER, Manifest, of_this_protocol
from kappaplace.maps.store.reader import MapStore
from kappaplace.maps.store.segments import POSE, Blobs, Rows
from kappaplace.maps.store.verify import UNIT
from kappaplace.maps.store.writer import writer_of
from kappaplace.models.checkpoint import AnyModel
from kappaplace.records import from_plain, to_plain

FORMATS = (".parquet", ".npz", ".geojson")
META = "kappaplace_map"
FACTS = (
    "model",
    "frame",
    "radius",
    "neighbourhood",
    "storage",
    "thumbnails",
    "name",
    "calibration",
    "protocol",
)
FIRST = {"protocol": 1}
"""Of files that do not say it."""


class Part(NamedTuple):
    """Some references, and where their images lie."""

    rows: Rows
    root: str
    prefix: str


def export_map(store: MapStore, file: str | Path) -> Path:
    """Write all references into one file; its ending says how."""
    file = Path(file)
    writers = {".parquet": _write_parquet, ".npz": _write_npz, ".geojson": _write_geojson}
    if file.suffix.lower() not in writers:
        raise KappaPlaceError(f"{file} is none of {', '.join(FORMATS)}: the ending says what is written.")
    if not len(store):
        raise KappaPlaceError(f"The map {store.folder} is empty: there is nothing to export.")
    replace_file(file, lambda part: writers[file.suffix.lower()](store, part))
    return file


def import_map(file: str | Path, out: str | Path, model: AnyModel | str | Path | None = None) -> None:
    """Make a map of an exported one, or of any descriptors with names; ``model`` says what made them.

    The map appears when it is complete, and not before.
    """
    file, out = Path(file), Path(out)
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if file.suffix.lower() not in readers:
        raise KappaPlaceError(f"A map is imported from .parquet or .npz, {file} is neither.")
    if not file.is_file():
        raise KappaPlaceError(f"There is no file {file} to import.")
    if out.exists():
        raise KappaPlaceError(f"{out} is there already; a map is imported into a new folder.")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with telling(f"{file} cannot be imported as a map"):
            facts, parts = readers[file.suffix.lower()](file)
            manifest = _with_model(_manifest_from(facts, model, file, out.stem), part)
            seen: set[str] = set()
            with writer_of(part, create=manifest) as writer:
                for each in parts:
                    _check(each.rows, manifest.model.dim, seen, file)
                    writer.append(each.rows, each.root, each.prefix)
                finish(writer)
        os.rename(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _facts(store: MapStore) -> dict[str, Any]:
    """What is the same for all references."""
    m = store.manifest
    if m.model.source.startswith("./"):  # a model inside the map is found from outside by its full path
        m = replace(m, model=replace(m.model, source=str((store.folder / m.model.source).resolve())))
    plain = to_plain(m)
    facts = {key: plain[key] for key in FACTS}
    if m.storage == "pq":  # what is exported are descriptors, not codes
        facts["storage"] = "float16"
    return facts


def _manifest_from(
    facts: Mapping[str, Any] | None, model: AnyModel | str | Path | None, file: Path, name: str
) -> Manifest:
    record = None
    if model is not None:
        ready, source = loaded(model)
        record = record_of(ready, source)
        if record.source.startswith("./"):
            # From memory it is not written into a map that others exported; from another map it is copied.
            there = str(Path(model).resolve()) if isinstance(model, str | Path) else ""
            record = replace(record, source=there)
    if facts is None:
        if record is None:
            raise KappaPlaceError(
                f"{file} does not say which model made its descriptors; say it with --model (model=…)."
            )
        return Manifest(record, name=name)
    stated = from_plain(Manifest, {**FIRST, **facts})
    if record is not None and record.fingerprint != stated.model.fingerprint:
        raise KappaPlaceError(f"The descriptors in {file} were made by another model than the one given.")
    return of_this_protocol(
        stated if record is None or not record.source else replace(stated, model=record), file
    )


def _with_model(manifest: Manifest, folder: Path) -> Manifest:
    """A model that lies in the map that was exported is copied: there it goes when that map gets another."""
    home = Path(manifest.model.source)
    if not (MODEL_FOLDER.fullmatch(home.name) and (home / "card.json").is_file()):
        return manifest
    shutil.copytree(home, folder / home.name)
    return replace(manifest, model=replace(manifest.model, source=f"./{home.name}"))


def _check(rows: Rows, dim: int, seen: set[str], file: Path) -> None:
    shape = rows.descriptors.shape
    if shape != (len(rows), dim):
        raise KappaPlaceError(
            f"{file} has descriptors of shape {shape} for {len(rows)} names and {dim} dimensions."
        )
    length = np.linalg.norm(rows.descriptors, axis=1)
    if not bool((np.abs(length - 1) <= UNIT).all()):
        raise KappaPlaceError(f"{file} has descriptors that are not of unit length; normalise them first.")
    for name in rows.names:
        if name in seen:
            raise KappaPlaceError(
                f"{file} has the name {name!r} twice; a map tells references by their names."
            )
        seen.add(name)
    known = np.isfinite(rows.poses[:, :2])
    if bool((known[:, 0] != known[:, 1]).any()):
        raise KappaPlaceError(f"{file} has positions with one coordinate only: give both, or neither.")


# Parquet: one row a reference, a row group a segment, so that neither side holds more than that in memory.


def _write_parquet(store: MapStore, file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        start = 0
        for segment, rows in store.blocks():
            distinct = store.distinctiveness[start : start + len(rows)]
            start += len(rows)
            columns: dict[str, Any] = {
                "name": pa.array(
                    [name.encode("utf-8", "surrogateescape") for name in rows.names], pa.binary()
                ),
                **{column: rows.poses[:, i] for i, column in enumerate(POSE)},
                "route": rows.routes[:, 0],
                "frame_number": rows.routes[:, 1],
                "size": rows.stats[:, 0],
                "modified": rows.stats[:, 1],
                "digest": pa.array([digest.tobytes() for digest in rows.digests], pa.binary(16)),
                "kappa": rows.kappa,
                "distinctiveness": distinct,
                "root": pa.array([segment.record.root] * len(rows)),
                "prefix": pa.array([segment.record.prefix] * len(rows)),
                "descriptor": pa.FixedSizeListArray.from_arrays(
                    pa.array(rows.descriptors.reshape(-1)), rows.descriptors.shape[1]
                ),
            }
            if store.manifest.thumbnails:
                columns["thumbnail"] = pa.array(list(rows.thumbnails or [b""] * len(rows)), pa.binary())
            table = pa.table(columns)
            table = table.replace_schema_metadata({META: json.dumps(_facts(store))})
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _read_parquet(file: Path) -> tuple[dict[str, Any] | None, Iterator[Part]]:
    import pyarrow.parquet as pq

    stored = pq.ParquetFile(file)
    meta = (stored.schema_arrow.metadata or {}).get(META.encode())
    return (None if meta is None else json.loads(meta)), _parquet_parts(stored)


def _parquet_parts(stored: Any) -> Iterator[Part]:
    for batch in stored.iter_batches(batch_size=SEGMENT_ROWS):
        columns = {name: batch.column(name) for name in batch.schema.names}
        plain = {
            name: np.asarray(column.to_numpy(zero_copy_only=False))
            for name, column in columns.items()
            if name not in ("descriptor", "name", "digest", "root", "prefix", "thumbnail")
        }
        flat = np.asarray(columns["descriptor"].flatten().to_numpy(zero_copy_only=False), np.float32)
        names = [
            n if isinstance(n, str) else n.decode("utf-8", "surrogateescape")
            for n in columns["name"].to_pylist()
        ]
        plain["descriptors"] = flat.reshape(len(names), -1)
        if "digest" in columns:
            digests = [digest or bytes(16) for digest in columns["digest"].to_pylist()]
            plain["digests"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
        small = columns["thumbnail"].to_pylist() if "thumbnail" in columns else None
        rows = _rows(names, plain, small)
        sources = {
            key: columns[key].to_pylist() if key in columns else [""] * len(names)
            for key in ("root", "prefix")
        }
        yield from _by_source(rows, sources["root"], sources["prefix"])


# NumPy: the same columns as arrays of one .npz file; for maps that fit in memory.


def _write_npz(store: MapStore, file: Path) -> None:
    parts = list(store.blocks())
    rows = Rows.join([rows for _, rows in parts])
    sources = [[getattr(s.record, key)] * len(r) for key in ("root", "prefix") for s, r in parts]
    half = len(parts)
    arrays = {
        "name": np.array(rows.names),
        **{column: rows.poses[:, i] for i, column in enumerate(POSE)},
        "route": rows.routes[:, 0],
        "frame_number": rows.routes[:, 1],
        "size": rows.stats[:, 0],
        "modified": rows.stats[:, 1],
        "digests": rows.digests,
        "kappa": rows.kappa,
        "distinctiveness": store.distinctiveness,
        "root": np.array([root for part in sources[:half] for root in part]),
        "prefix": np.array([prefix for part in sources[half:] for prefix in part]),
        "descriptors": rows.descriptors,
        META: np.array(json.dumps(_facts(store))),
    }
    if store.manifest.thumbnails and rows.thumbnails is not None:
        arrays["thumbnails"] = np.frombuffer(b"".join(rows.thumbnails), np.uint8)
        arrays["thumbnail_sizes"] = np.array([len(piece) for piece in rows.thumbnails], np.int64)
    with open(file, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]  # no array of ours is called allow_pickle


def _read_npz(file: Path) -> tuple[dict[str, Any] | None, Iterator[Part]]:
    with np.load(file, allow_pickle=False) as stored:
        columns = {key: stored[key] for key in stored.files}
    facts = json.loads(str(columns.pop(META))) if META in columns else None
    names = [str(name) for name in columns.pop("name")]
    sources = [
        [str(text) for text in columns.pop(key)] if key in columns else [""] * len(names)
        for key in ("root", "prefix")
    ]
    small = None
    if "thumbnails" in columns:
        starts = np.concatenate([[0], np.cumsum(columns.pop("thumbnail_sizes"))])
        small = Blobs(starts, columns.pop("thumbnails")).all()
    return facts, _by_source(_rows(names, columns, small), *sources)


def _rows(names: list[str], columns: Mapping[str, NDArray[Any]], small: list[bytes] | None) -> Rows:
    """References from columns of which only names and descriptors are a must."""
    count = len(names)

    def column(key: str, unknown: float, dtype: Any) -> NDArray[Any]:
        found = columns.get(key)
        return np.full(count, unknown, dtype) if found is None else np.asarray(found, dtype)

    return Rows(
        names,
        descriptors=np.asarray(columns["descriptors"], np.float32),
        kappa=column("kappa", np.nan, np.float32),
        poses=np.column_stack([column(key, np.nan, np.float64) for key in POSE]),
        routes=np.column_stack([column("route", 0, np.int64), column("frame_number", 0, np.int64)]),
        stats=np.column_stack([column("size", -1, np.int64), column("modified", -1, np.int64)]),
        digests=np.asarray(columns.get("digests", np.zeros((count, 16), np.uint8)), np.uint8),
        thumbnails=small,
    )


def _by_source(rows: Rows, roots: list[str], prefixes: list[str]) -> Iterator[Part]:
    """Runs of references of one source, of a segment's size at most."""
    start = 0
    for end in range(1, len(rows) + 1):
        here = (roots[start], prefixes[start])
        if end == len(rows) or end - start == SEGMENT_ROWS or (roots[end], prefixes[end]) != here:
            yield Part(rows.take(np.arange(start, end)), *here)
            start = end


# GeoJSON: for looking at a map in a GIS; descriptors do not belong there.


def _write_geojson(store: MapStore, file: Path) -> None:
    poses, kappa = store.whole("poses"), store.whole("kappa")
    local = store.manifest.frame == LOCAL_FRAME
    east, north = poses[:, 0], poses[:, 1]
    if not local:
        north, east = unproject(np.ascontiguousarray(poses[:, :2]), store.manifest.frame)
    with open(file, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write('{"type": "FeatureCollection",\n')
        # The standard knows WGS 84 alone; metres of a frame of the map's own are told as such.
        stream.write(f'"kappaplace": {json.dumps({"coordinates": "metres" if local else "WGS 84"})},\n')
        stream.write('"features": [\n')
        for i, name in enumerate(store.names()):
            stream.write(
                (",\n" if i else "") + json.dumps(_feature(name, east[i], north[i], poses[i], kappa[i]))
            )
        stream.write("\n]}\n")


def _feature(name: str, east: float, north: float, pose: NDArray[np.float64], kappa: float) -> dict[str, Any]:
    facts = {"heading": pose[2], "time": pose[3], "kappa": kappa}
    known = {key: float(value) for key, value in facts.items() if np.isfinite(value)}
    where = {"type": "Point", "coordinates": [float(east), float(north)]} if np.isfinite(east) else None
    return {"type": "Feature", "geometry": where, "properties": {"name": name, **known}}
