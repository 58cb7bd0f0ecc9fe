"""A researcher's own uncertainty, from CSV, beside all scores of the package.

Columns: ``query`` (its number in the set from 0, or its image path), and ``uncertainty`` (higher = less
certain) or ``probability`` (of the top match being right) or both; with ``reference`` it is one row a pair;
with ``set`` one file serves several sets. The score is called after the file.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import Retrieved
from kappaplace.evaluation.results import ScoreColumns
from kappaplace.evaluation.scoring import FUSED
from kappaplace.files import telling
from kappaplace.uncertainty import SCORES

Pairs = dict[tuple[int, int], float]


def check_own_score(file: Path) -> None:
    """What can be told before anything is embedded."""
    if not file.is_file():
        raise KappaPlaceError(f"There is no file {file}; check the path.")
    if file.stem in SCORES or file.stem == FUSED:
        raise KappaPlaceError(
            f"{file} would hide the score {file.stem} of the package; give the file another name."
        )


def read_own_score(file: Path, retrieved: Retrieved) -> ScoreColumns:
    """The score of every query of one set, and of every pair where the file has pairs."""
    check_own_score(file)
    rows = _rows(file, retrieved.name)
    numbers = _Numbers(retrieved, file)
    queries = len(retrieved.evidence.matches.indices)
    probability = _of_queries(file, "probability", rows, numbers, queries)
    if rows and "reference" in rows[0]:
        if probability is not None:
            raise KappaPlaceError(
                f"{file} has pairs, and a probability is of a query; give it in a file of its own."
            )
        query, match = _of_pairs(file, rows, numbers, retrieved.evidence.matches.indices)
        return ScoreColumns(file.stem, file.stem, query, match, one_sided=False)
    uncertainty = _of_queries(file, "uncertainty", rows, numbers, queries)
    if uncertainty is None:
        if probability is None:
            raise KappaPlaceError(f"{file} needs the column uncertainty, or probability.")
        uncertainty = 1.0 - probability
    if probability is not None and (probability.min() < 0 or probability.max() > 1):
        raise KappaPlaceError(f"{file}: a probability lies between 0 and 1.")
    return ScoreColumns(file.stem, file.stem, uncertainty, None, False, probability)


def _rows(file: Path, set_name: str) -> list[dict[str, Any]]:
    with telling(f"{file} cannot be read as CSV"), file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        names = reader.fieldnames or []
        if "query" not in names:
            raise KappaPlaceError(f"{file} needs a first line that names its columns: query,uncertainty.")
        rows = list(reader)
    if "set" in names:
        rows = [row for row in rows if row["set"] == set_name]
    return rows


class _Numbers:
    """From what stands in a file to the number of a query or reference."""

    def __init__(self, retrieved: Retrieved, file: Path) -> None:
        self.file, self.retrieved = file, retrieved
        self._by_path: dict[str, dict[str, int]] = {}

    def of(self, kind: str, text: str) -> int:
        text = text or ""  # a row with too few cells
        count = len(self.retrieved.evidence.matches.indices) if kind == "query" else self.retrieved.references
        number = int(text) if text.isascii() and text.isdigit() else self._paths(kind).get(text, -1)
        if not 0 <= number < count:
            raise KappaPlaceError(
                f"{self.file}: {kind} {text!r} is neither a number from 0 to {count - 1} nor an image path "
                f"of {self.retrieved.name}."
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


def _number(file: Path, column: str, row: dict[str, Any]) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise KappaPlaceError(
            f"{file}: the {column} of query {row['query']} is {row[column]!r}, not a finite number."
        )
    return value


def _of_queries(
    file: Path, column: str, rows: list[dict[str, Any]], numbers: _Numbers, queries: int
) -> NDArray[np.float64] | None:
    if rows and column not in rows[0]:
        return None
    values = np.full(queries, np.nan)
    for row in rows:
        number = numbers.of("query", row["query"])
        if not np.isnan(values[number]) and "reference" not in row:
            raise KappaPlaceError(f"{file}: query {row['query']} stands there twice; keep one row of it.")
        values[number] = _number(file, column, row)
    missing = np.isnan(values)
    if missing.any() and "reference" not in (rows[0] if rows else {}):
        raise KappaPlaceError(
            f"{file} lacks {int(missing.sum()):,} of the {queries:,} queries of {numbers.retrieved.name} "
            f"(the first is query {int(np.argmax(missing))}); give every one."
        )
    return values


def _of_pairs(
    file: Path, rows: list[dict[str, Any]], numbers: _Numbers, indices: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Of each query with its top match, and of every retrieved pair if the file has them all."""
    if "uncertainty" not in rows[0]:
        raise KappaPlaceError(f"{file} needs the column uncertainty.")
    pairs: Pairs = {}
    for row in rows:
        pair = numbers.of("query", row["query"]), numbers.of("reference", row["reference"])
        if pair in pairs:
            raise KappaPlaceError(
                f"{file}: query {row['query']} with reference {row['reference']} stands there twice; keep "
                "one."
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
            f"{int(indices[i, 0])}); give the pair of every query and its best reference, better its top K."
        )
    return match[:, 0], None if np.isnan(match).any() else match
