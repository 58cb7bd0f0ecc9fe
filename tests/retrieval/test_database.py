"""Milvus (a Lite file) and PostgreSQL (a real server) against the exact engine on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval import EngineOptions, open_engine
from kappaplace.retrieval.database import References
from kappaplace.retrieval.milvus import MilvusEngine
from kappaplace.retrieval.postgres import PostgresEngine

from .test_engine import city

Opener = Callable[..., Any]


@pytest.fixture(params=["milvus", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the engine of a URL; each test has its own collection."""
    if request.param == "milvus":
        pytest.importorskip("pymilvus")
        pytest.importorskip("milvus_lite")
        uri = str(tmp_path / "m.db")
    else:
        uri = request.getfixturevalue("postgres_uri")
    name = "t" + str(abs(hash(request.node.name)))[:12]

    def call(descriptors: Any = None, positions: Any = None, **more: Any) -> Any:
        options = EngineOptions(uri, more.pop("collection", name))
        return open_engine(descriptors, positions, request.param, options=options, **more)

    return call


@pytest.mark.slow
def test_same_matches_as_the_exact_engine(opened: Opener) -> None:
    rows, positions, queries = city()
    positions[5] = np.nan
    rows[100:160] = rows[100]  # more ties than any short list
    queries[0] = rows[100]
    truth = open_engine(rows, positions)
    engine = opened(rows, positions)
    assert (engine.exact, len(engine)) == (True, 1500)
    for near in (None, (50.0, 50.0, 20.0), (10.0, 90.0, 3.0), (-500.0, 0.0, 1.0)):
        own, reference = engine.search(queries, 12, area=near), truth.search(queries, 12, area=near)
        np.testing.assert_array_equal(own.indices, reference.indices)
        np.testing.assert_allclose(own.similarities, reference.similarities, atol=1e-6)
    engine.close()


@pytest.mark.slow
def test_importing_again_changes_nothing_and_other_maps_are_refused(opened: Opener) -> None:
    rows, positions, queries = city(300)
    kappa, names = np.linspace(1, 9, 300).astype(np.float32), [f"straße/{row}.jpg" for row in range(300)]
    positions[7], kappa[8] = np.nan, np.nan
    engine = opened(rows[:200], positions[:200], kappa=kappa[:200], names=names[:200])
    whole = References(rows, positions, kappa, names)
    assert engine.add(whole, batch=64) == 100  # the new rows of a larger map
    assert engine.add(whole) == 0
    assert len(engine) == 300
    some = np.array([250, 7, 8, 7])
    records = engine.fetch(some)
    np.testing.assert_array_equal(records.kappa, kappa[some])
    np.testing.assert_array_equal(records.positions, positions[some])
    assert records.names == [names[row] for row in some]
    with pytest.raises(KappaPlaceError, match="does not contain reference 300"):
        engine.fetch(np.array([300]))
    with pytest.raises(KappaPlaceError, match="row 0 differs"):
        engine.add(References(rows[::-1].copy(), positions, kappa, names))
    with pytest.raises(KappaPlaceError, match="more than the 50 of this map"):
        engine.add(References(rows[:50]))
    with pytest.raises(KappaPlaceError, match="24 dimensions, but these descriptors have 3"):
        engine.add(References(np.ones((400, 3), np.float32)))
    # A process without descriptors can search.
    again = opened()
    np.testing.assert_array_equal(
        again.search(queries, 5).indices, open_engine(rows).search(queries, 5).indices
    )
    assert engine.add(References(rows[:50]), replace=True) == 50
    assert len(engine) == 50
    assert engine.search(queries, 50).indices.max() == 49
    engine.close()


@pytest.mark.slow
def test_an_empty_collection_is_told(opened: Opener) -> None:
    with pytest.raises(KappaPlaceError, match="contains no references"):
        opened(collection="nothing_here")


@pytest.mark.slow
def test_milvus_import_survives_failures_and_gives_up_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pymilvus = pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rows, _, _ = city(300)
    engine = MilvusEngine(tmp_path / "m.db")
    upsert, calls = engine.client.upsert, []

    def shaky(*args: Any, **more: Any) -> Any:
        calls.append(1)
        result = upsert(*args, **more)
        if len(calls) % 2:  # written, but the answer is lost: the second attempt must not duplicate rows
            raise pymilvus.MilvusException(message="lost")
        return result

    monkeypatch.setattr(engine.client, "upsert", shaky)
    assert engine.add(References(rows), batch=100) == 300
    assert (len(engine), len(calls)) == (300, 6)

    def dead(*args: Any, **more: Any) -> Any:
        raise pymilvus.MilvusException(message="gone")

    monkeypatch.setattr(engine.client, "upsert", dead)
    with pytest.raises(KappaPlaceError, match=r"\(gone\)\. Repeat the import"):
        engine.add(References(city(400)[0]), replace=True)
    engine.close()


@pytest.mark.slow
def test_postgres_import_survives_a_lost_connection(
    postgres_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rows, positions, queries = city(300)
    engine = PostgresEngine(postgres_uri, "shaky")
    write, calls = engine._write, []

    def shaky(*args: Any) -> None:
        calls.append(1)
        if len(calls) % 3 == 1:  # the server ends the connection before the batch ...
            engine._run("SELECT pg_terminate_backend(pg_backend_pid())")
        write(*args)
        if len(calls) % 3 == 2:  # ... or the answer to it is lost
            engine.connection.close()
            raise psycopg.OperationalError("lost")

    monkeypatch.setattr(engine, "_write", shaky)
    assert engine.add(References(rows, positions), batch=100) == 300
    assert (len(engine), len(calls)) == (300, 9)
    truth = open_engine(rows, positions)
    near = (50.0, 50.0, 20.0)
    for circle in (None, near):
        own, reference = (each.search(queries, 5, area=circle).indices for each in (engine, truth))
        np.testing.assert_array_equal(own, reference)

    def dead(*args: Any) -> None:
        raise psycopg.OperationalError("gone")

    monkeypatch.setattr(engine, "_write", dead)
    with pytest.raises(KappaPlaceError, match=r"\(gone\)\. Repeat the import"):
        engine.add(References(city(400)[0]), replace=True)
    engine.close()


@pytest.mark.slow
def test_postgres_with_an_index_is_approximate_and_says_so(postgres_uri: str) -> None:
    rows, positions, queries = city()
    engine = open_engine(
        rows, positions, "postgres", options=EngineOptions(postgres_uri, "Indexed", index="hnsw")
    )
    assert not engine.exact
    truth = open_engine(rows, positions)
    for near in (None, (50.0, 50.0, 40.0)):
        own, reference = (each.search(queries, 10, area=near).indices for each in (engine, truth))
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(own, reference, strict=True)]) > 0.97
    assert not open_engine(None, kind="postgres", options=EngineOptions(postgres_uri, "Indexed")).exact
    engine.close()


def test_unreachable_servers_are_told_quickly(tmp_path: Path) -> None:
    rows = np.eye(4, dtype=np.float32)
    start = time.monotonic()
    pytest.importorskip("pymilvus")
    with pytest.raises(KappaPlaceError, match=r"127.0.0.1:1 cannot be reached"):
        open_engine(rows, kind="milvus", options=EngineOptions("http://127.0.0.1:1"))
    with pytest.raises(KappaPlaceError, match="cannot be reached"):
        open_engine(rows, kind="milvus", options=EngineOptions(str(tmp_path / "nowhere" / "m.db")))
    with pytest.raises(KappaPlaceError, match=r"must end in \.db"):
        open_engine(rows, kind="milvus", options=EngineOptions("host"))
    pytest.importorskip("psycopg")
    with pytest.raises(KappaPlaceError, match="cannot be reached") as error_info:
        open_engine(rows, kind="postgres", options=EngineOptions("postgresql://me:secret@127.0.0.1:1/db"))
    assert "secret" not in str(error_info.value)
    with pytest.raises(KappaPlaceError, match="index of a table"):
        PostgresEngine("postgresql://h/db", index="btree")  # type: ignore[arg-type]
    assert time.monotonic() - start < 10
