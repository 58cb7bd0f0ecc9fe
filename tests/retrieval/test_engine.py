"""Every embedded engine against a plain NumPy sort: segments, number formats, circles, files, bad input."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import (
    Columns,
    Engine,
    EngineOptions,
    Quantized,
    exact,
    faiss,
    open_engine,
    quantize,
)
from kappaplace.retrieval import open as engines
from kappaplace.retrieval.database import (
    Hits,
    References,
    checked_name,
    deepen,
    offsets_to_write,
    retry,
    without_password,
)

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs the extra faiss")


def city(references: int = 1500, dim: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit descriptors in clusters, positions, and queries near some of them."""
    rng = np.random.default_rng(seed)
    places = rng.standard_normal((references // 10, dim))
    wide = np.repeat(places, 10, 0) + 0.3 * rng.standard_normal((references, dim))
    queries = places[:20] + 0.3 * rng.standard_normal((20, dim))
    wide, queries = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (wide, queries))
    return wide.astype(np.float32), rng.uniform(0, 100, (references, 2)), queries.astype(np.float32)


def sorted_fully(queries: np.ndarray, rows: np.ndarray, selected_rows: np.ndarray, k: int) -> np.ndarray:
    similarity = queries.astype(np.float64) @ rows[selected_rows].astype(np.float64).T
    return selected_rows[np.argsort(-similarity, axis=1, kind="stable")[:, :k]]


def test_the_exact_engine_equals_a_full_sort() -> None:
    rows, positions, queries = city()
    with open_engine(rows, positions, "exact") as engine:
        assert isinstance(engine, Engine)
        assert (engine.name, engine.exact, len(engine)) == ("exact", True, 1500)
        matches = engine.search(queries, 7)
        np.testing.assert_array_equal(matches.indices, sorted_fully(queries, rows, np.arange(1500), 7))
        assert (matches.indices.dtype, matches.similarities.dtype) == (np.int64, np.float32)
        selected_rows = np.flatnonzero(np.hypot(*(positions - [40, 60]).T) <= 20)
        inside = engine.search(queries, 7, area=(40, 60, 20))
        np.testing.assert_array_equal(inside.indices, sorted_fully(queries, rows, selected_rows, 7))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 999), k=st.integers(1, 60))
def test_ties_go_to_the_lower_row_however_many(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 2, (60, 3)).astype(np.float32)  # sixty rows, at most 27 different ones
    queries = rng.integers(-1, 2, (5, 3)).astype(np.float32)
    matches = open_engine(rows, kind="exact").search(queries, k)
    np.testing.assert_array_equal(matches.indices, sorted_fully(queries, rows, np.arange(60), k))


@needs_faiss
def test_the_approximate_engine_finds_nearly_all_with_true_cosines() -> None:
    rows, positions, queries = city()
    engine = open_engine(rows, positions, "ivf-pq")
    truth = exact.search(queries, rows, 10)
    matches = engine.search(queries, 10)
    assert not engine.exact
    shared = [len(set(a) & set(b)) / 10 for a, b in zip(matches.indices, truth.indices, strict=True)]
    assert np.mean(shared) > 0.97
    cosines = np.einsum("nd,nkd->nk", queries, rows[matches.indices])
    np.testing.assert_allclose(matches.similarities, cosines, atol=1e-6)
    assert (np.diff(matches.similarities, axis=1) <= 0).all()
    # In a circle, all references are compared.
    selected_rows = np.flatnonzero(np.hypot(*(positions - 50).T) <= 30)
    inside = engine.search(queries, 10, area=(50, 50, 30))
    np.testing.assert_array_equal(inside.indices, sorted_fully(queries, rows, selected_rows, 10))
    everything = engine.search(queries, 1500).indices  # more than in the probed lists
    assert (np.sort(everything, axis=1) == np.arange(1500)).all()


@pytest.mark.parametrize(
    ("kind", "references", "now"),
    [
        pytest.param("hnsw", 1500, "ivf-pq", marks=needs_faiss),
        pytest.param("compact", 1500, "ivf-pq", marks=needs_faiss),
        ("hnsw", 300, "exact"),
        ("faiss-flat", 1500, "exact"),
    ],
)
def test_engines_no_longer_offered_are_replaced_with_a_notice(
    kind: str, references: int, now: str, tmp_path: Path
) -> None:
    rows, _, queries = city(references)
    (tmp_path / f"{kind}.index").write_bytes(b"of an older version")
    with pytest.warns(UserWarning, match=f"'{kind}' is no longer offered; '{now}' is used instead"):
        engine = open_engine(rows, kind=kind, folder=tmp_path)
    assert (engine.name, engine.why) == (
        now,
        f"{now}: the engine {kind} is no longer offered, {now} replaces it",
    )
    assert engine.search(queries, 5).indices.shape == (20, 5)


def test_removed_rows_are_skipped_and_parts_counted_anew() -> None:
    rows, positions, queries = city()
    live = np.delete(np.arange(1500), [0, 401, 1499])
    remaining = Columns([rows[:400], quantize(rows[400:])], live)
    assert remaining.shape == (1497, 24)
    everything = remaining.with_removed()
    np.testing.assert_array_equal(remaining[:], everything[:][live])
    np.testing.assert_array_equal(remaining[10:700], everything[:][live][10:700])
    np.testing.assert_array_equal(remaining[np.array([[3, 1496]])], everything[:][live][[[3, 1496]]])
    np.testing.assert_array_equal(remaining.only(np.array([2, 900]))[:], everything[:][live][[2, 900]])
    np.testing.assert_array_equal(everything[1:9:3], everything[:][1:9:3])
    matches = open_engine(remaining, positions[live]).search(queries, 5)
    np.testing.assert_array_equal(matches.indices, sorted_fully(queries, remaining[:], np.arange(1497), 5))
    assert Columns([], dim=24)[:].shape == (0, 24)


def test_segments_and_number_formats_are_one_array() -> None:
    rows, positions, queries = city()
    mixed = [rows[:400], rows[400:401].astype(np.float16), quantize(rows[401:])]
    together = Columns(mixed)
    assert together.shape == (1500, 24)
    np.testing.assert_allclose(together[:], rows, atol=0.005)
    np.testing.assert_allclose(np.linalg.norm(together[401:], axis=1), 1, atol=1e-6)
    some = np.array([1499, 0, 400, 399, 401, 0])
    np.testing.assert_array_equal(together[some], together[:][some])
    matches = open_engine(mixed, positions).search(queries, 5)
    np.testing.assert_array_equal(matches.indices, sorted_fully(queries, together[:], np.arange(1500), 5))


def test_memory_maps_are_searched_where_they_lie(tmp_path: Path) -> None:
    rows, _, queries = city()
    np.save(tmp_path / "rows.npy", rows.astype(np.float16))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    matches = open_engine(mapped).search(queries, 5)
    np.testing.assert_array_equal(matches.indices, exact.search(queries, rows.astype(np.float16), 5).indices)


def test_circle_includes_its_rim_and_skips_unknown_positions() -> None:
    rows = np.eye(4, dtype=np.float32)
    positions = np.array([[3.0, 4.0], [np.nan, 0.0], [5.1, 0.0], [0.0, 0.0]])
    engine = open_engine(rows, positions)
    assert sorted(engine.search(rows[:1], 4, area=(0, 0, 5)).indices[0]) == [0, 3]
    assert engine.search(rows[:1], 4, area=(0, 0, 0)).indices.tolist() == [[3]]
    assert engine.search(rows[:2], 4, area=(50, 50, 5)).indices.shape == (2, 0)
    assert open_engine(rows, np.full((4, 2), np.nan)).search(rows, 1, area=(0, 0, 9)).indices.shape == (4, 0)


@needs_faiss
def test_an_index_is_kept_and_refused_for_other_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _, queries = city()
    kind = "ivf-pq"
    first = open_engine(rows, kind=kind, folder=tmp_path).search(queries, 5)
    monkeypatch.setattr(faiss, "build", lambda *_: pytest.fail("built again"))
    again = open_engine(
        [rows[:7], rows[7:]],
        kind=kind,
        folder=tmp_path,
        options=EngineOptions(fingerprint=Columns(rows).fingerprint()),
    )
    np.testing.assert_array_equal(again.search(queries, 5).indices, first.indices)
    open_engine(rows, kind=kind, folder=tmp_path).close()
    changed = rows.copy()
    changed[3, 0] += 1e-3
    with pytest.raises(KappaPlaceError, match="built from other descriptors"):
        open_engine(changed, kind=kind, folder=tmp_path)
    monkeypatch.undo()
    open_engine(changed, kind=kind, folder=tmp_path, options=EngineOptions(rebuild=True))
    file = tmp_path / f"{kind}.index"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(KappaPlaceError, match="truncated or damaged"):
        open_engine(changed, kind=kind, folder=tmp_path)
    file.write_bytes(b"something else")
    with pytest.raises(KappaPlaceError, match="not an index of this version"):
        open_engine(changed, kind=kind, folder=tmp_path)


@needs_faiss
def test_a_full_disk_leaves_the_index_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _, _ = city()
    open_engine(rows, kind="ivf-pq", folder=tmp_path)
    before = (tmp_path / faiss.INDEX_FILE).read_bytes()

    def full(write: Any, failed: list[OSError]) -> Any:
        def refuse(data: bytes) -> int:
            failed.append(OSError(errno.ENOSPC, "full"))
            raise failed[0]

        return refuse

    monkeypatch.setattr(faiss, "_recorder", full)
    with pytest.raises(KappaPlaceError, match="No space left"):
        open_engine(rows, kind="ivf-pq", folder=tmp_path, options=EngineOptions(rebuild=True))
    assert (tmp_path / faiss.INDEX_FILE).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_the_choice_follows_the_size_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _, _ = city()
    assert open_engine(rows).why.startswith("exact: 1,500 references")
    assert open_engine(rows, kind="exact").why == "exact: chosen by the caller"
    monkeypatch.setattr(engines, "EXACT_UP_TO", 1000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert "no folder" in open_engine(rows).why
    assert engines.choose("auto", 1500, tmp_path)[0] == "ivf-pq"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 'extra "faiss"' in open_engine(rows, folder=tmp_path).why


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("ivf-pq", "faiss", "faiss"), ("milvus", "pymilvus", "milvus"), ("postgres", "psycopg", "postgres")],
)
def test_a_missing_extra_is_named(
    kind: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(KappaPlaceError, match=f'the extra "{extra}"'):
        open_engine(np.eye(4, dtype=np.float32), kind=kind, options=EngineOptions(uri="x.db"))


def test_bad_input_is_told_in_a_sentence() -> None:
    rows = np.eye(4, dtype=np.float32)
    engine = open_engine(rows, np.zeros((4, 2)))
    for queries, k, near, message in (
        (rows, 5, None, "between 1 and 4, the number of references, got 5"),
        (rows, 0, (0, 0, 1), "between 1 and 4, the number of references, got 0"),
        (rows[:, :3], 1, None, "do not fit references of 4 dimensions"),
        (rows * np.nan, 1, None, "NaN or infinite"),
        (rows, 1, (0, 0, -1), "radius of at least 0"),
        (rows, 1, (0, np.nan, 1), "finite x and y"),
        (rows, 1, (0, 1), "must be x, y and a radius"),
    ):
        with pytest.raises(KappaPlaceError, match=message):
            engine.search(queries, k, area=near)  # type: ignore[arg-type]
    assert engine.search(rows[:0], 2).indices.shape == (0, 2)
    with pytest.raises(KappaPlaceError, match="no positions"):
        open_engine(rows).search(rows, 1, area=(0, 0, 1))
    for descriptors, message in (
        (rows.astype(np.int8), "pass Quantized"),
        (Quantized(rows.astype(np.int8), np.ones(3, np.float32)), "one scale per row"),
        ([], "no references"),
        (rows[:0], "no references"),
        ([rows, rows[:, :2]], "got 2 and 4"),
        (rows[0], "N×d"),
        (None, "needs descriptors"),
    ):
        with pytest.raises(KappaPlaceError, match=message):
            open_engine(descriptors, kind="exact")
    with pytest.raises(KappaPlaceError, match="do not fit 4 references"):
        open_engine(rows, np.zeros((3, 2)))
    with pytest.raises(KappaPlaceError, match="Unknown search engine 'fast'"):
        open_engine(rows, kind="fast")
    with pytest.raises(KappaPlaceError, match="needs a URL"):
        open_engine(rows, kind="milvus")


@needs_faiss
def test_faiss_refuses_what_it_cannot_index() -> None:
    with pytest.raises(KappaPlaceError, match="ivf-pq needs at least 1000 references"):
        open_engine(np.eye(4, dtype=np.float32), kind="ivf-pq")
    rows, _, _ = city(100_000, 4)
    rows[-1] = np.nan  # not in the sample that the codes are fitted on
    with pytest.raises(KappaPlaceError, match="NaN or infinite"):
        open_engine(rows, kind="ivf-pq")


def test_asking_deeper_until_the_best_are_certain() -> None:
    similarities = np.sort(np.random.default_rng(0).random(1000).astype(np.float32))[::-1].copy()
    similarities[3:90] = similarities[3]  # a long tie across the end of the first list
    passes = np.arange(1000) % 7 == 0
    limits = []

    def ask(queries: np.ndarray, limit: int) -> list[Hits]:
        limits.append(limit)
        order = np.lexsort((-np.arange(1000), -similarities))[:limit]  # ties in reverse order
        return [Hits(order, similarities[order], passes[order])] * len(queries)

    matches = deepen(ask, np.zeros((2, 3), np.float32), 5, most=1000, location="Here")
    assert matches.indices.tolist() == [[0, 7, 14, 21, 28]] * 2
    assert limits == [26, 104]
    with pytest.raises(KappaPlaceError, match="Here lists at most 50"):
        deepen(ask, np.zeros((1, 3), np.float32), 5, most=50, location="Here")


def test_imports_write_only_what_is_missing() -> None:
    rows, positions, _ = (part[:30] for part in city(200))
    (batch,) = References(rows, positions, np.ones(30), [f"{row}.jpg" for row in range(30)]).batches(100)
    stored = dict(zip(batch.ids, batch.digests, strict=True))
    assert offsets_to_write(batch, stored, "Here", replace=False) == []
    del stored[4]
    stored[7] += 1
    with pytest.raises(KappaPlaceError, match="row 7 differs"):
        offsets_to_write(batch, stored, "Here", replace=False)
    assert offsets_to_write(batch, stored, "Here", replace=True) == [4, 7]
    (renamed,) = References(rows, positions, np.ones(30), ["a.jpg"] * 30).batches(100)
    assert not set(renamed.digests) & set(batch.digests)


def test_retries_end_and_bad_records_are_named() -> None:
    failures = iter([OSError(), OSError(), None])

    def call() -> str:
        if error := next(failures):
            raise error
        return "done"

    assert retry(call, OSError, wait=0) == "done"
    with pytest.raises(ValueError, match="never"):
        retry(lambda: int("never"), ValueError, wait=0)
    rows = np.eye(4, dtype=np.float32)
    with pytest.raises(KappaPlaceError, match=r"names must have one value per reference \(4\), got 3"):
        References(rows, names=["a"] * 3)
    with pytest.raises(KappaPlaceError, match="cannot be stored"):
        list(References(rows, names=["a" * 2000] * 4).batches(2))
    with pytest.raises(KappaPlaceError, match="NaN or infinite"):
        list(References(np.full((4, 4), np.inf, np.float32)).batches(2))
    with pytest.raises(KappaPlaceError, match="cannot be the name of a table"):
        checked_name("a; drop", "table")


def test_passwords_are_not_shown() -> None:
    for uri in (
        "postgresql://me:secret@host/db",
        "host=h password=secret",
        "http://me:se:cret@h:1/?password=secret",
    ):
        assert "secret" not in without_password(uri)
        assert "se:cret" not in without_password(uri)
