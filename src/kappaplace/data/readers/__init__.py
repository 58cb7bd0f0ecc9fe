"""Readers of all layouts by name. A new one is a file with a ``READER`` beside this one, and a line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kappaplace.data.readers import (
    amstertime,
    at_names,
    csv_folder,
    gsv_cities,
    gt_json,
    msls,
    photos,
    pitts_mat,
    rosbag,
    video,
    vpr_bench,
)
from kappaplace.data.readers.layout import Reader
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling

_MODULES = (
    *(at_names, pitts_mat, msls, amstertime, gsv_cities, vpr_bench, gt_json),
    *(photos, csv_folder, video, rosbag),
)
READERS: dict[str, Reader] = {module.READER.name: module.READER for module in _MODULES}


def get_reader(layout: str) -> Reader:
    if layout not in READERS:
        raise KappaPlaceError(f"Layout {layout!r} is unknown; known are {', '.join(READERS)}.")
    return READERS[layout]


def read_layout(
    layout: str, folder: str | Path, *, ask: Callable[[str], bool] | None = None, **options: Any
) -> PlaceImages:
    """Read a folder of a named layout; option values may be text, as they come from a command line.

    A damaged or foreign file is told in one sentence, and a table without images is never returned.
    """
    reader = get_reader(layout)
    parameters = inspect.signature(reader.read).parameters
    converted: dict[str, Any] = {}
    for given, value in options.items():
        name = {"neighbourhood": "neighborhood"}.get(given, given)  # as it was spelled before
        if name not in reader.options:
            known = ", ".join(reader.options) or "none"
            raise KappaPlaceError(f"Layout {layout} has no option {name!r}; it has {known}.")
        kind = type(parameters[name].default)
        try:
            converted[name] = value if isinstance(value, kind) else kind(value)
        except ValueError:
            raise KappaPlaceError(f"Option {name}={value!r} must be a {kind.__name__}.") from None
    if ask is not None and "ask" in parameters:
        converted["ask"] = ask
    with telling(f"{folder} cannot be read as {layout}"):
        table = reader.read(folder, **converted)
    if not len(table):
        raise KappaPlaceError(f"{folder} holds no image of the layout {layout}: the table would be empty.")
    return table
