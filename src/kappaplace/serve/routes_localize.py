"""Questions with images: where was this taken, and what does the model make of it?"""

from __future__ import annotations

from typing import Any

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

router = APIRouter(prefix="/v1", tags=["localize"], dependencies=[Depends(may_read)])


def body_of(shape: type[BaseModel], *, single: bool) -> dict[str, Any]:
    """What OpenAPI says of a body that comes as JSON, as a form, or as one bare image."""
    schema = shape.model_json_schema(by_alias=False)
    file = {"type": "string", "format": "binary"}
    key = "image" if single else "images"
    fields = {name: part for name, part in schema["properties"].items() if name != key}
    if "area" in fields:
        fields["area"] = {"type": "string", "description": "x,y,radius in meters", "pattern": _THREE}
    form = {
        "type": "object",
        "required": ["image"],
        "properties": {
            "image": file if single else {"type": "array", "items": file, "minItems": 1},
            **fields,
        },
    }
    content: dict[str, Any] = {
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
    summary="Where was this image taken?",
)
async def localize(request: Request) -> Any:
    """The best matches, how probable each is, and what to do with the answer.

    `curl -F image=@query.jpg http://127.0.0.1:8000/v1/localize`
    """
    images, options = await read_request(request, LocalizeBody, single=True)
    served = map_named(request, options.map)
    _check_k(request, options)
    found = await served.localize(images, options)
    return localization(found[0], served)


@router.post(
    "/localize/batch",
    response_model=BatchOut,
    responses=ASK,
    openapi_extra=body_of(BatchBody, single=False),
    summary="Where were these images taken?",
)
async def localize_batch(request: Request) -> Any:
    """Several images at once; the answers come in their order, all or none."""
    images, options = await read_request(request, BatchBody, single=False)
    served = map_named(request, options.map)
    _check_k(request, options)
    found = await served.localize(images, options)
    return {"answers": [localization(one, served) for one in found]}


@router.post(
    "/embed",
    response_model=EmbeddingsOut,
    responses=ASK,
    openapi_extra=body_of(EmbedBody, single=False),
    summary="Descriptors and κ of images",
)
async def embed(request: Request) -> Any:
    """What the map's model says of images, without looking for them in the map."""
    images, options = await read_request(request, EmbedBody, single=False)
    served = map_named(request, options.map)
    made = await served.embed(images)
    return {
        "map": served.name,
        "model": served.map.manifest.model.fingerprint,
        "dim": int(made.descriptor.shape[1]),
        "descriptors": made.descriptor.tolist(),
        "kappa": None if made.kappa is None else made.kappa.tolist(),
    }


def _check_k(request: Request, options: Options) -> None:
    most = request.app.state.settings.max_k
    if options.k > most:
        raise ApiError(422, f"k: at most {most} matches can be asked for, not {options.k}.")
