"""What engines that keep references in a database share: how an import goes, and how failures are told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

from kappaplace.errors import KappaPlaceError
from kappaplace.retrieval.engines.base import BaseEngine
from kappaplace.retrieval.engines.records import (
    Batch,
    References,
    Result,
    retried,
    to_write,
    too_many,
    without_password,
)


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
