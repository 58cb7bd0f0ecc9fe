"""Writing without losing anything: a file is complete or it is the one that was there before.

One writer at a time: a lock that dies with its process.

Arrays onto the disk, with the disk's own words where it refuses.

Files that others wrote fail in a hundred ways: one border that turns each of them into one sentence.

Checksums of files and of weights in memory.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError


def make_folder(folder: str | Path) -> Path:
    """Create a folder that can be written to, or say in one sentence why not."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # of another process with the same number, in another container
    except OSError as error:
        raise KappaPlaceError(
            f"Cannot write to the folder {folder}: {os.strerror(error.errno or 0)}; choose another folder."
        ) from None
    return folder


def reserve_array(file: Path, shape: tuple[int, ...], dtype: Any) -> None:
    """An .npy file of zeros with its disk space: writing to a map on a full disk would kill the process."""
    import numpy as np

    np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape).flush()
    if hasattr(os, "posix_fallocate"):
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, os.path.getsize(file))


def not_written(file: Path, error: OSError) -> Exception:
    """The disk's reason in one sentence; an error that is not the disk's (a broken download) as it is."""
    if error.errno is None:
        return error
    return KappaPlaceError(
        f"Cannot write {file}: {os.strerror(error.errno)}; what was there before is unchanged."
    )


def replace_file(file: Path, write: Callable[[Path], object], *, sync: bool = True) -> None:
    """Write beside the target, then swap: readers and killed processes never see half a file.

    ``sync`` waits for the disk, so that a power cut does no harm either; leave it out for thousands of small
    files that can be made again.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        write(part)
        if sync:
            with open(part, "rb") as stream:
                os.fsync(stream.fileno())
        os.replace(part, file)
    except OSError as error:
        raise not_written(file, error) from None
    finally:
        with suppress(OSError):  # where it could not be made there is nothing to remove
            part.unlink(missing_ok=True)


def write_file(file: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Replace the content of a file in one step; text is written as UTF-8, see `replace_file`."""
    data = content.encode() if isinstance(content, str) else content
    replace_file(file, lambda part: part.write_bytes(data), sync=sync)


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


class _Plain:
    """NumPy writes into real files past Python, and then a full disk has no error number."""

    def __init__(self, stream: Any) -> None:
        self.write = stream.write


def save_array(file: Path, values: NDArray[Any]) -> None:
    """``np.save`` that raises what the disk says."""
    with open(file, "wb") as stream:
        np.lib.format.write_array(_Plain(stream), np.ascontiguousarray(values), allow_pickle=False)


def why(error: OSError) -> str:
    """An error of the disk in words."""
    return os.strerror(error.errno) if error.errno else str(error)


DAMAGED_ARRAYS = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, ArithmeticError, RuntimeError),
    *(SyntaxError, TokenError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What NumPy raises at a file that is not whole: its header is Python text, an .npz is a zip file, and a
flipped bit may ask for more memory than there is or for a compression that nobody knows."""
_LONGEST = 200  # characters of a foreign message; libraries may quote a whole row


@contextmanager
def telling(what: str) -> Iterator[None]:
    """What damaged or foreign input raises inside becomes ``WHAT (reason).``; our own sentences pass.

    Only what bad input is known to raise is caught, so that most mistakes of ours stay visible, and the
    cause stays chained for those who debug.
    """
    try:
        yield
    except _failures() as error:
        raise KappaPlaceError(printable(f"{what} ({reason(error)}).")) from error


def reason(error: BaseException) -> str:
    """What an exception says, on one line; its kind where the words alone would be empty or a bare key."""
    words = " ".join(str(error).split()).rstrip(".")[:_LONGEST]
    kind = type(error).__name__
    return kind if not words else f"{kind} {words}" if isinstance(error, KeyError) else words


def printable(text: str) -> str:
    """Text that any terminal takes: a file name that is no UTF-8 carries bytes that cannot be printed."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _failures() -> tuple[type[BaseException], ...]:
    """Evaluated only when something was raised, so that pyarrow and pyproj load no earlier than needed."""
    foreign: list[type[BaseException]] = []
    for module, name in (("pyarrow", "ArrowException"), ("pyproj.exceptions", "ProjError")):
        with suppress(ImportError):  # what is not installed has raised nothing
            foreign.append(getattr(import_module(module), name))
    return (*DAMAGED_ARRAYS, LookupError, AttributeError, csv.Error, *foreign)


def sha256_of(file: Path) -> str:
    """Checksum of a file's content."""
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise KappaPlaceError(f"Cannot read {file}: {os.strerror(error.errno or 0)}.") from None
    return digest.hexdigest()
