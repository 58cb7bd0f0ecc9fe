"""Early stopping against traces written by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.training.early_stopping import EarlyStopping, better


def test_two_phases_by_hand() -> None:
    """Joint training with patience 2: R@1 first; when its patience ends, ECE@1 from its current value."""
    stopping = EarlyStopping(("R@1", "ECE@1"), patience=2)
    trace = [
        # R@1, ECE@1 → what improved, the metric watched afterwards, whether it is over
        (0.50, 0.30, ["R@1", "ECE@1", "model"], "R@1", False),
        (0.60, 0.40, ["R@1", "model"], "R@1", False),
        (0.60, 0.20, ["ECE@1"], "R@1", False),  # equal is no improvement; ECE@1 is not watched yet
        (0.55, 0.35, ["model"], "ECE@1", False),  # patience over: ECE@1 takes over at 0.35, not at 0.20
        (0.70, 0.36, ["R@1"], "ECE@1", False),  # the best R@1 of all, but nobody watches it any more
        (0.50, 0.34, ["model"], "ECE@1", False),  # better than 0.35, though not the best of all
        (0.50, 0.34, [], "ECE@1", False),
        (0.50, 0.50, [], "ECE@1", True),
    ]
    for epoch, (recall, ece, improved, watched, over) in enumerate(trace, 1):
        assert stopping.update(epoch, {"R@1": recall, "ECE@1": ece}) == improved, epoch
        assert (stopping.metric, stopping.stopped) == (watched, over), epoch
    assert stopping.best_epoch == {"R@1": 5, "ECE@1": 3}
    assert stopping.best_value == {"R@1": 0.70, "ECE@1": 0.20}


def stop_by_hand(values: list[float], higher: bool, patience: int, delta: float) -> int | None:
    """Epoch (from 1) at which patience with a metric ends."""
    for epoch in range(1, len(values) + 1):
        last_best, best = 1, values[0]
        for number, value in enumerate(values[:epoch], 1):
            gain = value - best if higher else best - value
            if number > 1 and gain > delta:
                last_best, best = number, value
        if patience and epoch - last_best >= patience:
            return epoch
    return None


# Eighths, so that sums and differences are exact.
VALUES = st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=1, max_size=12)


@given(
    values=VALUES,
    metric=st.sampled_from(["R@1", "ECE@1", "AUROC"]),
    patience=st.integers(0, 4),
    delta=st.sampled_from([0.0, 0.125, 0.25]),
)
def test_one_metric_stops_when_the_definition_says(
    values: list[float], metric: str, patience: int, delta: float
) -> None:
    stopping = EarlyStopping((metric,), patience, delta)
    stopped = None
    for epoch, value in enumerate(values, 1):
        stopping.update(epoch, {metric: value})
        if stopping.stopped:
            stopped = epoch
            break
    assert stopped == stop_by_hand(values, metric != "ECE@1", patience, delta)


@given(pairs=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12), data=st.data())
def test_a_saved_state_resumes_without_a_difference(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(pairs)))
    whole, first = (EarlyStopping(("R@1", "ECE@1"), 2) for _ in range(2))
    rows = [{"R@1": recall, "ECE@1": ece} for recall, ece in pairs]
    expected = [whole.update(epoch, row) for epoch, row in enumerate(rows, 1)]
    improved = [first.update(epoch, row) for epoch, row in enumerate(rows[:cut], 1)]
    second = EarlyStopping(("R@1", "ECE@1"), 2)
    second.load_state_dict(first.state_dict())
    improved += [second.update(epoch, row) for epoch, row in enumerate(rows[cut:], cut + 1)]
    assert improved == expected
    assert second == whole


def test_better_knows_the_direction_and_undefined_values() -> None:
    assert better("R@1", 0.5, 0.4)
    assert not better("R@1", 0.4, 0.5)
    assert better("ECE@1", 0.4, 0.5)
    assert not better("ECE@1", 0.5, 0.4)
    assert not better("AUROC", 0.5, 0.4, min_delta=0.125)
    assert better("AUROC", 0.5, None)
    assert better("AUROC", 0.5, math.nan)
    assert not better("AUROC", math.nan, 0.4)


def test_a_metric_that_is_never_defined_still_has_a_model() -> None:
    """AUROC is NaN if every query is correct: the first model must be saved all the same."""
    stopping = EarlyStopping(("AUROC",), patience=2)
    assert "model" in stopping.update(1, {"AUROC": math.nan})
    assert "model" not in stopping.update(2, {"AUROC": math.nan})
    assert "model" in stopping.update(3, {"AUROC": 0.5})


def test_the_start_is_a_candidate() -> None:
    stopping = EarlyStopping(("ECE@1",), patience=2)
    for epoch, (ece, improved) in enumerate([(0.209, True), (0.4, False), (0.363, False)]):
        assert ("model" in stopping.update(epoch, {"R@1": 0.3, "ECE@1": ece})) is improved
    assert (stopping.model_epoch, stopping.stopped) == (0, True)
    old = {key: value for key, value in stopping.state_dict().items() if key != "model_epoch"}
    EarlyStopping(("ECE@1",), patience=2).load_state_dict(old)  # a state of version 0.1.0


def test_no_metric_keeps_every_model_and_never_stops() -> None:
    stopping = EarlyStopping((), patience=1)
    assert [stopping.update(epoch, {"R@1": 0.5}) for epoch in (1, 2)] == [["R@1", "model"], ["model"]]
    assert not stopping.stopped


def test_a_metric_the_model_does_not_have_is_reported() -> None:
    with pytest.raises(
        KappaPlaceError, match=r"watches ECE@1, which this model does not have\. Set stop\.metrics"
    ):
        EarlyStopping(("ECE@1",), 3).update(1, {"R@1": 0.5})
