"""For those who look after the service: is it alive, can it answer, what has it done?"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from kappaplace.serve.asking import errors
from kappaplace.serve.errors import busy
from kappaplace.serve.metrics import Metrics
from kappaplace.serve.schemas import StateOut
from kappaplace.serve.security import may_read
from kappaplace.serve.served_map import ServedMap

router = APIRouter(tags=["operation"])


@router.get("/healthz", response_model=StateOut, summary="Is it alive?")
async def healthz() -> Any:
    """Says ok as long as the process does anything at all."""
    return {"status": "ok"}


@router.get("/readyz", response_model=StateOut, responses=errors(503), summary="Can it answer?")
async def readyz(request: Request) -> Any:
    """503 until all models are loaded."""
    served: dict[str, ServedMap] = request.app.state.served
    for name, one in served.items():
        if one.failure:
            raise busy(f"The map {name} cannot be used; the log says why.", 503)
        if not one.ready:
            raise busy(f"The map {name} is still being loaded.", 503)
    return {"status": "ready"}


@router.get(
    "/metrics",
    dependencies=[Depends(may_read)],
    responses=errors(401) | {200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
    response_class=Response,
    summary="Counts for Prometheus",
)
async def metrics(request: Request) -> Response:
    """Requests, times, batches, queue and sizes of maps."""
    served: dict[str, ServedMap] = request.app.state.served
    kept: Metrics = request.app.state.metrics
    gauges = {
        "queue_images": (
            "Images taken but not answered.",
            {n: s.batcher.admitted for n, s in served.items()},
        ),
        "map_references": ("References of the map.", {n: len(s.map) for n, s in served.items()}),
        "map_version": ("Version of the map.", {n: s.map.manifest.version for n, s in served.items()}),
    }
    return Response(kept.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")
