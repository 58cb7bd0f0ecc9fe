"""`create_app`: maps in, a FastAPI application out."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappaplace.data import default_workers
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.serve import routes_localize, routes_map, routes_other
from kappaplace.serve.metrics import Metrics
from kappaplace.serve.protect import Limits, SecureHeaders, add_handlers
from kappaplace.serve.routes_other import demo_files, page_files
from kappaplace.serve.served_map import ServedMap
from kappaplace.serve.settings import LOOPBACK, Settings
from kappaplace.version import package_version

log = logging.getLogger("kappaplace.serve")

DESCRIPTION = """Where was this photo taken, how probable is that, and what to do with the answer.

Images are sent as a form (`image=@query.jpg`), as base64 in JSON, or as the bare file. Positions are
metres of the map's frame. Errors are one sentence: `{"error": "…"}`."""


def create_app(maps: Mapping[str, PlaceMap], settings: Settings | None = None) -> FastAPI:
    """The service of some maps by name; the first one is meant where a request names none."""
    settings = settings or Settings()
    if not maps:
        raise KappaPlaceError("A service needs at least one map.")
    decoders = ThreadPoolExecutor(default_workers(), thread_name_prefix="decode")
    metrics = Metrics()
    served = {
        name: ServedMap(name, one, settings, decoders, partial(metrics.batch, name))
        for name, one in maps.items()
    }

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        for one in served.values():
            one.start()
        loading = asyncio.create_task(_load(list(served.values())))
        try:
            yield
        except asyncio.CancelledError:  # told twice to stop: nothing is waited for any more
            return
        await loading
        for one in served.values():
            await one.close()
        decoders.shutdown(wait=True)

    app = FastAPI(
        title="KappaPlace",
        version=package_version(),
        description=DESCRIPTION,
        lifespan=life,
        docs_url=None,  # the usual pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # it would repeat the name that the client claims to have asked
    )
    app.state.settings, app.state.served, app.state.metrics = settings, served, metrics
    app.state.demo, app.state.page = demo_files(settings), page_files()
    for router in (
        routes_localize.router,
        routes_map.router,
        routes_other.write,
        routes_other.demo,
        routes_other.operation,
        routes_other.page,
    ):
        app.include_router(router)
    add_handlers(app, {name: one.folder for name, one in maps.items()})
    # The last one added is the first one asked.
    app.add_middleware(
        Limits, most=settings.max_body, seconds=settings.timeout, at_once=settings.max_requests
    )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    app.add_middleware(SecureHeaders, settings=settings)
    app.add_middleware(_Counted, metrics=metrics)
    return app


async def _load(served: list[ServedMap]) -> None:
    loop = asyncio.get_running_loop()
    for one in served:
        try:
            await loop.run_in_executor(one.batcher.pool, one.warm)
        except Exception as error:
            one.failure = str(error)
            log.exception("The map %s cannot be used", one.name)


class _Counted:
    """Counts answers by their route: the pattern, so that strangers cannot make up labels."""

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
