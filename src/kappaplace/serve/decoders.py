"""Processes that decode uploads: an image that occupies a decoder for too long ends with its process.

Each process decodes one image at a time, has limits of processor time, memory and time, and writes no file.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from PIL import Image

from kappaplace.data import Preprocessing, default_workers
from kappaplace.serve.decode_worker import Ended, Reply, Request, receive, send
from kappaplace.serve.problems import ApiError, busy
from kappaplace.serve.settings import Settings

CPU_SECONDS = 10
"""Maximum processor time per image in seconds. The largest photo of a phone takes about one second."""
MOST_SCANS = 64
"""Largest number of scans of a progressive JPEG. Encoders write about ten; each can cost as much as an
image."""
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from kappaplace.serve.decode_worker import main; main(int(sys.argv[1]))"
)


class Decoded(NamedTuple):
    """A decoded upload."""

    image: Image.Image
    format: str
    """Name of its format in Pillow."""


class Decoders:
    """Pool of decoding processes, which start when they are first needed, with one waiting thread for
    each."""

    def __init__(self, settings: Settings, count: int | None = None) -> None:
        """Prepare the processes.

        Args:
            settings: Limits of the service.
            count: Number of processes. Default: one per core, as for decoding files.
        """
        self.settings = settings
        self._threads = ThreadPoolExecutor(count or default_workers(), thread_name_prefix="decode")
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    def submit(self, data: bytes, preprocessing: Preprocessing) -> Future[Decoded]:
        """Decode an upload as soon as a process is free; the time limit includes the wait."""
        end = time.monotonic() + self.settings.timeout
        return self._threads.submit(self.decode, data, preprocessing, end)

    def decode(self, data: bytes, preprocessing: Preprocessing, end: float | None = None) -> Decoded:
        """Decode and preprocess an upload like a file.

        Args:
            data: The encoded image.
            preprocessing: Preprocessing of the model.
            end: Time of `time.monotonic` at which the process is ended. Default: after the time limit.

        Returns:
            The image at the size of the model.

        Raises:
            ApiError: If the image cannot be read, is too large, or takes too long.
        """
        end = time.monotonic() + self.settings.timeout if end is None else end
        limits = self.settings.max_pixels, list(self.settings.formats), MOST_SCANS, CPU_SECONDS
        request = Request(preprocessing.to_dict(), *limits)
        worker = self._take()
        try:
            reply, pixels = worker.ask(request, data, end)
        except TimeoutError:
            worker.end()
            raise busy("The image was not decoded in time. Try again later.", 503) from None
        except (Ended, OSError):
            raise self._failure(worker.end()) from None
        finally:
            self._give_back(worker)
        if reply.error:
            raise ApiError(422, reply.error, code="invalid_image")
        return Decoded(Image.frombytes("RGB", (reply.size[0], reply.size[1]), pixels), reply.format)

    def _failure(self, status: int) -> ApiError:
        if self._closed:
            return busy("The service is shutting down.", 503)
        if status == -signal.SIGXCPU:
            message = f"The image takes more than {CPU_SECONDS} seconds to decode. Send a smaller one."
        else:
            message = "The image cannot be decoded. Save it again with another program."
        return ApiError(422, message, code="invalid_image")

    def _take(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise busy("The service is shutting down.", 503)
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            if worker.process.poll() is None and not self._closed:
                self._idle.append(worker)
                return
        worker.end()

    def close(self) -> None:
        """End all processes, including those that are decoding."""
        with self._lock:
            self._closed = True
            workers = [*self._idle, *self._busy]
            self._idle.clear()
        for worker in workers:
            worker.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in workers:
            worker.end()


class _Worker:
    """One process, and the socket to it."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(number), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
                start_new_session=True,  # Ctrl-C in a terminal is for the service, which ends its processes
            )

    def ask(self, request: Request, data: bytes, end: float) -> tuple[Reply, bytes]:
        """Send an upload and return the answer; raises `TimeoutError` at `end`."""
        send(self.link, request, data, end)
        header, pixels = receive(self.link, end)
        return Reply(*json.loads(header)), pixels

    def end(self) -> int:
        """End the process and return its exit status, negative for a signal."""
        self.link.close()
        if self.process.poll() is None:
            try:  # one that was ended by its limits has closed the socket first
                return self.process.wait(0.2)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()
