"""Queries accepted from the most certain to the least certain: how well does a score find the errors?

No monotone re-scaling of a score changes any of these metrics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import outcomes
from kappaplace.errors import KappaPlaceError

NAN = float("nan")
RISKS = (0.01, 0.05, 0.10)
"""The risks at which coverage is reported."""


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
        """See ``auroc``."""
        failures = self.queries - self.successes
        if self.successes == 0 or failures == 0:
            return NAN
        wrong = _steps(self.accepted - self.right)
        # Each wrong query beats the right ones before its step, and half of those that share its step.
        right_before = self.right - _steps(self.right) / 2
        return float((wrong * right_before).sum() / (self.successes * failures))

    @property
    def auc_pr(self) -> float:
        """See ``auc_pr``."""
        if self.successes == 0:
            return NAN
        return float((_steps(self.right) * (1 - self.risk)).sum() / self.successes)

    @property
    def recall_at_full_precision(self) -> float:
        """See ``recall_at_full_precision``."""
        if self.successes == 0:
            return NAN
        return float(self.right[self.right == self.accepted].max(initial=0) / self.successes)

    @property
    def aurc(self) -> float:
        """See ``aurc``."""
        return float((_steps(self.accepted) * self.risk).sum() / self.queries)

    @property
    def e_aurc(self) -> float:
        """See ``e_aurc``."""
        accepted = np.arange(self.successes + 1, self.queries + 1)  # the best order errs only from here on
        best = float(((accepted - self.successes) / accepted).sum() / self.queries)
        return max(0.0, self.aurc - best)  # rounding must not make the best order better than itself

    @property
    def augrc(self) -> float:
        """See ``augrc``."""
        wrong = self.accepted - self.right
        return float((_steps(self.accepted) * (wrong - _steps(wrong) / 2)).sum() / self.queries**2)

    def coverage_at(self, risk: float) -> float:
        """See ``coverage_at_risk``."""
        return float(self.accepted[self.risk <= risk].max(initial=0) / self.queries)


def acceptance_curve(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> AcceptanceCurve:
    """Sort once; all ranking and selective metrics are then properties of the curve.

    Tied queries are accepted together.

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
    """Probability that a right query is less uncertain than a wrong one; ties count half.

    NaN where all are right or all are wrong: there is nothing to tell apart.

    >>> auroc(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
    1.0
    """
    return acceptance_curve(uncertainty, success).auroc


def auc_pr(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """Area under precision and recall of success (average precision): Σ (recall gained × precision after it).

    A tied group is one step: all its queries take the precision reached once all of them are accepted. A
    constant score therefore gives exactly ``random_auc_pr``. NaN where no query is right.

    >>> round(auc_pr(np.array([0.1, 0.2, 0.3]), np.array([True, False, True])), 4)
    0.8333
    """
    return acceptance_curve(uncertainty, success).auc_pr


def random_auc_pr(success: NDArray[np.bool_]) -> float:
    """What AUC-PR is worth without any knowledge: the share of right queries, i.e. R@K itself.

    >>> random_auc_pr(np.array([True, False, True, True]))
    0.75
    """
    _, outcome = outcomes(np.zeros(np.shape(success)), success)
    return float(outcome.mean())


def recall_at_full_precision(uncertainty: NDArray[np.floating], success: NDArray[np.bool_]) -> float:
    """R@100%P: the share of the right queries that is accepted before the first wrong one.

    A tied group that holds a wrong query is not accepted at all. NaN where no query is right.

    >>> recall_at_full_precision(np.array([0.1, 0.2, 0.3]), np.array([True, False, True]))
    0.5
    """
    return acceptance_curve(uncertainty, success).recall_at_full_precision


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


def _steps(cumulative: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much each step adds."""
    return np.diff(cumulative, prepend=0)
