"""One file a table: Parquet (large tables) or CSV (to read and edit by eye), atomic and exact.

What is not a column (frame, radius, neighbourhood, …) travels in the same file: in Parquet's schema metadata
under the key ``kappaplace``, in CSV's first line ``# kappaplace {json}``.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, telling

TEXT = np.dtypes.StringDType()  # 16 bytes a row plus the text itself: ten million paths stay usable
COLUMNS: dict[str, Any] = {
    "paths": TEXT,
    "positions": np.float64,
    "heading": np.float32,
    "timestamp": np.float64,
    "place": np.int64,
    "condition": TEXT,
    "is_query": np.bool_,
}
"""Columns of a table in memory, and as what they are kept."""
OPTIONAL_COLUMNS: dict[str, Any] = {"frame_number": np.int64, "accuracy": np.float32}
"""Those that are None where nothing is known of any row."""
Columns: TypeAlias = Mapping[str, NDArray[Any]]
VERSION = 1  # raised when an older kappaplace would misread what a newer one writes
# What must be there, and as what.
_KINDS: dict[str, Any] = dict.fromkeys(("root", "frame", "name", "protocol"), str)
_KINDS |= {"radius": (int, float), "neighbourhood": dict}


def stored_root(root: str | Path, path: Path) -> str:
    """Return how the folder of the images is written into a table at this path.

    Images below the table's own folder are found relative to it, so that both can be moved together.
    """
    root, folder = os.path.abspath(root), os.path.abspath(path.parent)
    inside = root == folder or root.startswith(folder.rstrip(os.sep) + os.sep)
    return Path(os.path.relpath(root, folder) if inside else root).as_posix()


def checked_metadata(path: Path, text: str) -> dict[str, Any]:
    """The metadata as it was written: of a known version, complete, and of the right kinds."""
    try:
        metadata = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise KappaPlaceError(f"{path}: the JSON of its metadata is damaged ({error}).") from None
    if not isinstance(metadata, dict):
        raise KappaPlaceError(f"{path}: its metadata must be a JSON object, not {text.strip()[:40]!r}.")
    for key in ("version", *_KINDS):
        if key not in metadata:
            raise KappaPlaceError(f"{path} has incomplete metadata ({key} is missing): import it again.")
    version = metadata["version"]
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise KappaPlaceError(
            f"{path} is a table of version {version!r} but this kappaplace knows 1 to {VERSION}: "
            "upgrade kappaplace, or import the table again."
        )
    for key, kinds in _KINDS.items():
        if not isinstance(metadata[key], kinds) or isinstance(metadata[key], bool):
            raise KappaPlaceError(f"{path}: {key} in its metadata cannot be {metadata[key]!r}.")
    return metadata


_FORMATS = {".parquet": "Parquet", ".csv": "a CSV table"}
TABLE_FORMATS = tuple(_FORMATS)
_MARK = "# kappaplace "
_ROWS = 131_072  # rows a block: bounds the memory that writing and reading need beyond the table itself
_FILE_COLUMNS = ("path", "x", "y", "heading", "timestamp", "place", "condition", "is_query")


def write_table(
    path: str | Path, columns: Columns, positives: Positives | None, facts: Mapping[str, Any]
) -> None:
    """Write a table as ``.parquet`` or ``.csv``; what stood there stays until the new file is whole.

    Args:
        path: The file.
        columns: `COLUMNS` and those of `OPTIONAL_COLUMNS` that there are.
        positives: The correct references of each query, if they are given one by one.
        facts: What is no column, see `read_table`.
    """
    path = Path(path)
    writer = {".parquet": _write_parquet, ".csv": _write_csv}[_format(path)]
    make_folder(path.parent)
    metadata = {"version": VERSION, **facts, "root": stored_root(facts["root"], path)}
    replace_file(path, lambda part: writer(columns, positives, part, metadata))


def read_table(path: str | Path, root: str | Path | None = None) -> dict[str, Any]:
    """Read what `write_table` wrote, as arguments of `PlaceImages.create`.

    Args:
        path: The file.
        root: Folder of the images. Default: the one that the file states.
    """
    path = Path(path)
    kind = _format(path)
    if not path.is_file():
        raise KappaPlaceError(f"There is no table at {path}: make one with `kappaplace data import`.")
    with telling(f"{path} cannot be read as {_FORMATS[kind]}"):
        columns, metadata = _read_parquet(path) if kind == ".parquet" else _read_csv(path)
        where = Path(root) if root is not None else path.parent / metadata["root"]
        facts = {key: metadata[key] for key in ("frame", "name", "protocol", "radius")}
        return {**columns, **facts, "root": where, "neighborhood": Neighborhood(**metadata["neighbourhood"])}


def recorded_hash(path: str | Path) -> str:
    """The content hash that was written into the file; a hand-edited table no longer has it."""
    path = Path(path)
    kind = _format(path)
    with telling(f"{path} cannot be read as {_FORMATS[kind]}"):
        if kind == ".csv":
            return str(_csv_metadata(path).get("hash", ""))
        import pyarrow.parquet as pq

        return str(_parquet_metadata(path, pq.read_schema(path).metadata).get("hash", ""))


def _format(path: Path) -> str:
    if path.suffix.lower() not in TABLE_FORMATS:
        raise KappaPlaceError(
            f"{path} is neither .parquet nor .csv: tables are kept in one of these formats."
        )
    return path.suffix.lower()


def _names(columns: Columns, positives: Positives | None) -> list[str]:
    """Columns of the file."""
    optional = [name for name in OPTIONAL_COLUMNS if name in columns]
    return [*_FILE_COLUMNS, *optional, *(["positives"] if positives is not None else [])]


def _blocks(columns: Columns, positives: Positives | None) -> Iterator[dict[str, Any]]:
    """The file's columns, a block of rows at a time; positives as lists in the rows of queries."""
    among = np.cumsum(columns["is_query"]) - 1
    for start in range(0, len(among), _ROWS):
        part = {name: values[start : start + _ROWS] for name, values in columns.items()}
        x, y = part.pop("positions").T
        block: dict[str, Any] = {"path": part.pop("paths").tolist(), "x": x, "y": y, **part}
        block["condition"] = part["condition"].tolist()
        if positives is not None:
            queries = zip(among[start : start + _ROWS], part["is_query"], strict=True)
            block["positives"] = [positives.of(int(q)).tolist() if flag else None for q, flag in queries]
        yield block


def _write_parquet(
    columns: Columns, positives: Positives | None, path: Path, metadata: dict[str, Any]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"path": pa.string(), "condition": pa.string(), "positives": pa.list_(pa.int32())}
    numeric = {
        "heading": pa.float32(),
        "accuracy": pa.float32(),
        "place": pa.int64(),
        "frame_number": pa.int64(),
    }
    types |= numeric | {
        "x": pa.float64(),
        "y": pa.float64(),
        "timestamp": pa.float64(),
        "is_query": pa.bool_(),
    }
    names = _names(columns, positives)
    schema = pa.schema([(name, types[name]) for name in names], {"kappaplace": json.dumps(metadata)})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in _blocks(columns, positives):
            arrays = [pa.array(block[name], types[name]) for name in names]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _read_parquet(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        metadata = _parquet_metadata(path, schema.metadata)
        columns = _empty_columns(file.metadata.num_rows, set(schema.names), path)
        _check_types(path, schema)
        start, lists = 0, []
        for batch in file.iter_batches(batch_size=_ROWS):
            block = {name: batch.column(name) for name in batch.schema.names}
            lists += [row for row in block.pop("positives", pa.array([])).to_pylist() if row is not None]
            _fill(columns, start, {k: v.to_numpy(zero_copy_only=False) for k, v in block.items()})
            start += batch.num_rows
    return _with_positives(columns, lists if "positives" in schema.names else None), metadata


def _check_types(path: Path, schema: Any) -> None:
    """Numbers must be stored as numbers: text would be parsed by chance, or fail far from its cause."""
    from pyarrow import types

    for field in schema:
        dtype = _dtype(field.name)
        numeric = types.is_integer(field.type) or types.is_floating(field.type)
        if dtype is np.bool_ and not types.is_boolean(field.type):
            raise KappaPlaceError(f"{path}: column {field.name} holds {field.type}, not true or false.")
        if np.dtype(dtype).kind in "fi" and not numeric:
            raise KappaPlaceError(f"{path}: column {field.name} holds {field.type}, not numbers.")


def _parquet_metadata(path: Path, metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    if not metadata or b"kappaplace" not in metadata:
        raise KappaPlaceError(
            f"{path} is Parquet but no kappaplace table: make one with `kappaplace data import`."
        )
    return checked_metadata(path, metadata[b"kappaplace"].decode("utf-8"))


def _write_csv(columns: Columns, positives: Positives | None, path: Path, metadata: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(_MARK + json.dumps(metadata, ensure_ascii=False) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        names = _names(columns, positives)
        writer.writerow(names)
        for block in _blocks(columns, positives):
            writer.writerows(zip(*(_cells(block[name]) for name in names), strict=True))


def _cells(values: Any) -> list[str]:
    """Numbers in their shortest exact form, NaN as an empty cell, positives separated by blanks."""
    if isinstance(values, list):
        return [v if isinstance(v, str) else " ".join(map(str, v or [])) for v in values]
    if values.dtype == bool:
        return ["1" if v else "0" for v in values]
    if values.dtype.kind == "f":
        return ["" if text == "nan" else text for text in map(str, values)]
    return list(map(str, values))


def _csv_metadata(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    if not first.startswith(_MARK):
        raise KappaPlaceError(
            f"{path} does not start with '{_MARK.strip()}', so it is no kappaplace table: "
            "a folder with a CSV of its own is read by `kappaplace data import csv`."
        )
    return checked_metadata(path, first[len(_MARK) :])


def _read_csv(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = _csv_metadata(path)
    csv.field_size_limit(2**31 - 1)  # a query may have many positives
    with path.open(encoding="utf-8-sig", newline="") as file:
        file.readline()
        rows = csv.reader(file)
        header = next(rows, [])
        cells: dict[str, list[str]] = {name: [] for name in header}
        for number, row in enumerate(rows, start=3):
            if len(row) != len(header):
                raise KappaPlaceError(
                    f"{path} line {number} has {len(row)} cells but the header {len(header)}."
                )
            for name, cell in zip(header, row, strict=True):
                cells[name].append(cell)
    columns = _empty_columns(len(cells.get("path", [])), set(header), path)
    given = cells.pop("positives", None)
    _fill(columns, 0, {name: _parsed(path, name, values) for name, values in cells.items()})
    if given is None:
        return columns, metadata
    queries = np.flatnonzero(columns["is_query"]).tolist()
    return _with_positives(columns, [_indices(path, given[row], row) for row in queries]), metadata


def _indices(path: Path, cell: str, row: int) -> list[int]:
    try:
        return [int(v) for v in cell.split()]
    except ValueError as error:
        raise KappaPlaceError(
            f"{path} line {row + 3}: its positives are no list of indices ({error})."
        ) from None


def _parsed(path: Path, name: str, values: list[str]) -> NDArray[Any]:
    dtype = {"path": object, "condition": object, "is_query": np.int64}.get(name) or _dtype(name)
    if dtype is object:
        return np.array(values, dtype=object)
    try:
        if np.dtype(dtype).kind == "f":
            return np.array([float(v) if v else np.nan for v in values], dtype=dtype)
        if name == "is_query" and not set(values) <= {"0", "1"}:
            raise ValueError(f"{next(v for v in values if v not in ('0', '1'))!r} is neither 0 nor 1")
        return np.array([int(v) for v in values], dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise KappaPlaceError(f"{path}: column {name} holds something that is no number ({error}).") from None


def _dtype(name: str) -> Any:
    return np.float64 if name in ("x", "y") else (COLUMNS | OPTIONAL_COLUMNS).get(name, object)


def _empty_columns(rows: int, names: set[str], path: Path) -> dict[str, Any]:
    missing = [name for name in _FILE_COLUMNS if name not in names]
    if missing:
        raise KappaPlaceError(f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    columns = {c: np.empty((rows, 2) if c == "positions" else rows, dtype=t) for c, t in COLUMNS.items()}
    return columns | {c: np.empty(rows, dtype=t) for c, t in OPTIONAL_COLUMNS.items() if c in names}


def _fill(columns: dict[str, Any], start: int, block: dict[str, Any]) -> None:
    rows = slice(start, start + len(block["path"]))
    columns["positions"][rows, 0] = block.pop("x")
    columns["positions"][rows, 1] = block.pop("y")
    columns["paths"][rows] = block.pop("path")
    for name, values in block.items():
        if name in columns:  # columns that a user added are left alone
            columns[name][rows] = values


def _with_positives(columns: dict[str, Any], lists: list[list[int]] | None) -> dict[str, Any]:
    if lists is None:
        return columns
    references = int((~columns["is_query"]).sum())
    return columns | {"given_positives": Positives.from_lists(lists, references)}
