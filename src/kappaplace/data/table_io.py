"""Table files: one Parquet file (large tables) or CSV file (to read and edit by hand).

Facts that are not columns (frame, radius, neighborhood, …) are stored in the same file. In Parquet, this is
the schema metadata under the key ``kappaplace``; in CSV, the first line ``# kappaplace {json}``.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kappaplace.data.columns import COLUMNS, OPTIONAL_COLUMNS, Column, Columns
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, telling
from kappaplace.records import from_plain, stored, to_plain
from kappaplace.types import Json

if TYPE_CHECKING:
    import pyarrow as pa

Cells: TypeAlias = "Column | Sequence[str] | Sequence[list[int] | None]"
"""Some rows of a column of the file."""

VERSION = 1  # increased when an older version would misread the files of a newer one
TABLE_FORMATS = (".parquet", ".csv")

_MARK = "# kappaplace "
_ROWS = 131_072  # rows per block: limits the memory for writing and reading beyond the table itself
_FILE_COLUMNS = ("path", "x", "y", "heading", "timestamp", "place", "condition", "is_query")


@dataclass(frozen=True)
class TableFacts:
    """Facts about a table that are not columns; the fields of `PlaceImages` with the same names."""

    version: int
    root: str
    """Folder of the images; in the file, relative to the folder of the table if it is below it."""
    frame: str
    name: str
    protocol: str
    radius: float
    neighborhood: Neighborhood = field(metadata=stored("neighbourhood"))
    hash: str = ""
    """Content hash of the table when it was written."""


def write_table(path: str | Path, columns: Columns, positives: Positives | None, facts: TableFacts) -> None:
    """Write a table. An older file remains until the new one is complete.

    Args:
        path: A ``.parquet`` or ``.csv`` file.
        columns: All `COLUMNS`, and the `OPTIONAL_COLUMNS` that are known.
        positives: Correct references of each query, if the dataset lists them.
        facts: Facts about the table that are not columns.

    Raises:
        KappaPlaceError: If the file has another suffix or cannot be written.
    """
    path = Path(path)
    writer = _write_parquet if _suffix(path) == ".parquet" else _write_csv
    make_folder(path.parent)
    record = to_plain(replace(facts, root=_stored_root(facts.root, path)))
    text = json.dumps(record, ensure_ascii=writer is _write_parquet)
    replace_file(path, lambda part: writer(columns, positives, part, text))


def read_table(path: str | Path) -> tuple[Columns, Positives | None, TableFacts]:
    """Read a table that `write_table` has written.

    Args:
        path: A ``.parquet`` or ``.csv`` file.

    Returns:
        Columns, listed positives and facts.

    Raises:
        KappaPlaceError: If the file does not exist or is damaged.
    """
    path = Path(path)
    suffix = _suffix(path)
    if not path.is_file():
        raise KappaPlaceError(f"There is no table at {path}. Create one with `kappaplace data import`.")
    with _readable(path):
        columns, lists, facts = _read_parquet(path) if suffix == ".parquet" else _read_csv(path)
        references = int((~columns["is_query"]).sum())
        return columns, None if lists is None else Positives.from_lists(lists, references), facts


def recorded_hash(path: str | Path) -> str:
    """Return the content hash that is stored in a table file; it is outdated if the file was edited.

    Args:
        path: A ``.parquet`` or ``.csv`` file.

    Returns:
        The hash; empty if the file has none.

    Raises:
        KappaPlaceError: If the file is damaged.
    """
    path = Path(path)
    suffix = _suffix(path)
    with _readable(path):
        if suffix == ".csv":
            return _csv_facts(path).hash
        import pyarrow.parquet as pq

        return _parquet_facts(path, pq.read_schema(path)).hash


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in TABLE_FORMATS:
        raise KappaPlaceError(f"A table file must end in .parquet or .csv, got {path}.")
    return suffix


def _readable(path: Path) -> AbstractContextManager[None]:
    return telling(f"{path} cannot be read as {'Parquet' if _suffix(path) == '.parquet' else 'a CSV table'}")


def _stored_root(root: str, path: Path) -> str:
    """Return the image folder as it is stored: relative if it is below the folder of the table.

    Table and images can then be moved together.
    """
    absolute, folder = os.path.abspath(root), os.path.abspath(path.parent)
    inside = absolute == folder or absolute.startswith(folder.rstrip(os.sep) + os.sep)
    return Path(os.path.relpath(absolute, folder) if inside else absolute).as_posix()


def _parsed_facts(path: Path, text: str) -> TableFacts:
    with telling(f"The metadata of {path} is not valid JSON"):
        values: Json = json.loads(text)
    version = values.get("version") if isinstance(values, Mapping) else None
    if isinstance(version, int) and not 1 <= version <= VERSION:
        raise KappaPlaceError(
            f"{path} is a table of version {version!r}, and this kappaplace supports 1 to {VERSION}. "
            "Upgrade kappaplace, or import the table again."
        )
    facts = from_plain(TableFacts, values, "metadata", newer=True)
    return replace(facts, root=str(path.parent / facts.root))


def _names(columns: Columns, positives: Positives | None) -> list[str]:
    """Return the columns of the file."""
    optional = [name for name in OPTIONAL_COLUMNS if name in columns]
    return [*_FILE_COLUMNS, *optional, *(["positives"] if positives is not None else [])]


def _blocks(columns: Columns, positives: Positives | None) -> Iterator[dict[str, Cells]]:
    """Yield the columns of the file, a block of rows at a time, with a list of positives for each query."""
    query = np.cumsum(columns["is_query"]) - 1
    for start in range(0, len(query), _ROWS):
        part = {name: values[start : start + _ROWS] for name, values in columns.items()}
        x, y = part.pop("positions").T
        block: dict[str, Cells] = {"path": part.pop("paths").tolist(), "x": x, "y": y, **part}
        block["condition"] = part["condition"].tolist()
        if positives is not None:
            queries = zip(query[start : start + _ROWS], part["is_query"], strict=True)
            block["positives"] = [positives.of(int(q)).tolist() if flag else None for q, flag in queries]
        yield block


def _write_parquet(columns: Columns, positives: Positives | None, path: Path, facts: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = {"path": pa.string(), "condition": pa.string(), "positives": pa.list_(pa.int32())}
    names = _names(columns, positives)
    types = {name: texts.get(name) or pa.from_numpy_dtype(_dtype(name)) for name in names}
    schema = pa.schema(list(types.items()), {"kappaplace": facts})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in _blocks(columns, positives):
            arrays = [pa.array(block[name], types[name]) for name in names]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _read_parquet(path: Path) -> tuple[Columns, list[list[int]] | None, TableFacts]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        facts = _parquet_facts(path, schema)
        columns = _empty_columns(file.metadata.num_rows, schema.names, path)
        _check_types(path, schema)
        start, lists = 0, []
        for batch in file.iter_batches(batch_size=_ROWS):
            block = {name: batch.column(name) for name in batch.schema.names}
            if "positives" in block:
                lists += [row for row in block.pop("positives").to_pylist() if row is not None]
            _fill(columns, start, {k: v.to_numpy(zero_copy_only=False) for k, v in block.items()})
            start += batch.num_rows
    return columns, lists if "positives" in schema.names else None, facts


def _check_types(path: Path, schema: pa.Schema) -> None:
    """Check that numbers are stored as numbers: text might be parsed by accident, or fail later."""
    from pyarrow import types

    for column in schema:
        kind = _dtype(column.name).kind
        numeric = types.is_integer(column.type) or types.is_floating(column.type)
        if kind == "b" and not types.is_boolean(column.type):
            raise KappaPlaceError(f"{path}: column {column.name} must be true or false, got {column.type}.")
        if kind in "fi" and not numeric:
            raise KappaPlaceError(f"{path}: column {column.name} must be numbers, got {column.type}.")


def _parquet_facts(path: Path, schema: pa.Schema) -> TableFacts:
    metadata: dict[bytes, bytes] = schema.metadata or {}
    if b"kappaplace" not in metadata:
        raise KappaPlaceError(f"{path} is not a kappaplace table. Create one with `kappaplace data import`.")
    return _parsed_facts(path, metadata[b"kappaplace"].decode("utf-8"))


def _write_csv(columns: Columns, positives: Positives | None, path: Path, facts: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"{_MARK}{facts}\n")
        writer = csv.writer(file, lineterminator="\n")
        names = _names(columns, positives)
        writer.writerow(names)
        for block in _blocks(columns, positives):
            writer.writerows(zip(*(_cells(block[name]) for name in names), strict=True))


def _cells(values: Cells) -> list[str]:
    """Return numbers in their shortest exact form, NaN as an empty cell, positives separated by spaces."""
    if not isinstance(values, np.ndarray):
        return [v if isinstance(v, str) else " ".join(map(str, v or [])) for v in values]
    if values.dtype == bool:
        return ["1" if v else "0" for v in values]
    if values.dtype.kind == "f":
        return ["" if text == "nan" else text for text in map(str, values)]
    return list(map(str, values))


def _csv_facts(path: Path) -> TableFacts:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    if not first.startswith(_MARK):
        raise KappaPlaceError(
            f"{path} is not a kappaplace table, because it does not start with '{_MARK.strip()}'. "
            "For a folder with its own CSV file, use `kappaplace data import csv`."
        )
    return _parsed_facts(path, first[len(_MARK) :])


def _read_csv(path: Path) -> tuple[Columns, list[list[int]] | None, TableFacts]:
    facts = _csv_facts(path)
    csv.field_size_limit(2**31 - 1)  # a query may have many positives
    with path.open(encoding="utf-8-sig", newline="") as file:
        file.readline()
        rows = csv.reader(file)
        header = next(rows, [])
        cells: dict[str, list[str]] = {name: [] for name in header}
        for number, row in enumerate(rows, start=3):
            if len(row) != len(header):
                raise KappaPlaceError(f"{path} line {number} must have {len(header)} cells, got {len(row)}.")
            for name, cell in zip(header, row, strict=True):
                cells[name].append(cell)
    columns = _empty_columns(len(cells.get("path", [])), header, path)
    positives = cells.pop("positives", None)
    _fill(columns, 0, {name: _parsed(path, name, values) for name, values in cells.items()})
    if positives is None:
        return columns, None, facts
    queries = np.flatnonzero(columns["is_query"]).tolist()
    return columns, [_indices(path, positives[row], row) for row in queries], facts


def _indices(path: Path, cell: str, row: int) -> list[int]:
    try:
        return [int(v) for v in cell.split()]
    except ValueError as error:
        raise KappaPlaceError(f"{path} line {row + 3}: positives must be indices ({error}).") from None


def _parsed(path: Path, name: str, values: list[str]) -> Column:
    dtype = np.dtype(np.int64) if name == "is_query" else _dtype(name)
    if dtype.kind == "O" or name == "condition":
        return np.array(values, dtype=object)
    try:
        if dtype.kind == "f":
            return np.array([float(v) if v else np.nan for v in values], dtype=dtype)
        if name == "is_query" and not set(values) <= {"0", "1"}:
            raise ValueError(f"{next(v for v in values if v not in ('0', '1'))!r} is neither 0 nor 1")
        return np.array([int(v) for v in values], dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise KappaPlaceError(f"{path}: column {name} has an invalid value ({error}). Correct it.") from None


def _dtype(name: str) -> np.dtype:
    if name in ("x", "y"):
        return COLUMNS["positions"]
    return (COLUMNS | OPTIONAL_COLUMNS).get(name, np.dtype(object))


def _empty_columns(rows: int, names: list[str], path: Path) -> dict[str, Column]:
    missing = [name for name in _FILE_COLUMNS if name not in names]
    if missing:
        raise KappaPlaceError(f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    optional = {name: dtype for name, dtype in OPTIONAL_COLUMNS.items() if name in names}
    return {
        name: np.empty((rows, 2) if name == "positions" else rows, dtype)
        for name, dtype in (COLUMNS | optional).items()
    }


def _fill(columns: dict[str, Column], start: int, block: dict[str, Column]) -> None:
    rows = slice(start, start + len(block["path"]))
    columns["positions"][rows, 0] = block.pop("x")
    columns["positions"][rows, 1] = block.pop("y")
    columns["paths"][rows] = block.pop("path")
    for name, values in block.items():
        if name in columns:  # a column that a user added is ignored
            columns[name][rows] = values
