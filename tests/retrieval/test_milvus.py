"""Steps of the Milvus engine against a stub of its client, which can die before any call."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kappaplace.retrieval import milvus
from kappaplace.retrieval.database import References
from kappaplace.retrieval.exact import search

from .test_engine import city


class KilledError(BaseException):
    """The process ends here."""


class Failure(Exception):
    """An error of the server."""


class Schema:
    def __init__(self) -> None:
        self.fields: list[dict[str, Any]] = []

    def add_field(self, name: str, kind: str, **params: Any) -> None:
        self.fields.append({"name": name, "params": params})


class Index:
    def add_index(self, field: str, **options: Any) -> None:
        self.options = {"field": field, **options}


class Server:
    """What outlives a process: collections, their index, whether they are loaded, and their rows."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, Any]] = {}
        self.calls, self.last = 0, 10**9


class Client:
    """The part of `MilvusClient` that the engine uses; reading needs an index and a loaded collection."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def _step(self) -> None:
        self.server.calls += 1
        if self.server.calls > self.server.last:
            raise KilledError

    def _ready(self, name: str) -> dict[str, Any]:
        self._step()
        one = self.server.collections[name]
        if one["index"] is None or not one["loaded"]:
            raise Failure("collection not loaded: index not found")
        return one

    def create_schema(self, **options: Any) -> Schema:
        return Schema()

    def prepare_index_params(self) -> Index:
        return Index()

    def has_collection(self, name: str, **options: Any) -> bool:
        self._step()
        return name in self.server.collections

    def create_collection(self, name: str, schema: Schema, **options: Any) -> None:
        self._step()
        assert name not in self.server.collections
        one = {"fields": schema.fields, "index": None, "loaded": False, "rows": {}}
        self.server.collections[name] = one
        if (index := options.get("index_params")) is not None:  # the true client does this in two requests
            self.create_index(name, index)
            self.load_collection(name)

    def create_index(self, name: str, index: Index, **options: Any) -> None:
        self._step()
        self.server.collections[name]["index"] = index.options["index_type"]

    def load_collection(self, name: str, **options: Any) -> None:
        self._step()
        if self.server.collections[name]["index"] is None:
            raise Failure("index not found")
        self.server.collections[name]["loaded"] = True

    def list_indexes(self, name: str, field_name: str) -> list[str]:
        self._step()
        return [field_name] if self.server.collections[name]["index"] else []

    def describe_collection(self, name: str) -> dict[str, Any]:
        self._step()
        return {"fields": self.server.collections[name]["fields"]}

    def describe_index(self, name: str, field: str) -> dict[str, Any] | None:
        self._step()
        kind = self.server.collections[name]["index"]
        return None if kind is None else {"index_type": kind}

    def upsert(self, name: str, entities: list[dict[str, Any]], **options: Any) -> None:
        one = self._ready(name)
        one["rows"] |= {entity["id"]: entity for entity in entities}

    def query(self, name: str, filter: str, output_fields: Any = (), **options: Any) -> list[dict[str, Any]]:
        rows = self._ready(name)["rows"]
        if "count(*)" in output_fields:
            return [{"count(*)": len(rows)}]
        start, _, stop = filter.removeprefix("id >= ").partition(" and id < ")
        return [row for row in rows.values() if int(start) <= row["id"] < int(stop or 10**9)]

    def search(self, name: str, data: list[Any], limit: int, **options: Any) -> list[list[dict[str, Any]]]:
        rows = self._ready(name)["rows"]
        return [
            sorted(
                ({"id": i, "distance": float(query @ row["vector"])} for i, row in rows.items()),
                key=lambda hit: -hit["distance"],
            )[:limit]
            for query in data
        ]

    def close(self) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    kinds = SimpleNamespace(INT64="", FLOAT_VECTOR="", FLOAT="", DOUBLE="", VARCHAR="")
    module = SimpleNamespace(
        MilvusException=Failure, DataType=kinds, MilvusClient=lambda *a, **k: Client(server)
    )
    monkeypatch.setitem(sys.modules, "pymilvus", module)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return server


def fill(rows: np.ndarray) -> milvus.MilvusEngine:
    engine = milvus.MilvusEngine("http://stub:1")
    engine.add(References(rows), batch=100)
    return engine


def test_an_import_recovers_from_a_kill_between_any_two_steps(server: Server) -> None:
    rows, _, queries = city(300)
    fill(rows)
    steps = server.calls
    assert steps > 8
    truth = search(queries, rows, 5)
    for last in range(steps):
        server.collections.clear()
        server.calls, server.last = 0, last
        with pytest.raises(KilledError):
            fill(rows)
        server.last = 10**9
        engine = fill(rows)
        assert (len(engine), engine.exact) == (300, True)
        np.testing.assert_array_equal(engine.search(queries, 5).indices, truth.indices)


def test_a_collection_without_an_index_gets_one_when_it_is_opened(server: Server) -> None:
    rows, _, queries = city(300)
    fill(rows)
    (collection,) = server.collections.values()
    collection["index"], collection["loaded"] = None, False
    engine = milvus.MilvusEngine("http://stub:1")
    assert (collection["index"], collection["loaded"], len(engine)) == ("FLAT", True, 300)
    assert engine.search(queries, 5).indices.shape == (20, 5)
