"""Routes for appending references, the web page, the state and metrics of the service, and sample images."""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as InPath

from kappaplace.data import decode, images_or_error
from kappaplace.errors import KappaPlaceError
from kappaplace.serve.paths import ASK, READ, both, errors, map_named
from kappaplace.serve.problems import ApiError, busy, printable
from kappaplace.serve.protect import may_read, may_write
from kappaplace.serve.routes_localize import body_of, read_request
from kappaplace.serve.schemas import AddedOut, DemoOut, ReferenceBody, StateOut
from kappaplace.serve.served_map import ServedMap
from kappaplace.serve.settings import FORMATS, Settings
from kappaplace.types import Json

write = APIRouter(prefix="/v1", tags=["map"], dependencies=[Depends(may_write)])


@both(
    write,
    "POST",
    "/references",
    "/references",
    response_model=AddedOut,
    status_code=201,
    responses=ASK | errors(403, 409),
    openapi_extra=body_of(ReferenceBody, single=True),
    summary="Append an image",
)
async def append(request: Request) -> dict[str, Json]:
    """Append an image; requires the write token. Sending the same image again adds no second reference.

    `curl -H "Authorization: Bearer $TOKEN" -F image=@new.jpg -F x=550690 -F y=4180005 …/v1/references`
    """
    images, placed = await read_request(request, ReferenceBody, single=True)
    served = map_named(request, placed.map)
    name, added = await served.append(images[0], placed)
    store = served.map.store
    number = int((await asyncio.to_thread(store.find, [name]))[0])
    return {
        "map": served.name,
        "version": store.manifest.version,
        "name": name,
        "id": number,
        "added": added,
        "references": len(store),
    }


PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
page = APIRouter(include_in_schema=False)


def page_files() -> dict[str, tuple[bytes, str]]:
    """Read all files of the page by name, with their types. A request selects one of these files and never
    reads a path."""
    return {
        file.relative_to(PAGE).as_posix(): (file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(PAGE.rglob("*"))
        if file.is_file() and file.suffix in _TYPES
    }


def _file(request: Request, name: str) -> Response:
    files: dict[str, tuple[bytes, str]] = request.app.state.page
    if name not in files:
        raise ApiError(404, "The page has no such file.")
    # Not cached: the page of one version must not load a script of another.
    content, kind = files[name]
    return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})


@page.get("/")
async def index(request: Request) -> Response:
    """Return the web page."""
    return _file(request, "index.html")


@page.get("/docs")
async def docs(request: Request) -> Response:
    """Return the description of the API as a page."""
    return _file(request, "docs.html")


@page.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    """Return a file of the web page."""
    return _file(request, name)


operation = APIRouter(tags=["operation"])


@operation.get("/healthz", response_model=StateOut, summary="Liveness")
async def healthz() -> dict[str, Json]:
    """Return ok as long as the process responds."""
    return {"status": "ok"}


@operation.get("/readyz", response_model=StateOut, responses=errors(503), summary="Readiness")
async def readyz(request: Request) -> dict[str, Json]:
    """Return 503 until all models are loaded."""
    served: dict[str, ServedMap] = request.app.state.served
    for name, place_map in served.items():
        if place_map.failure:
            raise busy(f"The map {name} cannot be used. The log of the service has the reason.", 503)
        if not place_map.ready:
            raise busy(f"The map {name} is still being loaded. Try again later.", 503)
    return {"status": "ready"}


@operation.get(
    "/metrics",
    dependencies=[Depends(may_read)],
    responses=errors(401)
    | {200: {"content": {"text/plain": {}}, "description": "Text format of Prometheus."}},
    response_class=Response,
    summary="Metrics for Prometheus",
)
async def metrics(request: Request) -> Response:
    """Return counts of requests, times and batches, the queue, and the sizes of maps."""
    served: dict[str, ServedMap] = request.app.state.served
    counts: Metrics = request.app.state.metrics
    gauges = {
        "queue_images": (
            "Images taken but not answered.",
            {n: s.batcher.admitted for n, s in served.items()},
        ),
        "map_references": ("References of the map.", {n: len(s.map) for n, s in served.items()}),
        "drifting": (
            "1 if the last queries differ from those of the calibration.",
            {n: int(s.feedback.drifting) for n, s in served.items()},
        ),
        "map_version": ("Version of the map.", {n: s.map.manifest.version for n, s in served.items()}),
    }
    return Response(counts.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


demo = APIRouter(prefix="/v1/demo", tags=["page"], dependencies=[Depends(may_read)], responses=READ)

MOST = 48
"""Largest number of sample images; more do not fit on the page."""
_IMAGE_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


def demo_files(settings: Settings) -> list[Path]:
    """List the sample images, evenly spread over the folder of the operator."""
    folder = settings.demo_queries
    if folder is None:
        return []
    if not folder.is_dir():
        raise KappaPlaceError(
            f"No folder of demo queries at {folder}. Pass an existing one as --demo-queries."
        )
    images = images_or_error(folder)
    step = max(1, -(-len(images) // MOST))
    return [folder / path for path in images[::step]]


@demo.get("/queries", response_model=DemoOut, summary="List sample images")
async def queries(request: Request) -> dict[str, Json]:
    """Return the sample images; empty if the operator offers none."""
    files: list[Path] = request.app.state.demo
    images: list[Json] = [
        {"index": i, "name": printable(file.name), "image": f"/v1/demo/queries/{i}/image"}
        for i, file in enumerate(files)
    ]
    return {"queries": images}


@demo.get(
    "/queries/{index}/image",
    summary="Get a sample image",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {}, "image/png": {}, "image/webp": {}}, "description": "The file."}
    },
)
async def image(request: Request, index: Annotated[int, InPath(ge=0, le=2**31)]) -> Response:
    """Return the file unchanged."""
    files: list[Path] = request.app.state.demo
    if index >= len(files):
        raise ApiError(404, f"There is no demo query {index}. The service has {len(files)}, counted from 0.")
    data, kind = await asyncio.to_thread(_read, files[index])
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


def _read(file: Path) -> tuple[bytes, str]:
    from PIL import Image

    try:
        data = file.read_bytes()
        decode(data, formats=FORMATS)
        with Image.open(file, formats=FORMATS) as image:
            return data, _IMAGE_TYPES.get(image.format or "", "image/jpeg")
    except (OSError, KappaPlaceError):
        raise ApiError(404, "This demo query can no longer be opened. Choose another.") from None


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PROBABILITIES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Mapping[str, str]) -> list[str]:
        """Return the lines of one metric."""
        buckets, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            buckets.append(f"{name}_bucket{_labels({**labels, 'le': edge})} {below}")
        return [
            *buckets,
            f"{name}_sum{_labels(labels)} {self.total:g}",
            f"{name}_count{_labels(labels)} {below}",
        ]


class Metrics:
    """Counts of a service since its start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, ...], int] = {}
        self._seconds: dict[str, Histogram] = {}
        self._batches: dict[str, Histogram] = {}
        self._decisions: dict[tuple[str, ...], int] = {}
        self._labels: dict[tuple[str, ...], int] = {}
        self._probabilities: dict[str, Histogram] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request.

        Args:
            method: HTTP method.
            route: Pattern of the route, never a path that a client made up.
            status: HTTP status.
            seconds: Time to the answer.
        """
        with self._lock:
            key = (method, route, str(status))
            self._requests[key] = self._requests.get(key, 0) + 1
            self._seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def batch(self, place_map: str, size: int) -> None:
        """Count a batch of images."""
        with self._lock:
            self._batches.setdefault(place_map, Histogram(SIZES)).add(size)

    def decision(self, place_map: str, decision: str | None, probability: float | None) -> None:
        """Count a decision, and the probability of the answer if it is known."""
        with self._lock:
            key = (place_map, decision or "undecided")
            self._decisions[key] = self._decisions.get(key, 0) + 1
            if probability is not None:
                self._probabilities.setdefault(place_map, Histogram(PROBABILITIES)).add(probability)

    def label(self, place_map: str, decision: str, label: str) -> None:
        """Count what a person said about an answer."""
        with self._lock:
            key = (place_map, decision, label)
            self._labels[key] = self._labels.get(key, 0) + 1

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """Return all metrics; ``gauges`` are a help text and one value per map, by name."""
        with self._lock:
            lines = _counters("requests", "Answered requests.", ("method", "route", "status"), self._requests)
            lines += _counters("decisions", "Answers by decision.", ("map", "decision"), self._decisions)
            words = "Answers that a person called right, wrong or unknown."
            lines += _counters("labels", words, ("map", "decision", "label"), self._labels)
            words = "Probability of the best match."
            lines += _histograms("probability", words, "map", self._probabilities)
            lines += _histograms("request_seconds", "Time to the answer.", "route", self._seconds)
            lines += _histograms("batch_images", "Images embedded together.", "map", self._batches)
        for name, (help_text, values) in gauges.items():
            lines += [f"# HELP kappaplace_{name} {help_text}", f"# TYPE kappaplace_{name} gauge"]
            lines += [f"kappaplace_{name}{_labels({'map': key})} {value:g}" for key, value in values.items()]
        return "\n".join(lines) + "\n"


def _counters(
    name: str, help_text: str, keys: Sequence[str], counts: Mapping[tuple[str, ...], int]
) -> list[str]:
    lines = [f"# HELP kappaplace_{name}_total {help_text}", f"# TYPE kappaplace_{name}_total counter"]
    for values, count in sorted(counts.items()):
        lines.append(f"kappaplace_{name}_total{_labels(dict(zip(keys, values, strict=True)))} {count}")
    return lines


def _histograms(name: str, help_text: str, label: str, histograms: Mapping[str, Histogram]) -> list[str]:
    lines = [f"# HELP kappaplace_{name} {help_text}", f"# TYPE kappaplace_{name} histogram"]
    for key, histogram in sorted(histograms.items()):
        lines += histogram.lines(f"kappaplace_{name}", {label: key})
    return lines


def _labels(values: Mapping[str, str]) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in values.items()) + "}"
