"""What a table's file says beyond its columns: the images' folder, frame, radius, neighbourhood …"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError

VERSION = 1  # raised when an older kappaplace would misread what a newer one writes
# What must be there, and as what.
_KINDS: dict[str, Any] = dict.fromkeys(("root", "frame", "name", "protocol"), str)
_KINDS |= {"radius": (int, float), "neighbourhood": dict}


def metadata_of(table: PlaceImages, path: Path) -> dict[str, Any]:
    """Images below the table's own folder are found relative to it, so that both can be moved together."""
    root, folder = os.path.abspath(table.root), os.path.abspath(path.parent)
    inside = root == folder or root.startswith(folder.rstrip(os.sep) + os.sep)
    return {
        "version": VERSION,
        "root": Path(os.path.relpath(root, folder) if inside else root).as_posix(),
        "frame": table.frame,
        "name": table.name,
        "protocol": table.protocol,
        "radius": table.radius,
        "neighbourhood": table.neighbourhood.to_json(),
        "hash": table.content_hash,
    }


def checked_metadata(path: Path, text: str) -> dict[str, Any]:
    """The metadata as it was written: of a known version, complete, and of the right kinds."""
    try:
        metadata = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise KappaPlaceError(f"{path}: the JSON of its metadata is damaged ({error}).") from None
    if not isinstance(metadata, dict):
        raise KappaPlaceError(f"{path}: its metadata must be a JSON object, not {text.strip()[:40]!r}.")
    for key in ("version", *_KINDS):
        if key not in metadata:
            raise KappaPlaceError(f"{path} has incomplete metadata ({key} is missing): import it again.")
    version = metadata["version"]
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise KappaPlaceError(
            f"{path} is a table of version {version!r} but this kappaplace knows 1 to {VERSION}: "
            "upgrade kappaplace, or import the table again."
        )
    for key, kinds in _KINDS.items():
        if not isinstance(metadata[key], kinds) or isinstance(metadata[key], bool):
            raise KappaPlaceError(f"{path}: {key} in its metadata cannot be {metadata[key]!r}.")
    return metadata
