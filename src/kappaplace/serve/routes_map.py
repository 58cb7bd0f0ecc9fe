"""Routes that read a map: its summary, its references, its calibration."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from numpy.typing import NDArray

from kappaplace.calibration import (
    ExpectedCurve,
    expected_at,
    expected_curve,
    reject_risk,
    rule_for,
    stated_risk,
)
from kappaplace.data import thumbnail as make_thumbnail
from kappaplace.data import unproject
from kappaplace.maps import MapStore
from kappaplace.records import to_plain
from kappaplace.serve.paths import READ, MapParameter, both
from kappaplace.serve.problems import ApiError, printable
from kappaplace.serve.protect import may_read
from kappaplace.serve.schemas import (
    CalibrationOut,
    MapOut,
    MapsOut,
    ReferenceOut,
    ReferencesOut,
    RiskOut,
)
from kappaplace.serve.served_map import ServedMap, thumbnail_url
from kappaplace.types import Json
from kappaplace.version import package_version

router = APIRouter(prefix="/v1", tags=["map"], dependencies=[Depends(may_read)], responses=READ)

MOST_REFERENCES = 20_000
"""Largest number of references per answer; the page shows no more, and programs can select an area."""
Number = Annotated[int, Path(ge=0, le=2**53, description="Index of a reference in this version of the map.")]


@router.get("/maps", response_model=MapsOut, summary="List maps")
async def maps(request: Request) -> dict[str, Json]:
    """Return the names of all maps, and the limits of this service."""
    settings, served = request.app.state.settings, request.app.state.served
    return {
        "maps": list(served),
        "default": next(iter(served)),
        "writable": bool(settings.write_token),
        "labels": settings.labels is not None,
        "max_k": settings.max_k,
        "max_batch": settings.max_batch,
        "max_body": settings.max_body,
        "formats": settings.formats,
        "tile_url": settings.tile_url or None,
        "tile_attribution": settings.tile_attribution or None,
        "kappaplace": package_version(),
    }


@both(router, "GET", "/map", "", response_model=MapOut, summary="Describe a map")
async def map_info(served: MapParameter) -> dict[str, Json]:
    """Return size, frame, model and calibration."""
    return await asyncio.to_thread(_info, served)


def _info(served: ServedMap) -> dict[str, Json]:
    place_map = served.map
    store, info = place_map.store, place_map.info()
    record = place_map.manifest.calibration
    shipped = place_map.borrowed
    origin = info["calibration"]
    if origin is None and shipped is not None:
        origin = str(shipped.facts.get("origin", "other places"))
    unchanged = "references unposed dim kappa frame radius neighbourhood thumbnails version"
    return {
        **{key: info[key] for key in unchanged.split()},
        "name": served.name,
        "title": info["name"] or served.name,
        "kappa_percentiles": _kappa_percentiles(store),
        "bounds": _bounds(store),
        # Only the folder name of the model: its path must not leave the service.
        "model": str(info["model"]).rstrip("/").rpartition("/")[2],
        "model_fingerprint": info["model_fingerprint"],
        "calibration": origin,
        "borrowed": shipped is not None,
        "guaranteed": bool(record and record.get("guarantee", False)),
        "notes": place_map.notes(),
    }


def _kappa_percentiles(store: MapStore) -> list[float] | None:
    if not store.manifest.model.kappa or not len(store):
        return None
    kappa = np.asarray(store.whole("kappa"), float)
    kappa = kappa[np.isfinite(kappa)]
    return np.percentile(kappa, [5, 50, 95]).tolist() if len(kappa) else None


def _bounds(store: MapStore) -> dict[str, float] | None:
    points = store.positions[np.isfinite(store.positions).all(axis=1)]
    if not len(points):
        return None
    corners = [*points.min(0).tolist(), *points.max(0).tolist()]
    return dict(zip(("x0", "y0", "x1", "y1"), corners, strict=True))


@both(
    router, "GET", "/map/references", "/references", response_model=ReferencesOut, summary="List references"
)
async def references(
    served: MapParameter,
    bbox: Annotated[
        str | None,
        Query(
            description="x0,y0,x1,y1 in metres of the map's frame. Default: the whole map.", max_length=200
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_REFERENCES)] = 2000,
    order: Annotated[
        Literal["map", "kappa", "distinctiveness"],
        Query(
            description="map: evenly spread over the map; kappa: least certain first; "
            "distinctiveness: most ambiguous first."
        ),
    ] = "map",
) -> dict[str, Json]:
    """Return at most `limit` references, in the requested order."""
    return await asyncio.to_thread(_references, served, _box(bbox), limit, order)


def _box(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        box = tuple(float(part) for part in text.split(","))
        if len(box) != 4 or not all(map(math.isfinite, box)) or box[0] > box[2] or box[1] > box[3]:
            raise ValueError
    except ValueError:
        raise ApiError(422, "bbox must be four numbers x0,y0,x1,y1 with x0 ≤ x1 and y0 ≤ y1.") from None
    return box


def _references(served: ServedMap, box: tuple[float, ...] | None, limit: int, order: str) -> dict[str, Json]:
    store = served.map.store
    rows = np.arange(len(store))
    if box is not None:
        at = store.positions
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(
                (at[:, 0] >= box[0]) & (at[:, 1] >= box[1]) & (at[:, 0] <= box[2]) & (at[:, 1] <= box[3])
            )
    total = len(rows)
    if order == "map":
        rows = rows[np.linspace(0, total - 1, min(total, limit)).round().astype(np.int64)] if total else rows
    else:
        worst = np.asarray(store.whole("kappa")[rows] if order == "kappa" else -store.distinctiveness[rows])
        rows = rows[np.argsort(worst, kind="stable")[:limit]]  # NaN comes last
    return {
        "map": served.name,
        "version": store.manifest.version,
        "total": total,
        "references": describe(served, store, rows),
    }


def describe(served: ServedMap, store: MapStore, rows: NDArray[np.int64]) -> list[dict[str, Json]]:
    """Describe some references as `ReferenceOut`.

    Args:
        served: The map.
        store: Content of the map.
        rows: Indices of the references.

    Returns:
        One object per reference.
    """
    if not len(rows):
        return []
    poses, kappa = store.gather("poses", rows), store.gather("kappa", rows)
    distinct = store.distinctiveness[rows]
    lat, lon = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    posed = np.flatnonzero(np.isfinite(poses[:, :2]).all(axis=1))
    if len(posed):
        lat[posed], lon[posed] = unproject(np.asarray(poses[posed, :2], np.float64), store.manifest.frame)
    columns = {
        **{name: poses[:, i] for i, name in enumerate(("x", "y", "heading", "time"))},
        "lat": lat,
        "lon": lon,
        "kappa": kappa,
        "distinctiveness": distinct,
    }
    values = {name: [_number(value) for value in column.tolist()] for name, column in columns.items()}
    return [
        {
            "id": row,
            "name": printable(store.name(row)),
            "thumbnail": thumbnail_url(served, row),
            **{name: column[i] for name, column in values.items()},
        }
        for i, row in enumerate(rows.tolist())
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@both(
    router,
    "GET",
    "/references/{id}",
    "/references/{id}",
    response_model=ReferenceOut,
    summary="Describe a reference",
)
async def reference(served: MapParameter, id: Number) -> dict[str, Json]:
    """Return name, pose, κ, and how ambiguous the place is."""
    store = served.map.store
    _check_number(store, id)
    return (await asyncio.to_thread(describe, served, store, np.array([id])))[0]


@both(
    router,
    "GET",
    "/references/{id}/thumbnail",
    "/references/{id}/thumbnail",
    summary="Get the thumbnail of a reference",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG of about 240×180 pixels."}},
)
async def thumbnail(served: MapParameter, id: Number) -> Response:
    """Return the stored thumbnail; otherwise create it from the image, if that still exists."""
    store = served.map.store
    _check_number(store, id)
    data = await asyncio.to_thread(_thumbnail, store, id)
    if data is None:
        raise ApiError(404, "The map has no thumbnail of this reference, and its image no longer exists.")
    # Not cached for long: after the map is compacted, the index belongs to another image.
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


def _thumbnail(store: MapStore, number: int) -> bytes | None:
    stored = store.thumbnail(number)
    if stored is not None:
        return stored
    image = make_thumbnail(store.original(number))
    return None if image is None else image.jpeg


def _check_number(store: MapStore, number: int) -> None:
    if number >= len(store):
        raise ApiError(404, f"There is no reference {number}. The map has {len(store):,}, counted from 0.")


@both(
    router,
    "GET",
    "/map/calibration",
    "/calibration",
    response_model=CalibrationOut,
    summary="Describe the calibration",
)
async def calibration(served: MapParameter) -> dict[str, Json]:
    """Return the calibration of the map, its guarantee, and its curves."""
    return await asyncio.to_thread(_calibration, served)


def _calibration(served: ServedMap) -> dict[str, Json]:
    place_map = served.map
    fitted, record = served.calibration, place_map.manifest.calibration or {}
    common: dict[str, Json] = {
        "map": served.name,
        "calibrated": fitted is not None,
        "borrowed": fitted is not None and not record,
        "notes": place_map.notes(),
    }
    if fitted is None:
        empty = dict.fromkeys(CalibrationOut.model_fields)
        return {**empty, "guaranteed": False, "promise": [], **common}
    rule, bins, curve, sketch = fitted.rule, record.get("reliability"), expected_curve(fitted), fitted.sketch
    return {
        **common,
        "origin": record.get("origin") or str(fitted.facts.get("origin", "other places")),
        "guaranteed": rule is not None and rule.guaranteed,
        "fingerprint": fitted.fingerprint,
        "promise": [] if rule is None else rule.promise(),
        "max_risk": None if rule is None else stated_risk(rule),
        "confidence": None if rule is None or rule.accepted is None else rule.accepted.confidence,
        "outside_rate": fitted.outside_rate,
        "facts": dict(fitted.facts),
        "rule": None if rule is None else to_plain(rule),
        "reliability": None if bins is None else _rows(("probability", "observed", "count"), bins),
        "risk_coverage": None if curve is None else _rows(ExpectedCurve._fields, (c.tolist() for c in curve)),
        "percentiles": None if sketch is None else {name: list(v) for name, v in sketch.values.items()},
    }


def _rows(names: Sequence[str], columns: Iterable[Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@both(router, "GET", "/map/risk", "/risk", response_model=RiskOut, summary="Describe a risk limit")
async def risk(
    served: MapParameter,
    max_risk: Annotated[
        float,
        Query(
            gt=0,
            lt=1,
            description="Largest fraction of incorrect answers among accepted ones.",
            examples=[0.05],
        ),
    ] = 0.05,
) -> dict[str, Json]:
    """Return the thresholds for this risk, and the fraction of queries that they accept."""
    fitted = served.calibration
    if fitted is None:
        raise ApiError(
            404,
            "The map is not calibrated, so its risk is unknown. Calibrate it first.",
            code="not_calibrated",
        )
    rule = rule_for(fitted, max_risk)
    coverage, expected = expected_at(fitted, rule) or (None, None)
    values = to_plain(rule)
    return {
        "map": served.name,
        "max_risk": max_risk,
        "guaranteed": rule.guaranteed,
        "on": rule.on,
        "threshold": values["accept_at"],
        "reject_at": values["reject_at"],
        "reject_risk": reject_risk(fitted.rule),
        "coverage": coverage,
        "risk": expected,
    }
