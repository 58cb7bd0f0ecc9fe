"""Refusing the doubtful: how many errors are left at each share of answered queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.acceptance import AcceptanceCurve, acceptance_curve

RISKS = (0.01, 0.05, 0.10)
"""The risks at which coverage is reported."""


def risk_coverage_curve(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> AcceptanceCurve:
    """Coverage and selective risk after each step; tied queries are accepted together.

    >>> curve = risk_coverage_curve(np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True]))
    >>> curve.coverage.tolist(), curve.risk.round(3).tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.333, 0.25])
    """
    return acceptance_curve(uncertainty, success)


def aurc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Area under the risk–coverage curve: the mean selective risk over the N coverages 1/N, 2/N, … 1.

    Inside a tied group every coverage takes the risk at the group's end, so a constant score gives the risk
    of answering always.

    >>> round(aurc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False])), 4)
    0.1111
    """
    return acceptance_curve(uncertainty, success).aurc


def e_aurc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Excess AURC: AURC minus that of the best order of these queries, all right ones first; never below 0.

    >>> e_aurc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
    0.0
    """
    return acceptance_curve(uncertainty, success).e_aurc


def augrc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Area under generalised risk (share of queries that is accepted and wrong) over coverage, in [0, 1/2].

    Joined by straight lines from (0, 0), which is the mean over all orders of a tied group. With accuracy a
    it is (1 − a)²/2 + a(1 − a)(1 − AUROC): AUROC and accuracy in one number.

    >>> round(augrc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False])), 4)
    0.0556
    """
    return acceptance_curve(uncertainty, success).augrc


def coverage_at_risk(uncertainty: NDArray[np.floating], success: NDArray[np.bool_], risk: float) -> float:
    """The largest share of queries, most certain first, of which at most the share ``risk`` is wrong.

    Chosen on the very queries it is measured on, so it describes them and promises nothing for others. Tied
    queries are accepted together; 0 where even the first step is too risky.

    >>> coverage_at_risk(np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True]), 0.25)
    1.0
    """
    if not 0 <= risk <= 1:
        raise KappaPlaceError(f"A risk lies between 0 and 1, got {risk}.")
    return acceptance_curve(uncertainty, success).coverage_at(risk)
