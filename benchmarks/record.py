"""Measured results as dated rows of a CSV file, each with the command that made it."""

from __future__ import annotations

import csv
import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path


def append_row(file: Path, values: dict[str, float | int | str]) -> None:
    """Add one row; the file must have been written with the same columns, so that rows stay comparable."""
    row = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.machine()} with {len(os.sched_getaffinity(0))} cores",
        **{name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    present = file.is_file() and file.stat().st_size > 0
    if present:
        with file.open(encoding="utf-8", newline="") as stream:
            header = next(csv.reader(stream))
        if header != list(row):
            sys.exit(f"{file} has the columns {', '.join(header)}: give another file.")
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if not present:
            writer.writeheader()
        writer.writerow(row)


def write_rows(file: Path, rows: list[dict[str, float | int | str]]) -> None:
    """A whole table at once, instead of what was there; results/README.md names its command."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
