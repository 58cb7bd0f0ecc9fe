"""One meaning of a similarity in every engine: a cosine, higher for more similar, best first."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from kappaplace.retrieval import Engine, EngineOptions, open_engine
from kappaplace.retrieval.open import EngineKind
from kappaplace.types import Matches

COUNT, DIM, QUERIES = 1200, 32, 4
CLOSE = 2e-6  # float32 sums in another order
ENGINES = [
    "auto",
    "exact",
    "ivf-pq",
    pytest.param("milvus", marks=pytest.mark.slow),
    pytest.param("postgres", marks=pytest.mark.slow),
]


def vectors() -> tuple[np.ndarray, np.ndarray]:
    """References and queries; rows 2i and 2i+1 are query i itself and its opposite."""
    rng = np.random.default_rng(5)
    rows, queries = (rng.standard_normal((count, DIM)) for count in (COUNT, QUERIES))
    rows[: 2 * QUERIES : 2], rows[1 : 2 * QUERIES : 2] = queries, -queries
    for i in range(QUERIES):  # references at known angles, so that each threshold selects another number
        for step, cosine in enumerate((0.95, 0.9, 0.8, 0.7)):
            across = rng.standard_normal(DIM)
            across -= queries[i] * (across @ queries[i]) / (queries[i] @ queries[i])
            unit, side = queries[i] / np.linalg.norm(queries[i]), across / np.linalg.norm(across)
            rows[20 + 4 * i + step] = cosine * unit + np.sqrt(1 - cosine**2) * side
    rows, queries = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (rows, queries))
    return rows.astype(np.float32), queries.astype(np.float32)


def check(matches: Matches, truth: np.ndarray) -> None:
    """What every engine must guarantee for a search of all references, from the cosines in float64."""
    assert matches.indices.shape == matches.similarities.shape == truth.shape
    assert (matches.indices.dtype, matches.similarities.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(np.sort(matches.indices, axis=1), np.indices(truth.shape)[1])
    cosines = np.take_along_axis(truth, matches.indices, 1)
    np.testing.assert_allclose(matches.similarities, cosines, rtol=0, atol=CLOSE)
    assert (np.diff(matches.similarities, axis=1) <= 0).all()  # best first
    assert (np.diff(cosines, axis=1) <= 2 * CLOSE).all()
    own = np.arange(len(truth))
    np.testing.assert_array_equal(matches.indices[:, 0], 2 * own)  # the same vector
    np.testing.assert_array_equal(matches.indices[:, -1], 2 * own + 1)  # the opposite one
    np.testing.assert_allclose(matches.similarities[:, 0], 1, atol=CLOSE)
    np.testing.assert_allclose(matches.similarities[:, -1], -1, atol=CLOSE)
    for threshold in (0.65, 0.75, 0.85, 0.92, -0.99):  # "at least" selects the same references everywhere
        np.testing.assert_array_equal(
            (matches.similarities >= threshold).sum(axis=1), (truth >= threshold).sum(axis=1)
        )


def cosines_of(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    return queries.astype(np.float64) @ rows.astype(np.float64).T


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    kind, uri = request.param, None
    if kind == "milvus":
        pytest.importorskip("milvus_lite")
        uri = str(tmp_path / "m.db")
    elif kind == "postgres":
        uri = request.getfixturevalue("postgres_uri")
    elif kind == "ivf-pq":
        pytest.importorskip("faiss")
    rows, _ = vectors()
    options = EngineOptions(uri, "contract" if uri else "")
    return open_engine(rows, kind=kind, folder=tmp_path if kind == "ivf-pq" else None, options=options)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_every_engine_ranks_by_cosine(engine: Engine) -> None:
    rows, queries = vectors()
    with engine:
        check(engine.search(queries, COUNT), cosines_of(rows, queries))
        few = engine.search(queries, 3)
        np.testing.assert_array_equal(few.indices[:, 0], 2 * np.arange(QUERIES))
        assert (few.similarities[:, 0] > few.similarities[:, 2]).all()


def test_no_engine_is_forgotten() -> None:
    names = [each if isinstance(each, str) else each.values[0] for each in ENGINES]
    assert sorted(names) == sorted(get_args(EngineKind))


@pytest.mark.parametrize("fault", ["distance", "squared", "scaled", "worst first"])
def test_the_contract_detects_other_meanings(fault: str) -> None:
    rows, queries = vectors()
    truth = cosines_of(rows, queries)
    order = np.argsort(-truth, axis=1, kind="stable")
    right = Matches(order, np.take_along_axis(truth, order, 1).astype(np.float32))
    check(right, truth)
    s = right.similarities
    wrong = {
        "distance": Matches(order, np.sqrt(np.maximum(2 - 2 * s, 0))),
        "squared": Matches(order, s * np.abs(s)),
        "scaled": Matches(order, (1 + s) / 2),
        "worst first": Matches(order[:, ::-1], s[:, ::-1]),
    }[fault]
    with pytest.raises(AssertionError):
        check(wrong, truth)
