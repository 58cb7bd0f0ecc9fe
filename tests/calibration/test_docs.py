"""The numbers of docs/calibration.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kappaplace.calibration.calibrators import CALIBRATORS
from kappaplace.calibration.risk import METHODS, RiskRefused, control_risk, needed_acceptances

PAGE = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text(encoding="utf-8")


def test_table_of_needed_acceptances() -> None:
    rows = re.findall(r"^\| ([\d.]+)% \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for risk, *counts in rows:
        needed = [needed_acceptances(float(risk) / 100, c) for c in (0.9, 0.95, 0.99)]
        assert [int(count) for count in counts] == needed


@pytest.mark.parametrize("method", METHODS)
def test_table_of_methods(method: str) -> None:
    row = re.search(rf"^\| `{method}`[^|]*\| (\d+)% \| (\d+)% \|", PAGE, re.MULTILINE)
    assert row is not None
    accepted = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        u = rng.random(500)
        try:
            accepted.append(control_risk(u, rng.random(500) >= 0.005 + 0.9 * u**3, method=method).coverage)
        except RiskRefused:
            accepted.append(0.0)
    assert round(100 * float(np.mean(accepted))) == int(row[1])
    assert 100 * float(np.mean(np.array(accepted) == 0)) == pytest.approx(int(row[2]), abs=0.5)


def test_every_calibrator_is_named() -> None:
    for name in CALIBRATORS:
        assert f"`{name}`" in PAGE
