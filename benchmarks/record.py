"""Measured results as dated rows of CSV files, and kept ratios that fresh ones are compared with."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from kappaplace.cli.bench import Row, Values, dated, save_rows, show
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder

__all__ = ["append_row", "compare_ratios", "read_ratios", "report", "save_rows", "worse"]
TOLERANCE, EXACT_TOLERANCE = 0.35, 0.002
"""Fraction by which a ratio may be worse than before: of times, which other work changes, and of counts."""
TIMED = ("ms", "s", "images/s")
Key = tuple[str, str, str]


def append_row(file: Path, values: Values) -> None:
    """Add one row to a file with the same columns, so that rows stay comparable."""
    row = dated(values)
    make_folder(file.parent)
    present = file.is_file() and file.stat().st_size > 0
    if present:
        with file.open(encoding="utf-8", newline="") as stream:
            header = next(csv.reader(stream))
        if header != list(row):
            raise KappaPlaceError(f"{file} has the columns {', '.join(header)}. Write to another file.")
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if not present:
            writer.writeheader()
        writer.writerow(row)


def report(rows: Sequence[Row], file: Path | None) -> None:
    """Print rows, and add them to a file."""
    show(rows)
    for row in rows if file else []:
        append_row(file, row.record())


def read_ratios(file: Path) -> dict[Key, float]:
    """Return the ratios of an earlier run."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            ratios = {_key(row["part"], row["where"], row["what"]): float(row["ratio"]) for row in rows}
    except OSError:
        raise KappaPlaceError(
            f"No ratios to compare with at {file}. `python benchmarks/ratios.py` writes them."
        ) from None
    except (KeyError, ValueError, TypeError, csv.Error):
        ratios = {}
    if not ratios:
        raise KappaPlaceError(
            f"{file} is not a table of ratios: expected the columns part, where, what and ratio."
        )
    return ratios


def worse(row: Row, before: float) -> bool:
    """Return whether a ratio is worse than before by more than chance explains."""
    timed = row.unit in TIMED
    tolerance = TOLERANCE if timed else EXACT_TOLERANCE
    if row.better == "higher":
        return row.ratio < before * (1 - tolerance)
    return row.ratio > before * (1 + tolerance) + (0 if timed else EXACT_TOLERANCE)


def compare_ratios(rows: Sequence[Row], before: dict[Key, float]) -> tuple[int, list[str]]:
    """Return how many ratios were measured before, too, and a line for each that has become worse."""
    shared = [(row, _key(row.part, row.where, row.what)) for row in rows]
    shared = [(row, key) for row, key in shared if key in before]
    lines = [
        f"Worse: {row.part}: {row.where}, {row.what}: {before[key]:.4g} before, {row.ratio:.4g} now."
        for row, key in shared
        if worse(row, before[key])
    ]
    return len(shared), lines


def _key(part: str, where: str, what: str) -> Key:
    """Identify a measurement; the bottleneck may change without anything becoming worse."""
    return part, where, what.partition(";")[0]
