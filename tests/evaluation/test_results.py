"""From a table to metrics, files and back."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from kappaplace.data.images import Preprocessing
from kappaplace.data.positives import NoPositives, Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import (
    Choices,
    Machine,
    evaluate,
    evaluate_sets,
    flaws_of,
    measure,
    read_result,
    warnings_of,
    write_result,
)
from kappaplace.evaluation.inputs import from_descriptors, from_similarities, from_table
from kappaplace.evaluation.run import fit_on, preprocessing_for
from kappaplace.evaluation.scoring import SLOW
from kappaplace.metrics import BOTH_TAILS, UPPER_TAIL, auroc, expected_calibration_error
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.types import Embeddings
from kappaplace.uncertainty import SCORES


@pytest.fixture
def cache(tiny, tmp_path) -> EmbeddingStore:
    return EmbeddingStore.of(tiny, tmp_path / "cache")


def test_every_score_is_there_or_has_a_reason(tiny, table, tmp_path):
    result = evaluate(tiny, table, Choices(resamples=0), Machine(tmp_path / "cache")).sets[0]
    assert result.hits.shape == (24, 10)
    assert set(result.scores) | set(result.left_out) == {*SCORES, "calibrated"}
    assert set(result.left_out) == {"variance", "calibrated", *SLOW}
    assert {"patches", "patch-margin"} <= set(result.scores)  # without being asked for
    assert result.references == len(table.reference_rows)
    assert result.query_images[3] == str(table.image_path(int(table.query_rows[3])))
    np.testing.assert_array_equal(result.hits, table.positives().hits(result.matches.indices))


def test_metrics_are_those_of_the_metrics_package(tiny, table, tmp_path):
    result = evaluate(tiny, table, Choices("l2,kappaplace", resamples=0), Machine(tmp_path / "cache")).sets[0]
    metrics = measure([result], resamples=20)["val"]
    success = result.hits[:, 0]
    for name, clamp in (("l2", UPPER_TAIL), ("kappaplace", BOTH_TAILS)):
        query = result.scores[name].query
        assert metrics["scores"][name]["AUROC"] == auroc(query, success)
        assert metrics["scores"][name]["ECE@1"] == expected_calibration_error(query, success, clamp)
        low, high = metrics["intervals"]["scores"][name]["AUROC"]
        assert low <= metrics["scores"][name]["AUROC"] <= high
    assert metrics["recall"]["R@1"] == success.mean()
    assert metrics["scores"]["l2"]["match ECE@1"] == metrics["scores"]["l2"]["ECE@1"]


def test_pooled_and_mean(cache, table, city_folder):
    other = PlaceImages.open(city_folder / "test.parquet")
    sets = [from_table(each, cache) for each in (table, other)]
    result = evaluate_sets("tiny", sets, Choices("l2", resamples=10))
    assert list(result.metrics) == ["val", "test", "pooled", "mean"]
    a, b = (result.metrics[name]["recall"]["R@1"] for name in ("val", "test"))
    assert result.metrics["mean"]["recall"]["R@1"] == pytest.approx((a + b) / 2)
    hits = np.concatenate([each.hits[:, 0] for each in result.sets])
    query = np.concatenate([each.scores["l2"].query for each in result.sets])
    assert result.metrics["pooled"]["scores"]["l2"]["AUROC"] == auroc(query, hits)
    with pytest.raises(KappaPlaceError, match="The name 'val' is used for more than one dataset"):
        evaluate_sets("tiny", [sets[0], sets[0]], Choices("l2", resamples=0))


def test_what_says_nothing_is_reported(cache, table):
    """A floored κ, a constant score and descriptors that coincide pass no evaluation in silence."""
    retrieved = from_table(table, cache)
    queries = retrieved.evidence.queries.embeddings
    references = retrieved.evidence.references.embeddings
    low = np.linspace(0.40, 0.43, len(queries.descriptor), dtype=np.float32)
    choices = Choices("l2,inverse-kappa", resamples=0)

    def evaluated(one: Embeddings, other: Embeddings):
        return evaluate_sets("tiny", [from_descriptors(one, other, None, table)], choices)

    dead = evaluated(queries._replace(kappa=low), references)
    assert flaws_of(dead.sets[0]) == {"inverse-kappa": "constant"}
    metrics = dead.metrics["val"]
    assert metrics["scores"]["inverse-kappa"]["ECE@1"] == metrics["baselines"]["constant score"]["ECE@1"]
    score, kappa = warnings_of(dead)
    assert "1/κ (constant)" in score
    assert kappa.startswith("val: κ is 0.401 to 0.428 for 90% of the queries, and 1/κ is floored")

    same = np.zeros_like(references.descriptor)
    same[:, 0] = 1
    collapsed = evaluated(queries, references._replace(descriptor=same))
    assert any("descriptors of different references coincide" in text for text in warnings_of(collapsed))

    rng = np.random.default_rng(0)
    living = [
        each._replace(
            descriptor=rng.normal(size=each.descriptor.shape).astype(np.float32),
            kappa=rng.uniform(50, 500, len(each.descriptor)).astype(np.float32),
        )
        for each in (queries, references)
    ]
    assert warnings_of(evaluated(*living)) == []


def test_only_some_datasets_are_pooled(cache, table, city_folder):
    sets = [from_table(each, cache) for each in (table, PlaceImages.open(city_folder / "test.parquet"))]
    result = evaluate_sets("tiny", sets, Choices("l2", resamples=0, pool=("val",)))
    assert result.metrics["pooled"]["queries"] == len(table.query_rows)
    assert result.metrics["pooled"]["scores"] == result.metrics["val"]["scores"]
    assert result.facts["pool"] == ["val"]
    assert "pool" not in evaluate_sets("tiny", sets, Choices("l2", resamples=0)).facts


def test_files_give_the_result_back(cache, table, route, tmp_path):
    lists = [positive.tolist() for positive in np.array_split(np.arange(24), 12)]
    rng = np.random.default_rng(0)
    alone = from_similarities(rng.uniform(-1, 1, (12, 24)), Positives.from_lists(lists, 24), name="alone")
    sets = [from_table(table, cache), from_table(route, cache), alone]
    result = evaluate_sets("tiny", sets, Choices("l2,pa,kappaplace,sue", resamples=10, keep_twins=True))
    again = read_result(write_result(result, tmp_path / "out"))
    assert again.name == result.name
    assert again.facts == json.loads(json.dumps(result.facts))
    assert again.times == result.times
    np.testing.assert_equal(again.metrics, result.metrics)
    for was, now in zip(result.sets, again.sets, strict=True):
        for field in ("hits", "positives", "query_kappa", "reference_kappa", "query_positions"):
            np.testing.assert_array_equal(getattr(was, field), getattr(now, field))
        np.testing.assert_array_equal(was.reference_positions, now.reference_positions)
        np.testing.assert_array_equal(was.queries, now.queries)
        for part in range(2):
            np.testing.assert_array_equal(was.matches[part], now.matches[part])
            assert was.matches[part].dtype == now.matches[part].dtype
        assert list(was.query_images) == list(now.query_images)
        assert list(was.reference_images) == list(now.reference_images)
        plain = ("name", "left_out", "references", "without_positives", "policy", "block", "facts")
        for field in plain:
            assert getattr(was, field) == getattr(now, field), field
        assert list(was.scores) == list(now.scores)
        for name in was.scores:
            np.testing.assert_array_equal(was.scores[name].query, now.scores[name].query)
            np.testing.assert_array_equal(was.scores[name].match, now.scores[name].match)
            assert was.scores[name].one_sided == now.scores[name].one_sided
    # What was measured can be measured again from the files alone.
    np.testing.assert_equal(measure(again.sets, resamples=10), result.metrics)


def test_equal_inputs_give_equal_bytes(tiny, table, tmp_path):
    for name in ("a", "b"):
        cache = EmbeddingStore.of(tiny, tmp_path / f"cache-{name}")
        result = evaluate_sets("tiny", [from_table(table, cache)], Choices(resamples=5))
        write_result(result, tmp_path / name)
    for file in ("metrics.csv", "queries.parquet", "matches.parquet", "references.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    texts = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("a", "b")]
    for text in texts:
        text.pop("times")
    assert texts[0] == texts[1]


def test_a_route_is_resampled_by_blocks_in_the_order_of_its_frames(cache, route):
    choices = Choices("l2", resamples=5, keep_twins=True)  # the queries are the references
    shuffled = np.random.default_rng(0).permutation(48)
    rows = np.concatenate([route.query_rows[shuffled], route.reference_rows])
    mixed = replace(route.select(rows), frame_number=np.concatenate([shuffled, np.arange(len(rows) - 48)]))
    result = evaluate_sets("tiny", [from_table(mixed, cache)], choices).sets[0]
    assert result.block == 20
    assert shuffled[result.queries].tolist() == list(range(48))
    short = mixed.select(np.concatenate([mixed.query_rows[:39], mixed.reference_rows]))
    assert evaluate_sets("x", [from_table(short, cache)], choices).sets[0].block == 1


def test_policies(cache, table):
    far = np.array(table.positions)
    far[table.query_rows[:5]] += 1e6
    lost = from_table(replace(table, positions=far), cache)
    fail = evaluate_sets("x", [lost], Choices("l2", resamples=0)).sets[0]
    skip = evaluate_sets("x", [lost], Choices("l2", policy=NoPositives.SKIP, resamples=0)).sets[0]
    assert (fail.without_positives, skip.without_positives) == (5, 5)
    assert (len(fail.hits), len(skip.hits)) == (24, 19)
    assert skip.facts["counted"] == "19 of 24 queries evaluated; 5 without positives, omitted"
    assert skip.queries is not None
    assert skip.queries.tolist() == list(range(5, 24))
    with pytest.raises(KappaPlaceError, match="5 of 24 queries have no positive"):
        evaluate_sets("x", [lost], Choices("l2", policy=NoPositives.ERROR, resamples=0))


def test_fitting_fits_every_score_a_probability(cache, table, city_folder):
    fitted = fit_on(from_table(table, cache), Choices("l2,pa", fuse=("pa", "margin")))
    other = from_table(PlaceImages.open(city_folder / "test.parquet"), cache)
    result = evaluate_sets("x", [other], Choices("l2,pa", resamples=5), fitted=fitted)
    metrics = result.metrics["test"]["scores"]
    assert list(metrics) == ["l2", "pa", "fused"]
    for name in metrics:
        assert {"smooth ECE", "debiased ECE", "Brier", "Brier resolution", "log-loss"} <= set(metrics[name])
    fused = result.sets[0].scores["fused"]
    np.testing.assert_allclose(fused.probability, 1 - fused.query)
    assert result.facts["fused"]["scores"] == ["pa", "margin"]


def test_the_protocol_may_decide_the_size(tiny, table):
    city = replace(table, protocol="synthetic-city")
    assert preprocessing_for(tiny, city, "model") == tiny.preprocessing
    assert preprocessing_for(tiny, city, "protocol") == Preprocessing(None, "none")
    assert preprocessing_for(tiny, table, "protocol") == tiny.preprocessing


def test_descriptors_are_brought_to_unit_length():
    rng = np.random.default_rng(0)
    query, reference = rng.normal(size=(5, 8)), rng.normal(size=(20, 8))
    positives = Positives.from_lists([[0]] * 5, 20)
    long = from_descriptors(Embeddings(query), Embeddings(reference), positives)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, reference)]
    short = from_descriptors(Embeddings(unit[0]), Embeddings(unit[1]), positives)
    np.testing.assert_array_equal(long.evidence.matches.indices, short.evidence.matches.indices)
    reference[3] = 0
    with pytest.raises(KappaPlaceError, match="Row 3 of the descriptors of the references"):
        from_descriptors(Embeddings(query), Embeddings(reference), positives)


def test_a_large_map_keeps_what_was_retrieved(monkeypatch, cache, table, tmp_path):
    monkeypatch.setattr("kappaplace.evaluation.scoring.MOST_REFERENCES", 20)
    result = evaluate_sets("x", [from_table(table, cache)], Choices("l2", resamples=0))
    again = read_result(write_result(result, tmp_path / "out")).sets[0]
    retrieved = np.unique(again.matches.indices)
    was = result.sets[0]
    assert was.reference_positions is not None
    assert again.reference_positions is not None
    np.testing.assert_array_equal(again.reference_positions[retrieved], was.reference_positions[retrieved])
    assert [again.reference_images[int(i)] for i in retrieved] == [
        was.reference_images[int(i)] for i in retrieved
    ]


def test_damaged_folders_are_one_sentence(tmp_path):
    with pytest.raises(KappaPlaceError, match="There is no evaluation in"):
        read_result(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(KappaPlaceError, match="cannot be read"):
        read_result(tmp_path)
    (tmp_path / "results.json").write_text('{"version": 99}')
    with pytest.raises(KappaPlaceError, match="has version 99"):
        read_result(tmp_path)
