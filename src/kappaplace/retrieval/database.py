"""References in a database: how an import goes, how it is searched, and a map that fills one.

An import writes only rows that are missing or have changed, by a digest of each, so one that was interrupted
is simply repeated. A note in the map records what was imported where, so that a process that only searches
compares a few rows instead of all: another copy of the map may have filled the same collection since.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.retrieval.columns import Columns, Descriptors, as_columns
from kappaplace.retrieval.exact import BaseEngine, best_first
from kappaplace.types import Matches

Result = TypeVar("Result")
ATTEMPTS = 5
WAIT = 0.5  # seconds before the second attempt, doubled each time: about eight in all
LONGEST_NAME = 1024  # bytes
EQUAL = 1e-6  # similarities closer than float32 rounding may stand in any order in an engine's list
PROBED = 16
"""Rows that are looked at before a collection filled earlier is believed."""
OTHERWISE = "give another name (--collection), or replace them on purpose (replace=True)"


class Records(NamedTuple):
    """What a database keeps beside the descriptors; NaN where a value is missing."""

    kappa: NDArray[np.float32]
    positions: NDArray[np.float64]
    names: list[str]


class Batch(NamedTuple):
    """Consecutive references, ready to be written."""

    ids: range
    descriptors: NDArray[np.float32]
    records: Records
    digests: list[int]
    """One number a row: equal digests mean equal rows, so an import writes only what is new or changed."""


class References:
    """Descriptors with κ, position and name of each; the row number is the primary key."""

    def __init__(
        self,
        descriptors: Descriptors | Columns,
        positions: NDArray[np.floating] | None = None,
        kappa: NDArray[np.floating] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.rows = as_columns(descriptors)
        if len(self.rows) == 0:
            raise KappaPlaceError("There are no references to import: the map is empty.")
        for what, values, shape in (
            ("positions", positions, (len(self.rows), 2)),
            ("kappa", kappa, (len(self.rows),)),
            ("names", names, (len(self.rows),)),
        ):
            if values is not None and (len(values), *np.shape(values)[1:]) != shape:
                raise KappaPlaceError(f"There are {len(values)} {what} for {len(self.rows)} references.")
        self.positions, self.kappa, self.names = positions, kappa, names

    def batches(self, size: int) -> Iterator[Batch]:
        for start, descriptors in self.rows.blocks(size):
            ids = range(start, start + len(descriptors))
            if not np.isfinite(descriptors).all():
                raise KappaPlaceError(
                    f"Some descriptors of references {ids.start} to {ids.stop - 1} are NaN or infinite; "
                    "check the model and the images."
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
                    f"The name {name[:40]!r}… cannot be stored: at most {LONGEST_NAME} bytes, none of them 0."
                )
        return Records(np.asarray(kappa, np.float32), np.asarray(positions, np.float64), names)


def _digests(descriptors: NDArray[np.float32], records: Records) -> list[int]:
    digests = []
    for row, kappa, (x, y), name in zip(np.ascontiguousarray(descriptors), *records, strict=True):
        digest = hashlib.blake2b(row.data, digest_size=8)
        digest.update(struct.pack("<fdd", kappa, x, y) + name.encode())
        digests.append(int.from_bytes(digest.digest(), "little", signed=True))
    return digests


def to_write(batch: Batch, known: dict[int, int], where: str, *, replace: bool) -> list[int]:
    """Offsets within the batch that are missing or changed, given the digests that are already stored."""
    missing = [at for at, row in enumerate(batch.ids) if row not in known]
    changed = [at for at, row in enumerate(batch.ids) if row in known and known[row] != batch.digests[at]]
    if changed and not replace:
        raise KappaPlaceError(
            f"{where} already holds other references (row {batch.ids[changed[0]]} differs): {OTHERWISE}."
        )
    return sorted(missing + changed)


def too_many(stored: int, given: int, where: str) -> KappaPlaceError:
    return KappaPlaceError(f"{where} holds {stored} references, more than the {given} given: {OTHERWISE}.")


def retried(
    call: Callable[[], Result], errors: type[Exception] | tuple[type[Exception], ...], wait: float = WAIT
) -> Result:
    """Call until it succeeds; the last failure is the caller's. Only for calls that may be repeated."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return call()
        except errors:
            time.sleep(wait * 2**attempt)
    return call()


def checked_name(name: str, what: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,49}", name):
        raise KappaPlaceError(
            f"{name!r} cannot be the name of a {what}: letters, digits and underscores, at most 50."
        )
    return name


def without_password(uri: str) -> str:
    """The address as it may be shown."""
    uri = re.sub(r"://([^:/@]*):[^/]*@", r"://\1:…@", uri)
    return re.sub(r"(password\s*=\s*)('[^']*'|[^\s&]+)", r"\1…", uri)


class DatabaseEngine(BaseEngine):
    """One collection or table. A subclass says how rows are read and written; the order is here."""

    where = ""
    """The collection and its address, as the beginning of a sentence."""
    batch: ClassVar[int]
    """Rows written together unless the caller says otherwise."""
    failures: type[Exception]
    """What the driver raises."""
    passing: type[Exception]
    """Those of them that may be gone at the next attempt."""
    dim, _count = 0, 0

    def __len__(self) -> int:
        return self._count

    def add(self, references: References, *, replace: bool = False, batch: int = 0) -> int:
        """Bring the database to these references and say how many rows were written.

        Rows that are there already are left alone, so an import that broke off is simply repeated. Rows that
        differ, or are too many, are refused unless ``replace`` is given.
        """
        given, dim = references.rows.shape
        if self.dim not in (0, dim):
            raise KappaPlaceError(
                f"{self.where} holds {self.dim} dimensions, these descriptors have {dim}: give "
                "another name (--collection)."
            )
        if self._count > given and not replace:
            raise too_many(self._count, given, self.where)
        written = 0
        with self._told("did not take the references; what was written stays, repeat the import"):
            if self.dim == 0:
                self._create(dim)
            for part in references.batches(batch or self.batch):
                known = self._retried(partial(self._digests, part.ids))
                offsets = to_write(part, known, self.where, replace=replace)
                if offsets:
                    # By primary key: an attempt whose answer was lost can be repeated and doubles nothing.
                    self._retried(partial(self._write, part, offsets))
                    written += len(offsets)
            if self._count > given:
                self._retried(partial(self._remove_from, given))
            self._settle()
        return written

    def fetch(self, ids: NDArray[np.int64]) -> Records:
        """κ, position and name of some references, in the order asked for."""
        raise NotImplementedError

    def _create(self, dim: int) -> None:
        """Make the collection."""
        raise NotImplementedError

    def _open(self) -> None:
        """Learn dimension, index and count of a collection that is there."""
        raise NotImplementedError

    def _digests(self, ids: range) -> dict[int, int]:
        """The digests of those of these rows that are stored."""
        raise NotImplementedError

    def _write(self, batch: Batch, offsets: list[int]) -> None:
        """Write some rows of a batch, over those of the same number."""
        raise NotImplementedError

    def _remove_from(self, row: int) -> None:
        """Remove this row and all that follow."""
        raise NotImplementedError

    def _settle(self) -> None:
        """After an import: what is there now."""
        self._open()

    def _retried(self, call: Callable[[], Result]) -> Result:
        return retried(call, self.passing)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Failures of the database as one sentence."""
        try:
            yield
        except self.failures as error:
            said = without_password(" ".join(str(getattr(error, "message", error)).split())[:200])
            raise KappaPlaceError(f"{self.where} {what} ({said}).") from None


class Hits(NamedTuple):
    """What an engine says of one query: its list, and which entries pass the filter."""

    rows: NDArray[np.int64]
    similarities: NDArray[np.float32]
    kept: NDArray[np.bool_]


def deepen(
    ask: Callable[[NDArray[np.float32], int], list[Hits]],
    queries: NDArray[np.float32],
    k: int,
    *,
    most: int,
    where: str,
) -> Matches:
    """The k best hits of each query, ties by row; ``ask(queries, limit)`` returns ``limit`` hits or all.

    An engine that filters after its own top list, or orders equal similarities as it likes, must be asked for
    more than k; how many more is only known from the answer.
    """
    found: list[Hits | None] = [None] * len(queries)
    open_ = np.arange(len(queries))
    limit = min(2 * k + 16, most)
    while len(open_):
        still = []
        for row, hits in zip(open_, ask(queries[open_], limit), strict=True):
            found[row] = hits
            if len(hits.rows) == limit and not _certain(hits, k):
                still.append(row)
        if still and limit == most:
            raise KappaPlaceError(
                f"{where} lists at most {most} references a query, and the {k} best cannot be told among "
                "them: ask for fewer matches or a smaller radius."
            )
        open_, limit = np.array(still, np.int64), min(4 * limit, most)
    return _together([hits for hits in found if hits is not None], k)


def _certain(hits: Hits, k: int) -> bool:
    """Whether k hits stand clear of the end of the list, where equal ones may have been cut off."""
    passed = hits.similarities[hits.kept]
    return len(passed) >= k and bool(passed[k - 1] > hits.similarities[-1] + EQUAL)


def _together(found: list[Hits], k: int) -> Matches:
    columns = min(k, min(int(hits.kept.sum()) for hits in found))  # the same for all where exact
    indices = np.empty((len(found), columns), np.int64)
    similarities = np.empty((len(found), columns), np.float32)
    for row, hits in enumerate(found):
        rows, values = best_first(hits.rows[hits.kept][None], hits.similarities[hits.kept][None], columns)
        indices[row], similarities[row] = rows[0], values[0]
    return Matches(indices, similarities)


@dataclass(frozen=True)
class MapSource:
    """What a map hands in to be searched, by any engine."""

    folder: Path
    name: str
    columns: Columns
    """Descriptors; their ``live`` rows are the references."""
    positions: NDArray[np.float64]
    """x and y of every row, those removed included; NaN where unknown."""
    kappa: Callable[[], NDArray[np.float32]]
    """κ of every row."""
    names: Callable[[], Iterable[str]]
    """Names of all rows."""
    row_name: Callable[[int], str]
    """The name of one row."""
    fingerprint: str
    """Identifies the descriptors, so that a stale index is noticed."""
    state: Mapping[str, Any]
    """Identifies all that a database is filled with."""

    @property
    def live_positions(self) -> NDArray[np.float64]:
        """x and y of every reference."""
        return self.positions if self.columns.live is None else self.positions[self.columns.live]


def import_map(
    engine: DatabaseEngine, source: MapSource, note: Path, replace: bool = False
) -> DatabaseEngine:
    """Bring a database to this map and return it; ``note`` is the file that says what was imported.

    A collection that this map filled before is brought up to date whatever has changed in the map; one that
    holds anything else is refused, unless ``replace`` is given.
    """
    try:
        known, rows = _read(note), source.columns.with_removed()
        filled = known == source.state and len(engine) == len(rows)
        other = _differing(engine, source) if filled else None
        if other is not None and not replace:
            raise KappaPlaceError(
                f"{engine.where} no longer holds what the map {source.folder} put there (row {other} is "
                f"other): another copy of the map, or one of the same name, has filled it since; {OTHERWISE}."
            )
        if not filled or other is not None:
            names = [_plain(name) for name in source.names()]
            references = References(rows, source.positions, source.kappa(), names)
            engine.add(references, replace=replace or known is not None)
            # A map on a read-only disk is compared again by every process, nothing worse.
            with contextlib.suppress(KappaPlaceError):
                make_folder(note.parent)
                text = json.dumps(source.state)
                replace_file(note, lambda part: part.write_text(text), sync=False)
    except BaseException:
        engine.close()
        raise
    return engine


def _differing(engine: DatabaseEngine, source: MapSource) -> int | None:
    """The first of some rows, spread over the map, that is not what the map wrote; None where all are."""
    count = len(source.positions)
    chosen = np.unique(np.linspace(0, count - 1, min(count, PROBED)).astype(np.int64))
    there, kappa, positions = engine.fetch(chosen), source.kappa()[chosen], source.positions[chosen]
    for at, row in enumerate(chosen.tolist()):
        pairs = ((there.kappa[at], kappa[at]), (there.positions[at], positions[at]))
        same = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
        if not same or there.names[at] != _plain(source.row_name(row)):
            return int(row)
    return None


def _plain(name: str) -> str:
    """A name as databases take it: bytes of a file name that are no text are spelt out."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def collection_name(name: str) -> str:
    """The name of a map as databases allow it."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:50]
    return plain if re.match(r"[A-Za-z_]", plain) else f"map_{plain}"[:50]


def _read(note: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
