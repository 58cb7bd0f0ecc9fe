"""What all routes share: which map is meant, and what OpenAPI says of their errors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from kappaplace.serve.errors import ApiError
from kappaplace.serve.schemas import ErrorOut
from kappaplace.serve.served_map import ServedMap

_SAID = {
    400: "The request cannot be read.",
    401: "A token is asked for, or it is the wrong one.",
    403: "This service does not do that.",
    404: "There is no such map, reference or query.",
    405: "This address is not asked in that way.",
    408: "The request took too long to arrive.",
    409: "Another process is changing the map.",
    413: "Too large, or too many images.",
    415: "Not a content type that is read here.",
    422: "The image or an option is not usable; the sentence says why.",
    429: "The queue is full; come back after `Retry-After` seconds.",
    503: "Not ready, or it took too long; come back after `Retry-After` seconds.",
}


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route for OpenAPI."""
    return {code: {"model": ErrorOut, "description": _SAID[code]} for code in codes}


READ = errors(401, 404, 422, 503)
ASK = errors(400, 401, 404, 408, 413, 415, 422, 429, 503)


def map_named(request: Request, name: str | None) -> ServedMap:
    """The map of this name, or the first one."""
    served: dict[str, ServedMap] = request.app.state.served
    if name is None or name == "":
        return next(iter(served.values()))
    if name not in served:
        raise ApiError(404, f"There is no map {name[:80]!r} here; there are: {', '.join(served)}.")
    return served[name]


def _asked(
    request: Request,
    map: Annotated[str | None, Query(description="Which map; the first one unless stated.")] = None,
) -> ServedMap:
    return map_named(request, map)


Asked = Annotated[ServedMap, Depends(_asked)]
