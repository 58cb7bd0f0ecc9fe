"""What a written synthetic city knows of its images: the condition that does most damage to each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kappaplace.data.place_images import PlaceImages

CLEAR = "clear"  # an image under no condition at all


def with_city_conditions(table: PlaceImages) -> PlaceImages:
    """Fill ``condition`` from the conditions.csv that `kappaplace city` writes beside its split folders.

    It lies in the table's root, or above it where a single split was imported; without it, or for images
    that it does not name, nothing changes.
    """
    from kappaplace.data.readers.cells import number, read_rows
    from kappaplace.data.synthetic_city.conditions import WEIGHTS
    from kappaplace.data.synthetic_city.files import CONDITIONS_FILE

    root = table.root.absolute()
    home = next((place for place in (root, root.parent) if (place / CONDITIONS_FILE).is_file()), None)
    if home is None:
        return table
    head = "" if home == root else f"{root.name}/"
    worst: dict[str, str] = {}
    for row in read_rows(home / CONDITIONS_FILE, ("file", *WEIGHTS)):
        # Levels are weighed as in `Conditions.damage`: half a fog hides more of a place than a whole winter.
        damage = {name: weight * number(row[name]) for name, weight in WEIGHTS.items()}
        name = max(damage, key=lambda key: damage[key])
        worst[row["file"]] = name if damage[name] > 0 else CLEAR
    known = zip(table.paths.tolist(), table.condition.tolist(), strict=True)
    condition = [worst.get(head + path, old) for path, old in known]
    return replace(table, condition=np.array(condition, dtype=np.dtypes.StringDType()))
