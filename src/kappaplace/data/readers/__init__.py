"""Readers of dataset layouts by name. To add one, add a file with a ``READER`` and its entry here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from kappaplace.checks import choice
from kappaplace.data.readers import at_names, csv_folder, msls, photos, published, query_ref, rosbag, video
from kappaplace.data.readers.layout import Reader
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling

_READERS = (
    *(at_names.READER, published.PITTSBURGH, msls.READER, published.AMSTERTIME, published.GSV_CITIES),
    *(query_ref.VPR_BENCH, query_ref.GT_JSON, photos.READER, csv_folder.READER, video.READER, rosbag.READER),
)
READERS: dict[str, Reader] = {reader.name: reader for reader in _READERS}


def read_layout(
    layout: str, folder: str | Path, *, ask: Callable[[str], bool] | None = None, **options: str | float
) -> PlaceImages:
    """Read a dataset in a named layout.

    Args:
        layout: Name of the layout; see `READERS`.
        folder: Folder (or file) of the dataset.
        ask: Function that confirms a guess, such as the columns of a CSV file. Default: accept it.
        **options: Options of the layout; values may be text, as on the command line.

    Returns:
        A table with at least one image.

    Raises:
        KappaPlaceError: If the layout or an option is unknown, or the dataset cannot be read.
    """
    choice(layout, READERS, "layout")
    reader = READERS[layout]
    parameters = inspect.signature(reader.read).parameters
    converted: dict[str, str | float | Callable[[str], bool]] = {}
    for key, value in options.items():
        name = {"neighbourhood": "neighborhood"}.get(key, key)  # its spelling in earlier versions
        if name not in reader.options:
            names = ", ".join(reader.options) or "none"
            raise KappaPlaceError(f"Layout {layout} has no option {name!r}. Its options are: {names}.")
        kind = type(parameters[name].default)
        try:
            converted[name] = value if isinstance(value, kind) else kind(value)
        except ValueError:
            raise KappaPlaceError(f"Option {name} must be a {kind.__name__}, got {value!r}.") from None
    if ask is not None and "ask" in parameters:
        converted["ask"] = ask
    with telling(f"{folder} cannot be read as {layout}"):
        table = reader.read(folder, **converted)
    if not len(table):
        raise KappaPlaceError(f"{folder} contains no images in the layout {layout}. Check the folder.")
    return table
