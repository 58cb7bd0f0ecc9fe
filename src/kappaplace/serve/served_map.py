"""A served map: queries in batches, appended images, and a refresh after changes by other processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from PIL import Image

from kappaplace.calibration import Calibration
from kappaplace.data import LOCAL_FRAME, PlaceImages, Preprocessing, project_point
from kappaplace.errors import KappaPlaceError, MapLocked
from kappaplace.files import make_folder, remove_debris, remove_path, replace_file
from kappaplace.maps import (
    MANIFEST,
    AddOptions,
    DecidedAnswer,
    Localization,
    LocalizeOptions,
    MapStore,
    PlaceMap,
    Report,
    add_images,
    decide_answer,
    preprocessing_of,
    read_manifest,
)
from kappaplace.models import embed_images
from kappaplace.serve.batching import Batcher
from kappaplace.serve.decoders import Decoded, Decoders
from kappaplace.serve.feedback import Feedback
from kappaplace.serve.problems import ApiError, busy
from kappaplace.serve.schemas import Options, Placed
from kappaplace.serve.sessions import Sessions
from kappaplace.serve.settings import Settings
from kappaplace.types import Embeddings, Json

log = logging.getLogger("kappaplace.serve")

SLOW = "The service did not answer in time. Try again later."
LOOK_SECONDS = 1.0
"""Seconds between checks for changes by other processes."""
_SUFFIX = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "HEIF": ".heic"}


@dataclass(frozen=True, eq=False)
class Job:
    """One decoded image; without options it is only embedded."""

    image: Image.Image
    options: Options | None


class Answer(NamedTuple):
    """The result of one job."""

    embedding: Embeddings
    decided: DecidedAnswer | None
    """The decided localization; None if the image was only embedded."""
    version: int
    """Version of the map that answered."""
    evidence: list[list[float]] | None = None
    """Patches that agree with the best match; None unless requested."""


class ServedMap:
    """A map with its thread and its queue."""

    def __init__(
        self,
        name: str,
        place_map: PlaceMap,
        settings: Settings,
        decoders: Decoders,
        report: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Prepare a map; `start` begins to process its queue.

        Args:
            name: Name of the map in the API.
            place_map: The map.
            settings: Limits of the service.
            decoders: Processes that decode images.
            report: Function that receives the size of each batch.
        """
        self.name, self.map, self.settings, self._decoders = name, place_map, settings, decoders
        self.batcher: Batcher[Job, Answer] = Batcher(
            self._work,
            batch_size=settings.batch_size,
            window=settings.window,
            room=settings.queue,
            report=report,
        )
        self.feedback = Feedback(name, settings.labels)
        self._sessions = Sessions(place_map)
        self.ready, self.failure = False, ""
        # One append at a time, and not in the decoder threads, which queries need.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="append")
        self._stamp, self._is_clean = self._changed_at(), False
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to process jobs; requires a running event loop."""
        self.batcher.start()
        self._watch = asyncio.get_running_loop().create_task(self._watching())

    async def close(self) -> None:
        """Finish pending requests, then stop."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await self.batcher.close()
        self._writer.shutdown(wait=True)

    def warm(self) -> None:
        """Load the model and the search engine, so that the first client does not wait."""
        if len(self.map):
            blank = Image.new("RGB", (64, 64), (128, 128, 128))
            self.map.localize_embeddings(self.map.embed([blank]), ["warm-up"], LocalizeOptions(k=1))
        else:
            assert self.map.model is not None
        self.ready = True

    async def localize(self, images: Sequence[bytes], options: Options) -> list[Answer]:
        """Localize encoded images, and return one answer per image."""
        return await self._enqueue(images, options)

    async def each(
        self, images: Sequence[bytes], options: Options
    ) -> AsyncIterator[tuple[int, Answer | Exception]]:
        """Localize encoded images on their own, and yield index and result in the order of completion."""

        async def one(index: int) -> tuple[int, Answer | Exception]:
            try:
                waiting = self._answers([images[index]], options)
                return index, (await asyncio.wait_for(waiting, self.settings.timeout))[0]
            except asyncio.TimeoutError:
                return index, busy(SLOW, 503)
            except Exception as error:
                return index, error

        with self.batcher.admit(len(images)):
            if options.session is not None:  # whose answers depend on the images before
                for index in range(len(images)):
                    yield await one(index)
                return
            tasks = [asyncio.create_task(one(index)) for index in range(len(images))]
            try:
                for task in asyncio.as_completed(tasks):
                    yield await task
            finally:  # the client has left
                for task in tasks:
                    task.cancel()

    async def embed(self, images: Sequence[bytes]) -> Embeddings:
        """Compute descriptors and κ of encoded images."""
        answers = await self._enqueue(images, None)
        rows = [answer.embedding for answer in answers]
        kappa = None if rows[0].kappa is None else np.stack([row.kappa for row in rows])
        return Embeddings(np.stack([row.descriptor for row in rows]), kappa)

    async def _enqueue(self, images: Sequence[bytes], options: Options | None) -> list[Answer]:
        with self.batcher.admit(len(images)):
            try:
                return await asyncio.wait_for(self._answers(images, options), self.settings.timeout)
            except asyncio.TimeoutError:
                raise busy(SLOW, 503) from None

    async def _answers(self, images: Sequence[bytes], options: Options | None) -> list[Answer]:
        preprocessing = self.preprocessing
        with self.batcher.arrival(len(images)):
            decoded = await asyncio.gather(
                *(asyncio.wrap_future(self._decoders.submit(data, preprocessing)) for data in images),
                return_exceptions=True,
            )
            for number, image in enumerate(decoded):
                if isinstance(image, ApiError) and image.status == 422 and len(decoded) > 1:
                    raise ApiError(422, f"Image {number}: {image}", code=image.code)
                if isinstance(image, BaseException):
                    raise image
            jobs = [Job(each.image, options) for each in decoded if isinstance(each, Decoded)]
            futures = self.batcher.enqueue(jobs)
        return await self.batcher.answers(futures)

    def _work(self, jobs: list[Job]) -> list[Answer]:
        """Answer a batch, in the thread of the map."""
        start = time.perf_counter()
        requests = [job.options.localize_options() for job in jobs if job.options is not None]
        patches = any(self.map.compares(options.rerank) for options in requests)
        embeddings = self._embed([job.image for job in jobs], patches)
        seconds = {"embed": (time.perf_counter() - start) / len(jobs)}
        version = self.map.manifest.version
        answers = [Answer(embeddings.take(row), None, version) for row in range(len(jobs))]
        groups: dict[LocalizeOptions, list[int]] = {}
        for row, job in enumerate(jobs):
            if job.options is not None:
                groups.setdefault(job.options.localize_options(), []).append(row)
        for options, rows in groups.items():
            names = ["query"] * len(rows)
            images = [jobs[row].image for row in rows]  # for maps with patch matching
            localizations = self.map.localize_embeddings(
                embeddings.take(rows), names, options, images=images, seconds=seconds
            )
            version = self.map.manifest.version
            for row, localization in zip(rows, localizations, strict=True):
                request = jobs[row].options
                max_risk = None if request is None else request.max_risk
                decided = self._decide(localization, max_risk)
                evidence = None
                if request is not None and request.evidence:
                    evidence = self._evidence(jobs[row].image, embeddings.take([row]), localization)
                answers[row] = Answer(embeddings.take(row), decided, version, evidence)
        return self._fused(jobs, answers)

    def _fused(self, jobs: Sequence[Job], answers: list[Answer]) -> list[Answer]:
        """Fuse the answers of sessions. States come first: a batch that fails there is repeated."""
        names = {row: job.options.session for row, job in enumerate(jobs) if job.options is not None}
        followers = {row: self._sessions.of(name) for row, name in names.items() if name is not None}
        for row, follower in followers.items():
            embedding, decided, version, evidence = answers[row]
            assert decided is not None  # every job with options is decided
            fused = follower.add(decided.answer, embedding.descriptor)
            risk = 1 - follower.rule.accept_at
            answers[row] = Answer(embedding, DecidedAnswer(fused, risk, False), version, evidence)
        return answers

    def _evidence(
        self, image: Image.Image, embeddings: Embeddings, answer: Localization
    ) -> list[list[float]] | None:
        """Return the patches that agree with the best match; None if the map or the model has no patches."""
        if not answer.matches:
            return None
        try:
            matches = self.map.match_evidence(image, answer.matches[0].reference, embeddings.patches)
        except KappaPlaceError:
            return None
        return np.column_stack([matches.query, matches.reference, matches.weights]).round(4).tolist()

    def _embed(self, images: list[Image.Image], patches: bool) -> Embeddings:
        """Embed images that already have their final size; only their values are normalized here."""
        values_only = replace(self.preprocessing, size=None, mode="none", multiple=1)
        return embed_images(
            self.map.model,
            values_only,
            images,
            batch_size=len(images),
            device=self.map.device,
            progress=False,
            patches=patches,
        )

    def _decide(self, answer: Localization, max_risk: float | None) -> DecidedAnswer:
        calibration = self.calibration if answer.calibration else None
        return decide_answer(answer, calibration, self.map.manifest.radius, max_risk)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the map, or the one shipped with its model."""
        return self.map.calibration or self.map.borrowed

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of images for the map."""
        return preprocessing_of(self.map.manifest.model)

    async def _watching(self) -> None:
        """Check for changes regularly, so that clients that only read the map see them too."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await loop.run_in_executor(self.batcher.pool, self.refresh)

    def refresh(self) -> None:
        """Read changes by this or other processes; call it only in the thread of the map."""
        stamp = self._changed_at()
        if stamp == self._stamp:
            return
        try:
            if self.map.refresh():
                log.info("The map %s is now at version %d", self.name, self.map.manifest.version)
            self._stamp = stamp
        except Exception as error:  # copied partially, or deleted: the version in memory still answers
            log.warning("The map %s cannot be re-read: %s", self.name, error)

    def _changed_at(self) -> tuple[int, int, int]:
        try:
            status = (self.map.folder / MANIFEST).stat()
        except OSError:
            return (0, 0, 0)
        return status.st_mtime_ns, status.st_size, status.st_ino  # times have steps of milliseconds

    async def append(self, data: bytes, placed: Placed) -> tuple[str, bool]:
        """Append an encoded image, and return its name in the map and whether it is new."""
        loop = asyncio.get_running_loop()
        with self.batcher.admit(1):
            writing = loop.run_in_executor(self._writer, self._append, data, placed)
            try:
                result = await asyncio.wait_for(writing, self.settings.timeout)
                await loop.run_in_executor(self.batcher.pool, self.refresh)
            except asyncio.TimeoutError:
                message = "The image was not appended in time. Send it again; it is never added twice."
                raise busy(message, 503) from None
        return result

    def _append(self, data: bytes, placed: Placed) -> tuple[str, bool]:
        """Write and add an image. The file is named by its content, never by the request."""
        decoded = self._decoders.decode(data, self.preprocessing)  # before anything is written
        placed = self._in_frame(placed)
        name = hashlib.sha256(data).hexdigest()[:32] + _SUFFIX.get(decoded.format, ".jpg")
        folder = make_folder(images_folder(self.map.folder))
        if not self._is_clean:
            self._is_clean = True
            with contextlib.suppress(OSError, KappaPlaceError):  # another process may clean up as well
                remove_orphans(self.map.folder)
        file = folder / name
        exists = file.is_file()
        if not exists:
            replace_file(file, lambda part: part.write_bytes(data))
        try:
            report = self._add(file, placed)
        except BaseException as error:
            if not exists:  # an image that is not in the map is not kept
                file.unlink(missing_ok=True)
            if isinstance(error, MapLocked):  # its message contains a process and a host
                raise busy("Another process is changing the map. Try again later.", 409) from None
            raise
        return PREFIX + name, report.added > 0

    def _in_frame(self, placed: Placed) -> Placed:
        """Return the position in metres of the map's frame."""
        if (placed.x is None) != (placed.y is None):
            raise KappaPlaceError("A position needs both x and y. Pass both, or none.")
        if placed.latitude is None and placed.longitude is None:
            return placed
        if placed.latitude is None or placed.longitude is None or placed.x is not None:
            raise KappaPlaceError(
                "A position needs both latitude and longitude, or x and y. Pass one of the two pairs."
            )
        frame = self.map.manifest.frame
        if frame == LOCAL_FRAME:
            raise KappaPlaceError(
                "The map has no location on Earth, so it has no latitude and longitude. Pass x and y."
            )
        x, y = project_point(placed.latitude, placed.longitude, frame)
        return placed.model_copy(update={"x": x, "y": y})

    def _add(self, file: Path, placed: Placed) -> Report:
        """Add an image with the requested pose; otherwise with the pose of its EXIF data, if any."""
        images: list[Path] | PlaceImages = [file]
        if placed.x is not None and placed.y is not None:
            facts = {"heading": placed.heading, "timestamp": placed.time}
            columns = {key: [value] for key, value in facts.items() if value is not None}
            at = [[placed.x, placed.y]]
            frame = self.map.manifest.frame
            images = PlaceImages.create([file.name], at, **columns, root=file.parent, frame=frame)
        model = (self.map.model, self.map.manifest.model.fingerprint)
        options = AddOptions(prefix=PREFIX, on_error="stop", device=self.map.device or "")
        return add_images(self.map.folder, images, *model, options)


PREFIX = "appended/"
"""Prefix of the names of images that were appended over HTTP."""


def images_folder(folder: Path) -> Path:
    """Return the folder of appended images, next to the map: ``town.map.images``."""
    folder = folder.absolute()
    return folder.with_name(f"{folder.name}.images")


ORPHAN_SECONDS = 600
"""Seconds after which an image outside the map counts as left by a killed service; appends are faster."""


def remove_orphans(folder: Path) -> None:
    """Delete appended images that are not in the map, and temporary files of killed processes."""
    images = images_folder(folder)
    remove_debris(images)
    oldest = time.time() - ORPHAN_SECONDS
    files = [file for file in images.iterdir() if not file.name.startswith(".")]
    files = [file for file in files if file.stat().st_mtime < oldest]
    store = MapStore(folder, read_manifest(folder)).with_removed()
    for file, reference in zip(files, store.find([PREFIX + file.name for file in files]), strict=True):
        if reference < 0:
            remove_path(file)


def localization(answer: Answer, served: ServedMap) -> dict[str, Json]:
    """Return an answer with a localization as `LocalizationOut`, and take it into the feedback of the map."""
    result = answer.decided
    assert result is not None  # every job with options is decided
    values = result.answer.to_dict()
    for match in values["matches"]:
        del match["image"]
        match["thumbnail"] = thumbnail_url(served, match["reference"])
    return {
        "id": served.feedback.take(result.answer, served.calibration, answer.version),
        "map": served.name,
        "version": answer.version,
        "max_risk": result.max_risk,
        "guaranteed": result.guaranteed,
        **values,
        "evidence": answer.evidence,
    }


def thumbnail_url(served: ServedMap, reference: int) -> str:
    """Return the URL of the thumbnail of a reference."""
    return f"/v1/references/{reference}/thumbnail?map={quote(served.name, safe='')}"
