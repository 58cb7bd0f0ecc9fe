"""Readers of an audit: every kind of file gives the same answers, and pickles build arrays only."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from kappaplace.data import Neighborhood, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import AnswerFiles, ScoredAnswers, read_answers
from kappaplace.evaluation.audit_files import best_scores

QUERIES, REFERENCES = 30, 12


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Descriptors, their similarities, and one correct reference per query but the last."""
    rng = np.random.default_rng(0)
    references = rng.normal(size=(REFERENCES, 8)).astype(np.float32)
    queries = (references[np.arange(QUERIES) % REFERENCES] + rng.normal(0, 0.9, (QUERIES, 8))).astype(
        np.float32
    )
    np.save(tmp_path / "q.npy", queries)
    np.save(tmp_path / "r.npy", references)
    lists = [[i % REFERENCES] for i in range(QUERIES - 1)] + [[]]
    (tmp_path / "gt.json").write_text(json.dumps(lists))
    return tmp_path


def by_hand(world: Path, kind: str) -> tuple[list[float], list[bool]]:
    """Best score and outcome of each query, in float64."""
    queries, references = (np.load(world / name).astype(np.float64) for name in ("q.npy", "r.npy"))
    scores, correct = [], []
    for number, query in enumerate(queries):
        values = {
            "cosine": [query @ r / np.linalg.norm(query) / np.linalg.norm(r) for r in references],
            "dot": [query @ r for r in references],
            "l2": [-float(np.linalg.norm(query - r)) for r in references],
            "squared-l2": [-float(np.sum((query - r) ** 2)) for r in references],
        }[kind]
        best = int(np.argmax(values))
        scores.append(abs(values[best]) if "l2" in kind else values[best])
        correct.append(best == number % REFERENCES and number < QUERIES - 1)
    return scores, correct


def check(answers: ScoredAnswers, world: Path, kind: str) -> None:
    scores, correct = by_hand(world, kind)
    np.testing.assert_allclose(answers.scores, scores, rtol=2e-6)
    assert answers.correct.tolist() == correct
    assert answers.lower_is_better == (kind in ("l2", "squared-l2"))
    assert answers.answerable is not None
    assert answers.answerable.tolist() == [True] * (QUERIES - 1) + [False]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2", "squared-l2"])
def test_descriptors(world: Path, metric: str) -> None:
    options = AnswerFiles(positives=world / "gt.json", metric=metric)  # type: ignore[arg-type]
    check(read_answers([world / "q.npy", world / "r.npy"], options), world, metric)


def test_a_matrix_of_similarities_or_distances(world: Path) -> None:
    q, r = (np.load(world / name) for name in ("q.npy", "r.npy"))
    np.save(world / "dots.npy", q @ r.T)
    gaps = np.linalg.norm(q[:, None] - r[None], axis=2)
    np.savez(world / "all.npz", dots=q @ r.T, gaps=gaps)
    labels = world / "gt.json"
    check(read_answers([world / "dots.npy"], AnswerFiles(labels)), world, "dot")
    check(read_answers([world / "all.npz"], AnswerFiles(labels, score="gaps", distance=True)), world, "l2")
    with pytest.raises(KappaPlaceError, match=r"several matrices.*dots, gaps"):
        read_answers([world / "all.npz"], AnswerFiles(labels))


def test_blocks_of_queries_are_compared_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    q, r = rng.normal(size=(70, 5)), rng.normal(size=(9, 5))
    whole = best_scores(q, r, "l2")
    monkeypatch.setattr("kappaplace.evaluation.audit_files.PAIRS", 30)
    for one, other in zip(whole, best_scores(q, r, "l2"), strict=True):
        np.testing.assert_allclose(one, other)


def test_a_table_of_a_route_orders_its_frames(world: Path) -> None:
    count = QUERIES + REFERENCES
    paths = [f"{'qr'[row >= QUERIES]}/{row:03d}.png" for row in range(count)]
    is_query = np.arange(count) < QUERIES
    table = PlaceImages.create(
        paths,
        np.full((count, 2), np.nan),
        is_query=is_query,
        neighborhood=Neighborhood("frames", 5),
        condition=["b" if row % 2 else "a" for row in range(QUERIES)] + ["ref"] * REFERENCES,
    )
    table.save(world / "route.parquet")
    options = AnswerFiles(world / "gt.json", tables=(world / "route.parquet",))
    answers = read_answers([world / "q.npy", world / "r.npy"], options)
    assert answers.sequence
    assert answers.drives is not None
    assert answers.drives.tolist() == ["a"] * 15 + ["b"] * 15
    scores, _ = by_hand(world, "cosine")
    np.testing.assert_allclose(answers.scores, scores[::2] + scores[1::2], rtol=2e-6)


ROWS = [(0.9, True, "x"), (0.2, False, "x"), (0.7, True, "y")]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_closure_log(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"log.{kind}"
    if kind == "csv":
        lines = ["score,correct,session", *(f"{s},{'yes' if c else 'NO'},{d}" for s, c, d in ROWS)]
    else:
        lines = [json.dumps({"score": s, "correct": c, "session": d, "more": [1]}) for s, c, d in ROWS]
    file.write_text("\n".join(lines) + "\n")
    answers = read_answers([file])
    assert answers.scores.tolist() == [0.9, 0.2, 0.7]
    assert answers.correct.tolist() == [True, False, True]
    assert answers.drives is not None
    assert answers.drives.tolist() == ["x", "x", "y"]
    assert not answers.sequence
    named = tmp_path / f"named.{kind}"
    named.write_text(file.read_text().replace("score", "inliers").replace("correct", "ok"))
    own = read_answers([named], AnswerFiles(score="inliers", correct="ok", distance=True))
    assert own.lower_is_better
    assert own.scores.tolist() == answers.scores.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no answers"),
        ("score,right\n1,1\n", "no column 'correct'"),
        ("score,correct\nx,1\n", "score of answer 1 must be a finite number, got 'x'"),
        ("score,correct\n1,1\n2,maybe\n", "correct of answer 2 must be true or false, got 'maybe'"),
        ("score,correct\n1\n", "correct of answer 1 must be true or false, got None"),
        ("score,correct\ninf,1\n", "must be a finite number, got 'inf'"),
    ],
)
def test_a_bad_log_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(KappaPlaceError, match=message):
        read_answers([tmp_path / "log.csv"])


def evaluation_folder(world: Path, **changes: str) -> Path:
    """The log folder of VPR-methods-evaluation with --save_descriptors and --num_preds_to_save 2."""
    folder = world / "logs"
    (folder / "preds").mkdir(parents=True)
    q, r = (np.load(world / name) for name in ("q.npy", "r.npy"))
    np.save(folder / "queries_descriptors.npy", q)
    np.save(folder / "database_descriptors.npy", r)
    for number, query in enumerate(q):
        order = np.argsort(np.linalg.norm(r - query, axis=1))[:2]
        positives = [number % REFERENCES] if number < QUERIES - 1 else []
        lines = ["Query path:", f"q/@{number}@.jpg\n", "Predictions paths:"]
        lines += ["\n".join(f"db/@{row}@.jpg" for row in order) + "\n", "Positives paths:"]
        lines += ["\n".join(f"db/@{row}@.jpg" for row in positives) + "\n"]
        (folder / "preds" / f"{number:03d}.txt").write_text("\n".join(lines))
    return folder


def test_a_folder_of_vpr_methods_evaluation(world: Path) -> None:
    folder = evaluation_folder(world)
    check(read_answers([folder], AnswerFiles(metric="squared-l2")), world, "squared-l2")
    check(read_answers([folder], AnswerFiles(world / "gt.json", metric="dot")), world, "dot")
    (folder / "preds" / "007.txt").unlink()
    with pytest.raises(KappaPlaceError, match="predictions of 29 of 30 queries"):
        read_answers([folder])
    text = (folder / "preds" / "006.txt").read_text()
    (folder / "preds" / "007.txt").write_text(text.partition("Positives")[0])
    with pytest.raises(KappaPlaceError, match="with labels"):
        read_answers([folder])


def neighbors(world: Path) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    q, r = (np.load(world / name).astype(np.float64) for name in ("q.npy", "r.npy"))
    gaps = np.linalg.norm(q[:, None] - r[None], axis=2) ** 2
    order = np.argsort(gaps, axis=1)[:, :5]
    positives = [np.array([i % REFERENCES]) for i in range(QUERIES - 1)] + [np.empty(0, np.int64)]
    return order, np.take_along_axis(gaps, order, 1), positives


def test_the_file_for_uncertainty_of_vpr_methods_evaluation(world: Path) -> None:
    order, gaps, positives = neighbors(world)
    lists = np.empty(QUERIES, object)
    lists[:] = positives
    stored = {"database_utms": np.zeros((3, 2)), "positives_per_query": lists}
    torch.save(stored | {"predictions": order, "distances": gaps}, world / "z_data.torch")
    check(read_answers([world / "z_data.torch"]), world, "squared-l2")
    check(read_answers([world]), world, "squared-l2")
    torch.save({"predictions": order, "distances": gaps}, world / "z_data.torch")
    with pytest.raises(KappaPlaceError, match="no positives_per_query"):
        read_answers([world])


def sue_file(world: Path, protocol: int = 4) -> Path:
    order, gaps, positives = neighbors(world)
    lists = np.empty(QUERIES, object)
    lists[:] = positives
    inliers = np.arange(QUERIES)
    values = [*(np.zeros((2, 2)),) * 4, order, gaps, lists, 1, None, [2], np.zeros((9, 2))]
    values += [inliers, inliers * 2, inliers * 3]
    file = world / "st_lucia.pickle"
    file.write_bytes(b"".join(pickle.dumps(value, protocol) for value in values))
    return file


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_file_of_sue(world: Path, protocol: int) -> None:
    file = sue_file(world, protocol)
    check(read_answers([file]), world, "squared-l2")
    inliers = read_answers([file], AnswerFiles(score="sift_inliers"))
    assert inliers.scores.tolist() == (2 * np.arange(QUERIES)).tolist()
    assert not inliers.lower_is_better
    assert inliers.correct.tolist() == by_hand(world, "l2")[1]
    with pytest.raises(KappaPlaceError, match="Choose from: dists, delf_inliers"):
        read_answers([file], AnswerFiles(score="surf"))


class Attack:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("name", ["evil.pickle", "z_data.torch"])
def test_a_pickle_executes_nothing(tmp_path: Path, name: str) -> None:
    data = pickle.dumps(Attack(tmp_path / "executed"))
    if name == "z_data.torch":
        with zipfile.ZipFile(tmp_path / name, "w") as stored:
            stored.writestr("archive/data.pkl", data)
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(KappaPlaceError, match="which is not a number"):
        read_answers([tmp_path / name])
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("cut", [0, 3, 200, 900])
def test_a_cut_file_is_one_message(world: Path, cut: int) -> None:
    file = sue_file(world)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(KappaPlaceError, match="cannot be read as results of SUE"):
        read_answers([file])


@pytest.mark.parametrize("kind", ["sue", "z_data"])
def test_a_damaged_pickle_never_ends_in_another_error(world: Path, kind: str) -> None:
    order, gaps, positives = neighbors(world)
    file = sue_file(world) if kind == "sue" else world / "z_data.torch"
    if kind == "z_data":
        stored = {"predictions": order, "distances": gaps, "positives_per_query": positives}
        torch.save(stored, file)
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    rejected = 0
    for _ in range(60):
        content = bytearray(whole)
        for place in rng.integers(0, len(whole), 3).tolist():
            content[place] = int(rng.integers(256))
        file.write_bytes(content)
        try:
            read_answers([file])
        except KappaPlaceError:
            rejected += 1
    assert rejected > 20


def test_a_compressed_pickle_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z_data.torch", "w", zipfile.ZIP_DEFLATED) as stored:
        stored.writestr("archive/data.pkl", bytes(1_000_000))
    with pytest.raises(KappaPlaceError, match="it is compressed"):
        read_answers([tmp_path / "z_data.torch"])


def test_records_are_not_numbers(world: Path) -> None:
    order, _, positives = neighbors(world)
    records = np.zeros((QUERIES, 2), [("a", "f8"), ("b", "i4")])
    torch.save(
        {"predictions": order, "distances": records, "positives_per_query": positives}, world / "z_data.torch"
    )
    with pytest.raises(KappaPlaceError, match="numbers of type"):
        read_answers([world])


def test_wrong_input_is_one_message(world: Path) -> None:
    pair = [world / "q.npy", world / "r.npy"]
    with pytest.raises(KappaPlaceError, match="correct references are unknown"):
        read_answers(pair)
    with pytest.raises(KappaPlaceError, match="Pass --metric l2"):
        read_answers(pair, AnswerFiles(world / "gt.json", distance=True))
    with pytest.raises(KappaPlaceError, match="labels of 30 and 12"):
        read_answers([pair[1], pair[1]], AnswerFiles(world / "gt.json"))
    with pytest.raises(KappaPlaceError, match="no descriptors"):
        read_answers([world], AnswerFiles())
    with pytest.raises(KappaPlaceError, match="unknown type"):
        read_answers([world / "gt.json"])
    with pytest.raises(KappaPlaceError, match="There is no file"):
        read_answers([world / "nothing.csv"])
    with pytest.raises(KappaPlaceError, match="got 3 files"):
        read_answers([*pair, pair[0]])
    with pytest.raises(KappaPlaceError, match="at most one table"):
        read_answers(pair, AnswerFiles(tables=(world / "a.csv", world / "b.csv")))
    np.save(world / "narrow.npy", np.ones((3, 2), np.float32))
    with pytest.raises(KappaPlaceError, match="same dimension, got 8 and 2"):
        read_answers([world / "q.npy", world / "narrow.npy"], AnswerFiles(world / "gt.json"))
    np.save(world / "nan.npy", np.full((QUERIES, REFERENCES), np.nan))
    with pytest.raises(KappaPlaceError, match="NaN or infinite"):
        read_answers([world / "nan.npy"], AnswerFiles(world / "gt.json"))
    with pytest.raises(KappaPlaceError, match="Unknown metric 'l1'"):
        AnswerFiles(metric="l1")  # type: ignore[arg-type]
