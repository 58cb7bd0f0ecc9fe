"""A request may be so large and take so long; and whatever goes wrong behind, no traceback leaves."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.serve.errors import answer

log = logging.getLogger("kappaplace.serve")


class TooLarge(Exception):
    """The body has more bytes than are allowed."""


class TooSlow(Exception):
    """The body did not arrive in time."""


class Limits:
    """Counts the bytes of a body as they come, and the seconds; what a header claims is not trusted."""

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
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
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if begun:
                raise
            sentence = "Something went wrong inside the service; its log says what."
            await answer(500, sentence)(scope, receive, send)

    def _too_large(self) -> str:
        return f"The request is larger than the {self.most:,} bytes that are accepted; send smaller images."
