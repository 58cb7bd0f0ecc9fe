"""Decoding in processes, for machines with more cores than one interpreter's lock can feed.

Who decodes the images of a loader: threads of this process, or processes of their own.

A process that decodes images for its parent: paths come in, pixels go into memory that both see.

It is started as a program of its own, so the parent may hold threads, a GPU and any script, and it imports
neither that script nor torch. It lives as long as the socket to its parent, and writes no file.

Messages are JSON, one packet each. A pass begins with a `Pass` and, where all images are to have one size,
the memory of the batches; then come tasks. A task without a place in that memory, or with an image that
does not fit into it, is answered with memory of its own. An image that cannot be read is left to the parent.

Memory of batches, used again once nobody else holds it.

The first touch of fresh memory costs up to a tenth of decoding, so it is worth asking for it once. Tensors
and views of a batch hold a reference to its array, so the count of references tells when it is free.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import mmap
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError

MAX_MESSAGE = 192 * 1024  # below what a socket takes at once; a few paths need a hundredth
READY = b"ready"
_LOOK_AROUND_S = 5.0

Pixels: TypeAlias = NDArray[np.uint8]
"""H×W×3, or several such images."""


def unpack(image: Image.Image, out: Pixels) -> Pixels:
    """The pixels of an image, written into `out`, H×W×3.

    Saving as PPM streams them there in small pieces, while converting to an array copies them twice more,
    which two decoding threads would notice.
    """
    if type(image) is Image.Image:  # ours alone, as resized: saving briefly marks an image
        file = _Stream(out)
        image.save(file, "PPM")  # type: ignore[arg-type]
        if file.position == out.size:
            return out
    out[...] = np.asarray(image)
    return out


class _Stream:
    """A file to Pillow that keeps the pixels of a PPM and drops its header."""

    def __init__(self, out: Pixels) -> None:
        self.memory = out.data.cast("B")
        self.position = -len(f"P6\n{out.shape[1]} {out.shape[0]}\n255\n")

    def write(self, data: bytes) -> int:
        if self.position >= 0:
            self.memory[self.position : self.position + len(data)] = data
        self.position += len(data)
        return len(data)


class Pass(NamedTuple):
    """What is to be done with all images of a pass."""

    preprocessing: Preprocessing
    unresized: tuple[int, int] | None = None
    """Images that are decoded to this (height, width) stay as they are."""

    @property
    def size(self) -> tuple[int, int] | None:
        """What images have in the memory of batches; None if it may be anything."""
        return self.unresized or self.preprocessing.fixed_size

    def to_dict(self) -> dict[str, Any]:
        return {"preprocessing": self.preprocessing.to_dict(), "unresized": self.unresized}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Pass:
        left = values["unresized"]
        return cls(Preprocessing.from_dict(values["preprocessing"]), left and (left[0], left[1]))


class Task(NamedTuple):
    """A few images to decode."""

    paths: list[str]
    place: int | None
    """Where in the batches' memory the first one goes; None: into memory of the answer."""


Answer = list[tuple[int, int] | None]
"""(height, width) of each image; None where it could not be read."""


def send(link: socket.socket, message: Any, memory: Sequence[int] = ()) -> None:
    """One packet; `memory`: file descriptors to go with it."""
    socket.send_fds(link, [json.dumps(message).encode()], memory)


def receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """A packet and the memory that came with it; no bytes once the other side has ended."""
    try:
        data, memory, _, _ = socket.recv_fds(link, MAX_MESSAGE, 1)
    except ConnectionError:
        return b"", []
    return data, memory


def main(link_number: int, parent: int) -> None:
    """Serve the process `parent` over this socket."""
    link = socket.socket(fileno=link_number)
    link.settimeout(_LOOK_AROUND_S)
    decoder = None
    try:
        link.send(READY)
        while True:
            try:
                data, memory = receive(link)
            except TimeoutError:
                # Another child of the parent may hold its end of the socket after it is gone.
                if os.getppid() != parent:
                    return
                continue
            if not data:
                return
            message = json.loads(data)
            if isinstance(message, dict):
                decoder = _Decoder(Pass.from_dict(message), memory)
            elif decoder is not None:
                decoder.answer(link, Task(*message))
    except BrokenPipeError:  # nobody waits for it any more
        return


class _Decoder:
    def __init__(self, wanted: Pass, memory: list[int]) -> None:
        self.wanted = wanted
        self.batches = mapped(memory[0]) if memory else None
        for descriptor in memory:
            os.close(descriptor)

    def answer(self, link: socket.socket, task: Task) -> None:
        images = [self._image(path) for path in task.paths]
        answer: Answer = [None if image is None else (image.height, image.width) for image in images]
        size = self.wanted.size
        fits = size is not None and all(one in (None, size) for one in answer)
        if task.place is None or self.batches is None or not fits:
            self._into_own(link, images, answer)
            return
        assert size is not None
        for i, image in enumerate(images):
            if image is not None:
                unpack(image, pixels_at(self.batches, task.place + i * size[0] * size[1] * 3, size))
        send(link, answer)

    def _into_own(self, link: socket.socket, images: list[Image.Image | None], answer: Answer) -> None:
        places, total = layout(answer)
        if not total:
            send(link, answer)
            return
        memory = shared_memory(total)
        try:
            own = mapped(memory)
            for image, place in zip(images, places, strict=True):
                if image is not None:
                    unpack(image, pixels_at(own, place, (image.height, image.width)))
            send(link, answer, [memory])
        finally:
            os.close(memory)

    def _image(self, path: str) -> Image.Image | None:
        try:
            return self.wanted.preprocessing.image(path, self.wanted.unresized)
        except Exception:
            # The parent tries it again: its Pillow may know more, and the error is then its own.
            return None


def shared_memory(size: int) -> int:
    """A file descriptor of memory without a name: it is gone with the last process that holds it."""
    memory = os.memfd_create("kappaplace")
    os.ftruncate(memory, size)
    return memory


def mapped(memory: int) -> mmap.mmap:
    return mmap.mmap(memory, 0)


def pixels_at(memory: mmap.mmap, place: int, size: tuple[int, ...]) -> Pixels:
    """The images of this size (…×H×W) that lie there."""
    return np.ndarray((*size, 3), np.uint8, memory, place)


def layout(answer: Answer) -> tuple[list[int], int]:
    """Where each image of an answer lies in its own memory, and how much there is."""
    places, total = [], 0
    for size in answer:
        places.append(total)
        total += 0 if size is None else size[0] * size[1] * 3
    return places, total


class Spares:
    """Arrays of earlier batches; more than `most` are not kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.buffers: list[Pixels] = []

    def take(self, shape: tuple[int, ...]) -> Pixels:
        for i, buffer_shape in enumerate([buffer.shape for buffer in self.buffers]):
            if buffer_shape == shape and _holders(self.buffers, i) == _ALONE:
                return self.buffers[i]
        fresh = np.empty(shape, np.uint8)
        if len(self.buffers) < self.most:
            self.buffers.append(fresh)
        return fresh


class SharedBatches:
    """A fixed number of batches in memory that other processes can join, too, by its `descriptor`.

    A batch that is held keeps the memory, also after `close`. What is never written to takes none.
    """

    def __init__(self, most: int, shape: tuple[int, ...]) -> None:
        self.stride = -(-max(1, math.prod(shape)) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = shared_memory(most * self.stride)
        try:
            self._memory = mapped(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._batches = [np.empty(0, np.uint8) for _ in range(most)]

    def take(self, shape: tuple[int, ...]) -> tuple[Pixels, int] | None:
        """N×H×W×3 and its place in the memory; None while all batches are held."""
        for i in range(len(self._batches)):
            if _holders(self._batches, i) == _ALONE:
                self._batches[i] = pixels_at(self._memory, i * self.stride, shape[:-1])
                return self._batches[i], i * self.stride
        return None

    def close(self) -> None:
        """No process can join any more."""
        os.close(self.descriptor)


def _holders(batches: list[Pixels], i: int) -> int:
    return sys.getrefcount(batches[i])


# What the count is for an array in the list alone: measured, for it differs between Python versions.
_ALONE = _holders([np.empty(0, np.uint8)], 0)


log = logging.getLogger(__name__)

# The parent's own search path, so it finds the same packages; no module of the parent's is imported by name.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from kappaplace.data.decode_pool import main; main(int(sys.argv[1]), int(sys.argv[2]))"
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


Result: TypeAlias = "Pixels | KappaPlaceError"
Results: TypeAlias = "Sequence[Result | None]"


class Crew(Protocol):
    """Some workers that decode; a result of None is left to whoever asked."""

    count: int

    def room(self, shape: tuple[int, ...]) -> tuple[Pixels | None, int | None]:
        """Memory for a batch and its place, as the crew numbers it."""

    def submit(self, rows: list[int], out: Pixels | None, place: int | None) -> Future[Results]: ...

    def close(self, keep: bool = False) -> None:
        """The pass is over; `keep`: all of its work is done, so another may use who did it."""


class Threads:
    """Threads of this process, or none at all: work is then done when it is handed over."""

    def __init__(
        self, count: int, spares: Spares, load: Callable[[list[int], Pixels | None], list[Result]]
    ) -> None:
        self.count = count
        self.spares = spares
        self.load = load
        self.pool = ThreadPoolExecutor(count or 1, thread_name_prefix="decode")

    def room(self, shape: tuple[int, ...]) -> tuple[Pixels | None, int | None]:
        return self.spares.take(shape), None

    def submit(self, rows: list[int], out: Pixels | None, place: int | None) -> Future[Results]:
        if self.count:
            return self.pool.submit(self.load, rows, out)
        done: Future[Results] = Future()
        done.set_result(self.load(rows, out))
        return done

    def close(self, keep: bool = False) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


class Processes:
    """Processes, which are told paths."""

    def __init__(self, count: int, started: DecodeProcesses, paths: Sequence[Source]) -> None:
        self.count = count
        self.room = started.room
        self.close = started.close
        self.started = started
        self.paths = paths

    def submit(self, rows: list[int], out: Pixels | None, place: int | None) -> Future[Results]:
        paths = [os.fspath(self.paths[row]) for row in rows]  # type: ignore[arg-type]
        return self.started.submit(paths, out, place)  # type: ignore[return-value]
