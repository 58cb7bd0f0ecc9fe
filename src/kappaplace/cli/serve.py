"""`kappaplace serve`: maps over HTTP, for robots and for people."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kappaplace.checks import within
from kappaplace.cli.options import MapEncoder
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.records import Help, Setting

if TYPE_CHECKING:
    from kappaplace.maps import PlaceMap
    from kappaplace.serve import Settings

MIB = 1 << 20


@dataclass(frozen=True)
class ServeOptions:
    """Options of a service: URL, access, web page and limits."""

    host: Annotated[str, Help("Host name or IP address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Help("Port to listen on; 0 chooses a free port.")] = 8000
    token_file: Annotated[
        Path | None, Help("File with a line `read TOKEN`, a line `write TOKEN`, or both.")
    ] = None
    open_: Annotated[bool, Help("Allow read access without a token on a public host.", ("--open",))] = False
    allow_host: Annotated[list[str], Help("Additional host name to accept requests for; repeatable.")] = (
        field(default_factory=list)
    )
    allow_origin: Annotated[
        list[str], Help("Website whose pages may call the service (CORS), as https://host; repeatable.")
    ] = field(default_factory=list)
    demo_queries: Annotated[Path | None, Help("Folder of example images to show on the page.")] = None
    labels: Annotated[
        Path | None,
        Help("Folder for the feedback of visitors (correct or incorrect). Default: no feedback."),
    ] = None
    tile_url: Annotated[
        str, Help("URL of background map tiles, as https://…/{z}/{x}/{y}.png. Default: no tiles.")
    ] = ""
    tile_attribution: Annotated[
        str, Setting("attribution of the map tiles, shown below the map: '© …, https://…'.")
    ] = ""
    heic: Annotated[bool, Help("Accept HEIC images. The HEIC decoder is less tested than the others.")] = (
        False
    )
    read_token_env: Annotated[str, Setting("environment variable with the read token.")] = (
        "KAPPAPLACE_READ_TOKEN"
    )
    write_token_env: Annotated[str, Setting("environment variable with the token for adding images.")] = (
        "KAPPAPLACE_WRITE_TOKEN"
    )
    max_body: Annotated[float, Setting("maximum size of a request in MiB.")] = 16.0
    max_pixels: Annotated[float, Setting("maximum size of an image in megapixels.")] = 50.0
    max_batch: Annotated[int, Setting("maximum number of images per request.")] = 32
    timeout: Annotated[float, Setting("maximum time per request in seconds.")] = 30.0
    window: Annotated[float, Setting("time in milliseconds that a batch waits for more images.")] = 4.0
    queue: Annotated[
        int, Setting("maximum number of images in the queue; further requests get status 429.")
    ] = 128

    def settings(self, batch_size: int, environment: Mapping[str, str]) -> Settings:
        """Return the settings of the service.

        Args:
            batch_size: Number of images to embed at once.
            environment: Environment variables, which may contain the tokens.

        Returns:
            The settings.

        Raises:
            KappaPlaceError: If the service would be public without a token, or a value is out of range.
        """
        from kappaplace.serve import LOOPBACK, Settings, is_loopback, read_tokens

        within(self.port, "--port", 0, 65535)
        tokens = read_tokens(self.token_file, self.read_token_env, self.write_token_env, environment)
        local = is_loopback(self.host)
        if not local and not tokens["read_token"] and not self.open_:
            raise KappaPlaceError(
                f"--host {self.host} lets others read the maps without a token. Set {self.read_token_env}, "
                "or pass --open to allow it."
            )
        hosts = (*LOOPBACK, self.host, *self.allow_host) if local else tuple(self.allow_host)
        return Settings(
            read_token=tokens["read_token"],
            write_token=tokens["write_token"],
            max_body=_whole(self.max_body * MIB, "--max-body"),
            max_pixels=_whole(self.max_pixels * 1e6, "--max-pixels"),
            max_batch=self.max_batch,
            timeout=self.timeout,
            batch_size=batch_size,
            window=self.window / 1000,
            queue=self.queue,
            heic=self.heic,
            hosts=hosts,
            origins=tuple(self.allow_origin),
            tile_url=self.tile_url,
            tile_attribution=self.tile_attribution,
            demo_queries=self.demo_queries,
            labels=self.labels,
        )


def serve(
    maps: Annotated[
        list[str],
        typer.Argument(
            metavar="MAP…", help="Map folders, written by `kappaplace map build`. NAME=MAP sets a name."
        ),
    ],
    options: ServeOptions,
    encoder: MapEncoder,
    engine: Annotated[str, typer.Option(help="Search engine: auto, exact or ivf-pq.")] = "auto",
    log_level: Annotated[
        Literal["error", "warning", "info", "debug"], typer.Option(help="Lowest level of messages to log.")
    ] = "warning",
) -> None:
    """Serve maps: a page in the browser, and an HTTP API.

    Put tokens into environment variables or a file: other users can read the command line. Without a read
    token the service listens only on this machine, unless you pass `--open`.

    Examples:

        kappaplace serve town.map

        kappaplace serve town.map harbour=/maps/harbour-2024.map --port 8080 --set max-batch=8

        KAPPAPLACE_READ_TOKEN=$(openssl rand -hex 24) kappaplace serve town.map --host 0.0.0.0
    """
    try:
        from kappaplace.serve import create_app, listen, run
    except ImportError:
        raise MissingExtra("Serving", "serve") from None
    settings = options.settings(encoder.batch_size, os.environ)
    opened = _open_maps(maps, encoder, engine)
    app = create_app(opened, settings)
    listening = listen(options.host, options.port)  # fails before models are loaded if the port is taken
    for each in app.state.served.values():
        each.warm()

    def ready(url: str) -> None:
        counts = ", ".join(f"{name} ({len(each):,} references)" for name, each in opened.items())
        typer.echo(f"Serving {counts}")
        typer.echo(f"Open {url} in a browser; the API is described at {url}/docs")

    run(app, settings, listening, ready, log_level)


def _whole(number: float, option: str) -> int:
    if not math.isfinite(number):
        raise KappaPlaceError(f"{option} must be a finite number, got {number}.")
    return int(number)


def _open_maps(maps: list[str], encoder: MapEncoder, engine: str) -> dict[str, PlaceMap]:
    """Return the open maps by name: the name before "=", or the name of the folder without its suffix."""
    opened: dict[str, PlaceMap] = {}
    for text in maps:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).name.removesuffix(".map") or text, text
        if name in opened:
            raise KappaPlaceError(f'Two maps have the name "{name}". Pass them as NAME=MAP.')
        opened[name] = encoder.open(Path(path), engine)
    return opened
