"""Search engines: their common interface, options, and the choice of an engine."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.base import ExactEngine
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.database import DatabaseEngine, References
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
REPLACED = {"hnsw": "ivf-pq", "compact": "ivf-pq", "faiss-flat": "exact"}
"""Engines that are no longer offered, and their replacements."""


@runtime_checkable
class Engine(Protocol):
    """Top-k search over one set of references; queries and references have unit length."""

    name: str
    exact: bool
    """Whether the matches are the same as in a full comparison, up to rounding."""
    why: str
    """Reason for the choice of this engine, in one sentence."""

    def __len__(self) -> int: ...

    def search(self, queries: NDArray[np.float32], k: int, *, area: Circle | None = None) -> Matches:
        """Return the k most similar references of each query.

        Args:
            queries: Unit descriptors N×d.
            k: Number of matches per query; with ``area``, fewer if the circle contains fewer references.
            area: Search only this circle: x, y and radius in metres.

        Returns:
            Rows and cosines, best first, ties by row.
        """
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


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
        folder: Where an index is stored. Default: in memory.
        kappa: κ of each reference, stored in a database.
        names: Name of each reference, stored in a database.
        options: Further options of the engine.

    Returns:
        The engine; its ``why`` states how it was chosen.

    Raises:
        KappaPlaceError: If the engine is unknown or not installed, if a database cannot be reached or
            contains other references, or if an index was built from other descriptors.
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
        references: Number of references. None: unknown.
        folder: Folder for an index. None: there is none.

    Returns:
        Name of the engine and the reason for the choice.
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
            f"exact: faiss is not installed; an index of {references:,} references would be faster "
            '(extra "faiss")'
        )
    if folder is None:
        return "exact", f"exact: there is no folder for an index of {references:,} references"
    return "ivf-pq", (
        f"ivf-pq: an index of {references:,} references proposes matches, which are compared exactly"
    )


def connect(kind: str, options: EngineOptions) -> DatabaseEngine:
    """Connect to a database; the collection may be empty."""
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
            raise KappaPlaceError(f"{engine.location} contains no references. Import a map first.")
    except BaseException:
        engine.close()
        raise
    return engine
