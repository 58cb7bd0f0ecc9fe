"""What a manifest may say: each value of its type, and no name that leads out of the map's folder.

A manifest may come from elsewhere, or from a disk that failed: what is wrong is found when it is read, not by
whoever first computes with it.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, get_args, get_origin, get_type_hints

LARGEST = 2**53
"""What a whole number can be and still be exact everywhere."""


def check_values(record: Any) -> None:
    """Raise a ValueError that names the first value which is not of its declared type."""
    hints = get_type_hints(type(record))
    for part in fields(record):
        value = getattr(record, part.name)
        if isinstance(value, tuple) or is_dataclass(value):
            continue  # checked when it was made itself
        kind = hints[part.name]
        if value is None and type(None) in get_args(kind):
            continue
        if not _fits(value, get_origin(kind) or kind):
            raise ValueError(f"{part.name} is {value!r}"[:200])


def _fits(value: Any, kind: Any) -> bool:
    if kind is str:
        return isinstance(value, str) and "\0" not in value
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, dict)  # all that is left: settings by name


def check_inside(*names: str) -> None:
    """Raise a ValueError for a name that does not stay below the folder it is joined to."""
    for name in names:
        paths = PurePosixPath(name), PureWindowsPath(name)
        leads_out = any(path.is_absolute() or path.drive or ".." in path.parts for path in paths)
        if leads_out or not paths[0].name or "\0" in name:
            raise ValueError(f"{name!r} is not a name of a file in the map"[:200])
