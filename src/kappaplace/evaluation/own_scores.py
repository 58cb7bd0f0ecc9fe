"""The user's own scores, read from CSV files, to be evaluated next to the scores of the package.

The column ``query`` contains its number in the dataset from 0, or its image path. The column ``uncertainty``
(higher means less certain) or ``probability`` (that the top match is correct) is also required. With
``reference`` there is one row per pair. With ``set`` one file covers several datasets. The score has the name
of the file.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import Retrieved
from kappaplace.evaluation.results import ScoreColumns
from kappaplace.evaluation.scoring import FUSED
from kappaplace.files import telling
from kappaplace.uncertainty import SCORES

Row = dict[str, str]
LINE = ""
"""Key of the number of the line, which no column has."""
Pairs = dict[tuple[int, int], float]


def check_own_score(file: Path) -> None:
    """Check a file of scores before anything is embedded."""
    if not file.is_file():
        raise KappaPlaceError(f"There is no file {file}. Check the path.")
    if file.stem in SCORES or file.stem == FUSED:
        raise KappaPlaceError(
            f"{file} has the name of the score '{file.stem}' of the package. Rename the file."
        )


def read_own_score(file: Path, retrieved: Retrieved) -> ScoreColumns:
    """Read the score of every query of one dataset, and of every pair if the file has pairs."""
    check_own_score(file)
    rows = _rows(file, retrieved.name)
    numbers = _Numbers(retrieved, file)
    queries = len(retrieved.evidence.matches.indices)
    probability = _of_queries(file, "probability", rows, numbers, queries)
    if rows and "reference" in rows[0]:
        if probability is not None:
            raise KappaPlaceError(
                f"{file} has one row per pair, but a probability belongs to a query. Use a separate file."
            )
        query, match = _of_pairs(file, rows, numbers, retrieved.evidence.matches.indices)
        return ScoreColumns(file.stem, file.stem, query, match, one_sided=False)
    uncertainty = _of_queries(file, "uncertainty", rows, numbers, queries)
    if uncertainty is None:
        if probability is None:
            raise KappaPlaceError(f"{file} must have the column uncertainty or probability.")
        uncertainty = 1.0 - probability
    if probability is not None and (probability.min() < 0 or probability.max() > 1):
        raise KappaPlaceError(f"{file}: a probability must be between 0 and 1.")
    return ScoreColumns(file.stem, file.stem, uncertainty, None, False, probability)


def _rows(file: Path, set_name: str) -> list[Row]:
    with telling(f"{file} cannot be read as CSV"), file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        names = reader.fieldnames or []
        if "query" not in names:
            raise KappaPlaceError(
                f"The first line of {file} must have the names of its columns, such as query,uncertainty."
            )
        rows = [{**row, LINE: str(reader.line_num)} for row in reader]
    if "set" in names:
        rows = [row for row in rows if row["set"] == set_name]
    return rows


class _Numbers:
    """Converts cells of a file to numbers of queries and references."""

    def __init__(self, retrieved: Retrieved, file: Path) -> None:
        self.file, self.retrieved = file, retrieved
        self._by_path: dict[str, dict[str, int]] = {}

    def of(self, kind: str, row: Row) -> int:
        text = row[kind] or ""  # None if the row has too few cells
        count = len(self.retrieved.evidence.matches.indices) if kind == "query" else self.retrieved.references
        number = int(text) if text.isascii() and text.isdigit() else self._paths(kind).get(text, -1)
        if not 0 <= number < count:
            raise KappaPlaceError(
                f"{self.file} line {row[LINE]}: the {kind} must be a number from 0 to {count - 1} or an "
                f"image path of {self.retrieved.name}, got {text!r}."
            )
        return number

    def _paths(self, kind: str) -> dict[str, int]:
        table = self.retrieved.table
        if table is None:
            return {}
        if kind not in self._by_path:
            rows = table.query_rows if kind == "query" else table.reference_rows
            self._by_path[kind] = {path: i for i, path in enumerate(table.paths[rows].tolist())}
        return self._by_path[kind]


def _number(file: Path, column: str, row: Row) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise KappaPlaceError(
            f"{file} line {row[LINE]}: the {column} must be a finite number, got {row[column]!r}."
        )
    return value


def _of_queries(
    file: Path, column: str, rows: list[Row], numbers: _Numbers, queries: int
) -> NDArray[np.float64] | None:
    if rows and column not in rows[0]:
        return None
    values = np.full(queries, np.nan)
    for row in rows:
        number = numbers.of("query", row)
        if not np.isnan(values[number]) and "reference" not in row:
            raise KappaPlaceError(
                f"{file} line {row[LINE]}: query {row['query']} appears more than once. Keep one row."
            )
        values[number] = _number(file, column, row)
    missing = np.isnan(values)
    if missing.any() and "reference" not in (rows[0] if rows else {}):
        raise KappaPlaceError(
            f"{file} lacks {int(missing.sum()):,} of the {queries:,} queries of {numbers.retrieved.name} "
            f"(the first is query {int(np.argmax(missing))}). Add a row for each."
        )
    return values


def _of_pairs(
    file: Path, rows: list[Row], numbers: _Numbers, indices: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return the score of the top match of each query, and of all matches if the file has all of them."""
    if "uncertainty" not in rows[0]:
        raise KappaPlaceError(f"{file} must have the column uncertainty.")
    pairs: Pairs = {}
    for row in rows:
        pair = numbers.of("query", row), numbers.of("reference", row)
        if pair in pairs:
            raise KappaPlaceError(
                f"{file} line {row[LINE]}: query {row['query']} with reference {row['reference']} appears "
                "more than once. Keep one row."
            )
        pairs[pair] = _number(file, "uncertainty", row)
    match = np.array(
        [[pairs.get((i, int(r)), np.nan) for r in references] for i, references in enumerate(indices)]
    )
    missing = np.isnan(match[:, 0])
    if missing.any():
        i = int(np.argmax(missing))
        raise KappaPlaceError(
            f"{file} lacks {int(missing.sum()):,} of the top matches (the first is query {i} with reference "
            f"{int(indices[i, 0])}). Add a row for every query with its top match, or better with its top K."
        )
    return match[:, 0], None if np.isnan(match).any() else match
