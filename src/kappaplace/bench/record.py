"""Measured results as dated rows of a CSV file, each with the command that made it."""

from __future__ import annotations

import csv
import os
import platform
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder

Values = dict[str, float | int | str]


def machine() -> str:
    """What is told of the machine: nothing by which it could be found."""
    return f"{platform.machine()} with {cores()} cores"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def dated(values: Values) -> Values:
    """The row with date, command and machine in front, numbers to four digits."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":  # python -m kappaplace
        command = [program.parent.name, *sys.argv[1:]]
    elif program.suffix == ".py":
        command = ["python", *sys.argv]
    else:
        command = [program.name, *sys.argv[1:]]
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(command),
        "machine": machine(),
        **{name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()},
    }


def append_row(file: Path, values: Values) -> None:
    """Add one row; the file must have been written with the same columns, so that rows stay comparable."""
    row = dated(values)
    make_folder(file.parent)
    present = file.is_file() and file.stat().st_size > 0
    if present:
        with file.open(encoding="utf-8", newline="") as stream:
            header = next(csv.reader(stream))
        if header != list(row):
            raise KappaPlaceError(f"{file} has the columns {', '.join(header)}: give another file.")
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if not present:
            writer.writeheader()
        writer.writerow(row)


def write_rows(file: Path, rows: Sequence[Values]) -> None:
    """A whole table at once, instead of what was there; results/README.md names its command."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    make_folder(file.parent)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
