"""Which images of a map teach κ, which ones judge it, and whether all of them are still what was embedded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kappaplace.data.identity import file_stats, same_file
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store import Indices, MapStore

FEWEST = 16
"""References from which there is something to learn."""
JUDGES = 16
"""Images that κ is judged on, at most: each is damaged in every way and to every level."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """References by what they are for; both ascending."""

    learn: Indices
    judge: Indices
    """Never learnt from."""


def choose(count: int, most: int, seed: int) -> Chosen:
    """A fixed random choice; a tenth, but not more than `JUDGES`, is kept for judging."""
    order = np.random.default_rng(seed).permutation(count)
    kept = min(JUDGES, max(2, count // 10))
    return Chosen(np.sort(order[kept : kept + most]), np.sort(order[:kept]))


def image_files(store: MapStore) -> list[str]:
    """The image file of every reference, each of them still the one that was embedded; else one sentence."""
    if len(store) < FEWEST:
        raise KappaPlaceError(
            f"The map {store.folder} has {len(store)} references; κ is learnt from {FEWEST} or more."
        )
    paths = [store.image_path(reference) for reference in range(len(store))]
    now = file_stats(paths)
    gone = np.flatnonzero(now[:, 0] < 0)
    if len(gone):
        example = paths[int(gone[0])] or store.name(int(gone[0]))
        raise KappaPlaceError(
            f"κ is learnt from the map's own images, and {len(gone):,} of {len(paths):,} are not there any "
            f"more (for instance {example}); bring them back, or remove those references."
        )
    then, digests = store.whole("stats"), store.whole("digests")
    for number in np.flatnonzero((now != then).any(axis=1)).tolist():
        if not same_file(paths[number], now[number], then[number], digests[number]):
            raise KappaPlaceError(
                f"The image {paths[number]} has changed since it was embedded; put the new one into the map "
                "first, with `kappaplace map add --duplicates replace`."
            )
    return paths
