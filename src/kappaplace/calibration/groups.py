"""Risk guarantees per group of queries (Mondrian): by ranges of κ, or by the values of a label column.

A single threshold keeps the risk on average: by night, more than the allowed fraction of the accepted answers
may be incorrect, and by day fewer. With groups, each group has its own thresholds, set by `fit_rule` on its
own labelled queries, so the guarantee holds in each of them. A group with too few labels has no guarantee:
its answers are never accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.decision import Decision, DecisionRule
from kappaplace.checks import Bools, Floats, Rows, percent
from kappaplace.errors import KappaPlaceError

KAPPA = "kappa"
RANGES = ("low kappa", "medium kappa", "high kappa")
"""Names of the groups by κ: thirds of the queries that the score was fitted on."""
QUARTERS = 4
UNGROUPED = "This calibration has no groups, so a group cannot be selected. Calibrate with --groups."
AUTOMATIC = "The groups of this calibration are ranges of kappa, which are detected. Omit the group."
ANY_GROUP = (
    "No group was selected, so an answer is only accepted if the thresholds of all groups accept it. Pass "
    "--group."
)


@dataclass(frozen=True)
class GroupRules:
    """Thresholds per group."""

    by: str
    """"kappa", or the column of the labels."""
    rules: Mapping[str, DecisionRule] = field(default_factory=dict)
    """Thresholds of the groups with enough labels."""
    needed: Mapping[str, int] = field(default_factory=dict)
    """Groups with too few labels, and about how many labelled queries each needs; 0 if none is enough."""
    edges: tuple[float, ...] = ()
    """Values of κ between the groups, ascending; empty for a column."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all groups."""
        known = (*self.rules, *self.needed)
        return RANGES if self.by == KAPPA else tuple(sorted(known))

    def members(self, kappa: Callable[[], Floats], count: int, group: str | None) -> list[str | None]:
        """Return the group of each query.

        Args:
            kappa: Function that returns κ of each query; only called if groups are ranges of κ.
            count: Number of queries.
            group: Group of all queries, for groups by a column.

        Returns:
            Name per query; None if no group was selected.

        Raises:
            KappaPlaceError: If the group is unknown, or cannot be selected.
        """
        if self.by == KAPPA:
            if group is not None:
                raise KappaPlaceError(AUTOMATIC)
            return kappa_groups(kappa(), self.edges)
        if group is not None and group not in self.names:
            raise KappaPlaceError(
                f"Unknown group '{group}' of {self.by}. Choose from: {', '.join(self.names)}."
            )
        return [group] * count

    def decide(
        self, members: Sequence[str | None], uncertainty: Floats, probability: Floats
    ) -> tuple[NDArray[np.object_], Bools]:
        """Decide each query by the thresholds of its group.

        Without a group, the worst decision of all groups counts, so that the risk is kept in each of them.

        Args:
            members: Group of each query.
            uncertainty: Uncertainty of each query (N).
            probability: Probability that each answer is correct (N).

        Returns:
            Decision of each query (N), and whether the risk of accepting is guaranteed (N).
        """
        worst = list(Decision)
        tables = {
            name: rule.decide(uncertainty=uncertainty, probability=probability)
            for name, rule in self.rules.items()
        }
        decisions, guaranteed = [], []
        for row, member in enumerate(members):
            asked = self.names if member is None else (member,)
            own = [tables[name][row] if name in tables else Decision.DOUBTFUL for name in asked]
            decisions.append(max(own, key=worst.index))
            guaranteed.append(all(name in self.rules and self.rules[name].guaranteed for name in asked))
        return np.array(decisions, object), np.array(guaranteed, bool)

    def note(self, member: str | None) -> str:
        """Return the note for an answer without a group, or of one without a guarantee; otherwise empty."""
        if member is None and not self.needed:
            return ANY_GROUP
        lacking = [name for name in self.needed if member in (None, name)]
        if not lacking:
            return ""
        parts = ", ".join(f"{name}{_labels(self.needed[name])}" for name in lacking)
        return (
            f"Not accepted, because the calibration has too few labelled queries of the group: {parts}. "
            "Label more of them and calibrate again."
        )

    @property
    def sentence(self) -> str:
        """Describe the thresholds of all groups."""
        accepted = ", ".join(
            f"{name} (about {percent(rule.accepted.coverage)} of the queries are accepted)"
            for name, rule in self.rules.items()
            if rule.accepted is not None
        )
        lacking = ", ".join(f"{name}{_labels(count)}" for name, count in self.needed.items())
        text = f"Groups by {self.by}: the risk holds in each of {accepted}." if accepted else ""
        if lacking:
            text += f" Nothing is guaranteed or accepted in {lacking}, because of too few labels."
        return text.strip()


@dataclass(frozen=True)
class Quarter:
    """Results of a quarter of the labelled queries, sorted by their uncertainty."""

    queries: int
    correct: int
    """Number of correct answers."""
    accepted: int
    errors: int
    """Number of accepted answers that are incorrect."""
    covered: int | None = None
    """Number of queries whose correct place is in their 95% candidate set, which is derived from all other
    queries. None if correct places are unknown."""

    @property
    def sentence(self) -> str:
        """The results in words."""
        count = max(self.queries, 1)
        sets = "" if self.covered is None else f", {self.covered / count:.0%} in the 95% candidate set"
        return (
            f"{self.correct / count:.0%} correct, {self.accepted / count:.0%} accepted ({self.errors:,} "
            f"incorrect){sets}"
        )


def _labels(needed: int) -> str:
    return f" (about {needed:,} labelled queries are needed)" if needed else ""


def kappa_edges(kappa: Floats) -> tuple[float, ...]:
    """Return the values of κ that divide queries into thirds."""
    return tuple(np.quantile(kappa, [1 / 3, 2 / 3]).tolist())


def kappa_groups(kappa: Floats, edges: Sequence[float]) -> list[str | None]:
    """Return the name of each query's range of κ.

    >>> kappa_groups(np.array([10.0, 50.0, 90.0]), (40.0, 80.0))
    ['low kappa', 'medium kappa', 'high kappa']
    """
    return [RANGES[number] for number in np.searchsorted(edges, kappa, side="right").tolist()]


def quarters(uncertainty: Floats) -> list[Rows]:
    """Return the rows of the queries by quarter of their uncertainty, easiest first."""
    return np.array_split(np.argsort(uncertainty, kind="stable"), QUARTERS)
