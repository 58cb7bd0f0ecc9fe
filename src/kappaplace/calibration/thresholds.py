"""Decision thresholds for a stated share of queries from outside the map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kappaplace.calibration.checks import Bools, Floats, percent
from kappaplace.calibration.decision import SELF_CALIBRATED, DecisionRule, fit_rule
from kappaplace.calibration.outside import thin_to_rate
from kappaplace.calibration.risk import RiskRefused
from kappaplace.errors import KappaPlaceError


def fit_rule_for_rate(
    uncertainty: Floats,
    success: Bools,
    outside: Bools | None,
    rate: float | None,
    max_risk: float,
    confidence: float,
    labelled: bool,
    queries: int,
    seed: int,
    options: Mapping[str, Any],
) -> DecisionRule:
    """Thresholds for the stated share of queries from outside the map.

    The risk of a threshold grows with that share, as all those queries are wrong; so without a stated one the
    promise holds up to the share of the sample. For a stated one the sample is thinned to it. A refusal
    speaks of all labelled ``queries``, those that the score was fitted on and those thinned out among them.
    """
    notes = [] if labelled else [SELF_CALIBRATED]
    guaranteed, slack = labelled, 0.0
    if rate is None:
        seen = "" if outside is None else f" ({percent(float(outside.mean()))})"
        notes.append(f"Queries from outside the map may not be more frequent than at calibration{seen}.")
    elif outside is None or not outside.any():
        if rate > 0:
            guaranteed = False
            notes.append(
                "None of the queries at calibration was from outside the map, so nothing is proven for a "
                f"share of {percent(rate)} that is."
            )
        else:
            notes.append("Holds for queries from inside the map only.")
    else:
        slack = (1 - confidence) / 100
        rows = thin_to_rate(outside, rate, seed, slack=slack)
        if not len(rows):
            raise KappaPlaceError(
                f"Too few queries are from inside or outside the map for a share of {percent(rate)}."
            )
        uncertainty, success = uncertainty[rows], success[rows]
        notes.append(f"No more than {percent(rate)} of the queries may come from outside the map.")
    try:
        return fit_rule(
            uncertainty,
            success,
            max_risk,
            confidence,
            slack=slack,
            guaranteed=guaranteed,
            assumptions=tuple(notes),
            **options,
        )
    except RiskRefused as refusal:
        raise _in_all(refusal, len(uncertainty) / queries) from None


def _in_all(refusal: RiskRefused, threshold_share: float) -> RiskRefused:
    """The same refusal, counted in all labelled queries; the thresholds had this share of them."""
    if refusal.needed is None:
        return refusal
    needed = int(np.ceil(refusal.needed / threshold_share))
    sentence = str(refusal).rstrip(".")
    return RiskRefused(
        f"{sentence}; with those that the score is fitted on, that is about {needed:,} labelled queries in "
        "all.",
        needed,
    )
