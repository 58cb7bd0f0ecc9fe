"""URLs of the routes: each route of a map has a URL with the map's name in it, and one with ``?map=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request

from kappaplace.serve.problems import CODES, KIND, SPECIAL, ApiError
from kappaplace.serve.schemas import EXAMPLES, LineOut, ProblemOut, example_of
from kappaplace.serve.served_map import ServedMap

Responses: TypeAlias = dict[int | str, dict[str, Any]]
"""Responses of a route by status, as FastAPI expects them."""
SCHEMAS = "#/components/schemas/"
Handler = TypeVar("Handler", bound=Callable[..., Any])


def errors(*codes: int) -> Responses:
    """Describe the errors of a route for OpenAPI."""
    shape = {"schema": {"$ref": f"{SCHEMAS}{ProblemOut.__name__}"}}
    return {code: {"description": f"{CODES[code][1]}.", "content": {KIND: shape}} for code in codes}


class Application(FastAPI):
    """A FastAPI application whose description also has examples, and the schemas of errors and streams."""

    def openapi(self) -> dict[str, Any]:
        """Return the description of the API."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            for shape in (ProblemOut, LineOut):
                schema = shape.model_json_schema(ref_template=SCHEMAS + "{model}", mode="serialization")
                for name, part in {**schema.pop("$defs", {}), shape.__name__: schema}.items():
                    schemas.setdefault(name, part)
            for name in EXAMPLES["responses"]:  # added last, because FastAPI removes null from its schemas
                schemas[name]["examples"] = [example_of(name)]
            document["x-error-codes"] = dict(CODES.values()) | SPECIAL
            self.openapi_schema = document
        return self.openapi_schema


READ = errors(401, 404, 422, 503)
ASK = errors(400, 401, 404, 408, 413, 415, 422, 429, 503)


def _in_path(name: Annotated[str, Path(description="Name of the map.", examples=["town"])]) -> str:
    return name


def both(
    router: APIRouter, method: str, short: str, named: str, **values: Any
) -> Callable[[Handler], Handler]:
    """Register a handler at two URLs.

    Args:
        router: The router.
        method: HTTP method.
        short: URL with the query parameter ``map``, as in earlier versions.
        named: URL below ``/maps/{name}``.
        values: Other arguments of `APIRouter.add_api_route`.

    Returns:
        A decorator.
    """

    def register(handler: Handler) -> Handler:
        router.add_api_route(short, handler, methods=[method], **values)
        url = f"/maps/{{name}}{named}"
        router.add_api_route(url, handler, methods=[method], dependencies=[Depends(_in_path)], **values)
        return handler

    return register


def map_named(request: Request, name: str | None) -> ServedMap:
    """Return the map of the URL, otherwise the one with this name, otherwise the first one."""
    served: dict[str, ServedMap] = request.app.state.served
    name = request.path_params.get("name", name)
    if name is None or name == "":
        return next(iter(served.values()))
    if name not in served:
        raise ApiError(
            404, f"Unknown map {name[:80]!r}. Choose from: {', '.join(served)}.", code="unknown_map"
        )
    return served[name]


def _requested(
    request: Request,
    map: Annotated[str | None, Query(description="Name of the map. Default: the first one.")] = None,
) -> ServedMap:
    return map_named(request, map)


MapParameter = Annotated[ServedMap, Depends(_requested)]
