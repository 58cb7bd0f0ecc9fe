"""One function that opens the engine that fits, and says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.engines.base import Engine
from kappaplace.retrieval.engines.database import DatabaseEngine
from kappaplace.retrieval.engines.exact import ExactEngine
from kappaplace.retrieval.engines.faiss_engine import Rebuild, open_faiss
from kappaplace.retrieval.engines.milvus import MilvusEngine
from kappaplace.retrieval.engines.postgres import PostgresEngine
from kappaplace.retrieval.engines.records import References
from kappaplace.retrieval.engines.rows import Descriptors, Rows

EngineKind = Literal["auto", "exact", "faiss-flat", "hnsw", "ivf-pq", "compact", "milvus", "postgres"]
EXACT_UP_TO = 200_000  # one query takes some tens of milliseconds: not worth an index


def open_engine(
    descriptors: Descriptors | Rows | None,
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
    if kind not in get_args(EngineKind):
        raise KappaPlaceError(
            f"There is no search engine {kind!r}; choose from {', '.join(get_args(EngineKind))}."
        )
    if kind in ("milvus", "postgres"):
        references = None if descriptors is None else References(descriptors, positions, kappa, names)
        return _open_database(connected(kind, uri, collection, **options), references, replace)
    if descriptors is None:
        raise KappaPlaceError(
            f"The {kind} engine needs descriptors; only milvus and postgres hold their own."
        )
    rows = descriptors if isinstance(descriptors, Rows) else Rows(descriptors)
    why = f"{kind} was asked for"
    if kind == "auto":
        kind, why = _fitting(len(rows), folder)
    engine: Engine
    if kind == "exact":
        engine = ExactEngine(rows, positions, **options)
    else:
        kept: dict[str, Any] = {"rebuild": rebuild, "fingerprint": fingerprint}
        engine = open_faiss(kind, rows, positions, folder, **kept, **options)  # type: ignore[arg-type]
    engine.why = why
    return engine


def _fitting(references: int, folder: str | Path | None) -> tuple[str, str]:
    if references <= EXACT_UP_TO:
        return "exact", f"exact: {references:,} references are compared in no time, nothing has to be built"
    if importlib.util.find_spec("faiss") is None:
        return "exact", (
            f"exact: faiss is not installed; with {references:,} references an index would be faster "
            "(pip install 'kappaplace[faiss]')"
        )
    if folder is None:
        return "exact", f"exact: there is no folder to keep an index of {references:,} references in"
    # At a million its recall was that of hnsw or better, in a seventh of the memory, built sooner.
    return "ivf-pq", (
        f"ivf-pq: {references:,} references are many; codes in memory propose, descriptors on disk decide"
    )


def connected(kind: str, uri: str | None, collection: str, **options: Any) -> DatabaseEngine:
    """A database as it stands, which may hold nothing yet."""
    if not uri:
        raise KappaPlaceError(
            f"The {kind} engine needs an address: "
            + (
                "http://host:19530 or a file ending in .db."
                if kind == "milvus"
                else "postgresql://user@host/db."
            )
        )
    engine = {"milvus": MilvusEngine, "postgres": PostgresEngine}[kind](uri, collection, **options)
    engine.why = f"{kind} was asked for"
    return engine


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
