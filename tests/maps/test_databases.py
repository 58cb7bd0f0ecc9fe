"""A map in Milvus (a Lite file) and in PostgreSQL (a real server): the same answers as without a database."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.cli.main import BAD_INPUT, main
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, PlaceMap
from kappaplace.maps.answer import Localization
from kappaplace.maps.store.writer import writer_of
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval import EngineOptions
from kappaplace.retrieval.database import References, collection_name


@pytest.fixture(params=["milvus", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Options of an engine, with a separate collection for each test."""
    if request.param == "milvus":
        pytest.importorskip("pymilvus")
        pytest.importorskip("milvus_lite")
        uri = str(tmp_path / "m.db")
    else:
        pytest.importorskip("psycopg")
        uri = request.getfixturevalue("postgres_uri")
    name = re.sub(r"\W", "_", request.node.name)[-40:]
    return {"engine": request.param, "engine_options": EngineOptions(uri=uri, collection=name)}


def assert_same_answers(ours: list[Localization], theirs: list[Localization]) -> None:
    """Check all fields: text and order exactly, numbers up to the rounding of a float32 sum."""
    for one, other in zip(ours, theirs, strict=True):
        a, b = one.to_dict(), other.to_dict()
        for answer in (a, b):
            answer.pop("seconds")
        assert_close(a, b)


def assert_close(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_close(a, b, f"{where}[{i}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=2e-5, abs=1e-6, nan_ok=True), where
    else:
        assert one == other, where


@pytest.fixture
def spread(tiny: PlaceModel, town: PlaceImages) -> PlaceModel:
    """The untrained model without the one direction that all its descriptors share.

    Cosines are then as far apart as a trained model's, and rounding is not magnified by the calibration.
    """
    seen: list[torch.Tensor] = []
    hook = tiny.aggregation.project.register_forward_hook(lambda _m, _i, out: seen.append(out))
    tiny.embed(town.image_paths())
    hook.remove()
    with torch.no_grad():
        tiny.aggregation.project.bias -= torch.cat(seen).mean(dim=0)
    return tiny


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_the_same_localization_as_the_embedded_map(database, town, spread, queries, tmp_path, storage):
    tiny, positions = spread, town.positions.copy()
    positions[[3, 20]] = np.nan  # allowed, and in no circle
    table, kept = replace(town, positions=positions), BuildOptions(storage=storage, segment_rows=16)
    town_map = PlaceMap.build(table, tmp_path / "m", tiny, kept)
    town_map.remove(["005.png", "030.png"])
    self_calibrate_map(town_map, CalibrateOptions())
    there = PlaceMap.open(town_map.folder, tiny, **database)
    x, y = town.positions[town.query_rows[0]]
    for asked in (
        {},
        {"k": 3},
        {"k": 500},
        {"area": (x, y, 30.0)},
        {"area": (x, y, 0.001)},
        {"area": (0.0, 0.0, 5.0)},
        {"order": "probability"},
    ):
        assert_same_answers(there.localize(queries, **asked), town_map.localize(queries, **asked))
    engine = there.references.engine.engine
    assert (engine.name, engine.exact, len(engine)) == (database["engine"], True, town_map.manifest.rows)
    rows = np.arange(town_map.manifest.rows)
    stored, store = engine.fetch(rows), town_map.store.with_removed()
    assert stored.names == list(store.names())
    np.testing.assert_array_equal(stored.kappa, store.whole("kappa"))
    np.testing.assert_array_equal(stored.positions, store.positions)
    there.close()


def tiny_of(dim: int) -> PlaceModel:
    return PlaceModel.create("resnet_tiny", dim=dim, preprocessing=Preprocessing(32, "exact")).eval()


@pytest.mark.slow
def test_a_database_follows_its_map(database, town, town_map, tiny, queries, monkeypatch):
    written: list[int] = []
    real = References.batches
    monkeypatch.setattr(References, "batches", lambda *a: (written.append(1), real(*a))[1])
    there = PlaceMap.open(town_map.folder, tiny, **database)
    there.localize(queries)
    there.close()
    again = PlaceMap.open(town_map.folder, tiny, **database)
    assert_same_answers(again.localize(queries), town_map.localize(queries))
    assert len(written) == 1  # the second process compared nothing
    again.add(
        PlaceImages.create(town.paths[:3], town.positions[:3], root=town.root, frame=town.frame),
        options=AddOptions(prefix="b/"),
    )
    again.remove([again.store.name(0)])
    assert len(again.localize(queries[0], k=500).matches) == 58
    assert len(written) == 2
    again.compact()  # every row has another number now
    town_map.refresh()
    assert_same_answers(again.localize(queries), town_map.localize(queries))
    again.close()
    again.reembed(tiny_of(16))
    with pytest.raises(
        KappaPlaceError, match=r"has 32 dimensions, but these descriptors have 16.*--collection"
    ):
        again.localize(queries)
    again.reembed(tiny)
    town_map.refresh()
    assert_same_answers(again.localize(queries), town_map.localize(queries))
    again.close()
    # Another map under the same name and URL raises an error, and the existing data stay.
    other = PlaceMap.build(town.select(town.reference_rows[10:20]), town_map.folder.parent / "o.map", tiny)
    with pytest.raises(KappaPlaceError, match=r"58 references, more than the 10 of this map.*--collection"):
        PlaceMap.open(other.folder, tiny, **database).localize(queries[0])
    assert_same_answers(again.localize(queries), town_map.localize(queries))
    again.close()
    noted = [note.read_text() for note in (town_map.folder / "index").glob("*.json")]
    assert [json.loads(text)["rows"] for text in noted] == [58]


def _import(folder: Path, tiny: Any, database: dict[str, str], query: str) -> None:
    """Import one row at a time, slowly enough to be killed midway."""
    from kappaplace.retrieval.milvus import MilvusEngine
    from kappaplace.retrieval.postgres import PostgresEngine

    for engine in (MilvusEngine, PostgresEngine):
        engine.batch = 4
        write = engine._write

        def slow(self: Any, *args: Any, write: Any = write) -> None:
            write(self, *args)
            (folder.parent / "written").open("a").write("x")
            time.sleep(0.05)

        engine._write = slow  # type: ignore[method-assign]
    PlaceMap.open(folder, tiny, **database).localize(query)


@pytest.mark.slow
def test_an_import_killed_midway_is_gone_on_with(database, town_map, tiny, queries):
    process = multiprocessing.get_context("spawn").Process(
        target=_import, args=(town_map.folder, tiny, database, queries[0])
    )
    process.start()
    mark = town_map.folder.parent / "written"
    until = time.monotonic() + 60
    while not (mark.exists() and mark.stat().st_size >= 4):
        assert time.monotonic() < until
        assert process.is_alive()
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert mark.stat().st_size < 14  # it was midway
    assert not list(town_map.folder.glob("index/*.json"))
    there = PlaceMap.open(town_map.folder, tiny, **database)
    assert_same_answers(there.localize(queries), town_map.localize(queries))
    assert len(there.references.engine.engine) == 56
    there.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["kappaplace", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr().err
        assert (stop.value.code, said.count("\n")) == (BAD_INPUT, 1), said
        return said

    return run


@pytest.mark.parametrize(
    ("engine", "uri"),
    [("milvus", "http://127.0.0.1:1"), ("postgres", "postgresql://me:secret@127.0.0.1:1/db")],
)
def test_an_engine_that_cannot_be_reached_is_one_sentence(told, town_map, queries, engine, uri):
    pytest.importorskip("pymilvus" if engine == "milvus" else "psycopg")
    said = told("localize", town_map.folder, queries[0], "--engine", engine, "--uri", uri)
    assert "cannot be reached" in said
    assert "secret" not in said
    assert town_map.verify() == []
    assert not (town_map.folder / "index").exists()
    assert "needs a URL" in told("localize", town_map.folder, queries[0], "--engine", engine)


@pytest.mark.slow
def test_the_command_asks_a_database(database, town_map, tiny, queries, monkeypatch, capsys, tmp_path):
    model = save_model(tiny, tmp_path / "model")
    words = ["localize", town_map.folder, queries[0], "--model", model, "--json"]
    options = database["engine_options"]
    words += ["--engine", database["engine"], "--uri", options.uri, "--collection", options.collection]
    monkeypatch.setattr("sys.argv", ["kappaplace", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    answer = json.loads(capsys.readouterr().out)
    assert answer["matches"][0]["name"] == town_map.localize(queries[0]).matches[0].name


def give_kappa(folder: Path, kappa: float) -> None:
    """Change κ of every reference in one step, as `map fit` does."""
    with writer_of(folder) as writer:
        changed = [
            writer.adopt(folder, each, {"kappa": np.full(each.count, kappa, np.float32)})
            for each in writer.manifest.segments
        ]
        writer.commit(segments=tuple(changed))
        writer.clean()


@pytest.mark.slow
def test_a_database_with_another_kappa_is_filled_anew_or_refused(database, town_map, tiny, queries):
    there = PlaceMap.open(town_map.folder, tiny, **database)
    there.localize(queries[0])
    copied = shutil.copytree(town_map.folder, town_map.folder.parent / "copied.map")
    give_kappa(town_map.folder, 7.0)
    there.refresh()
    town_map.refresh()
    assert_same_answers(there.localize(queries), town_map.localize(queries))
    assert {match.kappa for match in there.localize(queries[0]).matches} == {7.0}
    assert set(there.references.engine.engine.fetch(np.arange(56)).kappa) == {7.0}
    there.close()
    # The copy has a note that all rows are imported.
    with pytest.raises(
        KappaPlaceError, match=r"no longer contains the references of .*copied.map.*--collection"
    ):
        PlaceMap.open(copied, tiny, **database).localize(queries[0])
    mine = PlaceMap.open(
        copied,
        tiny,
        engine=database["engine"],
        engine_options=replace(database["engine_options"], replace=True),
    )
    assert_same_answers(mine.localize(queries), PlaceMap.open(copied, tiny).localize(queries))
    mine.close()


def test_names_of_collections() -> None:
    names = {
        "town": "town",
        "my town.v2": "my_town_v2",
        "2024-süd": "map_2024_s_d",
        "": "map_",
        "a" * 90: "a" * 50,
    }
    assert {name: collection_name(name) for name in names} == names
