"""The FastAPI application that serves maps, and how it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.serve import routes_feedback, routes_localize, routes_map, routes_other
from kappaplace.serve.connections import HEADER_SECONDS, IN_ALL, guarded
from kappaplace.serve.decoders import Decoders
from kappaplace.serve.paths import Application
from kappaplace.serve.problems import add_handlers
from kappaplace.serve.protect import Limits, SecureHeaders
from kappaplace.serve.responses import Responses
from kappaplace.serve.routes_other import Metrics, demo_files, page_files
from kappaplace.serve.served_map import ServedMap
from kappaplace.serve.settings import LOOPBACK, Settings
from kappaplace.version import package_version

log = logging.getLogger("kappaplace.serve")

DESCRIPTION = """Find where a photo was taken, with a probability and a decision.

Send images as a form (`image=@query.jpg`), as base64 in JSON, or as the plain file. Positions are
in metres of the map's frame. Each URL of a map is also below `/v1/maps/{name}`. GET answers have an `ETag`,
and HEAD works. Errors are problem details (RFC 9457) with a `code` for programs and a `request_id`, which is
also in the log of the service."""


def create_app(maps: Mapping[str, PlaceMap], settings: Settings | None = None) -> FastAPI:
    """Create the application.

    Args:
        maps: Maps by name; the first one is used if a request does not name a map.
        settings: Limits and tokens. Default: `Settings()`.

    Returns:
        An ASGI application; models are loaded when it starts.

    Raises:
        KappaPlaceError: If there is no map.
    """
    settings = settings or Settings()
    if not maps:
        raise KappaPlaceError("A service needs at least one map. Pass maps by name.")
    decoders = Decoders(settings)
    metrics = Metrics()
    served = {
        name: ServedMap(name, place_map, settings, decoders, partial(metrics.batch, name))
        for name, place_map in maps.items()
    }

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        for place_map in served.values():
            place_map.start()
        loading = asyncio.create_task(_load(list(served.values())))
        try:
            yield
        except asyncio.CancelledError:  # a second signal: stop without waiting
            return
        finally:
            decoders.close()
        await loading
        for place_map in served.values():
            await place_map.close()

    app = Application(
        title="KappaPlace",
        version=package_version(),
        description=DESCRIPTION,
        lifespan=life,
        docs_url=None,  # the default pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the host name that the client sent
    )
    app.state.settings, app.state.served, app.state.metrics = settings, served, metrics
    app.state.demo, app.state.page = demo_files(settings), page_files()
    app.state.folders = {name: place_map.folder for name, place_map in maps.items()}
    for router in (
        routes_localize.router,
        routes_map.router,
        routes_feedback.router,
        routes_other.write,
        routes_other.demo,
        routes_other.operation,
        routes_other.page,
    ):
        app.include_router(router)
    add_handlers(app, app.state.folders)
    # The middleware that is added last runs first.
    app.add_middleware(
        Limits, most=settings.max_body, seconds=settings.timeout, at_once=settings.max_requests
    )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["Authorization", "Content-Type", "If-None-Match", "X-Request-Id"],
            expose_headers=["ETag", "Retry-After", "X-Request-Id"],
        )
    app.add_middleware(Responses)
    app.add_middleware(SecureHeaders, settings=settings)
    app.add_middleware(_Counted, metrics=metrics)
    return app


async def _load(served: list[ServedMap]) -> None:
    loop = asyncio.get_running_loop()
    for place_map in served:
        try:
            await loop.run_in_executor(place_map.batcher.pool, place_map.warm)
        except Exception as error:
            place_map.failure = str(error)
            log.exception("The map %s cannot be used", place_map.name)


class _Counted:
    """Middleware that counts answers by the pattern of their route, so that clients cannot invent labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other"
            self.metrics.request(method, route, status, time.perf_counter() - start)


GRACE = 5
"""Seconds that a shutdown waits for pending answers, beyond the time limit of a request."""
MOST_HEADER_BYTES = 32 << 10
OTHER_FILES = 200
"""Open files other than connections: maps, models, decoders."""


def is_loopback(host: str) -> bool:
    """Check whether only this machine can reach a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a host name, which may start with 127 and belong to another machine
        return host in LOOPBACK


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens.

    Args:
        host: Host name or address.
        port: Port; 0 selects a free one.

    Returns:
        The socket.

    Raises:
        KappaPlaceError: If the host is unknown or the port is in use.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise KappaPlaceError(f"Cannot listen on {host}, port {port}: {error}. Check --host.") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise KappaPlaceError(
            f"Cannot listen on {host}, port {port}: {os.strerror(error.errno or 0).lower()}. "
            "Choose another port with --port (0 selects a free one)."
        ) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the URL to open in a browser."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files of this process, as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run(
    app: FastAPI, settings: Settings, listening: socket.socket, ready: Callable[[str], None], log_level: str
) -> None:
    """Serve until SIGTERM or Ctrl-C; pending requests are answered first.

    Args:
        app: Application of `create_app`.
        settings: Settings of the service.
        listening: Socket of `listen`.
        ready: Function that is called with the URL before the first request.
        log_level: Log level of uvicorn: error, warning, info or debug.
    """
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level in ("info", "debug"),
        server_header=False,
        proxy_headers=False,  # a client could send any address
        timeout_keep_alive=int(HEADER_SECONDS),
        timeout_graceful_shutdown=int(settings.timeout) + GRACE,
        http=guarded(),
        ws="none",
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
    _allow_open_files(settings.max_requests + IN_ALL + OTHER_FILES)
    # uvicorn raises the signal again at the end; a signal that was handled is not a failure.
    stops = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.signal(each, lambda number, frame: None) for each in stops]
    try:
        ready(address_of(listening))
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        for each, handler in zip(stops, handlers, strict=True):
            signal.signal(each, handler)
        listening.close()
