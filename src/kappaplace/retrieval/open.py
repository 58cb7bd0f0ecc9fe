"""Open a search engine over arrays, or over a map with its index or database collection.

A map stores a note about each import into a database. If the note is current, a process compares only a few
rows with the database: another copy of the map may have filled it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import choice
from kappaplace.data.near import Circle, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, printable, write_file
from kappaplace.retrieval.codes import FEWEST
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.database import REMEDY, DatabaseEngine, References, collection_name
from kappaplace.retrieval.engine import Engine, ExactEngine, circles, no_matches
from kappaplace.retrieval.faiss import Rebuild, open_faiss
from kappaplace.retrieval.milvus import MilvusEngine
from kappaplace.retrieval.postgres import PostgresEngine
from kappaplace.types import Json, Matches

EngineKind = Literal["auto", "exact", "ivf-pq", "milvus", "postgres"]
DATABASES = {
    "milvus": "http://host:19530, or a file that ends in .db",
    "postgres": "postgresql://user@host/db",
}
"""Engines that are databases, with an example of a URL."""
EXACT_UP_TO = 200_000  # one query takes a few tens of milliseconds, so an index would not pay
REPLACED = {"hnsw": "ivf-pq", "compact": "ivf-pq", "faiss-flat": "exact"}
"""Engines that are no longer offered, and their replacements."""
INDEX = "index"
"""Folder of an index inside a map."""
PROBES = 16
"""Number of rows to compare with a collection that the map filled earlier."""


@dataclass(frozen=True)
class EngineOptions:
    """Options of a search engine; each engine ignores options of other engines."""

    uri: str | None = None
    """URL of a database, or a Milvus Lite file."""
    collection: str = ""
    """Collection of a database (a table in PostgreSQL). Default: kappaplace, or the name of the map."""
    replace: bool = False
    """Whether a database may overwrite other references."""
    index: str = ""
    """Index of a database. Milvus: FLAT (default), HNSW, IVF_FLAT, DISKANN or AUTOINDEX. PostgreSQL: none
    (default) or hnsw."""
    token: str = ""
    """Token of a Milvus server."""
    timeout: float = 5.0
    """Seconds to wait for a server to accept a connection."""
    rebuild: Rebuild = False
    """Whether to rebuild an existing index: True, or "if stale" (if it was built from other descriptors)."""
    fingerprint: str | None = None
    """Checksum that identifies the descriptors of an index. Default: computed from all of them."""
    device: str = "cpu"
    """Device of the exact engine."""


def open_engine(
    descriptors: Descriptors | Columns | None,
    positions: NDArray[np.floating] | None = None,
    kind: str = "auto",
    folder: str | Path | None = None,
    *,
    kappa: NDArray[np.floating] | None = None,
    names: Sequence[str] | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """Open a search engine over references.

    Args:
        descriptors: Unit descriptors N×d of the references; None searches a database without an import.
        positions: x and y of each reference in metres, N×2; NaN if unknown. Required to search a circle.
        kind: "auto", "exact", "ivf-pq", "milvus" or "postgres".
        folder: Folder that stores an index. Default: none, the index is in memory.
        kappa: κ of each reference, stored in a database.
        names: Name of each reference, stored in a database.
        options: Further options of the engine.

    Returns:
        The engine; its ``why`` states how it was chosen.

    Raises:
        KappaPlaceError: If the engine is unknown or not installed, or its database or index cannot be used
            for these references.
    """
    columns = None if descriptors is None else as_columns(descriptors)
    options = options or EngineOptions()
    kind, why = choose(kind, None if columns is None else len(columns), folder)
    engine: Engine
    if kind in DATABASES:
        references = None if columns is None else References(columns, positions, kappa, names)
        engine = _open_database(connect(kind, options), references, options.replace)
    elif columns is None:
        raise KappaPlaceError(
            f"The {kind} engine needs descriptors. Only milvus and postgres store their own."
        )
    elif kind == "exact":
        engine = ExactEngine(columns, positions, device=options.device)
    else:
        rebuild, fingerprint = options.rebuild, options.fingerprint
        engine = open_faiss(columns, positions, folder, rebuild=rebuild, fingerprint=fingerprint)
    engine.why = why
    return engine


def choose(kind: str, references: int | None, folder: str | Path | None) -> tuple[str, str]:
    """Choose an engine; one that is no longer offered is replaced, with a warning.

    Args:
        kind: Name of the engine, or "auto".
        references: Number of references; None if unknown.
        folder: Folder for an index; None if there is none.

    Returns:
        Name of the engine and the reason for the choice.
    """
    if kind in REPLACED:
        few = references is not None and references < FEWEST
        now = "exact" if few else REPLACED[kind]
        why = f"{now}: the engine {kind} is no longer offered, {now} replaces it"
        warnings.warn(f"The engine {kind!r} is no longer offered; {now!r} is used instead.", stacklevel=3)
        return now, why
    choice(kind, EngineKind, "search engine")
    if kind != "auto" or references is None:
        return kind, f"{kind}: chosen by the caller"
    if references <= EXACT_UP_TO:
        return "exact", f"exact: {references:,} references need no index"
    if importlib.util.find_spec("faiss") is None:
        return "exact", (
            f'exact: without faiss, there is no index for {references:,} references (extra "faiss")'
        )
    if folder is None:
        return "exact", f"exact: there is no folder for an index of {references:,} references"
    return "ivf-pq", (
        f"ivf-pq: an index of {references:,} references proposes matches, which are compared exactly"
    )


def connect(kind: str, options: EngineOptions) -> DatabaseEngine:
    """Connect to a database; the collection may be empty."""
    if not options.uri:
        raise KappaPlaceError(f"The {kind} engine needs a URL. Pass uri=…, such as {DATABASES[kind]}.")
    collection = options.collection or "kappaplace"
    if kind == "milvus":
        server = {"index": options.index or "FLAT", "token": options.token}
        return MilvusEngine(options.uri, collection, **server, timeout=options.timeout)
    return PostgresEngine(options.uri, collection, index=options.index or "none", timeout=options.timeout)


def _open_database(engine: DatabaseEngine, references: References | None, replace: bool) -> Engine:
    try:
        if references is not None:
            engine.add(references, replace=replace)
        if len(engine) == 0:
            raise KappaPlaceError(f"{engine.location} contains no references. Import a map first.")
    except BaseException:
        engine.close()
        raise
    return engine


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
    """Values that identify the content of an import into a database."""

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
                f"{difference} differs), because another map or copy has filled it. {REMEDY}"
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
        engine: The engine; None if the map is empty.
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
    source: MapSource, kind: str = "auto", device: str | None = None, options: EngineOptions | None = None
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
        index = None  # a read-only map without an index: an index could not be stored
    kind, why = choose(kind, len(source.columns), index)
    engine: Engine | None = None
    if kind in DATABASES:
        options = replace(options, collection=options.collection or collection_name(source.name))
        # URLs may contain passwords, so only their hash is stored.
        digest = hashlib.sha256(f"{options.uri}\0{options.collection}".encode()).hexdigest()
        note = source.folder / INDEX / f"{kind}-{digest[:12]}.json"
        engine = import_map(connect(kind, options), source, note, options.replace)
    elif kind == "ivf-pq":
        # The index belongs to the map: it is rebuilt whenever the map has changed.
        columns, fingerprint = source.columns.with_removed(), options.fingerprint or source.fingerprint
        rebuild = options.rebuild or "if stale"
        engine = open_faiss(columns, source.positions, index, rebuild=rebuild, fingerprint=fingerprint)
    elif len(source.columns):
        engine = ExactEngine(source.columns, source.live_positions, device=device or options.device)
    return Search(source, engine, why)
