"""Which engine searches: the one place that decides between exact search, an index and a database."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.database import DatabaseEngine, MapSource, References, collection_name, import_map
from kappaplace.retrieval.engine import Engine, ExactEngine, checked_circle, circles, no_matches
from kappaplace.retrieval.faiss import FEWEST, Rebuild, open_faiss
from kappaplace.retrieval.milvus import MilvusEngine
from kappaplace.retrieval.postgres import PostgresEngine
from kappaplace.types import Matches

EngineKind = Literal["auto", "exact", "ivf-pq", "milvus", "postgres"]
DATABASES: dict[str, Callable[..., DatabaseEngine]] = {"milvus": MilvusEngine, "postgres": PostgresEngine}
EXACT_UP_TO = 200_000  # one query takes some tens of milliseconds: not worth an index
INDEX = "index"
"""Where an engine that keeps an index keeps it, inside the map."""
REPLACED = {"hnsw": "ivf-pq", "compact": "ivf-pq", "faiss-flat": "exact"}
"""Engines that are no longer offered, and those that search instead."""


def open_engine(
    descriptors: Descriptors | Columns | None,
    positions: NDArray[np.floating] | None = None,
    kind: str = "auto",
    folder: str | Path | None = None,
    *,
    uri: str | None = None,
    collection: str = "kappaplace",
    kappa: NDArray[np.floating] | None = None,
    names: Sequence[str] | None = None,
    replace: bool = False,
    rebuild: Rebuild = False,
    fingerprint: str | None = None,
    **options: Any,
) -> Engine:
    """An engine over these references; ``why`` says in one sentence how it was chosen.

    ``folder`` is where faiss keeps its index; ``rebuild`` and ``fingerprint`` as in `open_faiss`. ``uri``,
    ``collection`` (a table in PostgreSQL), ``kappa`` and ``names`` are for databases, which import what they
    lack and, with ``descriptors`` None, are searched as they stand; ``replace`` lets them overwrite other
    references. Further options go to the engine.
    """
    columns = None if descriptors is None else as_columns(descriptors)
    kind, why = choose(kind, None if columns is None else len(columns), folder)
    engine: Engine
    if kind in DATABASES:
        references = None if columns is None else References(columns, positions, kappa, names)
        engine = _open_database(connected(kind, uri, collection, **options), references, replace)
    elif columns is None:
        raise KappaPlaceError(
            f"The {kind} engine needs descriptors; only milvus and postgres hold their own."
        )
    elif kind == "exact":
        engine = ExactEngine(columns, positions, **options)
    else:
        engine = open_faiss(columns, positions, folder, rebuild=rebuild, fingerprint=fingerprint, **options)
    engine.why = why
    return engine


def choose(kind: str, references: int | None, folder: str | Path | None) -> tuple[str, str]:
    """The engine for so many references (None: not known here), and why it was taken.

    The name of an engine that is no longer offered gives the one that replaces it, with a warning.
    """
    if kind in REPLACED:
        few = references is not None and references < FEWEST
        now = "exact" if few else REPLACED[kind]
        why = f"{now}: the engine {kind} is no longer offered, {now} replaces it"
        warnings.warn(f"The engine {kind!r} is no longer offered; {now!r} is used instead.", stacklevel=3)
        return now, why
    if kind not in get_args(EngineKind):
        raise KappaPlaceError(
            f"There is no search engine {kind!r}; choose from {', '.join(get_args(EngineKind))}."
        )
    if kind != "auto" or references is None:
        return kind, f"{kind} was asked for"
    if references <= EXACT_UP_TO:
        return "exact", f"exact: {references:,} references are compared in no time, nothing has to be built"
    if importlib.util.find_spec("faiss") is None:
        return "exact", (
            f"exact: faiss is not installed; with {references:,} references an index would be faster "
            "(pip install 'kappaplace[faiss]')"
        )
    if folder is None:
        return "exact", f"exact: there is no folder to keep an index of {references:,} references in"
    return "ivf-pq", (
        f"ivf-pq: {references:,} references are many; codes in memory propose, descriptors on disk decide"
    )


def connected(kind: str, uri: str | None, collection: str, **options: Any) -> DatabaseEngine:
    """A database as it stands, which may hold nothing yet."""
    if not uri:
        example = {
            "milvus": "http://host:19530 or a file ending in .db",
            "postgres": "postgresql://user@host/db",
        }
        raise KappaPlaceError(f"The {kind} engine needs an address: {example[kind]}.")
    return DATABASES[kind](uri, collection, **options)


def _open_database(engine: DatabaseEngine, references: References | None, replace: bool) -> Engine:
    try:
        if references is not None:
            engine.add(references, replace=replace)
        if len(engine) == 0:
            raise KappaPlaceError(f"{engine.where} holds no references yet: import a map first.")
    except BaseException:
        engine.close()
        raise
    return engine


class Search:
    """The best references of a map, whoever finds them: counted without those removed, as the map does.

    An engine that holds all rows is asked for more, until enough of them are still in the map.
    """

    def __init__(self, source: MapSource, engine: Engine | None, why: str) -> None:
        self.engine, self.why, self.count = engine, why, len(source.columns)
        if isinstance(engine, ExactEngine):  # it counts as the map does
            self._live, self._nearby = None, engine.nearby
        else:
            self._live, self._nearby = source.columns.live, circles(source.live_positions, self.count)

    def search(self, queries: NDArray[np.float32], k: int, near: Circle | None = None) -> Matches:
        """The k best references of each query, fewer where there are fewer, best first, ties by number."""
        k = min(k, self.count if near is None else len(self.within(near)))
        if k == 0 or self.engine is None:
            return no_matches(len(queries))
        if self._live is None:
            return self.engine.search(queries, k, near=near)
        asked = k
        while True:
            asked = min(2 * asked + 16, len(self.engine))
            found = self.engine.search(queries, asked, near=near)
            at = np.minimum(np.searchsorted(self._live, found.indices), len(self._live) - 1)
            kept = self._live[at] == found.indices
            if found.indices.shape[1] < asked or asked == len(self.engine) or kept.sum(axis=1).min() >= k:
                return _first_kept(Matches(at, found.similarities), kept, k)

    def within(self, near: Circle) -> NDArray[np.int64]:
        """References inside a circle, its rim included, ascending; those without a position are in none."""
        return self._nearby.within(checked_circle(near))

    def close(self) -> None:
        """Let go of what the engine holds; the connection to a database ends."""
        if self.engine is not None:
            self.engine.close()


def _first_kept(found: Matches, kept: NDArray[np.bool_], k: int) -> Matches:
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    return Matches(
        np.take_along_axis(found.indices, order, 1), np.take_along_axis(found.similarities, order, 1)
    )


def open_search(
    source: MapSource,
    kind: str = "auto",
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Search:
    """The engine of a map: exact up to some hundred thousand references, else what fits, or what is asked."""
    settings = dict(options or {})
    if kind not in DATABASES and {"uri", "collection"} & set(settings):
        raise KappaPlaceError(
            f"An address (uri) or a collection belongs to a database, not to the engine {kind!r}; ask for "
            "milvus or postgres."
        )
    index: Path | None = source.folder / INDEX
    if not (source.folder / INDEX).is_dir() and not os.access(source.folder, os.W_OK):
        index = None  # a read-only map without an index: minutes of building must not end in an error
    kind, why = choose(kind, len(source.columns), index)
    engine: Engine | None = None
    if kind in DATABASES:
        settings = {"uri": None, "collection": collection_name(source.name), **settings}
        replace = bool(settings.pop("replace", False))
        engine = import_map(connected(kind, **settings), source, _note(source, kind, settings), replace)
    elif kind == "ivf-pq":
        # The index is the map's own: when the map has changed it is rebuilt without being asked.
        settings = {"fingerprint": source.fingerprint, "rebuild": "if stale", **settings}
        engine = open_faiss(source.columns.with_removed(), source.positions, index, **settings)
    elif len(source.columns):
        engine = ExactEngine(source.columns, source.live_positions, device=device or "cpu")
    return Search(source, engine, why)


def _note(source: MapSource, kind: str, settings: Mapping[str, Any]) -> Path:
    # Addresses may hold passwords: only a hash of them is written down.
    address = hashlib.sha256(f"{settings['uri']}\0{settings['collection']}".encode()).hexdigest()
    return source.folder / INDEX / f"{kind}-{address[:12]}.json"
