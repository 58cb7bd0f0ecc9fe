"""Protection of the service: tokens, security headers, and limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections import Counter
from typing import Annotated, TypeAlias

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.serve.connections import network_of
from kappaplace.serve.problems import BUSY_SECONDS, FAULT, ApiError, answer, begin_request, request_id
from kappaplace.serve.settings import Settings

log = logging.getLogger("kappaplace.serve")


def _same(token: str, expected: str) -> bool:
    """Compare two tokens in a time that does not depend on their content or length."""
    digests = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (token, expected))
    return hmac.compare_digest(*digests) and bool(expected)


_READ = HTTPBearer(
    scheme_name="readToken",
    description="Required if the operator set a read token. The write token is accepted, too.",
    auto_error=False,
)
_WRITE = HTTPBearer(
    scheme_name="writeToken",
    description="Required for appending. A service without a write token is read-only.",
    auto_error=False,
)
Token: TypeAlias = HTTPAuthorizationCredentials | None


async def may_read(request: Request, token: Annotated[Token, Security(_READ)]) -> None:
    """Reject a request without a token, if reading requires one."""
    settings: Settings = request.app.state.settings
    if not settings.read_token:
        return
    given = "" if token is None else token.credentials.strip()
    # Always compare with both tokens, so that the response time does not reveal which one matched.
    matches = [_same(given, settings.read_token), _same(given, settings.write_token)]
    if not any(matches):
        raise _unauthorized("This service requires a token. Send `Authorization: Bearer …`.")


async def may_write(request: Request, token: Annotated[Token, Security(_WRITE)]) -> None:
    """Reject a request without the write token; if the service has none, reject all."""
    settings: Settings = request.app.state.settings
    if not settings.write_token:
        raise ApiError(403, "This service is read-only. The operator can enable writing with a write token.")
    if not _same("" if token is None else token.credentials.strip(), settings.write_token):
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

        name_of_request = begin_request(_header(scope, b"x-request-id"))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = name_of_request
                # Answers depend on the photo and the time, and may be confidential.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self.hosts and _host(scope) not in self.hosts:
            rejection = answer(421, "Unknown host name. The operator can allow it with --allow-host.")
            await rejection(scope, receive, sending)
            return
        await self.app(scope, receive, sending)


def _header(scope: Scope, name: bytes) -> str:
    """Return the first header of a name; empty if there is none."""
    return next((value for key, value in scope["headers"] if key == name), b"").decode("latin-1")


def _host(scope: Scope) -> str:
    """Return the name in the Host header without its port; empty if the header is anything else."""
    match = _HOST.fullmatch(_header(scope, b"host").lower())
    return "" if match is None else match[1] or match[2]


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]:@/?#\\]+))(?::[0-9]{1,5})?")


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
            log.exception("Request %s: %s %s failed", request_id(), scope["method"], scope["path"])
            if started:
                raise
            await answer(500, FAULT)(scope, receive, send)

    def _too_large(self) -> str:
        return f"The request is larger than {self.most:,} bytes. Send smaller images."
