"""A map in a database: imported when it is first asked for there, and again when the map has changed.

A note in the map says what was imported where, so that a process that only asks need not compare all rows: it
looks at a few of them, for another copy of the map may have filled the same collection since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.maps.store import MapStore
from kappaplace.retrieval.engines import Engine
from kappaplace.retrieval.engines.choose import connected
from kappaplace.retrieval.engines.database import DatabaseEngine
from kappaplace.retrieval.engines.records import OTHERWISE, Records, References
from kappaplace.retrieval.engines.rows import Descriptors

PROBED = 16
"""Rows that are looked at before a collection filled earlier is believed."""


def open_database(
    store: MapStore, descriptors: Descriptors, kind: str, folder: Path, options: Mapping[str, Any]
) -> Engine:
    """The engine of a database that holds this map; ``folder`` is where the note lies.

    A collection that this map filled before is brought up to date whatever has changed in the map; one that
    holds anything else is refused, unless ``replace`` is among the options.
    """
    settings = {"uri": None, "collection": collection_name(store.manifest.name), **options}
    replace = bool(settings.pop("replace", False))
    engine = connected(kind, **settings)
    try:
        note, state = _note(folder, kind, settings), _state(store)
        known, rows = _read(note), store.with_removed()
        filled = known == state and len(engine) == len(rows)
        other = _differing(engine, rows) if filled else None
        if other is not None and not replace:
            raise KappaPlaceError(
                f"{engine.where} no longer holds what the map {store.folder} put there (row {other} is "
                f"other): another copy of the map, or one of the same name, has filled it since; {OTHERWISE}."
            )
        if not filled or other is not None:
            names = [_plain(name) for name in rows.names()]
            references = References(descriptors, rows.positions, rows.whole("kappa"), names)
            engine.add(references, replace=replace or known is not None)
            # A map on a read-only disk is compared again by every process, nothing worse.
            with suppress(KappaPlaceError):
                make_folder(folder)
                replace_file(note, lambda part: part.write_text(json.dumps(state)), sync=False)
    except BaseException:
        engine.close()
        raise
    return engine


def _differing(engine: DatabaseEngine, store: MapStore) -> int | None:
    """The first of some rows, spread over the map, that is not what the map wrote; None where all are."""
    chosen = np.unique(np.linspace(0, len(store) - 1, min(len(store), PROBED)).astype(np.int64))
    there: Records = cast(Any, engine).fetch(chosen)  # both databases have it
    kappa, positions = store.gather("kappa", chosen), store.positions[chosen]
    for at, row in enumerate(chosen.tolist()):
        pairs = ((there.kappa[at], kappa[at]), (there.positions[at], positions[at]))
        same = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
        if not same or there.names[at] != _plain(store.name(row)):
            return int(row)
    return None


def _plain(name: str) -> str:
    """A name as databases take it: bytes of a file name that are no text are spelt out."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def collection_name(name: str) -> str:
    """The name of a map as databases allow it."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:50]
    return plain if re.match(r"[A-Za-z_]", plain) else f"map_{plain}"[:50]


def _note(folder: Path, kind: str, settings: Mapping[str, Any]) -> Path:
    # Addresses may hold passwords: only a hash of them is written down.
    address = hashlib.sha256(f"{settings['uri']}\0{settings['collection']}".encode()).hexdigest()
    return folder / f"{kind}-{address[:12]}.json"


def _state(store: MapStore) -> dict[str, Any]:
    """What an import depends on: the bytes of all segments, those removed included."""
    files = [[f.sha256 for f in segment.files.values()] for segment in store.manifest.segments]
    if store.manifest.codebook is not None:
        files.append([store.manifest.codebook.record.sha256])
    return {
        "references": hashlib.sha256(json.dumps(files).encode()).hexdigest(),
        "rows": store.manifest.rows,
    }


def _read(note: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
