"""Run a service until it is told to stop, and finish what it took before it goes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from kappaplace.errors import KappaPlaceError
from kappaplace.serve.settings import LOOPBACK, Settings

MOST_CONNECTIONS = 1000
"""Open ones, most of them idle: below the 1,024 files that a process may usually open."""
GRACE = 5
"""Seconds beyond the time limit of a request that a shutdown waits for answers on their way."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name, which may begin with 127 and lie anywhere
        return host in LOOPBACK


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one sentence why not; port 0 takes any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise KappaPlaceError(f"Cannot listen at {host}, port {port}: {error}.") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(2048)
    except OSError as error:
        made.close()
        raise KappaPlaceError(
            f"Cannot listen at {host}, port {port}: {os.strerror(error.errno or 0).lower()}; choose another "
            "with --port (0 takes any that is free)."
        ) from None
    return made


def address_of(listening: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def run(
    app: FastAPI, settings: Settings, listening: socket.socket, ready: Callable[[str], None], log_level: str
) -> None:
    """Serve until SIGTERM or Ctrl-C; what was taken is answered first."""
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level in ("info", "debug"),
        server_header=False,
        proxy_headers=False,  # a client could state any address
        timeout_keep_alive=10,
        timeout_graceful_shutdown=int(settings.timeout) + GRACE,
        limit_concurrency=MOST_CONNECTIONS,  # requests are counted by `Limits`, which says when to come back
    )
    # uvicorn raises the signal once more when all is done; for us one that was obeyed is no failure.
    stops = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda number, frame: None) for each in stops]
    try:
        ready(address_of(listening))
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        for each, handler in zip(stops, before, strict=True):
            signal.signal(each, handler)
        listening.close()
