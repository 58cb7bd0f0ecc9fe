"""Connections that wait for a request: they end after a few seconds, and too many of them end the oldest.

A connection is busy from the end of a request's header to the end of its answer; `protect.Limits` bounds
those. All others wait: silent ones, half-sent headers, and idle ones after an answer. A new connection is
never rejected, so health checks always work.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""Maximum seconds from the connection, or from the previous answer, until the header of a request is
complete."""
ANSWER_SECONDS = 30.0
"""Maximum seconds until a client reads the next part of its answer."""
PER_ADDRESS, IN_ALL = 100, 500
"""Largest number of waiting connections per address and in total. With the busy ones, they need fewer than
1,024 open files."""


def network_of(host: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address, because one client may own a whole
    network."""
    try:
        wide = ip_address(host).version == 6 and not ip_address(host).is_loopback
        return str(ip_network((host, 64), strict=False)) if wide else host
    except ValueError:
        return host


class Waiting:
    """Connections that wait, by address and age."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[GuardedProtocol, None]] = {}
        self._count = 0

    def add(self, connection: GuardedProtocol) -> None:
        """Add a connection; if there are too many, end the oldest of the same or of the busiest address."""
        mine = self._by_address.setdefault(connection.address, {})
        mine[connection] = None
        self._count += 1
        if len(mine) > PER_ADDRESS:
            next(iter(mine)).abort()
        elif self._count > IN_ALL:
            busiest = max(self._by_address, key=lambda address: len(self._by_address[address]))
            next(iter(self._by_address[busiest])).abort()

    def remove(self, connection: GuardedProtocol) -> None:
        """Remove a connection."""
        mine = self._by_address[connection.address]
        del mine[connection]
        self._count -= 1
        if not mine:
            del self._by_address[connection.address]


class GuardedProtocol(H11Protocol):
    """uvicorn's connection with time limits for headers, idle clients, and clients that do not read."""

    waiting: ClassVar[Waiting]
    address = ""
    _waits, _unread = False, 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self._sort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._sort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._sort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()

    def abort(self) -> None:
        """End the connection at once, without sending the bytes that the client has not read yet."""
        self._leave()
        self.transport.abort()

    def _sort(self) -> None:
        """Decide whether the connection waits; its time starts when it begins to wait."""
        waits = self.cycle is None or self.cycle.response_complete
        if waits and not self._waits:
            self._waits = True
            self._limit(HEADER_SECONDS)
            self.waiting.add(self)
        elif not waits and self._waits:
            self._leave()

    def _leave(self) -> None:
        self._limit(None)
        if self._waits:
            self._waits = False
            self.waiting.remove(self)

    def _limit(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and unread != self._unread:  # a slow client still reads
            self._unread = unread
            self._limit(ANSWER_SECONDS)
        else:
            self.abort()


def guarded() -> type[GuardedProtocol]:
    """Return the class of the connections of one service."""

    class Guarded(GuardedProtocol):
        waiting = Waiting()

    return Guarded
