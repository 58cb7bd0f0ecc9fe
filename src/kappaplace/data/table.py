"""`PlaceImages`: the table of images, poses and places that every other part of the package reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.data.columns import COLUMNS, OPTIONAL_COLUMNS, TEXT, Column, as_column, content_hash
from kappaplace.data.geodesy import LOCAL_FRAME, frame_codes
from kappaplace.data.near import FARTHEST, Near, Neighborhood
from kappaplace.data.positives import Positives, positives_within
from kappaplace.data.table_io import VERSION, TableFacts, read_table, write_table
from kappaplace.errors import KappaPlaceError
from kappaplace.files import printable

DEFAULT_RADIUS = 25.0  # metres within which a reference is a positive, the convention of the field


@dataclass(frozen=True, eq=False)
class PlaceImages:
    """Images with poses, divided into queries and references. Build a table with :meth:`create`.

    Columns are read-only NumPy arrays of N rows. Unknown values are NaN (positions, heading, timestamp,
    accuracy), −1 (place) or "" (condition). An index of a query or a reference counts only queries or only
    references, from 0 in the order of the table.
    """

    paths: Column
    """Image paths relative to ``root``, with forward slashes; an absolute path remains absolute."""
    positions: NDArray[np.float64]
    """N×2: east and north (or x and y) in metres of ``frame``."""
    heading: NDArray[np.float32]
    """Degrees clockwise from north, in [0, 360)."""
    timestamp: NDArray[np.float64]
    """Seconds since 1970 (UTC)."""
    place: NDArray[np.int64]
    """Place label, if the dataset has labels."""
    condition: Column
    """Capture condition that the dataset records: session, sequence, season or time of day."""
    is_query: NDArray[np.bool_]
    """True for queries, False for references."""
    frame_number: NDArray[np.int64] | None = None
    """Order along a route, for neighborhoods in frames. Default: the order in the table."""
    accuracy: NDArray[np.float32] | None = None
    """Accuracy of each position in metres; it widens the radius."""
    root: Path = field(default_factory=Path)
    """Folder of the images. Default: the working folder."""
    frame: str = LOCAL_FRAME
    """Frame of the positions: "local", or EPSG codes separated by commas."""
    name: str = ""
    """Name of the dataset."""
    protocol: str = ""
    """Name of the benchmark protocol whose table this is; empty for none."""
    radius: float = DEFAULT_RADIUS
    """A reference within this radius in metres is a positive of a query. Default: 25."""
    neighborhood: Neighborhood = None  # type: ignore[assignment]
    """Rule for references of the same place. Default: references within ``radius`` metres."""
    given_positives: Positives | None = None
    """Positives that the dataset lists. Default: references within ``radius``."""

    @classmethod
    def create(
        cls,
        paths: Iterable[str] | Column,
        positions: ArrayLike | None = None,
        *,
        heading: ArrayLike | None = None,
        timestamp: ArrayLike | None = None,
        place: ArrayLike | None = None,
        condition: ArrayLike | Sequence[str] | None = None,
        is_query: ArrayLike | None = None,
        **rest: Any,
    ) -> PlaceImages:
        """Build a table: fill in unknown values and convert every column to its type.

        >>> table = PlaceImages.create(["a.jpg", "b.jpg"], [[0, 0], [3, 4]], is_query=[True, False])
        >>> table.positives().of(0).tolist()
        [0]

        Args:
            paths: Image paths relative to ``root``, N.
            positions: Metres of ``frame``, N×2. Default: unknown.
            heading: Degrees clockwise from north, N. Default: unknown.
            timestamp: Seconds since 1970 (UTC), N. Default: unknown.
            place: Place labels, N. Default: none.
            condition: Session, season or time of day, N. Default: empty.
            is_query: True for queries, N. Default: all are references.
            **rest: Other fields of the table.

        Returns:
            The table.

        Raises:
            KappaPlaceError: If a column has another length, or a value is invalid.
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
        for name, values in self._columns().items():
            object.__setattr__(self, name, as_column(name, values))
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "radius", float(self.radius))
        self._validate()
        if self.neighborhood is None:
            object.__setattr__(self, "neighborhood", Neighborhood("metres", self.radius))

    def _columns(self) -> dict[str, Column]:
        columns = {name: getattr(self, name) for name in COLUMNS | OPTIONAL_COLUMNS}
        return {name: values for name, values in columns.items() if values is not None}

    def _validate(self) -> None:
        n = len(self.paths)
        for name, values in self._columns().items():
            shape = (n, 2) if name == "positions" else (n,)
            if values.shape != shape:
                raise KappaPlaceError(f"Column {name} must have shape {shape}, got {values.shape}.")
        bad_rows = {
            "only one of its two coordinates. Specify both, or neither": np.isnan(self.positions).sum(axis=1)
            == 1,
            f"a coordinate above {FARTHEST:.0e} metres": (np.abs(self.positions) > FARTHEST).any(axis=1),
            "a negative position accuracy": np.less(0.0 if self.accuracy is None else self.accuracy, 0.0),
        }
        for problem, bad in bad_rows.items():
            if bad.any():
                row = int(np.argmax(bad))
                raise KappaPlaceError(f"Row {row} ({self.paths[row]}) has {problem}.")
        frame_codes(self.frame)  # raises if it is invalid, so that no other module has to check it
        if not 0 < self.radius <= FARTHEST:
            raise KappaPlaceError(f"radius must be positive and finite, got {self.radius}.")
        listed = self.given_positives
        q, r = len(self.query_rows), len(self.reference_rows)
        if listed is not None and (listed.queries, listed.references) != (q, r):
            raise KappaPlaceError(
                f"given_positives must be for {q} queries and {r} references, as in the table, "
                f"got {listed.queries} and {listed.references}."
            )

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
        """Table of only the queries."""
        return self.select(self.query_rows)

    @property
    def references(self) -> PlaceImages:
        """Table of only the references."""
        return self.select(self.reference_rows)

    @cached_property
    def posed(self) -> NDArray[np.bool_]:
        """True for rows with a position."""
        return ~np.isnan(self.positions[:, 0])

    def image_path(self, row: int) -> Path:
        """Return the path of one image.

        Args:
            row: Row of the table.

        Returns:
            The path, including ``root``.
        """
        return self.root / str(self.paths[row])

    def image_paths(self, rows: ArrayLike | None = None) -> list[str]:
        """Return the paths of images as strings, the form that loaders take.

        Args:
            rows: Rows of the table. Default: all.

        Returns:
            The paths, including ``root``.
        """
        paths = self.paths if rows is None else self.paths[np.asarray(rows)]
        root = str(self.root)
        return [os.path.join(root, path) for path in paths.tolist()]

    def positives(self) -> Positives:
        """Return the correct references of every query. They are computed once.

        Returns:
            The positives that the dataset lists; otherwise the references within ``radius``.
        """
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
        """Rule that decides whether references show the same place; it is called with their indices."""
        return Near.of(
            self.neighborhood, lambda: self.positions[self.reference_rows], lambda: self._reference_frames
        )

    def near(self, reference: int) -> NDArray[np.int64]:
        """Return all references near one reference.

        Args:
            reference: Index of the reference.

        Returns:
            Indices of these references, including the reference itself.
        """
        return np.flatnonzero(self.is_near(reference, np.arange(len(self.reference_rows))))

    @property
    def _reference_frames(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = self.reference_rows
        _, route = np.unique(self.condition[rows], return_inverse=True)
        return self.frame_numbers()[rows], route

    def frame_numbers(self) -> NDArray[np.int64]:
        """Return the frame number of every row.

        Returns:
            The column ``frame_number``; otherwise the index among queries or among references.
        """
        return self._index_of_kind if self.frame_number is None else self.frame_number

    @property
    def _index_of_kind(self) -> NDArray[np.int64]:
        return np.where(self.is_query, np.cumsum(self.is_query), np.cumsum(~self.is_query)) - 1

    def select(self, rows: ArrayLike | slice) -> PlaceImages:
        """Return some rows as a table, with their positives, frame numbers and metadata.

        Args:
            rows: Row numbers, a boolean mask or a slice.

        Returns:
            The table, in the order of the rows.

        Raises:
            KappaPlaceError: If a row does not exist.
        """
        try:
            selection = np.arange(len(self))[rows if isinstance(rows, slice) else np.asarray(rows)]
        except IndexError as error:
            raise KappaPlaceError(f"{self.name or 'The table'} has {len(self):,} rows: {error}.") from None
        columns: dict[str, Any] = {name: values[selection] for name, values in self._columns().items()}
        if self.neighborhood.kind == "frames":
            columns["frame_number"] = self.frame_numbers()[selection]
        positives = self.given_positives
        if positives is not None:
            index, is_query = self._index_of_kind[selection], columns["is_query"]
            positives = positives.take(index[is_query], index[~is_query])
        # A part of a benchmark is not the benchmark.
        protocol = self.protocol if np.array_equal(selection, np.arange(len(self))) else ""
        return replace(self, **columns, given_positives=positives, protocol=protocol)

    def with_radius(self, radius: float) -> PlaceImages:
        """Return the table with another radius for positives.

        Args:
            radius: Radius in metres. A neighborhood of the same radius changes with it.

        Returns:
            The table.

        Raises:
            KappaPlaceError: If the radius is not positive.
        """
        follows = self.neighborhood == Neighborhood("metres", self.radius)
        near = Neighborhood("metres", radius) if follows else self.neighborhood
        return replace(self, radius=radius, neighborhood=near)

    def save(self, path: str | Path) -> None:
        """Write the table as one file. An older file remains until the new one is complete.

        Args:
            path: A ``.parquet`` or ``.csv`` file.

        Raises:
            KappaPlaceError: If the file cannot be written.
        """
        plain = (self.frame, self.name, self.protocol, self.radius, self.neighborhood, self.content_hash)
        facts = TableFacts(VERSION, str(self.root), *plain)
        write_table(path, self._columns(), self.given_positives, facts)

    @staticmethod
    def open(path: str | Path, root: str | Path | None = None) -> PlaceImages:
        """Read a table.

        Args:
            path: A ``.parquet`` or ``.csv`` file.
            root: Folder of the images. Default: the folder that the file records.

        Returns:
            The table.

        Raises:
            KappaPlaceError: If the file does not exist or is damaged.
        """
        columns, positives, facts = read_table(path)
        return PlaceImages(
            **columns,
            root=Path(facts.root if root is None else root),
            frame=facts.frame,
            name=facts.name,
            protocol=facts.protocol,
            radius=facts.radius,
            neighborhood=facts.neighborhood,
            given_positives=positives,
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the content: columns, name, frame, radius, neighborhood and listed positives.

        The name counts because datasets of numbered files (0000.jpg, …) may be the same in everything else.
        File format, root and protocol do not count.
        """
        if self.name != printable(self.name):
            raise KappaPlaceError(f"name must be UTF-8, got {printable(self.name)!r}. Pass another --name.")
        facts = f"kappaplace table 1|{self.name}|{self.frame}|{self.radius!r}|{self.neighborhood}"
        return content_hash(facts, self._columns(), self.given_positives)

    def __repr__(self) -> str:
        return (
            f"PlaceImages({self.name or 'unnamed'}: {len(self.query_rows):,} queries, "
            f"{len(self.reference_rows):,} references, {self.frame}, radius {self.radius:g} m, "
            f"neighborhood {self.neighborhood})"
        )


def concatenate(tables: Sequence[PlaceImages], *, name: str = "", shared_places: bool = False) -> PlaceImages:
    """Join tables one after the other.

    Frame numbers of later tables are shifted, so that routes of different tables are never near each other. A
    "local" frame is assumed to be the same frame in every table.

    Args:
        tables: Tables with the same frame, radius, neighborhood and kind of positives.
        name: Name of the result. Default: the name of the first table.
        shared_places: Whether a label means the same place in all tables. Default: labels of later tables
            are shifted, so that places are never merged by accident.

    Returns:
        The table of all rows.

    Raises:
        KappaPlaceError: If there is no table, or the tables do not match.
    """
    if not tables:
        raise KappaPlaceError("There is no table to join. Pass at least one.")
    _check_match(tables)
    root, paths = _common_paths(tables)
    columns: dict[str, Column] = {
        column: np.concatenate([getattr(table, column) for table in tables])
        for column in COLUMNS
        if column != "paths"
    }
    if not shared_places:
        columns["place"] = _shifted([table.place for table in tables], 1)
    first = tables[0]
    if first.neighborhood.kind == "frames" or any(table.frame_number is not None for table in tables):
        apart = int(first.neighborhood.value) + 1 if first.neighborhood.kind == "frames" else 1
        columns["frame_number"] = _shifted([table.frame_numbers() for table in tables], apart)
    if any(table.accuracy is not None for table in tables):
        columns["accuracy"] = np.concatenate(
            [np.full(len(table), np.nan) if table.accuracy is None else table.accuracy for table in tables]
        )
    return PlaceImages(
        paths=paths,
        **columns,
        root=root,
        frame=first.frame,
        name=name or first.name,
        protocol="",
        radius=first.radius,
        neighborhood=first.neighborhood,
        given_positives=_stacked([t.given_positives for t in tables if t.given_positives is not None]),
    )


def _check_match(tables: Sequence[PlaceImages]) -> None:
    facts: dict[str, set[str]] = {
        "frame": {table.frame for table in tables},
        "radius": {str(table.radius) for table in tables},
        "neighborhood": {str(table.neighborhood) for table in tables},
        "kind of positives": {"by radius" if table.given_positives is None else "listed" for table in tables},
    }
    for fact, values in facts.items():
        if len(values) > 1:
            raise KappaPlaceError(f"Tables must have the same {fact}, got {', '.join(sorted(values))}.")


def _common_paths(tables: Sequence[PlaceImages]) -> tuple[Path, Column]:
    roots = {os.path.abspath(table.root) for table in tables}
    if len(roots) == 1:
        return tables[0].root, np.concatenate([table.paths for table in tables])
    try:
        common = os.path.commonpath(roots)
    except ValueError:  # different drives
        common = ""
    parts = []
    for table in tables:
        root = os.path.abspath(table.root)
        prefix = (os.path.relpath(root, common) if common else root).replace(os.sep, "/")
        absolute = np.array([os.path.isabs(path) for path in table.paths.tolist()], dtype=bool)
        joined = table.paths if prefix == "." else np.strings.add(prefix + "/", table.paths)
        parts.append(np.where(absolute, table.paths, joined))
    return Path(common), np.concatenate(parts)


def _shifted(parts: Sequence[NDArray[np.int64]], apart: int) -> NDArray[np.int64]:
    """Join numbers, each part at least ``apart`` above the largest number before it; −1 remains −1."""
    shifted, offset = [], 0
    for part in parts:
        shifted.append(np.where(part < 0, part, part + offset))
        offset = max(offset, int(shifted[-1].max(initial=-1)) + apart)
    return np.concatenate(shifted)


def _stacked(parts: Sequence[Positives]) -> Positives | None:
    if not parts:
        return None
    offsets = np.cumsum([0, *(part.references for part in parts)])
    indices = [part.indices + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([part.counts for part in parts]))])
    return Positives(indptr, np.concatenate(indices), int(offsets[-1]))
