"""Which references are right answers for which query, and what to do with queries that have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import within
from kappaplace.errors import KappaPlaceError

PAIRS_PER_BLOCK = 4_000_000  # bounds the temporary memory of a radius search (24 bytes a pair)
MAX_PAIRS = 2_000_000_000  # 8 GB of indices: more is a mistake in the radius or in the coordinates


@dataclass(frozen=True, eq=False)
class Positives:
    """Positives of each query as compressed rows: those of query i are ``indices[indptr[i]:indptr[i + 1]]``.

    Queries and references are counted among themselves (0 … n−1 of each kind, in table order), which is also
    how ``Matches.indices`` counts references. Within a query the indices ascend and never repeat.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    references: int
    """How many references there are, so that an index can be checked."""

    def __post_init__(self) -> None:
        indptr = np.asarray(self.indptr, dtype=np.int64)
        raw = np.asarray(self.indices)
        if indptr.ndim != 1 or len(indptr) == 0 or indptr[0] != 0 or np.any(np.diff(indptr) < 0):
            raise KappaPlaceError("Positives: indptr must start at 0 and never decrease.")
        if raw.ndim != 1 or int(indptr[-1]) != len(raw):
            raise KappaPlaceError(
                f"Positives: indptr ends at {int(indptr[-1])} but {len(raw)} indices were given."
            )
        _check_range(raw, self.references)
        indices = raw.astype(np.int32, copy=False)
        query = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        rises = np.diff(indices) > 0
        if not np.all(rises | (np.diff(query) > 0)):
            order = np.lexsort((indices, query))
            indices, query = indices[order], query[order]
            first = np.ones(len(indices), dtype=bool)
            first[1:] = (np.diff(indices) != 0) | (np.diff(query) != 0)
            indices, query = indices[first], query[first]
            indptr = _indptr(np.bincount(query, minlength=len(indptr) - 1))
        object.__setattr__(self, "indptr", _frozen(indptr))
        object.__setattr__(self, "indices", _frozen(indices))

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int] | NDArray[Any]], references: int) -> Positives:
        """From one list of reference indices a query.

        >>> Positives.from_lists([[2, 0], []], references=3).counts.tolist()
        [2, 0]
        """
        rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in lists]
        flat = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        _check_range(flat, references)
        return cls(_indptr(np.array([len(row) for row in rows])), flat.astype(np.int32), references)

    @property
    def queries(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of positives of each query."""
        return np.diff(self.indptr)

    def of(self, query: int) -> NDArray[np.int32]:
        """Reference indices of one query's positives."""
        return self.indices[self.indptr[query] : self.indptr[query + 1]]

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All (query, reference) pairs, ordered by query then reference."""
        return np.repeat(np.arange(self.queries), self.counts), self.indices

    def hits(self, indices: NDArray[Any], queries: NDArray[Any] | None = None) -> NDArray[np.bool_]:
        """Whether each retrieved reference is a positive: (N, K) indices → (N, K) bool, no N×M matrix.

        ``queries`` names the query of each row (default: row i is query i); negative indices are misses.

        >>> Positives.from_lists([[1], [0, 2]], references=3).hits(np.array([[1, 0], [2, -1]])).tolist()
        [[True, False], [True, False]]
        """
        indices = np.asarray(indices, dtype=np.int64)
        rows = np.arange(len(indices)) if queries is None else np.asarray(queries, dtype=np.int64)
        if len(rows) != len(indices) or (len(rows) and (rows.min() < 0 or rows.max() >= self.queries)):
            raise KappaPlaceError(
                f"Hits were asked for {len(indices)} rows of retrieved references "
                f"but the positives hold {self.queries} queries."
            )
        if not len(self.indices):
            return np.zeros(indices.shape, dtype=bool)
        query, reference = self.pairs()
        known = query * self.references + reference
        wanted = rows.reshape((-1,) + (1,) * (indices.ndim - 1)) * self.references + indices
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return (known[place] == wanted) & (indices >= 0) & (indices < self.references)

    def take(self, queries: NDArray[np.int64], references: NDArray[np.int64]) -> Positives:
        """The positives that remain when only these queries and references are kept, in this order."""
        new = np.full(self.references, -1, dtype=np.int64)
        new[references] = np.arange(len(references))
        if len(references) and int((new >= 0).sum()) != len(references):
            raise KappaPlaceError(
                "A reference was selected twice; with given positives each may appear once."
            )
        counts = self.counts[queries]
        start = np.repeat(self.indptr[:-1][queries] - _indptr(counts)[:-1], counts)
        found = new[self.indices[start + np.arange(int(counts.sum()))]]
        owner = np.repeat(np.arange(len(queries)), counts)
        kept = np.bincount(owner[found >= 0], minlength=len(queries))
        return Positives(_indptr(kept), found[found >= 0].astype(np.int32), len(references))


def positives_within(
    queries: NDArray[np.float64],
    references: NDArray[np.float64],
    radius: float,
    query_accuracy: NDArray[Any] | None = None,
    reference_accuracy: NDArray[Any] | None = None,
) -> Positives:
    """References within ``radius`` metres of each query (bound included), by KD-tree and in blocks.

    A stated GPS accuracy widens the radius of a pair: radius + the query's accuracy + the reference's.
    Images without a position (NaN) have no positives and are nobody's.
    """
    from scipy.spatial import cKDTree

    query_rows = np.flatnonzero(np.isfinite(queries).all(axis=1))
    reference_rows = np.flatnonzero(np.isfinite(references).all(axis=1))
    counts = np.zeros(len(queries), dtype=np.int64)
    if not len(query_rows) or not len(reference_rows):
        return Positives(_indptr(counts), np.empty(0, dtype=np.int32), len(references))
    q_wide = _widening(query_accuracy, len(queries))
    r_wide = _widening(reference_accuracy, len(references))
    tree = cKDTree(references[reference_rows], balanced_tree=False)  # a third faster to build
    reach = radius + q_wide[query_rows] + float(r_wide[reference_rows].max())
    upper = tree.query_ball_point(queries[query_rows], reach * (1 + 1e-9), return_length=True, workers=-1)
    if int(upper.sum()) > MAX_PAIRS:
        raise KappaPlaceError(
            f"A radius of {radius:g} m gives {int(upper.sum()):,} positives, more than {MAX_PAIRS:,}: "
            "check that coordinates are metres, or choose a smaller radius."
        )
    found: list[NDArray[np.int32]] = []
    for rows in _shown(_blocks(query_rows, upper)):
        local = cKDTree(queries[rows])
        widest = radius + float(q_wide[rows].max()) + float(r_wide[reference_rows].max())
        pairs = local.sparse_distance_matrix(tree, widest * (1 + 1e-9), output_type="ndarray")
        query, reference = rows[pairs["i"]], reference_rows[pairs["j"]]
        gap = queries[query] - references[reference]
        limit = radius + q_wide[query] + r_wide[reference]
        inside = within([gap[:, 0], gap[:, 1]], limit)
        query, reference = query[inside], reference[inside]
        order = np.lexsort((reference, query))
        counts += np.bincount(query, minlength=len(queries))
        found.append(reference[order].astype(np.int32))
    return Positives(_indptr(counts), np.concatenate(found), len(references))


class NoPositives(str, Enum):
    """What to do with queries that have no positive at all."""

    FAIL = "fail"
    """They count as failures: nothing retrieved can be right (the authors' release)."""
    SKIP = "skip"
    """They are left out (STUN)."""
    ERROR = "error"
    """They stop the evaluation."""


@dataclass(frozen=True, eq=False)
class EvaluatedQueries:
    """The queries that an evaluation counts, and the sentence that must be printed with it."""

    rows: NDArray[np.int64]
    total: int
    without_positives: int
    policy: NoPositives

    def __str__(self) -> str:
        done = {"fail": "counted as failures", "skip": "left out", "error": "allowed by none"}[
            self.policy.value
        ]
        counted = f"{len(self.rows):,} of {self.total:,} queries evaluated"
        return f"{counted}; {self.without_positives:,} without positives, {done}"


def apply_policy(positives: Positives, policy: NoPositives | str = NoPositives.FAIL) -> EvaluatedQueries:
    """Choose the queries to evaluate; with ``error`` a query without positives is a KappaPlaceError.

    >>> str(apply_policy(Positives.from_lists([[0], []], references=1), "skip"))
    '1 of 2 queries evaluated; 1 without positives, left out'
    """
    policy = NoPositives(policy)
    missing = positives.counts == 0
    without = int(missing.sum())
    if policy is NoPositives.ERROR and without:
        raise KappaPlaceError(
            f"{without:,} of {positives.queries:,} queries have no positive (the first is query "
            f"{int(np.argmax(missing))}): choose the policy fail or skip, or a larger radius."
        )
    rows = np.flatnonzero(~missing) if policy is NoPositives.SKIP else np.arange(positives.queries)
    return EvaluatedQueries(rows, positives.queries, without, policy)


def _check_range(indices: NDArray[Any], references: int) -> None:
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= references):
        wrong = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise KappaPlaceError(
            f"Positives: reference index {wrong} is outside 0 … {references - 1} "
            f"({references} references); positives count references in table order from 0."
        )


def _indptr(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _widening(accuracy: NDArray[Any] | None, rows: int) -> NDArray[np.float64]:
    if accuracy is None:
        return np.zeros(rows)
    return np.nan_to_num(np.asarray(accuracy, dtype=np.float64), nan=0.0)


def _shown(blocks: list[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    from kappaplace.progress import track

    with track("Searching positives", len(blocks)) as bar:
        for block in blocks:
            yield block
            bar.advance()


def _blocks(rows: NDArray[np.int64], pairs: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Cut the rows where the running number of pairs passes the block size."""
    block = np.cumsum(np.maximum(pairs, 1)) // PAIRS_PER_BLOCK
    return np.split(rows, np.flatnonzero(np.diff(block)) + 1)
