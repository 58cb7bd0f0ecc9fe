"""Processes that decode images for a loader.

They help on machines with many cores: because of its lock, one Python interpreter keeps only a few busy.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

from kappaplace.data.decode_worker import (
    READY,
    Answer,
    Pass,
    Pixels,
    SharedBatches,
    Task,
    layout,
    mapped,
    pixels_at,
    receive,
    send,
)
from kappaplace.data.decoding import Source
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError

log = logging.getLogger(__name__)

# The worker gets the search path of the parent, so it finds the same packages. It imports no module of the
# parent by name.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from kappaplace.data.decode_worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_START_S = 60.0
# Starting takes a few tenths of a second, so idle processes wait this long for another pass.
IDLE_S = 10.0
_TASKS_PER_WORKER = 2  # tasks queued at a process: it continues while the interpreter of the parent is busy
# A few paths must fit into one packet; images with longer paths are read by the parent.
_LONGEST_PATH = 2000

Result: TypeAlias = "Pixels | KappaPlaceError"
Results: TypeAlias = "Sequence[Result | None]"
"""Pixels or error of each image of a task; None for images that the caller must read itself."""


def available() -> bool:
    """Return whether this system supports decoding in processes: unnamed memory and an interpreter."""
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


class DecodeProcesses:
    """Processes that decode the images of one pass over a loader, until `close`.

    They also end if this process is killed, and they leave no files and no shared memory behind.
    """

    def __init__(self, workers: list[_Worker], home: tuple[int, str]) -> None:
        self.count = len(workers)
        self._workers = workers
        self._home = home
        self._batches: SharedBatches | None = None
        self._queue: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._failure: KappaPlaceError | None = None
        self._closing = False
        self._idle_since = 0.0
        self._collector = threading.Thread(target=self._collect, name="decode", daemon=True)
        self._collector.start()

    @classmethod
    def start(cls, count: int, settings: Pass, batches: int, batch_size: int) -> DecodeProcesses | None:
        """Start processes, or take over idle ones, and wait until at least one is ready.

        Args:
            count: Number of processes.
            settings: Settings for all images.
            batches: Number of batches in shared memory, used if all images get the same size.
            batch_size: Largest number of images per batch.

        Returns:
            The processes; None, with a warning, if they cannot be started.
        """
        pool: DecodeProcesses | None = None
        try:
            home = os.getpid(), os.getcwd()
            pool = _take_idle(count, home) or cls(_start_workers(count), home)
            pool._start_pass(settings, batches, batch_size)
        except BaseException as error:
            if pool is not None:
                pool.close()
            if not isinstance(error, OSError):
                raise
            log.warning("Decoding in threads, because processes could not be started: %s.", error)
            return None
        return pool

    def _start_pass(self, settings: Pass, batches: int, batch_size: int) -> None:
        size = settings.size
        self._batches = None if size is None else SharedBatches(batches, (batch_size, *size, 3))
        try:
            memory = [] if self._batches is None else [self._batches.descriptor]
            for worker in self._workers:
                send(worker.link, settings.to_dict(), memory)
        finally:
            if self._batches is not None:
                self._batches.close()

    def take_buffer(self, shape: tuple[int, ...]) -> tuple[Pixels | None, int | None]:
        """Return a free batch N×H×W×3 of the shared memory and its offset; None for both if none is free."""
        batch = None if self._batches is None else self._batches.take(shape)
        return (None, None) if batch is None else batch

    def submit(self, paths: Sequence[Source], out: Pixels | None, offset: int | None) -> Future[Results]:
        """Decode a few images.

        Args:
            paths: Paths of the images; the process does not read any other source.
            out: N×H×W×3 of the shared memory for the pixels; None for a separate array per image.
            offset: Offset of `out` in the shared memory.

        Returns:
            The pixels of each image; None for an image that the process could not read.
        """
        names = [os.fspath(path) if isinstance(path, str | os.PathLike) else "" for path in paths]
        texts = [name if isinstance(name, str) and len(name) <= _LONGEST_PATH else "" for name in names]
        job = _Job(Task(texts, offset), out, Future())
        with self._lock:
            if self._failure is not None:
                job.future.set_exception(self._failure)
            else:
                self._queue.append(job)
                self._distribute()
        return job.future

    def close(self, keep: bool = False) -> None:
        """End the processes; with `keep`, let them wait for another pass if all their tasks are done."""
        if not (keep and self._become_idle()) and self._home[0] == os.getpid():
            with self._lock:
                self._closing = True
            _end(self._workers, self._collector)

    def _become_idle(self) -> bool:
        try:
            self._start_pass(Pass(Preprocessing()), 0, 0)  # so that they release the memory of the batches
        except OSError:
            return False
        with _idle_lock:
            if _idle or self._failure is not None or any(worker.jobs for worker in self._workers):
                return False
            self._idle_since = time.monotonic()
            _idle.append(self)
        return True

    def _expire(self) -> bool:
        """Return whether the processes have waited too long for another pass; True at most once."""
        with _idle_lock:
            if self not in _idle or time.monotonic() - self._idle_since < IDLE_S:
                return False
            _idle.remove(self)
        return True

    def _distribute(self) -> None:
        while self._queue:
            worker = min(self._workers, key=lambda w: len(w.jobs))
            if len(worker.jobs) >= _TASKS_PER_WORKER:
                return
            job = self._queue.popleft()
            worker.jobs.append(job)
            try:
                send(worker.link, job.task)
            except OSError:  # the process has ended, which the collector is about to notice
                return

    def _collect(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.link, selectors.EVENT_READ, worker)
            while True:
                for key, _ in selector.select(min(1.0, IDLE_S / 4)):
                    if not self._handle_packet(key.data):
                        return
                if self._expire():
                    _end(self._workers)
                    return

    def _handle_packet(self, worker: _Worker) -> bool:
        """Receive one packet of a process and return False if the process has ended."""
        data, memory = receive(worker.link)
        if data == READY:
            return True
        if not data:
            self._fail(_exit_error(worker))
            return False
        with self._lock:
            job = worker.jobs.popleft()
            self._distribute()
        try:
            job.future.set_result(_results(job, json.loads(data), memory))
        except Exception as error:  # a future without a result would block the loader forever
            job.future.set_exception(error)
        return True

    def _fail(self, error: KappaPlaceError) -> None:
        with _idle_lock:
            idle = self in _idle
            if idle:
                _idle.remove(self)
        if idle:  # otherwise the loader that uses them ends them
            _end(self._workers)
        with self._lock:
            if self._closing:  # no caller waits for results
                return
            self._failure = error
            for job in [*self._queue, *(job for worker in self._workers for job in worker.jobs)]:
                job.future.set_exception(error)


class _Job(NamedTuple):
    task: Task
    out: Pixels | None
    future: Future[Results]


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    link: socket.socket
    jobs: deque[_Job]

    @classmethod
    def start(cls) -> _Worker:
        link, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(far_end.fileno()), str(os.getpid()), *sys.path],
                    pass_fds=[far_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # One thread per process: NumPy would otherwise start one per core in each of them.
                    env=os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
                    start_new_session=True,  # Ctrl-C is for the parent, which ends them
                )
            except BaseException:
                link.close()
                raise
        return cls(process, link, deque())


def _start_workers(count: int) -> list[_Worker]:
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            workers.append(_Worker.start())
        if not _any_ready(workers):
            raise OSError("the first one ended or did not answer")
    except BaseException:
        _end(workers)
        raise
    return workers


def _any_ready(workers: list[_Worker]) -> bool:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.link, selectors.EVENT_READ, worker)
        events = selector.select(_START_S)
        return bool(events) and receive(events[0][0].data.link)[0] == READY


_idle: list[DecodeProcesses] = []  # one at most
_idle_lock = threading.Lock()


def _take_idle(count: int, home: tuple[int, str]) -> DecodeProcesses | None:
    """Return the idle processes if their number, parent and (for relative paths) working folder match."""
    with _idle_lock:
        pool = _idle.pop() if _idle else None
    if pool is None:
        return None
    alive = all(worker.process.poll() is None for worker in pool._workers)
    if alive and pool.count == count and pool._home == home:
        return pool
    pool.close()
    return None


@atexit.register
def end_idle() -> None:
    """End the processes that wait for another pass."""
    with _idle_lock:
        pool = _idle.pop() if _idle else None
    if pool is not None:
        pool.close()


def _end(workers: list[_Worker], collector: threading.Thread | None = None) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
    if collector is not None:  # it ends when all sockets are closed
        collector.join()
    for worker in workers:
        worker.link.close()


def _results(job: _Job, answer: Answer, memory: list[int]) -> Results:
    if not memory:
        return [None if size is None or job.out is None else job.out[i] for i, size in enumerate(answer)]
    try:
        separate = mapped(memory[0])
    finally:
        os.close(memory[0])
    # Copied immediately: each mapping is an open file, and a process may have only a few.
    offsets, _ = layout(answer)
    return [
        None if size is None else pixels_at(separate, offset, size).copy()
        for size, offset in zip(answer, offsets, strict=True)
    ]


def _exit_error(worker: _Worker) -> KappaPlaceError:
    code = worker.process.wait()
    cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    paths = worker.jobs[0].task.paths if worker.jobs else []
    files = f" while reading one of {len(paths)} images, starting at {paths[0]}" if paths else ""
    return KappaPlaceError(
        f"A process that decodes images ended by {cause}{files}. Use fewer workers if memory was short, or "
        "check the images with `kappaplace data check --decode`."
    )
