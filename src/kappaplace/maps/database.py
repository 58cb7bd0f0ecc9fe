"""A map in a database: imported when it is first asked for there, and again when the map has changed.

A note in the map says what was imported where, so that a process that only asks need not compare all rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.maps.store import MapStore
from kappaplace.retrieval.engines import Engine
from kappaplace.retrieval.engines.choose import connected
from kappaplace.retrieval.engines.records import References
from kappaplace.retrieval.engines.rows import Descriptors


def open_database(
    store: MapStore, descriptors: Descriptors, kind: str, folder: Path, options: Mapping[str, Any]
) -> Engine:
    """The engine of a database that holds this map; ``folder`` is where the note lies.

    A collection that this map filled before is brought up to date whatever has changed; one that holds
    anything else is refused, unless ``replace`` is among the options.
    """
    settings = {"uri": None, "collection": collection_name(store.manifest.name), **options}
    replace = bool(settings.pop("replace", False))
    engine = connected(kind, **settings)
    try:
        note, state = _note(folder, kind, settings), _state(store)
        known = _read(note)
        if known != state or len(engine) != store.manifest.rows:
            rows = store.with_removed()
            references = References(descriptors, rows.positions, rows.whole("kappa"), list(rows.names()))
            engine.add(references, replace=replace or known is not None)
            # A map on a read-only disk is compared again by every process, nothing worse.
            with suppress(KappaPlaceError):
                make_folder(folder)
                replace_file(note, lambda part: part.write_text(json.dumps(state)), sync=False)
    except BaseException:
        engine.close()
        raise
    return engine


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
