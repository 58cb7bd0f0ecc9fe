"""References on their way into a database: batches, digests that make imports idempotent, retries."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.engines.rows import Descriptors, Rows

Result = TypeVar("Result")
ATTEMPTS = 5
WAIT = 0.5  # seconds before the second attempt, doubled each time: about eight in all
LONGEST_NAME = 1024  # bytes
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
        descriptors: Descriptors | Rows,
        positions: NDArray[np.floating] | None = None,
        kappa: NDArray[np.floating] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.rows = descriptors if isinstance(descriptors, Rows) else Rows(descriptors)
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
