"""Errors as one sentence of JSON, ``{"error": …}``; no traceback and no path of this machine leaves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store.segments import StaleMap

BUSY_SECONDS = 1
"""When to come back, where it is busy."""
_PLAIN = {
    404: "There is nothing at this address; see /openapi.json for those there are.",
    405: "This address is not asked in that way; see /openapi.json.",
}
_PATH = re.compile(r"(?<![\w/])/(?:[^\s/:;,()'\"]+/)+[^\s/:;,()'\"]*")


class ApiError(Exception):
    """What a caller is told."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


def busy(sentence: str, status: int = 429) -> ApiError:
    """Come back a little later."""
    return ApiError(status, sentence, {"Retry-After": str(BUSY_SECONDS)})


def told(error: KappaPlaceError, folders: Mapping[str, Path] | None = None) -> str:
    """The sentence of an error, with maps by their names and without any other path."""
    sentence = str(error)
    for name, folder in (folders or {}).items():
        sentence = sentence.replace(str(folder), name)
    return _PATH.sub("…", sentence)


def answer(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error on its way out; what it quotes of a request need not be text, JSON must be."""
    clean = sentence.encode("utf-8", "replace").decode("utf-8")
    return JSONResponse({"error": clean}, status, dict(headers or {}))


def add_handlers(app: FastAPI, folders: Mapping[str, Path]) -> None:
    """Turn whatever is raised into one sentence."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return answer(error.status, error.sentence, error.headers)

    @app.exception_handler(StaleMap)
    async def stale(request: Request, error: StaleMap) -> JSONResponse:
        return answer(
            503, "The map is being replaced at this moment; ask again.", {"Retry-After": str(BUSY_SECONDS)}
        )

    @app.exception_handler(KappaPlaceError)
    async def bad_input(request: Request, error: KappaPlaceError) -> JSONResponse:
        return answer(422, told(error, folders))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, _PLAIN.get(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(422, invalid_sentence(error.errors()))


def invalid_sentence(errors: Any) -> str:
    """The first thing that is wrong with some values, in words."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
    said = str(first["msg"]).rstrip(".")
    return f"{where or 'The request'}: {said[:1].lower()}{said[1:]}."[:300]
