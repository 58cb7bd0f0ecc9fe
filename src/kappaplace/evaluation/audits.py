"""Audits of a threshold in use: how often accepted answers are incorrect, and which threshold would be safe.

The scores come from any system (a similarity, a distance, a number of inliers). Nothing is fitted, so all
labelled answers measure the threshold, and all of them support the guarantee of another one.

Frames of a drive fail together. The interval then counts blocks of frames, or whole drives if there are at
least five (`clustered_interval`). The guarantee uses only the first answer of each block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration import RiskRefused, control_risk
from kappaplace.checks import Bools, Floats, Rows, booleans, outcomes, percent
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.options import AuditOptions
from kappaplace.metrics import LEAST_CLUSTERS, ROUTE_BLOCK, clustered_interval
from kappaplace.records import to_plain
from kappaplace.types import Json

DIGITS = range(6, 17)
"""Significant digits of a threshold: the fewest that accept the same answers."""
INDEPENDENT = (
    "Answers were treated as independent of each other. If they are consecutive frames of a drive, pass "
    "--block 20, because such frames fail together."
)
BLOCKS = "Frames fail together, so {block} consecutive answers count as one observation."
DRIVES = "Answers of a drive fail together, so the interval counts {count:,} drives instead of answers."


@dataclass(frozen=True, eq=False)
class ScoredAnswers:
    """Answers of a system with their scores and outcomes.

    Raises:
        KappaPlaceError: If a score is not finite, or lengths differ.
    """

    scores: Floats
    """Score of each answer, N."""
    correct: Bools
    """Whether each answer is correct, N."""
    lower_is_better: bool = False
    """Whether the scores are distances."""
    answerable: Bools | None = None
    """Whether each query has a correct answer, N. Default: only those that were answered correctly."""
    drives: NDArray[np.generic] | None = None
    """Drive of each answer, N; the answers of a drive are in their order. Default: unknown."""
    sequence: bool = False
    """Whether the answers are consecutive frames. Always the case with drives."""

    def __post_init__(self) -> None:
        scores, correct = outcomes(self.scores, self.correct)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "correct", correct)
        if self.answerable is not None:
            booleans(self.answerable, scores.shape, "mask of answerable queries")
        if self.drives is not None and np.shape(self.drives) != scores.shape:
            raise KappaPlaceError(
                f"drives must have one value per answer ({len(scores):,}), got shape {np.shape(self.drives)}."
            )

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def uncertainty(self) -> Floats:
        """Scores with a sign such that higher is worse, N."""
        return self.scores if self.lower_is_better else -self.scores


@dataclass(frozen=True)
class OperatingPoint:
    """Effect of a threshold on the answers of an audit."""

    threshold: float
    accepted: int
    errors: int
    """Number of accepted answers that are incorrect."""
    risk: float | None
    """Error rate among the accepted answers; None if there are none."""
    low: float | None
    """Lower limit of the risk."""
    high: float | None
    """Upper limit of the risk."""
    coverage: float
    """Fraction of the answers that are accepted."""
    recall: float | None
    """Fraction of the answerable queries that are accepted with a correct answer; None if there are none."""


@dataclass(frozen=True)
class Audit:
    """Result of an audit."""

    sentence: str
    answers: int
    correct: int
    """Number of correct answers, accepted or not."""
    answerable: int
    """Number of queries that have a correct answer."""
    lower_is_better: bool
    max_risk: float
    confidence: float
    observations: int
    """Number of answers that the guarantee is based on."""
    yours: OperatingPoint
    """Result of your threshold; None if you passed none."""
    safe: OperatingPoint | None
    """Result of the laxest threshold within the risk limit; None if the answers cannot support any."""
    notes: tuple[str, ...] = field(default=())
    """Conditions of the guarantee, or the reason why there is none."""

    def to_dict(self) -> dict[str, Json]:
        """Return the audit as JSON values.

        Returns:
            One value per field.
        """
        plain = to_plain(self)
        assert isinstance(plain, dict)
        return plain


def audit(answers: ScoredAnswers, options: AuditOptions) -> Audit:
    """Measure the risk of a threshold, and find the threshold that stays within a risk limit.

    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> answers = ScoredAnswers(scores, rng.random(2000) < scores)
    >>> print(audit(answers, AuditOptions(threshold=0.5, max_risk=0.1)).sentence)
    Your threshold of 0.5 accepts 49.6% of 2,000 answers, of which 24.6% are incorrect (95% interval: 21.9% \
to 27.4%); a threshold of 0.824645 keeps the risk at most 10% with 95% confidence.

    Args:
        answers: Scores with outcomes; `read_answers` reads them from files.
        options: The threshold, the risk limit and the confidence level.

    Returns:
        Risk, accepted fraction and recall of both thresholds.
    """
    ordered = answers.drives is not None or answers.sequence
    block = options.block or (ROUTE_BLOCK if ordered else 1)
    drives = np.zeros(len(answers), np.int64)
    if answers.drives is not None:
        drives = np.unique(answers.drives, return_inverse=True)[1]
    place = _position(drives) // block
    clusters, notes = _clusters(drives, place, block)
    first = np.flatnonzero(_position(drives) % block == 0)
    yours = _point(answers, options.threshold, clusters, options.confidence)
    safe, reason = None, ""
    try:
        risk = control_risk(
            answers.uncertainty[first], answers.correct[first], options.max_risk, options.confidence
        )
    except RiskRefused as refusal:
        reason = str(refusal)
        notes.append(reason)
    else:
        limit = risk.threshold if answers.lower_is_better else -risk.threshold
        safe = _point(answers, _short(limit, answers), clusters, options.confidence)
        notes.append(risk.assumptions)
    answerable = answers.correct if answers.answerable is None else answers.answerable
    return Audit(
        _sentence(len(answers), yours, safe, options, reason),
        len(answers),
        int(answers.correct.sum()),
        int(answerable.sum()),
        answers.lower_is_better,
        options.max_risk,
        options.confidence,
        len(first),
        yours,
        safe,
        tuple(notes),
    )


def _position(drives: Rows) -> Rows:
    """Return the number of each answer in its drive."""
    order = np.argsort(drives, kind="stable")
    starts = np.searchsorted(drives[order], drives[order])
    position = np.empty_like(order)
    position[order] = np.arange(len(drives)) - starts
    return position


def _clusters(drives: Rows, place: Rows, block: int) -> tuple[Rows | None, list[str]]:
    """Return which answers may fail together, and a note on it."""
    count = len(np.unique(drives))
    if count >= LEAST_CLUSTERS:
        return drives, [DRIVES.format(count=count)]
    if block == 1:
        return None, [INDEPENDENT]
    return drives * (int(place.max()) + 1) + place, [BLOCKS.format(block=block)]


def _point(
    answers: ScoredAnswers, threshold: float, clusters: Rows | None, confidence: float
) -> OperatingPoint:
    better = _accepts(answers, threshold)
    wrong = ~answers.correct[better]
    answerable = answers.correct if answers.answerable is None else answers.answerable
    risk = clustered_interval(wrong, None if clusters is None else clusters[better], confidence)
    none = not len(wrong)
    return OperatingPoint(
        float(threshold),
        len(wrong),
        int(wrong.sum()),
        None if none else risk.value,
        None if none else risk.low,
        None if none else risk.high,
        float(better.mean()),
        float((better & answers.correct).sum() / answerable.sum()) if answerable.any() else None,
    )


def _short(threshold: float, answers: ScoredAnswers) -> float:
    """Return a threshold with few digits on the strict side, if it accepts the same answers."""
    rounding = ROUND_FLOOR if answers.lower_is_better else ROUND_CEILING
    count = _accepts(answers, threshold).sum()
    for digits in DIGITS:
        short = float(Context(prec=digits, rounding=rounding).create_decimal_from_float(threshold))
        if _accepts(answers, short).sum() == count:
            return short
    return threshold


def _accepts(answers: ScoredAnswers, threshold: float) -> Bools:
    return answers.scores <= threshold if answers.lower_is_better else answers.scores >= threshold


def _text(threshold: float) -> str:
    return repr(float(threshold)).removesuffix(".0")


def _sentence(
    count: int, yours: OperatingPoint, safe: OperatingPoint | None, options: AuditOptions, reason: str
) -> str:
    if yours.risk is None or yours.low is None or yours.high is None:
        text = f"Your threshold of {_text(yours.threshold)} accepts none of {count:,} answers"
    else:
        text = (
            f"Your threshold of {_text(yours.threshold)} accepts {yours.coverage:.1%} of {count:,} answers, "
            f"of which {yours.risk:.1%} are incorrect ({percent(options.confidence)} interval: "
            f"{yours.low:.1%} to {yours.high:.1%})"
        )
    if safe is None:
        return f"{text}. {reason}"
    return (
        f"{text}; a threshold of {_text(safe.threshold)} keeps the risk at most {percent(options.max_risk)} "
        f"with {percent(options.confidence)} confidence."
    )
