"""Protection of the service: tokens, security headers, limits, and errors as a short JSON message.

No traceback and no file path leaves the service.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import StaleMap
from kappaplace.serve.connections import network_of
from kappaplace.serve.settings import Settings

log = logging.getLogger("kappaplace.serve")


def _same(token: str, expected: str) -> bool:
    """Compare two tokens in a time that does not depend on their content or length."""
    digests = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (token, expected))
    return hmac.compare_digest(*digests) and bool(expected)


def bearer(request: Request) -> str:
    """Return the token of a request; empty if there is none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


async def may_read(request: Request) -> None:
    """Reject a request without a token, if reading requires one."""
    settings: Settings = request.app.state.settings
    if not settings.read_token:
        return
    token = bearer(request)
    # Always compare with both tokens, so that the response time does not reveal which one matched.
    matches = [_same(token, settings.read_token), _same(token, settings.write_token)]
    if not any(matches):
        raise _unauthorized("This service requires a token. Send `Authorization: Bearer …`.")


async def may_write(request: Request) -> None:
    """Reject a request without the write token; if the service has none, reject all."""
    settings: Settings = request.app.state.settings
    if not settings.write_token:
        raise ApiError(403, "This service is read-only. The operator can enable writing with a write token.")
    if not _same(bearer(request), settings.write_token):
        raise _unauthorized("Appending requires the write token. Send `Authorization: Bearer …`.")


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, {"WWW-Authenticate": 'Bearer realm="kappaplace"'})


def policy(settings: Settings) -> str:
    """Return the content security policy: own files, images made in the browser, and the operator's tiles."""
    images = " ".join(part for part in ("'self'", "data:", "blob:", settings.tile_host) if part)
    return (
        f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


class SecureHeaders:
    """Middleware that adds security headers and checks the host name.

    A page of another site can make its own host name point to this machine (DNS rebinding) and could then
    read the answers. The Host header reveals this.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.hosts = app, {host.lower() for host in settings.hosts}
        self.headers = {
            "Content-Security-Policy": policy(settings),
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "strict-origin-when-cross-origin" if settings.tile_host else "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "cross-origin" if settings.origins else "same-origin",
            "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                # Answers depend on the photo and the time, and may be confidential.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self.hosts and _host(scope) not in self.hosts:
            rejection = answer(421, "Unknown host name. The operator can allow it with --allow-host.")
            await rejection(scope, receive, sending)
            return
        await self.app(scope, receive, sending)


def _host(scope: Scope) -> str:
    """Return the name in the Host header without its port; empty if the header is anything else."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
    match = _HOST.fullmatch(host)
    return "" if match is None else match[1] or match[2]


BUSY_SECONDS = 1
"""Seconds after which clients retry if the service is busy."""
_PLAIN = {
    404: "Not found. See /openapi.json for all URLs.",
    405: "Method not allowed. See /openapi.json.",
}
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]:@/?#\\]+))(?::[0-9]{1,5})?")
_PATH = re.compile(r"(?<![\w./])(?:~?/|[a-z]:\\)[^\s/]", re.IGNORECASE)
"""Start of an absolute path. The end of a path is unknown, because names can contain spaces."""
_FAULT = "Internal error. The log of the service has the details."


class ApiError(Exception):
    """An error response."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Describe the response.

        Args:
            status: HTTP status.
            message: Error message for the client.
            headers: Additional headers.
        """
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


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


def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Build an error response.

    Args:
        status: HTTP status.
        message: Error message, which may quote invalid text from the request.
        headers: Additional headers.

    Returns:
        The response ``{"error": message}``.
    """
    return JSONResponse({"error": printable(message)}, status, dict(headers or {}))


def add_handlers(app: FastAPI, folders: Mapping[str, Path]) -> None:
    """Convert exceptions to error responses; ``folders`` are the maps by name."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return answer(error.status, error.message, error.headers)

    @app.exception_handler(StaleMap)
    async def stale(request: Request, error: StaleMap) -> JSONResponse:
        return answer(503, "The map is being replaced. Try again.", {"Retry-After": str(BUSY_SECONDS)})

    @app.exception_handler(KappaPlaceError)
    async def bad_input(request: Request, error: KappaPlaceError) -> JSONResponse:
        message = public_message(error, folders)
        if message is not None:
            return answer(422, message)
        log.error("%s %s failed: %s", request.method, request.url.path, error)
        return answer(500, _FAULT)

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


PROBES = ("/healthz", "/readyz")
"""Paths that are always answered, because a busy service must not be restarted."""


class TooLarge(Exception):
    """The body of a request has too many bytes."""


class TooSlow(Exception):
    """The body of a request did not arrive in time."""


class Limits:
    """Middleware that limits the bytes and seconds of a body while it arrives; headers are not trusted."""

    def __init__(self, app: ASGIApp, most: int, seconds: float, at_once: int) -> None:
        """Wrap an application.

        Args:
            app: The application.
            most: Largest body in bytes.
            seconds: Time for a body to arrive.
            at_once: Largest number of simultaneous requests.
        """
        self.app, self.most, self.seconds, self.at_once = app, most, seconds, at_once
        self.running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self.app(scope, receive, send)
            return
        address = network_of(scope["client"][0]) if scope.get("client") else ""
        # Each may have a body of the largest size. One address leaves half of them to others.
        if self.running.total() >= self.at_once or (address and self.running[address] >= self.at_once // 2):
            message = f"The service is busy with {self.running.total()} requests. Try again in a moment."
            await answer(503, message, {"Retry-After": str(BUSY_SECONDS)})(scope, receive, send)
            return
        self.running[address] += 1
        try:
            await self._limited(scope, receive, send)
        finally:
            self.running[address] -= 1
            self.running += Counter()  # forget addresses without requests

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if length.isdigit() and int(length) > self.most:
            await answer(413, self._too_large())(scope, receive, send)
            return
        end, received, complete, started = time.monotonic() + self.seconds, 0, False, False

        async def receiving() -> Message:
            nonlocal received, complete
            if complete:  # only the disconnect of the client follows, at any time
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                raise TooSlow from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self.most:
                raise TooLarge
            return message

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receiving, sending)
        except (TooLarge, TooSlow) as error:
            if started:
                raise
            large = isinstance(error, TooLarge)
            problem = (413, self._too_large()) if large else (408, "The request took too long to arrive.")
            # The rest of the body is not read, so the connection cannot be used again.
            await answer(*problem, {"Connection": "close"})(scope, receive, send)
        except ClientDisconnect:  # no client receives this answer, but it is counted as a client error
            await answer(400, "The request was interrupted. Send it again.")(scope, receive, send)
        except asyncio.CancelledError:  # happens only if a shutdown does not wait any longer
            if not started:
                await answer(503, "The service is shutting down.")(scope, receive, send)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            await answer(500, _FAULT)(scope, receive, send)

    def _too_large(self) -> str:
        return f"The request is larger than {self.most:,} bytes. Send smaller images."
