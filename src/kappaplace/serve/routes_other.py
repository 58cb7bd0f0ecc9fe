"""Appending references, the page, the state of the service, and images to try."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as InPath

from kappaplace.data import decode, images_or_error
from kappaplace.errors import KappaPlaceError
from kappaplace.serve.metrics import Metrics
from kappaplace.serve.protect import ApiError, busy, may_read, may_write
from kappaplace.serve.routes_localize import body_of
from kappaplace.serve.routes_map import printable
from kappaplace.serve.schemas import AddedOut, DemoOut, ReferenceBody, StateOut
from kappaplace.serve.served_map import ASK, READ, ServedMap, errors, map_named
from kappaplace.serve.settings import FORMATS, Settings
from kappaplace.serve.uploads import read_request

write = APIRouter(prefix="/v1", tags=["map"], dependencies=[Depends(may_write)])


@write.post(
    "/references",
    response_model=AddedOut,
    status_code=201,
    responses=ASK | errors(403, 409),
    openapi_extra=body_of(ReferenceBody, single=True),
    summary="Append an image to the map",
)
async def append(request: Request) -> Any:
    """Needs the write token. The same image twice is one reference; all queries from now on see it.

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
    """Content and type of each file by its name: a request picks from these and never names a path."""
    return {
        file.relative_to(folder).as_posix(): (file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix in _TYPES
    }


def _file(request: Request, name: str) -> Response:
    found: tuple[bytes, str] | None = request.app.state.page.get(name)
    if found is None:
        raise ApiError(404, "The page has no such file.")
    # Asked for anew each time: a page of one version with the script of another would be a riddle.
    return Response(found[0], media_type=found[1], headers={"Cache-Control": "no-cache"})


@page.get("/")
async def index(request: Request) -> Response:
    return _file(request, "index.html")


@page.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    return _file(request, name)


operation = APIRouter(tags=["operation"])


@operation.get("/healthz", response_model=StateOut, summary="Is it alive?")
async def healthz() -> Any:
    """Says ok as long as the process does anything at all."""
    return {"status": "ok"}


@operation.get("/readyz", response_model=StateOut, responses=errors(503), summary="Can it answer?")
async def readyz(request: Request) -> Any:
    """503 until all models are loaded."""
    served: dict[str, ServedMap] = request.app.state.served
    for name, one in served.items():
        if one.failure:
            raise busy(f"The map {name} cannot be used; the log says why.", 503)
        if not one.ready:
            raise busy(f"The map {name} is still being loaded.", 503)
    return {"status": "ready"}


@operation.get(
    "/metrics",
    dependencies=[Depends(may_read)],
    responses=errors(401) | {200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
    response_class=Response,
    summary="Counts for Prometheus",
)
async def metrics(request: Request) -> Response:
    """Requests, times, batches, queue and sizes of maps."""
    served: dict[str, ServedMap] = request.app.state.served
    kept: Metrics = request.app.state.metrics
    gauges = {
        "queue_images": (
            "Images taken but not answered.",
            {n: s.batcher.admitted for n, s in served.items()},
        ),
        "map_references": ("References of the map.", {n: len(s.map) for n, s in served.items()}),
        "map_version": ("Version of the map.", {n: s.map.manifest.version for n, s in served.items()}),
    }
    return Response(kept.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


demo = APIRouter(prefix="/v1/demo", tags=["page"], dependencies=[Depends(may_read)], responses=READ)

MOST = 48
"""More than fit on a page."""
_IMAGE_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


def demo_files(settings: Settings) -> list[Path]:
    """The files, found once when the service starts, evenly spread over the folder."""
    folder = settings.demo_queries
    if folder is None:
        return []
    if not folder.is_dir():
        raise KappaPlaceError(f"No folder of demo queries at {folder}.")
    found = [folder / path for path in images_or_error(folder)]
    step = max(1, -(-len(found) // MOST))
    return found[::step]


@demo.get("/queries", response_model=DemoOut, summary="Images to try")
async def queries(request: Request) -> Any:
    """Empty where the operator offers none."""
    files: list[Path] = request.app.state.demo
    listed = [
        {"index": i, "name": printable(file.name), "image": f"/v1/demo/queries/{i}/image"}
        for i, file in enumerate(files)
    ]
    return {"queries": listed}


@demo.get(
    "/queries/{index}/image",
    summary="One of these images",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {}, "image/png": {}, "image/webp": {}}, "description": "The file."}
    },
)
async def image(request: Request, index: Annotated[int, InPath(ge=0, le=2**31)]) -> Response:
    """The file as it is; the number alone decides which."""
    files: list[Path] = request.app.state.demo
    if index >= len(files):
        raise ApiError(404, f"There is no demo query {index}; there are {len(files)}, counted from 0.")
    data, kind = await asyncio.to_thread(_read, files[index])
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


def _read(file: Path) -> tuple[bytes, str]:
    from PIL import Image

    try:
        data = file.read_bytes()
        decode(data, formats=FORMATS)
        with Image.open(file, formats=FORMATS) as opened:
            return data, _IMAGE_TYPES.get(opened.format or "", "image/jpeg")
    except (OSError, KappaPlaceError):
        raise ApiError(404, "This demo query cannot be opened any more.") from None
