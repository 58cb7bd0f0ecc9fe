"""Decoding in processes, for machines with more cores than one interpreter's lock can feed."""

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
from concurrent.futures import Future
from typing import NamedTuple

from kappaplace.data.batch_memory import SharedBatches
from kappaplace.data.decode_worker import READY, Answer, Pass, Task, layout, mapped, pixels_at, receive, send
from kappaplace.data.images import Preprocessing
from kappaplace.data.pixels import Pixels
from kappaplace.errors import KappaPlaceError

log = logging.getLogger(__name__)

# The parent's own search path, so it finds the same packages; no module of the parent's is imported by name.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from kappaplace.data.decode_worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_START_S = 60.0
# Starting takes some tenths of a second, so the next pass takes over processes if it comes soon enough.
KEPT_S = 10.0
# Tasks that wait at a process, so it need not wait for us while our interpreter is busy.
_AHEAD = 2
_LONGEST_PATH = 2000  # so a few of them are one packet; a longer one is left to whoever asked

Found = list["Pixels | None"]
"""Pixels of each image of a task; None where the process could not read it."""


def available() -> bool:
    """Whether this system has what it takes: memory without a name, and an interpreter to start."""
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


class DecodeProcesses:
    """Processes that decode the images of one pass over a loader, until `close`.

    They end with this process, too, however it ends, and leave nothing behind: their memory has no name.
    """

    def __init__(self, workers: list[_Worker], home: tuple[int, str]) -> None:
        self._workers = workers
        self._home = home
        self._batches: SharedBatches | None = None
        self._waiting: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._failure: KappaPlaceError | None = None
        self._closing = False
        self._kept_since = 0.0
        self._collector = threading.Thread(target=self._collect, name="decode", daemon=True)
        self._collector.start()

    @classmethod
    def start(cls, count: int, wanted: Pass, batches: int, batch_size: int) -> DecodeProcesses | None:
        """Processes of which one at least is ready; None, with a warning, where they cannot be started.

        Where images are to have one size, they share the memory of so many batches.
        """
        made: DecodeProcesses | None = None
        try:
            home = os.getpid(), os.getcwd()
            made = _take_kept(count, home) or cls(_start_workers(count), home)
            made._begin(wanted, batches, batch_size)
        except OSError as error:
            log.warning("Images are decoded in threads, for processes could not be started: %s.", error)
        except BaseException:
            if made is not None:
                made.close()
            raise
        else:
            return made
        if made is not None:
            made.close()
        return None

    def _begin(self, wanted: Pass, batches: int, batch_size: int) -> None:
        size = wanted.size
        self._batches = None if size is None else SharedBatches(batches, (batch_size, *size, 3))
        try:
            memory = [] if self._batches is None else [self._batches.descriptor]
            for worker in self._workers:
                send(worker.link, wanted.to_dict(), memory)
        finally:
            if self._batches is not None:
                self._batches.close()

    def room(self, shape: tuple[int, ...]) -> tuple[Pixels | None, int | None]:
        """N×H×W×3 in the shared memory and its place there, or none: pixels then come one by one."""
        taken = None if self._batches is None else self._batches.take(shape)
        return (None, None) if taken is None else taken

    def submit(self, paths: list[str], out: Pixels | None, place: int | None) -> Future[Found]:
        """Decode a few images into `out`, N×H×W×3 at this place of the shared memory, or each on its own."""
        asked = [path if isinstance(path, str) and len(path) <= _LONGEST_PATH else "" for path in paths]
        job = _Job(Task(asked, place), out, Future())
        with self._lock:
            if self._failure is not None:
                job.future.set_exception(self._failure)
            else:
                self._waiting.append(job)
                self._hand_out()
        return job.future

    def close(self, keep: bool = False) -> None:
        """End the processes, whatever they do; `keep`: they have done all, and may wait for another pass."""
        if not (keep and self._keep()) and self._home[0] == os.getpid():
            with self._lock:
                self._closing = True
            _end(self._workers, self._collector)

    def _keep(self) -> bool:
        try:
            self._begin(Pass(Preprocessing()), 0, 0)  # so that they let go of the memory
        except OSError:
            return False
        with _keeping:
            if _kept or self._failure is not None or any(worker.jobs for worker in self._workers):
                return False
            self._kept_since = time.monotonic()
            _kept.append(self)
        return True

    def _kept_too_long(self) -> bool:
        """True, once, if no other pass has come."""
        with _keeping:
            if self not in _kept or time.monotonic() - self._kept_since < KEPT_S:
                return False
            _kept.remove(self)
        return True

    def _hand_out(self) -> None:
        while self._waiting:
            worker = min(self._workers, key=lambda w: len(w.jobs))
            if len(worker.jobs) >= _AHEAD:
                return
            job = self._waiting.popleft()
            worker.jobs.append(job)
            try:
                send(worker.link, job.task)
            except OSError:  # it has ended, as the collector is about to see
                return

    def _collect(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.link, selectors.EVENT_READ, worker)
            while True:
                for key, _ in selector.select(min(1.0, KEPT_S / 4)):
                    if not self._take(key.data):
                        return
                if self._kept_too_long():
                    _end(self._workers)
                    return

    def _take(self, worker: _Worker) -> bool:
        """One packet of a process; False if it was the last."""
        data, memory = receive(worker.link)
        if data == READY:
            return True
        if not data:
            self._fail(_ended(worker))
            return False
        with self._lock:
            job = worker.jobs.popleft()
            self._hand_out()
        try:
            job.future.set_result(_found(job, json.loads(data), memory))
        except Exception as error:  # a future without an answer would be a loader that hangs
            job.future.set_exception(error)
        return True

    def _fail(self, error: KappaPlaceError) -> None:
        with _keeping:
            unused = self in _kept
            if unused:
                _kept.remove(self)
        if unused:  # nobody else would notice
            _end(self._workers)
        with self._lock:
            if self._closing:  # nobody waits
                return
            self._failure = error
            for job in [*self._waiting, *(job for worker in self._workers for job in worker.jobs)]:
                job.future.set_exception(error)


class _Job(NamedTuple):
    task: Task
    out: Pixels | None
    future: Future[Found]


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    link: socket.socket
    jobs: deque[_Job]

    @classmethod
    def start(cls) -> _Worker:
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid()), *sys.path],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # Many processes with one thread each: NumPy would otherwise start one a core in all.
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
        if not _one_ready(workers):
            raise OSError("the first one ended or did not answer")
    except BaseException:
        _end(workers)
        raise
    return workers


def _one_ready(workers: list[_Worker]) -> bool:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.link, selectors.EVENT_READ, worker)
        events = selector.select(_START_S)
        return bool(events) and receive(events[0][0].data.link)[0] == READY


_kept: list[DecodeProcesses] = []  # one at most
_keeping = threading.Lock()


def _take_kept(count: int, home: tuple[int, str]) -> DecodeProcesses | None:
    """Those that wait, if so many, children of this process and in its folder: paths may be relative."""
    with _keeping:
        kept = _kept.pop() if _kept else None
    if kept is None:
        return None
    alive = all(worker.process.poll() is None for worker in kept._workers)
    if alive and len(kept._workers) == count and kept._home == home:
        return kept
    kept.close()
    return None


@atexit.register
def end_kept() -> None:
    """End the processes that wait for another pass now."""
    with _keeping:
        kept = _kept.pop() if _kept else None
    if kept is not None:
        kept.close()


def _end(workers: list[_Worker], collector: threading.Thread | None = None) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
    if collector is not None:  # it sees the ends of all sockets
        collector.join()
    for worker in workers:
        worker.link.close()


def _found(job: _Job, answer: Answer, memory: list[int]) -> Found:
    if not memory:
        return [None if size is None or job.out is None else job.out[i] for i, size in enumerate(answer)]
    try:
        own = mapped(memory[0])
    finally:
        os.close(memory[0])
    # Copied at once: each mapping holds an open file, of which a process may have few.
    places, _ = layout(answer)
    return [
        None if size is None else pixels_at(own, place, size).copy()
        for size, place in zip(answer, places, strict=True)
    ]


def _ended(worker: _Worker) -> KappaPlaceError:
    code = worker.process.wait()
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    paths = worker.jobs[0].task.paths if worker.jobs else []
    where = f" while reading {paths[0]} or one of the next {len(paths)}" if paths else ""
    return KappaPlaceError(
        f"A process that decodes images ended by {how}{where}; run again, with fewer workers if memory was "
        "short, or check that file with `kappaplace data check --decode`."
    )
