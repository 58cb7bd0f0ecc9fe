"""Writing without losing anything: a file is complete or it is the one that was there before."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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
