"""References in Milvus: a file (Milvus Lite) to try it out, a server or a cluster in production."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle, within
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.retrieval.database import (
    LONGEST_NAME,
    Batch,
    DatabaseEngine,
    Hits,
    Records,
    checked_name,
    deepen,
    without_password,
)
from kappaplace.types import Matches

BATCH = 1000  # 2 MB of 512 numbers; a message may hold 64 MB
QUERIES = 64
MOST = 16_384  # what Milvus returns for one query at most
REQUEST_SECONDS = 60.0
NOWHERE = 1e300  # a position that no circle reaches: servers refuse NaN in a scalar column


class MilvusEngine(DatabaseEngine):
    """One collection; ``index`` FLAT compares everything, HNSW, IVF_FLAT, DISKANN or AUTOINDEX do not.

    ``timeout`` bounds the wait for a server that does not answer. A collection that is not there is made by
    `add`; one that is there can be searched by processes that hold no descriptors.
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
        self.where = f"The Milvus collection {collection} at {without_password(self.uri)}"
        self._milvus = _pymilvus()
        self.failures = self.passing = self._milvus.MilvusException
        if "://" not in self.uri:  # a Milvus Lite file
            if not self.uri.endswith(".db"):
                raise KappaPlaceError(
                    f"A Milvus Lite file must end in .db, or give http://host:19530, got {uri}."
                )
            self.uri = str(Path(self.uri).absolute())
        with self._told("cannot be reached; is the server running and the address right?"):
            self.client = self._milvus.MilvusClient(self.uri, token=token, timeout=timeout)
        with self._told("cannot be opened"):
            if self.client.has_collection(self.collection, timeout=REQUEST_SECONDS):
                self._open()

    def _open(self) -> None:
        fields = {f["name"]: f for f in self.client.describe_collection(self.collection)["fields"]}
        if not {"id", "vector", "digest", "kappa", "x", "y", "name"} <= fields.keys():
            raise KappaPlaceError(f"{self.where} was not made by KappaPlace: give another name.")
        self.dim = int(fields["vector"]["params"]["dim"])
        self.index = self.client.describe_index(self.collection, "vector")["index_type"]
        self.exact = self.index == "FLAT"
        self.client.load_collection(self.collection, timeout=REQUEST_SECONDS)
        self._count = self._counted()

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
        index = self.client.prepare_index_params()
        index.add_index("vector", index_type=self.index, metric_type="IP")
        self.client.create_collection(
            self.collection, schema=schema, index_params=index, consistency_level="Strong"
        )
        self.client.load_collection(self.collection, timeout=REQUEST_SECONDS)

    def _write(self, batch: Batch, offsets: list[int]) -> None:
        entities = [_entity(batch, at) for at in offsets]
        self.client.upsert(self.collection, entities, timeout=REQUEST_SECONDS)

    def _remove_from(self, row: int) -> None:
        self.client.delete(self.collection, filter=f"id >= {row}", timeout=REQUEST_SECONDS)

    def _digests(self, ids: range) -> dict[int, int]:
        rows = self.client.query(
            self.collection,
            filter=f"id >= {ids.start} and id < {ids.stop}",
            output_fields=["id", "digest"],
            consistency_level="Strong",
            timeout=REQUEST_SECONDS,
        )
        return {row["id"]: row["digest"] for row in rows}

    def _counted(self) -> int:
        # Milvus Lite dies of counting a collection that never held a row: look for one first.
        if not self.client.query(self.collection, filter="id >= 0", limit=1, timeout=REQUEST_SECONDS):
            return 0
        rows = self.client.query(
            self.collection,
            filter="",
            output_fields=["count(*)"],
            consistency_level="Strong",
            timeout=REQUEST_SECONDS,
        )
        return int(rows[0]["count(*)"])

    def fetch(self, ids: NDArray[np.int64]) -> Records:
        """κ, position and name of some references, in the order asked for."""
        wanted = [int(row) for row in ids]
        found: dict[int, Any] = {}
        with self._told("did not answer"):
            for start in range(0, len(wanted), BATCH):
                rows = self.client.get(
                    self.collection,
                    ids=sorted(set(wanted[start : start + BATCH])),
                    output_fields=["id", "kappa", "x", "y", "name"],
                    timeout=REQUEST_SECONDS,
                )
                found.update({row["id"]: row for row in rows})
        if missing := set(wanted) - found.keys():
            raise KappaPlaceError(f"{self.where} holds no reference {min(missing)}.")
        kappa = np.array([found[row]["kappa"] or np.nan for row in wanted], np.float32)
        positions = np.array([[found[row]["x"], found[row]["y"]] for row in wanted], np.float64)
        positions = positions.reshape(-1, 2)
        positions[positions == NOWHERE] = np.nan
        return Records(kappa, positions, [found[row]["name"] for row in wanted])

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        def ask(some: NDArray[np.float32], limit: int) -> list[Hits]:
            found: list[Hits] = []
            for start in range(0, len(some), QUERIES):
                found += self._ask(some[start : start + QUERIES], limit, area)
            return found

        with self._told("did not answer the search"):
            return deepen(ask, queries, k, most=MOST, where=self.where)

    def _ask(self, queries: NDArray[np.float32], limit: int, area: Circle | None) -> list[Hits]:
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
        found = []
        for hits in answer:
            rows = np.array([hit["id"] for hit in hits], np.int64)
            similarities = np.array([hit["distance"] for hit in hits], np.float32)
            kept = np.ones(len(rows), bool)
            if area is not None:  # the box was filtered there, the circle is here
                x, y = (np.array([hit["entity"][axis] for hit in hits], np.float64) for axis in "xy")
                kept = within([x - area[0], y - area[1]], area[2])
            found.append(Hits(rows, similarities, kept))
        return found

    def _depth(self, limit: int) -> dict[str, int]:
        """How far an approximate index looks: the recall that costs a few milliseconds."""
        if self.index == "HNSW":
            return {"ef": max(256, 2 * limit)}
        if self.index.startswith("IVF"):
            return {"nprobe": 64}
        if self.index == "DISKANN":
            return {"search_list": max(128, 2 * limit)}
        return {}

    def close(self) -> None:
        self.client.close()


def _entity(batch: Batch, at: int) -> dict[str, Any]:
    kappa, positions, names = batch.records
    x, y = (float(value) if np.isfinite(positions[at]).all() else NOWHERE for value in positions[at])
    return {
        "id": batch.ids[at],
        "vector": batch.descriptors[at],
        "digest": batch.digests[at],
        "kappa": float(np.nan_to_num(kappa[at])),  # κ is positive: 0 stands for none
        "x": x,
        "y": y,
        "name": names[at],
    }


def _box(circle: Circle) -> str:
    """The square around a circle as an expression, a little wider than its six digits can round away."""
    x, y, radius = circle
    reach = radius * (1 + 1e-9) + 2e-6
    low_x, high_x, low_y, high_y = x - reach, x + reach, y - reach, y + reach
    return f"x >= {low_x:.6f} and x <= {high_x:.6f} and y >= {low_y:.6f} and y <= {high_y:.6f}"


def _pymilvus() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise MissingExtra("The Milvus engine", "milvus") from None
    return pymilvus
