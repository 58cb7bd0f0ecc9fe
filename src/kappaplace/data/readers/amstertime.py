"""AmsterTime as published: ``new/0000.png`` and ``old/0000.jpg`` show one place; CSV lists pair them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.readers.layout import Reader, existing_folder, list_images
from kappaplace.data.readers.text import read_rows
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError


def read(folder: str | Path, *, split: str = "", queries: str = "old") -> PlaceImages:
    """Read ``verification[_SPLIT].csv``, or pair the two folders by name; one positive a query.

    The published lists go both ways. Evaluations of global descriptors take the archival photos (``old``) as
    queries.
    """
    root = existing_folder(folder)
    if queries not in ("old", "new"):
        raise KappaPlaceError(f"AmsterTime: queries={queries!r} is unknown; choose old or new.")
    pairs = _pairs(root, split)
    ask, answer = (1, 0) if queries == "old" else (0, 1)
    n = len(pairs)
    return PlaceImages.create(
        [pair[answer] for pair in pairs] + [pair[ask] for pair in pairs],
        place=np.tile(np.arange(n), 2),
        condition=["new" if queries == "old" else "old"] * n + [queries] * n,
        is_query=np.arange(2 * n) >= n,
        root=root,
        name="amstertime" + (f"-{split}" if split else ""),
        neighborhood=Neighborhood("self"),
        given_positives=Positives(np.arange(n + 1), np.arange(n, dtype=np.int32), n),
    )


def _pairs(root: Path, split: str) -> list[tuple[str, str]]:
    """(new, old) of every place, in the order of the list."""
    file = root / f"verification{'_' + split if split else ''}.csv"
    if file.is_file():
        rows = read_rows(file, ("image1", "image2", "y"))
        return [(row["image1"], row["image2"]) for row in rows if row["y"].strip() == "1"]
    if split:
        raise KappaPlaceError(f"{file} is missing: without it only the whole set can be read.")
    if not (root / "new").is_dir() or not (root / "old").is_dir():
        raise KappaPlaceError(f"{root} holds neither verification.csv nor the folders new/ and old/.")
    old = {Path(name).stem: f"old/{name}" for name in list_images(root / "old")}
    new = {Path(name).stem: f"new/{name}" for name in list_images(root / "new")}
    alone = sorted(set(old) ^ set(new))
    if alone or not old:
        what = f"{alone[0]} has no partner" if alone else "they are empty"
        raise KappaPlaceError(f"{root}: new/ and old/ do not pair up ({what}).")
    return [(new[stem], old[stem]) for stem in sorted(old)]


READER = Reader(
    "amstertime-csv",
    "AmsterTime: new/*.png and old/*.jpg in pairs, with or without its CSV lists",
    read,
    {"split": "test for the published test lists (default: all pairs)", "queries": "old or new (old)"},
)
