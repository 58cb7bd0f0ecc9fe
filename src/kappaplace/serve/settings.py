"""Limits and tokens of a service; the defaults suit a single machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kappaplace.checks import within
from kappaplace.data import HEIF
from kappaplace.errors import KappaPlaceError

FORMATS = ("JPEG", "PNG", "WEBP")
"""Image formats that are always accepted. Browser vendors also fuzz the decoders of these formats."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
KINDS = ("read", "write")
"""Kinds of tokens."""
FEWEST_LETTERS = 16
"""Shortest token, so that it cannot be guessed."""


@dataclass(frozen=True)
class Settings:
    """Limits and tokens of a service."""

    read_token: str = ""
    """Token for all API calls. Default: no token is required."""
    write_token: str = ""
    """Token for appending images; also accepted for all other calls. Default: appending is disabled."""
    max_body: int = 16 << 20
    """Largest request in bytes."""
    max_pixels: int = 50_000_000
    """Largest image in pixels, checked before decoding; as many as the largest phone cameras."""
    max_batch: int = 32
    """Largest number of images per request."""
    max_k: int = 100
    """Largest number of matches per query."""
    timeout: float = 30.0
    """Seconds for a request to arrive, and again for its answer."""
    batch_size: int = 32
    """Number of images to embed at once, from all clients."""
    window: float = 0.004
    """Seconds that a batch waits for images that are being decoded, at most 1."""
    queue: int = 128
    """Largest number of pending images; further requests are rejected with a time to retry."""
    heic: bool = False
    """Also decode HEIC. Its decoder is much less tested against malicious files."""
    hosts: tuple[str, ...] = ()
    """Accepted host names, against DNS rebinding. Default: any."""
    origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may call the service (CORS)."""
    tile_url: str = ""
    """URL of map tiles, ``https://…/{z}/{x}/{y}.png``. The page calls no other host."""
    tile_attribution: str = ""
    """Attribution for the map tiles, shown below the map; URLs in it become links."""
    labels: Path | None = None
    """Folder for the labels that visitors of the page give to answers. Default: none are stored."""
    demo_queries: Path | None = None
    """Folder of sample images that the page offers."""

    def __post_init__(self) -> None:
        for name in ("max_body", "max_pixels", "max_batch", "max_k", "batch_size", "queue"):
            within(getattr(self, name), name, 1)
        if not self.timeout > 0:
            raise KappaPlaceError(f"timeout must be above 0 seconds, got {self.timeout:g}.")
        within(self.window, "window", 0, 1)
        for kind in KINDS:
            token = getattr(self, f"{kind}_token")
            if token and (len(token) < FEWEST_LETTERS or not token.isascii() or token.split() != [token]):
                raise KappaPlaceError(
                    f"The {kind} token needs at least {FEWEST_LETTERS} ASCII characters without spaces. "
                    "Create one with `openssl rand -hex 24`."
                )
        if self.read_token and self.read_token == self.write_token:
            raise KappaPlaceError(
                "The read token and the write token must differ. Otherwise readers could write."
            )
        if self.max_batch > self.queue:
            raise KappaPlaceError(
                f"max_batch must be at most queue, got {self.max_batch} and {self.queue}. Pass a larger "
                "--queue."
            )
        if self.tile_attribution and not self.tile_url:
            raise KappaPlaceError("--tile-attribution needs --tile-url. Pass both, or omit the attribution.")
        if self.tile_url and not self.tile_host:
            raise KappaPlaceError(
                f"tile_url must look like https://host/{{z}}/{{x}}/{{y}}.png, got {self.tile_url!r}."
            )

    @property
    def max_requests(self) -> int:
        """Largest number of simultaneous requests: a full queue, and as many that are rejected."""
        return 2 * self.queue + 64

    @property
    def formats(self) -> tuple[str, ...]:
        """Accepted image formats, by their names in Pillow."""
        return (*FORMATS, HEIF) if self.heic else FORMATS

    @property
    def tile_host(self) -> str:
        """Scheme and host of the tiles, for the content security policy; empty without tiles."""
        parts = urlsplit(self.tile_url)
        template = all(mark in self.tile_url for mark in ("{z}", "{x}", "{y}"))
        # The host is written into a header, so it must not contain anything that ends the directive.
        clean = bool(parts.netloc) and not set(parts.netloc) & set(" ;,'\"\\\r\n")
        if parts.scheme not in ("http", "https") or not template or not clean:
            return ""
        return f"{parts.scheme}://{parts.netloc}"


def read_tokens(
    file: Path | None, read_variable: str, write_variable: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Read the tokens of a service from a file and from the environment; the file has priority.

    Args:
        file: File with lines ``read TOKEN`` or ``write TOKEN``.
        read_variable: Environment variable of the read token.
        write_variable: Environment variable of the write token.
        environment: Environment variables.

    Returns:
        ``read_token`` and ``write_token``; empty if missing.

    Raises:
        KappaPlaceError: If the file cannot be read.
    """
    tokens = {
        "read_token": environment.get(read_variable, ""),
        "write_token": environment.get(write_variable, ""),
    }
    return tokens if file is None else tokens | _from_file(file)


def _from_file(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise KappaPlaceError(f"The token file {file} cannot be read: {reason}. Check the file.") from None
    tokens = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()
        if len(words) != 2 or words[0] not in KINDS:  # the line may contain a secret, so it is not shown
            raise KappaPlaceError(f"{file} line {number} must be `read TOKEN` or `write TOKEN`.")
        tokens[f"{words[0]}_token"] = words[1]
    if not tokens:
        raise KappaPlaceError(f"The token file {file} contains no token. Write a line `read TOKEN`.")
    return tokens
