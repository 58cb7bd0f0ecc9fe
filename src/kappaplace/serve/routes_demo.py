"""Images that the operator offers for trying out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as InPath

from kappaplace.data.images import decode
from kappaplace.data.readers.layout import images_or_error
from kappaplace.errors import KappaPlaceError
from kappaplace.serve.asking import READ
from kappaplace.serve.errors import ApiError
from kappaplace.serve.routes_map import printable
from kappaplace.serve.schemas import DemoOut
from kappaplace.serve.security import may_read
from kappaplace.serve.settings import FORMATS, Settings

router = APIRouter(prefix="/v1/demo", tags=["page"], dependencies=[Depends(may_read)], responses=READ)

MOST = 48
"""More than fit on a page."""
_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


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


@router.get("/queries", response_model=DemoOut, summary="Images to try")
async def queries(request: Request) -> Any:
    """Empty where the operator offers none."""
    files: list[Path] = request.app.state.demo
    listed = [
        {"index": i, "name": printable(file.name), "image": f"/v1/demo/queries/{i}/image"}
        for i, file in enumerate(files)
    ]
    return {"queries": listed}


@router.get(
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
            return data, _TYPES.get(opened.format or "", "image/jpeg")
    except (OSError, KappaPlaceError):
        raise ApiError(404, "This demo query cannot be opened any more.") from None
