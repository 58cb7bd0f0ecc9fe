"""References in a database: import and search.

An import compares a digest of each row and writes only rows that are missing or have changed. You can
interrupt it; run it again to resume.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.engine import Engine, best_first
from kappaplace.types import Matches

Result = TypeVar("Result")
StoredRow: TypeAlias = tuple[float | None, float | None, float | None, str]
"""κ, x, y and name of a row; None if unknown."""
ATTEMPTS = 5
WAIT = 0.5  # seconds before the second attempt, doubled each time: about eight in total
LONGEST_NAME = 1024  # bytes
EQUAL = 1e-6  # similarities that differ by less are in any order, because of float32 rounding
REMEDY = "Pass another name (--collection), or replace=True to overwrite them."


class Records(NamedTuple):
    """Values that a database stores next to the descriptors; NaN if unknown."""

    kappa: NDArray[np.float32]
    positions: NDArray[np.float64]
    names: list[str]


class Batch(NamedTuple):
    """Consecutive references, ready to be written."""

    ids: range
    descriptors: NDArray[np.float32]
    records: Records
    digests: list[int]
    """One number per row: equal digests mean equal rows."""

    def record(self, offset: int) -> StoredRow:
        """Return κ, x, y and name of one row; unknown numbers are None."""
        kappa, (x, y) = self.records.kappa[offset], self.records.positions[offset]
        posed = np.isfinite(x) and np.isfinite(y)
        place = (float(x), float(y)) if posed else (None, None)
        return float(kappa) if np.isfinite(kappa) else None, *place, self.records.names[offset]


class References:
    """References to import: descriptors with κ, position and name. The row number is the primary key."""

    def __init__(
        self,
        descriptors: Descriptors | Columns,
        positions: NDArray[np.floating] | None = None,
        kappa: NDArray[np.floating] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.rows = as_columns(descriptors)
        count = len(self.rows)
        if count == 0:
            raise KappaPlaceError(
                "There are no references to import, because the map is empty. Add images first."
            )
        columns = {
            "positions": (positions, (count, 2)),
            "kappa": (kappa, (count,)),
            "names": (names, (count,)),
        }
        for column, (values, shape) in columns.items():
            if values is not None and (len(values), *np.shape(values)[1:]) != shape:
                raise KappaPlaceError(
                    f"{column} must have one value per reference ({count}), got {len(values)}."
                )
        self.positions, self.kappa, self.names = positions, kappa, names

    def batches(self, size: int) -> Iterator[Batch]:
        for start, descriptors in self.rows.blocks(size):
            ids = range(start, start + len(descriptors))
            if not np.isfinite(descriptors).all():
                raise KappaPlaceError(
                    f"Some descriptors of references {ids.start} to {ids.stop - 1} are NaN or infinite. "
                    "Check the model and the images."
                )
            records = self._records(slice(ids.start, ids.stop))
            yield Batch(ids, descriptors, records, _digests(descriptors, records))

    def _records(self, rows: slice) -> Records:
        count = rows.stop - rows.start
        kappa = np.full(count, np.nan) if self.kappa is None else self.kappa[rows]
        positions = np.full((count, 2), np.nan) if self.positions is None else self.positions[rows]
        names = [""] * count if self.names is None else [str(name) for name in self.names[rows]]
        for name in names:
            if len(name.encode()) > LONGEST_NAME or "\0" in name:
                raise KappaPlaceError(
                    f"The name {name[:40]!r}… cannot be stored. Use at most {LONGEST_NAME} bytes and no zero "
                    "byte."
                )
        return Records(np.asarray(kappa, np.float32), np.asarray(positions, np.float64), names)


def _digests(descriptors: NDArray[np.float32], records: Records) -> list[int]:
    digests = []
    for row, kappa, (x, y), name in zip(np.ascontiguousarray(descriptors), *records, strict=True):
        digest = hashlib.blake2b(row.data, digest_size=8)
        digest.update(struct.pack("<fdd", kappa, x, y) + name.encode())
        digests.append(int.from_bytes(digest.digest(), "little", signed=True))
    return digests


def offsets_to_write(batch: Batch, stored: dict[int, int], location: str, *, replace: bool) -> list[int]:
    """Return which rows of a batch to write.

    Args:
        batch: The rows.
        stored: Digests of the rows that the database contains, by row number.
        location: Name of the collection, as the beginning of a message.
        replace: Whether rows that differ may be overwritten.

    Returns:
        Offsets within the batch of rows that are missing or have changed, ascending.
    """
    digests = enumerate(zip(batch.ids, batch.digests, strict=True))
    offsets = [offset for offset, (row, digest) in digests if stored.get(row) != digest]
    changed = next((batch.ids[offset] for offset in offsets if batch.ids[offset] in stored), None)
    if changed is not None and not replace:
        raise KappaPlaceError(
            f"{location} already contains other references (row {changed} differs). {REMEDY}"
        )
    return offsets


def retry(
    call: Callable[[], Result], errors: type[Exception] | tuple[type[Exception], ...], wait: float = WAIT
) -> Result:
    """Repeat a call until it succeeds; the last failure is raised.

    Args:
        call: A function that can be repeated safely.
        errors: Exceptions after which to try again.
        wait: Seconds before the second attempt, doubled each time.

    Returns:
        The result of the first successful call.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return call()
        except errors:
            time.sleep(wait * 2**attempt)
    return call()


def checked_name(name: str, kind: str) -> str:
    """Return the name of a collection or table if a database accepts it."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,49}", name):
        raise KappaPlaceError(
            f"{name!r} cannot be the name of a {kind}. Use at most 50 letters, digits and underscores."
        )
    return name


def without_password(uri: str) -> str:
    """Return a URL without its password."""
    uri = re.sub(r"://([^:/@]*):[^/]*@", r"://\1:…@", uri)
    return re.sub(r"(password\s*=\s*)('[^']*'|[^\s&]+)", r"\1…", uri)


class DatabaseEngine(Engine):
    """Base class of databases. It defines the steps of an import; subclasses read and write rows."""

    location = ""
    """Name and URL of the collection, as the beginning of a message."""
    batch: ClassVar[int]
    """Default number of rows per write."""
    failures: type[Exception]
    """Exceptions of the driver."""
    transient: type[Exception]
    """Exceptions of the driver after which a second attempt may succeed."""
    dim, _count = 0, 0

    def __len__(self) -> int:
        return self._count

    def add(self, references: References, *, replace: bool = False, batch: int = 0) -> int:
        """Update the database to these references.

        Args:
            references: The references; equal rows are not written again.
            replace: Whether rows that differ may be overwritten and surplus rows removed.
            batch: Rows per write. Default: depends on the database.

        Returns:
            Number of rows written.

        Raises:
            KappaPlaceError: If the database contains other references, or fails.
        """
        count, dim = references.rows.shape
        if self.dim not in (0, dim):
            raise KappaPlaceError(
                f"{self.location} has {self.dim} dimensions, but these descriptors have {dim}. Pass another "
                "name (--collection)."
            )
        if self._count > count and not replace:
            raise KappaPlaceError(
                f"{self.location} contains {self._count} references, more than the {count} of this map. "
                f"{REMEDY}"
            )
        written = 0
        with self._explain("did not accept the references", "Repeat the import to resume."):
            if self.dim == 0:
                self._create(dim)
            for part in references.batches(batch or self.batch):
                stored = self._retry(partial(self._digests, part.ids))
                offsets = offsets_to_write(part, stored, self.location, replace=replace)
                if offsets:
                    # Rows are written by primary key, so an attempt whose answer was lost can be repeated.
                    self._retry(partial(self._write, part, offsets))
                    written += len(offsets)
            if self._count > count:
                self._retry(partial(self._remove_from, count))
            self._settle()
        return written

    def fetch(self, ids: NDArray[np.int64]) -> Records:
        """Return κ, position and name of references, in the order of ``ids``."""
        rows = [int(row) for row in ids]
        with self._explain("did not answer"):
            stored = self._stored(sorted(set(rows)))
        if missing := set(rows) - stored.keys():
            raise KappaPlaceError(f"{self.location} does not contain reference {min(missing)}. Import again.")
        kappa = np.array([stored[row][0] for row in rows], np.float32)  # None becomes NaN
        positions = np.array([stored[row][1:3] for row in rows], np.float64).reshape(-1, 2)
        return Records(kappa, positions, [stored[row][3] for row in rows])

    def _create(self, dim: int) -> None:
        """Create the collection."""

    def _open(self) -> None:
        """Read dimension, index and count of an existing collection."""

    def _digests(self, ids: range) -> dict[int, int]:
        """Return the digests of those rows that the database contains, by row number."""
        raise NotImplementedError

    def _stored(self, rows: list[int]) -> dict[int, StoredRow]:
        """Return those rows that the database contains, by row number."""
        raise NotImplementedError

    def _write(self, batch: Batch, offsets: list[int]) -> None:
        """Write rows of a batch, replacing rows of the same number."""

    def _remove_from(self, row: int) -> None:
        """Remove this row and all that follow."""

    def _settle(self) -> None:
        """Finish an import."""
        self._open()

    def _retry(self, call: Callable[[], Result]) -> Result:
        return retry(call, self.transient)

    @contextlib.contextmanager
    def _explain(self, problem: str, remedy: str = "") -> Iterator[None]:
        """Turn exceptions of the driver into one message."""
        try:
            yield
        except self.failures as error:
            reason = without_password(" ".join(str(getattr(error, "message", error)).split())[:200])
            raise KappaPlaceError(f"{self.location} {problem} ({reason}). {remedy}".strip()) from None


class Hits(NamedTuple):
    """List that a database returns for one query, with a mask of the entries that pass the filter."""

    rows: NDArray[np.int64]
    similarities: NDArray[np.float32]
    mask: NDArray[np.bool_]


def deepen(
    ask: Callable[[NDArray[np.float32], int], list[Hits]],
    queries: NDArray[np.float32],
    k: int,
    *,
    most: int,
    location: str,
) -> Matches:
    """Return the k best hits of each query, ties by row.

    An engine that filters its own top list, or returns equal similarities in any order, must be queried for
    more than k hits. Only the result shows whether more are needed.

    Args:
        ask: Function that returns hits for queries and a limit: this many per query, or all.
        queries: Descriptors of the queries, N×d.
        k: Number of matches per query.
        most: Largest limit that the engine accepts.
        location: Name of the collection, as the beginning of a message.

    Returns:
        The matches, N×k, best first.
    """
    best: list[Hits | None] = [None] * len(queries)
    remaining = np.arange(len(queries))
    limit = min(2 * k + 16, most)
    while len(remaining):
        incomplete = []
        for row, hits in zip(remaining, ask(queries[remaining], limit), strict=True):
            best[row] = hits
            if len(hits.rows) == limit and not _is_complete(hits, k):
                incomplete.append(row)
        if incomplete and limit == most:
            raise KappaPlaceError(
                f"{location} lists at most {most} references per query, too few to find the {k} best. Pass a "
                "smaller k or radius."
            )
        remaining, limit = np.array(incomplete, np.int64), min(4 * limit, most)
    return _join([hits for hits in best if hits is not None], k)


def _is_complete(hits: Hits, k: int) -> bool:
    """Return whether the k best hits are clearly better than the last one, whose equals may have been cut
    off."""
    similarities = hits.similarities[hits.mask]
    return len(similarities) >= k and bool(similarities[k - 1] > hits.similarities[-1] + EQUAL)


def _join(lists: list[Hits], k: int) -> Matches:
    # All queries have this many if the search is exact.
    columns = min(k, min(int(hits.mask.sum()) for hits in lists))
    best = [
        best_first(hits.rows[hits.mask][None], hits.similarities[hits.mask][None], columns) for hits in lists
    ]
    return Matches(*(np.concatenate(parts) for parts in zip(*best, strict=True)))


def collection_name(name: str) -> str:
    """Return the name of a map with only characters that databases accept."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:50]
    return plain if re.match(r"[A-Za-z_]", plain) else f"map_{plain}"[:50]
