"""Options of a calibration, for Python and the command line; this module imports nothing that loads
slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from kappaplace.checks import check_compared, checked_seed, share
from kappaplace.records import Help

REJECT_RISK = 0.2
OUTSIDE_RATE = 0.1
"""Default fraction of out-of-map queries, used if they were made from labelled queries."""
RERANK = 10
"""Default number of matches to re-rank by patch matching, if the model and the images allow it."""


@dataclass(frozen=True)
class CalibrateOptions:
    """Options of a calibration: the fit and the guarantee.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    max_risk: Annotated[float | None, Help("Maximum error rate among accepted answers.")] = 0.05
    """None: no decisions, and every query is used to fit the score."""
    confidence: Annotated[float, Help("Confidence level of the risk guarantee.")] = 0.95
    outside_rate: Annotated[
        float | None,
        Help(
            "Expected fraction of out-of-map queries. Default: the fraction among the labelled queries, "
            "or 0.1."
        ),
    ] = None
    rerank: Annotated[
        int | None,
        Help(
            "Number of top matches to re-rank by patch matching, now and whenever the map is queried (0 "
            "for none). Default: the number used for the labels, or 10 if the model allows it.",
            ("--rerank", "--verify"),
        ),
    ] = None
    thin: Annotated[bool, Help("Use only one labelled query per place.")] = True
    """Neighbouring queries fail together; the guarantee counts independent ones."""
    keep_twins: Annotated[
        bool,
        Help("Also use labelled queries that are near-copies of map images (easier than real queries)."),
    ] = False
    seed: Annotated[int, Help("Random seed for the data split and the image degradation.")] = 0
    calibrator: str = "best"
    """A name of `CALIBRATORS`, or "best"."""
    reject_risk: float | None = REJECT_RISK
    """Maximum fraction of correct answers among the rejected; None: nothing is rejected."""
    method: str = "multi-start"
    """Method to test thresholds, see `control_risk`."""
    fit_share: float = 0.5
    """Fraction of the queries that the score is fitted on; the thresholds are set on the others."""

    def __post_init__(self) -> None:
        if self.max_risk is not None:
            share(self.max_risk, "risk")
        share(self.confidence, "confidence")
        if self.outside_rate is not None:
            share(self.outside_rate, "expected fraction of out-of-map queries", ends=True)
        checked_seed(self.seed)
        check_compared(self.rerank or 0)
