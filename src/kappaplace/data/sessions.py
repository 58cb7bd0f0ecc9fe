"""Which images were taken together: the unit that must never be torn apart by a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.place_images import PlaceImages
from kappaplace.errors import KappaPlaceError

SESSION_GAP = 600.0  # seconds without an image after which a new session begins
Source = Literal["auto", "condition", "time", "folder"]


@dataclass(frozen=True, eq=False)
class Sessions:
    """Session number of every row, and what the sessions were told by."""

    number: NDArray[np.int64]
    source: str

    def __len__(self) -> int:
        return int(self.number.max(initial=-1)) + 1


def find_sessions(table: PlaceImages, source: Source = "auto", gap: float = SESSION_GAP) -> Sessions:
    """Sessions by condition, gaps in time or folder; ``auto`` takes condition, else time.

    Folders are only taken when asked for: they often hold one drive in pieces (a folder for every hour, or
    for every thousand files), and a split between the pieces would leak.
    """
    for kind in ("condition", "time") if source == "auto" else (source,):
        sessions = Sessions(_number(table, kind, gap), kind)
        if len(sessions) > 1 or source != "auto":
            return sessions
    raise KappaPlaceError(
        "The table shows a single session: it has one condition and no gap in time longer than "
        f"{gap:g} s; split it by time or by area, or, if every folder is a drive of its own, "
        "with --sessions folder."
    )


def leak_rate(table: PlaceImages, calibration: NDArray[np.int64], test: NDArray[np.int64]) -> float:
    """Share of the test rows within the radius of a calibration row; NaN where no positions tell.

    Two drives through one street meet as well: it is a warning sign where sessions are a guess.
    """
    from scipy.spatial import cKDTree

    near, asked = (table.positions[rows[table.posed[rows]]] for rows in (calibration, test))
    if not len(near) or not len(asked):
        return float("nan")
    distance, _ = cKDTree(near).query(asked, distance_upper_bound=table.radius * (1 + 1e-9))
    return float(np.mean(distance <= table.radius))


def _number(table: PlaceImages, kind: str, gap: float) -> NDArray[np.int64]:
    if kind == "condition":
        return np.unique(table.condition, return_inverse=True)[1]
    if kind == "folder":
        return np.unique(_folders(table.paths), return_inverse=True)[1]
    if kind != "time":
        raise KappaPlaceError(f"Sessions by {kind!r} are unknown; choose auto, condition, time or folder.")
    known = np.isfinite(table.timestamp)
    number = np.zeros(len(table), dtype=np.int64)
    order = np.flatnonzero(known)[np.argsort(table.timestamp[known], kind="stable")]
    starts = np.diff(table.timestamp[order], prepend=table.timestamp[order[:1]]) > gap
    number[order] = np.cumsum(starts)
    if not known.all() and known.any():  # images without a time form a session of their own
        number[~known] = number[order[-1]] + 1
    return number


def _folders(paths: NDArray[Any]) -> NDArray[Any]:
    return np.array([path.rpartition("/")[0] for path in paths.tolist()], dtype=np.dtypes.StringDType())
