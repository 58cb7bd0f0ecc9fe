"""The plain-NumPy example prints the same values as kappaplace."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace import PlaceMap
from kappaplace.calibration.combination import Signal, fit_combination
from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.maps.exchange import export_map
from kappaplace.models.export import ExportOptions, export_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "export_numpy.py"


@pytest.mark.parametrize("calibrator", ["isotonic", "logistic", "beta", "temperature"])
def test_probability_is_that_of_the_package(calibrator):
    namespace: dict = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), namespace)
    rng = np.random.default_rng(0)
    right = rng.random((300, 4)) < 0.5
    scores = np.stack([rng.normal(0.4, 0.1, right.shape) - 0.1 * right, rng.random(right.shape)], -1)
    outside, names = ~right.any(1), ["cosine", "kappaplace"]
    fitted = fit_calibration(
        Examples(scores[:, 0], right[:, 0], names, scores, right, names, outside),
        CalibrateOptions(max_risk=None, outside_rate=0.2, calibrator=calibrator),
    )
    actual = namespace["pair_probability"](
        fitted.to_dict(), {"cosine": scores[..., 0], "kappaplace": scores[..., 1]}
    )
    np.testing.assert_allclose(actual, fitted.pair_probability(scores), atol=1e-9)
    assert namespace["pair_probability"](fitted.to_dict(), {"cosine": scores[..., 0]}) is None


def test_lines_that_bend_are_followed():
    namespace: dict = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), namespace)
    rng = np.random.default_rng(0)
    right = rng.random((300, 4)) < 0.5
    scores = np.stack([rng.normal(0.4, 0.1, right.shape) - 0.1 * right, rng.random(right.shape)], -1)
    names = ["cosine", "kappaplace"]
    fitted = fit_calibration(
        Examples(scores[:, 0], right[:, 0], names, scores, right, names), CalibrateOptions(max_risk=None)
    )
    bent = fit_combination(scores.reshape(-1, 2), right.ravel(), names, bends=3)
    fitted = replace(fitted, pair=Signal(("cosine", "kappaplace"), bent))
    actual = namespace["pair_probability"](
        fitted.to_dict(), dict(zip(names, scores.transpose(2, 0, 1), strict=True))
    )
    np.testing.assert_allclose(actual, fitted.pair_probability(scores), atol=1e-9)


def test_finds_the_place_without_kappaplace(model, exported, photos, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, pixels in enumerate(photos):
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    place_map = PlaceMap.build(folder, tmp_path / "town.map", model)
    export_map(place_map.store, tmp_path / "town.npz")
    query = folder / "05.png"
    arguments = [exported["onnx"].file, tmp_path / "town.npz", query]
    # -I: neither this folder nor an environment variable may provide the package.
    blocked = (
        "import sys, runpy; sys.modules['kappaplace'] = sys.modules['torch'] = None; sys.argv = sys.argv[1:]"
    )
    command = [sys.executable, "-I", "-c", f"{blocked}; runpy.run_path(sys.argv[0], run_name='__main__')"]
    done = subprocess.run([*command, EXAMPLE, *arguments], capture_output=True, text=True, check=True)
    first, best = done.stdout.splitlines()[:2]
    expected = place_map.localize(query, k=1)
    assert float(first.removeprefix("κ ")) == pytest.approx(expected.kappa, abs=0.06)
    assert best.startswith("05.png at ")
    assert f"cosine {expected.matches[0].similarity:.3f}" in best
    assert "not calibrated" in best


def test_an_exported_calibration_comes_back(model, tmp_path):
    from kappaplace import load_model
    from kappaplace.calibration.calibration import Calibration

    rng = np.random.default_rng(0)
    right = rng.random(200) < 0.5
    fitted = fit_calibration(
        Examples(rng.normal(0.4, 0.1, 200) - 0.1 * right, right, ["cosine"]), CalibrateOptions(max_risk=None)
    )
    file = export_model(model, tmp_path / "m.onnx", options=ExportOptions(calibration=fitted.to_dict())).file
    stored = load_model(file).record.calibration
    assert Calibration.from_dict(stored).fingerprint == fitted.fingerprint
