"""The folder into which a film or a bag is unpacked; it remembers of what, so no old image is reused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file

_STAMP = ".source.json"
_WRITTEN = re.compile(r"\d{7}\.(jpg|png)")  # names that the readers give to the images they write


def frames_folder(folder: Path, source: Path, topic: str = "") -> Path:
    """The folder, made ready for the images of ``source`` (and, of a bag, one of its topics).

    Images of the same source are kept, so that an interrupted import goes on. When the source has changed
    since (size or time of writing), they are removed before the new stamp is written: whenever this stops, no
    image stands under a stamp that is not its own. A folder with images of something else is refused.
    """
    make_folder(folder)
    whose = {"name": source.name, "topic": topic}
    now = whose | _state(source)
    before = _stamp(folder / _STAMP)
    if before == now:
        return folder
    images = [file for file in folder.iterdir() if _WRITTEN.fullmatch(file.name)]
    if images and {key: before.get(key) for key in whose} != whose:
        owner = " ".join(filter(None, (before.get("name"), before.get("topic")))) or "another source"
        raise KappaPlaceError(
            f"{folder} holds images of {owner}, not of {' '.join(filter(None, whose.values()))}: "
            "choose another folder with frames=…."
        )
    for file in images:
        file.unlink()
    replace_file(folder / _STAMP, lambda part: part.write_text(json.dumps(now), encoding="utf-8"))
    return folder


def _state(source: Path) -> dict[str, int]:
    """Bytes and time of writing; of a bag that is a folder, over all its files."""
    files = sorted(f for f in source.rglob("*") if f.is_file()) if source.is_dir() else [source]
    facts = [file.stat() for file in files]
    latest = max((f.st_mtime_ns for f in facts), default=0)
    return {"bytes": sum(f.st_size for f in facts), "mtime_ns": latest}


def _stamp(file: Path) -> dict[str, Any]:
    try:
        stamp = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}
