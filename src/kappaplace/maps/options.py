"""Options of `PlaceMap`, for Python, the command line and the HTTP service alike.

This module loads nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, SupportsFloat, get_args

from kappaplace.checks import check_compared, share
from kappaplace.data.near import Circle, checked_circle
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help

if TYPE_CHECKING:
    from kappaplace.data.images import Preprocessing
    from kappaplace.models.embedding.ray import Embedder

Duplicates = Literal["error", "skip", "replace"]
OnError = Literal["skip", "stop"]
Storage = Literal["float32", "float16", "int8"]
Order = Literal["similarity", "probability"]
Rerank = Annotated[
    int | None,
    Help(
        "Number of top matches to re-rank by patch matching. Default: as at calibration.",
        ("--rerank", "--verify"),
    ),
]


@dataclass(frozen=True)
class AddOptions:
    """How images are added to a map.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    layout: Annotated[
        str, Help("Layout of the image folder, see `kappaplace data layouts`. Default: photos with EXIF.")
    ] = ""
    prefix: Annotated[str, Help("Text before each name, to distinguish two sources.")] = ""
    duplicates: Annotated[
        Duplicates,
        Help("What to do with another image of the same name: fail, skip it, or replace the old."),
    ] = "error"
    on_error: Annotated[OnError, Help("What to do with an unreadable image: list and skip it, or stop.")] = (
        "skip"
    )
    ray: Annotated[
        str, Help("Embed on a Ray cluster: auto (starts one if none is running), HOST:PORT or ray://….")
    ] = ""
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32
    device: Annotated[str, Help("Device: cpu, cuda, cuda:1 or mps. Default: the first GPU, or cpu.")] = ""
    segment_rows: int = 2048
    """References per file."""
    embedder: Embedder | None = None
    """A function that replaces the model."""

    def __post_init__(self) -> None:
        if str(self.on_error) == "raise":
            warnings.warn("on_error='raise' is now 'stop'.", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "on_error", "stop")
        for name, choices in (("duplicates", Duplicates), ("on_error", OnError)):
            if getattr(self, name) not in get_args(choices):
                raise KappaPlaceError(
                    f"{name} must be one of {', '.join(get_args(choices))}, got {getattr(self, name)!r}."
                )
        if self.segment_rows < 1:
            raise KappaPlaceError(f"A segment needs at least one row, got {self.segment_rows}.")
        if self.batch_size < 1:
            raise KappaPlaceError(f"The batch size must be at least 1, got {self.batch_size}.")
        if self.ray and self.embedder is not None:
            raise KappaPlaceError("Embed on a Ray cluster or with an embedder of your own, not both.")


@dataclass(frozen=True)
class BuildOptions(AddOptions):
    """How a map is built. What is not stated is taken from the images."""

    radius: Annotated[
        float | None, Help("Distance in meters within which two images show the same place. Default: 25.")
    ] = None
    neighborhood: Annotated[
        str,
        Help(
            "Which references are near each other: metres:25, frames:5 or self.",
            ("--neighborhood", "--neighbourhood"),
        ),
    ] = ""
    storage: Annotated[Storage, Help("Storage type of the descriptors.")] = "float32"
    thumbnails: Annotated[bool, Help("Store a small picture of each image.")] = False
    name: str = ""
    """Name of the map. Default: that of its folder."""
    preprocessing: Preprocessing | None = None
    """How images are prepared. Default: as the model states."""


@dataclass(frozen=True)
class LocalizeOptions:
    """How queries are answered.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    k: Annotated[int, Help("Number of matches per query.", ("--k", "-k"))] = 10
    area: Circle | None = None
    """Search only this circle: x, y and radius in meters of the map."""
    order: Annotated[Order, Help("Order of the matches.")] = "similarity"
    """With ``rerank``, the first matches are ordered by how well their patches agree."""
    outside_rate: Annotated[
        float | None, Help("Expected fraction of out-of-map queries. Default: as at calibration.")
    ] = None
    rerank: Rerank = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise KappaPlaceError(f"k must be at least 1, got {self.k}.")
        if isinstance(self.rerank, bool):
            raise KappaPlaceError(
                f"rerank is the number of matches to compare, got {self.rerank}. To order matches by "
                'probability, use order="probability".'
            )
        check_compared(self.rerank or 0)
        if self.order not in get_args(Order):
            raise KappaPlaceError(f"order must be similarity or probability, got {self.order!r}.")
        if self.outside_rate is not None:
            share(self.outside_rate, "outside_rate", ends=True)
        if self.area is not None:
            object.__setattr__(self, "area", area_of(self.area))


def area_of(area: Sequence[object] | object) -> Circle:
    """Return a circle as x, y and radius.

    Args:
        area: (x, y, radius), or ((x, y), radius) as in earlier versions.
    """
    parts = area if isinstance(area, Sequence) else ()
    if len(parts) == 2 and isinstance(parts[0], Sequence):
        parts = (*parts[0], parts[1])
    if len(parts) != 3 or not all(isinstance(part, SupportsFloat) for part in parts):
        raise KappaPlaceError(f"An area is x, y and radius in meters of the map, got {area!r}.")
    x, y, radius = map(float, parts)
    return checked_circle((x, y, radius))


@dataclass(frozen=True)
class LabelOptions:
    """Which queries are drawn for labeling."""

    size: Annotated[int, Help("Number of queries to draw.")] = 300
    """Half of them set the thresholds, and 5% at 95% needs 59 that are accepted."""
    seed: Annotated[int, Help("Random seed for the draw.")] = 0
    thin: Annotated[bool, Help("Draw only one query per place, by position or time.")] = True
    rerank: Rerank = None
    batch_size: Annotated[int, Help("Number of images to embed at once.")] = 32


@dataclass(frozen=True)
class FitOptions:
    """How κ is fitted; the defaults take some minutes on a CPU with a small encoder."""

    images: Annotated[int, Help("Maximum number of references to learn from.")] = 500
    """The head is small, and 200 were nearly as good."""
    views: Annotated[int, Help("Number of degraded views per image.")] = 2
    epochs: Annotated[int, Help("Number of passes over the images.")] = 40
    lr: float = 1e-2
    """κ travels over hundreds in some hundred steps, so it is ten times that of the paper's long runs."""
    batch_size: Annotated[int, Help("Number of images per training step.")] = 64
    seed: Annotated[int, Help("Random seed for the choice of images and their degradation.")] = 0

    def __post_init__(self) -> None:
        for name in ("images", "views", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise KappaPlaceError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.seed < 0 or not self.lr > 0:
            raise KappaPlaceError(
                f"The seed must not be negative and lr must be above 0, got {self.seed} and {self.lr}."
            )
