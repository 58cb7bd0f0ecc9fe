"""Audits of a threshold: counts by hand, and the safe threshold keeps its promise on fresh answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace import audit
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import AuditOptions, ScoredAnswers


def answers(count: int = 3000, seed: int = 0, **more: object) -> ScoredAnswers:
    """Answers whose probability of being correct is the square root of their score."""
    rng = np.random.default_rng(seed)
    scores = rng.random(count)
    return ScoredAnswers(scores, rng.random(count) < np.sqrt(scores), **more)  # type: ignore[arg-type]


def test_both_thresholds_are_counted() -> None:
    given = answers(answerable=np.ones(3000, bool))
    result = audit(given, AuditOptions(threshold=0.4, max_risk=0.1))
    assert result.safe is not None
    for point in (result.yours, result.safe):
        rows = [row for row in range(3000) if given.scores[row] >= point.threshold]
        wrong = [row for row in rows if not given.correct[row]]
        assert (point.accepted, point.errors) == (len(rows), len(wrong))
        assert point.risk == pytest.approx(len(wrong) / len(rows))
        assert point.coverage == pytest.approx(len(rows) / 3000)
        assert point.recall == pytest.approx((len(rows) - len(wrong)) / 3000)
        assert point.low is not None
        assert point.high is not None
        assert point.low < point.risk < point.high
    assert result.safe.threshold > 0.4
    assert result.safe.high is not None
    assert result.safe.high < 0.11
    assert "accepts 59.4% of 3,000 answers" in result.sentence
    assert f"a threshold of {result.safe.threshold!r} keeps the risk at most 10%" in result.sentence


@pytest.mark.parametrize("factor", [-1.0, -3.5])
def test_a_distance_is_a_similarity_with_the_other_sign(factor: float) -> None:
    given = answers()
    mirrored = ScoredAnswers(factor * given.scores, given.correct, lower_is_better=True)
    one = audit(given, AuditOptions(0.5, 0.1))
    other = audit(mirrored, AuditOptions(factor * 0.5, 0.1))
    assert one.safe is not None
    assert other.safe is not None
    assert (one.yours.accepted, one.yours.errors) == (other.yours.accepted, other.yours.errors)
    assert (one.safe.accepted, one.safe.errors) == (other.safe.accepted, other.safe.errors)


def test_the_safe_threshold_keeps_its_risk_on_fresh_answers() -> None:
    """The true risk of a threshold t is the mean of 1 − √s over s from t to 1."""
    broken, runs = 0, 200
    for seed in range(runs):
        safe = audit(answers(600, seed), AuditOptions(0.5, max_risk=0.15)).safe
        if safe is None:
            continue
        t = safe.threshold
        risk = 1 - (1 - t**1.5) / 1.5 / (1 - t)
        broken += risk > 0.15
    assert broken / runs <= 0.05 + 0.03


def test_frames_of_a_drive_count_as_blocks() -> None:
    rng = np.random.default_rng(3)
    places = rng.random(150)
    scores = np.repeat(places, 20) + 1e-3 * rng.random(3000)
    correct = np.repeat(rng.random(150) < np.sqrt(places), 20)
    independent = audit(ScoredAnswers(scores, correct), AuditOptions(0.5, 0.3))
    blocks = audit(ScoredAnswers(scores, correct, sequence=True), AuditOptions(0.5, 0.3))
    assert (independent.observations, blocks.observations) == (3000, 150)
    assert independent.yours.risk == blocks.yours.risk
    widths = [(r.yours.high or 0) - (r.yours.low or 0) for r in (independent, blocks)]
    assert widths[1] > 3 * widths[0]
    assert "20 consecutive answers count as one observation" in blocks.notes[0]
    assert "--block 20" in independent.notes[0]
    own = audit(ScoredAnswers(scores, correct), AuditOptions(0.5, 0.3, block=10))
    assert own.observations == 300


def test_drives_are_the_observations_of_the_interval() -> None:
    rng = np.random.default_rng(4)
    correct = np.repeat(rng.random(12) < 0.7, 60)
    drives = np.repeat(np.arange(12), 60)
    order = rng.permutation(720)  # the rows of a drive need not be next to each other
    given = ScoredAnswers(np.ones(720), correct[order], drives=drives[order].astype(str))
    result = audit(given, AuditOptions(0.5, 0.5))
    assert result.observations == 12 * 3
    assert "12 drives" in result.notes[0]
    assert result.yours.high is not None
    assert result.yours.low is not None
    assert result.yours.high - result.yours.low > 0.4  # that of 12 answers, not of 720


def test_an_audit_without_a_safe_threshold_names_the_reason() -> None:
    result = audit(answers(40), AuditOptions(0.5))
    assert result.safe is None
    assert "59 queries" in result.sentence
    assert result.to_dict()["safe"] is None
    hopeless = audit(ScoredAnswers(np.arange(500.0), np.zeros(500, bool)), AuditOptions(0.5))
    assert hopeless.safe is None
    assert hopeless.yours.recall is None
    assert "cannot be guaranteed" in hopeless.sentence


def test_a_threshold_may_accept_nothing() -> None:
    result = audit(answers(), AuditOptions(threshold=2.0, max_risk=0.1))
    assert (result.yours.accepted, result.yours.risk, result.yours.high) == (0, None, None)
    assert result.sentence.startswith("Your threshold of 2 accepts none of 3,000 answers; a threshold of")


rows_of = st.lists(st.tuples(st.integers(-999, 999), st.booleans()), min_size=1, max_size=40)


@given(rows_of, st.integers(-999, 999), st.integers(1, 30))
def test_invariants(rows: list[tuple[int, bool]], threshold: float, block: int) -> None:
    scores, correct = np.array([score / 7 for score, _ in rows]), np.array([right for _, right in rows])
    result = audit(ScoredAnswers(scores, correct), AuditOptions(threshold, 0.3, block=block))
    assert result.observations == -(-len(scores) // block)
    assert 0 <= result.yours.coverage <= 1
    if result.yours.risk is not None:
        assert result.yours.low is not None
        assert result.yours.high is not None
        assert result.yours.low <= result.yours.risk <= result.yours.high
    if result.safe is not None and block == 1:
        assert result.safe.risk is not None
        assert result.safe.risk <= 0.3


def test_a_threshold_has_as_few_digits_as_separate_the_answers() -> None:
    scores = 0.123456789 + np.arange(400) * 1e-9  # six digits cannot separate them
    result = audit(ScoredAnswers(scores, np.arange(400) > 100), AuditOptions(0.0, 0.2))
    assert result.safe is not None
    assert result.safe.errors > 0
    assert len(f"{result.safe.threshold!r}") <= 12
    coarse = audit(ScoredAnswers(np.arange(400.0), np.arange(400) > 100), AuditOptions(0.0, 0.2)).safe
    assert coarse is not None
    assert coarse.accepted == result.safe.accepted
    assert 399 - coarse.accepted < coarse.threshold <= 400 - coarse.accepted
    assert f"a threshold of {result.safe.threshold!r} keeps" in result.sentence


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"threshold": float("nan")}, "threshold must be finite"),
        ({"threshold": 1.0, "max_risk": 0.0}, "risk must be between 0 and 1"),
        ({"threshold": 1.0, "confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"threshold": 1.0, "block": 0}, "block must be 1 or more"),
    ],
)
def test_bad_options(values: dict[str, float], text: str) -> None:
    with pytest.raises(KappaPlaceError, match=text):
        AuditOptions(**values)  # type: ignore[arg-type]


def test_bad_answers() -> None:
    with pytest.raises(KappaPlaceError, match="scores must be finite"):
        ScoredAnswers(np.array([1.0, np.nan]), np.array([True, False]))
    with pytest.raises(KappaPlaceError, match="drives must have one value per answer"):
        ScoredAnswers(np.ones(2), np.ones(2, bool), drives=np.zeros(3))
