"""Errors as problem details (RFC 9457): a message for people, a code for programs, and a request id.

No traceback and no file path leaves the service.
"""

from __future__ import annotations

import contextvars
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import StaleMap
from kappaplace.types import Json

log = logging.getLogger("kappaplace.serve")

CODES = {
    400: ("bad_request", "The request cannot be read"),
    401: ("token_required", "The token is missing or invalid"),
    403: ("read_only", "The service is read-only"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "Method not allowed"),
    408: ("too_slow", "The request took too long to arrive"),
    409: ("map_locked", "Another process is changing the map"),
    413: ("too_large", "The request is too large"),
    415: ("unsupported_type", "Unsupported content type"),
    421: ("unknown_host", "Unknown host name"),
    422: ("invalid", "The request is invalid"),
    429: ("busy", "The queue is full"),
    500: ("internal", "Internal error"),
    503: ("unavailable", "The service is not ready, or too slow"),
}
"""Code and title of each HTTP status."""
SPECIAL = {
    "invalid_image": "The image cannot be decoded",
    "unknown_map": "There is no map of this name",
    "not_calibrated": "The map is not calibrated",
    "unknown_answer": "The service no longer remembers this answer",
}
"""Codes that are more exact than the status, with their titles."""
KIND = "application/problem+json"
_REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="")
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


def begin_request(given: str = "") -> str:
    """Start a request, and return its id: the one that the client sent if it is short and plain."""
    name = given if _ID.fullmatch(given) else secrets.token_hex(8)
    _REQUEST.set(name)
    return name


def request_id() -> str:
    """Return the id of the current request; empty outside a request."""
    return _REQUEST.get()


BUSY_SECONDS = 1
"""Seconds after which clients retry if the service is busy."""
_PLAIN = {
    404: "Not found. See /docs for all URLs.",
    405: "Method not allowed. See /docs.",
}
_PATH = re.compile(r"(?<![\w./])(?:~?/|[a-z]:\\)[^\s/]", re.IGNORECASE)
"""Start of an absolute path. The end of a path is unknown, because names can contain spaces."""
FAULT = "Internal error. The log of the service has the details."


class ApiError(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None, code: str = ""
    ) -> None:
        """Describe the response.

        Args:
            status: HTTP status.
            message: Error message for the client.
            headers: Additional headers.
            code: Code for programs. Default: the code of the status, see `CODES`.
        """
        super().__init__(message)
        self.status, self.message, self.headers, self.code = status, message, dict(headers or {}), code


def busy(message: str, status: int = 429) -> ApiError:
    """Return an error with a time to retry."""
    return ApiError(status, message, {"Retry-After": str(BUSY_SECONDS)})


def public_message(error: KappaPlaceError, folders: Mapping[str, Path]) -> str | None:
    """Return the error message with the folders of maps replaced by their names.

    Args:
        error: The error.
        folders: Folders of the maps by name.

    Returns:
        The message; None if the error is about files of the service, whose paths must not leave it.
    """
    message, cause = str(error), error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, OSError):
            return None
        cause = cause.__cause__ or cause.__context__
    for name, folder in folders.items():
        for text in (str(folder.absolute()), str(folder)):
            if text == ".":
                continue
            if f"{text}/" in message:
                return None
            message = re.sub(rf"{re.escape(text)}(?![\w-]|\.\w)", name.replace("\\", r"\\"), message)
    return None if _PATH.search(message) else message


def printable(text: str) -> str:
    """Replace characters of file names that are not valid text, because JSON cannot contain them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def problem(status: int, message: str, code: str = "") -> dict[str, Json]:
    """Describe an error as `ProblemOut`.

    Args:
        status: HTTP status.
        message: Error message, which may quote invalid text from the request.
        code: Code for programs. Default: the code of the status.

    Returns:
        The members of RFC 9457, the code, the request id, and the message as ``error`` for older clients.
    """
    usual, title = CODES.get(status, ("error", "Error"))
    code = code or usual
    return {
        "type": f"/docs#{code}",
        "title": SPECIAL.get(code, title),
        "status": status,
        "detail": printable(message),
        "code": code,
        "request_id": request_id(),
        "error": printable(message),
    }


def answer(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str = ""
) -> JSONResponse:
    """Build an error response.

    Args:
        status: HTTP status.
        message: Error message, which may quote invalid text from the request.
        headers: Additional headers.
        code: Code for programs. Default: the code of the status.

    Returns:
        The response.
    """
    return JSONResponse(problem(status, message, code), status, dict(headers or {}), KIND)


def as_api_error(error: BaseException, folders: Mapping[str, Path]) -> ApiError:
    """Convert an exception to an error for the client; faults of the service are logged.

    Args:
        error: The exception.
        folders: Folders of the maps by name.

    Returns:
        The error, without paths of the service.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StaleMap):
        return busy("The map is being replaced. Try again.", 503)
    message = public_message(error, folders) if isinstance(error, KappaPlaceError) else None
    if message is not None:
        return ApiError(422, message)
    log.error("Request %s failed: %s", request_id(), error, exc_info=not isinstance(error, KappaPlaceError))
    return ApiError(500, FAULT)


def add_handlers(app: FastAPI, folders: Mapping[str, Path]) -> None:
    """Convert exceptions to error responses; ``folders`` are the maps by name."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        public = as_api_error(error, folders)
        return answer(public.status, public.message, public.headers, public.code)

    for kind in (ApiError, KappaPlaceError):
        app.add_exception_handler(kind, failed)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, _PLAIN.get(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(422, invalid_message(error.errors()))


def invalid_message(errors: Sequence[Mapping[str, Any]]) -> str:
    """Describe the first of the validation errors of pydantic."""
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
    reason = str(first["msg"]).rstrip(".")
    return f"{field or 'The request'}: {reason[:1].lower()}{reason[1:]}."[:300]
