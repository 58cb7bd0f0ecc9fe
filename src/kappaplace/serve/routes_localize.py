"""Routes that take images: localize them in a map, or embed them."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from kappaplace.serve.protect import ApiError, may_read
from kappaplace.serve.schemas import (
    ANSWER,
    BODIES,
    BatchBody,
    BatchOut,
    EmbedBody,
    EmbeddingsOut,
    LocalizationOut,
    LocalizeBody,
    Options,
)
from kappaplace.serve.served_map import ASK, localization, map_named
from kappaplace.serve.uploads import read_request
from kappaplace.types import Json

router = APIRouter(prefix="/v1", tags=["localize"], dependencies=[Depends(may_read)])


def body_of(shape: type[BaseModel], *, single: bool) -> dict[str, Json]:
    """Describe a body for OpenAPI that can be JSON, a form, or one plain image.

    Args:
        shape: Schema of the JSON body.
        single: Whether it contains exactly one image.

    Returns:
        Values for ``openapi_extra``.
    """
    schema = shape.model_json_schema(by_alias=False)
    file = {"type": "string", "format": "binary"}
    key = "image" if single else "images"
    fields = {name: part for name, part in schema["properties"].items() if name != key}
    if "area" in fields:
        fields["area"] = {"type": "string", "description": "x,y,radius in metres", "pattern": _THREE}
    form: dict[str, Json] = {
        "type": "object",
        "required": ["image"],
        "properties": {
            "image": file if single else {"type": "array", "items": file, "minItems": 1},
            **fields,
        },
    }
    content: dict[str, Json] = {
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": schema, "example": BODIES[shape.__name__]},
    }
    if single:
        content |= {f"image/{kind}": {"schema": file} for kind in ("jpeg", "png", "webp")}
    return {"requestBody": {"required": True, "content": content}}


_NUMBER = r"[+-]?\d{1,9}(\.\d{1,6})?"
_THREE = rf"^{_NUMBER},{_NUMBER},\d{{1,9}}(\.\d{{1,6}})?$"


@router.post(
    "/localize",
    response_model=LocalizationOut,
    responses=ASK | {200: {"content": {"application/json": {"example": ANSWER}}}},
    openapi_extra=body_of(LocalizeBody, single=True),
    summary="Localize an image",
)
async def localize(request: Request) -> dict[str, Json]:
    """Return the best matches, their probabilities, and a decision.

    `curl -F image=@query.jpg http://127.0.0.1:8000/v1/localize`
    """
    images, options = await read_request(request, LocalizeBody, single=True)
    served = map_named(request, options.map)
    _check_k(request, options)
    answers = await served.localize(images, options)
    return localization(answers[0], served)


@router.post(
    "/localize/batch",
    response_model=BatchOut,
    responses=ASK,
    openapi_extra=body_of(BatchBody, single=False),
    summary="Localize several images",
)
async def localize_batch(request: Request) -> dict[str, Json]:
    """Return one answer per image, in their order; if one image is invalid, none is answered."""
    images, options = await read_request(request, BatchBody, single=False)
    served = map_named(request, options.map)
    _check_k(request, options)
    answers = await served.localize(images, options)
    return {"answers": [localization(answer, served) for answer in answers]}


@router.post(
    "/embed",
    response_model=EmbeddingsOut,
    responses=ASK,
    openapi_extra=body_of(EmbedBody, single=False),
    summary="Embed images",
)
async def embed(request: Request) -> dict[str, Json]:
    """Return the output of the map's model, without searching the map."""
    images, options = await read_request(request, EmbedBody, single=False)
    served = map_named(request, options.map)
    embeddings = await served.embed(images)
    return {
        "map": served.name,
        "model": served.map.manifest.model.fingerprint,
        "dim": int(embeddings.descriptor.shape[1]),
        "descriptors": embeddings.descriptor.tolist(),
        "kappa": None if embeddings.kappa is None else embeddings.kappa.tolist(),
    }


def _check_k(request: Request, options: Options) -> None:
    most = request.app.state.settings.max_k
    if options.k > most:
        raise ApiError(422, f"k must be at most {most}, got {options.k}.")
