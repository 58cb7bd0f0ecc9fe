"""How many images that no map can know does a map accept, and how many good queries does its guard cost?

python benchmarks/guard.py --set st_lucia=DATA/st_lucia --set town=TABLE.parquet --csv results/guard.csv

Every map is queried as it is built, and calibrated on labelled queries, on labels of its best matches, and on
itself. Half of the queries calibrate, the other half is judged. Images of other sets count as junk, too.
Mirrored and turned queries are counted apart, because a person may still call them the same place.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from junk import altered, junk_images
from kappaplace import PlaceImages, PlaceMap
from kappaplace.calibration import CalibrateOptions
from kappaplace.data import TABLE_FORMATS, read_layout
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import LabelOptions, Localization
from record import append_row

EACH = 20
"""Junk images per kind."""
OTHERS = 20
"""Images of each other set."""
ALTERED = 40
"""Queries that are mirrored and turned."""
FAMILY = 5
"""Sets whose names begin with the same letters, as many as this, show the same places."""
OPTIONS = CalibrateOptions(max_risk=0.1, confidence=0.9, thin=False)


def read(source: Path, references: int) -> PlaceImages:
    """Read a table, or a folder with ``gt.json``, with this many references and the queries that show
    them."""
    table = PlaceImages.open(source) if source.suffix in TABLE_FORMATS else read_layout("gt-json", source)
    if not references or references >= len(table.reference_rows):
        return table
    lists = [np.asarray(table.positives().of(row)) for row in range(len(table.query_rows))]
    rows = [row for row, own in enumerate(lists) if (own < references).any()]
    chosen = np.concatenate([table.query_rows[rows], table.reference_rows[:references]])
    return table.select(np.sort(chosen))


def calibrated(place_map: PlaceMap, half: PlaceImages, way: str, folder: Path) -> None:
    """Calibrate the map in this way."""
    if way == "labelled queries":
        place_map.calibrate(half, OPTIONS)
    elif way == "labels of matches":
        sheet = place_map.label(
            half, folder / "labels.csv", LabelOptions(size=len(half.query_rows), thin=False)
        )
        order = {name: row for row, name in enumerate(half.queries.paths.tolist())}
        references = half.references.paths.tolist()
        from kappaplace.maps.tune.label_sheet import write_labels

        for position, row in enumerate(sheet.rows):
            own = half.positives().of(order[row.query])
            right = row.match in {references[reference] for reference in own}
            sheet = sheet.with_label(position, "yes" if right else "no")
        write_labels(sheet, folder / "labels.csv")
        place_map.calibrate_on_labels(folder / "labels.csv", OPTIONS)
    elif way == "itself":
        place_map.self_calibrate(OPTIONS)


WAYS = ("not calibrated", "labelled queries", "labels of matches", "itself")


def measured(
    name: str, table: PlaceImages, others: Sequence[PlaceImages], seed: int
) -> Iterator[dict[str, object]]:
    """Yield one row per way of calibrating a map of this table."""
    rng = np.random.default_rng(seed)
    queries = rng.permutation(table.query_rows)
    first, second = np.sort(queries[: len(queries) // 2]), np.sort(queries[len(queries) // 2 :])
    half = table.select(np.sort(np.concatenate([first, table.reference_rows])))
    rest = table.select(np.sort(np.concatenate([second, table.reference_rows])))
    good = rest.image_paths(rest.query_rows)
    junk = {kind: list(images) for kind, images in junk_images(EACH, seed).items()}
    foreign = [
        path for other in others for path in other.image_paths(rng.permutation(other.query_rows)[:OTHERS])
    ]
    turned = altered([Image.open(path).convert("RGB") for path in good[:ALTERED]])
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            place_map = PlaceMap.build(table, Path(folder) / f"{WAYS.index(way)}.map")
            try:
                calibrated(place_map, half, way, Path(folder))
            except KappaPlaceError as error:
                print(f"{name}, {way}: {error}")
                continue
            answers = place_map.localize(good)
            references = rest.references.paths.tolist()
            right = np.array(
                [
                    answer.matches[0].name in {references[own] for own in rest.positives().of(row)}
                    for row, answer in enumerate(answers)
                ]
            )
            accepted = np.array([answer.decision == "accept" for answer in answers])
            unlike = np.array([any("unlike" in note for note in answer.notes) for answer in answers])
            passed = {kind: _accepted(place_map.localize(images)) for kind, images in junk.items()}
            passed["other places"] = _accepted(place_map.localize(foreign)) if foreign else 0
            yield {
                "map": name,
                "calibrated": way,
                "references": len(place_map),
                "junk": sum(map(len, junk.values())) + len(foreign),
                "junk accepted": sum(passed.values()),
                "of these": ", ".join(f"{n} {kind}" for kind, n in Counter(passed).items() if n),
                "queries": len(good),
                "correct": int(right.sum()),
                "accepted": int(accepted.sum()),
                "accepted incorrect": int((accepted & ~right).sum()),
                "correct but unlike": int((right & unlike).sum()),
                **{
                    f"{kind} accepted": _accepted(place_map.localize(images))
                    for kind, images in turned.items()
                },
                "altered each": min(ALTERED, len(good)),
            }


def _accepted(answers: Sequence[Localization]) -> int:
    return sum(answer.decision == "accept" for answer in answers)


def main() -> None:
    """Print and store one row per map and way of calibrating it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--set", action="append", required=True, metavar="NAME=SOURCE[:REFERENCES]", dest="sets"
    )
    parser.add_argument("--only", default="", help="measure this map only; the others provide foreign images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    tables = {}
    for word in given.sets:
        name, _, source = word.partition("=")
        source, _, references = source.partition(":")
        tables[name] = read(Path(source), int(references or 0))
    for name, table in tables.items():
        if given.only and name != given.only:
            continue
        others = [other for key, other in tables.items() if key[:FAMILY] != name[:FAMILY]]
        for row in measured(name, table, others, given.seed):
            print(row, flush=True)
            if given.csv:
                append_row(given.csv, row)


if __name__ == "__main__":
    main()
