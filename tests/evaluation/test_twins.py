"""Queries that are copies of references: excluded, counted, and named if their label must be incorrect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.appearance import TWIN_SECONDS, taken_together
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import Choices, EvaluationResult, evaluate, read_result, warnings_of, write_result
from kappaplace.evaluation.run import Machine
from kappaplace.metrics.bootstrap import Resampling, bootstrap


@pytest.fixture
def planted(table: PlaceImages, tmp_path: Path) -> PlaceImages:
    """The walk, and twelve of its references again as queries of another format; one is misplaced."""
    copied = table.reference_rows[:12]
    for number, row in enumerate(copied.tolist()):
        Image.open(table.image_path(row)).save(tmp_path / f"{number}.jpg", quality=95)
    paths = [*table.image_paths(np.arange(len(table))), *(str(tmp_path / f"{n}.jpg") for n in range(12))]
    positions = np.concatenate([table.positions, table.positions[copied]])
    positions[len(table)] += 400.0
    is_query = np.concatenate([table.is_query, np.ones(12, bool)])
    return PlaceImages.create(paths, positions, is_query=is_query, root=tmp_path, name="planted")


def evaluated(tiny, table: PlaceImages, folder: Path, **changes: object) -> EvaluationResult:
    return evaluate(tiny, table, Choices("l2,cosine", resamples=0, **changes), Machine(folder / "cache"))


def test_twins_overstate_recall_and_are_left_out(tiny, table, planted, tmp_path):
    right = evaluated(tiny, table, tmp_path).metrics["val"]["recall"]["R@1"]
    without = evaluated(tiny, planted, tmp_path)
    with_twins = evaluated(tiny, planted, tmp_path, keep_twins=True)
    assert without.sets[0].facts["twins"] == 12
    assert "12 near-copies of references excluded" in without.sets[0].facts["counted"]
    assert without.metrics["planted"]["recall"]["R@1"] == right
    assert len(with_twins.sets[0].hits) == len(without.sets[0].hits) + 12
    assert with_twins.metrics["planted"]["recall"]["R@1"] > right + 0.1
    assert with_twins.facts["keep_twins"]
    assert "twins" not in with_twins.sets[0].facts
    (warning,) = [line for line in warnings_of(without) if "labelled at another place" in line]
    assert str(tmp_path / "0.jpg") in warning


def test_images_of_the_same_minute_are_twins(tiny, table, tmp_path):
    times = np.full(len(table), np.nan)
    times[table.reference_rows] = 1e9 + 3600.0 * np.arange(len(table.reference_rows))
    times[table.query_rows[:4]] = 1e9 + TWIN_SECONDS * np.array([1.0, 1.01, -1.0, 59.5])
    found = evaluated(tiny, replace(table, timestamp=times), tmp_path).sets[0]
    assert found.facts["twins"] == 3
    assert found.queries.tolist() == [1, *range(4, 24)]
    times[table.query_rows] = 1e9
    with pytest.raises(KappaPlaceError, match="--keep-twins"):
        evaluated(tiny, replace(table, timestamp=times), tmp_path)
    assert not taken_together(np.array([1.0, np.nan]), np.array([np.nan])).any()


def test_a_benchmark_keeps_its_queries(tiny, planted, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "kappaplace.evaluation.inputs.check_protocol", lambda *_: SimpleNamespace(warnings=())
    )
    named = replace(planted, protocol="pitts30k-test")
    assert len(evaluated(tiny, named, tmp_path).sets[0].hits) == len(planted.query_rows)


def test_intervals_are_by_drive_if_the_table_has_several(tiny, table, tmp_path):
    drive = np.array([f"drive {row % 6}" for row in range(len(table))])
    several = replace(table, condition=drive.astype(table.condition.dtype))
    result = evaluate(tiny, several, Choices("l2", resamples=20), Machine(tmp_path / "cache"))
    sessions = result.sets[0].sessions
    assert len(np.unique(sessions)) == 6
    again = read_result(write_result(result, tmp_path / "out"))
    np.testing.assert_array_equal(again.sets[0].sessions, sessions)
    np.testing.assert_equal(again.metrics, result.metrics)
    assert evaluated(tiny, table, tmp_path).sets[0].sessions is None


def test_drives_are_drawn_as_a_whole():
    """Queries of a drive that succeed together: their interval is that of the drives, not of the queries."""
    rng = np.random.default_rng(0)
    drive = np.repeat(np.arange(30), 20)
    success = np.repeat(rng.random(30) < 0.6, 20)
    plan = Resampling.of(600, groups=drive, resamples=400)
    for rows in list(plan.rows())[:5]:
        counts = np.bincount(rows, minlength=600).reshape(30, 20)
        assert (counts == counts[:, :1]).all()
        assert counts[:, 0].sum() == 30
    spread = bootstrap(np.mean, (success,), plan).samples.std()
    expected = np.sqrt(success.mean() * (1 - success.mean()) / 30)
    assert spread == pytest.approx(expected, rel=0.15)
    alone = bootstrap(np.mean, (success,), Resampling.of(600, resamples=400)).samples.std()
    assert alone < spread / 3
