"""Routes for what people say about answers, and for the drift of queries."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request

from kappaplace.serve.paths import READ, MapParameter, both, errors, map_named
from kappaplace.serve.protect import may_read
from kappaplace.serve.schemas import DriftOut, LabelBody, LabelsOut
from kappaplace.types import Json

router = APIRouter(prefix="/v1", tags=["feedback"], dependencies=[Depends(may_read)])


@both(
    router,
    "POST",
    "/labels",
    "/labels",
    response_model=LabelsOut,
    status_code=201,
    responses=READ | errors(400, 403, 408, 413),
    summary="Label an answer",
)
async def label(request: Request, body: LabelBody) -> dict[str, Json]:
    """Store whether an answer was right, apart from the labels for calibration.

    People choose which answers they label. So these labels are not a random sample, and guarantees need one:
    use `kappaplace map label` for calibration.
    """
    served = map_named(request, body.map)
    decision = await asyncio.to_thread(served.feedback.label, body.answer, body.label)
    request.app.state.metrics.label(served.name, decision, body.label)
    return await asyncio.to_thread(served.feedback.labels)


@both(router, "GET", "/labels", "/labels", response_model=LabelsOut, responses=READ, summary="Count labels")
async def labels(served: MapParameter) -> dict[str, Json]:
    """Return what people said about the answers since the service started."""
    return await asyncio.to_thread(served.feedback.labels)


@both(
    router, "GET", "/map/drift", "/drift", response_model=DriftOut, responses=READ, summary="Describe drift"
)
async def drift(served: MapParameter) -> dict[str, Json]:
    """Compare the queries since the start of the service with those of the calibration."""
    return served.feedback.drift(served.calibration)
