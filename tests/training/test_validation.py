"""Validation and early stopping: metrics of small models by hand, and the order of the watched metrics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.validation import (
    EarlyStopping,
    ValidationSet,
    Validator,
    better,
    warnings_of,
    watched,
)
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty.base import Evidence
from tests.training.tiny import City
from tests.uncertainty.helpers import evidence_of


def evidence_with(**spread: np.ndarray) -> Evidence:
    """Four queries: the first match of two is correct, and the second match of another one."""
    matches = Matches(np.array([[0, 1], [1, 2], [0, 2], [0, 1]]), np.full((4, 2), 0.5, np.float32))
    query = Embeddings(np.eye(4, dtype=np.float32), **spread)
    reference = Embeddings(np.eye(3, 4, dtype=np.float32), kappa=np.ones(3, np.float32))
    return evidence_of(matches, query, reference)


POSITIVES = Positives.from_lists([[0], [1], [2], [2]], references=3)


def validator(**options: object) -> Validator:
    data = ValidationSet(torch.zeros(7, 3, 8, 8, dtype=torch.uint8), np.arange(4), np.arange(4, 7), POSITIVES)
    return Validator(data, **options)  # type: ignore[arg-type]


def test_metrics_by_hand() -> None:
    assert validator().measure(evidence_with()) == {"R@1": 0.5, "mean cosine": 0.0}
    # The variance of the third (wrong) is below that of the second (right): three of four pairs are in order.
    values = validator().measure(evidence_with(variance=np.array([0.1, 0.3, 0.2, 0.4], np.float32)))
    assert values["R@1"] == 0.5
    assert values["AUROC"] == 0.75
    assert 0 <= values["ECE@1"] <= 1
    kappa = np.array([40.0, 10.0, 20.0, 5.0], np.float32)
    assert validator().measure(evidence_with(kappa=kappa))["AUROC"] == 0.75
    # The distance of the top match is the same for all four: no order at all.
    assert validator(score="l2").measure(evidence_with(kappa=kappa))["AUROC"] == 0.5


def test_a_flawed_score_is_reported_and_is_no_candidate() -> None:
    kappa = np.array([0.40, 0.41, 0.42, 0.43], np.float32)
    values = validator(score="inverse-kappa").measure(evidence_with(kappa=kappa))
    assert values["tied"] == 1  # all are floored at κ = 1
    assert values["ECE@1"] == values["R@1"]  # which would beat many a living score
    assert math.isnan(watched(values)["ECE@1"])
    score, floor = warnings_of(values)
    assert score.startswith("The score is not usable, because every query has the same value.")
    assert floor.startswith("κ is 0.40 to 0.43 for 90% of the queries, so 1/κ is floored at κ = 1")
    living = validator().measure(evidence_with(kappa=np.array([40.0, 10.0, 20.0, 5.0], np.float32)))
    assert warnings_of(living) == []
    assert watched(living) == living


def test_constant_kappa_and_coincident_descriptors_are_reported() -> None:
    constant = validator().measure(evidence_with(kappa=np.full(4, 300.0, np.float32)))
    assert any("κ is nearly constant, 300 to 300" in line for line in warnings_of(constant))
    assert warnings_of({"mean cosine": 0.999})[0].startswith("The descriptors coincide")
    assert warnings_of({"mean cosine": 0.5, "tied": 0.2}) == []


def test_binning_follows_the_option() -> None:
    """With an outlier, clamping to percentiles and zooming bin the other values differently."""
    spread = np.concatenate([np.linspace(0.1, 0.2, 199), [50.0]]).astype(np.float32)
    matches = Matches(np.arange(200)[:, None] % 3, np.ones((200, 1), np.float32))
    evidence = evidence_of(matches, Embeddings(np.ones((200, 2), np.float32), variance=spread))
    positives = Positives.from_lists([[0]] * 200, references=3)
    data = ValidationSet(torch.zeros(203, 3, 8, 8), np.arange(200), np.arange(200, 203), positives)
    clamp, zoom = (Validator(data, binning=name).measure(evidence)["ECE@1"] for name in ("clamp", "zoom"))
    assert clamp != pytest.approx(zoom, abs=1e-3)


@pytest.mark.parametrize("head", ["mirrored", "linear", "variance", "stun"])
def test_cached_features_equal_the_whole_model(city: City, head: str) -> None:
    model = PlaceModel.create("resnet_tiny", 32, head).eval()  # type: ignore[arg-type]
    direct, cached = (Validator(city.validation, frozen=frozen, batch_size=50) for frozen in (False, True))
    expected = direct(model)
    kappa = {"kappa 5%", "kappa 95%"} if head in ("mirrored", "linear") else set()
    assert set(expected) == {"R@1", "R@5", "R@10", "ECE@1", "AUROC", "mean cosine", "tied"} | kappa
    assert cached(model) == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():  # the head moves, the encoder does not
        for parameter in model.head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    moved = direct(model)
    assert moved["AUROC"] != expected["AUROC"]
    assert cached(model) == pytest.approx(moved, abs=1e-6)


def test_a_cached_encoder_runs_once(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PlaceModel.create("resnet_tiny", 32)
    cached = Validator(city.validation, frozen=True)
    cached(model)
    monkeypatch.setattr(model.backbone, "forward", None)
    cached(model)


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_several_processes_measure_the_same_as_one(city: City, processes: int) -> None:
    model = PlaceModel.create("resnet_tiny", 32)
    expected = Validator(city.validation)(model)
    shares: list[list[Tensor]] = []
    for rank in range(processes):
        sent: list[Tensor] = []

        def send(part: Tensor, sent: list[Tensor] = sent) -> Tensor:
            sent.append(part)
            return torch.cat([part] * processes)

        Validator(city.validation, gather=send, rank=rank, processes=processes)(model)
        shares.append(sent)
    assert (
        len({part.shape for sent in shares for part in sent if part.ndim == 1}) == 1
    )  # gathering needs that
    columns = iter([torch.cat(parts) for parts in zip(*shares, strict=True)])
    together = Validator(city.validation, gather=lambda part: next(columns), processes=processes)(model)
    assert together == pytest.approx(expected)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_returns_to_its_mode_and_keeps_its_statistics(city: City, training: bool) -> None:
    model = PlaceModel.create("resnet_tiny", 32).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Validator(city.validation)(model)
    assert model.training is training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_a_table_without_references_is_reported(tmp_path: Path) -> None:
    for is_query in ([True, True], [False, False]):
        table = PlaceImages.create(["a.png", "b.png"], np.zeros((2, 2)), is_query=is_query, root=tmp_path)
        with pytest.raises(KappaPlaceError, match="must have queries and references"):
            ValidationSet.from_table(table)


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
    for epoch, (recall, ece, improved, metric, over) in enumerate(trace, 1):
        assert stopping.update(epoch, {"R@1": recall, "ECE@1": ece}) == improved, epoch
        assert (stopping.metric, stopping.stopped) == (metric, over), epoch
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
