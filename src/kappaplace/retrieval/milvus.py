"""References in Milvus: a local file (Milvus Lite) for tests, a server or a cluster for production."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle, within
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.retrieval.database import (
    LONGEST_NAME,
    Batch,
    DatabaseEngine,
    Hits,
    StoredRow,
    checked_name,
    deepen,
    without_password,
)
from kappaplace.types import Matches

BATCH = 1000  # 2 MB of 512 numbers; a message may have 64 MB
QUERIES = 64
MOST = 16_384  # results that Milvus returns per query
REQUEST_SECONDS = 60.0
NOWHERE = 1e300  # an unknown position, outside every circle: servers reject NaN in a scalar column
Entity: TypeAlias = dict[str, int | float | str | NDArray[np.float32]]


class MilvusEngine(DatabaseEngine):
    """A collection in Milvus.

    `add` creates a collection that does not exist. Processes without descriptors can search an existing one.

    Args:
        uri: URL of a server, or a Milvus Lite file that ends in .db.
        collection: Name of the collection.
        token: Token of the server.
        index: FLAT compares all references; HNSW, IVF_FLAT, DISKANN and AUTOINDEX are approximate.
        timeout: Seconds to wait for the server.
    """

    name = "milvus"
    batch = BATCH

    def __init__(
        self,
        uri: str | Path,
        collection: str = "kappaplace",
        *,
        token: str = "",
        index: str = "FLAT",
        timeout: float = 5.0,
    ) -> None:
        self.uri, self.collection, self.index = str(uri), checked_name(collection, "collection"), index
        self.location = f"The Milvus collection {collection} at {without_password(self.uri)}"
        self._milvus = import_extra("pymilvus", "The Milvus engine", "milvus")
        self.failures = self.transient = self._milvus.MilvusException
        if "://" not in self.uri:  # a Milvus Lite file
            if not self.uri.endswith(".db"):
                raise KappaPlaceError(
                    f"A Milvus Lite file must end in .db, got {uri}. For a server, pass http://host:19530."
                )
            self.uri = str(Path(self.uri).absolute())
        with self._explain("cannot be reached", "Check the URL and that the server is running."):
            self.client = self._milvus.MilvusClient(self.uri, token=token, timeout=timeout)
        with self._explain("cannot be opened"):
            if self.client.has_collection(self.collection, timeout=REQUEST_SECONDS):
                self._open()

    def _open(self) -> None:
        fields = {f["name"]: f for f in self.client.describe_collection(self.collection)["fields"]}
        if not {"id", "vector", "digest", "kappa", "x", "y", "name"} <= fields.keys():
            raise KappaPlaceError(f"{self.location} was not created by KappaPlace. Pass another name.")
        self.dim = int(fields["vector"]["params"]["dim"])
        self._load()
        self.index = self.client.describe_index(self.collection, "vector")["index_type"]
        self.exact = self.index == "FLAT"
        self._count = self._query_count()

    def _create(self, dim: int) -> None:
        kind = self._milvus.DataType
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kind.INT64, is_primary=True)
        schema.add_field("vector", kind.FLOAT_VECTOR, dim=dim)
        schema.add_field("digest", kind.INT64)
        schema.add_field("kappa", kind.FLOAT)
        schema.add_field("x", kind.DOUBLE)
        schema.add_field("y", kind.DOUBLE)
        schema.add_field("name", kind.VARCHAR, max_length=LONGEST_NAME)
        self.client.create_collection(self.collection, schema=schema, consistency_level="Strong")
        self._load()

    def _load(self) -> None:
        """Build the index if it is missing, and load the collection.

        A process that was killed after it had created the collection leaves it without an index.
        """
        if not self.client.list_indexes(self.collection, field_name="vector"):
            index = self.client.prepare_index_params()
            index.add_index("vector", index_type=self.index, metric_type="IP")
            self.client.create_index(self.collection, index)
        self.client.load_collection(self.collection, timeout=REQUEST_SECONDS)

    def _write(self, batch: Batch, offsets: list[int]) -> None:
        entities = [_entity(batch, at) for at in offsets]
        self.client.upsert(self.collection, entities, timeout=REQUEST_SECONDS)

    def _remove_from(self, row: int) -> None:
        self.client.delete(self.collection, filter=f"id >= {row}", timeout=REQUEST_SECONDS)

    def _digests(self, ids: range) -> dict[int, int]:
        rows = self._query(f"id >= {ids.start} and id < {ids.stop}", "id", "digest")
        return {row["id"]: row["digest"] for row in rows}

    def _query(self, filter_: str, *fields: str) -> list[dict[str, int]]:
        return self.client.query(
            self.collection,
            filter=filter_,
            output_fields=list(fields),
            consistency_level="Strong",
            timeout=REQUEST_SECONDS,
        )

    def _query_count(self) -> int:
        # Milvus Lite crashes when it counts a collection that never had a row, so query for one first.
        if not self.client.query(self.collection, filter="id >= 0", limit=1, timeout=REQUEST_SECONDS):
            return 0
        return int(self._query("", "count(*)")[0]["count(*)"])

    def _stored(self, rows: list[int]) -> dict[int, StoredRow]:
        stored: dict[int, StoredRow] = {}
        for start in range(0, len(rows), BATCH):
            entities = self.client.get(
                self.collection,
                ids=rows[start : start + BATCH],
                output_fields=["id", "kappa", "x", "y", "name"],
                timeout=REQUEST_SECONDS,
            )
            for entity in entities:
                x, y = (None if entity[axis] == NOWHERE else entity[axis] for axis in "xy")
                stored[entity["id"]] = entity["kappa"] or None, x, y, entity["name"]
        return stored

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        def ask(part: NDArray[np.float32], limit: int) -> list[Hits]:
            starts = range(0, len(part), QUERIES)
            return [hits for at in starts for hits in self._hits(part[at : at + QUERIES], limit, area)]

        with self._explain("did not answer the search"):
            return deepen(ask, queries, k, most=MOST, location=self.location)

    def _hits(self, queries: NDArray[np.float32], limit: int, area: Circle | None) -> list[Hits]:
        answer = self.client.search(
            self.collection,
            data=list(queries),
            anns_field="vector",
            limit=limit,
            filter="" if area is None else _box(area),
            output_fields=[] if area is None else ["x", "y"],
            search_params={"metric_type": "IP", "params": self._depth(limit)},
            consistency_level="Strong",
            timeout=REQUEST_SECONDS,
        )
        lists = []
        for hits in answer:
            rows = np.array([hit["id"] for hit in hits], np.int64)
            similarities = np.array([hit["distance"] for hit in hits], np.float32)
            mask = np.ones(len(rows), bool)
            if area is not None:  # the server filtered the box around the circle
                x, y = (np.array([hit["entity"][axis] for hit in hits], np.float64) for axis in "xy")
                mask = within([x - area[0], y - area[1]], area[2])
            lists.append(Hits(rows, similarities, mask))
        return lists

    def _depth(self, limit: int) -> dict[str, int]:
        """Return the search depth of an approximate index; a search takes a few milliseconds."""
        if self.index == "HNSW":
            return {"ef": max(256, 2 * limit)}
        if self.index.startswith("IVF"):
            return {"nprobe": 64}
        if self.index == "DISKANN":
            return {"search_list": max(128, 2 * limit)}
        return {}

    def close(self) -> None:
        self.client.close()


def _entity(batch: Batch, at: int) -> Entity:
    kappa, x, y, name = batch.record(at)
    return {
        "id": batch.ids[at],
        "vector": batch.descriptors[at],
        "digest": batch.digests[at],
        "kappa": kappa or 0.0,  # κ is positive, so 0 means unknown
        "x": NOWHERE if x is None else x,
        "y": NOWHERE if y is None else y,
        "name": name,
    }


def _box(circle: Circle) -> str:
    """Return the square around a circle as a filter, slightly wider because of rounding to six digits."""
    x, y, radius = circle
    reach = radius * (1 + 1e-9) + 2e-6
    low_x, high_x, low_y, high_y = x - reach, x + reach, y - reach, y + reach
    return f"x >= {low_x:.6f} and x <= {high_x:.6f} and y >= {low_y:.6f} and y <= {high_y:.6f}"
