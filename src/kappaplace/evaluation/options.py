"""Options of an audit, for Python and the command line; this module imports nothing that loads slowly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from kappaplace.checks import choice, finite, share, within
from kappaplace.records import Help

Metric = Literal["cosine", "dot", "l2", "squared-l2"]
DISTANCES = ("l2", "squared-l2")
"""Metrics of which lower is better."""


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit.

    Raises:
        KappaPlaceError: If a value is out of range.
    """

    threshold: Annotated[float, Help("Your threshold: answers with this score or a better one are accepted.")]
    max_risk: Annotated[float, Help("Maximum error rate among accepted answers.")] = 0.05
    confidence: Annotated[float, Help("Confidence level of the interval and of the guarantee.")] = 0.95
    block: Annotated[
        int | None,
        Help(
            "Number of consecutive answers that count as one observation. Default: 20 for frames of a "
            "drive, otherwise 1."
        ),
    ] = None

    def __post_init__(self) -> None:
        finite(self.threshold, "threshold")
        share(self.max_risk, "risk")
        share(self.confidence, "confidence")
        if self.block is not None:
            within(self.block, "block", 1)


@dataclass(frozen=True)
class AnswerFiles:
    """Meaning of the columns and numbers in the files, and location of the labels.

    Raises:
        KappaPlaceError: If the metric is unknown.
    """

    positives: Annotated[
        Path | None, Help("Correct references of each query: .json (list of lists), .npy or .npz.")
    ] = None
    score: Annotated[
        str,
        Help("Name of the score: a column of a log, a matrix of an .npz file, or an array of a SUE file."),
    ] = ""
    correct: Annotated[str, Help("Column of a log that states whether the answer is correct.")] = "correct"
    distance: Annotated[
        bool,
        Help(
            "Treat scores as distances, of which lower is better. Default: higher is better.", ("--distance",)
        ),
    ] = False
    metric: Annotated[Metric, Help("Score between two descriptors; l2 and squared-l2 are distances.")] = (
        "cosine"
    )
    tables: tuple[Path, ...] = ()
    """Table with the positions or the correct references of the queries, at most one."""

    def __post_init__(self) -> None:
        choice(self.metric, Metric, "metric")
