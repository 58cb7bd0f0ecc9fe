"""A service of `kappaplace serve`, as a Python object.

    town = Client("http://robot-base:8000", token=os.environ["KAPPAPLACE_READ_TOKEN"])
    answer = town.localize("query.jpg", k=5)          # the same `Localization` as from `PlaceMap`
    if answer.decision == "accept":
        drive_to(answer.pose)

Needs nothing beyond what comes with Python and this package; one object may be used by several threads.
"""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from kappaplace._moved import renamed
from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.data import Circle, Source
    from kappaplace.maps import Localization
    from kappaplace.types import Embeddings

TRIES = 4
"""How often a busy service is asked before giving up."""
BUSY = (409, 429, 503)
"""What a service answers that is asked again when it says so."""
LONGEST_WAIT = 10.0
"""Seconds that a service may ask us to wait."""


class ServiceError(KappaPlaceError):
    """What the service answered instead; ``status`` is that of HTTP, 0 where it was not reached."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """Asks one service; ``map`` is the map that is meant unless a call names another."""

    def __init__(
        self, url: str, *, token: str = "", map: str | None = None, timeout: float = 60.0, tries: int = TRIES
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise KappaPlaceError(f"The address of a service begins with http:// or https://, not {url!r}.")
        if not timeout > 0 or tries < 1:
            raise KappaPlaceError(
                f"A client needs a timeout above 0 s and a try, not {timeout:g} and {tries}."
            )
        self.url, self.map, self.timeout, self.tries = url.rstrip("/"), map, timeout, tries
        self._token = token

    @renamed(near="area")
    def localize(
        self,
        image: Source,
        k: int = 10,
        *,
        area: Circle | None = None,
        order: str = "similarity",
        rerank: int | None = None,
        max_risk: float | None = None,
        map: str | None = None,
    ) -> Localization:
        """Find where an image was taken.

        Args:
            image: A file, bytes, an array or a PIL image.
            k: Number of matches.
            area: Search only this circle: x, y and radius in meters of the map.
            order: Order of the matches: similarity or probability.
            rerank: Number of top matches to compare patch by patch. Default: as at calibration.
            max_risk: Decide for this risk instead of the calibrated one; estimated, not proven.
            map: Name of the map. Default: that of the client, or the first one.

        Returns:
            The answer.

        Raises:
            ServiceError: If the service refuses the request.
        """
        options = {"k": k, "area": _circle(area), "order": order, "rerank": rerank, "max_risk": max_risk}
        return localization_of(self._post("/v1/localize", [image], options, map))

    @renamed(near="area")
    def localize_batch(
        self,
        images: Iterable[Source],
        k: int = 10,
        *,
        area: Circle | None = None,
        order: str = "similarity",
        rerank: int | None = None,
        max_risk: float | None = None,
        map: str | None = None,
    ) -> list[Localization]:
        """Find where several images were taken; arguments are those of `localize`."""
        options = {"k": k, "area": _circle(area), "order": order, "rerank": rerank, "max_risk": max_risk}
        found = self._post("/v1/localize/batch", list(images), options, map)
        return [localization_of(answer) for answer in found["answers"]]

    def embed(self, images: Iterable[Source], *, map: str | None = None) -> Embeddings:
        """Descriptors and κ of images, from the map's model."""
        import numpy as np

        from kappaplace.types import Embeddings

        found = self._post("/v1/embed", list(images), {}, map)
        kappa = None if found["kappa"] is None else np.array(found["kappa"], np.float32)
        return Embeddings(np.array(found["descriptors"], np.float32), kappa)

    def append(
        self,
        image: Source,
        *,
        x: float | None = None,
        y: float | None = None,
        heading: float | None = None,
        time: float | None = None,
        map: str | None = None,
    ) -> dict[str, Any]:
        """Put an image into the map; needs the write token. Says its name, number and whether it is new."""
        return self._post("/v1/references", [image], {"x": x, "y": y, "heading": heading, "time": time}, map)

    def maps(self) -> list[str]:
        """Names of the maps."""
        return list(self._get("/v1/maps")["maps"])

    def info(self, *, map: str | None = None) -> dict[str, Any]:
        """What a map is."""
        return self._get("/v1/map", map=map or self.map)

    def calibration(self, *, map: str | None = None) -> dict[str, Any]:
        """What the map was calibrated on and what it promises."""
        return self._get("/v1/map/calibration", map=map or self.map)

    def references(
        self,
        bbox: tuple[float, float, float, float] | None = None,
        *,
        limit: int = 2000,
        order: str = "map",
        map: str | None = None,
    ) -> list[dict[str, Any]]:
        """References of an area (x0, y0, x1, y1), at most ``limit`` of them."""
        area = None if bbox is None else ",".join(repr(float(value)) for value in bbox)
        found = self._get("/v1/map/references", bbox=area, limit=limit, order=order, map=map or self.map)
        return list(found["references"])

    def ready(self) -> bool:
        """Whether the service can answer."""
        try:
            self._send(self._request("/readyz", {}), 1)
        except ServiceError:
            return False
        return True

    def _get(self, path: str, **values: Any) -> dict[str, Any]:
        return self._send(self._request(path, values), self.tries)

    def _post(
        self, path: str, images: Sequence[Source], values: dict[str, Any], map: str | None
    ) -> dict[str, Any]:
        if not images:
            raise KappaPlaceError("There is nothing to send: the list of images is empty.")
        fields = {**values, "map": map or self.map}
        boundary = uuid.uuid4().hex
        request = self._request(path, {})
        request.data = _form([_file_bytes(image) for image in images], fields, boundary)
        request.add_header("Content-Type", f"multipart/form-data; boundary={boundary}")
        return self._send(request, self.tries)

    def _request(self, path: str, values: dict[str, Any]) -> urllib.request.Request:
        query = urlencode({name: value for name, value in values.items() if value is not None})
        request = urllib.request.Request(f"{self.url}{path}{'?' if query else ''}{query}")
        if self._token:
            # Not sent on to another host should the service redirect, which it never does itself.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _send(self, request: urllib.request.Request, tries: int) -> dict[str, Any]:
        for left in reversed(range(tries)):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    found: dict[str, Any] = json.loads(answer.read())
                    return found
            except urllib.error.HTTPError as error:
                with error:
                    wait = _seconds(error.headers.get("Retry-After"))
                    if error.code in BUSY and wait is not None and left:
                        time.sleep(min(wait, LONGEST_WAIT))
                        continue
                    raise ServiceError(_sentence(error), error.code) from None
            except (OSError, ValueError, http.client.HTTPException) as error:  # not HTTP, or no JSON
                reason = getattr(error, "reason", error)
                raise ServiceError(f"The service at {self.url} does not answer: {reason}.", 0) from None
        raise AssertionError("unreachable")


def localization_of(values: dict[str, Any]) -> Localization:
    """An answer of the service as the one of a map; null becomes NaN again where a number is meant."""
    from kappaplace.maps import Localization, Match, Pose

    matches = tuple(Match(**_match(match)) for match in values["matches"])
    pose = values["pose"]
    same = ("query", "probability", "inside", "decision", "in_map", "seconds", "calibration")
    return Localization(
        **{key: values[key] for key in same},
        kappa=_number(values["kappa"]),
        uncertainty=_number(values["uncertainty"]),
        pose=None if pose is None else Pose(**{**pose, "heading": _number(pose["heading"])}),
        matches=matches,
        signals={name: _number(value) for name, value in values["signals"].items()},
        notes=tuple(values["notes"]),
    )


_NUMBERS = ("x", "y", "heading", "time", "similarity", "kappa", "uncertainty")
_MATCH = {"rank", "name", "probability", "decision", "reference", *_NUMBERS}


def _match(values: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in values.items() if key in _MATCH}
    return {**known, **{key: _number(known[key]) for key in _NUMBERS}, "image": ""}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _circle(area: Circle | None) -> str | None:
    if area is None:
        return None
    x, y, radius = (*area[0], area[1]) if len(area) == 2 else area  # ((x, y), radius) of earlier versions
    return f"{x!r},{y!r},{radius!r}"


def _file_bytes(image: Source) -> bytes:
    """A file as it is; pixels as a PNG, which loses nothing."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise KappaPlaceError(f"The image {image} cannot be read: {error.strerror}.") from None
    from kappaplace.data import decode

    buffer = io.BytesIO()
    decode(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _form(images: Sequence[bytes], fields: dict[str, Any], boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
        if value is not None
    ]
    for image in images:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'
        parts.append(head.encode() + image + b"\r\n")
    return b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _sentence(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"The service answered with status {error.code}."
