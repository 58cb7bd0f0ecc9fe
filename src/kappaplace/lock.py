"""One writer at a time: a lock that dies with its process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kappaplace.errors import KappaPlaceError

LOCK = "writer.lock"


@contextmanager
def writing(folder: Path, what: str = "map") -> Iterator[None]:
    """Hold a map (or a run) for writing; a second writer is refused with one sentence.

    The lock is the kernel's (flock), which frees it when a process dies in whatever way. What stands in the
    file only tells the others whom they wait for.
    """
    file = folder / LOCK
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise KappaPlaceError(
            f"The {what} {folder} cannot be written to: {os.strerror(error.errno or 0)}; nothing was changed."
        ) from None
    try:
        if not _take(handle):
            raise KappaPlaceError(
                f"The {what} {folder} is being written by {_owner(file)}; wait until it is done, or stop it: "
                f"a {what} has one writer at a time."
            )
        owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with suppress(OSError):  # a full disk must not keep anyone from removing things
            os.ftruncate(handle, 0)
            os.pwrite(handle, owner.encode(), 0)
        yield
        with suppress(OSError):
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # frees the lock; the file stays, for removing it would race with the next writer


def _take(handle: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _owner(file: Path) -> str:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return f"process {int(found['pid'])} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
