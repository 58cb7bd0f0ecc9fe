"""Who embeds the images of a map: this machine, a function of the caller's, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias

from kappaplace.data.images import Preprocessing
from kappaplace.models.embedding import embed_images
from kappaplace.models.loading import AnyModel
from kappaplace.models.optimize import for_many
from kappaplace.types import Embeddings

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
        from kappaplace.maps.ray_embedder import RayEmbedder

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
