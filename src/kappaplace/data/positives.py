"""Correct references (positives) of each query, and the policy for queries that have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import within
from kappaplace.errors import KappaPlaceError
from kappaplace.progress import track

Scalar = TypeVar("Scalar", bound=np.generic)

PAIRS_PER_BLOCK = 4_000_000  # bounds the temporary memory of a radius search (24 bytes per pair)
MAX_PAIRS = 2_000_000_000  # 8 GB of indices: more means a wrong radius or wrong coordinates


@dataclass(frozen=True, eq=False)
class Positives:
    """Positives of each query as compressed rows: query i has ``indices[indptr[i]:indptr[i + 1]]``.

    Queries and references are counted separately, each from 0 in the order of the table. ``Matches.indices``
    counts references in the same way. The indices of a query ascend and never repeat.
    """

    indptr: NDArray[np.int64]
    """Start of each query in ``indices``, and the end of the last, N+1."""
    indices: NDArray[np.int32]
    """Indices of references, query by query."""
    references: int
    """Number of references, against which indices are checked."""

    def __post_init__(self) -> None:
        indptr = np.asarray(self.indptr, dtype=np.int64)
        raw = np.asarray(self.indices)
        if indptr.ndim != 1 or len(indptr) == 0 or indptr[0] != 0 or np.any(np.diff(indptr) < 0):
            raise KappaPlaceError("indptr of positives must start at 0 and never decrease.")
        if raw.ndim != 1 or int(indptr[-1]) != len(raw):
            raise KappaPlaceError(f"indptr of positives must end at {len(raw)}, got {int(indptr[-1])}.")
        _check_range(raw, self.references)
        indices = raw.astype(np.int32, copy=False)
        query = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        if not np.all((np.diff(indices) > 0) | (np.diff(query) > 0)):
            query, ordered = np.divmod(np.unique(query * self.references + indices), self.references)
            indices = ordered.astype(np.int32)
            indptr = _indptr(np.bincount(query, minlength=len(indptr) - 1))
        object.__setattr__(self, "indptr", _frozen(indptr))
        object.__setattr__(self, "indices", _frozen(indices))

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int] | NDArray[np.integer]], references: int) -> Positives:
        """Build positives from lists.

        >>> Positives.from_lists([[2, 0], []], references=3).counts.tolist()
        [2, 0]

        Args:
            lists: Indices of the correct references, one list per query.
            references: Number of references.

        Returns:
            The positives.

        Raises:
            KappaPlaceError: If an index is out of range.
        """
        rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in lists]
        flat = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        _check_range(flat, references)
        return cls(_indptr(np.array([len(row) for row in rows])), flat.astype(np.int32), references)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return len(self.indptr) - 1

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of positives of each query."""
        return np.diff(self.indptr)

    def of(self, query: int) -> NDArray[np.int32]:
        """Return the positives of one query.

        Args:
            query: Index of the query.

        Returns:
            Indices of references, ascending.
        """
        return self.indices[self.indptr[query] : self.indptr[query + 1]]

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return all pairs of a query and a positive.

        Returns:
            Indices of queries and of references, ordered by query, then by reference.
        """
        return np.repeat(np.arange(self.queries), self.counts), self.indices

    def hits(
        self, indices: NDArray[np.integer], queries: NDArray[np.integer] | None = None
    ) -> NDArray[np.bool_]:
        """Return whether each match is a positive of its query.

        >>> Positives.from_lists([[1], [0, 2]], references=3).hits(np.array([[1, 0], [2, -1]])).tolist()
        [[True, False], [True, False]]

        Args:
            indices: Indices of references, N×K; a negative index is never a positive.
            queries: Query of each row, N. Default: row i is query i.

        Returns:
            Booleans, N×K.

        Raises:
            KappaPlaceError: If the rows do not match the queries.
        """
        indices = np.asarray(indices, dtype=np.int64)
        rows = np.arange(len(indices)) if queries is None else np.asarray(queries, dtype=np.int64)
        if len(rows) != len(indices) or (len(rows) and (rows.min() < 0 or rows.max() >= self.queries)):
            raise KappaPlaceError(
                f"Expected one row of matches per query, for queries 0 to {self.queries - 1}, "
                f"got {len(indices)} rows."
            )
        if not len(self.indices):
            return np.zeros(indices.shape, dtype=bool)
        query, reference = self.pairs()
        keys = query * self.references + reference
        matches = rows.reshape((-1,) + (1,) * (indices.ndim - 1)) * self.references + indices
        nearest = np.minimum(np.searchsorted(keys, matches), len(keys) - 1)
        return (keys[nearest] == matches) & (indices >= 0) & (indices < self.references)

    def take(self, queries: NDArray[np.int64], references: NDArray[np.int64]) -> Positives:
        """Select queries and references.

        Args:
            queries: Indices of the queries to keep, in their new order.
            references: Indices of the references to keep, in their new order, each at most once.

        Returns:
            The positives among them, with new indices.

        Raises:
            KappaPlaceError: If a reference is selected twice.
        """
        new = np.full(self.references, -1, dtype=np.int64)
        new[references] = np.arange(len(references))
        if len(references) and int((new >= 0).sum()) != len(references):
            raise KappaPlaceError("A row appears more than once in the selection. Select it only once.")
        counts = self.counts[queries]
        start = np.repeat(self.indptr[:-1][queries] - _indptr(counts)[:-1], counts)
        indices = new[self.indices[start + np.arange(int(counts.sum()))]]
        selected = indices >= 0
        owner = np.repeat(np.arange(len(queries)), counts)[selected]
        per_query = np.bincount(owner, minlength=len(queries))
        return Positives(_indptr(per_query), indices[selected].astype(np.int32), len(references))


def positives_within(
    queries: NDArray[np.float64],
    references: NDArray[np.float64],
    radius: float,
    query_accuracy: NDArray[np.floating] | None = None,
    reference_accuracy: NDArray[np.floating] | None = None,
) -> Positives:
    """Find the references within a radius of each query.

    The search uses a KD-tree and runs in blocks. A query without a position (NaN) has no positives, and a
    reference without a position is not a positive.

    Args:
        queries: Positions in metres, N×2.
        references: Positions in metres, M×2.
        radius: Radius in metres, inclusive.
        query_accuracy: Accuracy of each query in metres, N, added to the radius. Default: 0.
        reference_accuracy: Accuracy of each reference in metres, M, added to the radius. Default: 0.

    Returns:
        The positives.

    Raises:
        KappaPlaceError: If there are more than two billion of them.
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
            f"A radius of {radius:g} m yields {int(upper.sum()):,} positives, more than {MAX_PAIRS:,}. "
            "Use a smaller radius, and check that coordinates are metres."
        )
    indices: list[NDArray[np.int32]] = []
    blocks = _blocks(query_rows, upper)
    with track("Searching positives", len(blocks)) as bar:
        for rows in blocks:
            widest = radius + float(q_wide[rows].max()) + float(r_wide[reference_rows].max())
            local = cKDTree(queries[rows])
            pairs = local.sparse_distance_matrix(tree, widest * (1 + 1e-9), output_type="ndarray")
            query, reference = rows[pairs["i"]], reference_rows[pairs["j"]]
            limit = radius + q_wide[query] + r_wide[reference]
            inside = within((queries[query] - references[reference]).T, limit)
            query, reference = query[inside], reference[inside]
            counts += np.bincount(query, minlength=len(queries))
            indices.append(reference[np.lexsort((reference, query))].astype(np.int32))
            bar.advance()
    return Positives(_indptr(counts), np.concatenate(indices), len(references))


class NoPositives(str, Enum):
    """Policy for queries that have no positive."""

    FAIL = "fail"
    """Count such queries as failures, as the released code of the paper does: no match can be correct."""
    SKIP = "skip"
    """Omit such queries, as STUN does."""
    ERROR = "error"
    """Raise an error."""


@dataclass(frozen=True, eq=False)
class EvaluatedQueries:
    """Queries that an evaluation counts; ``str()`` returns the message that is printed with the results."""

    rows: NDArray[np.int64]
    """Indices of the queries."""
    total: int
    """Number of all queries."""
    without_positives: int
    """Number of queries without positives."""
    policy: NoPositives
    """Policy for queries without positives."""

    def __str__(self) -> str:
        action = {"fail": "counted as failures", "skip": "omitted", "error": "not allowed"}[self.policy.value]
        counted = f"{len(self.rows):,} of {self.total:,} queries evaluated"
        return f"{counted}; {self.without_positives:,} without positives, {action}"


def apply_policy(positives: Positives, policy: NoPositives | str = NoPositives.FAIL) -> EvaluatedQueries:
    """Choose the queries to evaluate.

    >>> str(apply_policy(Positives.from_lists([[0], []], references=1), "skip"))
    '1 of 2 queries evaluated; 1 without positives, omitted'

    Args:
        positives: Positives of all queries.
        policy: Policy for queries without positives.

    Returns:
        The queries.

    Raises:
        KappaPlaceError: If the policy is "error" and a query has no positive.
    """
    policy = NoPositives(policy)
    missing = positives.counts == 0
    without = int(missing.sum())
    if policy is NoPositives.ERROR and without:
        raise KappaPlaceError(
            f"{without:,} of {positives.queries:,} queries have no positive (the first: query "
            f"{int(np.argmax(missing))}). Choose the policy fail or skip, or use a larger radius."
        )
    rows = np.flatnonzero(~missing) if policy is NoPositives.SKIP else np.arange(positives.queries)
    return EvaluatedQueries(rows, positives.queries, without, policy)


def _check_range(indices: NDArray[np.integer], references: int) -> None:
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= references):
        index = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise KappaPlaceError(
            f"The index of a reference must be between 0 and {references - 1}, got {index}. References are "
            "counted from 0 in the order of the table."
        )


def _indptr(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    view = array.view()
    view.flags.writeable = False
    return view


def _widening(accuracy: NDArray[np.floating] | None, rows: int) -> NDArray[np.float64]:
    if accuracy is None:
        return np.zeros(rows)
    return np.nan_to_num(np.asarray(accuracy, dtype=np.float64), nan=0.0)


def _blocks(rows: NDArray[np.int64], pairs: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    """Divide the rows into blocks of about `PAIRS_PER_BLOCK` pairs."""
    block = np.cumsum(np.maximum(pairs, 1)) // PAIRS_PER_BLOCK
    return np.split(rows, np.flatnonzero(np.diff(block)) + 1)
