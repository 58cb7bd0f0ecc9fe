"""Search engines: what they have in common, which one to use when, and the search of a map."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.database import DatabaseEngine, MapSource, References, collection_name, import_map
from kappaplace.retrieval.exact import ExactEngine, circles, no_matches
from kappaplace.retrieval.faiss import FEWEST, Rebuild, open_faiss
from kappaplace.retrieval.milvus import MilvusEngine
from kappaplace.retrieval.postgres import PostgresEngine
from kappaplace.types import Matches

EngineKind = Literal["auto", "exact", "ivf-pq", "milvus", "postgres"]
DATABASES = {
    "milvus": "http://host:19530, or a file that ends in .db",
    "postgres": "postgresql://user@host/db",
}
"""Engines that are databases, with an example of a URL."""
EXACT_UP_TO = 200_000  # one query takes a few tens of milliseconds: not worth an index
INDEX = "index"
"""Folder of an index inside a map."""
REPLACED = {"hnsw": "ivf-pq", "compact": "ivf-pq", "faiss-flat": "exact"}
"""Engines that are no longer offered, and those that search instead."""


@runtime_checkable
class Engine(Protocol):
    """Top-k search over one set of references; queries and references have unit length."""

    name: str
    exact: bool
    """Whether the matches equal those of a full comparison, up to rounding."""
    why: str
    """Why this engine was chosen, in one sentence."""

    def __len__(self) -> int: ...

    def search(self, queries: NDArray[np.float32], k: int, *, area: Circle | None = None) -> Matches:
        """Return the k most similar references of each query: rows and cosines, best first, ties by row.

        With ``area`` there are fewer than k columns if the circle contains fewer references.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class EngineOptions:
    """Options of a search engine; each engine uses those that concern it."""

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
    """Whether to build an index on disk again: True, or "if stale" if it is of other descriptors."""
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
        descriptors: Unit descriptors N×d of the references; None searches a database as it is.
        positions: x and y of each reference in metres, N×2; NaN if unknown. Required to search a circle.
        kind: "auto", "exact", "ivf-pq", "milvus" or "postgres".
        folder: Where an index is stored. Default: in memory.
        kappa: κ of each reference, stored in a database.
        names: Name of each reference, stored in a database.
        options: Further options of the engine.

    Returns:
        The engine; its ``why`` states how it was chosen.

    Raises:
        KappaPlaceError: If the engine is unknown or not installed, if a database cannot be reached or
            contains other references, or if an index is of other descriptors.
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
        index = {"rebuild": options.rebuild, "fingerprint": options.fingerprint}
        engine = open_faiss(columns, positions, folder, **index)  # type: ignore[arg-type]
    engine.why = why
    return engine


def choose(kind: str, references: int | None, folder: str | Path | None) -> tuple[str, str]:
    """Return the engine for this many references (None: unknown), and the reason for the choice.

    An engine that is no longer offered is replaced, with a warning.
    """
    if kind in REPLACED:
        few = references is not None and references < FEWEST
        now = "exact" if few else REPLACED[kind]
        why = f"{now}: the engine {kind} is no longer offered, {now} replaces it"
        warnings.warn(f"The engine {kind!r} is no longer offered; {now!r} is used instead.", stacklevel=3)
        return now, why
    if kind not in get_args(EngineKind):
        raise KappaPlaceError(
            f"Unknown search engine {kind!r}. Choose from: {', '.join(get_args(EngineKind))}."
        )
    if kind != "auto" or references is None:
        return kind, f"{kind}: chosen by the caller"
    if references <= EXACT_UP_TO:
        return "exact", f"exact: {references:,} references need no index"
    if importlib.util.find_spec("faiss") is None:
        return "exact", (
            f"exact: faiss is not installed; with {references:,} references an index would be faster "
            '(extra "faiss")'
        )
    if folder is None:
        return "exact", f"exact: there is no folder for an index of {references:,} references"
    return "ivf-pq", (
        f"ivf-pq: {references:,} references are many; an index proposes matches, exact similarities decide"
    )


def connect(kind: str, options: EngineOptions) -> DatabaseEngine:
    """Connect to a database, whose collection may be empty."""
    if not options.uri:
        raise KappaPlaceError(f"The {kind} engine needs a URL. Pass uri=…: {DATABASES[kind]}.")
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
            raise KappaPlaceError(f"{engine.where} contains no references. Import a map first.")
    except BaseException:
        engine.close()
        raise
    return engine


class Search:
    """The search of a map with any engine: rows are counted without removed references, as the map does.

    An engine that contains all rows is queried for more until enough of them are still in the map.
    """

    def __init__(self, source: MapSource, engine: Engine | None, why: str) -> None:
        self.engine, self.why, self.count = engine, why, len(source.columns)
        if isinstance(engine, ExactEngine):  # it counts as the map does
            self._live, self._nearby = None, engine.nearby
        else:
            self._live, self._nearby = source.columns.live, circles(source.live_positions, self.count)

    def search(self, queries: NDArray[np.float32], k: int, area: Circle | None = None) -> Matches:
        """Return the k best references of each query, or all if there are fewer; best first, ties by row."""
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
        """Return the rows of references inside a circle or on its rim, ascending."""
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
        KappaPlaceError: As `open_engine`.
    """
    options = options or EngineOptions()
    if kind not in DATABASES and (options.uri is not None or options.collection):
        raise KappaPlaceError(
            f"A URL (uri) or a collection belongs to a database, not to the engine {kind!r}. "
            "Choose milvus or postgres."
        )
    index: Path | None = source.folder / INDEX
    if not (source.folder / INDEX).is_dir() and not os.access(source.folder, os.W_OK):
        index = None  # a read-only map without an index: minutes of building must not end in an error
    kind, why = choose(kind, len(source.columns), index)
    engine: Engine | None = None
    if kind in DATABASES:
        options = replace(options, collection=options.collection or collection_name(source.name))
        note = _note(source, kind, options)
        engine = import_map(connect(kind, options), source, note, options.replace)
    elif kind == "ivf-pq":
        # The index belongs to the map: it is built again whenever the map has changed.
        columns, fingerprint = source.columns.with_removed(), options.fingerprint or source.fingerprint
        rebuild = options.rebuild or "if stale"
        engine = open_faiss(columns, source.positions, index, rebuild=rebuild, fingerprint=fingerprint)
    elif len(source.columns):
        engine = ExactEngine(source.columns, source.live_positions, device=device or options.device)
    return Search(source, engine, why)


def _note(source: MapSource, kind: str, options: EngineOptions) -> Path:
    # URLs may contain passwords, so only their hash is stored.
    address = hashlib.sha256(f"{options.uri}\0{options.collection}".encode()).hexdigest()
    return source.folder / INDEX / f"{kind}-{address[:12]}.json"
