"""`PlaceImages`: the one table of images, poses and places that every other part of the package reads.

The content hash of a table: the same for the same content, whatever the file format or the folder.

Several tables as one.

Paths of many images without a Python string for each: 2.8 million of them would take half a gigabyte.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.data.geodesy import LOCAL_FRAME, frame_codes
from kappaplace.data.near import FARTHEST, Near, Neighborhood
from kappaplace.data.positives import Positives, positives_within
from kappaplace.data.table_io import COLUMNS, OPTIONAL_COLUMNS, TEXT, read_table, write_table
from kappaplace.errors import KappaPlaceError

DEFAULT_RADIUS = 25.0  # metres within which a reference is a positive, the field's convention


@dataclass(frozen=True, eq=False)
class PlaceImages:
    """Images with poses, split into queries and references. Build one with :meth:`create`.

    Columns are read-only NumPy arrays of N rows; unknown is NaN (positions, heading, timestamp, accuracy),
    −1 (place) or "" (condition). Wherever an index names a query or a reference, each kind is counted from 0
    in table order.
    """

    paths: NDArray[Any]
    """Image paths relative to ``root`` with forward slashes; an absolute path stays as it is."""
    positions: NDArray[np.float64]
    """N×2: east and north (or x and y) in metres of ``frame``."""
    heading: NDArray[np.float32]
    """Degrees clockwise from north, in [0, 360)."""
    timestamp: NDArray[np.float64]
    """Seconds since 1970 (UTC)."""
    place: NDArray[np.int64]
    """Place label where the set gives one."""
    condition: NDArray[Any]
    """Session, sequence, season or time of day: whatever the set tells apart."""
    is_query: NDArray[np.bool_]
    frame_number: NDArray[np.int64] | None = None
    """Order along a route, for neighbourhoods in frames; None: the order in the table."""
    accuracy: NDArray[np.float32] | None = None
    """Stated accuracy of each position in metres; it widens the radius."""
    root: Path = field(default_factory=Path)
    frame: str = LOCAL_FRAME
    name: str = ""
    protocol: str = ""
    radius: float = DEFAULT_RADIUS
    neighborhood: Neighborhood = None  # type: ignore[assignment]  # a set that states none: ``radius`` metres
    given_positives: Positives | None = None
    """Positives stated by the set itself; None: references within ``radius``."""

    @classmethod
    def create(
        cls,
        paths: Iterable[str] | NDArray[Any],
        positions: ArrayLike | None = None,
        *,
        heading: ArrayLike | None = None,
        timestamp: ArrayLike | None = None,
        place: ArrayLike | None = None,
        condition: ArrayLike | Sequence[str] | None = None,
        is_query: ArrayLike | None = None,
        **rest: Any,
    ) -> PlaceImages:
        """Fill in what is unknown and bring every column to its type.

        >>> table = PlaceImages.create(["a.jpg", "b.jpg"], [[0, 0], [3, 4]], is_query=[True, False])
        >>> table.positives().of(0).tolist()
        [0]
        """
        names = paths if isinstance(paths, np.ndarray) else np.array(list(paths), dtype=TEXT)
        n = len(names)
        filled = {
            "positions": np.full((n, 2), np.nan) if positions is None else positions,
            "heading": np.full(n, np.nan) if heading is None else heading,
            "timestamp": np.full(n, np.nan) if timestamp is None else timestamp,
            "place": np.full(n, -1) if place is None else place,
            "condition": np.full(n, "", dtype=TEXT) if condition is None else condition,
            "is_query": np.zeros(n, dtype=bool) if is_query is None else is_query,
        }
        return cls(paths=names, **filled, **rest)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for column, dtype in (COLUMNS | OPTIONAL_COLUMNS).items():
            value = getattr(self, column)
            if value is not None:
                object.__setattr__(self, column, _column(column, value, dtype))
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "radius", float(self.radius))
        _validate(self)
        if self.neighborhood is None:
            object.__setattr__(self, "neighborhood", Neighborhood("metres", self.radius))

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def query_rows(self) -> NDArray[np.int64]:
        """Table rows of the queries."""
        return np.flatnonzero(self.is_query)

    @cached_property
    def reference_rows(self) -> NDArray[np.int64]:
        """Table rows of the references."""
        return np.flatnonzero(~self.is_query)

    @property
    def queries(self) -> PlaceImages:
        """The queries alone, as a table."""
        return self.select(self.query_rows)

    @property
    def references(self) -> PlaceImages:
        """The references alone, as a table."""
        return self.select(self.reference_rows)

    @cached_property
    def posed(self) -> NDArray[np.bool_]:
        """Which rows have a position."""
        return ~np.isnan(self.positions[:, 0])

    def image_path(self, row: int) -> Path:
        """Where one image lies."""
        return self.root / str(self.paths[row])

    def image_paths(self, rows: ArrayLike | None = None) -> list[str]:
        """Where images lie, as strings: the form that loaders take."""
        chosen = self.paths if rows is None else self.paths[np.asarray(rows)]
        root = str(self.root)
        return [os.path.join(root, path) for path in chosen.tolist()]

    def positives(self) -> Positives:
        """Right answers of every query: those given, else references within ``radius``. Computed once."""
        return self._positives

    @cached_property
    def _positives(self) -> Positives:
        if self.given_positives is not None:
            return self.given_positives
        q, r, accuracy = self.query_rows, self.reference_rows, self.accuracy
        return positives_within(
            self.positions[q],
            self.positions[r],
            self.radius,
            None if accuracy is None else accuracy[q],
            None if accuracy is None else accuracy[r],
        )

    @cached_property
    def is_near(self) -> Near:
        """Whether references ``a`` and ``b`` (indices among references, broadcast) show one place."""
        return Near.of(
            self.neighborhood, lambda: self.positions[self.reference_rows], lambda: self._reference_frames
        )

    def near(self, reference: int) -> NDArray[np.int64]:
        """All references near one reference, itself included."""
        return np.flatnonzero(self.is_near(reference, np.arange(len(self.reference_rows))))

    @property
    def _reference_frames(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = self.reference_rows
        _, route = np.unique(self.condition[rows], return_inverse=True)
        return self.frame_numbers()[rows], route

    def frame_numbers(self) -> NDArray[np.int64]:
        """Frame number of every row: the column, or the order among queries and among references."""
        if self.frame_number is not None:
            return self.frame_number
        numbers = np.empty(len(self), dtype=np.int64)
        numbers[self.query_rows] = np.arange(len(self.query_rows))
        numbers[self.reference_rows] = np.arange(len(self.reference_rows))
        return numbers

    def select(self, rows: ArrayLike | slice) -> PlaceImages:
        """Some rows as a table of their own; positives, frame numbers and metadata come along."""
        try:
            chosen = np.arange(len(self))[rows if isinstance(rows, slice) else np.asarray(rows)]
        except IndexError as error:
            raise KappaPlaceError(f"{self.name or 'The table'} has {len(self):,} rows: {error}.") from None
        columns: dict[str, Any] = {c: getattr(self, c)[chosen] for c in COLUMNS}
        if self.neighborhood.kind == "frames" or self.frame_number is not None:
            columns["frame_number"] = self.frame_numbers()[chosen]
        if self.accuracy is not None:
            columns["accuracy"] = self.accuracy[chosen]
        if self.given_positives is not None:
            among = np.where(self.is_query, np.cumsum(self.is_query), np.cumsum(~self.is_query)) - 1
            asked = self.is_query[chosen]
            columns["given_positives"] = self.given_positives.take(
                among[chosen[asked]], among[chosen[~asked]]
            )
        if not np.array_equal(chosen, np.arange(len(self))):
            columns["protocol"] = ""  # a part of a benchmark is not the benchmark
        return replace(self, **columns)

    def with_radius(self, radius: float) -> PlaceImages:
        """Positives within another radius; a neighbourhood that was that radius goes along with it."""
        follows = self.neighborhood == Neighborhood("metres", self.radius)
        near = Neighborhood("metres", radius) if follows else self.neighborhood
        return replace(self, radius=radius, neighborhood=near)

    def save(self, path: str | Path) -> None:
        """Write the table as one ``.parquet`` or ``.csv`` file, atomically."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        columns |= {c: getattr(self, c) for c in OPTIONAL_COLUMNS if getattr(self, c) is not None}
        facts = {key: getattr(self, key) for key in ("root", "frame", "name", "protocol", "radius")}
        facts |= {"neighbourhood": self.neighborhood.to_json(), "hash": self.content_hash}
        write_table(path, columns, self.given_positives, facts)

    @staticmethod
    def open(path: str | Path, root: str | Path | None = None) -> PlaceImages:
        """Read a table.

        Args:
            path: A ``.parquet`` or ``.csv`` file.
            root: Folder of the images, if they have moved.
        """
        return PlaceImages.create(**read_table(path, root))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of what the table says, whatever its file format, root or protocol."""

        return content_hash(self)

    def __repr__(self) -> str:
        return (
            f"PlaceImages({self.name or 'unnamed'}: {len(self.query_rows):,} queries, "
            f"{len(self.reference_rows):,} references, {self.frame}, radius {self.radius:g} m, "
            f"neighbourhood {self.neighborhood})"
        )


def _column(name: str, value: Any, dtype: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value).astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise KappaPlaceError(f"Column {name} cannot be read as {np.dtype(dtype)}: {error}.") from None
    if name == "heading":
        array = np.where(np.isfinite(array), np.mod(array, np.float32(360)), np.float32(np.nan))
        array = np.where(array == 360, np.float32(0), array).astype(np.float32, copy=False)
    view = array.view()
    view.flags.writeable = False
    return view


def _validate(table: PlaceImages) -> None:
    n = len(table.paths)
    for column in COLUMNS | OPTIONAL_COLUMNS:
        value = getattr(table, column)
        shape = (n, 2) if column == "positions" else (n,)
        if value is not None and value.shape != shape:
            raise KappaPlaceError(f"Column {column} has shape {value.shape} but {n} paths need {shape}.")
    bad_rows = {
        "only one of its two coordinates: give both, or neither": np.isnan(table.positions).sum(axis=1) == 1,
        "an infinite coordinate": np.isinf(table.positions).any(axis=1),
        "a negative position accuracy": np.less(0.0 if table.accuracy is None else table.accuracy, 0.0),
    }
    for what, bad in bad_rows.items():
        if bad.any():
            row = int(np.argmax(bad))
            raise KappaPlaceError(f"Row {row} ({table.paths[row]}) has {what}.")
    frame_codes(table.frame)  # every other part of the package may trust it
    if not 0 < table.radius <= FARTHEST:
        raise KappaPlaceError(f"The radius of positives must be above 0 m and finite, not {table.radius}.")
    given = table.given_positives
    if given is not None:
        q, r = int(table.is_query.sum()), n - int(table.is_query.sum())
        if (given.queries, given.references) != (q, r):
            raise KappaPlaceError(
                f"The given positives are for {given.queries} queries and {given.references} references "
                f"but the table holds {q} and {r}."
            )


_ROWS = 65_536  # fixed: the block size is part of what is hashed


def content_hash(table: PlaceImages) -> str:
    """SHA-256 of name, columns, frame, radius, neighbourhood and given positives; not of root or protocol.

    The name counts because sets of numbered files (0000.jpg, …) may agree in everything else.
    """
    digest = hashlib.sha256()
    for part in _content(table):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _content(table: PlaceImages) -> Iterator[bytes]:
    """The table as canonical bytes: little-endian, one NaN, no negative zero, text joined by NUL."""
    yield f"kappaplace table 1|{table.name}|{table.frame}|{table.radius!r}|{table.neighborhood}".encode()

    for column in COLUMNS | OPTIONAL_COLUMNS:
        value = getattr(table, column)
        if value is None:
            continue
        yield column.encode()
        for start in range(0, len(value), _ROWS):
            block = value[start : start + _ROWS]
            if isinstance(block.dtype, np.dtypes.StringDType):
                yield "\0".join(block.tolist()).encode("utf-8", "surrogateescape")
            elif block.dtype.kind == "f":
                plain = np.where(np.isnan(block), np.array(np.nan, block.dtype), block) + block.dtype.type(0)
                yield plain.astype(block.dtype.newbyteorder("<")).tobytes()
            else:
                yield block.astype(block.dtype.newbyteorder("<")).tobytes()
    if table.given_positives is not None:
        yield table.given_positives.indptr.astype("<i8").tobytes()
        yield table.given_positives.indices.astype("<i4").tobytes()


def concatenate(tables: Sequence[PlaceImages], *, name: str = "", shared_places: bool = False) -> PlaceImages:
    """Put tables one after the other. They must agree on frame, radius, neighbourhood and kind of positives.

    Place labels of later tables are shifted so that places never merge by accident, unless ``shared_places``;
    frame numbers are shifted likewise. A "local" frame is taken to be the same frame in every table.
    """
    if not tables:
        raise KappaPlaceError("There is no table to concatenate.")
    _agree(tables)
    root, paths = _common_paths(tables)
    columns: dict[str, Any] = {
        c: np.concatenate([getattr(t, c) for t in tables]) for c in COLUMNS if c != "paths"
    }
    if not shared_places:
        columns["place"] = _shifted([t.place for t in tables], 1)
    first = tables[0]
    if first.neighborhood.kind == "frames" or any(t.frame_number is not None for t in tables):
        apart = int(first.neighborhood.value) + 1 if first.neighborhood.kind == "frames" else 1
        columns["frame_number"] = _shifted([t.frame_numbers() for t in tables], apart)
    if any(t.accuracy is not None for t in tables):
        parts = [np.full(len(t), np.nan) if t.accuracy is None else t.accuracy for t in tables]
        columns["accuracy"] = np.concatenate(parts)
    return PlaceImages(
        paths=paths,
        **columns,
        root=root,
        frame=first.frame,
        name=name or first.name,
        radius=first.radius,
        neighborhood=first.neighborhood,
        given_positives=_stacked([t.given_positives for t in tables if t.given_positives is not None]),
    )


def _agree(tables: Sequence[PlaceImages]) -> None:
    facts: dict[str, set[Any]] = {
        "frame": {t.frame for t in tables},
        "radius": {t.radius for t in tables},
        "neighbourhood": {str(t.neighborhood) for t in tables},
        "kind of positives": {"by radius" if t.given_positives is None else "given" for t in tables},
    }
    for fact, values in facts.items():
        if len(values) > 1:
            shown = ", ".join(sorted(map(str, values)))
            raise KappaPlaceError(f"The tables cannot be joined: they differ in {fact} ({shown}).")


def _common_paths(tables: Sequence[PlaceImages]) -> tuple[Path, NDArray[Any]]:
    roots = {os.path.abspath(t.root) for t in tables}
    if len(roots) == 1:
        return tables[0].root, np.concatenate([t.paths for t in tables])
    try:
        common = os.path.commonpath(roots)
    except ValueError:  # different drives
        common = ""
    parts = []
    for table in tables:
        absolute = os.path.abspath(table.root)
        prefix = (os.path.relpath(absolute, common) if common else absolute).replace(os.sep, "/")
        keep = np.array([os.path.isabs(p) for p in table.paths.tolist()], dtype=bool)
        joined = table.paths if prefix == "." else np.strings.add(prefix + "/", table.paths)
        parts.append(np.where(keep, table.paths, joined))
    return Path(common), np.concatenate(parts)


def _shifted(parts: Sequence[NDArray[np.int64]], apart: int) -> NDArray[np.int64]:
    shifted, offset = [], 0
    for part in parts:
        moved = np.where(part < 0, part, part + offset)
        shifted.append(moved)
        offset = max(offset, int(moved.max(initial=-1)) + apart)
    return np.concatenate(shifted)


def _stacked(parts: Sequence[Positives]) -> Positives | None:
    if not parts:
        return None
    counts, indices, offset = [], [], 0
    for part in parts:
        counts.append(part.counts)
        indices.append(part.indices.astype(np.int64) + offset)
        offset += part.references
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return Positives(indptr, np.concatenate(indices).astype(np.int32), offset)


class ImageNames(Sequence[str]):
    """Some rows of a column of paths, joined with their folder on demand; the column itself is shared."""

    def __init__(self, paths: NDArray[Any], root: str, rows: NDArray[np.int64] | None = None) -> None:
        self.paths, self.root = paths, root
        self.rows = np.arange(len(paths)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return ImageNames(self.paths, self.root, self.rows[index])
        path = str(self.paths[self.rows[index]])
        return os.path.join(self.root, path) if path else ""

    def relative(self, chosen: NDArray[np.int64] | None = None) -> list[str]:
        """Paths without their folder, of all or of some."""
        return self.paths[self.rows if chosen is None else self.rows[chosen]].tolist()

    def keeping(self, chosen: NDArray[np.int64]) -> ImageNames:
        """As many names, but only the chosen ones are known: what a result keeps of a very large map."""
        paths = np.full(len(self), "", np.dtypes.StringDType())
        paths[chosen] = self.paths[self.rows[chosen]]
        return ImageNames(paths, self.root)
