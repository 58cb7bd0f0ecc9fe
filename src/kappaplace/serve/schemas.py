"""Requests and responses of the HTTP API. Unknown values are null, because JSON has no NaN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, model_validator

from kappaplace.maps import LocalizeOptions, Order, area_of
from kappaplace.types import Json

FAR = 1e9
"""Largest coordinate in metres; larger ones are on no map, and their squares overflow."""
Meters = Annotated[float, Field(ge=-FAR, le=FAR)]
Risk = Annotated[
    float, Field(gt=0, lt=1, description="Largest fraction of incorrect answers among accepted ones.")
]
Area = Annotated[
    list[Meters],
    Field(
        min_length=3,
        max_length=3,
        description="x, y and radius in metres of the map's frame, or latitude, longitude and radius.",
    ),
]
MapName = Annotated[str, Field(description="Name of the map. Default: the first one.")]
Session = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Id of a sequence, chosen by the client. Images with the same id are frames of one "
        "camera, in the order of the requests; each answer is fused with the earlier ones, and no risk is "
        "guaranteed. A sequence starts again after ten minutes without images, and when the map changes.",
        examples=["bus-7f3a"],
    ),
]
_IMAGE = "JPEG, PNG or WebP file (HEIC if the operator allows it) as base64 or as a data: URL."


EXAMPLES: dict[str, dict[str, Json]] = json.loads(
    (Path(__file__).parent / "examples.json").read_text(encoding="utf-8")
)
"""One body per request and one example per response, for the description of the API."""


class Body(BaseModel):
    """Base of requests: unknown keys are rejected, so that a misspelled option is not ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def example_of(name: Json) -> Json:
    """Return the example of a response; inside of examples, the name of another one stands for it."""
    found = EXAMPLES["responses"].get(name) if isinstance(name, str) else name
    if isinstance(found, dict):
        return {key: example_of(part) for key, part in found.items()}
    if isinstance(found, list):
        return [example_of(part) for part in found]
    return name if found is None else found


class Out(BaseModel):
    """Base of responses; examples.json has an example of each."""

    model_config = ConfigDict(use_attribute_docstrings=True)


Decided: TypeAlias = Literal["accept", "doubtful", "reject"]


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
    outside_rate: float | None = Field(
        None, ge=0, le=1, description="Expected fraction of out-of-map queries. Default: the calibrated one."
    )
    heading: float | None = Field(
        None,
        ge=0,
        le=360,
        description="Direction in which the image looks, in degrees clockwise from north, if it is known. A "
        "note tells you if the map has no such image there.",
    )
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Also return the smallest set of places that contains the correct one with this "
        "probability.",
    )
    group: str | None = Field(
        None, max_length=100, description="Group of the queries, if the map was calibrated with groups."
    )
    max_risk: Risk | None = Field(
        None, description="Risk limit for decisions instead of the calibrated one; estimated, not guaranteed."
    )
    session: Session | None = None
    evidence: bool = Field(
        False, description="Whether to return the patches that agree with the best match, for a drawing."
    )
    map: MapName | None = None

    @model_validator(mode="after")
    def _one_risk(self) -> Options:
        if self.session is not None and self.max_risk is not None:
            raise ValueError("max_risk cannot be used with session, whose risk is that of the calibration")
        if self.session is not None and (self.coverage, self.group) != (None, None):
            raise ValueError("coverage and group cannot be used with session, which has no guarantee")
        return self

    def localize_options(self) -> LocalizeOptions:
        """Return the options for the map."""
        area = None if self.area is None else area_of(self.area)
        return LocalizeOptions(
            self.k,
            area,
            self.order,
            self.outside_rate,
            self.rerank,
            heading=self.heading,
            coverage=self.coverage,
            group=self.group,
        )


class LocalizeBody(Options):
    """One image to localize."""

    image: str = Field(description=_IMAGE, examples=["/9j/4AAQSkZJRg…"])


class BatchBody(Options):
    """Several images to localize."""

    images: list[str] = Field(min_length=1, description=_IMAGE, examples=[["/9j/4AAQSkZJRg…"]])
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="stop: an invalid image fails the request. skip: it is listed in `errors`."
    )


class EmbedBody(Body):
    """Images to embed like those of the map."""

    images: list[str] = Field(min_length=1, description=_IMAGE, examples=[["/9j/4AAQSkZJRg…"]])
    map: MapName | None = None


class Placed(Body):
    """Position of an image to append, in metres or in degrees. Default: the GPS position of its EXIF data, if
    any."""

    x: Meters | None = Field(None, description="Metres east in the map's frame.")
    y: Meters | None = Field(None, description="Metres north in the map's frame.")
    latitude: float | None = Field(None, ge=-90, le=90, description="Degrees north (WGS 84), instead of y.")
    longitude: float | None = Field(None, ge=-360, le=360, description="Degrees east, instead of x.")
    heading: float | None = Field(None, ge=0, le=360, description="Degrees clockwise from north.")
    time: float | None = Field(None, description="Seconds since 1970.")


class ReferenceBody(Placed):
    """One image to append."""

    image: str = Field(description=_IMAGE)
    map: MapName | None = None


class PoseOut(Out):
    """Estimated position of the query."""

    x: float
    y: float
    heading: float | None
    spread: float
    """Root mean square distance of the matches that agree, in metres. It does not measure the error; the
    `radius` of the answer does."""
    matches: int
    """Number of matches that agree with the best one."""


class MatchOut(Out):
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
    decision: Decided | None
    """null if unknown."""
    reference: int
    """Index of the reference in this version of the map."""
    thumbnail: str
    """URL of the reference's thumbnail."""
    latitude: float | None
    longitude: float | None


class CandidatePlaceOut(Out):
    """A place that may be correct, given by its best match."""

    name: str
    x: float | None
    y: float | None
    reference: int
    """Index of the reference in this version of the map."""


class CandidatesOut(Out):
    """The smallest set of places that contains the correct one with a given probability."""

    coverage: float
    """The probability, an average over all queries."""
    places: list[CandidatePlaceOut]
    """The places, most probable first."""
    unmapped: bool
    """Whether the query may be out-of-map."""
    guaranteed: bool
    """Whether the coverage is guaranteed."""


class LocalizationOut(Out):
    """The answer to one query; docs/maps.md explains the fields."""

    id: str = ""
    """Id of the answer, for `POST /v1/labels`."""
    map: str
    version: int
    """Version of the map."""
    query: str
    sentence: str
    kappa: float | None
    uncertainty: float | None
    probability: float | None
    inside: float | None
    decision: Decided | None
    in_map: bool | None
    max_risk: float | None
    """Risk limit of the decisions; null without decisions."""
    guaranteed: bool
    """Whether this risk limit is guaranteed."""
    pose: PoseOut | None
    latitude: float | None
    """Degrees north of the estimated position (WGS 84); null without a pose, or in a local frame."""
    longitude: float | None
    """Degrees east of the estimated position (WGS 84)."""
    frame: str
    """Frame of x and y: EPSG codes, or local."""
    time: float | None = None
    """Time of the image of a sequence in seconds since 1970; null over HTTP."""
    radius: float | None
    """The true position is within this many metres of the pose with probability `radius_level`; null if no
    such radius is known."""
    radius_level: float | None
    radius_source: str | None
    """labels, or map (calibrated on the map's own images, which guarantees nothing)."""
    covariance: list[list[float]] | None
    """3×3 covariance of east, north (metres) and heading (radians) if the answer is not far off."""
    far: float | None
    """Probability that the answer is far off, so that the covariance does not apply."""
    matches: list[MatchOut]
    candidates: CandidatesOut | None = None
    """Candidate set; null unless a coverage was requested."""
    signals: dict[str, float | None]
    notes: list[str]
    seconds: dict[str, float]
    calibration: str
    evidence: list[list[float]] | None = None
    """Patches of the query that agree with the best match: x and y in the query, x and y in the match (from
    0 to 1), and a weight. null unless requested, or if the map has no patches."""


class ProblemOut(Out):
    """An error (RFC 9457). `code` does not change; `detail` is for people."""

    type: str
    """URL of the description of the code."""
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    """Also sent as the header `X-Request-Id`, and written to the log of the service."""
    error: str
    """The same as `detail`, for clients of earlier versions."""


class ImageProblemOut(ProblemOut):
    """An image of a batch that could not be answered."""

    index: int
    """Position of the image in the request, from 0."""


class BatchOut(Out):
    """One answer per image, in input order."""

    answers: list[LocalizationOut | None]
    """null for an image in `errors`."""
    errors: list[ImageProblemOut] = []
    """Images that could not be answered; only with `on_error=skip`."""


class LineOut(Out):
    """One line of a streamed batch: an answer or an error. Lines come in the order of completion."""

    index: int
    """Position of the image in the request, from 0."""
    answer: LocalizationOut | None = None
    problem: ProblemOut | None = None


class EmbeddingsOut(Out):
    """Unit vectors and κ, in input order."""

    map: str
    model: str
    """Fingerprint of the model."""
    dim: int
    descriptors: list[list[float]]
    kappa: list[float] | None
    """null if the model has no κ."""


class MapsOut(Out):
    """All maps, and the limits of the service."""

    maps: list[str]
    default: str
    writable: bool
    """Whether images can be appended with the write token."""
    labels: bool
    """Whether `POST /v1/labels` is enabled."""
    max_k: int
    max_batch: int
    max_body: int
    formats: list[str]
    tile_url: str | None
    tile_attribution: str | None
    """Attribution for the map tiles."""
    kappaplace: str


class BoundsOut(Out):
    """The rectangle around all references with a position."""

    x0: float
    y0: float
    x1: float
    y1: float


class MapOut(Out):
    """Description of a map."""

    name: str
    title: str
    references: int
    unposed: int
    dim: int
    kappa: bool
    kappa_percentiles: list[float] | None
    """Percentiles 5, 50 and 95 of κ over the references."""
    frame: str
    radius: float
    neighbourhood: str
    bounds: BoundsOut | None
    thumbnails: bool
    model: str
    model_fingerprint: str
    calibration: str | None
    """Data of the calibration; null without a calibration."""
    borrowed: bool
    """Whether the calibration was shipped with the model and fitted on other places."""
    guaranteed: bool
    notes: list[str]
    version: int


class ReferenceOut(Out):
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
    distinctiveness: float | None
    """Highest similarity to a reference of another place; high values are ambiguous."""
    thumbnail: str


class ReferencesOut(Out):
    """References of a map or of an area."""

    map: str
    version: int
    total: int
    """Number of references in the area."""
    references: list[ReferenceOut]
    """At most `limit` references."""


class AddedOut(Out):
    """Result of appending an image."""

    map: str
    version: int
    name: str
    id: int
    added: bool
    """false if the map already had this image."""
    references: int


class BinOut(Out):
    """Queries with about the same probability."""

    probability: float
    observed: float
    """Fraction of these queries that is correct."""
    count: int


class CurveOut(Out):
    """One point of the risk–coverage curve."""

    coverage: float
    risk: float
    uncertainty: float
    probability: float


class CalibrationOut(Out):
    """Calibration of a map."""

    map: str
    calibrated: bool
    borrowed: bool
    origin: str | None
    guaranteed: bool
    fingerprint: str | None
    promise: list[str]
    """The guarantee and its conditions as text."""
    notes: list[str]
    max_risk: float | None
    confidence: float | None
    outside_rate: float | None
    facts: dict[str, JsonValue] | None
    """Facts about the fit."""
    rule: dict[str, JsonValue] | None
    reliability: list[BinOut] | None
    """Reliability diagram; null if the map has none."""
    risk_coverage: list[CurveOut] | None
    """Expected from the calibrated probabilities, most confident first."""
    percentiles: dict[str, list[float]] | None
    """Percentiles 0 to 100 of each signal at calibration (fewer for few queries)."""


class RiskOut(Out):
    """Expected results at a risk limit. Infinity is a string, because JSON has none."""

    map: str
    max_risk: float
    guaranteed: bool
    on: Literal["uncertainty", "probability"]
    """Quantity that is compared with the thresholds: uncertainty or probability."""
    threshold: float | str
    """Threshold of an acceptance: the uncertainty is at most this value, or the probability at least this
    value."""
    reject_at: float | str
    """Threshold of a rejection: the uncertainty is at least this value, or the probability at most this
    value."""
    reject_risk: float | None
    """Largest fraction of correct answers among rejected matches."""
    coverage: float | None
    """Expected fraction of accepted queries."""
    risk: float | None
    """Expected fraction of incorrect answers among accepted ones; null if none is accepted."""


class DemoQueryOut(Out):
    """One sample image."""

    index: int
    name: str
    image: str
    """URL of the image."""


class DemoOut(Out):
    """Sample images of the operator."""

    queries: list[DemoQueryOut]


class StateOut(Out):
    """State of the service."""

    status: Literal["ok", "ready"]


class LabelBody(Body):
    """What a person said about an answer."""

    answer: str = Field(description="`id` of the answer.", min_length=1, max_length=64)
    label: Literal["right", "wrong", "unknown"] = Field(description="Whether the place is right.")
    map: MapName | None = None


class LabelsOut(Out):
    """What people said about answers since the service started, per decision. Not a random sample."""

    map: str
    stored: int
    """Number of labels in the file of the operator."""
    counts: dict[str, dict[str, int]]
    """Numbers of the labels right, wrong and unknown, by decision."""


class WarningOut(Out):
    """A signal that differs from the calibration."""

    signal: str
    test: Literal["range", "shape"]
    direction: Literal["higher", "lower", "wider"]
    statistic: float
    limit: float
    """Largest value of the statistic that chance explains."""
    sentence: str


class WindowOut(Out):
    """Queries that were compared together."""

    queries: int
    """Number of queries since the start, including this window."""
    time: float | None
    """Seconds since 1970."""
    quantiles: dict[str, list[float]]
    """Quantiles 5%, 50% and 95% of each signal."""
    warnings: list[WarningOut]


class DriftOut(Out):
    """Comparison of the queries since the start of the service with those of the calibration."""

    map: str
    available: bool
    """false without a calibration that has reference statistics."""
    window: int
    """Number of queries per comparison."""
    queries: int
    waiting: int
    """Number of queries in the window that is not complete."""
    drifting: bool
    """Whether the last complete window has warnings."""
    calibrated: dict[str, list[float]]
    """Quantiles 5%, 50% and 95% of each signal at calibration."""
    windows: list[WindowOut]
    """The last complete windows, oldest first."""
