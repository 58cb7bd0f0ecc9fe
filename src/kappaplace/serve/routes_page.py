"""The page: a few files of the package, read once, and nothing else that lies in a folder."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from kappaplace.serve.errors import ApiError

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
router = APIRouter(include_in_schema=False)


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


@router.get("/")
async def index(request: Request) -> Response:
    return _file(request, "index.html")


@router.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    return _file(request, name)
