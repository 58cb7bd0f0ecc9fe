"""AmsterTime as published: ``new/0000.png`` and ``old/0000.jpg`` show the same place; CSV lists pair them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.readers.layout import Reader, check_folder, list_images
from kappaplace.data.readers.text import read_rows
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError


def read(folder: str | Path, *, split: str = "", queries: str = "old") -> PlaceImages:
    """Read ``verification[_SPLIT].csv``, or pair the two folders by name; each query has one positive.

    Args:
        folder: Folder of the dataset.
        split: "test" for the published test lists. Default: all pairs.
        queries: Folder of the queries. The default is the archival photos ("old"), as in evaluations of
            global descriptors; the published lists use both.

    Returns:
        The table.
    """
    root = check_folder(folder)
    if queries not in ("old", "new"):
        raise KappaPlaceError(f"queries must be old or new, got {queries!r}.")
    pairs = _pairs(root, split)
    new, old = ([pair[side] for pair in pairs] for side in (0, 1))
    n = len(new)
    return PlaceImages.create(
        new + old if queries == "old" else old + new,
        place=np.tile(np.arange(n), 2),
        condition=["new" if queries == "old" else "old"] * n + [queries] * n,
        is_query=np.arange(2 * n) >= n,
        root=root,
        name="amstertime" + (f"-{split}" if split else ""),
        neighborhood=Neighborhood("self"),
        given_positives=Positives(np.arange(n + 1), np.arange(n, dtype=np.int32), n),
    )


def _pairs(root: Path, split: str) -> list[tuple[str, str]]:
    """Return (new, old) of every place, in the order of the list."""
    file = root / f"verification{'_' + split if split else ''}.csv"
    if file.is_file():
        rows = read_rows(file, ("image1", "image2", "y"))
        return [(row["image1"], row["image2"]) for row in rows if row["y"].strip() == "1"]
    if split:
        raise KappaPlaceError(f"{file} is missing. Omit split=… to read all pairs.")
    if not (root / "new").is_dir() or not (root / "old").is_dir():
        raise KappaPlaceError(f"{root} contains neither verification.csv nor the folders new/ and old/.")
    old = {Path(name).stem: f"old/{name}" for name in list_images(root / "old")}
    new = {Path(name).stem: f"new/{name}" for name in list_images(root / "new")}
    unpaired = sorted(set(old) ^ set(new))
    if unpaired or not old:
        problem = f"{unpaired[0]} has no partner" if unpaired else "they are empty"
        raise KappaPlaceError(f"The images of new/ and old/ in {root} must form pairs: {problem}.")
    return [(new[stem], old[stem]) for stem in sorted(old)]


READER = Reader(
    "amstertime-csv",
    "AmsterTime: new/*.png and old/*.jpg in pairs, with or without its CSV lists",
    read,
    {
        "split": "test for the published test lists (default: all pairs)",
        "queries": "folder of the queries: old or new (default: old)",
    },
)
