from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.sources import load_calibration, save_calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam.calibrate import calibration_for, collect, fit_closures
from tests.slam.synthetic import calibration, examples, world


def test_probabilities_of_another_drive_are_about_right() -> None:
    found = collect(world(7)[1], world(7)[2])
    rows = found.support >= 2
    stated = calibration().probability(found.features[rows])
    assert abs(stated.mean() - found.right[rows].mean()) < 0.15
    assert stated[found.right[rows]].mean() > stated[~found.right[rows]].mean() + 0.2


def test_examples_are_kept_apart_only_for_a_rule() -> None:
    facts = calibration().facts
    assert facts["fitted_on"] == facts["queries"]
    ruled = fit_closures(examples(), max_risk=0.4).facts
    assert ruled["fitted_on"] + ruled["thresholds_on"] == ruled["queries"]
    assert ruled["thresholds_on"] > 0


def test_outside_is_what_was_never_seen_before() -> None:
    found, same = examples()[0], world(101)[2]
    for row in (0, len(found.closures) // 2, -1):
        closure = found.closures[row]
        if found.right[row]:
            assert not found.outside[row]
            assert same[closure.query, closure.match]


def test_too_short_drives_and_wrong_marks_are_refused() -> None:
    _, frames, same = world(7)
    with pytest.raises(KappaPlaceError, match="too short"):
        collect(frames[:10], same[:10, :10])
    with pytest.raises(KappaPlaceError, match="square"):
        collect(frames[:80], same)
    with pytest.raises(KappaPlaceError, match="one or more"):
        fit_closures([])


def test_it_is_written_and_read_back(tmp_path: Path, tiny: PlaceModel) -> None:
    file = tmp_path / "closures.json"
    save_calibration(calibration(), file)
    features = examples()[0].features[:5]
    for read in (load_calibration(file), calibration_for(tiny, file)):
        assert isinstance(read, Calibration)
        assert np.array_equal(read.probability(features), calibration().probability(features))


def test_a_calibration_of_another_model_is_refused(tmp_path: Path, tiny: PlaceModel) -> None:
    file = tmp_path / "closures.json"
    values = calibration().to_dict()
    values["facts"]["model"] = "another"
    file.write_text(json.dumps(values))
    with pytest.raises(KappaPlaceError, match="another model"):
        calibration_for(tiny, file)
    with pytest.raises(KappaPlaceError, match="There is no calibration"):
        calibration_for(tiny, tmp_path / "nothing.json")
    with pytest.raises(KappaPlaceError, match="slam calibrate"):
        calibration_for(tiny)
    file.write_text("{")
    with pytest.raises(KappaPlaceError, match="not a valid calibration"):
        calibration_for(tiny, file)
