"""Routes that take images: localize them in a map, or embed them.

A request is a form with files, JSON with base64, or the plain bytes of one image. Everything stays in memory:
file names are ignored, and nothing is written to disk.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from kappaplace.serve.paths import ASK, both, map_named
from kappaplace.serve.problems import ApiError, as_api_error, invalid_message, problem
from kappaplace.serve.protect import may_read
from kappaplace.serve.schemas import (
    EXAMPLES,
    BatchBody,
    BatchOut,
    EmbedBody,
    EmbeddingsOut,
    LineOut,
    LocalizationOut,
    LocalizeBody,
    Options,
)
from kappaplace.serve.served_map import Answer, ServedMap, localization
from kappaplace.serve.settings import Settings
from kappaplace.types import Json

LINE = {"$ref": f"#/components/schemas/{LineOut.__name__}"}
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
    file = {"type": "string", "format": "binary", "description": "JPEG, PNG or WebP file."}
    key = "image" if single else "images"
    fields = {name: part for name, part in schema["properties"].items() if name != key}
    if "area" in fields:
        fields["area"] = {"type": "string", "description": AREA, "pattern": _THREE}
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
        "application/json": {"schema": schema, "example": EXAMPLES["bodies"][shape.__name__]},
    }
    if single:
        content |= {f"image/{kind}": {"schema": file} for kind in ("jpeg", "png", "webp")}
    return {"requestBody": {"required": True, "content": content}}


AREA = "x,y,radius in metres, or latitude,longitude in degrees and radius in metres"
_NUMBER = r"[+-]?\d{1,9}(\.\d{1,9})?"
_THREE = rf"^{_NUMBER},{_NUMBER},\d{{1,9}}(\.\d{{1,6}})?m?$"


@both(
    router,
    "POST",
    "/localize",
    "/localize",
    response_model=LocalizationOut,
    responses=ASK,
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
    return _counted(request, answers[0], served)


def _counted(request: Request, answer: Answer, served: ServedMap) -> dict[str, Json]:
    """Return an answer as `LocalizationOut`, and count its decision."""
    values = localization(answer, served)
    request.app.state.metrics.decision(served.name, values["decision"], values["probability"])
    return values


@both(
    router,
    "POST",
    "/localize/batch",
    "/localize/batch",
    response_model=BatchOut,
    responses=ASK | {200: {"content": {"application/x-ndjson": {"schema": LINE}}}},
    openapi_extra=body_of(BatchBody, single=False),
    summary="Localize several images",
)
async def localize_batch(request: Request) -> Response:
    """Return one answer per image, in input order. `Accept: application/x-ndjson` streams them instead.

    If one image is invalid, none is answered; with `on_error=skip` the others are. A stream has one line per
    image as soon as it is answered, and lists errors per image.
    """
    images, options = await read_request(request, BatchBody, single=False)
    served = map_named(request, options.map)
    _check_k(request, options)
    if NDJSON in request.headers.get("accept", ""):
        lines = _lines(request, images, options, served)
        first = await anext(lines)  # a full queue is an error with a status
        return StreamingResponse(_chain(first, lines), media_type=NDJSON)
    if options.on_error == "stop":
        answers = await served.localize(images, options)
        found: list[Json] = [_counted(request, answer, served) for answer in answers]
        return JSONResponse({"answers": found, "errors": []})
    found, problems = [None] * len(images), []
    async for index, result in served.each(images, options):
        if isinstance(result, Answer):
            found[index] = _counted(request, result, served)
        else:
            problems.append({"index": index, **_problem(request, result)})
    return JSONResponse({"answers": found, "errors": sorted(problems, key=lambda each: each["index"])})


NDJSON = "application/x-ndjson"


def _problem(request: Request, error: Exception) -> dict[str, Json]:
    public = as_api_error(error, request.app.state.folders)
    return problem(public.status, public.message, public.code)


async def _lines(
    request: Request, images: list[bytes], options: BatchBody, served: ServedMap
) -> AsyncIterator[bytes]:
    async for index, result in served.each(images, options):
        part: dict[str, Json] = (
            {"answer": _counted(request, result, served)}
            if isinstance(result, Answer)
            else {"problem": _problem(request, result)}
        )
        yield json.dumps({"index": index, **part}, ensure_ascii=False).encode() + b"\n"


async def _chain(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in others:
        yield line


@both(
    router,
    "POST",
    "/embed",
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


Model = TypeVar("Model", bound=BaseModel)
MOST_FIELDS = 20
FIELD_BYTES = 4096
_FILES = ("image", "images")


class _InMemory(MultiPartParser):
    spool_max_size = 0  # never moved to a temporary file; `Limits` bounds the body


async def read_request(request: Request, shape: type[Model], *, single: bool) -> tuple[list[bytes], Model]:
    """Read the images and options of a request; values in the body override those in the URL.

    Args:
        request: The request.
        shape: Schema of the options.
        single: Whether exactly one image is expected.

    Returns:
        Encoded images, and the validated options.

    Raises:
        ApiError: If the request cannot be read or has a wrong number of images.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    values: dict[str, Json] = dict(request.query_params)
    if kind == "multipart/form-data":
        images, fields = await _form(request)
        values |= fields
    elif kind == "application/json":
        images, fields = _json(await request.body(), single)
        values |= fields
    elif kind.startswith("image/") or kind == "application/octet-stream":
        images = [await request.body()]
    else:
        raise ApiError(
            415,
            "Unsupported content type. Send multipart/form-data, application/json with base64, "
            "or the plain file.",
        )
    settings: Settings = request.app.state.settings
    if not images or not all(images):
        raise ApiError(422, "There is no image in the request. Send one as the field `image`.")
    if len(images) > (1 if single else settings.max_batch):
        most = "one image" if single else f"{settings.max_batch} images"
        raise ApiError(413, f"A request can contain {most}, got {len(images)}. Send fewer.")
    return images, _checked(shape, values, images, single)


def _checked(shape: type[Model], values: Mapping[str, Json], images: list[bytes], single: bool) -> Model:
    """Validate options by their schema; images are only counted."""
    parts = dict(values)
    for name in {"area", "near"} & parts.keys():
        text = parts[name]
        if isinstance(text, str):
            parts[name] = text.strip().removesuffix("m").split(",")
    parts |= {"image": ""} if single else {"images": [""] * len(images)}
    try:
        return shape.model_validate(parts)
    except ValidationError as error:
        raise ApiError(422, invalid_message(error.errors())) from None


async def _form(request: Request) -> tuple[list[bytes], dict[str, Json]]:
    most = request.app.state.settings.max_batch
    try:
        parser = _InMemory(
            request.headers,
            request.stream(),
            max_files=most + 1,
            max_fields=MOST_FIELDS,
            max_part_size=FIELD_BYTES,
        )
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, LookupError) as error:
        reason = getattr(error, "message", "") or "its parts cannot be separated"
        raise ApiError(400, f"The form cannot be read: {str(reason).rstrip('.')}. Send it again.") from None
    images: list[bytes] = []
    fields: dict[str, Json] = {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name not in _FILES:
                    raise ApiError(422, f"Files must be sent as the field `image`, got `{name[:40]}`.")
                images.append(await value.read())
            else:
                fields[name] = value
    finally:
        await form.close()
    return images, fields


def _json(body: bytes, single: bool) -> tuple[list[bytes], dict[str, Json]]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "The body is not JSON. Send a JSON object.") from None
    if not isinstance(values, dict):
        raise ApiError(422, "The body must be a JSON object.")
    key = "image" if single else "images"
    content = values.pop(key, None)
    if content is None:
        return [], values
    texts = [content] if single else content
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(422, f"{key}: expected {'base64 text' if single else 'a list of base64 texts'}.")
    return [_from_base64(text) for text in texts], values


def _from_base64(text: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(422, "An image is not valid base64. Encode the bytes of the file.") from None
