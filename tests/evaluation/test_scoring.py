"""The row of the calibrated probability: what a map of the same images would say of the same matches."""

from __future__ import annotations

import numpy as np
import pytest

from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.evaluation import Choices, evaluate
from kappaplace.evaluation.inputs import from_descriptors, from_table
from kappaplace.evaluation.run import Machine, evaluate_sets, fit_on
from kappaplace.evaluation.scoring import calibrated_score, fit_calibrated, includes_calibrated
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.models.checkpoint import load_model
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.types import Embeddings
from tests.evaluation.conftest import city_table


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> PlaceImages:
    return city_table(tmp_path_factory.mktemp("street"), name="street")


def test_the_row_has_the_probabilities_of_a_map(street, tmp_path):
    model = load_model()
    result = evaluate(model, street, Choices(resamples=0), Machine(tmp_path / "cache"))
    column = result.sets[0].scores["calibrated"]
    assert set(result.metrics["street"]["scores"]["calibrated"]) >= {"AUROC", "ECE@1", "Brier"}
    place_map = PlaceMap.build(street, tmp_path / "map", model, BuildOptions(patches="none"))
    answers = place_map.localize(street.image_paths(street.query_rows))
    references = street.references.paths.tolist()
    compared = 0
    for row, answer in enumerate(answers):
        if answer.probability is None:  # unlike the queries of the calibration: a map says nothing
            continue
        probability = {match.name: match.probability for match in answer.matches}
        for rank, reference in enumerate(result.sets[0].matches.indices[row].tolist()):
            assert 1 - column.match[row, rank] == pytest.approx(probability[references[reference]], abs=1e-4)
            compared += 1
    assert compared >= 50
    np.testing.assert_allclose(column.probability, 1 - column.query)


def test_without_a_shipped_calibration_it_is_fitted_or_the_reason_is_given(tiny, table, tmp_path):
    left = evaluate(tiny, table, Choices(resamples=0), Machine(tmp_path / "cache")).sets[0].left_out
    assert "--fit-on" in left["calibrated"]
    retrieved = from_table(table, EmbeddingStore.of(tiny, tmp_path / "cache"))
    calibration = fit_calibrated(retrieved)
    assert calibration is not None
    assert calibration.rerank == 10
    column = calibrated_score(retrieved, calibration)
    assert not isinstance(column, str)
    assert ((column.probability > 0) & (column.probability < 1)).all()


def test_a_perfect_validation_set_is_no_reason_to_fail():
    """Every answer is correct: nothing is fitted, and nothing fails."""
    unit = np.eye(30, dtype=np.float32)
    perfect = Positives.from_lists([[row] for row in range(30)], 30)
    retrieved = from_descriptors(Embeddings(unit), Embeddings(unit), perfect, name="perfect")
    fitted = fit_on(retrieved, Choices(resamples=0))
    assert fitted.calibrations == {}
    assert fitted.own is None
    result = evaluate_sets("x", [retrieved], Choices(resamples=0), fitted=fitted)
    assert result.metrics["perfect"]["recall"]["R@1"] == 1.0


@pytest.mark.parametrize(
    ("scores", "wanted"), [("", True), ("all", True), ("l2, calibrated", True), ("l2,pa", False)]
)
def test_it_is_a_score_like_any_other(scores: str, wanted: bool) -> None:
    assert includes_calibrated(scores) is wanted
