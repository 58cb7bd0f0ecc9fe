"""Several tables as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.columns import COLUMNS, Column
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError


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
            raise KappaPlaceError(
                f"Tables to join must have the same {fact}, got {', '.join(sorted(values))}."
            )


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
