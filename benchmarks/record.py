"""Tools for the benchmark scripts: options, dated rows of CSV files, and comparison with earlier ratios."""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from kappaplace.cli.bench import Row, Values, dated, save_rows, show
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder
from kappaplace.types import Embeddings

__all__ = [
    "DEVICE",
    "Option",
    "append_row",
    "compare_ratios",
    "log_row",
    "parse_options",
    "read_ratios",
    "report",
    "save_rows",
    "stored_embeddings",
    "timed",
    "worse",
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE, EXACT_TOLERANCE = 0.35, 0.002
"""Fraction by which a ratio of times (which depend on other load) or of counts may be worse than before."""
TIMED = ("ms", "s", "images/s")
Key = tuple[str, str, str]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Option:
    """An option of a script."""

    default: object
    """Its default: a list for several values, False for a flag, a type (``Path``) for an empty default."""
    help: str | None = None
    choices: Collection[str] | None = None
    required: bool = False
    kind: type = str
    """Type of the values of an empty list."""


def parse_options(description: str | None, **options: object) -> argparse.Namespace:
    """Parse the command line of a script.

    Args:
        description: Text of ``--help``.
        options: Defaults by name, or an `Option`; ``batch_size`` becomes ``--batch-size``.

    Returns:
        The values by name.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in options.items():
        option = value if isinstance(value, Option) else Option(value)
        flag, default, extra = f"--{name.replace('_', '-')}", option.default, {"help": option.help}
        if default is False:
            parser.add_argument(flag, action="store_true", **extra)
            continue
        if isinstance(default, list | tuple):
            extra |= {"nargs": "*", "type": type(default[0]) if default else option.kind}
        elif isinstance(default, type):
            extra["type"], default = default, None
        else:
            extra["type"] = type(default)
        required = {"required": True} if option.required else {"default": default}
        parser.add_argument(flag, choices=option.choices, **extra, **required)
    return parser.parse_args()


def timed(task: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a task, and its seconds."""
    start = time.perf_counter()
    result = task()
    return result, time.perf_counter() - start


def stored_embeddings(folder: Path | None, name: str, embed: Callable[[], Embeddings]) -> Embeddings:
    """Return embeddings with patch maps from a folder; compute and save them if they are missing."""
    if folder is None:
        return embed()
    file, maps = folder / f"{name}.npz", folder / f"{name}.patches.npy"
    if not (file.exists() and maps.exists()):
        make_folder(folder)
        result = embed()
        np.save(maps, result.patches)
        np.savez(file, descriptor=result.descriptor, kappa=result.kappa)
    with np.load(file) as stored:
        return Embeddings(stored["descriptor"], stored["kappa"], None, np.load(maps))


def append_row(file: Path | None, values: Values) -> None:
    """Add one row to a file with the same columns, so that rows stay comparable; skip it without a file."""
    if file is None:
        return
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


def log_row(file: Path | None, values: Values) -> None:
    """Print one row, and add it to a file, if any."""
    texts = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    print("  ".join(f"{key} {text}" for key, text in texts.items()), flush=True)
    append_row(file, values)


def report(rows: Sequence[Row], file: Path | None) -> None:
    """Print rows as tables, and add them to a file, if any."""
    show(rows)
    for row in rows:
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
    is_time = row.unit in TIMED
    tolerance = TOLERANCE if is_time else EXACT_TOLERANCE
    if row.better == "higher":
        return row.ratio < before * (1 - tolerance)
    return row.ratio > before * (1 + tolerance) + (0 if is_time else EXACT_TOLERANCE)


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
