"""Results of an evaluation, in memory and as files, from which figures and tables are made.

    results.json       metrics, facts about the run and about every dataset
    metrics.csv        set, score, metric, value, low, high
    queries.parquet    one row per query: hits, similarity, every score
    matches.parquet    one row per pair: reference, similarity, hit, every score of pairs
    references.parquet positions, κ and images of the maps (of a very large map, the matches and a sample)

Equal inputs give equal bytes, except for "times" in results.json.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.columns import ImageNames
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, telling, write_file
from kappaplace.metrics.retrieval import KS
from kappaplace.records import from_plain
from kappaplace.types import Json, Matches

if TYPE_CHECKING:
    import pyarrow as pa

MOST_REFERENCES = 200_000  # maximum number of references that are stored; figures need no more

Floats = NDArray[np.float64]
Metrics: TypeAlias = dict[str, Any]
"""Metrics of one dataset: {"queries": N, "recall": {metric: value}, "scores": {score: {metric: value}}}.

"intervals" has (low, high) for the same keys, and the confidence "level". "baselines" has
the metrics of a constant score and of a perfect ranking.
"""
Columns: TypeAlias = "dict[str, NDArray[np.generic] | list[str]]"


@dataclass(frozen=True, eq=False)
class ScoreColumns:
    """One score on one dataset."""

    name: str
    """Name of the score, such as "kappaplace"."""
    label: str
    """Name in tables and figures."""
    query: Floats
    """Uncertainty per query (N). Higher means less certain."""
    match: Floats | None = None
    """Uncertainty per pair, N×K. None if the score has no value per pair."""
    one_sided: bool = True
    """Whether ECE@K clamps only the upper tail of the score."""
    probability: Floats | None = None
    """Probability that the top match is correct (N). None if the score is not calibrated."""

    def take(self, rows: NDArray[np.int64]) -> ScoreColumns:
        """Return the score of some queries.

        Args:
            rows: Rows of the queries.

        Returns:
            The score with these rows only, in this order.
        """
        match = None if self.match is None else self.match[rows]
        probability = None if self.probability is None else self.probability[rows]
        return replace(self, query=self.query[rows], match=match, probability=probability)


@dataclass(frozen=True, eq=False)
class SetResult:
    """Matches and scores of one dataset with N queries and one map."""

    name: str
    """Name of the dataset."""
    hits: NDArray[np.bool_]
    """Whether each match is a positive, N×K."""
    matches: Matches
    """The K best references per query, best first."""
    scores: dict[str, ScoreColumns]
    """Scores by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Scores that were not computed, each with the reason."""
    references: int = 0
    """Number of references in the map."""
    positives: NDArray[np.int64] | None = None
    """Number of positives of each query in the map (N)."""
    without_positives: int = 0
    """Number of queries without a positive, before the policy was applied."""
    policy: str = "fail"
    """Policy for queries without a positive: fail, skip or error."""
    query_kappa: Floats | None = None
    """κ per query (N). None if the model has no κ."""
    reference_kappa: Floats | None = None
    """κ per reference. None if the model has no κ."""
    query_positions: Floats | None = None
    """Positions of the queries in metres, N×2. None if they are unknown."""
    reference_positions: Floats | None = None
    """Positions of the references in metres. None if they are unknown."""
    query_images: Sequence[str] = ()
    """Image paths of the queries."""
    reference_images: Sequence[str] = ()
    """Image paths of the references."""
    block: int = 1
    """Number of consecutive frames of a route that are resampled together. 1 for independent queries."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts to store: hash of the table, protocol, preprocessing."""
    queries: NDArray[np.int64] | None = None
    """Number of each query in the dataset (N). None if row i is query i."""
    sessions: NDArray[np.int64] | None = None
    """Drive of each query, N; queries of a drive are resampled together. None if there are too few drives."""

    @property
    def query_numbers(self) -> NDArray[np.int64]:
        """Number of each query in the dataset (N)."""
        return np.arange(len(self.hits)) if self.queries is None else self.queries


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Evaluation of a model, or of the similarities of a method, on one or several datasets."""

    name: str
    """Name in tables and figures."""
    sets: tuple[SetResult, ...]
    """The datasets, in order."""
    metrics: dict[str, Metrics] = field(default_factory=dict)
    """Metrics by the name of the dataset, "pooled" or "mean". The mean over datasets has no intervals."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Model fingerprint, preprocessing, version and options."""
    times: dict[str, Any] = field(default_factory=dict)
    """Start and duration of the run, the only difference between two equal runs."""


VERSION = 1
RESULTS, METRICS = "results.json", "metrics.csv"
METRIC_COLUMNS = ("set", "score", "metric", "value", "low", "high")
QUERIES, MATCHES, REFERENCES = "queries.parquet", "matches.parquet", "references.parquet"
_SET_FACTS = ("references", "without_positives", "policy", "block", "left_out", "facts")


def write_result(result: EvaluationResult, folder: str | Path) -> Path:
    """Write all files of an evaluation.

    Args:
        result: The evaluation.
        folder: Folder to write to; it is created if it does not exist.

    Returns:
        The folder.

    Raises:
        KappaPlaceError: If the folder cannot be written to.
    """
    target = make_folder(folder)
    (target / RESULTS).unlink(missing_ok=True)  # written last, so that a folder with this file is complete
    _write_parquet(target / QUERIES, [_query_columns(each) for each in result.sets])
    _write_parquet(target / MATCHES, [_match_columns(each) for each in result.sets])
    _write_parquet(target / REFERENCES, [_reference_columns(each) for each in result.sets])
    write_rows(target / METRICS, metric_rows(result), METRIC_COLUMNS)
    record: dict[str, Json] = {
        "version": VERSION,
        "name": result.name,
        "facts": result.facts,
        "sets": [_set_facts(each) for each in result.sets],
        "metrics": result.metrics,
        "times": result.times,
    }
    write_file(
        target / RESULTS, json.dumps(plain(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return target


def read_result(folder: str | Path) -> EvaluationResult:
    """Read an evaluation that `write_result` wrote.

    Args:
        folder: Folder of the evaluation.

    Returns:
        The evaluation.

    Raises:
        KappaPlaceError: If the folder has no evaluation, or one that is damaged or of another version.
    """
    source = Path(folder)
    if not (source / RESULTS).is_file():
        raise KappaPlaceError(f"There is no evaluation in {source}. Run `kappaplace evaluate` first.")
    with telling(f"The evaluation in {source} cannot be read"):
        record = json.loads((source / RESULTS).read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise KappaPlaceError(
                f"The evaluation in {source} has version {record['version']!r}, expected {VERSION}. "
                "Run `kappaplace evaluate` again."
            )
        stored = from_plain(_Stored, record)
        files = [_by_set(source / name) for name in (QUERIES, MATCHES, REFERENCES)]
        sets = tuple(_set_of(each, *(file[each.name] for file in files)) for each in stored.sets)
        metrics = _undefined_as_nan(record["metrics"])
        return EvaluationResult(stored.name, sets, metrics, stored.facts, stored.times)


@dataclass(frozen=True)
class _StoredScore:
    label: str
    one_sided: bool
    match: bool
    probability: bool


@dataclass(frozen=True)
class _Presence:
    kappa: bool
    reference_kappa: bool
    positions: bool
    reference_positions: bool
    positives: bool
    images: bool
    sessions: bool = False


@dataclass(frozen=True)
class _StoredSet:
    name: str
    queries: int
    k: int
    references: int
    without_positives: int
    policy: str
    block: int
    left_out: dict[str, str]
    facts: dict[str, Json]
    known: _Presence
    scores: dict[str, _StoredScore]


@dataclass(frozen=True)
class _Limits:
    level: float
    recall: dict[str, tuple[float | None, float | None]]
    scores: dict[str, dict[str, tuple[float | None, float | None]]]


@dataclass(frozen=True)
class _StoredMetrics:
    queries: int
    recall: dict[str, float | None]
    scores: dict[str, dict[str, float | None]]
    intervals: _Limits | None = None
    baselines: dict[str, dict[str, float | None]] | None = None


@dataclass(frozen=True)
class _Stored:
    """Schema of results.json, which is checked when the file is read."""

    version: int
    name: str
    facts: dict[str, Json]
    sets: tuple[_StoredSet, ...]
    metrics: dict[str, _StoredMetrics]
    times: dict[str, Json]


def _set_facts(each: SetResult) -> dict[str, Json]:
    scores = {
        name: {
            "label": score.label,
            "one_sided": score.one_sided,
            "match": score.match is not None,
            "probability": score.probability is not None,
        }
        for name, score in each.scores.items()
    }
    presence = {
        "kappa": each.query_kappa is not None,
        "reference_kappa": each.reference_kappa is not None,
        "positions": each.query_positions is not None,
        "reference_positions": each.reference_positions is not None,
        "positives": each.positives is not None,
        "images": len(each.query_images) > 0,
    }
    if each.sessions is not None:
        presence["sessions"] = True
    n, k = each.hits.shape
    facts = {name: getattr(each, name) for name in _SET_FACTS}
    return {"name": each.name, "queries": n, "k": k, **facts, "known": presence, "scores": scores}


def plain(value: Json | np.generic) -> Json:
    """Convert a value to JSON types. NumPy numbers become Python numbers, NaN and infinity become None."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _undefined_as_nan(value: Any) -> Any:
    """Restore metrics that `plain` converted."""
    if isinstance(value, dict):
        return {key: _undefined_as_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return tuple(_undefined_as_nan(each) for each in value)
    return math.nan if value is None else value


def metric_rows(result: EvaluationResult) -> Iterator[dict[str, str | float]]:
    """Yield one row per metric, with the columns `METRIC_COLUMNS`. The score is empty for recall."""
    for name, metrics in result.metrics.items():
        intervals = metrics.get("intervals", {})
        tables = [("", metrics["recall"], intervals.get("recall", {}))]
        for score, values in metrics["scores"].items():
            tables.append((score, values, intervals.get("scores", {}).get(score, {})))
        for score, values, limits in tables:
            for metric, value in values.items():
                low, high = map(float, limits.get(metric, (math.nan, math.nan)))
                cells: list[str | float] = [name, score, metric, float(value), low, high]
                yield dict(zip(METRIC_COLUMNS, cells, strict=True))


def write_rows(file: Path, rows: Iterable[Mapping[str, str | float]], columns: Sequence[str]) -> Path:
    """Write rows as CSV; an undefined number is an empty cell.

    Args:
        file: File to write.
        rows: One mapping from columns to values per row.
        columns: Names of the columns, in order.

    Returns:
        The file.
    """

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, columns, lineterminator="\n")
            writer.writeheader()
            for row in rows:
                writer.writerow({key: "" if value != value else value for key, value in row.items()})

    replace_file(file, write)
    return file


def _query_columns(each: SetResult) -> Columns:
    n = len(each.hits)
    columns: Columns = {
        "set": np.full(n, each.name, object),
        "query": each.query_numbers,
        "image": _relative(each.query_images, n),
        "x": _or_nan(each.query_positions, n, 0),
        "y": _or_nan(each.query_positions, n, 1),
        "kappa": _or_nan(each.query_kappa, n),
        "positives": np.full(n, -1) if each.positives is None else each.positives,
        "top": each.matches.indices[:, 0],
        "similarity": each.matches.similarities[:, 0],
    }
    if each.sessions is not None:
        columns["session"] = each.sessions
    for k in KS:
        if k <= each.hits.shape[1]:
            columns[f"hit@{k}"] = np.any(each.hits[:, :k], axis=1)
    for name, score in each.scores.items():
        columns[f"score:{name}"] = score.query
        if score.probability is not None:
            columns[f"probability:{name}"] = score.probability
    return columns


def _match_columns(each: SetResult) -> Columns:
    n, k = each.hits.shape
    columns: Columns = {
        "set": np.full(n * k, each.name, object),
        "query": np.repeat(each.query_numbers, k),
        "rank": np.tile(np.arange(1, k + 1, dtype=np.int32), n),
        "reference": each.matches.indices.ravel(),
        "similarity": each.matches.similarities.ravel(),
        "hit": each.hits.ravel(),
    }
    for name, score in each.scores.items():
        if score.match is not None:
            columns[f"score:{name}"] = score.match.ravel()
    return columns


def _reference_columns(each: SetResult) -> Columns:
    rows = references_to_store(each.references, each.matches.indices)
    n = len(rows)
    positions = None if each.reference_positions is None else each.reference_positions[rows]
    return {
        "set": np.full(n, each.name, object),
        "reference": rows,
        "image": _relative(each.reference_images, n, rows),
        "x": _or_nan(positions, n, 0),
        "y": _or_nan(positions, n, 1),
        "kappa": _or_nan(None if each.reference_kappa is None else each.reference_kappa[rows], n),
    }


def _relative(images: Sequence[str], n: int, rows: NDArray[np.int64] | None = None) -> list[str]:
    """Return paths relative to the root of the table, which is one of the stored facts."""
    if not len(images):
        return [""] * n
    if isinstance(images, ImageNames):
        return images.relative(rows)
    return list(images) if rows is None else [images[int(row)] for row in rows]


def _or_nan(values: Floats | None, n: int, axis: int | None = None) -> Floats:
    if values is None:
        return np.full(n, np.nan)
    return values if axis is None else values[:, axis]


def _write_parquet(file: Path, sets: list[Columns]) -> None:
    """Write the rows of all datasets to one file. A score that a dataset lacks is null in its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pa.table({name: pa.array(values) for name, values in each.items()}) for each in sets]
    joined = pa.concat_tables(tables, promote_options="default")
    replace_file(file, lambda part: pq.write_table(joined, part, compression="zstd"))


def _by_set(file: Path) -> dict[str, pa.Table]:
    """Return the rows of each dataset, in order."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    names = pc.unique(table["set"]).to_pylist()
    return {name: table.filter(pc.equal(table["set"], name)) for name in names}


def _set_of(stored: _StoredSet, queries: pa.Table, matches: pa.Table, references: pa.Table) -> SetResult:
    n, k, available = stored.queries, stored.k, stored.known

    def column(name: str, table: pa.Table = queries, kinds: str = "fiu") -> NDArray[Any]:
        values: NDArray[Any] = table[name].combine_chunks().to_numpy(zero_copy_only=False)
        if values.dtype.kind not in kinds:
            raise ValueError(f"the column {name!r} has values of another type")
        return values

    def pairs(name: str, kinds: str = "fiu") -> NDArray[Any]:
        return column(name, matches, kinds).reshape(n, k)

    rows, retrieved = column("reference", references, "iu"), pairs("reference", "iu")
    if min(n, k, stored.block, len(rows)) < 1 or len(queries) != n:
        raise ValueError(f"the dataset {stored.name!r} has no queries, or the wrong number of rows")
    if rows.min() < 0 or rows.max() + 1 != stored.references or not (retrieved >= 0).all():
        raise ValueError(f"the references of {stored.name!r} do not fit its map")
    if retrieved.max() >= stored.references:
        raise ValueError(f"matches of {stored.name!r} are not in its map")

    for name, present, table in (
        ("similarity", True, matches),
        ("kappa", available.kappa, queries),
        ("kappa", available.reference_kappa, references),
    ):
        if present and not np.isfinite(column(name, table)).all():
            raise ValueError(f"{name} of {stored.name!r} is not finite")

    def of_references(name: str) -> Floats:
        values = np.full(stored.references, np.nan)
        values[rows] = column(name, references)
        return values

    scores = {
        name: ScoreColumns(
            name,
            score.label,
            column(f"score:{name}"),
            pairs(f"score:{name}") if score.match else None,
            score.one_sided,
            column(f"probability:{name}") if score.probability else None,
        )
        for name, score in stored.scores.items()
    }
    root = str(stored.facts.get("root", ""))
    paths = np.full(stored.references if available.images else 0, "", np.dtypes.StringDType())
    if available.images:
        paths[rows] = references["image"].to_pylist()
    query_paths = queries["image"].to_pylist() if available.images else []
    return SetResult(
        name=stored.name,
        hits=pairs("hit", "b"),
        matches=Matches(retrieved, pairs("similarity")),
        scores=scores,
        positives=column("positives", kinds="iu") if available.positives else None,
        query_kappa=column("kappa") if available.kappa else None,
        reference_kappa=of_references("kappa") if available.reference_kappa else None,
        query_positions=np.stack([column("x"), column("y")], 1) if available.positions else None,
        reference_positions=(
            np.stack([of_references("x"), of_references("y")], 1) if available.reference_positions else None
        ),
        query_images=ImageNames(np.array(query_paths, np.dtypes.StringDType()), root),
        reference_images=ImageNames(paths, root),
        queries=column("query", kinds="iu"),
        sessions=column("session").astype(np.int64) if available.sessions else None,
        **{name: getattr(stored, name) for name in _SET_FACTS},
    )


def references_to_store(references: int, retrieved: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the references to store: all of them, or of a very large map the matches and a sample.

    Args:
        references: Number of references in the map.
        retrieved: Rows of the matches.

    Returns:
        Rows of the references, ascending.
    """
    if references <= MOST_REFERENCES:
        return np.arange(references)
    sample = np.linspace(0, references - 1, MOST_REFERENCES // 2).astype(np.int64)
    return np.union1d(sample, retrieved)
