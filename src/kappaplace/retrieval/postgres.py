"""References in PostgreSQL with pgvector, for teams that already run this database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Circle
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.retrieval.database import (
    Batch,
    DatabaseEngine,
    Result,
    StoredRow,
    checked_name,
    without_password,
)
from kappaplace.types import Matches

if TYPE_CHECKING:
    from psycopg import Cursor

EXTRA = "The PostgreSQL engine", "postgres"
BATCH = 5000
INLINE = 1800  # largest dimension that fits on a page with the other columns, which is many times faster
COLUMNS = ("id", "digest", "kappa", "x", "y", "name", "descriptor")
TYPES = ("int8", "int8", "float4", "float8", "float8", "text", "vector")
Value: TypeAlias = int | float | str | Sequence[int] | NDArray[np.float32] | None
"""A value of a statement."""


class PostgresEngine(DatabaseEngine):
    """A table in PostgreSQL.

    `add` creates a table that does not exist. Processes without descriptors can search an existing one.

    Args:
        uri: libpq connection string (postgresql://user@host/database).
        table: Name of the table.
        index: none compares all references; hnsw is approximate.
        timeout: Seconds to wait for the server.
    """

    name = "postgres"
    batch = BATCH

    def __init__(
        self, uri: str, table: str = "kappaplace", *, index: str = "none", timeout: float = 5.0
    ) -> None:
        if index not in ("none", "hnsw"):
            raise KappaPlaceError(f"The index of a table must be none or hnsw, got {index!r}.")
        self._psycopg = import_extra("psycopg", *EXTRA)
        self._register = import_extra("pgvector.psycopg", *EXTRA).register_vector
        self.failures, self.transient = self._psycopg.Error, self._psycopg.OperationalError
        self.table, self.index = checked_name(table, "table"), index
        seconds = max(2, round(timeout))
        self._connection_options = {"conninfo": uri, "autocommit": True, "connect_timeout": seconds}
        self.location = f"The PostgreSQL table {table} at {without_password(uri)}"
        with self._explain("cannot be reached", "Check the URL and that the server is running."):
            self.connection = self._psycopg.connect(**self._connection_options)
        with self._explain("needs the extension pgvector 0.8 or newer on the server"):
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._register(self.connection)
        with self._explain("cannot be opened"):
            if self._run("SELECT to_regclass(%s)", [f'"{self.table}"']).fetchone()[0] is not None:
                self._open()

    def _retry(self, call: Callable[[], Result]) -> Result:
        def attempt() -> Result:
            if self.connection.closed:  # a connection does not reconnect on its own
                self.connection = self._psycopg.connect(**self._connection_options)
                self._register(self.connection)
            return call()

        return super()._retry(attempt)

    def _run(self, statement: str, values: Sequence[Value] | None = None) -> Cursor:
        return self.connection.execute(statement.replace("TABLE_NAME", f'"{self.table}"'), values)

    def _open(self) -> None:
        columns = dict(
            self._run(
                "SELECT attname, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
                [f'"{self.table}"'],
            ).fetchall()
        )
        if not set(COLUMNS) <= columns.keys():
            raise KappaPlaceError(f"{self.location} was not created by KappaPlace. Pass another name.")
        self.dim = columns["descriptor"]
        self._count = self._run("SELECT count(*) FROM TABLE_NAME").fetchone()[0]
        if self._run("SELECT to_regclass(%s)", [f'"{self.table}_hnsw"']).fetchone()[0] is not None:
            self.index = "hnsw"
        elif self.index == "hnsw":
            self._run(
                f'CREATE INDEX IF NOT EXISTS "{self.table}_hnsw" ON TABLE_NAME '
                "USING hnsw (descriptor vector_ip_ops)"
            )
        self.exact = self.index == "none"
        if self.index == "hnsw":
            self._run("SET hnsw.ef_search = 200")
            # With a filter, the search continues until enough rows pass it.
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

    def _digests(self, ids: range) -> dict[int, int]:
        statement = "SELECT id, digest FROM TABLE_NAME WHERE id >= %s AND id < %s"
        return dict(self._run(statement, [ids.start, ids.stop]).fetchall())

    def _settle(self) -> None:
        # Without statistics of the new rows, the planner would scan the whole table for a small circle.
        self._run("ANALYZE TABLE_NAME")
        self._open()

    def _remove_from(self, row: int) -> None:
        self._run("DELETE FROM TABLE_NAME WHERE id >= %s", [row])

    def _write(self, batch: Batch, offsets: list[int]) -> None:
        """Write a batch in one transaction: if the connection is lost, nothing is written."""
        update = ", ".join(f"{column} = EXCLUDED.{column}" for column in COLUMNS[1:])
        with self.connection.transaction():
            self._run("CREATE TEMP TABLE incoming (LIKE TABLE_NAME) ON COMMIT DROP")
            with self.connection.cursor().copy(
                f"COPY incoming ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
            ) as copy:
                copy.set_types(TYPES)
                for offset in offsets:
                    numbers = batch.ids[offset], batch.digests[offset]
                    copy.write_row((*numbers, *batch.record(offset), batch.descriptors[offset]))
            self._run(
                f"INSERT INTO TABLE_NAME ({', '.join(COLUMNS)}) SELECT {', '.join(COLUMNS)} FROM incoming "
                f"ON CONFLICT (id) DO UPDATE SET {update}"
            )

    def _stored(self, rows: list[int]) -> dict[int, StoredRow]:
        statement = "SELECT id, kappa, x, y, name FROM TABLE_NAME WHERE id = ANY(%s)"
        return {row: tuple(record) for row, *record in self._run(statement, [rows]).fetchall()}

    def _search(self, queries: NDArray[np.float32], k: int, area: Circle | None) -> Matches:
        filter_, values = "", list[Value]()
        if area is not None:
            x, y, radius = area
            reach = radius * (1 + 1e-9)  # the index on x and y finds the box; the circle is exact
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
        with self._explain("did not answer the search"):
            lists = [self._run(statement, [query, *values, query, k]).fetchall() for query in queries]
        columns = min(map(len, lists))  # all queries have this many if the search is exact
        indices = np.array([[row for row, _ in rows[:columns]] for rows in lists], np.int64)
        similarities = np.array([[value for _, value in rows[:columns]] for rows in lists], np.float32)
        shape = len(lists), columns
        return Matches(indices.reshape(shape), similarities.reshape(shape))

    def close(self) -> None:
        self.connection.close()
