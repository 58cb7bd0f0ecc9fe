"""Who may ask, under which name, and what a browser may do with the answer."""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.serve.errors import ApiError, answer
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
