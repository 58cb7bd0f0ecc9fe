from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kappaplace.calibration.combination import Signal
from kappaplace.calibration.domain import KAPPA, Domain
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.slam.calibrate import WITH_KAPPA, examples_of
from kappaplace.slam.evaluation import closure_quality
from kappaplace.slam.loop_closer import UNLIKE
from tests.slam.synthetic import calibration, world


@pytest.fixture(scope="module")
def driven() -> LoopCloser:
    closer = LoopCloser(calibration(), scores=WITH_KAPPA)
    for frame in world(7)[1]:
        closer.add(frame)
    return closer


def test_accepted_closures_are_right(driven: LoopCloser) -> None:
    found = examples_of(driven, world(7)[2])
    accepted = np.array([closure.accepted for closure in found.closures])
    quality = closure_quality(accepted, found.right, int((~found.outside).sum()))
    assert quality.accepted >= 20
    assert quality.false <= 1
    # Nearly all of them would be wrong without a decision: the test is not an easy one.
    assert found.right.mean() < 0.7


def test_every_acceptance_keeps_to_the_settings(driven: LoopCloser) -> None:
    settings, way = driven.settings, driven.map.distance
    for closure in driven.closures:
        assert way[closure.query] - way[closure.match] >= settings.recent
        assert closure.probability is not None
        if closure.accepted:
            assert closure.probability >= 0.99
            assert closure.support >= settings.least_support
        else:
            assert closure.reason in ("probability", "consistency")
            assert (closure.probability < 0.99) == (closure.reason == "probability")


def test_sure_matches_weigh_more(driven: LoopCloser) -> None:
    accepted = driven.accepted
    sure, unsure = (pick(accepted, key=lambda closure: closure.concentration) for pick in (max, min))
    assert sure.weight > unsure.weight
    assert (sure.sigma < unsure.sigma).all()
    assert np.allclose(np.diag(sure.information), 1 / sure.sigma**2)
    assert all(0.1 <= closure.weight <= 10 for closure in accepted)


def test_belief_goes_on_from_an_accepted_closure(driven: LoopCloser) -> None:
    last = driven.accepted[-1]
    assert np.allclose(driven.map.poses[last.query], driven.map.poses[last.match])


def test_the_calibration_is_evaluated_once_per_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    closer = LoopCloser(calibration())  # its fit evaluates it, too
    calls: list[int] = []
    evaluate = Signal.uncertainty
    monkeypatch.setattr(Signal, "uncertainty", lambda self, *a: (calls.append(a[1]), evaluate(self, *a))[1])
    for frame in world(7)[1][:60]:
        closer.add(frame)
    assert closer.closures
    assert calls.count(1) == len(closer.closures)


def test_frames_unlike_the_calibration_close_no_loop(driven: LoopCloser) -> None:
    strange = Domain((KAPPA,), tuple((50.0 + 0.01 * (row % 7),) for row in range(200)))
    closer = LoopCloser(replace(calibration(), domain=strange))
    for frame in world(7)[1]:
        closer.add(frame)
    assert driven.accepted
    assert not closer.accepted
    assert {closure.reason for closure in closer.closures} == {UNLIKE}
    probabilities = ([closure.probability for closure in each.closures[:5]] for each in (closer, driven))
    assert next(probabilities) == next(probabilities)


def test_a_rule_that_is_missing_is_told_before_the_drive() -> None:
    bare = replace(calibration(), rule=None)
    with pytest.raises(KappaPlaceError, match="no decision rule"):
        LoopCloser(bare, ClosingSettings(max_risk=None))


def test_without_a_calibration_nothing_is_accepted() -> None:
    closer = LoopCloser()
    for frame in world(7)[1][:150]:
        closer.add(frame)
    assert closer.closures
    assert not closer.accepted
    assert closer.closures[0].to_dict()["probability"] is None


def test_a_lower_risk_accepts_a_part_of_it() -> None:
    counts = []
    for risk in (0.3, 0.001):
        settings = ClosingSettings(max_risk=risk, drift=None)
        closer = LoopCloser(calibration(), settings)
        for frame in world(7)[1][:250]:
            closer.add(frame)
        counts.append(len(closer.accepted))
    assert counts[0] > counts[1]


def test_frames_without_odometry_close_by_their_order() -> None:
    settings = ClosingSettings(recent_frames=30, max_risk=0.2)
    closer = LoopCloser(calibration(), settings)
    for frame in world(7)[1]:
        closer.add(replace(frame, odometry=None))
    assert all(c.query - c.match >= 30 for c in closer.closures)
    assert closer.accepted
    assert closer.accepted[0].relative.shape == (3,)


def test_images_are_embedded_and_can_be_checked(tiny: PlaceModel) -> None:
    rng = np.random.default_rng(0)
    street = [
        Image.fromarray(np.kron(rng.integers(0, 256, (16, 16, 1)), np.ones((8, 8, 3))).astype(np.uint8))
        for _ in range(12)
    ]
    settings = ClosingSettings(
        max_risk=0.9, recent=5.0, fewest=2, least_inliers=10, least_support=0, drift=None
    )
    closer = LoopCloser(calibration(), settings, embed=lambda images: tiny.embed(images, progress=False))
    for row in range(24):
        pose = np.array([float(row % 12) if row < 12 else 11.0 + row - 11, 0.0, 0.0])
        closer.add(Frame(image=street[row % 12], odometry=pose))
    again = [c for c in closer.closures if c.query - c.match == 12 and c.inliers is not None]
    assert again
    assert all(c.inliers is not None and c.inliers > 10 and c.accepted for c in again)


def test_bad_frames_and_settings_are_told() -> None:
    with pytest.raises(KappaPlaceError, match="no descriptor"):
        LoopCloser().add(Frame())
    with pytest.raises(KappaPlaceError, match="embed="):
        LoopCloser().add(Frame(image="a.jpg"))
    with pytest.raises(KappaPlaceError, match="risk"):
        ClosingSettings(max_risk=1.0)
    for match, values in (
        ("recent", {"recent": float("nan")}),
        ("drift must", {"drift": -1.0}),
        ("drift must", {"drift": float("nan")}),
        ("outside_rate", {"outside_rate": 2.0}),
        ("inliers", {"least_inliers": -1}),
    ):
        with pytest.raises(KappaPlaceError, match=match):
            ClosingSettings(**values)  # type: ignore[arg-type]
    with pytest.raises(KappaPlaceError, match="window"):
        ClosingSettings(window=1, least_support=2)
    closer = LoopCloser()
    closer.add(Frame(np.eye(8)[0], odometry=np.zeros(3)))
    with pytest.raises(KappaPlaceError):
        closer.add(Frame(np.eye(8)[0]))
    with pytest.raises(KappaPlaceError, match="planar or spatial"):
        closer.add(Frame(np.eye(8)[0], odometry=np.array([0, 0, 0, 0, 0, 0, 1.0])))
