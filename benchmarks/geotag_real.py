"""Positions for photos with their true positions withheld: real routes, in frames.

python benchmarks/geotag_real.py --data DATA --maps FOLDER [--csv FILE]

The first drive is the map, without the last 30% of its frames; photos are frames of the second drive, taken
one second apart, all of them or a random 30% of them. Of St Lucia and Nordland, only the last 40% of the
route is used, because the shipped model was trained on the rest. The shipped calibration accepts answers.
Each row adds one use of the photos taken shortly before and after:

- accepted: none;
- plausible: without answers that contradict others within five minutes (five frames per second);
- between: also photos between two placed ones, at most a minute and a radius apart;
- confirmed: instead, doubtful answers that all placed photos within a minute make plausible (1.5 frames per
  second). Not part of the package.

A position is correct if it is within the tolerance of the dataset, in frames. Risk: incorrect positions among
the placed. Share: placed photos among all, of which about 30% show no place of the map.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace import PlaceImages, PlaceMap
from kappaplace.maps import BuildOptions
from kappaplace.maps.geotags import BETWEEN, between, implausible
from record import Option, log_row, parse_options

SETS = {
    "gp_dayleft_dayright": (0.0, 2),
    "gp_nightright_dayleft": (0.0, 2),
    "berlin_kudamm": (0.0, 2),
    "st_lucia": (0.6, 5),
    "nordland_winter_summer": (0.6, 2),
}
"""Where the tested part of the route begins, and the tolerance in frames."""
KNOWN = 0.7
"""Fraction of the tested part that the map shows."""
FRACTIONS, DRAWS = (1.0, 0.3), 20
REACH, SPEED, CONFIRMED = 300.0, 5.0, 1.5


class Answers(NamedTuple):
    """Answers to the photos of one route."""

    frames: NDArray[np.float64]
    """True frame of each photo on the first drive."""
    best: NDArray[np.float64]
    """Frame of the best match."""
    accepted: NDArray[np.bool_]
    doubtful: NDArray[np.bool_]

    def take(self, rows: NDArray[np.int64]) -> Answers:
        """Return some of the photos."""
        return Answers(self.frames[rows], self.best[rows], self.accepted[rows], self.doubtful[rows])


def answers(data: Path, name: str, maps: Path) -> Answers:
    """Build the map of a route, unless it exists, and localize the photos."""
    start, tolerance = SETS[name]
    positives = json.loads((data / name / "gt.json").read_text())["positives"]
    photos, references = (sorted(map(str, (data / name / side).iterdir())) for side in ("query", "ref"))
    true = np.array([np.median(rows) if rows else np.nan for rows in positives])
    first = int(start * len(references))
    last = first + int(KNOWN * (len(references) - first))
    rows = np.arange(first, last)
    where = np.stack([rows.astype(float), np.zeros(len(rows))], 1)
    table = PlaceImages.create(
        [references[row] for row in rows.tolist()], where, name=name, root="/", radius=float(tolerance)
    )
    folder = maps / f"{name}.map"
    options = BuildOptions(radius=float(tolerance))
    town = PlaceMap.open(folder) if folder.exists() else PlaceMap.build(table, folder, options=options)
    tested = np.flatnonzero(true >= first)
    found = town.localize([photos[row] for row in tested.tolist()])
    decisions = np.array([answer.decision for answer in found])
    best = np.array([answer.matches[0].x for answer in found])
    return Answers(true[tested], best, decisions == "accept", decisions == "doubtful")


def confirmed(
    times: NDArray[np.float64],
    best: NDArray[np.float64],
    doubtful: NDArray[np.bool_],
    placed: NDArray[np.bool_],
    radius: float,
) -> NDArray[np.bool_]:
    """Return the doubtful answers that every placed photo within a minute makes plausible."""
    apart = np.abs(times[:, None] - times[None])
    near = placed[None] & (apart <= BETWEEN)
    plausible = np.abs(best[:, None] - best[None]) <= radius + CONFIRMED * apart
    return doubtful & near.any(axis=1) & (plausible | ~near).all(axis=1)


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, "folder of the datasets", required=True),
        maps=Option(Path, "folder of the maps", required=True),
        sets=list(SETS),
        csv=Path,
    )
    for name in options.sets:
        route, radius = answers(options.data, name, options.maps), float(SETS[name][1])
        for fraction in FRACTIONS:
            rng, counts = np.random.default_rng(0), np.zeros((4, 3))
            for _ in range(1 if fraction == 1.0 else DRAWS):
                rows = np.sort(rng.permutation(len(route.frames))[: round(fraction * len(route.frames))])
                counts += one_trip(route.take(rows), radius)
            for rule, (photos, placed, wrong) in zip(
                ("accepted", "plausible", "between", "confirmed"), counts.tolist(), strict=True
            ):
                share, risk = placed / photos, wrong / max(placed, 1)
                numbers = {"set": name, "photos": fraction, "rule": rule}
                log_row(options.csv, {**numbers, "share": f"{share:.3f}", "risk": f"{risk:.3f}"})


def one_trip(trip: Answers, radius: float) -> NDArray[np.float64]:
    """Return the number of photos, of placed ones and of incorrect ones, by each rule."""
    times, none = trip.frames, np.zeros(len(trip.frames), bool)
    points = np.stack([trip.best, np.zeros(len(trip.best))], 1)
    against = implausible(times, points, none, trip.accepted, (radius, REACH, SPEED))
    plausible = trip.accepted & (against < 0)
    middle = between(times, points, plausible, radius, BETWEEN)[:, 0]
    more = confirmed(times, trip.best, trip.doubtful & ~plausible, plausible, radius)
    rules = (
        np.where(trip.accepted, trip.best, np.nan),
        np.where(plausible, trip.best, np.nan),
        np.where(plausible, trip.best, middle),
        np.where(plausible | more, trip.best, np.nan),
    )
    errors = [np.abs(position - times) for position in rules]
    counts = [(len(times), np.isfinite(error).sum(), (error > radius).sum()) for error in errors]
    return np.array(counts, float)


if __name__ == "__main__":
    main()
