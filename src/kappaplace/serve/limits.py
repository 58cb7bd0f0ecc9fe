"""So many requests at once, so large, so long; and whatever goes wrong behind, no traceback leaves."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.serve.errors import BUSY_SECONDS, answer

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
