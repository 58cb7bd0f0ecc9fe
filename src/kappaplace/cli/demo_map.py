"""The map of `kappaplace demo`: build, calibrate, localize held-out queries, compare with cosine."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.files import make_folder

if TYPE_CHECKING:
    from kappaplace.data import PlaceImages
    from kappaplace.maps import Localization, PlaceMap
    from kappaplace_city import CityViews

MAX_RISK = 0.05
CONFIDENCE = 0.95
EXAMPLES = {"accept": "Accepted", "doubtful": "Doubtful", "reject": "Rejected"}


@dataclass(frozen=True, eq=False)
class Threshold:
    """A threshold on one score, set on the calibration queries, and its outcome on held-out queries."""

    accepted: int
    wrong: int


@dataclass(frozen=True, eq=False)
class MapResult:
    """Answers to the held-out queries."""

    folder: Path
    answers: tuple[Localization, ...]
    right: NDArray[np.bool_]
    """Whether the best match of each answer is within the radius."""
    cosine: Threshold
    """Outcome of a threshold on the cosine, chosen on the same calibration queries for the same risk."""
    calibration_queries: int
    refusal: str = ""
    """Why there are no decisions; empty if there are."""

    @property
    def counts(self) -> Counter[str]:
        """Number of answers per decision."""
        return Counter(answer.decision or "" for answer in self.answers)

    @property
    def wrong(self) -> int:
        """Number of accepted answers that are incorrect."""
        accepted = np.array([answer.decision == "accept" for answer in self.answers])
        return int((accepted & ~self.right).sum())

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.refusal:
            return f"The map could not be calibrated. {self.refusal}"
        accepted, queries = self.counts["accept"], len(self.answers)
        share = f"{self.wrong / accepted:.1%}" if accepted else "none"
        return (
            f"Of {queries:,} queries, {accepted:,} were accepted and {self.wrong:,} of them are wrong "
            f"({share}; limit {MAX_RISK:.0%}). A threshold on cosine at the same risk would accept "
            f"{self.cosine.accepted or 'none'}."
        )

    def examples(self, count: int) -> list[tuple[str, list[int]]]:
        """Return the decisions with up to ``count`` queries each, spread evenly."""
        groups = []
        for decision, title in EXAMPLES.items():
            rows = [row for row, answer in enumerate(self.answers) if answer.decision == decision]
            shown = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int))
            groups.append((title, [rows[row] for row in shown.tolist()]))
        return groups

    def to_dict(self) -> dict[str, object]:
        """Convert the counts to plain values for JSON."""
        return {
            "queries": len(self.answers),
            **{decision: self.counts[decision] for decision in EXAMPLES},
            "accepted_wrong": self.wrong,
            "cosine_accepted": self.cosine.accepted,
            "cosine_wrong": self.cosine.wrong,
            "max_risk": MAX_RISK,
            "calibration_queries": self.calibration_queries,
            "sentence": self.sentence,
        }


def render(views: CityViews, size: int) -> NDArray[np.uint8]:
    """Render views with a progress bar.

    Args:
        views: The views.
        size: Side of the images in pixels.

    Returns:
        The images, N×H×W×3.
    """
    from kappaplace.progress import track

    images = np.empty((len(views), size, size, 3), np.uint8)
    with track("Rendering", len(views)) as bar:
        for start in range(0, len(views), 256):
            rows = np.arange(start, min(start + 256, len(views)))
            images[rows] = views.render(size, rows)
            bar.advance(len(rows))
    return images


def save_views(views: CityViews, folder: Path, size: int, name: str) -> PlaceImages:
    """Render views into image files.

    Args:
        views: The views.
        folder: Folder of the images.
        size: Side of the images in pixels.
        name: Name of the images and of their table.

    Returns:
        Table of the images.
    """
    from PIL import Image

    from kappaplace.data import PlaceImages

    make_folder(folder)
    names = [f"{name}-{row:04d}.png" for row in range(len(views))]
    for file, pixels in zip(names, render(views, size), strict=True):
        Image.fromarray(pixels).save(folder / file)
    return PlaceImages.create(
        names, views.positions, heading=views.heading, root=folder, name=name, frame="EPSG:32610"
    )


def use_map(
    model: Path,
    views: tuple[CityViews, CityViews, CityViews],
    size: int,
    folder: Path,
    say: Callable[[str], None],
) -> MapResult:
    """Build and calibrate a map, and localize held-out queries.

    Args:
        model: Folder of the model.
        views: References, labelled queries for the calibration, and held-out queries.
        size: Side of the images in pixels.
        folder: Folder for the map and the images.
        say: Function that gets one line per step.

    Returns:
        The answers, with a comparison.
    """
    from kappaplace.calibration import CalibrateOptions, RiskRefused, control_risk
    from kappaplace.maps import BuildOptions, PlaceMap
    from kappaplace.progress import track

    references, labelled, held_out = (
        save_views(part, folder / "images" / name, size, name)
        for part, name in zip(views, ("references", "labelled", "queries"), strict=True)
    )
    say(f"Building a map of {len(references):,} images, and calibrating it on {len(labelled):,} queries")
    place_map = PlaceMap.build(references, _empty(folder / "map"), model, BuildOptions(name="demo"))
    options = CalibrateOptions(max_risk=MAX_RISK, confidence=CONFIDENCE, outside_rate=0.0, thin=False)
    refusal = ""
    try:
        place_map.calibrate(labelled, options)
    except RiskRefused as error:
        refusal = str(error)
    say(f"Localizing {len(held_out):,} held-out queries")
    answers: list[Localization] = []
    paths = [str(path) for path in held_out.image_paths()]
    with track("Localizing", len(paths)) as bar:
        for start in range(0, len(paths), 64):
            answers += place_map.localize(paths[start : start + 64])
            bar.advance(len(paths[start : start + 64]))
    right = np.array(
        [
            np.hypot(a.matches[0].x - x, a.matches[0].y - y) <= place_map.manifest.radius
            for a, (x, y) in zip(answers, held_out.positions.tolist(), strict=True)
        ]
    )
    cosine = Threshold(0, 0)
    with contextlib.suppress(RiskRefused):  # no threshold on cosine stays within the risk
        threshold = control_risk(*_cosine(place_map, labelled), MAX_RISK, CONFIDENCE).threshold
        cosine = _outcome(threshold, *_cosine(place_map, held_out))
    return MapResult(folder, tuple(answers), right, cosine, len(labelled), refusal)


def _empty(folder: Path) -> Path:
    """Remove the map of an earlier demo."""
    import shutil

    if (folder / "manifest.json").is_file():
        shutil.rmtree(folder)
    return folder


def _cosine(place_map: PlaceMap, table: PlaceImages) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return 1 − cosine of the most similar reference, and whether it is within the radius."""
    from kappaplace.retrieval import retrieve

    images = [str(path) for path in table.image_paths()]
    queries = place_map.queries(place_map.embed(images), images)
    matches = retrieve(queries, place_map.references, 1).matches
    gap = place_map.store.positions[matches.indices[:, 0]] - table.positions
    right = np.hypot(*gap.T) <= place_map.manifest.radius
    return 1.0 - np.asarray(matches.similarities[:, 0], np.float64), right


def _outcome(threshold: float, scores: NDArray[np.float64], right: NDArray[np.bool_]) -> Threshold:
    accepted = scores <= threshold
    return Threshold(int(accepted.sum()), int((accepted & ~right).sum()))
