"""Options of `PlaceMap`, shared by Python, the command line and the HTTP service.

This module imports nothing heavy, so that ``--help`` is fast.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, SupportsFloat

from kappaplace.checks import check_compared, checked_seed, choice, share, within
from kappaplace.data.near import Circle, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help, Setting

if TYPE_CHECKING:
    from kappaplace.data.images import Preprocessing
    from kappaplace.models.embedding.ray import Embedder

Duplicates = Literal["error", "skip", "replace"]
OnError = Literal["skip", "stop"]
Storage = Literal["float32", "float16", "int8"]
Patches = Literal["none", "compact", "full"]
Order = Literal["similarity", "probability"]
MOST_MINUTES, MOST_SPEED = 1e6, 1e5
"""Largest values for comparing photos, far beyond any use."""
Rerank = Annotated[
    int | None,
    Help(
        "Number of top matches to re-rank by patch matching. Default: as calibrated, or 0 if not calibrated.",
        ("--rerank", "--verify"),
    ),
]


@dataclass(frozen=True)
class AddOptions:
    """Options for adding images to a map.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    layout: Annotated[
        str,
        Help("Layout of the image folder, see `kappaplace data layouts`. Default: photos with EXIF data."),
    ] = ""
    prefix: Annotated[str, Help("Text to put before each image name, to distinguish two sources.")] = ""
    duplicates: Annotated[
        Duplicates,
        Help("Action if the map has another image of this name: error, skip, or replace the old image."),
    ] = "error"
    on_error: Annotated[
        OnError, Help("Action for an unreadable image: skip (report it and continue) or stop.")
    ] = "skip"
    ray: Annotated[
        str,
        Help("Embed on a Ray cluster: auto (starts one if none is running), HOST:PORT or ray://…."),
    ] = ""
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32
    device: Annotated[str, Help("Device: cpu, cuda, cuda:1 or mps. Default: the first GPU, or cpu.")] = ""
    segment_rows: int = 2048
    """Number of references per segment file."""
    embedder: Embedder | None = None
    """Function that embeds the images instead of the model. Default: the model."""

    def __post_init__(self) -> None:
        if str(self.on_error) == "raise":
            warnings.warn("on_error='raise' is now 'stop'. Pass 'stop'.", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "on_error", "stop")
        choice(self.duplicates, Duplicates, "duplicates")
        choice(self.on_error, OnError, "on_error")
        within(self.segment_rows, "segment_rows", 1)
        within(self.batch_size, "batch_size", 1)
        if self.ray and self.embedder is not None:
            raise KappaPlaceError("ray and embedder cannot be used together. Pass only one of them.")


@dataclass(frozen=True)
class BuildOptions(AddOptions):
    """Options for building a map. Options without a value are taken from the images.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    radius: Annotated[
        float | None, Help("Distance in metres within which two images show the same place. Default: 25.")
    ] = None
    neighborhood: Annotated[
        str,
        Help(
            "Rule by which images show the same place: metres:25, frames:5 or self. Default: the radius.",
            ("--neighborhood", "--neighbourhood"),
        ),
    ] = ""
    storage: Annotated[Storage, Help("Number format of the descriptors.")] = "float32"
    thumbnails: Annotated[bool, Help("Store a thumbnail of each image.")] = False
    patches: Annotated[
        Patches | None,
        Help(
            "Data to store for patch matching: nothing, codes of at most 4 KiB per reference, or whole "
            "feature maps. Default: compact if the model has patch maps."
        ),
    ] = None
    dim: Annotated[
        int | None,
        Help(
            "Dimension of the descriptors after whitening on the map's own images, for encoders with long "
            "descriptors. Default: the dimension of the model."
        ),
    ] = None
    name: str = ""
    """Name of the map. Default: the name of its folder."""
    preprocessing: Preprocessing | None = None
    """Preprocessing of the images. Default: the preprocessing of the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches is not None:
            choice(self.patches, Patches, "patches")
        if self.dim is not None and self.dim < 2:
            raise KappaPlaceError(f"dim must be at least 2, got {self.dim}.")


@dataclass(frozen=True)
class LocalizeOptions:
    """Options for localizing queries.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    k: Annotated[int, Help("Number of matches per query.", ("--k", "-k"))] = 10
    area: Circle | None = None
    """Search only this circle: x, y and radius in metres in the frame of the map, or latitude, longitude
    (degrees) and radius (metres). Default: the whole map."""
    order: Annotated[Order, Help("Order of the matches.")] = "similarity"
    """With ``rerank``, the order by similarity starts with the matches whose patches agree best."""
    outside_rate: Annotated[
        float | None, Setting("expected fraction of out-of-map queries. Default: the calibrated one.")
    ] = None
    rerank: Rerank = None
    """Number of top matches to re-rank by patch matching. Default: as calibrated, or 0."""
    heading: Annotated[
        float | None,
        Setting(
            "direction in which the query looks, in degrees clockwise from north. A note tells you if the "
            "map has no such image there."
        ),
    ] = None
    coverage: Annotated[
        float | None,
        Help(
            "Also return the smallest set of places that contains the correct one with this probability, "
            "such as 0.95. Default: no set."
        ),
    ] = None
    group: Annotated[
        str | None,
        Setting(
            "group of the queries, if the map was calibrated with groups, such as night. Default: unknown, "
            "so that the strictest group decides."
        ),
    ] = None

    def __post_init__(self) -> None:
        within(self.k, "k", 1)
        if self.heading is not None:
            within(self.heading, "heading", 0, 360)
        if self.coverage is not None:
            share(self.coverage, "coverage")
        if isinstance(self.rerank, bool):
            raise KappaPlaceError(
                f"rerank must be a number of matches, got {self.rerank}. To order matches by probability, "
                'pass order="probability".'
            )
        check_compared(self.rerank or 0)
        choice(self.order, Order, "order")
        if self.outside_rate is not None:
            share(self.outside_rate, "outside_rate", ends=True)
        if self.area is not None:
            object.__setattr__(self, "area", area_of(self.area))

    @classmethod
    def of(cls, k: int | LocalizeOptions, options: LocalizeOptions) -> LocalizeOptions:
        """Return the options of a call with a number of matches, or with a record instead of options.

        Args:
            k: Number of matches, or the record.
            options: The other options of the call.

        Returns:
            The options.

        Raises:
            KappaPlaceError: If there are a record and other options.
        """
        if not isinstance(k, LocalizeOptions):
            return replace(options, k=k)
        if options != cls():
            raise KappaPlaceError(
                "Options were passed twice, in LocalizeOptions and separately. Pass all of them in one way."
            )
        return k


@dataclass(frozen=True)
class SequenceOptions:
    """Options for localizing the images of a sequence together.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    step: Annotated[
        float | None,
        Setting(
            "typical distance between two consecutive images, in metres (in frames, if the map has no "
            "positions). Default: estimated from the images."
        ),
    ] = None
    causal: Annotated[
        bool,
        Help(
            "Use only an image itself and earlier images, as on a live stream. Default: also later images.",
            ("--causal",),
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.step is not None:
            within(self.step, "step", 1e-3, MOST_SPEED)


def area_of(area: Sequence[object] | object) -> Circle:
    """Return a circle as x, y and radius.

    Args:
        area: (x, y, radius), or ((x, y), radius) as in earlier versions, or text: "45.751,21.224,100m".

    Returns:
        x, y and radius.

    Raises:
        KappaPlaceError: If the values are not three numbers, or the radius is negative.
    """
    parts = area if isinstance(area, Sequence) else ()
    if isinstance(area, str):
        parts = area.strip().removesuffix("m").split(",")
    elif len(parts) == 2 and isinstance(parts[0], Sequence):
        parts = (*parts[0], parts[1])
    try:
        x, y, radius = (float(part) for part in parts if isinstance(part, SupportsFloat | str))
    except ValueError:
        raise KappaPlaceError(
            "area must be three numbers, x, y and radius in metres, or LAT,LON,RADIUS in degrees and metres, "
            f"got {area!r}."
        ) from None
    return checked_circle((x, y, radius))


@dataclass(frozen=True)
class LabelOptions:
    """Options for sampling the queries that a person labels."""

    size: Annotated[int, Help("Number of queries to sample.")] = 300
    """Half of the labels set the thresholds. A risk of 5% at 95% confidence needs 59 accepted answers."""
    seed: Annotated[int, Help("Random seed for sampling the queries.")] = 0
    thin: Annotated[bool, Help("Sample only one query per place, based on position or time.")] = True
    rerank: Rerank = None
    """Number of top matches to re-rank by patch matching. Default: as calibrated, or 0."""
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32


@dataclass(frozen=True)
class FitOptions:
    """Options for fitting κ. The defaults take a few minutes on a CPU with a small encoder.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    images: Annotated[int, Help("Maximum number of references to learn from.")] = 500
    """The head is small: 200 references give nearly the same result."""
    views: Annotated[int, Help("Number of degraded views per image.")] = 2
    epochs: Annotated[int, Help("Number of passes over the images.")] = 40
    lr: float = 1e-2
    """Learning rate, ten times that of the paper, because κ changes by hundreds in a few hundred steps."""
    batch_size: Annotated[int, Help("Number of images per training step.")] = 64
    seed: Annotated[int, Help("Random seed for the selection of images and their degradation.")] = 0

    def __post_init__(self) -> None:
        for name in ("images", "views", "epochs", "batch_size"):
            within(getattr(self, name), name, 1)
        checked_seed(self.seed)
        if not self.lr > 0:
            raise KappaPlaceError(f"lr must be above 0, got {self.lr}.")


@dataclass(frozen=True)
class GeotagOptions:
    """Options for finding the positions of photos.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    minutes: Annotated[
        float, Help("Maximum time in minutes between two photos whose answers are compared.")
    ] = 5.0
    speed: Annotated[float, Help("Highest plausible speed between two photos, in metres per second.")] = 15.0
    between: Annotated[
        bool,
        Help("Also interpolate positions between two photos, at most one minute and one map radius apart."),
    ] = True
    """Interpolated positions are not covered by the guarantee of accepted answers."""
    max_risk: Annotated[
        float | None, Help("Maximum error rate among accepted answers. Default: the calibrated one.")
    ] = None
    rerank: Rerank = None
    """Number of top matches to re-rank by patch matching. Default: as calibrated, or 0."""
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32

    def __post_init__(self) -> None:
        within(self.minutes, "minutes", 0, MOST_MINUTES)
        within(self.speed, "speed", 0, MOST_SPEED)
        within(self.batch_size, "batch_size", 1)
        check_compared(self.rerank or 0)
        if self.max_risk is not None:
            share(self.max_risk, "risk")


@dataclass(frozen=True)
class PairOptions:
    """Options for comparing pairs of images.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    same_rate: Annotated[
        float, Help("Expected fraction of the pairs that show the same place; all others look alike.")
    ] = 0.5
    calibration: Annotated[
        Path | None, Help("Calibration of pairs, written with --fit. Default: the shipped calibration.")
    ] = None
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32
    device: Annotated[str, Help("Device: cpu, cuda, cuda:1 or mps. Default: the first GPU, or cpu.")] = ""
    evidence: bool = False
    """Whether to return the pairs of patches that agree."""

    def __post_init__(self) -> None:
        share(self.same_rate, "same_rate")
        within(self.batch_size, "batch_size", 1)
