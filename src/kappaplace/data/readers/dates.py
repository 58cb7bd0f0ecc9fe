"""Times in the many forms that cameras, robots and spreadsheets write, as seconds since 1970."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache

_COMPACT = re.compile(r"(19|20)\d{2}(\d{2}){0,2}(_(\d{2}){1,3})?")
_UNITS = (1e9, 1e6, 1e3)  # nano-, micro- and milliseconds are told by their size (after 1973)


@lru_cache(maxsize=4096)  # file names repeat the same few months
def unix_time(text: str) -> float:
    """Seconds since 1970 of one date or number that stands alone; NaN if there is none.

    Dates without a zone are taken as UTC. Known forms: ISO 8601, EXIF's ``2020:05:31 12:00:00``,
    ``20200531_120000`` and its beginnings (``202005``, ``2020``), seconds, milliseconds or nanoseconds since
    1970. A column of cells says more than one of them: see :func:`unix_times`.

    >>> unix_time("1970-01-02"), unix_time("197001"), unix_time("86400")
    (86400.0, 0.0, 86400.0)
    """
    text = text.strip()
    if _COMPACT.fullmatch(text):
        return _compact(text)
    try:
        value = float(text)
    except ValueError:
        return _iso(text)
    return value / _unit(abs(value))


def unix_times(cells: Sequence[str]) -> list[float]:
    """Seconds since 1970 of a column; NaN where a cell says nothing.

    What the numbers are is decided once for the column: digits are dates (``202005``, ``20200531_1200``) only
    where every cell is one, and all numbers have the unit of the largest. Four digits alone are never a
    year here: seconds since the start of a recording pass through 1900 to 2099, too.

    >>> unix_times(["1898", "1999", "2000"]), unix_times(["197001", "", "197002"])
    ([1898.0, 1999.0, 2000.0], [0.0, nan, 2678400.0])
    """
    texts = [cell.strip() for cell in cells]
    told = [text for text in texts if text]
    if all(len(text) > 4 and _COMPACT.fullmatch(text) and math.isfinite(_compact(text)) for text in told):
        return [_compact(text) if text else float("nan") for text in texts]
    values = [_float(text) for text in texts]
    unit = _unit(max((abs(value) for value in values if math.isfinite(value)), default=0.0))
    return [v / unit if math.isfinite(v) else _iso(text) for text, v in zip(texts, values, strict=True)]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _unit(largest: float) -> float:
    return next((unit for unit in _UNITS if largest > 1e8 * unit), 1.0)


def _compact(text: str) -> float:
    digits = text.replace("_", "")
    padded = digits + "00000101000000"[len(digits) :]
    try:
        return datetime.strptime(padded, "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return float("nan")


def _iso(text: str) -> float:
    exif = re.fullmatch(r"(\d{4}):(\d{2}):(\d{2})([ T].*)?", text)
    if exif:
        text = "-".join(exif.group(1, 2, 3)) + (exif.group(4) or "")
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
