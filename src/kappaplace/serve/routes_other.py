"""Routes for appending references, the web page, the state of the service, and sample images."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as InPath

from kappaplace.data import decode, images_or_error
from kappaplace.errors import KappaPlaceError
from kappaplace.serve.metrics import Metrics
from kappaplace.serve.protect import ApiError, busy, may_read, may_write, printable
from kappaplace.serve.routes_localize import body_of
from kappaplace.serve.schemas import AddedOut, DemoOut, ReferenceBody, StateOut
from kappaplace.serve.served_map import ASK, READ, ServedMap, errors, map_named
from kappaplace.serve.settings import FORMATS, Settings
from kappaplace.serve.uploads import read_request
from kappaplace.types import Json

write = APIRouter(prefix="/v1", tags=["map"], dependencies=[Depends(may_write)])


@write.post(
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


def page_files(folder: Path = PAGE) -> dict[str, tuple[bytes, str]]:
    """Read all files of the page by name, with their types. A request selects from these, never by path."""
    return {
        file.relative_to(folder).as_posix(): (file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.rglob("*"))
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
        raise ApiError(404, f"There is no demo query {index}: the service has {len(files)}, counted from 0.")
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
