"""What a service allows; every limit has a default that suits one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kappaplace.data import HEIF
from kappaplace.errors import KappaPlaceError

FORMATS = ("JPEG", "PNG", "WEBP")
"""Decoded by default: what cameras and browsers send, by decoders that are fuzzed for browsers too."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
FEWEST_LETTERS = 16
"""A token that can be guessed is none."""


@dataclass(frozen=True)
class Settings:
    """Limits and secrets of a service."""

    read_token: str = ""
    """Asked of every call to the API; empty: nobody is asked."""
    write_token: str = ""
    """Asked of calls that append, and good for all others; empty: nobody may append."""
    max_body: int = 16 << 20
    """Bytes of a request."""
    max_pixels: int = 50_000_000
    """Of an image, before it is decoded; the largest phone cameras have as many."""
    max_batch: int = 32
    """Images of one request."""
    max_k: int = 100
    """Matches of one query."""
    timeout: float = 30.0
    """Seconds for a request to arrive, and again to be answered."""
    batch_size: int = 32
    """Images embedded together, whoever sent them."""
    window: float = 0.004
    """Seconds that a batch waits for images that are being decoded."""
    queue: int = 128
    """Images taken but not answered; what comes beyond is told to come back."""
    heic: bool = False
    """Decode HEIC as well: its decoder is far less tested against hostile files."""
    hosts: tuple[str, ...] = ()
    """Names under which it may be asked, against DNS rebinding; empty: any."""
    origins: tuple[str, ...] = ()
    """Pages of other sites that may ask (CORS); none by default."""
    tile_url: str = ""
    """Tiles behind the drawing of the map, ``https://…/{z}/{x}/{y}.png``; the page asks no other host."""
    tile_attribution: str = ""
    """Whose the tiles are, shown under the map; addresses in it become links."""
    demo_queries: Path | None = None
    """Folder of images that the page offers for trying out."""

    def __post_init__(self) -> None:
        whole = ("max_body", "max_pixels", "max_batch", "max_k", "batch_size", "queue")
        for name in whole:
            if getattr(self, name) < 1:
                raise KappaPlaceError(f"{name} of a service must be at least 1, not {getattr(self, name)}.")
        if not self.timeout > 0 or not 0 <= self.window <= 1:
            raise KappaPlaceError(
                f"A service needs a timeout above 0 s and a window of 0 to 1 s, not {self.timeout:g} and "
                f"{self.window:g}."
            )
        for what in ("read", "write"):
            token = getattr(self, f"{what}_token")
            if token and (len(token) < FEWEST_LETTERS or not token.isascii() or token.split() != [token]):
                raise KappaPlaceError(
                    f"The {what} token needs at least {FEWEST_LETTERS} letters, ASCII and without spaces; "
                    "make one with `openssl rand -hex 24`."
                )
        if self.read_token and self.read_token == self.write_token:
            raise KappaPlaceError("The read and the write token are the same; readers could then write.")
        if self.max_batch > self.queue:
            raise KappaPlaceError(
                f"A request of {self.max_batch} images never fits a queue of {self.queue}; raise --queue."
            )
        if self.tile_attribution and not self.tile_url:
            raise KappaPlaceError("There are no tiles to attribute; give --tile-url with --tile-attribution.")
        if self.tile_url and not self.tile_host:
            raise KappaPlaceError(
                f"The tiles' address must be like https://host/{{z}}/{{x}}/{{y}}.png, not {self.tile_url!r}."
            )

    @property
    def max_requests(self) -> int:
        """Requests at once: those of a full queue, and as many to be told so or to look at the map."""
        return 2 * self.queue + 64

    @property
    def formats(self) -> tuple[str, ...]:
        """Image formats that are decoded, by Pillow's names."""
        return (*FORMATS, HEIF) if self.heic else FORMATS

    @property
    def tile_host(self) -> str:
        """Scheme and host of the tiles, for the page's content security policy; empty without."""
        parts = urlsplit(self.tile_url)
        named = all(mark in self.tile_url for mark in ("{z}", "{x}", "{y}"))
        # The host goes into a header: nothing that could end the directive.
        clean = bool(parts.netloc) and not set(parts.netloc) & set(" ;,'\"\\\r\n")
        return (
            f"{parts.scheme}://{parts.netloc}"
            if parts.scheme in ("http", "https") and named and clean
            else ""
        )


KINDS = ("read", "write")


def read_tokens(
    file: Path | None, read_variable: str, write_variable: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """``read_token`` and ``write_token``, empty where there is none; the file wins."""
    found = {
        "read_token": environment.get(read_variable, ""),
        "write_token": environment.get(write_variable, ""),
    }
    return found if file is None else found | _from_file(file)


def _from_file(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise KappaPlaceError(f"The token file {file} cannot be read: {reason}.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()
        if len(words) != 2 or words[0] not in KINDS:  # the line itself is secret, so it is not shown
            raise KappaPlaceError(f"Line {number} of {file} is not `read TOKEN` or `write TOKEN`.")
        found[f"{words[0]}_token"] = words[1]
    if not found:
        raise KappaPlaceError(f"The token file {file} holds no token; write `read TOKEN` into it.")
    return found
