"""What every score must say of itself.

What scores need, as data: each knows how to tell that it is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import NO_IMAGES, NO_PATCHES
from kappaplace.retrieval.references import Floats as Scores

__all__ = ["Evidence", "Formula", "Need", "Score", "Scores"]

Formula = Callable[[Evidence], Scores]


@dataclass(frozen=True)
class Need:
    """Something that a score cannot do without; those at hand are in `kappaplace.uncertainty.base`."""

    what: str
    """In a few words, for tables: "κ of the queries"."""
    lacking: Callable[[Evidence], str | None] = field(compare=False, repr=False)
    """One sentence that says what is missing and what to do; None where all is there."""


@dataclass(frozen=True)
class Score:
    """One way to say how uncertain a query, or each of its matches, is. Higher is less certain."""

    name: str
    label: str
    """As shown in tables and figures."""
    query: Formula
    """One number a query: N."""
    match: Formula | None = None
    """One number a pair: N×K; None for scores of the query alone."""
    needs: tuple[Need, ...] = ()
    """Both formulas raise the reason of the first need that is lacking."""
    one_sided: bool = True
    """Whether the score has one tail only (distances) or two (κ); ECE clamps accordingly."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", self._checked(self.query))
        if self.match is not None:
            object.__setattr__(self, "match", self._checked(self.match))

    def reason(self, evidence: Evidence) -> str | None:
        """Why this score cannot be had from this evidence, in one sentence; None where it can."""
        return next((reason for need in self.needs if (reason := need.lacking(evidence))), None)

    @property
    def needs_kappa(self) -> bool:
        """Whether a model with a kappa head must have made the embeddings."""
        return any(need.what.startswith("κ") for need in self.needs)

    def _checked(self, formula: Formula) -> Formula:
        @wraps(formula)
        def checked(evidence: Evidence) -> Scores:
            if reason := self.reason(evidence):
                raise KappaPlaceError(reason)
            return formula(evidence)

        return checked


def _need(what: str, ask: Callable[[Evidence], Any]) -> Need:
    """Lacking is whatever the evidence itself refuses to give, told in its own words."""

    def lacking(evidence: Evidence) -> str | None:
        try:
            ask(evidence)
        except KappaPlaceError as error:
            return str(error)
        return None

    return Need(what, lacking)


QUERY_KAPPA = _need("κ of the queries", lambda e: e.query_kappa)
REFERENCE_KAPPA = _need("κ of the references", lambda e: e.match_kappa)
QUERY_VARIANCE = _need("variance of the queries", lambda e: e.query_variance)
DIM = _need("descriptors (their length)", lambda e: e.dim)
POSITIONS = _need("positions of the references", lambda e: e.match_positions)
NEIGHBORHOOD = _need("neighbourhood of the references", lambda e: e.references.near)
REFERENCE_DESCRIPTORS = _need("descriptors of the references", lambda e: e.reference_descriptors)
ALL_SIMILARITIES = _need("similarities of all references", lambda e: e.vectors)


def at_least(k: int) -> Need:
    """So many matches a query."""

    def lacking(evidence: Evidence) -> str | None:
        found = evidence.matches.indices.shape[1]
        if found >= k:
            return None
        return (
            f"This score looks at the best references together; retrieve at least {_NUMBER[k]}, not {found}."
        )

    return Need(f"{k} matches", lacking)


_NUMBER = {2: "two", 3: "three"}


def _no_match_outside(evidence: Evidence) -> str | None:
    unresolved = int(np.isneginf(evidence.outside_in_list).sum())
    if unresolved == 0 or ALL_SIMILARITIES.lacking(evidence) is None:
        return None
    return (
        f"All matches of {unresolved:,} queries lie in the place of the top one; retrieve more, or give the "
        "descriptors of queries and references or the full similarity matrix."
    )


OUTSIDE = Need("a match outside the place, or all similarities", _no_match_outside)


def _no_images(evidence: Evidence) -> str | None:
    if evidence.queries.images is None:
        return NO_IMAGES
    try:
        evidence.references.images(np.empty(0, np.int64))
    except KappaPlaceError as error:
        return str(error)
    return None


def _no_opencv(evidence: Evidence) -> str | None:
    try:
        import cv2  # noqa: F401
    except ImportError:
        return str(MissingExtra("Geometric verification", "video"))
    return None


def _no_patches(evidence: Evidence) -> str | None:
    return NO_PATCHES if evidence.queries.patch_maps is None else None


IMAGES = Need("images of queries and references", _no_images)
PATCH_MAPS = Need("a model that shows its stages", _no_patches)
OPENCV = Need("OpenCV", _no_opencv)
