"""Several tables as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import COLUMNS, PlaceImages
from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError


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
    if first.neighbourhood.kind == "frames" or any(t.frame_number is not None for t in tables):
        apart = int(first.neighbourhood.value) + 1 if first.neighbourhood.kind == "frames" else 1
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
        neighbourhood=first.neighbourhood,
        given_positives=_stacked([t.given_positives for t in tables if t.given_positives is not None]),
    )


def _agree(tables: Sequence[PlaceImages]) -> None:
    facts: dict[str, set[Any]] = {
        "frame": {t.frame for t in tables},
        "radius": {t.radius for t in tables},
        "neighbourhood": {str(t.neighbourhood) for t in tables},
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
