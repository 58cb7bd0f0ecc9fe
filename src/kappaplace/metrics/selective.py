"""Metrics of selective answers: queries are accepted from the most certain to the least certain.

A monotone rescaling of the score does not change any of these metrics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import outcomes, share

NAN = float("nan")
RISKS = (0.01, 0.05, 0.10)
"""Risks for which coverage is reported."""


class AcceptanceCurve(NamedTuple):
    """Accepted and correct queries at each threshold.

    Queries with equal uncertainty are accepted together, as one step, so no metric depends on the order of
    tied queries.
    """

    threshold: NDArray[np.float64]
    """Each value of the uncertainty, ascending; a query is accepted if its uncertainty is at most this."""
    accepted: NDArray[np.int64]
    """Queries accepted at each threshold."""
    correct: NDArray[np.int64]
    """Correct queries among the accepted ones, at each threshold."""

    @property
    def queries(self) -> int:
        """Number of queries."""
        return int(self.accepted[-1])

    @property
    def successes(self) -> int:
        """Number of correct queries."""
        return int(self.correct[-1])

    @property
    def coverage(self) -> NDArray[np.float64]:
        """Fraction of the queries that is accepted."""
        return self.accepted / self.queries

    @property
    def risk(self) -> NDArray[np.float64]:
        """Selective risk: fraction of the accepted queries that is incorrect."""
        return (self.accepted - self.correct) / self.accepted

    @property
    def auroc(self) -> float:
        """Area under the ROC curve, see the function ``auroc``."""
        failures = self.queries - self.successes
        if self.successes == 0 or failures == 0:
            return NAN
        incorrect = _steps(self.accepted - self.correct)
        # An incorrect query ranks after the correct ones of earlier steps and half of those of its step.
        correct_before = self.correct - _steps(self.correct) / 2
        return float((incorrect * correct_before).sum() / (self.successes * failures))

    @property
    def auc_pr(self) -> float:
        """Area under the precision–recall curve, see the function ``auc_pr``."""
        if self.successes == 0:
            return NAN
        return float((_steps(self.correct) * (1 - self.risk)).sum() / self.successes)

    @property
    def recall_at_full_precision(self) -> float:
        """Recall at 100% precision, see the function ``recall_at_full_precision``."""
        if self.successes == 0:
            return NAN
        return float(self.correct[self.correct == self.accepted].max(initial=0) / self.successes)

    @property
    def aurc(self) -> float:
        """Area under the risk–coverage curve, see the function ``aurc``."""
        return float((_steps(self.accepted) * self.risk).sum() / self.queries)

    @property
    def e_aurc(self) -> float:
        """Excess AURC over the best order, see the function ``e_aurc``."""
        accepted = np.arange(self.successes + 1, self.queries + 1)  # the best order errs only from here
        best = float(((accepted - self.successes) / accepted).sum() / self.queries)
        return max(0.0, self.aurc - best)  # rounding could make the best order better than itself

    @property
    def augrc(self) -> float:
        """Area under generalized risk over coverage, see the function ``augrc``."""
        incorrect = self.accepted - self.correct
        return float((_steps(self.accepted) * (incorrect - _steps(incorrect) / 2)).sum() / self.queries**2)

    def coverage_at(self, risk: float) -> float:
        """Compute the coverage for a risk, see ``coverage_at_risk``.

        Args:
            risk: Largest fraction of incorrect queries among the accepted ones.

        Returns:
            The fraction of accepted queries.
        """
        return float(self.accepted[self.risk <= risk].max(initial=0) / self.queries)


def acceptance_curve(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> AcceptanceCurve:
    """Sort the queries once; all ranking and selective metrics are properties of the curve.

    Tied queries are accepted together.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The curve.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> acceptance_curve(np.array([0.3, 0.1, 0.1]), np.array([False, True, True])).accepted
    array([2, 3])
    >>> curve = acceptance_curve(np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True]))
    >>> curve.coverage.tolist(), curve.risk.round(3).tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.333, 0.25])
    """
    scores, outcome = outcomes(uncertainty, success)
    order = np.argsort(scores)
    ordered = scores[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)  # of each tied group
    return AcceptanceCurve(ordered[last], last + 1, np.cumsum(outcome[order])[last])


def auroc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the probability that a correct query is less uncertain than an incorrect one; ties count half.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The area, in [0, 1]; NaN if all queries are correct or all are incorrect.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> auroc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
    1.0
    """
    return acceptance_curve(uncertainty, success).auroc


def auc_pr(
    uncertainty: NDArray[np.floating], success: NDArray[np.bool_], *, trapezoid: bool = False
) -> float:
    """Compute the area under the precision–recall curve: Σ (recall gained × precision after it).

    It is also called average precision. A tied group is one step: all its queries have the precision
    after the whole group is accepted. A constant score therefore has exactly ``random_auc_pr``.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.
        trapezoid: Join the points by straight lines, from recall 0 and precision 1, as the code of SUE and
            the authors' release do. The area is then usually larger, also for a constant score.

    Returns:
        The area, in [0, 1]; NaN if no query is correct.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> round(auc_pr(np.array([0.1, 0.2, 0.3]), np.array([True, False, True])), 4)
    0.8333
    """
    curve = acceptance_curve(uncertainty, success)
    if not trapezoid or not curve.successes:
        return curve.auc_pr
    precision = np.append(1.0, 1 - curve.risk)
    return float((_steps(curve.correct) * (precision[1:] + precision[:-1]) / 2).sum() / curve.successes)


def random_auc_pr(success: NDArray[np.bool_]) -> float:
    """Compute the AUC-PR of a random score: the fraction of correct queries, which is R@K.

    Args:
        success: Whether each query is correct, N booleans.

    Returns:
        The fraction.

    >>> random_auc_pr(np.array([True, False, True, True]))
    0.75
    """
    _, outcome = outcomes(np.zeros(np.shape(success)), success)
    return float(outcome.mean())


def recall_at_full_precision(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute R@100%P: the fraction of correct queries that is accepted before the first incorrect one.

    A tied group that contains an incorrect query is not accepted.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The recall, in [0, 1]; NaN if no query is correct.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> recall_at_full_precision(np.array([0.1, 0.2, 0.3]), np.array([True, False, True]))
    0.5
    """
    return acceptance_curve(uncertainty, success).recall_at_full_precision


def aurc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the area under the risk–coverage curve: mean selective risk over the coverages 1/N, 2/N, … 1.

    Inside a tied group, every coverage has the risk at the end of the group. A constant score therefore has
    the risk of accepting all queries.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The area, in [0, 1]; lower is better.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> round(aurc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False])), 4)
    0.1111
    """
    return acceptance_curve(uncertainty, success).aurc


def e_aurc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the excess AURC: AURC minus the AURC of the best order, with all correct queries first.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The excess, 0 or more; lower is better.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> e_aurc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
    0.0
    """
    return acceptance_curve(uncertainty, success).e_aurc


def augrc(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Compute the area under generalized risk over coverage.

    Generalized risk is the fraction of queries that is accepted and incorrect. Steps are joined by straight
    lines from (0, 0), which is the mean over all orders of a tied group. With accuracy a, the area is
    (1 − a)²/2 + a(1 − a)(1 − AUROC): AUROC and accuracy in one number.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.

    Returns:
        The area, in [0, 1/2]; lower is better.

    Raises:
        KappaPlaceError: If a score is not finite, or the shapes differ.

    >>> round(augrc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False])), 4)
    0.0556
    """
    return acceptance_curve(uncertainty, success).augrc


def coverage_at_risk(uncertainty: NDArray[np.floating], success: NDArray[np.bool_], risk: float) -> float:
    """Compute the largest coverage with a risk of at most ``risk``.

    The threshold is selected on the same queries, so the result describes them and guarantees nothing for
    other queries. Tied queries are accepted together.

    Args:
        uncertainty: Uncertainty of each query, N; higher means less certain.
        success: Whether each query is correct, N booleans.
        risk: Largest fraction of incorrect queries among the accepted ones.

    Returns:
        The fraction of accepted queries; 0 if even the most certain ones exceed the risk.

    Raises:
        KappaPlaceError: If risk is not in [0, 1], a score is not finite, or the shapes differ.

    >>> coverage_at_risk(np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True]), 0.25)
    1.0
    """
    share(risk, "risk", ends=True)
    return acceptance_curve(uncertainty, success).coverage_at(risk)


def _steps(cumulative: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the increase of each step."""
    return np.diff(cumulative, prepend=0)
