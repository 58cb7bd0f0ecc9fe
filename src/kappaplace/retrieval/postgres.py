"""References in PostgreSQL with pgvector, for teams that run a database already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.retrieval.database import (
    Batch,
    DatabaseEngine,
    Records,
    Result,
    checked_name,
    without_password,
)
from kappaplace.types import Matches

BATCH = 5000
INLINE = 1800  # numbers that fit on a page beside the rest: read in place, many times faster than set aside
COLUMNS = ("id", "digest", "kappa", "x", "y", "name", "descriptor")
TYPES = ("int8", "int8", "float4", "float8", "float8", "text", "vector")


class PostgresEngine(DatabaseEngine):
    """One table; without an index every row is compared, with ``hnsw`` the search is approximate.

    ``uri`` is a libpq address (postgresql://user@host/database). A table that is not there is made by `add`;
    one that is there can be searched by processes that hold no descriptors.
    """

    name = "postgres"
    batch = BATCH

    def __init__(
        self, uri: str, table: str = "kappaplace", *, index: str = "none", timeout: float = 5.0
    ) -> None:
        if index not in ("none", "hnsw"):
            raise KappaPlaceError(f"The index of a table is none or hnsw, not {index!r}.")
        self._psycopg, self._register = _drivers()
        self.failures, self.passing = self._psycopg.Error, self._psycopg.OperationalError
        self.table, self.index = checked_name(table, "table"), index
        self._address = {"conninfo": uri, "autocommit": True, "connect_timeout": max(2, round(timeout))}
        self.where = f"The PostgreSQL table {table} at {without_password(uri)}"
        with self._told("cannot be reached; is the server running and the address right?"):
            self.connection = self._psycopg.connect(**self._address)
        with self._told("needs the extension pgvector, version 0.8 or newer, installed on the server"):
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._register(self.connection)
        with self._told("cannot be opened"):
            if self._run("SELECT to_regclass(%s)", [f'"{self.table}"']).fetchone()[0] is not None:
                self._open()

    def _retried(self, call: Callable[[], Result]) -> Result:
        def attempt() -> Result:
            if self.connection.closed:  # a connection that broke stays broken
                self.connection = self._psycopg.connect(**self._address)
                self._register(self.connection)
            return call()

        return super()._retried(attempt)

    def _run(self, statement: str, values: Any = None) -> Any:
        return self.connection.execute(statement.replace("TABLE_NAME", f'"{self.table}"'), values)

    def _open(self) -> None:
        columns = dict(
            self._run(
                "SELECT attname, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
                [f'"{self.table}"'],
            ).fetchall()
        )
        if not set(COLUMNS) <= columns.keys():
            raise KappaPlaceError(f"{self.where} was not made by KappaPlace: give another name.")
        self.dim = columns["descriptor"]
        self._count = self._run("SELECT count(*) FROM TABLE_NAME").fetchone()[0]
        if self._run("SELECT to_regclass(%s)", [f'"{self.table}_hnsw"']).fetchone()[0] is not None:
            self.index = "hnsw"
        elif self.index == "hnsw":
            self._build_index()
        self.exact = self.index == "none"
        if self.index == "hnsw":
            self._run("SET hnsw.ef_search = 200")
            # With a filter the walk goes on until enough rows have passed it.
            self._run("SET hnsw.iterative_scan = strict_order")

    def _create(self, dim: int) -> None:
        with self.connection.transaction():
            self._run(
                "CREATE TABLE IF NOT EXISTS TABLE_NAME (id bigint PRIMARY KEY, digest bigint NOT NULL, "
                "kappa real, x double precision, y double precision, name text NOT NULL, "
                f"descriptor vector({dim}) NOT NULL)"
            )
            if dim <= INLINE:
                self._run("ALTER TABLE TABLE_NAME ALTER COLUMN descriptor SET STORAGE PLAIN")
            self._run(f'CREATE INDEX IF NOT EXISTS "{self.table}_position" ON TABLE_NAME (x, y)')

    def _build_index(self) -> None:
        self._run(
            f'CREATE INDEX IF NOT EXISTS "{self.table}_hnsw" ON TABLE_NAME '
            "USING hnsw (descriptor vector_ip_ops)"
        )

    def _digests(self, ids: range) -> dict[int, int]:
        statement = "SELECT id, digest FROM TABLE_NAME WHERE id >= %s AND id < %s"
        return dict(self._run(statement, [ids.start, ids.stop]).fetchall())

    def _settle(self) -> None:
        # Or the planner, which knows nothing of a table just filled, scans everything for a small circle.
        self._run("ANALYZE TABLE_NAME")
        self._open()

    def _remove_from(self, row: int) -> None:
        self._run("DELETE FROM TABLE_NAME WHERE id >= %s", [row])

    def _write(self, batch: Batch, offsets: list[int]) -> None:
        """One transaction a batch: all of it, or none of it when the connection breaks."""
        update = ", ".join(f"{column} = EXCLUDED.{column}" for column in COLUMNS[1:])
        with self.connection.transaction():
            self._run("CREATE TEMP TABLE incoming (LIKE TABLE_NAME) ON COMMIT DROP")
            with self.connection.cursor().copy(
                f"COPY incoming ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
            ) as copy:
                copy.set_types(TYPES)
                for at in offsets:
                    copy.write_row(_row(batch, at))
            self._run(
                f"INSERT INTO TABLE_NAME ({', '.join(COLUMNS)}) SELECT {', '.join(COLUMNS)} FROM incoming "
                f"ON CONFLICT (id) DO UPDATE SET {update}"
            )

    def fetch(self, ids: NDArray[np.int64]) -> Records:
        """κ, position and name of some references, in the order asked for."""
        wanted = [int(row) for row in ids]
        with self._told("did not answer"):
            rows = self._run(
                "SELECT id, kappa, x, y, name FROM TABLE_NAME WHERE id = ANY(%s)", [wanted]
            ).fetchall()
        found = {row: rest for row, *rest in rows}
        if missing := set(wanted) - found.keys():
            raise KappaPlaceError(f"{self.where} holds no reference {min(missing)}.")
        # NULL becomes NaN in an array of floats.
        kappa = np.array([found[row][0] for row in wanted], np.float32)
        positions = np.array([found[row][1:3] for row in wanted], np.float64).reshape(-1, 2)
        return Records(kappa, positions, [found[row][3] for row in wanted])

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        filter_, values = "", []
        if area is not None:
            x, y, radius = area
            reach = radius * (1 + 1e-9)  # the box is for the index on x and y; the circle decides
            filter_ = (
                "WHERE x BETWEEN %s AND %s AND y BETWEEN %s AND %s "
                "AND (x - %s) * (x - %s) + (y - %s) * (y - %s) <= %s"
            )
            box = [x - reach, x + reach, y - reach, y + reach]
            values = [*box, x, x, y, y, radius**2]
        statement = (
            f"SELECT id, -(descriptor <#> %s) FROM TABLE_NAME {filter_} "
            "ORDER BY descriptor <#> %s, id LIMIT %s"
        )
        with self._told("did not answer the search"):
            found = [self._run(statement, [query, *values, query, k]).fetchall() for query in queries]
        columns = min(len(rows) for rows in found)  # the same for all where exact
        indices = np.array([[row for row, _ in rows[:columns]] for rows in found], np.int64)
        similarities = np.array([[value for _, value in rows[:columns]] for rows in found], np.float32)
        return Matches(indices.reshape(len(found), columns), similarities.reshape(len(found), columns))

    def close(self) -> None:
        self.connection.close()


def _row(batch: Batch, at: int) -> tuple[Any, ...]:
    kappa, positions, names = batch.records
    x, y = (float(v) if np.isfinite(positions[at]).all() else None for v in positions[at])
    known = float(kappa[at]) if np.isfinite(kappa[at]) else None
    return batch.ids[at], batch.digests[at], known, x, y, names[at], batch.descriptors[at]


def _drivers() -> tuple[Any, Any]:
    try:
        import psycopg
        from pgvector.psycopg import register_vector
    except ImportError:
        raise MissingExtra("The PostgreSQL engine", "postgres") from None
    return psycopg, register_vector
