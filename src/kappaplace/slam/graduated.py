"""Graduated non-convexity (Yang et al., 2020): from a convex cost to truncated least squares, all at once."""

from __future__ import annotations

from typing import Any

from kappaplace.slam.graph_factors import load_gtsam

INLIER = 0.99
"""Share of right closures whose error is to be kept: the quantile of χ² that truncates."""


def graduated(graph: Any, start: Any, settings: Any, trusted: int) -> Any:
    """Solved by GNC; the first so many factors (odometry) are beyond doubt."""
    gtsam = load_gtsam()
    terms = gtsam.GncLMParams(settings)
    terms.setLossType(gtsam.GncLossType.TLS)
    terms.setKnownInliers(list(range(trusted)))
    solver = gtsam.GncLMOptimizer(graph, start, terms)
    solver.setInlierCostThresholdsAtProbability(INLIER)
    return solver.optimize()
