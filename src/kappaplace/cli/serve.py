"""``kappaplace serve``: maps over HTTP, for robots and for people."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kappaplace.errors import KappaPlaceError, MissingExtra

MIB = 1 << 20


def serve(
    maps: Annotated[
        list[str], typer.Argument(metavar="MAP…", help="Maps made by `map build`; NAME=MAP names one.")
    ],
    host: Annotated[
        str, typer.Option(help="Where to listen; only this machine unless stated.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the lines `read TOKEN` and `write TOKEN`, or one of them.")
    ] = None,
    read_token_env: Annotated[
        str, typer.Option(help="Environment variable with the token that reading asks for.")
    ] = "KAPPAPLACE_READ_TOKEN",
    write_token_env: Annotated[
        str, typer.Option(help="Environment variable with the token that appending asks for.")
    ] = "KAPPAPLACE_WRITE_TOKEN",
    open_: Annotated[
        bool, typer.Option("--open", help="Let everybody read who can reach HOST, without a token.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name under which the service is asked.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="A page of another site that may ask, as https://host (CORS).")
    ] = None,
    max_body: Annotated[float, typer.Option(help="MiB of a request.")] = 16.0,
    max_pixels: Annotated[float, typer.Option(help="Megapixels of an image.")] = 50.0,
    max_batch: Annotated[int, typer.Option(help="Images of a request.")] = 32,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.")] = 30.0,
    batch_size: Annotated[int, typer.Option(help="Images embedded together, whoever sent them.")] = 32,
    window: Annotated[
        float, typer.Option(help="Milliseconds that a batch waits for images that are arriving.")
    ] = 4.0,
    queue: Annotated[int, typer.Option(help="Images waiting; beyond that clients get 429.")] = 128,
    heic: Annotated[bool, typer.Option(help="Read HEIC as well; its decoder is less tested.")] = False,
    demo_queries: Annotated[
        Path | None, typer.Option(help="Folder of images that the page offers for trying out.")
    ] = None,
    tile_url: Annotated[
        str, typer.Option(help="Tiles behind the map, https://…/{z}/{x}/{y}.png; none unless stated.")
    ] = "",
    tile_attribution: Annotated[
        str, typer.Option(help="Whose the tiles are, shown under the map: '© …, https://…'.")
    ] = "",
    model: Annotated[str, typer.Option(help="The maps' model, if it does not lie where it did.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "",
    engine: Annotated[str, typer.Option(help="auto, exact, ivf-pq.")] = "auto",
    log_level: Annotated[str, typer.Option(help="error, warning, info or debug.")] = "warning",
) -> None:
    """Serve maps: a page in the browser, and an HTTP API.

    Tokens never stand on the command line, where others could read them: put them into the environment or a
    file. Without a read token the service only listens on this machine, unless `--open` says otherwise.

    Examples:

        kappaplace serve town.map

        kappaplace serve town.map harbour=/maps/harbour-2024.map --port 8080

        KAPPAPLACE_READ_TOKEN=$(openssl rand -hex 24) kappaplace serve town.map --host 0.0.0.0
    """
    if log_level not in ("error", "warning", "info", "debug"):
        raise KappaPlaceError(f"--log-level is error, warning, info or debug, not {log_level!r}.")
    try:
        from kappaplace.serve import create_app, is_loopback, listen, run
    except ImportError:
        raise MissingExtra("Serving", "serve") from None
    from kappaplace.serve import LOOPBACK, Settings, read_tokens

    tokens = read_tokens(token_file, read_token_env, write_token_env, os.environ)
    local = is_loopback(host)
    if not local and not tokens["read_token"] and not open_:
        raise KappaPlaceError(
            f"At {host} others could ask without a token; set {read_token_env}, or say --open if they may."
        )
    settings = Settings(
        read_token=tokens["read_token"],
        write_token=tokens["write_token"],
        max_body=_whole(max_body * MIB, "--max-body"),
        max_pixels=_whole(max_pixels * 1e6, "--max-pixels"),
        max_batch=max_batch,
        timeout=timeout,
        batch_size=batch_size,
        window=window / 1000,
        queue=queue,
        heic=heic,
        hosts=(*LOOPBACK, host, *(allow_host or ())) if local else tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        tile_url=tile_url,
        tile_attribution=tile_attribution,
        demo_queries=demo_queries,
    )
    opened = _open_maps(maps, model or None, device=device or None, engine=engine)
    app = create_app(opened, settings)
    listening = listen(host, port)  # an address that is taken is told before models are loaded
    for one in app.state.served.values():
        one.warm()

    def ready(address: str) -> None:
        counts = ", ".join(f"{name} ({len(one):,} references)" for name, one in opened.items())
        typer.echo(f"Serving {counts}")
        typer.echo(f"Open {address} in a browser; the API is described at {address}/openapi.json")

    run(app, settings, listening, ready, log_level)


def _whole(number: float, option: str) -> int:
    if not math.isfinite(number):
        raise KappaPlaceError(f"{option} must be a finite number.")
    return int(number)


def _open_maps(maps: list[str], model: str | None, **options: Any) -> dict[str, Any]:
    """Maps by name: the one stated, or that of the folder without its suffix."""
    from kappaplace.maps import PlaceMap

    found: dict[str, PlaceMap] = {}
    for text in maps:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).name.removesuffix(".map") or text, text
        if name in found:
            raise KappaPlaceError(f"Two maps are called {name!r}; tell them apart as NAME=MAP.")
        found[name] = PlaceMap.open(path, model, **options)
    return found
