"""Who embeds the images of a map: this machine, a function of the caller's, or a Ray cluster.

To a cluster the model travels once, images as bytes, a block of them at a time. Workers hold nothing that
matters: the process that builds the map is the only one that writes, in the order of the images. A worker may
die at any moment; Ray gives its block to another, so nothing is lost or doubled.
"""

from __future__ import annotations

import io
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import embed_images
from kappaplace.models.fast import for_many
from kappaplace.types import Embeddings
from kappaplace.version import package_version

log = logging.getLogger(__name__)
AUTO = "auto"
RETRIES = 4
"""How often a block is given to another worker before an image that kills workers must be suspected."""
BLOCKS_A_WORKER = 2
"""One in hand, one waiting: nobody stands still, and the images under way stay few."""
CONNECT_SECONDS = 5.0
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


Embedder: TypeAlias = Callable[[Sequence[str]], Embeddings]
"""Image files → embeddings."""
Started: TypeAlias = Callable[[], Embeddings]
"""Embeddings under way: calling it waits for them."""


class Starter(Protocol):
    """Starts the embedding of a block of images and does not wait for it."""

    @property
    def ahead(self) -> int:
        """How many blocks shall be under way beside the one waited for."""
        ...

    def begin(self, paths: Sequence[str]) -> Started: ...


class Here:
    """One block after the other, in this process."""

    ahead = 0

    def __init__(self, embed: Embedder) -> None:
        self.embed = embed

    def begin(self, paths: Sequence[str]) -> Started:
        return partial(self.embed, paths)


class RayEmbedder:
    """Blocks of images to the workers of a cluster; use it in a ``with``, which leaves the cluster again.

    ``address`` is ``auto`` (a cluster that runs, else one is started on this machine), HOST:PORT, or
    ray://HOST:PORT through Ray's client. A worker is one CPU, or one GPU with ``device="cuda"``; it needs the
    same kappaplace installed, and no access to the images.
    """

    def __init__(
        self,
        model: AnyModel,
        preprocessing: Preprocessing,
        address: str = AUTO,
        *,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        if device not in (None, "cpu", "cuda"):
            raise KappaPlaceError(
                f"On a Ray cluster the device is cpu or cuda, one a worker, not {device!r}."
            )
        self.preprocessing, self.resource = preprocessing, "GPU" if device == "cuda" else "CPU"
        self._ray = _imported()
        packed = _packed(model)  # before any cluster is bothered
        self._connected = _connect(self._ray, address)
        try:
            if self.workers < 1:
                raise KappaPlaceError(
                    f"The Ray cluster has no {self.resource} to embed with; add a node that has one, or "
                    "choose another --device."
                )
            needs = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
            # Handed on inside a tuple, or Ray would unpack all weights for every single block.
            sent = (self._ray.put(packed),)
            task = self._ray.remote(**needs, max_retries=RETRIES)(embed_block)
            settings = {"batch_size": batch_size, "device": device}
            self._task = partial(task.remote, package_version(), sent, preprocessing.to_dict(), settings)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """Blocks that can be embedded at once, now: a cluster may grow and shrink."""
        return int(self._ray.cluster_resources().get(self.resource, 0))

    @property
    def ahead(self) -> int:
        return max(BLOCKS_A_WORKER * self.workers - 1, 0)

    def begin(self, paths: Sequence[str]) -> Started:
        """Send a block; what is returned waits for its embeddings."""
        return partial(self._wait, self._task([_content(path) for path in paths]), paths)

    def _wait(self, block: Any, paths: Sequence[str]) -> Embeddings:
        errors = self._ray.exceptions
        try:
            made = self._ray.get(block)
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
            raise KappaPlaceError(
                f"Ray workers died {RETRIES + 1} times while they embedded the {len(paths)} images from "
                f"{paths[0]} on; look at the memory of the workers and at these images. What was embedded "
                "is kept: the same command goes on."
            ) from None
        except (errors.RayError, ConnectionError) as error:
            raise KappaPlaceError(
                f"The Ray cluster could not embed the images ({_last_line(error)}); its workers need the "
                "same kappaplace and Python as here. What was embedded is kept: the same command goes on."
            ) from None
        if isinstance(made, str):
            for path in paths:  # names the file, which the worker does not know
                self.preprocessing.image(path)
            raise KappaPlaceError(made)
        # Copied, for what Ray returns is memory of the cluster, gone when we leave it.
        return Embeddings(*(None if values is None else values.copy() for values in made))

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def __enter__(self) -> RayEmbedder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def starter(
    model: AnyModel,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    device: str | None,
    images: int = 0,
    embedder: Embedder | None = None,
    ray: str = "",
) -> Iterator[Starter]:
    """What embeds so many images with these options; a cluster is left again at the end."""
    if ray:
        with RayEmbedder(model, preprocessing, ray, batch_size=batch_size, device=device) as cluster:
            yield cluster
        return
    if embedder is not None:
        yield Here(embedder)
        return
    ready = for_many(model, device, images)

    def embed(paths: Sequence[str]) -> Embeddings:
        return embed_images(ready, preprocessing, paths, batch_size=batch_size, device=device, progress=False)

    yield Here(embed)


def embed_block(
    version: str,
    model: tuple[Any],
    preprocessing: dict[str, Any],
    settings: dict[str, Any],
    images: list[bytes],
) -> Embeddings | str:
    """Runs on a worker: the embeddings of some images, or the sentence why there are none."""
    if version != package_version():
        return (
            f"The Ray workers have kappaplace {package_version()}, here it is {version}; install the "
            "same on both sides."
        )
    try:
        ready = _unpacked(model[0])
        return embed_images(ready, Preprocessing.from_dict(preprocessing), images, **settings, progress=False)
    except KappaPlaceError as error:
        return str(error)


@lru_cache(maxsize=1)
def _unpacked(model: Any) -> torch.nn.Module:
    """The model of this worker, unpacked for its first block."""
    # It comes from the process that sends the work itself, so it is trusted as that is.
    return torch.load(io.BytesIO(_imported().get(model)), map_location="cpu", weights_only=False)


def _packed(model: AnyModel) -> bytes:
    from ray import cloudpickle  # also takes encoders that were defined in a notebook

    stream = io.BytesIO()
    try:
        torch.save(model, stream, pickle_module=cloudpickle)
    except Exception as error:  # whatever an encoder of the user's holds
        raise KappaPlaceError(f"The model cannot be sent to Ray workers ({_last_line(error)}).") from None
    return stream.getvalue()


def _content(path: str) -> bytes:
    """The bytes of a file; none where it cannot be read, which the worker refuses as any other bad image."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _connect(ray: Any, address: str) -> bool:
    """Join a cluster; False where this process had joined one already, which is then used and not left."""
    if address == AUTO and ray.is_initialized():
        return False
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS", AUTO)
    if address != AUTO:
        _check_reachable(address)
    try:
        ray.init(address=address, **QUIET)
        return True
    except ConnectionError as error:
        if address != AUTO:
            raise _unusable(address, error) from None
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        raise _unusable(address, error) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anyone
    ray.init(include_dashboard=False, **QUIET)
    workers = int(ray.cluster_resources().get("CPU", 0))
    log.warning("No Ray cluster is running: one of %d workers was started on this machine.", workers)
    return True


def _check_reachable(address: str) -> None:
    """Ray itself would wait for minutes, and then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _unusable(address, error) from None


def _unusable(address: str, error: Exception) -> KappaPlaceError:
    return KappaPlaceError(
        f"The Ray cluster at {address} cannot be reached ({_last_line(error)}); give auto, HOST:PORT or "
        "ray://HOST:PORT of one that runs, and its token in RAY_AUTH_TOKEN where it asks for one."
    )


def _last_line(error: Exception) -> str:
    """What went wrong, without the traceback of another machine."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")[:200]


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("Embedding on a cluster", "ray") from None
    return ray
