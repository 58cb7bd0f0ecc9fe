"""Inputs of an evaluation: tables, files, own scores, and queries that are near-copies of references."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.appearance import TWIN_SECONDS, taken_together
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import Choices, EvaluationResult, evaluate, read_result, warnings_of, write_result
from kappaplace.evaluation.arrays import (
    Labels,
    evaluate_descriptors,
    evaluate_matrices,
    read_embeddings,
    read_positives,
    read_similarities,
)
from kappaplace.evaluation.inputs import Retrieved, from_similarities
from kappaplace.evaluation.own_scores import read_own_score
from kappaplace.evaluation.run import Machine
from kappaplace.metrics.bootstrap import Resampling, bootstrap
from kappaplace.retrieval.exact import search, search_matrix

QUICK = Choices(resamples=0)


def cosines(queries: int = 12, references: int = 30, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    q, r = rng.normal(size=(queries, 16)), rng.normal(size=(references, 16))
    q, r = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, r))
    return (q @ r.T).astype(np.float32)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Files like those of VPR-Bench: several methods in one npz, positives as a list of lists."""
    np.savez_compressed(tmp_path / "SET.npz", NetVLAD=cosines(seed=0), **{"ap-gem": cosines(seed=1)})
    (tmp_path / "SET_positives.json").write_text(json.dumps([[i, i + 1] for i in range(12)]))
    return tmp_path / "SET.npz", tmp_path / "SET_positives.json"


def retrieved(k: int = 5) -> Retrieved:
    return from_similarities(cosines(), Positives.from_lists([[i] for i in range(12)], 30), k=k, name="SET")


def test_one_evaluation_for_each_method(files):
    matrix, positives = files
    results = list(evaluate_matrices([matrix], Labels([positives]), QUICK))
    assert [result.name for result in results] == ["NetVLAD", "ap-gem"]
    one = list(evaluate_matrices([matrix], Labels([positives]), QUICK, method="ap-gem"))
    assert [result.name for result in one] == ["ap-gem"]
    np.testing.assert_equal(one[0].metrics, results[1].metrics)
    top = cosines(seed=1).argmax(axis=1)
    assert one[0].metrics["SET"]["recall"]["R@1"] == np.mean(
        (top == np.arange(12)) | (top == np.arange(12) + 1)
    )
    assert "margin" in one[0].sets[0].left_out
    near = next(evaluate_matrices([matrix], Labels([positives], neighborhood="frames:1"), QUICK))
    assert "margin" in near.sets[0].scores


def test_several_sets_are_pooled(files, tmp_path):
    np.save(tmp_path / "other.npy", cosines(8, 20))
    np.savez(tmp_path / "one.npz", NetVLAD=cosines())
    (tmp_path / "other.json").write_text(json.dumps({"positives": [[i] for i in range(8)]}))
    labels = Labels([files[1], tmp_path / "other.json"])
    (result,) = evaluate_matrices([tmp_path / "one.npz", tmp_path / "other.npy"], labels, QUICK, name="mine")
    assert result.name == "mine"
    assert list(result.metrics) == ["one", "other", "pooled", "mean"]


def test_matrix_and_descriptors_agree():
    rng = np.random.default_rng(0)
    q, r = (rng.integers(-2, 3, (n, 6)).astype(np.float32) for n in (40, 300))  # many equal similarities
    matrix, direct = search_matrix(q @ r.T, 7), search(q, r, 7)
    np.testing.assert_array_equal(matrix.indices, direct.indices)
    np.testing.assert_array_equal(matrix.similarities, direct.similarities)


def test_positives_in_every_form(tmp_path):
    lists = [[0, 2], [], [1]]
    expected = Positives.from_lists(lists, 4)
    matrix = np.zeros((3, 4), bool)
    for i, row in enumerate(lists):
        matrix[i, row] = True
    (tmp_path / "a.json").write_text(json.dumps(lists))
    (tmp_path / "b.json").write_text(json.dumps({"radius": 25, "positives": lists}))
    np.save(tmp_path / "c.npy", matrix)
    np.savez(tmp_path / "d.npz", indptr=expected.indptr, indices=expected.indices)
    for name in ("a.json", "b.json", "c.npy", "d.npz"):
        results = read_positives(tmp_path / name, 4)
        assert [results.of(i).tolist() for i in range(3)] == lists, name


def test_descriptors_with_and_without_kappa(tmp_path, table):
    rng = np.random.default_rng(0)
    counts = len(table.query_rows), len(table.reference_rows)
    paths = []
    for name, n in zip(("q", "r"), counts, strict=True):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(n, 8)).astype(np.float16))
        np.save(tmp_path / f"{name}_kappa.npy", rng.uniform(1, 50, n))
        paths.append((tmp_path / f"{name}.npy", tmp_path / f"{name}_kappa.npy"))
    table.save(tmp_path / "t.parquet")
    descriptors, kappa = zip(*paths, strict=True)
    labels = Labels(tables=[tmp_path / "t.parquet"])
    bare = evaluate_descriptors(descriptors, None, labels, QUICK)
    full = evaluate_descriptors(descriptors, kappa, labels, QUICK)
    assert {"margin", "sue", "aliasing", "z-score"} <= set(bare.sets[0].scores)
    assert set(full.sets[0].scores) - set(bare.sets[0].scores) == {
        "inverse-kappa",
        "kappaplace",
        "expected-likelihood",
    }
    assert bare.sets[0].facts["hash"] == table.content_hash


def test_own_scores(tmp_path):
    results = retrieved()
    by_query = tmp_path / "mine.csv"
    by_query.write_text("query,uncertainty\n" + "".join(f"{i},{i / 10}\n" for i in reversed(range(12))))
    score = read_own_score(by_query, results)
    assert (score.name, score.match, score.probability) == ("mine", None, None)
    np.testing.assert_allclose(score.query, np.arange(12) / 10)
    sure = tmp_path / "sure.csv"
    sure.write_text("query,probability\n" + "".join(f"{i},{i / 20}\n" for i in range(12)))
    score = read_own_score(sure, results)
    np.testing.assert_allclose(score.query, 1 - np.arange(12) / 20)
    np.testing.assert_allclose(score.probability, np.arange(12) / 20)


def test_own_scores_of_pairs(tmp_path):
    results = retrieved()
    indices = results.evidence.matches.indices
    lines = [f"{i},{r},{i + r / 100}" for i, row in enumerate(indices) for r in row]
    file = tmp_path / "pairs.csv"
    file.write_text("\n".join(["query,reference,uncertainty", *lines]))
    score = read_own_score(file, results)
    expected = np.arange(12)[:, None] + indices / 100
    np.testing.assert_allclose(score.match, expected)
    np.testing.assert_allclose(score.query, expected[:, 0])
    file.write_text("\n".join(["query,reference,uncertainty", *lines[::5]]))  # the top matches alone
    assert read_own_score(file, results).match is None
    file.write_text("\n".join(["query,reference,uncertainty", *lines[1:]]))
    with pytest.raises(KappaPlaceError, match="lacks 1 of the top matches"):
        read_own_score(file, results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,uncertainty\n0,1\n0,2\n", "query 0 appears more than once"),
        ("query,reference,uncertainty\n0,1,1\n0,1,2\n", "query 0 with reference 1 appears more than once"),
        ("query,reference,uncertainty,probability\n0,1,1,0.5\n", "a probability belongs to a query"),
        ("uncertainty,query\n0.5\n", "line 2: the query must be a number"),
    ],
)
def test_invalid_own_scores_are_reported(text, message, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(KappaPlaceError, match=message):
        read_own_score(tmp_path / "mine.csv", retrieved())


def test_own_scores_by_image_path_and_set(tmp_path, table):
    names = table.paths[table.query_rows].tolist()
    positives = table.positives()
    matrix = cosines(len(names), len(table.reference_rows))
    lines = [f"val,{name},{i}" for i, name in enumerate(names)] + ["other,0,99"]
    (tmp_path / "mine.csv").write_text("\n".join(["set,query,uncertainty", *lines]))
    results = from_similarities(matrix, positives, table, name="val")
    assert read_own_score(tmp_path / "mine.csv", results).query.tolist() == list(range(len(names)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", "must have the names of its columns"),
        ("query,x\n1,2\n", "must have the column uncertainty"),
        ("query,uncertainty\n0,1\n", "lacks 11 of the 12 queries of SET"),
        ("query,uncertainty\n99,1\n", "must be a number from 0 to 11 or an image path"),
        ("query,uncertainty\n0,nan\n", "line 2: the uncertainty must be a finite number, got 'nan'"),
        ("query,uncertainty\n0\n", "line 2: the uncertainty must be a finite number, got None"),
        ("query,probability\n" + "".join(f"{i},2\n" for i in range(12)), "between 0 and 1"),
    ],
)
def test_bad_own_scores(text, sentence, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(KappaPlaceError, match=sentence):
        read_own_score(tmp_path / "mine.csv", retrieved())


def test_an_own_score_hides_none_of_ours(tmp_path):
    (tmp_path / "l2.csv").write_text("query,uncertainty\n")
    with pytest.raises(KappaPlaceError, match="Rename the file"):
        read_own_score(tmp_path / "l2.csv", retrieved())


def bad(matrix: np.ndarray, lists: list | None = None, **options) -> str:
    positives = Positives.from_lists(lists or [[0]] * 12, 30)
    with pytest.raises(KappaPlaceError) as refused:
        from_similarities(matrix, positives, **options)
    return str(refused.value)


def test_bad_matrices():
    spoiled = cosines()
    spoiled[3, 4] = np.nan
    assert "NaN" in bad(spoiled)
    assert "must be cosines from −1 to 1" in bad(cosines() * 40)
    assert "12 queries and 30 references to evaluate but positives for 3 and 30" in bad(cosines(), [[0]] * 3)
    assert "k must be between 1 and 30" in bad(cosines(), k=99)
    assert "one row per query" in bad(cosines()[0])


def test_bad_files(files, tmp_path):
    with pytest.raises(
        KappaPlaceError, match=r"does not contain the method 'VGG'. Choose from: NetVLAD, ap-gem"
    ):
        read_similarities(files[0], "VGG")
    with pytest.raises(KappaPlaceError, match="There is no file"):
        read_similarities(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(KappaPlaceError, match="cannot be read as a NumPy file"):
        read_similarities(tmp_path / "bad.npz")
    np.save(tmp_path / "whole.npy", np.arange(6).reshape(2, 3))
    with pytest.raises(KappaPlaceError, match="must contain a matrix of floating-point similarities"):
        read_similarities(tmp_path / "whole.npy")
    np.save(tmp_path / "pickle.npy", np.array([[0], [1, 2]], dtype=object), allow_pickle=True)
    with pytest.raises(KappaPlaceError, match="cannot be read as a NumPy file"):
        read_positives(tmp_path / "pickle.npy", 3)
    for text in ("{}", "[1, 2]", '{"positives": 3}', "[["):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(KappaPlaceError, match=r"p\.json"):
            read_positives(tmp_path / "p.json", 3)
    (tmp_path / "p.json").write_text("[[0], [7]]")
    with pytest.raises(KappaPlaceError, match="must be between 0 and 2, got 7"):
        read_positives(tmp_path / "p.json", 3)
    np.save(tmp_path / "q.npy", np.ones((4, 2), np.float32))
    np.save(tmp_path / "kappa.npy", np.ones(3))
    with pytest.raises(KappaPlaceError, match="one κ for each of 4 descriptors"):
        read_embeddings(tmp_path / "q.npy", tmp_path / "kappa.npy")
    with pytest.raises(KappaPlaceError, match="1 datasets but 2 positives files"):
        list(evaluate_matrices([files[0]], Labels([files[1]] * 2), QUICK))
    with pytest.raises(KappaPlaceError, match="Pass --positives FILE or a table"):
        list(evaluate_matrices([files[0]], Labels(), QUICK))


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
    (warning,) = [line for line in warnings_of(without) if "the label of another place" in line]
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
