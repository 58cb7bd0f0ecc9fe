"""Who may ask and how much: tokens and headers, limits, and errors as one sentence of JSON.

No traceback and no path of this machine leaves the service.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Mapping
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
from kappaplace.serve.settings import Settings


def _same(given: str, wanted: str) -> bool:
    """Whether two tokens are the same, in a time that tells nothing of either, nor of their lengths."""
    digests = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, wanted))
    return hmac.compare_digest(*digests) and bool(wanted)


def bearer(request: Request) -> str:
    """The token of a request; empty without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


async def may_read(request: Request) -> None:
    """Refuse who has neither token, where reading asks for one."""
    settings: Settings = request.app.state.settings
    if not settings.read_token:
        return
    token = bearer(request)
    # Both are compared, whatever the first comparison says: its time shall not tell which one was close.
    good = [_same(token, settings.read_token), _same(token, settings.write_token)]
    if not any(good):
        raise _refused("This service asks for a token: send `Authorization: Bearer …`.")


async def may_write(request: Request) -> None:
    """Refuse who has no write token; without one at the service nobody may."""
    settings: Settings = request.app.state.settings
    if not settings.write_token:
        raise ApiError(403, "This service only reads its maps; its operator gave it no write token.")
    if not _same(bearer(request), settings.write_token):
        raise _refused("Appending asks for the write token: send `Authorization: Bearer …`.")


def _refused(sentence: str) -> ApiError:
    return ApiError(401, sentence, {"WWW-Authenticate": 'Bearer realm="kappaplace"'})


def policy(settings: Settings) -> str:
    """What the page may load: its own files, pictures made in the browser, and the operator's tiles."""
    images = " ".join(part for part in ("'self'", "data:", "blob:", settings.tile_host) if part)
    return (
        f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


class SecureHeaders:
    """Headers of every answer, and a check of the name under which the service was asked.

    A page of another site can make its own name point at this machine (DNS rebinding) and would then be
    allowed to read the answers; the name in the Host header gives it away.
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
                # Answers are about one photo at one moment, and may be secret.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self.hosts and _host(scope) not in self.hosts:
            refused = answer(421, "This service is not asked under that name; its operator can allow it.")
            await refused(scope, receive, sending)
            return
        await self.app(scope, receive, sending)


def _host(scope: Scope) -> str:
    """The name in the Host header, without its port."""
    found = (
        next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
    )
    if found.startswith("["):
        return found[1:].partition("]")[0]
    return found.rpartition(":")[0] if ":" in found else found


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


log = logging.getLogger("kappaplace.serve")

PROBES = ("/healthz", "/readyz")
"""Always answered: a busy service is not a dead one, and shall not be restarted for it."""


class TooLarge(Exception):
    """The body has more bytes than are allowed."""


class TooSlow(Exception):
    """The body did not arrive in time."""


class Limits:
    """Counts the bytes of a body as they come, and the seconds; what a header claims is not trusted."""

    def __init__(self, app: ASGIApp, most: int, seconds: float, at_once: int) -> None:
        self.app, self.most, self.seconds, self.at_once = app, most, seconds, at_once
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self.app(scope, receive, send)
            return
        if self.running >= self.at_once:  # each may hold a body of the largest size
            sentence = f"The service is busy with {self.running} requests; try again in a moment."
            await answer(503, sentence, {"Retry-After": str(BUSY_SECONDS)})(scope, receive, send)
            return
        self.running += 1
        try:
            await self._limited(scope, receive, send)
        finally:
            self.running -= 1

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        claimed = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if claimed.isdigit() and int(claimed) > self.most:
            await answer(413, self._too_large())(scope, receive, send)
            return
        end, seen, complete, begun = time.monotonic() + self.seconds, 0, False, False

        async def receiving() -> Message:
            nonlocal seen, complete
            if complete:  # what follows is the client's leaving, which may take as long as it likes
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                raise TooSlow from None
            seen += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if seen > self.most:
                raise TooLarge
            return message

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receiving, sending)
        except (TooLarge, TooSlow) as error:
            if begun:
                raise
            large = isinstance(error, TooLarge)
            said = (413, self._too_large()) if large else (408, "The request took too long to arrive.")
            # What is still on its way will not be read, so the connection cannot be used again.
            await answer(*said, {"Connection": "close"})(scope, receive, send)
        except ClientDisconnect:  # nobody hears it, but it is counted: not as an error of ours
            await answer(400, "The request broke off.")(scope, receive, send)
        except asyncio.CancelledError:  # only a shutdown that waits no longer does that
            if not begun:
                await answer(503, "The service is shutting down.")(scope, receive, send)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if begun:
                raise
            sentence = "Something went wrong inside the service; its log says what."
            await answer(500, sentence)(scope, receive, send)

    def _too_large(self) -> str:
        return f"The request is larger than the {self.most:,} bytes that are accepted; send smaller images."
