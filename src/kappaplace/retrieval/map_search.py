"""Search of a map: the choice of its engine, its index or database, and row numbers without removed rows.

A note in the map records each import into a database. A process that only searches then compares a few rows
instead of all: another copy of the map may have filled the same collection in the meantime.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, printable, write_file
from kappaplace.retrieval.base import ExactEngine, circles, no_matches
from kappaplace.retrieval.columns import Columns
from kappaplace.retrieval.database import REMEDY, DatabaseEngine, References, collection_name
from kappaplace.retrieval.engine import DATABASES, Engine, EngineOptions, choose, connect
from kappaplace.retrieval.faiss import open_faiss
from kappaplace.types import Json, Matches

INDEX = "index"
"""Folder of an index inside a map."""
PROBES = 16
"""Rows to compare before a collection that the map filled earlier is trusted."""


@dataclass(frozen=True)
class MapSource:
    """References of a map, for any search engine."""

    folder: Path
    """Folder of the map."""
    name: str
    """Name of the map."""
    columns: Columns
    """Descriptors; their ``live`` rows are the references."""
    positions: NDArray[np.float64]
    """x and y of every row in metres, including removed rows; NaN if unknown."""
    kappa: Callable[[], NDArray[np.float32]]
    """Function that returns κ of every row."""
    names: Callable[[], Iterable[str]]
    """Function that returns the names of all rows."""
    row_name: Callable[[int], str]
    """Function that returns the name of one row."""
    fingerprint: str
    """Checksum of the descriptors, to detect an outdated index."""
    state: Mapping[str, Json]
    """Values that identify everything that is imported into a database."""

    @property
    def live_positions(self) -> NDArray[np.float64]:
        """x and y of every reference."""
        return self.positions if self.columns.live is None else self.positions[self.columns.live]


def import_map(
    engine: DatabaseEngine, source: MapSource, note: Path, replace: bool = False
) -> DatabaseEngine:
    """Update a database to a map.

    Args:
        engine: The database; it is closed if the import fails.
        source: The references of the map.
        note: File of the map that records the import.
        replace: Whether other references may be overwritten. References that this map imported earlier are
            always updated.

    Returns:
        The engine.
    """
    try:
        recorded, rows = _read_note(note), source.columns.with_removed()
        is_current = recorded == source.state and len(engine) == len(rows)
        difference = _first_difference(engine, source) if is_current else None
        if difference is not None and not replace:
            raise KappaPlaceError(
                f"{engine.location} no longer contains the references of the map {source.folder} (row "
                f"{difference} differs): another map or copy has filled it. {REMEDY}"
            )
        if not is_current or difference is not None:
            names = [printable(name) for name in source.names()]  # databases reject invalid UTF-8
            references = References(rows, source.positions, source.kappa(), names)
            engine.add(references, replace=replace or recorded is not None)
            # Without a note (read-only disk), each process compares all rows again.
            with contextlib.suppress(KappaPlaceError):
                make_folder(note.parent)
                write_file(note, json.dumps(source.state), sync=False)
    except BaseException:
        engine.close()
        raise
    return engine


def _first_difference(engine: DatabaseEngine, source: MapSource) -> int | None:
    """Compare rows spread over the map; return the first that differs from the map, or None."""
    count = len(source.positions)
    rows = np.unique(np.linspace(0, count - 1, min(count, PROBES)).astype(np.int64))
    stored, kappa, positions = engine.fetch(rows), source.kappa()[rows], source.positions[rows]
    for i, row in enumerate(rows.tolist()):
        pairs = ((stored.kappa[i], kappa[i]), (stored.positions[i], positions[i]))
        same = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
        if not same or stored.names[i] != printable(source.row_name(row)):
            return int(row)
    return None


def _read_note(note: Path) -> dict[str, Json] | None:
    try:
        record = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


class Search:
    """Search of a map with any engine; row numbers do not count removed references.

    An engine that contains removed rows is queried for more until enough results are still in the map.

    Args:
        source: The references of the map.
        engine: The engine. None: the map is empty.
        why: Reason for the choice of the engine.
    """

    def __init__(self, source: MapSource, engine: Engine | None, why: str) -> None:
        self.engine, self.why, self.count = engine, why, len(source.columns)
        if isinstance(engine, ExactEngine):  # its row numbers are those of the map
            self._live, self._nearby = None, engine.nearby
        else:
            self._live, self._nearby = source.columns.live, circles(source.live_positions, self.count)

    def search(self, queries: NDArray[np.float32], k: int, area: Circle | None = None) -> Matches:
        """Return the k best references of each query.

        Args:
            queries: Unit descriptors N×d.
            k: Number of matches per query; fewer if there are fewer references.
            area: Search only this circle: x, y and radius in metres.

        Returns:
            Rows and cosines, best first, ties by row.
        """
        k = min(k, self.count if area is None else len(self.within(area)))
        if k == 0 or self.engine is None:
            return no_matches(len(queries))
        if self._live is None:
            return self.engine.search(queries, k, area=area)
        depth = k
        while True:
            depth = min(2 * depth + 16, len(self.engine))
            pool = self.engine.search(queries, depth, area=area)
            rows = np.minimum(np.searchsorted(self._live, pool.indices), len(self._live) - 1)
            live = self._live[rows] == pool.indices
            if pool.indices.shape[1] < depth or depth == len(self.engine) or live.sum(axis=1).min() >= k:
                return _first_live(Matches(rows, pool.similarities), live, k)

    def within(self, area: Circle) -> NDArray[np.int64]:
        """Return the references inside a circle or on its rim.

        Args:
            area: x, y and radius in metres.

        Returns:
            Row numbers, ascending.
        """
        return self._nearby.within(checked_circle(area))

    def close(self) -> None:
        """Close the engine and its connection to a database."""
        if self.engine is not None:
            self.engine.close()


def _first_live(pool: Matches, live: NDArray[np.bool_], k: int) -> Matches:
    order = np.argsort(~live, axis=1, kind="stable")[:, :k]
    return Matches(
        np.take_along_axis(pool.indices, order, 1), np.take_along_axis(pool.similarities, order, 1)
    )


def open_search(
    source: MapSource,
    kind: str = "auto",
    device: str | None = None,
    options: EngineOptions | None = None,
) -> Search:
    """Open the search of a map.

    Args:
        source: The references of the map.
        kind: "auto", "exact", "ivf-pq", "milvus" or "postgres".
        device: Device of the exact engine. Default: cpu.
        options: Options of a database or an index.

    Returns:
        The search; its ``why`` states how the engine was chosen.

    Raises:
        KappaPlaceError: If `open_engine` raises an error.
    """
    options = options or EngineOptions()
    if kind not in DATABASES and (options.uri is not None or options.collection):
        raise KappaPlaceError(
            f"uri and collection are options of a database, not of the engine {kind!r}. "
            "Choose milvus or postgres."
        )
    index: Path | None = source.folder / INDEX
    if not (source.folder / INDEX).is_dir() and not os.access(source.folder, os.W_OK):
        index = None  # a read-only map without an index: minutes of building would end in an error
    kind, why = choose(kind, len(source.columns), index)
    engine: Engine | None = None
    if kind in DATABASES:
        options = replace(options, collection=options.collection or collection_name(source.name))
        note = _note(source, kind, options)
        engine = import_map(connect(kind, options), source, note, options.replace)
    elif kind == "ivf-pq":
        # The index belongs to the map: it is rebuilt whenever the map has changed.
        columns, fingerprint = source.columns.with_removed(), options.fingerprint or source.fingerprint
        rebuild = options.rebuild or "if stale"
        engine = open_faiss(columns, source.positions, index, rebuild=rebuild, fingerprint=fingerprint)
    elif len(source.columns):
        engine = ExactEngine(source.columns, source.live_positions, device=device or options.device)
    return Search(source, engine, why)


def _note(source: MapSource, kind: str, options: EngineOptions) -> Path:
    # URLs may contain passwords, so only their hash is stored.
    digest = hashlib.sha256(f"{options.uri}\0{options.collection}".encode()).hexdigest()
    return source.folder / INDEX / f"{kind}-{digest[:12]}.json"
