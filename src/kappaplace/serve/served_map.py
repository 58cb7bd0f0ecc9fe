"""One map that is served: queries in batches, appended images, and a fresh look when it has changed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import Depends, Query, Request
from PIL import Image

from kappaplace.calibration import Calibration
from kappaplace.data import PlaceImages, Preprocessing, open_image
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.maps import (
    MANIFEST,
    AddOptions,
    Decided,
    Localization,
    LocalizeOptions,
    PlaceMap,
    Report,
    add_images,
    decided,
    preprocessing_of,
)
from kappaplace.models import embed_images
from kappaplace.serve.batching import Batcher
from kappaplace.serve.protect import ApiError, busy
from kappaplace.serve.schemas import ErrorOut, Options, Placed
from kappaplace.serve.settings import Settings
from kappaplace.serve.uploads import prepared
from kappaplace.types import Embeddings

log = logging.getLogger("kappaplace.serve")

LOOK_SECONDS = 1.0
"""How often to look whether somebody else has changed the map."""
_WRITING = "is being written by"
"""What `kappaplace.files` says of a map that another process holds."""
_SUFFIX = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "HEIF": ".heic"}


@dataclass(frozen=True, eq=False)
class Asking:
    """One image on its way; without options it shall only be embedded."""

    image: Image.Image
    options: Options | None


class Found(NamedTuple):
    """An answer and the version of the map that gave it."""

    decided: Decided
    version: int


class ServedMap:
    """A map, its thread and its queue."""

    def __init__(
        self,
        name: str,
        place_map: PlaceMap,
        settings: Settings,
        decoders: ThreadPoolExecutor,
        seen: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.name, self.map, self.settings, self._decoders = name, place_map, settings, decoders
        self.batcher: Batcher[Asking, Any] = Batcher(
            self._work,
            batch_size=settings.batch_size,
            window=settings.window,
            room=settings.queue,
            seen=seen,
        )
        self.ready, self.failure = False, ""
        # One append after the other, and not among the decoders: queries need those meanwhile.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="append")
        self._stamp = self._changed_at()
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work; needs a running event loop."""
        self.batcher.start()
        self._watch = asyncio.get_running_loop().create_task(self._watching())

    async def close(self) -> None:
        """Finish what was taken, then stop."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await self.batcher.close()
        self._writer.shutdown(wait=True)

    def warm(self) -> None:
        """Load the model and open the search, so that the first client does not wait for it."""
        if len(self.map):
            blank = Image.new("RGB", (64, 64), (128, 128, 128))
            self.map.localize_embeddings(self.map.embed([blank]), ["warm-up"], LocalizeOptions(k=1))
        else:
            assert self.map.model is not None
        self.ready = True

    async def localize(self, images: Sequence[bytes], options: Options) -> list[Found]:
        """Where images were taken."""
        return await self._ask(images, options)

    async def embed(self, images: Sequence[bytes]) -> Embeddings:
        """Descriptors and κ of images."""
        made = await self._ask(images, None)
        kappa = None if made[0].kappa is None else np.stack([one.kappa for one in made])
        return Embeddings(np.stack([one.descriptor for one in made]), kappa)

    async def _ask(self, images: Sequence[bytes], options: Options | None) -> list[Any]:
        loop, batcher = asyncio.get_running_loop(), self.batcher
        with batcher.admit(len(images)):
            try:
                return await asyncio.wait_for(self._answers(images, options, loop), self.settings.timeout)
            except asyncio.TimeoutError:
                raise busy("The service did not answer in time; try again later.", 503) from None

    async def _answers(
        self, images: Sequence[bytes], options: Options | None, loop: asyncio.AbstractEventLoop
    ) -> list[Any]:
        preprocessing = preprocessing_of(self.map.manifest.model)
        with self.batcher.arrival(len(images)):
            made = await asyncio.gather(
                *(
                    loop.run_in_executor(self._decoders, prepared, data, preprocessing, self.settings)
                    for data in images
                ),
                return_exceptions=True,
            )
            for number, one in enumerate(made):
                if isinstance(one, KappaPlaceError) and len(made) > 1:
                    raise KappaPlaceError(f"Image {number}: {one}")
                if isinstance(one, BaseException):
                    raise one
            jobs = [Asking(one, options) for one in made if isinstance(one, Image.Image)]
            futures = self.batcher.enqueue(jobs)
        return await self.batcher.answers(futures)

    def _work(self, queries: list[Asking]) -> list[Any]:
        """In the map's own thread."""
        start = time.perf_counter()
        made = self._embedded([query.image for query in queries])
        seconds = {"embed": (time.perf_counter() - start) / len(queries)}
        answers: list[Any] = [None] * len(queries)
        groups: dict[LocalizeOptions, list[int]] = {}
        for row, query in enumerate(queries):
            if query.options is None:
                answers[row] = made.take(row)
            else:
                groups.setdefault(query.options.asked(), []).append(row)
        for asked, rows in groups.items():
            names = ["query"] * len(rows)
            images = [queries[row].image for row in rows]  # for maps that compare matches cell by cell
            found = self.map.localize_embeddings(
                made.take(rows), names, asked, images=images, seconds=seconds
            )
            for row, answer in zip(rows, found, strict=True):
                options = queries[row].options
                assert options is not None
                answers[row] = self._decided(answer, options.max_risk)
        return answers

    def _embedded(self, images: list[Image.Image]) -> Embeddings:
        """The images have their size already: only the numbers are still to be normalised."""
        own = preprocessing_of(self.map.manifest.model)
        ready = replace(own, size=None, mode="none", multiple=1)
        return embed_images(
            self.map.model, ready, images, batch_size=len(images), device=self.map.device, progress=False
        )

    def _decided(self, answer: Localization, max_risk: float | None) -> Found:
        judge = self.calibration if answer.calibration else None
        return Found(decided(answer, judge, self.map.manifest.radius, max_risk), self.map.manifest.version)

    @property
    def calibration(self) -> Calibration | None:
        """The map's own, or the one that came with the model."""
        return self.map.calibration or self.map.borrowed

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared for the map."""
        return preprocessing_of(self.map.manifest.model)

    async def _watching(self) -> None:
        """Whoever only looks at the map shall see what is new, too, so it does not wait for a query."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await loop.run_in_executor(self.batcher.pool, self.look)

    def look(self) -> None:
        """See what was appended here or by others; in the map's own thread only."""
        stamp = self._changed_at()
        if stamp == self._stamp:
            return
        try:
            if self.map.refresh():
                log.info("The map %s is now at version %d", self.name, self.map.manifest.version)
            self._stamp = stamp
        except Exception as error:  # half copied, or gone: what was read before still answers
            log.warning("The map %s cannot be read anew: %s", self.name, error)

    def _changed_at(self) -> tuple[int, int, int]:
        try:
            found = (self.map.folder / MANIFEST).stat()
        except OSError:
            return (0, 0, 0)
        return found.st_mtime_ns, found.st_size, found.st_ino  # clocks tick in milliseconds

    async def append(self, data: bytes, placed: Placed) -> tuple[str, bool]:
        """Put an image into the map; its name there, and whether it is new."""
        loop = asyncio.get_running_loop()
        with self.batcher.admit(1):
            writing = loop.run_in_executor(self._writer, self._append, data, placed)
            try:
                made = await asyncio.wait_for(writing, self.settings.timeout)
                await loop.run_in_executor(self.batcher.pool, self.look)
            except asyncio.TimeoutError:
                sentence = "The image was not appended in time; send it again, which never makes it two."
                raise busy(sentence, 503) from None
        return made

    def _append(self, data: bytes, placed: Placed) -> tuple[str, bool]:
        """The file is named by its content, so nothing in the request decides where it lies."""
        prepared(data, self.preprocessing, self.settings)  # refused before anything is written
        if (placed.x is None) != (placed.y is None):
            raise KappaPlaceError("A position needs both x and y.")
        name = hashlib.sha256(data).hexdigest()[:32] + _suffix(data, self.settings)
        file = make_folder(images_folder(self.map.folder)) / name
        known = file.is_file()
        if not known:
            replace_file(file, lambda part: part.write_bytes(data))
        try:
            report = self._add(file, placed)
        except BaseException as error:
            if not known:  # what is not in the map need not be kept
                file.unlink(missing_ok=True)
            if _WRITING in str(error):  # that sentence names a process and a machine
                raise busy("Another process is changing the map; try again later.", 409) from None
            raise
        return PREFIX + name, report.added > 0

    def _add(self, file: Path, placed: Placed) -> Report:
        """A pose that was stated counts, else that of the EXIF data, if there is one."""
        images: Any = [file]
        if placed.x is not None and placed.y is not None:
            facts = {"heading": placed.heading, "timestamp": placed.time}
            given = {key: [value] for key, value in facts.items() if value is not None}
            at = [[placed.x, placed.y]]
            frame = self.map.manifest.frame
            images = PlaceImages.create([file.name], at, **given, root=file.parent, frame=frame)
        made_by = (self.map.model, self.map.manifest.model.fingerprint)
        options = AddOptions(prefix=PREFIX, on_error="stop", device=self.map.device or "")
        return add_images(self.map.folder, images, *made_by, options)


PREFIX = "appended/"
"""Before the names of images that came over HTTP."""


def images_folder(folder: Path) -> Path:
    """Where appended images are kept: beside the map, as ``town.map.images``."""
    folder = folder.absolute()
    return folder.with_name(f"{folder.name}.images")


def _suffix(data: bytes, settings: Settings) -> str:
    with open_image(data, settings.formats) as image:
        return _SUFFIX.get(image.format or "", ".jpg")


_SAID = {
    400: "The request cannot be read.",
    401: "A token is asked for, or it is the wrong one.",
    403: "This service does not do that.",
    404: "There is no such map, reference or query.",
    405: "This address is not asked in that way.",
    408: "The request took too long to arrive.",
    409: "Another process is changing the map.",
    413: "Too large, or too many images.",
    415: "Not a content type that is read here.",
    422: "The image or an option is not usable; the sentence says why.",
    429: "The queue is full; come back after `Retry-After` seconds.",
    503: "Not ready, or it took too long; come back after `Retry-After` seconds.",
}


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route for OpenAPI."""
    return {code: {"model": ErrorOut, "description": _SAID[code]} for code in codes}


READ = errors(401, 404, 422, 503)
ASK = errors(400, 401, 404, 408, 413, 415, 422, 429, 503)


def map_named(request: Request, name: str | None) -> ServedMap:
    """The map of this name, or the first one."""
    served: dict[str, ServedMap] = request.app.state.served
    if name is None or name == "":
        return next(iter(served.values()))
    if name not in served:
        raise ApiError(404, f"There is no map {name[:80]!r} here; there are: {', '.join(served)}.")
    return served[name]


def _asked(
    request: Request,
    map: Annotated[str | None, Query(description="Which map; the first one unless stated.")] = None,
) -> ServedMap:
    return map_named(request, map)


Asked = Annotated[ServedMap, Depends(_asked)]


def localization(found: Found, served: ServedMap) -> dict[str, Any]:
    """One answer, as `LocalizationOut` describes it."""
    decided = found.decided
    values = decided.answer.to_dict()
    for match in values["matches"]:
        del match["image"]
        match["thumbnail"] = thumbnail_address(served, match["reference"])
    return {
        "map": served.name,
        "version": found.version,
        "max_risk": decided.max_risk,
        "guaranteed": decided.guaranteed,
        **values,
    }


def thumbnail_address(served: ServedMap, reference: int) -> str:
    """Where the small picture of a reference is found."""
    from urllib.parse import quote

    return f"/v1/references/{reference}/thumbnail?map={quote(served.name, safe='')}"
