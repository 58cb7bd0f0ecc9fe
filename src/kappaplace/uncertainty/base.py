"""Uncertainty scores with their formulas (`Score`), and the inputs that scores require (`Need`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps

import numpy as np

from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import NO_IMAGES, NO_PATCHES
from kappaplace.retrieval.references import Floats as Scores

__all__ = ["Evidence", "Formula", "Need", "Score", "Scores"]

Formula = Callable[[Evidence], Scores]


@dataclass(frozen=True)
class Need:
    """An input that a score requires. Constants of this module are the common needs."""

    name: str
    """Short name for tables: "κ of the queries"."""
    lacking: Callable[[Evidence], str | None] = field(compare=False, repr=False)
    """Function that returns a message about the missing input and its remedy; None if the input is
    available."""


@dataclass(frozen=True)
class Score:
    """An uncertainty score of queries, and optionally of matches. Higher is less certain."""

    name: str
    label: str
    """Name in tables and figures."""
    query: Formula
    """Function that returns one number per query (N)."""
    match: Formula | None = None
    """Function that returns one number per match, N×K; None for scores that rate only queries."""
    needs: tuple[Need, ...] = ()
    """Required inputs. Both functions raise an error with the message of the first missing input."""
    one_sided: bool = True
    """Whether only high values are outliers, as of a distance, or also low ones, as of κ. ECE clips them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", self._checked(self.query))
        if self.match is not None:
            object.__setattr__(self, "match", self._checked(self.match))

    def reason(self, evidence: Evidence) -> str | None:
        """Return why the score cannot be computed from this evidence; None if it can."""
        return next((reason for need in self.needs if (reason := need.lacking(evidence))), None)

    def _checked(self, formula: Formula) -> Formula:
        @wraps(formula)
        def checked(evidence: Evidence) -> Scores:
            if reason := self.reason(evidence):
                raise KappaPlaceError(reason)
            return formula(evidence)

        return checked


def _need(name: str, ask: Callable[[Evidence], object]) -> Need:
    """Return a need that is missing if ``ask`` raises an error, whose message is used."""

    def lacking(evidence: Evidence) -> str | None:
        try:
            ask(evidence)
        except KappaPlaceError as error:
            return str(error)
        return None

    return Need(name, lacking)


QUERY_KAPPA = _need("κ of the queries", lambda e: e.query_kappa)
REFERENCE_KAPPA = _need("κ of the references", lambda e: e.match_kappa)
QUERY_VARIANCE = _need("variance of the queries", lambda e: e.query_variance)
DIM = _need("descriptors (their length)", lambda e: e.dim)
POSITIONS = _need("positions of the references", lambda e: e.match_positions)
NEIGHBORHOOD = _need("neighborhood of the references", lambda e: e.references.near)
REFERENCE_DESCRIPTORS = _need("descriptors of the references", lambda e: e.reference_descriptors)
ALL_SIMILARITIES = _need("similarities of all references", lambda e: e.vectors)


def at_least(k: int) -> Need:
    """Return the need for at least k matches per query."""

    def lacking(evidence: Evidence) -> str | None:
        count = evidence.matches.indices.shape[1]
        if count >= k:
            return None
        return f"This score needs at least {k} matches per query, got {count}. Retrieve more."

    return Need(f"{k} matches", lacking)


def _no_match_outside(evidence: Evidence) -> str | None:
    unresolved = int(np.isneginf(evidence.outside_in_list).sum())
    if unresolved == 0 or ALL_SIMILARITIES.lacking(evidence) is None:
        return None
    return (
        f"All matches of {unresolved:,} queries show the place of the top match. Retrieve more matches, or "
        "pass the descriptors of queries and references or the full similarity matrix."
    )


OUTSIDE = Need("a match of another place, or all similarities", _no_match_outside)


def _images(evidence: Evidence) -> None:
    if evidence.queries.images is None:
        raise KappaPlaceError(NO_IMAGES)
    evidence.references.images(np.empty(0, np.int64))


IMAGES = _need("images of queries and references", _images)
PATCH_MAPS = Need(
    "a model with patch features", lambda e: NO_PATCHES if e.queries.patch_maps is None else None
)
OPENCV = _need("OpenCV", lambda e: import_extra("cv2", "Geometric verification", "video"))
