"""Write files completely or not at all, lock folders against a second writer, and check files on reading.

- `replace_file`, `write_file` and `save_array` write; a reader or a killed process never sees half a file.
- `writing` locks a folder; the lock ends with its process.
- `telling` turns the exceptions that a damaged or foreign file causes into one message.
- `file_sums` and `sealed` detect changed bytes: in large files block by block, in a JSON object as a whole.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import socket
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module, resources
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kappaplace.errors import KappaPlaceError, MapLocked
from kappaplace.types import Json

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under its older name
    import tomli as tomllib

parse_toml = tomllib.loads


def make_folder(folder: str | Path) -> Path:
    """Create a folder, and check that it can be written to."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # a process with the same number in another container may be faster
    except OSError as error:
        raise KappaPlaceError(
            f"Cannot write to the folder {folder}: {why(error)}. Choose another one."
        ) from None
    return folder


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create a temporary folder, which becomes ``out`` at the end or is deleted after an error."""
    if out.exists():
        raise KappaPlaceError(f"{out} already exists. Choose a new folder.")
    make_folder(out.parent)
    remove_debris(out.parent, f".{out.name}.")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    remove_path(part)
    part.mkdir()
    try:
        yield part
        os.rename(part, out)
    finally:
        remove_path(part)


def reserve_array(file: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Create an .npy file of zeros and reserve its disk space.

    Without the space, a full disk would kill the process that writes to the memory map.

    Args:
        file: The file to create.
        shape: Shape of the array.
        dtype: Type of its elements.
    """
    np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape).flush()
    if hasattr(os, "posix_fallocate"):
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, os.path.getsize(file))


def not_written(file: Path, error: OSError) -> Exception:
    """Return the exception to raise if a file cannot be written."""
    if error.errno is None:
        return error
    return KappaPlaceError(f"Cannot write {file}: {why(error)}. Its previous content is unchanged.")


def check_target(file: Path) -> None:
    """Check that a path names a file, which may exist, and not a folder."""
    if not file.name or file.is_dir():
        raise KappaPlaceError(f"Cannot write {file}, because it is a folder. Pass the name of a file.")


def sync_path(path: Path) -> None:
    """Wait until the content of a file, or the list of files in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(file: Path, write: Callable[[Path], object], *, sync: bool = True) -> None:
    """Write a temporary file in the same folder, then replace the target by it in one step.

    Args:
        file: The target.
        write: Function that writes the content to the path that it gets.
        sync: Wait for the disk, so that the file survives a power cut. Turn it off for thousands of small
            files that can be created again.

    Raises:
        KappaPlaceError: If the target is a folder, or the disk reports an error. It is then unchanged.
    """
    check_target(file)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        write(part)
        if sync:
            sync_path(part)
        os.replace(part, file)
        if sync:  # the new name, too, before the caller deletes the replaced file
            sync_path(file.parent)
    except OSError as error:
        raise not_written(file, error) from None
    finally:
        with suppress(OSError):  # the temporary file may not exist
            part.unlink(missing_ok=True)


def write_file(file: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Replace the content of a file in one step, see `replace_file`; text is written as UTF-8."""
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise KappaPlaceError(
            f"Cannot write {printable(str(file))}, because it would contain text that is not UTF-8 "
            f"({printable(error.object[error.start :][:40])!r}). Choose another name."
        ) from None
    replace_file(file, lambda part: part.write_bytes(data), sync=sync)


LOCK = "writer.lock"


@contextmanager
def writing(folder: Path, kind: str = "map") -> Iterator[None]:
    """Lock a folder for writing; a second writer gets an error.

    The kernel holds the lock (flock) and releases it when the process ends for any reason. The content of
    the file only identifies the process that holds the lock.
    """
    import fcntl  # not on Windows, where maps can still be read

    file = folder / LOCK
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise KappaPlaceError(
            f"Cannot write to the {kind} {folder} ({why(error)}). Check its permissions and the disk."
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MapLocked(
                f"The {kind} {folder} is being written by {_owner(file)}, and only one writer is allowed. "
                "Wait until it has finished, or stop it."
            ) from None
        owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with suppress(OSError):  # a full disk must not prevent deletions
            os.ftruncate(handle, 0)
            os.pwrite(handle, owner.encode(), 0)
        yield
        with suppress(OSError):
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # releases the lock; the file stays, because the next writer may have opened it


def _owner(file: Path) -> str:
    try:
        owner = json.loads(file.read_text(encoding="utf-8"))
        return f"process {int(owner['pid'])} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


class _Stream:
    """File object with only ``write``: for real files, NumPy bypasses Python and loses the error number."""

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write


def save_array(file: Path, values: npt.NDArray[np.generic]) -> None:
    """Write an .npy file as ``np.save`` does, but raise the original error of the disk."""
    with open(file, "wb") as stream:
        np.lib.format.write_array(_Stream(stream), np.ascontiguousarray(values), allow_pickle=False)


def why(error: OSError) -> str:
    """Return the text of a disk error."""
    return os.strerror(error.errno) if error.errno else str(error)


DAMAGED_ARRAYS = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, ArithmeticError, RuntimeError),
    *(SyntaxError, TokenError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""Exceptions that NumPy raises for a damaged file. The header is Python text, and an .npz is a zip file. A
flipped bit can therefore cause many errors, such as a request for too much memory."""
_LONGEST = 200  # characters of another library's message, which may quote a whole row


@contextmanager
def telling(subject: str) -> Iterator[None]:
    """Turn exceptions that damaged or foreign input causes into the message ``SUBJECT (reason).``.

    Only exceptions that bad input can cause are caught, so that most programming errors stay visible. A
    `KappaPlaceError` is raised unchanged.
    """
    try:
        yield
    except _failures() as error:
        raise KappaPlaceError(printable(f"{subject} ({reason(error)}).")) from error


def reason(error: BaseException) -> str:
    """Return an exception's message on one line, or its class if the message is empty or only a key."""
    message = why(error) if isinstance(error, OSError) else str(error)
    words = " ".join(message.split()).rstrip(".")[:_LONGEST]
    kind = type(error).__name__
    return kind if not words else f"{kind} {words}" if isinstance(error, KeyError) else words


def printable(text: str) -> str:
    """Escape bytes that a terminal cannot print, such as those of a file name that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _failures() -> tuple[type[BaseException], ...]:
    """Return exceptions of bad input; called only after an error, so that pyarrow and pyproj load late."""
    foreign: list[type[BaseException]] = []
    for module, name in (("pyarrow", "ArrowException"), ("pyproj.exceptions", "ProjError")):
        with suppress(ImportError):  # a package that is not installed cannot raise an error
            foreign.append(getattr(import_module(module), name))
    return (*DAMAGED_ARRAYS, LookupError, AttributeError, csv.Error, *foreign)


BLOCK = 1 << 20
"""Bytes of a file per checksum, few enough to be verified quickly when they are first read."""


def sha256_of(file: Path) -> str:
    """Return the SHA-256 checksum of a file's content."""
    return file_sums(file)[0]


def file_sums(file: Path) -> tuple[str, list[int]]:
    """Return the SHA-256 of a file, and the CRC-32 of every block."""
    digest, sums = hashlib.sha256(), []
    try:
        with open(file, "rb") as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
                sums.append(zlib.crc32(block))
    except OSError as error:
        raise KappaPlaceError(f"Cannot read {file} ({why(error)}). Check the file.") from None
    return digest.hexdigest(), sums


SEAL = "checksum"
"""Field of a JSON object with the checksum of its other fields."""


def sealed(values: Mapping[str, Json]) -> dict[str, Json]:
    """Return a JSON object with the checksum of its canonical form, which formatting does not change."""
    content = {key: value for key, value in values.items() if key != SEAL}
    plain = json.dumps(json.loads(json.dumps(content)), sort_keys=True, separators=(",", ":"))
    return {**content, SEAL: hashlib.sha256(plain.encode()).hexdigest()}


def unsealed(values: Json) -> dict[str, Json]:
    """Return a JSON object without its checksum; files of earlier versions have none.

    Raises:
        ValueError: If the values do not match the checksum.
    """
    if not isinstance(values, Mapping):
        raise ValueError("it is not an object")
    if SEAL in values and sealed(values)[SEAL] != values[SEAL]:
        raise ValueError("wrong checksum: some values have changed")
    return {key: value for key, value in values.items() if key != SEAL}


_DEBRIS = re.compile(r"\..+\.(\d+)\.part|\.write-test-(\d+)")


def remove_debris(folder: Path, start: str = "") -> None:
    """Delete temporary files and folders that killed processes of this machine left behind.

    Args:
        folder: The folder.
        start: Delete only names that start with this text. Default: all.
    """
    for path in folder.iterdir() if folder.is_dir() else []:
        match = _DEBRIS.fullmatch(path.name)
        if match and path.name.startswith(start) and not _is_running(int(match[1] or match[2])):
            remove_path(path)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def path_inside(folder: str, name: str) -> str:
    """Return the path of a file below a folder; empty if it is outside, also after links are followed."""
    path = os.path.join(folder, name)
    try:
        real, base = os.path.realpath(path), os.path.realpath(folder)
    except (OSError, ValueError):  # a zero byte
        return ""
    return path if folder and real.startswith(os.path.join(base, "")) else ""


def remove_path(path: Path) -> None:
    """Delete a file or a folder; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file that is part of a package."""
    return parse_toml(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
