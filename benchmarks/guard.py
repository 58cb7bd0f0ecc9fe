"""How many images that no map can know does a map accept, and how many good queries does its guard cost?

python benchmarks/guard.py --set st_lucia=DATA/st_lucia:600 --set city=city.parquet --csv results/guard.csv

The maps are measured in this order, or in the order of --only.

Every map is queried as it is built, with the calibration of its model, and calibrated on labelled queries, on
labels of its best matches, and on itself, each with patches and without. Half of the queries calibrate, the
other half is judged. Images of other sets count as junk, too. Mirrored and turned queries are counted apart,
because a person may still call them the same place.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from junk import altered, junk_images
from kappaplace import PlaceImages, PlaceMap
from kappaplace.calibration import CalibrateOptions
from kappaplace.data import TABLE_FORMATS, Source, read_layout
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import LabelOptions, Localization
from kappaplace.maps.tune.label_sheet import write_labels
from kappaplace.models.embedding import join
from kappaplace.types import Embeddings
from record import append_row

EACH = 20
"""Junk images per kind."""
OTHERS = 20
"""Images of each other set."""
ALTERED = 40
"""Queries that are mirrored and turned."""
FAMILY = 3
"""Sets whose names begin with the same letters, as many as this, show the same places."""
T = TypeVar("T")


def read(source: Path, references: int) -> PlaceImages:
    """Read a table, or a folder with ``gt.json``, with this many references and the queries that show
    them."""
    table = PlaceImages.open(source) if source.suffix in TABLE_FORMATS else read_layout("gt-json", source)
    if not references or references >= len(table.reference_rows):
        return table
    lists = [np.asarray(table.positives().of(row)) for row in range(len(table.query_rows))]
    rows = [row for row, own in enumerate(lists) if (own < references).any()]
    selection = np.concatenate([table.query_rows[rows], table.reference_rows[:references]])
    return table.select(np.sort(selection))


class CachedMap(PlaceMap):
    """A map that embeds each image once, although it is queried after every way of calibrating it."""

    @cached_property
    def cache(self) -> dict[Hashable, Embeddings | Tensor]:
        return {}

    def embed(self, sources: Sequence[Source], batch_size: int = 32, *, patches: bool = False) -> Embeddings:
        def rows(new: list[Source]) -> list[Embeddings]:
            embeddings = PlaceMap.embed(self, new, batch_size, patches=True)
            return [embeddings.take([row]) for row in range(len(new))]

        return join(self._each("embedding", sources, rows))

    def _patch_maps(self, images: Sequence[Source]) -> Tensor:
        return torch.stack(self._each("patches", images, lambda new: list(PlaceMap._patch_maps(self, new))))

    def _each(
        self, kind: str, sources: Sequence[Source], compute: Callable[[list[Source]], list[T]]
    ) -> list[T]:
        keys = [(kind, _key(source)) for source in sources]
        new = {key: source for key, source in zip(keys, sources, strict=True) if key not in self.cache}
        if new:
            self.cache |= dict(zip(new, compute(list(new.values())), strict=True))
        return [self.cache[key] for key in keys]


def _key(source: Source) -> Hashable:
    return source if isinstance(source, str) else np.asarray(source).tobytes()


def by_labels(place_map: PlaceMap, half: PlaceImages, options: CalibrateOptions, folder: Path) -> None:
    """Label the best match of every query as a person would, and calibrate on the labels."""
    file = folder / "labels.csv"
    sheet = place_map.label(half, file, LabelOptions(size=len(half.query_rows), thin=False))
    right = correct_names(half)
    for position, row in enumerate(sheet.rows):
        sheet = sheet.with_label(position, "yes" if row.match in right[row.query] else "no")
    write_labels(sheet, file)
    place_map.calibrate_on_labels(file, options)


def correct_names(table: PlaceImages) -> dict[str, set[str]]:
    """Return the names of the correct references of each query."""
    references = table.references.paths.tolist()
    return {
        name: {references[row] for row in table.positives().of(number)}
        for number, name in enumerate(table.queries.paths.tolist())
    }


WAYS: dict[str, Callable[[PlaceMap, PlaceImages, CalibrateOptions, Path], object]] = {
    "as shipped": lambda place_map, half, options, folder: None,
    "labelled queries": lambda place_map, half, options, folder: place_map.calibrate(half, options),
    "labels of matches": by_labels,
    "itself": lambda place_map, half, options, folder: place_map.self_calibrate(options),
}


def measured(
    name: str, table: PlaceImages, others: Sequence[PlaceImages], risks: Sequence[float], seed: int
) -> Iterator[dict[str, object]]:
    """Yield one row per way of calibrating a map of this table, and per risk, with patches and without."""
    rng = np.random.default_rng(seed)
    queries = rng.permutation(table.query_rows)
    first, second = np.sort(queries[: len(queries) // 2]), np.sort(queries[len(queries) // 2 :])
    half = table.select(np.sort(np.concatenate([first, table.reference_rows])))
    rest = table.select(np.sort(np.concatenate([second, table.reference_rows])))
    good = rest.image_paths(rest.query_rows)
    junk = {kind: list(images) for kind, images in junk_images(EACH, seed).items()}
    junk["other places"] = [
        path for other in others for path in other.image_paths(rng.permutation(other.query_rows)[:OTHERS])
    ]
    turned = altered([Image.open(path).convert("RGB") for path in good[:ALTERED]])
    correct = list(correct_names(rest).values())
    with tempfile.TemporaryDirectory() as folder:
        cache: dict[Hashable, Embeddings | Tensor] = {}
        built = CachedMap.build(table, Path(folder) / "built.map").folder
        for (way, calibrate), risk in product(WAYS.items(), risks):
            if way == "as shipped" and risk != risks[0]:
                continue
            run = Path(folder) / f"{way} {risk}"
            place_map = CachedMap.open(shutil.copytree(built, run / "copy.map"))
            place_map.cache = cache
            options = CalibrateOptions(risk, 0.9, thin=False, seed=seed)
            try:
                calibrate(place_map, half, options, run)
            except KappaPlaceError as error:
                print(f"{name}, {way}, {risk}: {error}", flush=True)
                continue
            for rerank in (None, 0):
                answers = place_map.localize(good, rerank=rerank)
                if answers[0].decision is None:
                    continue  # not calibrated without patches: no decisions at all
                right = np.array([a.matches[0].name in own for a, own in zip(answers, correct, strict=True)])
                accepted = _accepted(answers)
                passed, altered_accepted = (
                    {
                        kind: int(_accepted(place_map.localize(images, rerank=rerank)).sum())
                        for kind, images in group.items()
                        if images
                    }
                    for group in (junk, turned)
                )
                yield {
                    "map": name,
                    "calibrated": way,
                    "risk": "" if way == "as shipped" else risk,
                    "patches": "yes" if rerank is None else "no",
                    "references": len(place_map),
                    "junk": sum(map(len, junk.values())),
                    "junk accepted": sum(passed.values()),
                    "of these": ", ".join(f"{n} {kind}" for kind, n in Counter(passed).items() if n),
                    "queries": len(good),
                    "correct": int(right.sum()),
                    "accepted": int(accepted.sum()),
                    "accepted incorrect": int((accepted & ~right).sum()),
                    "correct without guard": int((right & _accepted_unguarded(place_map, answers)).sum()),
                    "lost by guard": int((right & ~accepted & _accepted_unguarded(place_map, answers)).sum()),
                    **{f"{kind} accepted": count for kind, count in altered_accepted.items()},
                    "altered each": min(ALTERED, len(good)),
                }


def _accepted(answers: Sequence[Localization]) -> np.ndarray:
    return np.array([answer.decision == "accept" for answer in answers])


def _accepted_unguarded(place_map: PlaceMap, answers: Sequence[Localization]) -> np.ndarray:
    """Return which answers the thresholds alone would accept."""
    calibration = place_map.calibration or place_map.borrowed
    assert calibration is not None
    if calibration.plain is not None and answers[0].calibration == calibration.plain.fingerprint:
        calibration = calibration.plain
    if calibration.rule is None:
        return _accepted(answers)
    uncertainty = np.array([answer.uncertainty for answer in answers])
    probability = calibration.right.probability(uncertainty, calibration.outside_rate)
    return calibration.rule.decide(uncertainty=uncertainty, probability=probability) == "accept"


def main() -> None:
    """Print and store one row per map and way of calibrating it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--set", action="append", required=True, metavar="NAME=SOURCE[:REFERENCES]", dest="sets"
    )
    parser.add_argument(
        "--only", nargs="+", help="measure these maps only; the others provide foreign images"
    )
    parser.add_argument("--max-risk", type=float, nargs="+", default=[0.1, 0.3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    tables = {}
    for word in arguments.sets:
        name, _, source = word.partition("=")
        source, _, references = source.partition(":")
        tables[name] = read(Path(source), int(references or 0))
    for name in arguments.only or tables:
        table = tables[name]
        others = [other for key, other in tables.items() if key[:FAMILY] != name[:FAMILY]]
        for row in measured(name, table, others, arguments.max_risk, arguments.seed):
            print(row, flush=True)
            if arguments.csv:
                append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
