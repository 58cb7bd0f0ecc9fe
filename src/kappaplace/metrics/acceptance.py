"""Accept queries from the most certain to the least certain: the curve behind every ranking metric."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.metrics.checks import checked_scores

NAN = float("nan")


class AcceptanceCurve(NamedTuple):
    """What is accepted at each threshold.

    Queries of equal uncertainty cannot be told apart, so they are accepted together, as one step: no metric
    depends on the order in which tied queries are given.
    """

    threshold: NDArray[np.float64]
    """Each value of the uncertainty, ascending; a query is accepted if its uncertainty is not above it."""
    accepted: NDArray[np.int64]
    """Queries accepted at each threshold."""
    right: NDArray[np.int64]
    """Those of them that are right."""

    @property
    def queries(self) -> int:
        """All queries."""
        return int(self.accepted[-1])

    @property
    def successes(self) -> int:
        """All right queries."""
        return int(self.right[-1])

    @property
    def coverage(self) -> NDArray[np.float64]:
        """Share of the queries that is accepted."""
        return self.accepted / self.queries

    @property
    def risk(self) -> NDArray[np.float64]:
        """Selective risk: share of the accepted that is wrong."""
        return (self.accepted - self.right) / self.accepted

    @property
    def auroc(self) -> float:
        """See ``ranking.auroc``."""
        failures = self.queries - self.successes
        if self.successes == 0 or failures == 0:
            return NAN
        wrong = steps(self.accepted - self.right)
        # Each wrong query beats the right ones before its step, and half of those that share its step.
        right_before = self.right - steps(self.right) / 2
        return float((wrong * right_before).sum() / (self.successes * failures))

    @property
    def auc_pr(self) -> float:
        """See ``ranking.auc_pr``."""
        if self.successes == 0:
            return NAN
        return float((steps(self.right) * (1 - self.risk)).sum() / self.successes)

    @property
    def recall_at_full_precision(self) -> float:
        """See ``ranking.recall_at_full_precision``."""
        if self.successes == 0:
            return NAN
        return float(self.right[self.right == self.accepted].max(initial=0) / self.successes)

    @property
    def aurc(self) -> float:
        """See ``selective.aurc``."""
        return float((steps(self.accepted) * self.risk).sum() / self.queries)

    @property
    def e_aurc(self) -> float:
        """See ``selective.e_aurc``."""
        accepted = np.arange(self.successes + 1, self.queries + 1)  # the best order errs only from here on
        best = float(((accepted - self.successes) / accepted).sum() / self.queries)
        return max(0.0, self.aurc - best)  # rounding must not make the best order better than itself

    @property
    def augrc(self) -> float:
        """See ``selective.augrc``."""
        wrong = self.accepted - self.right
        return float((steps(self.accepted) * (wrong - steps(wrong) / 2)).sum() / self.queries**2)

    def coverage_at(self, risk: float) -> float:
        """See ``selective.coverage_at_risk``."""
        return float(self.accepted[self.risk <= risk].max(initial=0) / self.queries)


def acceptance_curve(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> AcceptanceCurve:
    """Sort once; all ranking and selective metrics are then properties of the curve.

    >>> acceptance_curve(np.array([0.3, 0.1, 0.1]), np.array([False, True, True])).accepted
    array([2, 3])
    """
    scores, outcome = checked_scores(uncertainty, success)
    order = np.argsort(scores)
    ordered = scores[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)  # of each tied group
    return AcceptanceCurve(ordered[last], last + 1, np.cumsum(outcome[order])[last])


def steps(cumulative: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much each step adds."""
    return np.diff(cumulative, prepend=0)
