"""What goes over the wire. What is unknown is null: a NaN is no JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from kappaplace.maps import LocalizeOptions, Order, area_of

FAR = 1e9
"""Metres: no map reaches so far, and squares of what does overflow."""
Metres = Annotated[float, Field(ge=-FAR, le=FAR)]
Risk = Annotated[float, Field(gt=0, lt=1, description="Share of errors allowed among accepted answers.")]
Area = Annotated[
    list[Metres],
    Field(min_length=3, max_length=3, description="x, y, radius: metres of the map's frame."),
]
MapName = Annotated[str, Field(description="Which map; the first one unless stated.")]
_IMAGE = "Base64 of a JPEG, PNG or WebP file (HEIC where the operator allows it); a data: address will do."


class Body(BaseModel):
    """JSON that is sent: unknown keys are refused, so that a misspelt option is not silently ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Options(Body):
    """How to localize."""

    k: int = Field(10, ge=1, le=2**31, description="Number of matches per query.")
    area: Area | None = Field(
        None, validation_alias=AliasChoices("area", "near"), examples=[[550700.0, 4180050.0, 100.0]]
    )
    order: Order = Field("similarity", description="Order of the matches.")
    rerank: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="Number of top matches to re-rank by patch matching. Default: as at calibration.",
    )
    max_risk: Risk | None = Field(
        None, description="Decide for this risk instead of the calibrated one; estimated, not proven."
    )
    map: MapName | None = None

    def asked(self) -> LocalizeOptions:
        """Return what the map is asked for."""
        area = None if self.area is None else area_of(self.area)
        return LocalizeOptions(self.k, area, self.order, rerank=self.rerank)


class LocalizeBody(Options):
    """One image."""

    image: str = Field(description=_IMAGE, examples=["/9j/4AAQSkZJRg…"])


class BatchBody(Options):
    """Several images."""

    images: list[str] = Field(min_length=1, description=_IMAGE, examples=[["/9j/4AAQSkZJRg…"]])


class EmbedBody(Body):
    """Images to be embedded as the map's own are."""

    images: list[str] = Field(min_length=1, description=_IMAGE, examples=[["/9j/4AAQSkZJRg…"]])
    map: MapName | None = None


class Placed(Body):
    """Where an image to be appended was taken; without x and y its EXIF data tells, if it can."""

    x: Metres | None = Field(None, description="Metres east in the map's frame.")
    y: Metres | None = Field(None, description="Metres north in the map's frame.")
    heading: float | None = Field(None, ge=0, le=360, description="Degrees clockwise from north.")
    time: float | None = Field(None, description="Seconds since 1970.")


class ReferenceBody(Placed):
    """One image to be appended."""

    image: str = Field(description=_IMAGE)
    map: MapName | None = None


class PoseOut(BaseModel):
    """Where the query was taken."""

    x: float
    y: float
    heading: float | None
    spread: float = Field(description="Metres.")
    matches: int = Field(description="How many matches it was made of.")


class MatchOut(BaseModel):
    """One reference that resembles the query."""

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
    decision: str | None = Field(description="accept, doubtful, reject; null where it is unknown.")
    reference: int = Field(description="Its number in this version of the map.")
    thumbnail: str = Field(description="Address of a small picture of it.")


class LocalizationOut(BaseModel):
    """The answer to one query; see the table in docs/maps.md."""

    map: str
    version: int = Field(description="Of the map that answered.")
    query: str
    sentence: str
    kappa: float | None
    uncertainty: float | None
    probability: float | None
    inside: float | None
    decision: str | None
    in_map: bool | None
    max_risk: float | None = Field(description="The risk that was decided for; null without decisions.")
    guaranteed: bool = Field(description="Whether that risk is promised.")
    pose: PoseOut | None
    matches: list[MatchOut]
    signals: dict[str, float | None]
    notes: list[str]
    seconds: dict[str, float]
    calibration: str


class BatchOut(BaseModel):
    """Answers in the order of the images."""

    answers: list[LocalizationOut]


class EmbeddingsOut(BaseModel):
    """Unit vectors and κ, in the order of the images."""

    map: str
    model: str = Field(description="Fingerprint of the model.")
    dim: int
    descriptors: list[list[float]]
    kappa: list[float] | None = Field(description="null from a model without κ.")


class MapsOut(BaseModel):
    """All maps, and what the page needs to know of the service."""

    maps: list[str]
    default: str
    writable: bool = Field(description="Whether images can be appended, with the write token.")
    max_k: int
    max_batch: int
    max_body: int
    formats: list[str]
    tile_url: str | None
    tile_attribution: str | None = Field(description="Whose the tiles are, as text.")
    kappaplace: str


class BoundsOut(BaseModel):
    """The rectangle that holds all references with a position."""

    x0: float
    y0: float
    x1: float
    y1: float


class MapOut(BaseModel):
    """What a map is."""

    name: str
    title: str
    references: int
    unposed: int
    dim: int
    kappa: bool
    kappa_percentiles: list[float] | None = Field(description="p5, p50 and p95 of the references' κ.")
    frame: str
    radius: float
    neighbourhood: str
    bounds: BoundsOut | None
    thumbnails: bool
    model: str
    model_fingerprint: str
    calibration: str | None = Field(description="What it was calibrated on, in words; null: it was not.")
    borrowed: bool = Field(description="Whether the calibration came with the model, from other places.")
    guaranteed: bool
    notes: list[str]
    version: int


class ReferenceOut(BaseModel):
    """One image of the map."""

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
        description="Highest similarity to a reference of another place: high is ambiguous."
    )
    thumbnail: str


class ReferencesOut(BaseModel):
    """References of an area."""

    map: str
    version: int
    total: int = Field(description="How many there are in the area.")
    references: list[ReferenceOut] = Field(description="At most `limit` of them.")


class AddedOut(BaseModel):
    """What became of an image that was sent to be appended."""

    map: str
    version: int
    name: str
    id: int
    added: bool = Field(description="False: it was there already.")
    references: int


class BinOut(BaseModel):
    """Queries of about one probability."""

    probability: float
    observed: float = Field(description="Share of them that was right.")
    count: int


class CurveOut(BaseModel):
    """One point of the risk–coverage curve."""

    coverage: float
    risk: float
    uncertainty: float
    probability: float


class CalibrationOut(BaseModel):
    """How sure the map is, and why one may believe it."""

    map: str
    calibrated: bool
    borrowed: bool
    origin: str | None
    guaranteed: bool
    fingerprint: str | None
    promise: list[str] = Field(description="What is promised and on what terms, in sentences.")
    notes: list[str]
    max_risk: float | None
    confidence: float | None
    outside_rate: float | None
    facts: dict[str, Any] | None = Field(description="How it was fitted.")
    rule: dict[str, Any] | None
    reliability: list[BinOut] | None = Field(description="null where the map keeps none.")
    risk_coverage: list[CurveOut] | None = Field(
        description="Expected from the calibrated probabilities, most certain first."
    )
    percentiles: dict[str, list[float]] | None = Field(
        description="Percentiles 0 to 100 of each signal at calibration (fewer of few queries)."
    )


class RiskOut(BaseModel):
    """What to expect when deciding for a risk; JSON has no infinity, so that becomes a string."""

    map: str
    max_risk: float
    guaranteed: bool
    on: str = Field(description="What the thresholds are on: uncertainty or probability.")
    threshold: float | str = Field(
        description="Accept an uncertainty not above, or a probability not below this."
    )
    reject_at: float | str = Field(
        description="Reject an uncertainty not below, or a probability not above this."
    )
    reject_risk: float | None = Field(description="Share of right answers allowed among rejected matches.")
    coverage: float | None = Field(description="Share of queries to be accepted, expected.")
    risk: float | None = Field(description="Share of errors among them, expected; null where none is.")


class DemoQueryOut(BaseModel):
    """One image to try."""

    index: int
    name: str
    image: str = Field(description="Its address.")


class DemoOut(BaseModel):
    """Images that the operator offers for trying out."""

    queries: list[DemoQueryOut]


class StateOut(BaseModel):
    """Whether the service can answer."""

    status: str


class ErrorOut(BaseModel):
    """What went wrong, in one sentence."""

    error: str


# The smallest JPEG there is would do; this is its beginning, and people send their own anyway.
IMAGE = "/9j/4AAQSkZJRgABAQAAAQABAAD…"

BODIES: dict[str, dict[str, Any]] = {
    "LocalizeBody": {"image": IMAGE, "k": 5, "area": [550700.0, 4180050.0, 100.0], "max_risk": 0.05},
    "BatchBody": {"images": [IMAGE, IMAGE], "k": 5},
    "EmbedBody": {"images": [IMAGE]},
    "ReferenceBody": {"image": IMAGE, "x": 550690.0, "y": 4180005.0, "heading": 90.0},
}

ANSWER: dict[str, Any] = {
    "map": "town",
    "version": 7,
    "query": "query",
    "sentence": "Best match 0031.jpg at (550690.0, 4180005.0) ± 4.1 m, right with probability 0.97: accept.",
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
