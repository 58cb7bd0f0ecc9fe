"""Embed the images of a map on this machine, with a function of the caller, or on a Ray cluster.

The model is sent to a cluster once, and images are sent as bytes in blocks. Workers store nothing: only the
process that builds the map writes, in the order of the images. If a worker dies, Ray sends its block to
another worker, so nothing is lost or duplicated.
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
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import torch

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import embed_images
from kappaplace.models.fast import for_many
from kappaplace.types import Embeddings, Json
from kappaplace.version import package_version

if TYPE_CHECKING:
    from ray import ObjectRef

log = logging.getLogger(__name__)
AUTO = "auto"
RETRIES = 4
"""Number of times that a block is sent to another worker before an error is raised."""
BLOCKS_PER_WORKER = 2
"""Blocks per worker: one in progress and one waiting, so that no worker is idle."""
CONNECT_SECONDS = 5.0
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


Embedder: TypeAlias = Callable[[Sequence[str]], Embeddings]
"""Function from image files to embeddings."""
Started: TypeAlias = Callable[[], Embeddings]
"""Pending embeddings: a call waits for them."""
Starter: TypeAlias = "LocalEmbedder | RayEmbedder"
"""Embedder of blocks: ``begin(paths)`` starts a block, ``ahead`` is how many to start before waiting."""


class Settings(TypedDict):
    """Options of a worker; see `embed_images`."""

    batch_size: int
    device: str | None
    patches: bool


class LocalEmbedder:
    """Embedder of one block after the other, in this process."""

    ahead = 0

    def __init__(self, embed: Embedder) -> None:
        self.embed = embed

    def begin(self, paths: Sequence[str]) -> Started:
        return partial(self.embed, paths)


class RayEmbedder:
    """Embedder of blocks on the workers of a cluster; a context manager that disconnects at the end.

    Workers need the same version of kappaplace, but no access to the images.

    Args:
        model: The model.
        preprocessing: Preprocessing of the images.
        address: auto (a running cluster, otherwise a new one on this machine), HOST:PORT, or ray://HOST:PORT
            for Ray's client.
        batch_size: Number of images to embed at once on a worker.
        device: cpu (one CPU per worker) or cuda (one GPU per worker). Default: cpu.
        patches: Also compute the feature maps for patch matching.
    """

    def __init__(
        self,
        model: AnyModel,
        preprocessing: Preprocessing,
        address: str = AUTO,
        *,
        batch_size: int = 32,
        device: str | None = None,
        patches: bool = False,
    ) -> None:
        if device not in (None, "cpu", "cuda"):
            raise KappaPlaceError(f"On a Ray cluster, device must be cpu or cuda, got {device!r}.")
        self.preprocessing, self.resource = preprocessing, "GPU" if device == "cuda" else "CPU"
        self._ray = _imported()
        packed = _packed(model)  # may fail, so do it before connecting
        self._connected = _connect(self._ray, address)
        try:
            if self.workers < 1:
                raise KappaPlaceError(
                    f"The Ray cluster has no {self.resource}. Add a node that has one, or choose another "
                    "--device."
                )
            needs = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
            # In a tuple: otherwise, Ray would unpack all weights for every block.
            sent = (self._ray.put(packed),)
            task = self._ray.remote(**needs, max_retries=RETRIES)(embed_block)
            settings = Settings(batch_size=batch_size, device=device, patches=patches)
            self._task = partial(task.remote, package_version(), sent, preprocessing.to_dict(), settings)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """Number of blocks that can be embedded at once; it changes if the cluster grows or shrinks."""
        return int(self._ray.cluster_resources().get(self.resource, 0))

    @property
    def ahead(self) -> int:
        return max(BLOCKS_PER_WORKER * self.workers - 1, 0)

    def begin(self, paths: Sequence[str]) -> Started:
        """Send a block of image files."""
        return partial(self._wait, self._task([_content(path) for path in paths]), paths)

    def _wait(self, block: ObjectRef, paths: Sequence[str]) -> Embeddings:
        errors = self._ray.exceptions
        try:
            result = self._ray.get(block)
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
            raise KappaPlaceError(
                f"Ray workers died {RETRIES + 1} times while embedding the {len(paths)} images from "
                f"{paths[0]}. Check the memory of the workers and these images, then run the command again "
                "to resume."
            ) from None
        except (errors.RayError, ConnectionError) as error:
            raise KappaPlaceError(
                f"The Ray cluster could not embed the images ({_last_line(error)}). Check that its workers "
                "have this version of kappaplace and Python, then run the command again to resume."
            ) from None
        if isinstance(result, str):
            for path in paths:  # raises an error with the file name, which the worker does not have
                self.preprocessing.image(path)
            raise KappaPlaceError(result)
        # Copied, because the memory of the cluster is released when this process disconnects.
        return Embeddings(*(None if values is None else values.copy() for values in result))

    def close(self) -> None:
        """Disconnect from the cluster; stop it if this process started it."""
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
    patches: bool = False,
) -> Iterator[Starter]:
    """Choose how images are embedded: by a cluster, by a function, or by this process.

    Args:
        model: The model.
        preprocessing: Preprocessing of the images.
        batch_size: Number of images to embed at once.
        device: Device of the model. None: do not move it.
        images: Number of images; for many images, the model is optimized first.
        embedder: Function that embeds image files.
        ray: Address of a Ray cluster. Default: none.
        patches: Also compute the feature maps for patch matching.

    Yields:
        An object that embeds blocks of images.
    """
    settings = Settings(batch_size=batch_size, device=device, patches=patches)
    if ray:
        with RayEmbedder(model, preprocessing, ray, **settings) as cluster:
            yield cluster
        return
    if embedder is None:
        fast = for_many(model, device, images)
        embedder = partial(embed_images, fast, preprocessing, **settings, progress=False)
    yield LocalEmbedder(embedder)


def embed_block(
    version: str,
    model: tuple[ObjectRef],
    preprocessing: dict[str, Json],
    settings: Settings,
    images: list[bytes],
) -> Embeddings | str:
    """Embed images on a worker.

    Args:
        version: Version of kappaplace of the sender.
        model: Reference to the packed model.
        preprocessing: Preprocessing of the images, as `Preprocessing.to_dict` returns it.
        settings: Options of the worker.
        images: Content of the image files.

    Returns:
        The embeddings, or an error message.
    """
    if version != package_version():
        return (
            f"The Ray workers have kappaplace {package_version()}, but this machine has {version}. Install "
            "the same version on both."
        )
    try:
        ready = _unpacked(model[0])
        return embed_images(ready, Preprocessing.from_dict(preprocessing), images, **settings, progress=False)
    except KappaPlaceError as error:
        return str(error)


@lru_cache(maxsize=1)
def _unpacked(model: ObjectRef) -> torch.nn.Module:
    """Unpack the model for the first block of this worker."""
    # It is as trusted as the process that sends the work.
    return torch.load(io.BytesIO(_imported().get(model)), map_location="cpu", weights_only=False)


def _packed(model: AnyModel) -> bytes:
    from ray import cloudpickle  # also supports encoders that are defined in a notebook

    stream = io.BytesIO()
    try:
        torch.save(model, stream, pickle_module=cloudpickle)
    except Exception as error:  # the user's own encoder may contain anything
        raise KappaPlaceError(
            f"The model cannot be sent to Ray workers ({_last_line(error)}). Embed on this machine instead."
        ) from None
    return stream.getvalue()


def _content(path: str) -> bytes:
    """Read a file; return nothing if that fails, which the worker reports as a broken image."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _connect(ray: ModuleType, address: str) -> bool:
    """Connect to a cluster; return False if this process is already connected and must stay connected."""
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
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    ray.init(include_dashboard=False, **QUIET)
    workers = int(ray.cluster_resources().get("CPU", 0))
    log.warning("No Ray cluster is running. Started one with %d workers on this machine.", workers)
    return True


def _check_reachable(address: str) -> None:
    """Check the address: Ray itself would wait for minutes and then exit the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _unusable(address, error) from None


def _unusable(address: str, error: Exception) -> KappaPlaceError:
    return KappaPlaceError(
        f"The Ray cluster at {address} cannot be reached ({_last_line(error)}). Pass auto, HOST:PORT or "
        "ray://HOST:PORT of a running cluster, and its token in RAY_AUTH_TOKEN if it requires one."
    )


def _last_line(error: Exception) -> str:
    """Return the message of an error without the traceback of another machine."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")[:200]


def _imported() -> ModuleType:
    return import_extra("ray", "Embedding on a cluster", "ray")
