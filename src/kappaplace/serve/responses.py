"""Middleware for HEAD requests, entity tags and compression, so that routes only return their content."""

from __future__ import annotations

import gzip
import hashlib

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST = 1000
"""Bytes below which compression does not help."""
_TEXT = ("text/", "application/json", "application/problem+json", "image/svg+xml")


class Responses:
    """Answers HEAD like GET without a body, adds ``ETag`` to GET, and compresses text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        if head:
            scope["method"] = "GET"
        request = Headers(scope=scope)
        start: Message | None = None

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is None:  # the rest of a stream
                if not head:
                    await send(message)
                return
            first, start = start, None
            body = message.get("body", b"")
            if not message.get("more_body", False):
                body = await _finish(first, body, request, scope["method"] == "GET")
            elif head:
                message["more_body"] = False
            message["body"] = b"" if head else body
            await send(first)
            await send(message)

        await self.app(scope, receive, sending)


async def _finish(start: Message, body: bytes, request: Headers, is_get: bool) -> bytes:
    """Set the headers of a complete response, and return its body."""
    headers = MutableHeaders(scope=start)
    kind = headers.get("content-type", "")
    packs = kind.startswith(_TEXT) and len(body) >= LEAST
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:24]}"'  # weak, because it ignores the compression
    if is_get and start["status"] == 200:
        headers["ETag"] = tag
        known = [each.strip().removeprefix("W/") for each in request.get("if-none-match", "").split(",")]
        if "*" in known or tag.removeprefix("W/") in known:
            start["status"] = 304
            for name in ("content-length", "content-type"):
                del headers[name]
            return b""
    if packs:
        headers.add_vary_header("Accept-Encoding")
        if "gzip" in request.get("accept-encoding", ""):
            body = await run_in_threadpool(gzip.compress, body, 6, mtime=0)
            headers["Content-Encoding"] = "gzip"
            headers["Content-Length"] = str(len(body))
    return body
