"""A disk that fails: the Nth write, fsync or rename raises an error, or is the last moment of the process.

At its last moment the disk may lose what no fsync has secured: the content of files, and renames in folders.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FAIL, KILL, LOSE, UNDO = "error", "kill", "kill, unsynced content lost", "kill, unsynced renames lost"
MODES = (FAIL, KILL, LOSE, UNDO)
KILLED = 9
"""Exit status of a process whose disk has ended it."""


class Disk:
    """Counts the writes, fsyncs and renames below a folder, and fails at one of them."""

    def __init__(self, folder: Path, mode: str = FAIL, number: int = -1) -> None:
        """Prepare the disk; `install` puts it in place of the real one, for the rest of the process.

        Args:
            folder: Folder that is on this disk.
            mode: What happens at the failure, one of `MODES`.
            number: Number of the call that fails, from 0. Default: none.
        """
        self.folder, self.mode, self.number, self.count = str(folder.resolve()), mode, number, 0
        self.unsynced: set[str] = set()
        """Files whose content is not secured."""
        self.renames: list[tuple[str, str, str]] = []
        """Source, target, and copy of the replaced target, of renames that are not secured."""
        self.grave = Path(f"{self.folder}.grave")
        self.real: dict[str, Callable[..., Any]] = {}

    def owns(self, path: object) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        return f"{os.path.abspath(os.fspath(path))}/".startswith(f"{self.folder}/")

    def call(self, code: int) -> None:
        """Count a call, and fail if it is the one."""
        self.count += 1
        if self.count - 1 != self.number:
            return
        if self.mode == FAIL:
            raise OSError(code, os.strerror(code))
        self._lose()
        os._exit(KILLED)

    def _lose(self) -> None:
        if self.mode == LOSE:
            for file in self.unsynced:
                if os.path.isfile(file):
                    os.truncate(file, os.path.getsize(file) // 2)
        if self.mode == UNDO:
            for source, target, copy in reversed(self.renames):
                if os.path.exists(target):
                    self.real["replace"](target, source)
                if copy:
                    self.real["replace"](copy, target)

    def install(self) -> None:
        """Replace the functions of the system that write."""
        disk = self
        self.real = {name: getattr(os, name) for name in ("replace", "rename", "fsync", "write", "pwrite")}
        real_open = builtins.open

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                disk.call(errno.ENOSPC)
                disk.unsynced.add(os.path.abspath(os.fspath(self.name)))
                return super().write(data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *words: Any, **more: Any) -> Any:
            if not disk.owns(file) or not set(mode) & set("wxa+") or buffering == 0:
                return real_open(file, mode, buffering, *words, **more)
            raw = File(file, mode.replace("b", "").replace("t", ""))
            stream: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return stream if "b" in mode else io.TextIOWrapper(stream, *words, **more)

        def swap(name: str) -> Callable[..., None]:
            def swapped(source: Any, target: Any, **more: Any) -> None:
                if not disk.owns(target):
                    disk.real[name](source, target, **more)
                    return
                disk.call(errno.EIO)
                disk.rename(os.path.abspath(os.fspath(source)), os.path.abspath(os.fspath(target)))

            return swapped

        def synced(number: int) -> None:
            path = os.readlink(f"/proc/self/fd/{number}")
            if disk.owns(path):
                disk.call(errno.EIO)
            disk.real["fsync"](number)
            disk.unsynced.discard(path)
            if os.path.isdir(path):  # file systems keep the order of renames
                disk.renames.clear()

        def written(name: str) -> Callable[..., int]:
            def write(number: int, *words: Any) -> int:
                if disk.owns(os.readlink(f"/proc/self/fd/{number}")):
                    disk.call(errno.ENOSPC)
                return int(disk.real[name](number, *words))

            return write

        flushed = np.memmap.flush

        def flush(array: Any) -> None:
            flushed(array)
            if array.filename is not None:
                disk.unsynced.discard(os.path.abspath(os.fspath(array.filename)))

        builtins.open = io.open = opened
        os.replace, os.rename, os.fsync = swap("replace"), swap("rename"), synced
        os.write, os.pwrite = written("write"), written("pwrite")
        np.memmap.flush = flush  # type: ignore[method-assign]
        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]

    def rename(self, source: str, target: str) -> None:
        """Rename, and remember how to undo it."""
        copy = ""
        if os.path.isfile(target):
            self.grave.mkdir(exist_ok=True)
            copy = str(self.grave / str(len(self.renames)))
            shutil.copyfile(target, copy)
        self.real["replace"](source, target)
        self.renames.append((source, target, copy))
        moved = {path for path in self.unsynced if path == source or path.startswith(source + os.sep)}
        self.unsynced -= moved
        self.unsynced |= {target + path[len(source) :] for path in moved}
