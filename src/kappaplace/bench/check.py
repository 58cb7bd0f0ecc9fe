"""Fresh ratios against kept ones: what has become worse by more than chance explains."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kappaplace.bench.rows import Row, heading
from kappaplace.errors import KappaPlaceError

TOLERANCE = 0.35
"""Share by which a ratio of times may be worse: what other work on the machine does to it."""
EXACT_TOLERANCE = 0.002
"""The same for what is counted, not timed: parameters, bytes, cosines."""
TIMED = ("ms", "s", "images/s")
Kept = dict[tuple[str, str, str], float]
"""Ratio of an earlier run by part, where and what."""


class Change(NamedTuple):
    """A ratio that both runs have."""

    what: str
    before: float
    now: float
    tolerance: float
    worse: bool


def compare(rows: Sequence[Row], before: Kept) -> list[Change]:
    """Every fresh ratio that was kept, too."""
    changes = []
    for row in rows:
        key = (row.part, row.where, _stage(row.what))
        if key not in before:
            continue
        tolerance = TOLERANCE if row.unit in TIMED else EXACT_TOLERANCE
        old = before[key]
        if row.better == "higher":
            worse = row.ratio < old * (1 - tolerance)
        else:
            worse = row.ratio > old * (1 + tolerance) + (0 if row.unit in TIMED else EXACT_TOLERANCE)
        changes.append(Change(f"{heading(row)}, {row.what}", old, row.ratio, tolerance, worse))
    return changes


def read_kept(kept: Path) -> Kept:
    """The ratios of an earlier run; a file without any is refused: nothing could be worse than it."""
    try:
        with kept.open(encoding="utf-8", newline="") as stream:
            found = {
                (row["part"], row["where"], _stage(row["what"])): float(row["ratio"])
                for row in csv.DictReader(stream)
            }
        if not found:
            raise ValueError("no rows")
        return found
    except OSError:
        raise KappaPlaceError(
            f"No ratios to compare with at {kept}; `kappaplace bench --quick --out FOLDER` writes them."
        ) from None
    except (KeyError, ValueError, TypeError, csv.Error):
        raise KappaPlaceError(
            f"{kept} is no table of `kappaplace bench`; the columns part, where, what and ratio are needed."
        ) from None


def _stage(what: str) -> str:
    """Without the bottleneck, which may change without anything becoming worse."""
    return what.partition(";")[0]
