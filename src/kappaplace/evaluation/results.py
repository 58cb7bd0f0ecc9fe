"""What an evaluation found: everything a table or a picture needs, so that nothing is computed again.

An evaluation as files: JSON and CSV of all metrics, Parquet of all rows, so that any plot can be redone.

    results.json       metrics, facts of the run and of every set
    metrics.csv        set, score, metric, value, low, high
    queries.parquet    one row a query: hits, similarity, every score
    matches.parquet    one row a pair: reference, similarity, hit, every score of pairs
    references.parquet positions, κ and images of the maps (of a very large one those retrieved, and a sample)

Equal inputs give equal bytes, except for "times" in results.json.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.table import ImageNames
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, telling
from kappaplace.metrics.retrieval import KS
from kappaplace.types import Matches

MOST_REFERENCES = 200_000  # of one map that are kept in full: plots need no more


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoreColumns:
    """One score on one set."""

    name: str
    label: str
    """As shown in tables and figures."""
    query: Floats
    """Uncertainty of each query, N (higher = less certain)."""
    match: Floats | None = None
    """Uncertainty of each pair, N×K; None for scores of the query alone."""
    one_sided: bool = True
    probability: Floats | None = None
    """Probability that the top match is right, N, where the score is calibrated."""


@dataclass(frozen=True, eq=False)
class SetResult:
    """One set of queries against one map."""

    name: str
    hits: NDArray[np.bool_]
    """Whether each match is a positive, N×K."""
    matches: Matches
    scores: dict[str, ScoreColumns]
    left_out: dict[str, str] = field(default_factory=dict)
    """Scores that could not be computed, each with the reason."""
    references: int = 0
    positives: NDArray[np.int64] | None = None
    """How many positives each query has in the map."""
    without_positives: int = 0
    policy: str = "fail"
    """What was done with queries that have no positive: fail, skip or error."""
    query_kappa: Floats | None = None
    reference_kappa: Floats | None = None
    query_positions: Floats | None = None
    reference_positions: Floats | None = None
    query_images: Sequence[str] = ()
    reference_images: Sequence[str] = ()
    block: int = 1
    """Frames of a route that are resampled together; 1 where queries are independent."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Table hash, protocol, whatever else should travel with the result."""
    queries: NDArray[np.int64] | None = None
    """Which query of its set each row is, counted in the set's own order; None: row i is query i."""


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """One model (or one peer's similarities) on one or several sets."""

    name: str
    sets: tuple[SetResult, ...]
    metrics: dict[str, Any] = field(default_factory=dict)
    """set name, "pooled" or "mean" → {"recall": {...}, "scores": {score: {metric: value}}, "intervals": ...}.

    Intervals repeat that shape with (low, high) for values; the mean over sets has none.
    """
    facts: dict[str, Any] = field(default_factory=dict)
    """Model fingerprint, preprocessing, version, command."""
    times: dict[str, Any] = field(default_factory=dict)
    """When it was made and how long it took: all that may differ between two equal runs."""


VERSION = 1
RESULTS, METRICS = "results.json", "metrics.csv"
QUERIES, MATCHES, REFERENCES = "queries.parquet", "matches.parquet", "references.parquet"
_SET_FACTS = ("references", "without_positives", "policy", "block", "left_out", "facts")


def write_result(result: EvaluationResult, folder: str | Path) -> Path:
    """Write all files; results.json comes last, so that it stands for a whole folder."""
    target = make_folder(folder)
    (target / RESULTS).unlink(missing_ok=True)
    _write_parquet(target / QUERIES, [_query_columns(each) for each in result.sets])
    _write_parquet(target / MATCHES, [_match_columns(each) for each in result.sets])
    _write_parquet(target / REFERENCES, [_reference_columns(each) for each in result.sets])
    replace_file(target / METRICS, lambda part: _write_csv(part, result))
    text = json.dumps(plain(_to_json(result)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(target / RESULTS, lambda part: part.write_text(text, encoding="utf-8"))
    return target


def read_result(folder: str | Path) -> EvaluationResult:
    """Read back what `write_result` wrote."""
    source = Path(folder)
    if not (source / RESULTS).is_file():
        raise KappaPlaceError(f"There is no evaluation in {source}: make one with `kappaplace evaluate`.")
    with telling(f"The evaluation in {source} cannot be read"):
        record = json.loads((source / RESULTS).read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise KappaPlaceError(
                f"The evaluation in {source} is of version {record['version']!r} but this kappaplace knows "
                f"{VERSION}: run `kappaplace evaluate` again."
            )
        files = [_by_set(source / name) for name in (QUERIES, MATCHES, REFERENCES)]
        sets = tuple(_set_of(facts, *(file[facts["name"]] for file in files)) for facts in record["sets"])
        return EvaluationResult(
            record["name"], sets, _numbers(record["metrics"]), record["facts"], record["times"]
        )


def _to_json(result: EvaluationResult) -> dict[str, Any]:
    return {
        "version": VERSION,
        "name": result.name,
        "facts": result.facts,
        "sets": [_set_facts(each) for each in result.sets],
        "metrics": result.metrics,
        "times": result.times,
    }


def _set_facts(each: SetResult) -> dict[str, Any]:
    scores = {
        name: {
            "label": score.label,
            "one_sided": score.one_sided,
            "match": score.match is not None,
            "probability": score.probability is not None,
        }
        for name, score in each.scores.items()
    }
    kept = {name: getattr(each, name) for name in _SET_FACTS}
    known = {
        "kappa": each.query_kappa is not None,
        "reference_kappa": each.reference_kappa is not None,
        "positions": each.query_positions is not None,
        "reference_positions": each.reference_positions is not None,
        "positives": each.positives is not None,
        "images": len(each.query_images) > 0,
    }
    shape = {"queries": len(each.hits), "k": each.hits.shape[1]}
    return {"name": each.name, **shape, **kept, "known": known, "scores": scores}


def plain(value: Any) -> Any:
    """JSON has no NaN and no arrays: None says that a metric is undefined."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    """The inverse of `plain` for metrics."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return tuple(_numbers(each) for each in value)
    return math.nan if value is None else value


def metric_rows(result: EvaluationResult) -> Iterator[tuple[str, str, str, float, float, float]]:
    """(set, score, metric, value, low, high) of everything measured; recall belongs to no score."""
    for set_name, found in result.metrics.items():
        intervals = found.get("intervals", {})
        tables = [("", found["recall"], intervals.get("recall", {}))]
        for score, metrics in found["scores"].items():
            tables.append((score, metrics, intervals.get("scores", {}).get(score, {})))
        for score, metrics, limits in tables:
            for metric, value in metrics.items():
                low, high = limits.get(metric, (math.nan, math.nan))
                yield set_name, score, metric, value, low, high


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows with the same columns as CSV; an undefined number is an empty cell."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            for row in rows:
                writer.writerow({key: "" if value != value else value for key, value in row.items()})

    replace_file(file, write)
    return file


def _write_csv(file: Path, result: EvaluationResult) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["set", "score", "metric", "value", "low", "high"])
        for *names, value, low, high in metric_rows(result):
            writer.writerow([*names, *("" if math.isnan(x) else repr(float(x)) for x in (value, low, high))])


def _query_columns(each: SetResult) -> dict[str, Any]:
    n = len(each.hits)
    columns: dict[str, Any] = {
        "set": np.full(n, each.name, object),
        "query": np.arange(n) if each.queries is None else each.queries,
        "image": _relative(each.query_images, n),
        "x": _axis(each.query_positions, 0, n),
        "y": _axis(each.query_positions, 1, n),
        "kappa": _or_nan(each.query_kappa, n),
        "positives": np.full(n, -1) if each.positives is None else each.positives,
        "top": each.matches.indices[:, 0],
        "similarity": each.matches.similarities[:, 0],
    }
    for k in KS:
        if k <= each.hits.shape[1]:
            columns[f"hit@{k}"] = each.hits[:, :k].any(axis=1)
    for name, score in each.scores.items():
        columns[f"score:{name}"] = score.query
        if score.probability is not None:
            columns[f"probability:{name}"] = score.probability
    return columns


def _match_columns(each: SetResult) -> dict[str, Any]:
    n, k = each.hits.shape
    numbers = np.arange(n) if each.queries is None else each.queries
    columns: dict[str, Any] = {
        "set": np.full(n * k, each.name, object),
        "query": np.repeat(numbers, k),
        "rank": np.tile(np.arange(1, k + 1, dtype=np.int32), n),
        "reference": each.matches.indices.ravel(),
        "similarity": each.matches.similarities.ravel(),
        "hit": each.hits.ravel(),
    }
    for name, score in each.scores.items():
        if score.match is not None:
            columns[f"score:{name}"] = score.match.ravel()
    return columns


def _reference_columns(each: SetResult) -> dict[str, Any]:
    rows = kept_references(each.references, each.matches.indices)
    n = len(rows)
    positions = None if each.reference_positions is None else each.reference_positions[rows]
    kappa = None if each.reference_kappa is None else each.reference_kappa[rows]
    return {
        "set": np.full(n, each.name, object),
        "reference": rows,
        "image": _relative(each.reference_images, n, rows),
        "x": _axis(positions, 0, n),
        "y": _axis(positions, 1, n),
        "kappa": _or_nan(kappa, n),
    }


def _relative(images: Any, n: int, rows: NDArray[np.int64] | None = None) -> list[str]:
    """Paths as the table has them; its root stands among the facts."""
    if not len(images):
        return [""] * n
    if isinstance(images, ImageNames):
        return images.relative(rows)
    return list(images) if rows is None else [images[int(row)] for row in rows]


def _axis(positions: NDArray[Any] | None, axis: int, n: int) -> NDArray[Any]:
    return np.full(n, np.nan) if positions is None else positions[:, axis]


def _or_nan(values: NDArray[Any] | None, n: int) -> NDArray[Any]:
    return np.full(n, np.nan) if values is None else values


def _write_parquet(file: Path, sets: list[dict[str, Any]]) -> None:
    """All sets below each other; a score that a set lacks is null there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pa.table({name: pa.array(values) for name, values in each.items()}) for each in sets]
    joined = pa.concat_tables(tables, promote_options="default")
    replace_file(file, lambda part: pq.write_table(joined, part, compression="zstd"))


def _by_set(file: Path) -> dict[str, Any]:
    """The rows of each set, in their order."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    names = pc.unique(table["set"]).to_pylist()
    return {name: table.filter(pc.equal(table["set"], name)) for name in names}


def _set_of(facts: dict[str, Any], queries: Any, matches: Any, references: Any) -> SetResult:
    n, k, known = facts["queries"], facts["k"], facts["known"]

    def column(name: str, table: Any = queries) -> NDArray[Any]:
        return table[name].combine_chunks().to_numpy(zero_copy_only=False)

    def pairs(name: str) -> NDArray[Any]:
        return column(name, matches).reshape(n, k)

    def scattered(name: str, fill: float) -> NDArray[np.float64]:
        values = np.full(facts["references"], fill)
        values[column("reference", references)] = column(name, references)
        return values

    scores = {
        name: ScoreColumns(
            name,
            score["label"],
            column(f"score:{name}"),
            pairs(f"score:{name}") if score["match"] else None,
            score["one_sided"],
            column(f"probability:{name}") if score["probability"] else None,
        )
        for name, score in facts["scores"].items()
    }
    root = str(facts["facts"].get("root", ""))
    paths = np.full(facts["references"] if known["images"] else 0, "", np.dtypes.StringDType())
    if known["images"]:
        paths[column("reference", references)] = references["image"].to_pylist()
    query_paths = queries["image"].to_pylist() if known["images"] else []
    return SetResult(
        name=facts["name"],
        hits=pairs("hit"),
        matches=Matches(pairs("reference"), pairs("similarity")),
        scores=scores,
        positives=column("positives") if known["positives"] else None,
        query_kappa=column("kappa") if known["kappa"] else None,
        reference_kappa=scattered("kappa", np.nan) if known["reference_kappa"] else None,
        query_positions=np.stack([column("x"), column("y")], 1) if known["positions"] else None,
        reference_positions=(
            np.stack([scattered("x", np.nan), scattered("y", np.nan)], 1)
            if known["reference_positions"]
            else None
        ),
        query_images=ImageNames(np.array(query_paths, np.dtypes.StringDType()), root),
        reference_images=ImageNames(paths, root),
        queries=column("query"),
        **{name: facts[name] for name in _SET_FACTS},
    )


def kept_references(references: int, retrieved: NDArray[np.int64]) -> NDArray[np.int64]:
    """References that a result keeps in full: all, or of a very large map those retrieved and a sample."""
    if references <= MOST_REFERENCES:
        return np.arange(references)
    sample = np.linspace(0, references - 1, MOST_REFERENCES // 2).astype(np.int64)
    return np.union1d(sample, retrieved)
