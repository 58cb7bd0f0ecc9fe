"""Candidate sets: the fewest places of which one is correct with a chosen probability (coverage).

A query has one correct label: one of the places among its matches, or "unmapped" if it is out-of-map. Matches
are grouped into places in their order: the first match that belongs to no place yet starts a new one. The
calibration gives the probability p that the first place is correct, and q that the query is in-map. The rest
q − p is shared by the other places, each with a fixed fraction less than the one before. The score of a label
is the probability of all labels that rank before it, so the most probable label has score 0.

Split conformal prediction: with n labelled queries that nothing was fitted on, a set contains all labels
whose score is at most the ⌈(n + 1)·coverage⌉-th smallest score of the correct labels. For a query drawn like
them, it contains the correct label with at least this probability, however good the probabilities are. They
only determine how small the sets are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import Bools, Floats, Rows, percent, share
from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.evidence import DEEP, Evidence

if TYPE_CHECKING:
    from kappaplace.calibration.outside import OutsideAware

DECAY = 0.8
"""Probability of each place after the second, as a fraction of the place before it."""
UNLISTED = -1
"""Number of a place that is not among the matches of its query."""
MOST_SCORES = 2000
"""Largest number of stored scores, drawn at random."""
NO_CANDIDATES = (
    "Candidate sets need a calibration on queries with known correct references, and this map has none. Run "
    "`kappaplace calibrate` with --queries (again, if an earlier version calibrated the map)."
)


@dataclass(frozen=True)
class Candidates:
    """Scores of the correct labels of calibration queries."""

    scores: tuple[float, ...]
    """Ascending; infinite if the correct place was not among the matches."""
    outside: bool
    """Whether some of the queries were out-of-map. If not, sets are valid for in-map queries only."""

    @classmethod
    def of(cls, scores: Floats, outside: Bools | None) -> Candidates:
        """Keep at most `MOST_SCORES` scores of queries that nothing was fitted on.

        Args:
            scores: Score of each query's correct label (N), see `correct_scores`.
            outside: Which queries are out-of-map (N).

        Returns:
            The sorted scores.
        """
        values = scores
        if len(values) > MOST_SCORES:
            values = np.random.default_rng(0).permutation(values)[:MOST_SCORES]
        return cls(tuple(np.sort(values).tolist()), outside is not None and bool(outside.any()))

    def limit(self, coverage: float) -> float:
        """Return the largest score that a set includes.

        Args:
            coverage: Probability that the set contains the correct label.

        Returns:
            The score, finite.

        Raises:
            KappaPlaceError: If there are too few queries, or too many of their places were not found.
        """
        count, rank = len(self.scores), self._rank(share(coverage, "coverage"))
        if rank > count:
            needed = int(np.ceil(coverage / (1 - coverage) - 1e-9))
            raise KappaPlaceError(
                f"A coverage of {percent(coverage)} needs at least {needed:,} labelled queries that nothing "
                f"was fitted on, got {count:,}. Label more queries, or pass a lower coverage."
            )
        if not np.isfinite(limit := self.scores[rank - 1]):
            found = float(np.isfinite(self.scores).mean())
            raise KappaPlaceError(
                f"A coverage of {percent(coverage)} cannot be reached, because only {percent(found)} of the "
                f"calibration queries have their correct place among the first {DEEP} matches. Pass a lower "
                "coverage, or add references."
            )
        return limit

    def _rank(self, coverage: float) -> int:
        return int(np.ceil((len(self.scores) + 1) * coverage - 1e-9))


@dataclass(frozen=True)
class PlaceSet:
    """The candidate set of one query."""

    references: tuple[int, ...]
    """Best match of each place, the most probable place first."""
    unmapped: bool
    """Whether the query may be out-of-map."""
    guaranteed: bool
    """Whether the coverage is guaranteed."""


def place_numbers(evidence: Evidence) -> Rows:
    """Group the first matches of each query into places.

    Args:
        evidence: Results of the retrieval; at most its first `DEEP` matches are used.

    Returns:
        Number of the place of each match, from 0 in the order of the matches, N×D; `UNLISTED` for excluded
        references.
    """
    pool = evidence.matches if evidence.pool is None else evidence.pool
    rows = pool.indices[:, :DEEP]
    numbers = np.full(rows.shape, UNLISTED)
    free = np.isfinite(pool.similarities[:, :DEEP])
    count = np.zeros(len(rows), np.int64)
    for column in range(rows.shape[1]):
        starts = free[:, column].copy()
        members = free & starts[:, None] & evidence.references.near(rows[:, column, None], rows)
        members[:, column] = starts
        numbers = np.where(members, count[:, None], numbers)
        free &= ~members
        count += starts
    return numbers


def correct_places(numbers: Rows, correct: Bools) -> Rows:
    """Return the number of the first place with a correct match.

    Args:
        numbers: Number of the place of each match, N×D.
        correct: Whether each match is correct, N×D.

    Returns:
        One number per query (N); `UNLISTED` if no match is correct.

    >>> correct_places(np.array([[0, 0, 1], [0, 1, 2]]), np.array([[False, False, True], [False] * 3]))
    array([ 1, -1])
    """
    usable = correct & (numbers >= 0)
    first = np.where(usable, numbers, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    return np.where(usable.any(axis=1), first, UNLISTED)


def label_scores(probability: Floats, inside: Floats | None, places: int) -> tuple[Floats, Floats]:
    """Return the score of every label.

    Args:
        probability: Probability that the first place is correct (N).
        inside: Probability that the query is in-map (N). None: 1.
        places: Number of places to score.

    Returns:
        Scores of the places, N×places, ascending per query; and scores of "unmapped" (N).
    """
    first = np.asarray(probability, np.float64)
    mapped = np.ones_like(first) if inside is None else np.maximum(inside, first)
    rest, outside = mapped - first, 1 - mapped
    later = (1 - DECAY) * DECAY ** np.arange(places - 1) * rest[:, None]
    masses = np.column_stack([first, later])
    before = np.cumsum(masses, axis=1) - masses
    # "unmapped" ranks before the places that are less probable; a place never ranks before an earlier one.
    ahead = outside[:, None] > np.minimum.accumulate(masses, axis=1)
    unmapped = (masses * ~ahead).sum(axis=1)
    return before + outside[:, None] * ahead, unmapped


def correct_scores(
    uncertainty: Floats, place: Rows, outside: Bools | None, right: OutsideAware, rate: float | None
) -> Floats:
    """Return the score of each query's correct label.

    Args:
        uncertainty: Uncertainty of each query (N).
        place: Number of the correct place of each query (N), see `correct_places`.
        outside: Which queries are out-of-map (N).
        right: Probability that the first place is correct.
        rate: Expected fraction of out-of-map queries. None: the fraction at calibration.

    Returns:
        One score per query (N); infinite if the correct place is not among the matches.
    """
    out = np.zeros(len(place), bool) if outside is None else outside
    places, unmapped = _scores(uncertainty, right, rate, DEEP)
    own = np.where(place >= 0, places[np.arange(len(place)), np.maximum(place, 0)], np.inf)
    return np.where(out, unmapped, own)


def place_sets(
    evidence: Evidence,
    candidates: Candidates | None,
    coverage: float,
    uncertainty: Floats,
    right: OutsideAware,
    rate: float | None,
    guaranteed: Bools | None = None,
) -> tuple[PlaceSet, ...]:
    """Return the smallest set of places for each query.

    Args:
        evidence: Results of the retrieval.
        candidates: Scores of the calibration queries.
        coverage: Probability that a set contains the correct label.
        uncertainty: Uncertainty of each query (N).
        right: Probability that the first place is correct.
        rate: Expected fraction of out-of-map queries, as at calibration.
        guaranteed: Whether the coverage is guaranteed (N). Default: for none.

    Returns:
        One set per query.

    Raises:
        KappaPlaceError: If the calibration has no scores, or they do not support the coverage.
    """
    if candidates is None:
        raise KappaPlaceError(NO_CANDIDATES)
    limit = candidates.limit(coverage)
    numbers = place_numbers(evidence)
    pool = evidence.matches if evidence.pool is None else evidence.pool
    places, unmapped = _scores(uncertainty, right, rate, numbers.shape[1])
    sets = []
    for row, own in enumerate(numbers):
        included = int((places[row] <= limit).sum())
        first = [int(np.argmax(own == number)) for number in range(min(included, int(own.max()) + 1))]
        sets.append(
            PlaceSet(
                tuple(pool.indices[row, first].tolist()),
                candidates.outside and bool(unmapped[row] <= limit),
                guaranteed is not None and bool(guaranteed[row]),
            )
        )
    return tuple(sets)


def _scores(
    uncertainty: Floats, right: OutsideAware, rate: float | None, places: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    inside = right.inside_probability(uncertainty, rate)
    return label_scores(right.probability(uncertainty, rate), inside, places)
