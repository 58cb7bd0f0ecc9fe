"""What `map monitor` found stands in a small file beside the map, and every answer of the map repeats it.

The monitor only reads the map, so its file lies outside of it: ``town.map`` has ``town.map.monitor.json``.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path


def monitor_file(folder: str | Path) -> Path:
    """Where the monitor of a map keeps what it has seen, unless told otherwise."""
    return Path(os.path.abspath(folder) + ".monitor.json")


def standing_note(folder: str | Path, calibration: str) -> str:
    """The monitor's warning about this calibration, empty where there is none or nobody watches."""
    file = monitor_file(folder)
    try:
        found = os.stat(file)
    except OSError:
        return ""
    note, judged = _stored(str(file), found.st_mtime_ns, found.st_size)
    return note if judged == calibration else ""


@lru_cache(maxsize=64)
def _stored(file: str, changed: int, size: int) -> tuple[str, str]:
    """Note and calibration; read anew only when the file has changed, for every query asks."""
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
        return str(values["note"]), str(values["calibration"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""  # a broken file is the monitor's to complain about; answers go on
