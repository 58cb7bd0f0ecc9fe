"""What is in a map: its outline, its references, its calibration."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from numpy.typing import NDArray

from kappaplace.calibration import expected_at, expected_curve, reject_risk, rule_for, stated_risk
from kappaplace.data import thumbnail as small_picture
from kappaplace.data import unproject
from kappaplace.maps import MapStore
from kappaplace.records import to_plain
from kappaplace.serve.protect import ApiError, may_read
from kappaplace.serve.schemas import (
    CalibrationOut,
    MapOut,
    MapsOut,
    ReferenceOut,
    ReferencesOut,
    RiskOut,
)
from kappaplace.serve.served_map import READ, Asked, ServedMap, thumbnail_address

router = APIRouter(prefix="/v1", tags=["map"], dependencies=[Depends(may_read)], responses=READ)

MOST_REFERENCES = 20_000
"""Of one answer; a page draws no more, and a program asks by area."""
Number = Annotated[int, Path(ge=0, le=2**53, description="Number of a reference in this version of the map.")]


@router.get("/maps", response_model=MapsOut, summary="Which maps are there?")
async def maps(request: Request) -> Any:
    """Names of all maps, and the limits of this service."""
    from kappaplace.version import package_version

    settings, served = request.app.state.settings, request.app.state.served
    return {
        "maps": list(served),
        "default": next(iter(served)),
        "writable": bool(settings.write_token),
        "max_k": settings.max_k,
        "max_batch": settings.max_batch,
        "max_body": settings.max_body,
        "formats": settings.formats,
        "tile_url": settings.tile_url or None,
        "tile_attribution": settings.tile_attribution or None,
        "kappaplace": package_version(),
    }


@router.get("/map", response_model=MapOut, summary="What is this map?")
async def map_info(served: Asked) -> Any:
    """Size, frame, model and calibration."""
    return await asyncio.to_thread(_info, served)


def _info(served: ServedMap) -> dict[str, Any]:
    place_map = served.map
    store, info = place_map.store, place_map.info()
    record = place_map.manifest.calibration
    borrowed = place_map.borrowed
    origin = info["calibration"]
    if origin is None and borrowed is not None:
        origin = str(borrowed.facts.get("origin", "other places"))
    same = (
        "references",
        "unposed",
        "dim",
        "kappa",
        "frame",
        "radius",
        "neighbourhood",
        "thumbnails",
        "version",
    )
    return {
        **{key: info[key] for key in same},
        "name": served.name,
        "title": info["name"] or served.name,
        "kappa_percentiles": _kappa_percentiles(store),
        "bounds": _bounds(store),
        # A model in a folder is told by the folder's name alone: where it lies is nobody's business.
        "model": str(info["model"]).rstrip("/").rpartition("/")[2],
        "model_fingerprint": info["model_fingerprint"],
        "calibration": origin,
        "borrowed": borrowed is not None,
        "guaranteed": bool(record and record.get("guarantee", False)),
        "notes": place_map.notes(),
    }


def _kappa_percentiles(store: MapStore) -> list[float] | None:
    if not store.manifest.model.kappa or not len(store):
        return None
    known = np.asarray(store.whole("kappa"), float)
    known = known[np.isfinite(known)]
    return np.percentile(known, [5, 50, 95]).tolist() if len(known) else None


def _bounds(store: MapStore) -> dict[str, float] | None:
    known = store.positions[np.isfinite(store.positions).all(axis=1)]
    if not len(known):
        return None
    return dict(zip(("x0", "y0", "x1", "y1"), (*known.min(0).tolist(), *known.max(0).tolist()), strict=True))


@router.get("/map/references", response_model=ReferencesOut, summary="References of an area")
async def references(
    served: Asked,
    bbox: Annotated[
        str | None,
        Query(
            description="x0,y0,x1,y1 in metres of the map's frame; without it the whole map.", max_length=200
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_REFERENCES)] = 2000,
    order: Annotated[
        Literal["map", "kappa", "distinctiveness"],
        Query(
            description="map: spread evenly over the map; kappa: least certain first; "
            "distinctiveness: most ambiguous first."
        ),
    ] = "map",
) -> Any:
    """At most `limit` references; where there are more, a part of them in the order asked for."""
    return await asyncio.to_thread(_references, served, _box(bbox), limit, order)


def _box(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        box = tuple(float(part) for part in text.split(","))
        if len(box) != 4 or not all(map(math.isfinite, box)) or box[0] > box[2] or box[1] > box[3]:
            raise ValueError
    except ValueError:
        raise ApiError(422, "bbox: four numbers x0,y0,x1,y1 are expected, x0 ≤ x1 and y0 ≤ y1.") from None
    return box


def _references(served: ServedMap, box: tuple[float, ...] | None, limit: int, order: str) -> dict[str, Any]:
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
        "references": described(served, store, rows),
    }


def described(served: ServedMap, store: MapStore, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """What is known of some references."""
    if not len(rows):
        return []
    poses, kappa = store.gather("poses", rows), store.gather("kappa", rows)
    distinct = store.distinctiveness[rows]
    lat, lon = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    known = np.flatnonzero(np.isfinite(poses[:, :2]).all(axis=1))
    if len(known):
        lat[known], lon[known] = unproject(np.asarray(poses[known, :2], np.float64), store.manifest.frame)
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
            "thumbnail": thumbnail_address(served, row),
            **{name: column[i] for name, column in values.items()},
        }
        for i, row in enumerate(rows.tolist())
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def printable(name: str) -> str:
    """File names need not be text; JSON must be."""
    return name.encode("utf-8", "replace").decode("utf-8")


@router.get("/references/{id}", response_model=ReferenceOut, summary="One reference")
async def reference(served: Asked, id: Number) -> Any:
    """Name, pose, κ, and how ambiguous its place is."""
    store = served.map.store
    _check_number(store, id)
    return (await asyncio.to_thread(described, served, store, np.array([id])))[0]


@router.get(
    "/references/{id}/thumbnail",
    summary="A small picture of a reference",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG of about 240×180 pixels."}},
)
async def thumbnail(served: Asked, id: Number) -> Response:
    """From the map, or made of the image if that is still where it was."""
    store = served.map.store
    _check_number(store, id)
    data = await asyncio.to_thread(_thumbnail, store, id)
    if data is None:
        raise ApiError(
            404, "The map keeps no picture of this reference, and its image is not there any more."
        )
    # The number stands for another image once the map is compacted, so not for long.
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


def _thumbnail(store: MapStore, number: int) -> bytes | None:
    kept = store.thumbnail(number)
    if kept is not None:
        return kept
    made = small_picture(store.image_path(number))
    return None if made is None else made.jpeg


def _check_number(store: MapStore, number: int) -> None:
    if number >= len(store):
        raise ApiError(404, f"There is no reference {number}; the map has {len(store):,}, counted from 0.")


@router.get("/map/calibration", response_model=CalibrationOut, summary="How sure is it?")
async def calibration(served: Asked) -> Any:
    """What was calibrated, what is promised, and the curves behind it."""
    return await asyncio.to_thread(_calibration, served)


def _calibration(served: ServedMap) -> dict[str, Any]:
    place_map = served.map
    made, record = served.calibration, place_map.manifest.calibration or {}
    rule = None if made is None else made.rule
    curve = None if made is None else expected_curve(made)
    kept = record.get("reliability")
    sketch = None if made is None or made.sketch is None else made.sketch
    return {
        "map": served.name,
        "calibrated": made is not None,
        "borrowed": made is not None and not record,
        "origin": None
        if made is None
        else record.get("origin") or str(made.facts.get("origin", "other places")),
        "guaranteed": rule is not None and rule.guaranteed,
        "fingerprint": None if made is None else made.fingerprint,
        "promise": [] if rule is None else rule.promise(),
        "notes": place_map.notes(),
        "max_risk": None if rule is None else stated_risk(rule),
        "confidence": None if rule is None or rule.accepted is None else rule.accepted.confidence,
        "outside_rate": None if made is None else made.outside_rate,
        "facts": None if made is None else dict(made.facts),
        "rule": None if rule is None else to_plain(rule),
        "reliability": None if kept is None else _columns(("probability", "observed", "count"), kept),
        "risk_coverage": None if curve is None else _curve(curve),
        "percentiles": None if sketch is None else {name: list(v) for name, v in sketch.values.items()},
    }


def _curve(curve: Any) -> list[dict[str, float]]:
    return _columns(curve._fields, [part.tolist() for part in curve])


def _columns(names: Any, columns: Any) -> list[dict[str, float]]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@router.get("/map/risk", response_model=RiskOut, summary="What to expect at a risk")
async def risk(
    served: Asked,
    max_risk: Annotated[
        float,
        Query(gt=0, lt=1, description="Share of errors allowed among accepted answers.", examples=[0.05]),
    ] = 0.05,
) -> Any:
    """Thresholds for this risk, and how many queries they will accept."""
    made = served.calibration
    if made is None:
        raise ApiError(404, "The map is not calibrated, so nothing is known of its risk.")
    rule = rule_for(made, max_risk)
    coverage, expected = expected_at(made, rule) or (None, None)
    values = to_plain(rule)
    return {
        "map": served.name,
        "max_risk": max_risk,
        "guaranteed": rule.guaranteed,
        "on": rule.on,
        "threshold": values["accept_at"],
        "reject_at": values["reject_at"],
        "reject_risk": reject_risk(made.rule),
        "coverage": coverage,
        "risk": expected,
    }
