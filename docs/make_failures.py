"""The gallery of failures of docs/results.md: python docs/make_failures.py

Queries of a synthetic district, kappaplace-lite0 and its shipped probabilities. For each cause that the city
records per image, the incorrect answer with the highest probability.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from kappaplace import PlaceImages, PlaceMap, SyntheticCity
from kappaplace.reports.figures import GalleryRow, gallery_figure
from kappaplace.reports.html import png_of

ASSETS = Path(__file__).parent / "assets"
SIZE = 256
CAUSES = {
    "another place\nlooks the same": lambda views: views.aliased,
    "nothing to see": lambda views: views.featureless,
    "damage": lambda views: views.conditions.damage,
}
VIEWPOINT = "none of these:\nviewpoint"


def main() -> None:
    city = SyntheticCity(3, (2, 2), aliased=0.35, featureless=0.25)
    views = city.views("test", spacing=15.0, queries=100, query_strength=0.9, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{row:04d}.png" for row in range(len(views.positions))]
        for path, picture in zip(paths, views.render(SIZE), strict=True):
            Image.fromarray(np.asarray(picture)).save(Path(folder) / path)
        table = PlaceImages.create(
            paths,
            views.positions,
            heading=views.heading,
            is_query=views.is_query,
            root=folder,
            frame="EPSG:32610",
        )
        town = PlaceMap.build(table, Path(folder) / "town.map")
        answers = town.localize(table.image_paths(table.query_rows))
        figure = gallery_figure(_rows(table, views, answers))
    (ASSETS / "failures.png").write_bytes(png_of(figure, dpi=110))


def _rows(table: PlaceImages, views, answers) -> list[GalleryRow]:
    queries, positives = table.query_rows, table.positives()
    names = {table.paths[row]: row for row in table.reference_rows}
    found = np.array([names[answer.matches[0].name] for answer in answers])
    right = np.array([found[i] in table.reference_rows[positives.of(i)] for i in range(len(queries))])
    # Answers without a probability, unlike the calibration queries, are not accepted.
    probability = np.array([answer.probability or 0.0 for answer in answers])
    print(f"{right.mean():.2f} of {len(queries)} right; {(~right & (probability >= 0.9)).sum()} wrong of "
          f"{(probability >= 0.9).sum()} from a probability of 0.9")  # fmt: skip
    levels = {cause: np.asarray(of(views))[queries] for cause, of in CAUSES.items()}
    strongest = np.stack(list(levels.values()))
    causes = {
        cause: (strongest.argmax(axis=0) == k) & (level > 0.4)
        for k, (cause, level) in enumerate(levels.items())
    }
    causes[VIEWPOINT] = strongest.max(axis=0) < 0.2
    rows, taken = [], set()
    for cause, holds in causes.items():
        wrong = [int(i) for i in np.flatnonzero(holds & ~right) if i not in taken]
        if not wrong:
            continue
        worst = max(wrong, key=lambda i: probability[i])
        taken.add(worst)
        truth = _nearest(table, queries[worst])
        rows.append(_row(table, cause, queries[worst], found[worst], truth, answers[worst]))
    return rows


def _nearest(table: PlaceImages, query: int) -> int:
    """The reference that shows the same: near, and looking the same way."""
    gap = np.linalg.norm(table.positions[table.reference_rows] - table.positions[query], axis=1)
    turn = np.abs((table.heading[table.reference_rows] - table.heading[query] + 180) % 360 - 180)
    return int(table.reference_rows[np.argmin(gap + turn)])


def _row(table: PlaceImages, cause: str, query: int, found: int, truth: int, answer) -> GalleryRow:
    def pixels(row: int) -> np.ndarray:
        return np.asarray(Image.open(table.root / str(table.paths[row])).convert("RGB"))

    meters = [np.linalg.norm(table.positions[row] - table.positions[query]) for row in (found, truth)]
    return GalleryRow(
        cause,
        pixels(query),
        f"query, κ {answer.kappa:,.0f}",
        [pixels(found), pixels(truth)],
        [False, True],
        [
            f"found, {meters[0]:,.0f} m away, P {answer.probability:.2f}",
            f"nearest reference, {meters[1]:.0f} m",
        ],
    )


if __name__ == "__main__":
    main()
