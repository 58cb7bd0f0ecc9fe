"""Requests and responses of the HTTP API. Unknown values are null, because JSON has no NaN."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue

from kappaplace.maps import LocalizeOptions, Order, area_of
from kappaplace.types import Json

FAR = 1e9
"""Largest coordinate in metres; larger ones are on no map, and their squares overflow."""
Metres = Annotated[float, Field(ge=-FAR, le=FAR)]
Risk = Annotated[
    float, Field(gt=0, lt=1, description="Largest fraction of incorrect answers among accepted ones.")
]
Area = Annotated[
    list[Metres],
    Field(min_length=3, max_length=3, description="x, y and radius in metres of the map's frame."),
]
MapName = Annotated[str, Field(description="Name of the map. Default: the first one.")]
_IMAGE = "JPEG, PNG or WebP file (HEIC if the operator allows it) as base64 or as a data: URL."


class Body(BaseModel):
    """Base of requests: unknown keys are rejected, so that a misspelled option is not ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Options(Body):
    """Options for localizing."""

    k: int = Field(10, ge=1, le=2**31, description="Number of matches per query.")
    area: Area | None = Field(
        None, validation_alias=AliasChoices("area", "near"), examples=[[550700.0, 4180050.0, 100.0]]
    )
    order: Order = Field("similarity", description="Order of the matches.")
    rerank: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="Number of top matches to re-rank by patch matching. Default: the number at calibration.",
    )
    max_risk: Risk | None = Field(
        None, description="Risk limit for decisions instead of the calibrated one; estimated, not guaranteed."
    )
    map: MapName | None = None

    def localize_options(self) -> LocalizeOptions:
        """Return the options for the map."""
        area = None if self.area is None else area_of(self.area)
        return LocalizeOptions(self.k, area, self.order, rerank=self.rerank)


class LocalizeBody(Options):
    """One image to localize."""

    image: str = Field(description=_IMAGE, examples=["/9j/4AAQSkZJRg…"])


class BatchBody(Options):
    """Several images to localize."""

    images: list[str] = Field(min_length=1, description=_IMAGE, examples=[["/9j/4AAQSkZJRg…"]])


class EmbedBody(Body):
    """Images to embed like those of the map."""

    images: list[str] = Field(min_length=1, description=_IMAGE, examples=[["/9j/4AAQSkZJRg…"]])
    map: MapName | None = None


class Placed(Body):
    """Position of an image to append. Without x and y, the GPS position of its EXIF data is used, if any."""

    x: Metres | None = Field(None, description="Metres east in the map's frame.")
    y: Metres | None = Field(None, description="Metres north in the map's frame.")
    heading: float | None = Field(None, ge=0, le=360, description="Degrees clockwise from north.")
    time: float | None = Field(None, description="Seconds since 1970.")


class ReferenceBody(Placed):
    """One image to append."""

    image: str = Field(description=_IMAGE)
    map: MapName | None = None


class PoseOut(BaseModel):
    """Estimated position of the query."""

    x: float
    y: float
    heading: float | None
    spread: float = Field(description="Spread of the matches in metres.")
    matches: int = Field(description="Number of matches that the position is based on.")


class MatchOut(BaseModel):
    """One match of the query."""

    rank: int
    name: str
    x: float | None
    y: float | None
    heading: float | None
    time: float | None
    similarity: float
    kappa: float | None
    uncertainty: float | None
    probability: float | None
    decision: str | None = Field(description="accept, doubtful or reject; null if unknown.")
    reference: int = Field(description="Index of the reference in this version of the map.")
    thumbnail: str = Field(description="URL of the reference's thumbnail.")


class LocalizationOut(BaseModel):
    """The answer to one query; docs/maps.md explains the fields."""

    map: str
    version: int = Field(description="Version of the map.")
    query: str
    sentence: str
    kappa: float | None
    uncertainty: float | None
    probability: float | None
    inside: float | None
    decision: str | None
    in_map: bool | None
    max_risk: float | None = Field(description="Risk limit of the decisions; null without decisions.")
    guaranteed: bool = Field(description="Whether this risk limit is guaranteed.")
    pose: PoseOut | None
    matches: list[MatchOut]
    signals: dict[str, float | None]
    notes: list[str]
    seconds: dict[str, float]
    calibration: str


class BatchOut(BaseModel):
    """One answer per image, in input order."""

    answers: list[LocalizationOut]


class EmbeddingsOut(BaseModel):
    """Unit vectors and κ, in input order."""

    map: str
    model: str = Field(description="Fingerprint of the model.")
    dim: int
    descriptors: list[list[float]]
    kappa: list[float] | None = Field(description="null if the model has no κ.")


class MapsOut(BaseModel):
    """All maps, and the limits of the service."""

    maps: list[str]
    default: str
    writable: bool = Field(description="Whether images can be appended with the write token.")
    max_k: int
    max_batch: int
    max_body: int
    formats: list[str]
    tile_url: str | None
    tile_attribution: str | None = Field(description="Attribution for the map tiles.")
    kappaplace: str


class BoundsOut(BaseModel):
    """The rectangle around all references with a position."""

    x0: float
    y0: float
    x1: float
    y1: float


class MapOut(BaseModel):
    """Description of a map."""

    name: str
    title: str
    references: int
    unposed: int
    dim: int
    kappa: bool
    kappa_percentiles: list[float] | None = Field(
        description="Percentiles 5, 50 and 95 of κ over the references."
    )
    frame: str
    radius: float
    neighbourhood: str
    bounds: BoundsOut | None
    thumbnails: bool
    model: str
    model_fingerprint: str
    calibration: str | None = Field(description="Data of the calibration; null without a calibration.")
    borrowed: bool = Field(
        description="Whether the calibration was shipped with the model and fitted on other places."
    )
    guaranteed: bool
    notes: list[str]
    version: int


class ReferenceOut(BaseModel):
    """One reference of a map."""

    id: int
    name: str
    x: float | None
    y: float | None
    lat: float | None
    lon: float | None
    heading: float | None
    time: float | None
    kappa: float | None
    distinctiveness: float | None = Field(
        description="Highest similarity to a reference of another place; high values are ambiguous."
    )
    thumbnail: str


class ReferencesOut(BaseModel):
    """References of a map or of an area."""

    map: str
    version: int
    total: int = Field(description="Number of references in the area.")
    references: list[ReferenceOut] = Field(description="At most `limit` references.")


class AddedOut(BaseModel):
    """Result of appending an image."""

    map: str
    version: int
    name: str
    id: int
    added: bool = Field(description="false if the map already had this image.")
    references: int


class BinOut(BaseModel):
    """Queries with about the same probability."""

    probability: float
    observed: float = Field(description="Fraction of these queries that is correct.")
    count: int


class CurveOut(BaseModel):
    """One point of the risk–coverage curve."""

    coverage: float
    risk: float
    uncertainty: float
    probability: float


class CalibrationOut(BaseModel):
    """Calibration of a map."""

    map: str
    calibrated: bool
    borrowed: bool
    origin: str | None
    guaranteed: bool
    fingerprint: str | None
    promise: list[str] = Field(description="The guarantee and its conditions as text.")
    notes: list[str]
    max_risk: float | None
    confidence: float | None
    outside_rate: float | None
    facts: dict[str, JsonValue] | None = Field(description="Facts about the fit.")
    rule: dict[str, JsonValue] | None
    reliability: list[BinOut] | None = Field(description="Reliability diagram; null if the map has none.")
    risk_coverage: list[CurveOut] | None = Field(
        description="Expected from the calibrated probabilities, most confident first."
    )
    percentiles: dict[str, list[float]] | None = Field(
        description="Percentiles 0 to 100 of each signal at calibration (fewer for few queries)."
    )


class RiskOut(BaseModel):
    """Expected results at a risk limit. Infinity is a string, because JSON has none."""

    map: str
    max_risk: float
    guaranteed: bool
    on: str = Field(description="Quantity that is compared with the thresholds: uncertainty or probability.")
    threshold: float | str = Field(
        description="Accept if the uncertainty is at most, or the probability at least, this value."
    )
    reject_at: float | str = Field(
        description="Reject if the uncertainty is at least, or the probability at most, this value."
    )
    reject_risk: float | None = Field(
        description="Largest fraction of correct answers among rejected matches."
    )
    coverage: float | None = Field(description="Expected fraction of accepted queries.")
    risk: float | None = Field(
        description="Expected fraction of incorrect answers among accepted ones; null if none is accepted."
    )


class DemoQueryOut(BaseModel):
    """One sample image."""

    index: int
    name: str
    image: str = Field(description="URL of the image.")


class DemoOut(BaseModel):
    """Sample images of the operator."""

    queries: list[DemoQueryOut]


class StateOut(BaseModel):
    """State of the service."""

    status: str


class ErrorOut(BaseModel):
    """An error message."""

    error: str


# The beginning of a small JPEG.
IMAGE = "/9j/4AAQSkZJRgABAQAAAQABAAD…"

BODIES: dict[str, dict[str, Json]] = {
    "LocalizeBody": {"image": IMAGE, "k": 5, "area": [550700.0, 4180050.0, 100.0], "max_risk": 0.05},
    "BatchBody": {"images": [IMAGE, IMAGE], "k": 5},
    "EmbedBody": {"images": [IMAGE]},
    "ReferenceBody": {"image": IMAGE, "x": 550690.0, "y": 4180005.0, "heading": 90.0},
}

ANSWER: dict[str, Json] = {
    "map": "town",
    "version": 7,
    "query": "query",
    "sentence": "Best match 0031.jpg at (550690.0, 4180005.0) ± 4.1 m, correct with probability "
    "0.97: accept.",
    "kappa": 184.2,
    "uncertainty": 0.031,
    "probability": 0.97,
    "inside": 0.99,
    "decision": "accept",
    "in_map": True,
    "max_risk": 0.05,
    "guaranteed": True,
    "pose": {"x": 550690.0, "y": 4180005.0, "heading": 91.5, "spread": 4.1, "matches": 3},
    "matches": [
        {
            "rank": 1,
            "name": "0031.jpg",
            "x": 550692.0,
            "y": 4180004.0,
            "heading": 90.0,
            "time": 1714000000.0,
            "similarity": 0.871,
            "kappa": 201.7,
            "uncertainty": 0.0052,
            "probability": 0.97,
            "decision": "accept",
            "reference": 31,
            "thumbnail": "/v1/references/31/thumbnail?map=town",
        }
    ],
    "signals": {"cosine": 0.129, "margin": -0.21, "aliasing": -0.18, "z-score": -6.4},
    "notes": [],
    "seconds": {"embed": 0.012, "search": 0.001, "signals": 0.001, "decide": 0.0004, "answer": 0.0003},
    "calibration": "5d2c0a9b1f7e4c33",
}
