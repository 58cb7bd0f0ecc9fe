"""The one thing that changes a map over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Depends, Request

from kappaplace.serve.asking import ASK, errors, map_named
from kappaplace.serve.routes_localize import body_of
from kappaplace.serve.schemas import AddedOut, ReferenceBody
from kappaplace.serve.security import may_write
from kappaplace.serve.uploads import read_request

router = APIRouter(prefix="/v1", tags=["map"], dependencies=[Depends(may_write)])


@router.post(
    "/references",
    response_model=AddedOut,
    status_code=201,
    responses=ASK | errors(403, 409),
    openapi_extra=body_of(ReferenceBody, single=True),
    summary="Append an image to the map",
)
async def append(request: Request) -> Any:
    """Needs the write token. The same image twice is one reference; all queries from now on see it.

    `curl -H "Authorization: Bearer $TOKEN" -F image=@new.jpg -F x=550690 -F y=4180005 …/v1/references`
    """
    images, placed = await read_request(request, ReferenceBody, single=True)
    served = map_named(request, placed.map)
    name, added = await served.append(images[0], placed)
    store = served.map.store
    number = int((await asyncio.to_thread(store.find, [name]))[0])
    return {
        "map": served.name,
        "version": store.manifest.version,
        "name": name,
        "id": number,
        "added": added,
        "references": len(store),
    }
