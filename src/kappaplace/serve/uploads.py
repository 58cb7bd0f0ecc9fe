"""Images and options out of a request: a form with files, JSON with base64, or the bare bytes of one image.

Everything stays in memory: names of files are not looked at, and nothing is written to a disk.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from PIL import Image
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from kappaplace.data import Preprocessing, decode
from kappaplace.serve.protect import ApiError, invalid_sentence
from kappaplace.serve.settings import Settings

Model = TypeVar("Model", bound=BaseModel)
MOST_FIELDS = 20
FIELD_BYTES = 4096
_FILES = ("image", "images")


class _InMemory(MultiPartParser):
    spool_max_size = 0  # never moved to a temporary file; `Limits` has bounded the body already


async def read_request(request: Request, shape: type[Model], *, single: bool) -> tuple[list[bytes], Model]:
    """The images of a request, and its options; a value in the body wins over one in the address."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    values: dict[str, Any] = dict(request.query_params)
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
            415, "Send images as multipart/form-data, as base64 in application/json, or as the bare file."
        )
    settings: Settings = request.app.state.settings
    if not images or not all(images):
        raise ApiError(422, "There is no image in the request; send one under the name `image`.")
    if len(images) > (1 if single else settings.max_batch):
        most = "one image" if single else f"{settings.max_batch} images"
        raise ApiError(413, f"A request may hold {most}, not {len(images)}.")
    return images, _checked(shape, values, images, single)


def _checked(shape: type[Model], values: Mapping[str, Any], images: list[bytes], single: bool) -> Model:
    """Options as the schema wants them; of the images only that they are there."""
    parts = dict(values)
    for name in {"area", "near"} & parts.keys():
        if isinstance(parts[name], str):
            parts[name] = parts[name].split(",")
    parts |= {"image": ""} if single else {"images": [""] * len(images)}
    try:
        return shape.model_validate(parts)
    except ValidationError as error:
        raise ApiError(422, invalid_sentence(error.errors())) from None


async def _form(request: Request) -> tuple[list[bytes], dict[str, str]]:
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
        said = getattr(error, "message", "") or "its parts cannot be told apart"
        raise ApiError(400, f"The form cannot be read: {str(said).rstrip('.')}.") from None
    images, fields = [], {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name not in _FILES:
                    raise ApiError(422, f"Files are sent under the name `image`, not `{name[:40]}`.")
                images.append(await value.read())
            else:
                fields[name] = value
    finally:
        await form.close()
    return images, fields


def _json(body: bytes, single: bool) -> tuple[list[bytes], dict[str, Any]]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "The body is not JSON.") from None
    if not isinstance(values, dict):
        raise ApiError(422, "The body must be a JSON object.")
    key = "image" if single else "images"
    given = values.pop(key, None)
    if given is None:
        return [], values
    texts = [given] if single else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(422, f"{key}: base64 as a string is expected{'' if single else ', in a list'}.")
    return [_from_base64(text) for text in texts], values


def _from_base64(text: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(422, "An image is not valid base64; encode the bytes of the file.") from None


def prepared(data: bytes, preprocessing: Preprocessing, settings: Settings) -> Image.Image:
    """The image as `Preprocessing` makes it of a file; only this small copy waits for its turn."""
    size = preprocessing.size
    target = (size, size) if isinstance(size, int) else size
    # The same reduction while decoding as a file gets: an answer shall not depend on the way it was asked.
    picture = decode(data, max_pixels=settings.max_pixels, target=target, formats=settings.formats)
    return preprocessing.image(picture)
