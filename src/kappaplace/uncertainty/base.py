"""What every score must say of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import Floats as Scores

__all__ = ["Evidence", "Formula", "Need", "Score", "Scores"]

Formula = Callable[[Evidence], Scores]


@dataclass(frozen=True)
class Need:
    """Something that a score cannot do without; those at hand are in `kappaplace.uncertainty.needs`."""

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
