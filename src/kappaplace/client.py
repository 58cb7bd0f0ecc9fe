"""HTTP client for `kappaplace serve`.

    town = Client("http://robot-base:8000", token=os.environ["KAPPAPLACE_READ_TOKEN"])
    answer = town.localize("query.jpg", k=5)          # the same `Localization` as from `PlaceMap`
    if answer.decision == "accept":
        drive_to(answer.pose)

It uses only Python's standard library, but installs with this package and therefore with torch. Several
threads can share one client.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlencode, urlsplit

from kappaplace._names import renamed
from kappaplace.errors import KappaPlaceError
from kappaplace.files import why
from kappaplace.records import R
from kappaplace.types import Json

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from kappaplace.data import Circle, Source
    from kappaplace.maps import Localization
    from kappaplace.types import Embeddings

TRIES = 4
"""Number of attempts when the service is busy."""
BUSY = (409, 429, 503)
"""HTTP statuses of a busy service; the request is repeated if the service sends ``Retry-After``."""
LONGEST_WAIT = 10.0
"""Longest wait between two attempts in seconds, whatever the service requests."""


class ServiceError(KappaPlaceError):
    """Error if the service reports a problem or cannot be reached.

    Args:
        message: The service's message.
        status: HTTP status; 0 if the service was not reached.
        code: Code of the error, which does not change between versions; empty if it is unknown.
        request_id: Id of the request in the log of the service; empty if it is unknown.
    """

    def __init__(self, message: str, status: int, code: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.request_id = status, code, request_id


class QueryOptions(TypedDict, total=False):
    """Options of a query."""

    area: Circle | None
    """Search only this circle: x, y and radius in metres of the map's frame, or latitude, longitude (degrees)
    and radius (metres)."""
    order: str
    """Order of the matches: "similarity" or "probability"."""
    outside_rate: float | None
    """Expected fraction of out-of-map queries. Default: the calibrated one."""
    rerank: int | None
    """Number of top matches to compare patch by patch. Default: the value used for calibration."""
    max_risk: float | None
    """Decide for this risk instead of the calibrated one. It is an estimate, not a guarantee."""
    heading: float | None
    """Direction of view in degrees clockwise from north, if it is known."""
    coverage: float | None
    """Also return the smallest set of places that contains the correct one with this probability."""
    group: str | None
    """Group of the queries, if the map was calibrated with groups."""


class Client:
    """HTTP client for `kappaplace serve`.

    All methods raise `ServiceError` if the service reports an error or cannot be reached.

    Args:
        url: URL of the service.
        token: Token of the service. Default: none.
        map: Name of the map for all calls. Default: the first map of the service.
        timeout: Seconds to wait for an answer.
        tries: Number of attempts when the service is busy.

    Raises:
        KappaPlaceError: If an argument is invalid.
    """

    def __init__(
        self, url: str, *, token: str = "", map: str | None = None, timeout: float = 60.0, tries: int = TRIES
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise KappaPlaceError(f"url must begin with http:// or https://, got {url!r}.")
        if not timeout > 0 or tries < 1:
            raise KappaPlaceError(f"timeout must be above 0 and tries 1 or more, got {timeout} and {tries}.")
        self.url, self.map, self.timeout, self.tries = url.rstrip("/"), map, timeout, tries
        self._token = token

    @renamed(near="area")
    def localize(
        self, image: Source, k: int = 10, *, map: str | None = None, **options: Unpack[QueryOptions]
    ) -> Localization:
        """Estimate where an image was taken.

        Args:
            image: A path, the bytes of a file, a NumPy array or a Pillow image.
            k: Number of matches.
            map: Name of the map. Default: the map of the client.
            options: Keywords ``area``, ``order``, ``outside_rate``, ``rerank``, ``max_risk`` and ``heading``,
                see `QueryOptions`.

        Returns:
            The answer.

        Raises:
            ServiceError: If the service rejects the request.
        """
        return localization_of(self._post("/v1/localize", [image], _values(k, options), map))

    @renamed(near="area")
    def localize_batch(
        self,
        images: Iterable[Source],
        k: int = 10,
        *,
        map: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> list[Localization]:
        """Estimate where several images were taken; if one is invalid, none is answered.

        Args:
            images: Paths, bytes of files, NumPy arrays or Pillow images.
            k: Number of matches per image.
            map: Name of the map. Default: the map of the client.
            options: Keywords as for `localize`.

        Returns:
            One answer per image, in the same order.

        Raises:
            ServiceError: If the service rejects the request.
        """
        answers = self._post("/v1/localize/batch", list(images), _values(k, options), map)["answers"]
        return [localization_of(answer) for answer in answers]

    def localize_stream(
        self,
        images: Iterable[Source],
        k: int = 10,
        *,
        map: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[tuple[int, Localization | ServiceError]]:
        """Estimate where several images were taken, and yield each answer as soon as it is there.

        Args:
            images: Paths, bytes of files, NumPy arrays or Pillow images.
            k: Number of matches per image.
            map: Name of the map. Default: the map of the client.
            options: Keywords as for `localize`.

        Yields:
            The index of an image, and its answer or the error of this image.

        Raises:
            ServiceError: If the service rejects the whole request.
        """
        request = self._form_request("/v1/localize/batch", list(images), _values(k, options), map)
        request.add_header("Accept", "application/x-ndjson")
        for line in self._exchange(request, self.tries, lambda answer: answer):
            part = json.loads(line)
            yield (
                part["index"],
                _error(part["problem"]) if "problem" in part else localization_of(part["answer"]),
            )

    def localize_sequence(
        self,
        images: Iterable[Source],
        session: str,
        k: int = 10,
        *,
        rerank: int | None = None,
        map: str | None = None,
    ) -> list[Localization]:
        """Estimate where the next images of a camera were taken, each with the help of those before it.

        Args:
            images: Paths, bytes of files, NumPy arrays or Pillow images, in their order.
            session: Id of the camera: letters, digits, - and _. Choose one that no other client uses.
            k: Number of matches per image.
            rerank: Number of top matches to compare patch by patch. Default: the value used for calibration.
            map: Name of the map. Default: the map of the client.

        Returns:
            One answer per image, in the same order. No risk is guaranteed.

        Raises:
            ServiceError: If the service rejects the request.
        """
        options: dict[str, Json] = {"k": k, "rerank": rerank, "session": session}
        answers = self._post("/v1/localize/batch", list(images), options, map)["answers"]
        return [localization_of(answer) for answer in answers]

    def embed(self, images: Iterable[Source], *, map: str | None = None) -> Embeddings:
        """Embed images with the map's model.

        Args:
            images: Paths, bytes of files, NumPy arrays or Pillow images.
            map: Name of the map. Default: the map of the client.

        Returns:
            Descriptors (N×d) and κ (N; None if the model has no κ head).
        """
        import numpy as np

        from kappaplace.types import Embeddings

        answer = self._post("/v1/embed", list(images), {}, map)
        kappa = None if answer["kappa"] is None else np.array(answer["kappa"], np.float32)
        return Embeddings(np.array(answer["descriptors"], np.float32), kappa)

    def append(
        self,
        image: Source,
        *,
        x: float | None = None,
        y: float | None = None,
        latitude: float | None = None,
        longitude: float | None = None,
        heading: float | None = None,
        time: float | None = None,
        map: str | None = None,
    ) -> dict[str, Json]:
        """Add a reference image to the map; the client needs the write token.

        Args:
            image: A path, the bytes of a file, a NumPy array or a Pillow image.
            x: Position along east in metres of the map's frame. Default: unknown.
            y: Position along north in metres.
            latitude: Degrees north (WGS 84), instead of x and y.
            longitude: Degrees east.
            heading: Direction of view in degrees clockwise from north.
            time: Seconds since 1970.
            map: Name of the map. Default: the map of the client.

        Returns:
            Name and number of the reference, and whether it is new.
        """
        pose: dict[str, Json] = {"x": x, "y": y, "heading": heading, "time": time}
        pose |= {"latitude": latitude, "longitude": longitude}
        return self._post("/v1/references", [image], pose, map)

    def maps(self) -> list[str]:
        """Return the names of the service's maps.

        Returns:
            The names; the first map is the default.
        """
        return list(self._get("/v1/maps")["maps"])

    def info(self, *, map: str | None = None) -> dict[str, Json]:
        """Describe a map: its size, frame, model and settings.

        Args:
            map: Name of the map. Default: the map of the client.

        Returns:
            The fields that the API of `kappaplace serve` documents.
        """
        return self._get("/v1/map", map=map or self.map)

    def calibration(self, *, map: str | None = None) -> dict[str, Json]:
        """Describe the calibration of a map: its data and its guarantee.

        Args:
            map: Name of the map. Default: the map of the client.

        Returns:
            The fields that the API of `kappaplace serve` documents.
        """
        return self._get("/v1/map/calibration", map=map or self.map)

    def drift(self, *, map: str | None = None) -> dict[str, Json]:
        """Compare the queries since the start of the service with those of the calibration.

        Args:
            map: Name of the map. Default: the map of the client.

        Returns:
            The fields that the API of `kappaplace serve` documents.
        """
        return self._get("/v1/map/drift", map=map or self.map)

    def references(
        self,
        bbox: tuple[float, float, float, float] | None = None,
        *,
        limit: int = 2000,
        order: str = "map",
        map: str | None = None,
    ) -> list[dict[str, Json]]:
        """List references of a map.

        Args:
            bbox: Only references in this rectangle: x0, y0, x1, y1 in metres of the map's frame.
            limit: Largest number of references.
            order: Selection if there are more: "map" (spread evenly over the map), "kappa" (least certain
                first) or "distinctiveness" (most ambiguous first).
            map: Name of the map. Default: the map of the client.

        Returns:
            One description per reference.
        """
        area = None if bbox is None else ",".join(repr(float(value)) for value in bbox)
        answer = self._get("/v1/map/references", bbox=area, limit=limit, order=order, map=map or self.map)
        return list(answer["references"])

    def ready(self) -> bool:
        """Check whether the service can answer.

        Returns:
            True if it is ready; False if it is not, or cannot be reached.
        """
        try:
            self._send(self._request("/readyz", {}), 1)
        except ServiceError:
            return False
        return True

    def _get(self, path: str, **values: Json) -> Any:
        return self._send(self._request(path, values), self.tries)

    def _post(self, path: str, images: Sequence[Source], values: Mapping[str, Json], map: str | None) -> Any:
        return self._send(self._form_request(path, images, values, map), self.tries)

    def _form_request(
        self, path: str, images: Sequence[Source], values: Mapping[str, Json], map: str | None
    ) -> urllib.request.Request:
        if not images:
            raise KappaPlaceError("images must contain at least one image, got none.")
        boundary, form = uuid.uuid4().hex, {**values, "map": map or self.map}
        request = self._request(path, {})
        request.data = _form([_file_bytes(image) for image in images], form, boundary)
        request.add_header("Content-Type", f"multipart/form-data; boundary={boundary}")
        return request

    def _request(self, path: str, values: Mapping[str, Json]) -> urllib.request.Request:
        query = urlencode({name: value for name, value in values.items() if value is not None})
        request = urllib.request.Request(f"{self.url}{path}{'?' if query else ''}{query}")
        if self._token:
            # Not sent to another host after a redirect; the service itself never redirects.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _send(self, request: urllib.request.Request, tries: int) -> Any:
        (content,) = self._exchange(request, tries, lambda answer: [answer.read()])
        try:
            return json.loads(content)
        except ValueError as error:
            raise self._silent(error) from None

    def _exchange(
        self,
        request: urllib.request.Request,
        tries: int,
        read: Callable[[http.client.HTTPResponse], Iterable[bytes]],
    ) -> Iterator[bytes]:
        """Send a request, again if the service is busy, and yield the parts of its answer."""
        for left in reversed(range(tries)):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    yield from read(answer)
                    return
            except urllib.error.HTTPError as error:
                with error:
                    wait = _seconds(error.headers.get("Retry-After"))
                    if error.code in BUSY and wait is not None and left:
                        time.sleep(min(wait, LONGEST_WAIT))
                        continue
                    raise _failure(error) from None
            except (OSError, ValueError, http.client.HTTPException) as error:  # not HTTP
                raise self._silent(error) from None

    def _silent(self, error: Exception) -> ServiceError:
        reason = getattr(error, "reason", error)
        return ServiceError(f"The service at {self.url} does not answer ({reason}). Check its URL.", 0)


def localization_of(answer: Mapping[str, Any]) -> Localization:
    """Return an answer of the service as a `Localization`; null becomes NaN for numbers."""
    from kappaplace.maps import CandidatePlace, CandidateSet, Localization, Match, Pose

    pose, candidates = (
        answer["pose"],
        answer.get("candidates"),
    )  # services of earlier versions have none
    if candidates is not None:
        places = tuple(_record(CandidatePlace, place) for place in candidates["places"])
        candidates = _record(CandidateSet, {**candidates, "places": places})
    parts = {
        "pose": None if pose is None else _record(Pose, pose),
        "matches": tuple(_record(Match, {**match, "image": ""}) for match in answer["matches"]),
        "signals": {name: _number(value) for name, value in answer["signals"].items()},
        "notes": tuple(answer["notes"]),
        "candidates": candidates,
        "covariance": None if (rows := answer.get("covariance")) is None else tuple(map(tuple, rows)),
    }
    return _record(Localization, {**answer, **parts})


def _record(cls: type[R], values: Mapping[str, Any]) -> R:
    """Build a dataclass from values by name; fields of type float that are null become NaN."""
    names = [(field.name, field.type == "float") for field in fields(cls) if field.name in values]
    return cls(**{name: _number(values[name]) if number else values[name] for name, number in names})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _values(k: int, options: QueryOptions) -> dict[str, Json]:
    """Return a query as fields of a form; an unknown keyword is a TypeError."""
    if unknown := options.keys() - QueryOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument '{min(unknown)}'")
    values: dict[str, Json] = {
        "k": k,
        "area": _circle(options.get("area")),
        "order": options.get("order"),
        "rerank": options.get("rerank"),
    }
    values |= {
        "heading": options.get("heading"),
        "coverage": options.get("coverage"),
        "group": options.get("group"),
    }
    return {**values, "outside_rate": options.get("outside_rate"), "max_risk": options.get("max_risk")}


def _circle(area: Circle | None) -> str | None:
    if area is None:
        return None
    x, y, radius = (*area[0], area[1]) if len(area) == 2 else area  # ((x, y), radius) of earlier versions
    return f"{x!r},{y!r},{radius!r}"


def _file_bytes(image: Source) -> bytes:
    """Return the bytes of a file unchanged, and encode pixels as PNG, which is lossless."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise KappaPlaceError(f"Cannot read {image}: {why(error)}. Check the path.") from None
    from kappaplace.data import decode

    buffer = io.BytesIO()
    decode(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _form(images: Iterable[bytes], values: Mapping[str, Json], boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in values.items()
        if value is not None
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'
    parts += [head.encode() + image + b"\r\n" for image in images]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _failure(error: urllib.error.HTTPError) -> ServiceError:
    try:
        return _error({"status": error.code, **json.loads(error.read())})
    except (OSError, ValueError, KeyError, TypeError):
        return ServiceError(f"The service answered with status {error.code}.", error.code)


def _error(problem: Mapping[str, Any]) -> ServiceError:
    """Return the error that the service described; services of earlier versions send only the message."""
    message = str(problem["detail"] if "detail" in problem else problem["error"])
    codes = (str(problem.get(key) or "") for key in ("code", "request_id"))
    return ServiceError(message, int(problem["status"]), *codes)
