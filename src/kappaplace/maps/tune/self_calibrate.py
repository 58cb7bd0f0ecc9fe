"""Calibration without labels: the map's own images, damaged in known ways, ask the rest of the map.

Each one is asked twice: as a query from inside the map, and without everything within the radius (nothing is
right: a query from outside). All signals are those that a map without the references taken out would give.

How far from the nearest reference is a query from inside? On a street with an image every g metres it falls
anywhere between two of them, g/4 away on average. An image asked without itself is g away: on a dense map
that hardly matters, on a sparse one it is all but lost. Asked with itself it is 0 away. So on a sparse map
three of four are asked with themselves present, and one of four without itself and the images taken together
with it: the mean distance is then that of a query. On a dense map, where neighbours find each other, those
present are fewer. All are cropped at random as if from another viewpoint. docs/maps.md has what was tried.

Damage and viewpoint are of our making, so no risk is guaranteed, and every answer says so.

Self-calibration without labels: each degraded reference is queried twice.

- *from inside the map*: without itself and its capture burst, so that what remains within the radius are its
  positives and where nothing remains, the query is one from outside the map; or with all of them present;
- *without everything within the radius*: a query from outside the map, nothing can be right.

Whoever has the map gives one row of similarities a degraded reference, and two masks over that row. This file
turns them into queries with outcomes, ready for `fit_calibration`. Pure arrays, in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.fit import Examples, examples_of, fit_calibration, join, reliability
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.checks import Bools, Rows, booleans, finite
from kappaplace.data.augment import crop_resize, sample_crops
from kappaplace.data.degradation import random_degradation
from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.near import Near
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.models import preprocessing_of
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.references import draw
from kappaplace.maps.store.reader import Indices, MapStore
from kappaplace.maps.tune.calibrate import MATCHES, keep
from kappaplace.progress import track
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import LeaveOut
from kappaplace.retrieval.retrieve import from_pool
from kappaplace.types import Embeddings, Json, Matches


class SelfQueries(NamedTuple):
    """Queries made of degraded references: M ≤ 2B of them, first those from inside."""

    rows: Rows
    """Row of the block that each query came from."""
    similarities: NDArray[np.floating]
    """M×R; −inf where a reference was taken out."""
    positives: Bools
    """M×R: references that are right answers; never one that was taken out."""
    outside: Bools
    """M: no positive remains in the map."""
    without_place: Bools
    """M: of the second kind, everything within the radius was taken out."""

    def top(self, k: int) -> tuple[Matches, Bools]:
        """The k best references of each query, best first, and whether each is a positive (M×k).

        Equal similarities go by the number of the reference. A query with fewer than k references left is
        refused: choose a smaller k.
        """
        left = np.isfinite(self.similarities).sum(axis=1)
        fewest = int(left.min()) if len(left) else 0
        if k < 1 or k > fewest:
            raise KappaPlaceError(
                f"{k} matches were asked for, but some queries have {fewest} references left without their "
                "own place; ask for fewer, or leave those queries out."
            )
        order = np.argsort(-self.similarities, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(self.similarities, order, axis=1)
        hits = np.take_along_axis(self.positives, order, axis=1)
        return Matches(order.astype(np.int64), best.astype(np.float32)), hits


def self_queries(
    similarities: NDArray[np.floating],
    burst: NDArray[np.bool_],
    near: NDArray[np.bool_],
    *,
    present: NDArray[np.bool_] | None = None,
    at_least: int = 1,
) -> SelfQueries:
    """Both kinds of queries from B degraded references.

    ``similarities`` is B×R, ``burst`` marks each reference itself and its capture burst, ``near`` all within
    the radius (itself too). ``present`` (B) marks those that ask from inside with nothing taken out: their
    image must have been altered. Queries with fewer than ``at_least`` references left are dropped.

    >>> sims = np.array([[0.9, 0.8, 0.3]])
    >>> made = self_queries(sims, np.array([[True, False, False]]), np.array([[True, True, False]]))
    >>> made.similarities
    array([[-inf,  0.8,  0.3],
           [-inf, -inf,  0.3]])
    >>> made.outside
    array([False,  True])
    """
    values = np.asarray(similarities)
    if values.ndim != 2:
        raise KappaPlaceError(f"Similarities are one row a degraded reference, got the shape {values.shape}.")
    finite(values, "similarities")
    in_burst = booleans(burst, values.shape, "marks of the capture burst")
    in_radius = booleans(near, values.shape, "marks of the radius")
    if not in_burst.any(axis=1).all():
        raise KappaPlaceError(
            "Some rows mark nothing as their capture burst; it holds at least the reference itself."
        )
    block = np.arange(len(values))
    alone = (
        np.ones(len(values), bool)
        if present is None
        else ~booleans(present, (len(values),), "marks of presence")
    )
    gone = in_burst & alone[:, None]
    removed = np.concatenate([gone, in_burst | in_radius])
    masked = np.where(removed, -np.inf, np.concatenate([values, values]))
    positives = np.concatenate([in_radius & ~gone, np.zeros_like(in_radius)])
    second = np.repeat([False, True], len(values))
    kept = (~removed).sum(axis=1) >= at_least
    return SelfQueries(
        np.concatenate([block, block])[kept],
        masked[kept].astype(values.dtype, copy=False),
        positives[kept],
        ~positives[kept].any(axis=1),
        second[kept],
    )


def burst_mask(
    rows: NDArray[np.integer], when: NDArray[Any], gap: float, sequence: NDArray[Any] | None = None
) -> Bools:
    """Which references lie in the capture burst of each of these: B×R.

    ``when`` holds a time or frame number for each of the R references, ``gap`` how far apart the images of a
    burst may lie; images of different ``sequence`` never share one. Each is in its own burst. Where ``when``
    is NaN, only the image itself is.

    >>> burst_mask(np.array([1]), np.array([0.0, 1.0, 2.0, 9.0]), 1.0)
    array([[ True,  True,  True, False]])
    """
    times = np.asarray(when, dtype=np.float64)
    chosen = np.asarray(rows, dtype=np.int64)
    if times.ndim != 1 or (sequence is not None and np.shape(sequence) != times.shape):
        raise KappaPlaceError("Capture bursts need one time, and one sequence if any, for each reference.")
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(times)):
        raise KappaPlaceError(f"Capture bursts were asked for references outside 0 to {len(times) - 1}.")
    if not gap >= 0:
        raise KappaPlaceError(f"The gap within a capture burst must be 0 or more, got {gap}.")
    mask: Bools = np.abs(times[chosen, None] - times[None, :]) <= gap
    if sequence is not None:
        names = np.asarray(sequence)
        mask &= names[chosen, None] == names[None, :]
    mask[np.arange(len(chosen)), chosen] = True
    return mask


QUERIES = 1000
"""References that are asked about, at most: each gives two queries."""
BURST_SECONDS = 2.0
"""Images of one route closer in time than this were taken together."""
BURST_FRAMES = 1
PAIRS = 1 << 22
"""Similarities held at a time."""
ORIGIN = "degraded images of the map itself"
PRESENT = 0.75
"""Largest share of queries from inside that are asked with themselves present; see above."""
CROP = 0.5
"""Smallest share of the image that an altered viewpoint keeps."""
SPARSE = 0.5
"""Share of images found without themselves below which that is worth a word."""
OUTSIDE_RATE = 0.1
"""Share of queries from outside the map where none is stated: the half of them here is of our making."""


def self_calibrate_map(
    place_map: OpenMap, options: CalibrateOptions | None = None, *, queries: int = QUERIES
) -> Calibration:
    """Fit without labels and keep the result with the map."""
    options = self_options(options)
    examples = self_examples(place_map, options, queries)
    calibration = fit_calibration(examples, options)
    origin = str(examples.facts["origin"])
    keep(place_map, calibration, origin, reliability=reliability(examples, options, calibration))
    return calibration


def self_options(options: CalibrateOptions | None = None) -> CalibrateOptions:
    """The options with a share of queries from outside, stated or usual."""
    options = options or CalibrateOptions()
    return options if options.outside_rate is not None else replace(options, outside_rate=OUTSIDE_RATE)


def self_examples(place_map: OpenMap, options: CalibrateOptions, queries: int = QUERIES) -> Examples:
    """Return the map's own images as queries with outcomes."""
    store = place_map.store
    if store.manifest.near.kind == "self":
        raise KappaPlaceError(
            f"The map {store.folder} knows neither positions nor frames of a route, so it cannot tell which "
            "of its images show one place; calibrate it on labelled queries."
        )
    if len(store) < 3:
        raise KappaPlaceError(f"A map of {len(store)} references is too small to be asked about itself.")
    verify, most = options.rerank or 0, max(1, len(store) // 4)
    if verify > most:
        raise KappaPlaceError(
            f"A map of {len(store):,} references is too small to be asked about itself with {verify} matches "
            f"compared cell by cell: it takes {4 * verify:,} references; compare at most {most}."
        )
    chosen = _askable(place_map, queries, options.seed)
    blocks, k = [], max(min(MATCHES, most), verify)
    alone = found_alone(place_map, chosen)
    present_share = min(PRESENT, 1 - alone)
    preprocessing = preprocessing_of(store.manifest.model)
    with track("Self-calibrating", len(chosen)) as bar:
        for part in _blocks(chosen, max(1, min(64, PAIRS // len(store)))):
            images = [_damaged(store.image_path(int(r)), preprocessing, options.seed + int(r)) for r in part]
            made = place_map.embed(images)
            present = item_uniforms(item_key(options.seed, part), 1)[:, 0] < present_share
            asked = self_queries(
                _similarities(store, made), *_masks(place_map, part), present=present, at_least=max(k, 2)
            )
            if len(asked.rows):
                evidence, right = _evidence(place_map, made, asked, k, images, verify)
                blocks.append(examples_of(evidence, right, asked.outside, part[asked.rows]))
            bar.advance(len(part))
    if not blocks:
        raise KappaPlaceError(
            f"All references of {store.folder} show one place: nothing is left to ask; use labelled queries."
        )
    origin = f"{len(chosen):,} {ORIGIN}, for {options.outside_rate:.0%} of queries from outside it"
    facts: dict[str, Json] = {"origin": origin, "references": len(chosen), "found_alone": alone}
    return replace(join(blocks), labelled=False, facts=facts, rerank=verify)


def found_alone(place_map: OpenMap, rows: Indices) -> float:
    """Share of these references, undamaged, whose place is found without themselves: how dense the map is."""
    store, found, asked = place_map.store, 0, 0
    for part in _blocks(rows, max(1, min(1024, PAIRS // len(store)))):
        own = Embeddings(store.descriptors[part])
        made = self_queries(_similarities(store, own), *_masks(place_map, part))
        inside = np.flatnonzero(~made.without_place)
        best = made.similarities[inside].argmax(axis=1)
        found, asked = found + int(made.positives[inside, best].sum()), asked + len(inside)
    return found / max(asked, 1)


def sparse_note(calibration: Calibration) -> str:
    """One sentence where the map hardly knows its own images without themselves, else nothing."""
    share = float(calibration.facts.get("found_alone", 1.0))
    if share >= SPARSE:
        return ""
    return (
        f"Only {share:.0%} of the map's images are found without themselves: the map is sparse, so how well "
        "queries between two references are found is mostly a guess; labelled queries know better."
    )


def _askable(place_map: OpenMap, queries: int, seed: int) -> Indices:
    """References whose image can be opened and whose place is known, a fixed choice of them."""
    store = place_map.store
    known = np.arange(len(store))
    if store.manifest.near.kind == "metres":
        known = np.flatnonzero(np.isfinite(store.positions[:, 0]))
    chosen = known[draw(len(known), queries)]
    missing = [r for r in chosen.tolist() if not _is_file(store.image_path(r))]
    if missing:
        raise KappaPlaceError(
            f"Self-calibration damages the map's own images, and {len(missing):,} of {len(chosen):,} are not "
            f"there any more (for instance {store.image_path(missing[0]) or store.name(missing[0])}); bring "
            "them back, or calibrate on labelled queries."
        )
    if len(chosen) < 2:
        raise KappaPlaceError(f"Only {len(chosen)} references of {store.folder} have a position.")
    return chosen


def _is_file(path: str) -> bool:
    return bool(path) and Path(path).is_file()


def _damaged(path: str, preprocessing: Preprocessing, seed: int) -> NDArray[np.uint8]:
    """The image as the model would see it from elsewhere, damaged at random; its number alone decides how."""
    pixels = preprocessing.to_uint8(path).unsqueeze(0).float() / 255
    generator, size = torch.Generator().manual_seed(seed), (pixels.shape[2], pixels.shape[3])
    boxes = sample_crops(1, *size, scale=(CROP, 1.0), generator=generator)
    damaged = random_degradation(crop_resize(pixels, boxes, size).clamp(0, 1), generator).images[0]
    return (damaged * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def _similarities(store: MapStore, made: Embeddings) -> NDArray[np.float32]:
    queries = np.asarray(made.descriptor, np.float32)
    step = 1 << 14
    parts = [queries @ store.descriptors[start : start + step].T for start in range(0, len(store), step)]
    return np.concatenate(parts, axis=1)


def _masks(place_map: OpenMap, rows: Indices) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which references were taken together with each of these, and which show its place."""
    store = place_map.store
    routes, everyone = store.whole("routes"), np.arange(len(store))
    stated = store.manifest.near
    if stated.kind == "metres":  # what is a right answer shows the place too
        near = Near.metres(store.positions, max(stated.value, store.manifest.radius))
        times = np.asarray(store.whole("poses")[:, 3])
        burst = burst_mask(rows, times, BURST_SECONDS, routes[:, 0])
    else:
        near = store.near
        burst = burst_mask(rows, routes[:, 1], BURST_FRAMES, routes[:, 0])
    return burst, near(rows[:, None], everyone[None, :])


def _evidence(
    place_map: OpenMap,
    made: Embeddings,
    asked: SelfQueries,
    k: int,
    images: Sequence[Source],
    verify: int,
) -> tuple[Evidence, NDArray[np.bool_]]:
    """Return what `localize` would see in a map without the references that were left out."""
    shown = [images[row] for row in asked.rows.tolist()] if verify else None
    queries = place_map.queries(made.take(asked.rows), shown)
    queries = replace(queries, similarities=asked.similarities)
    references = LeaveOut(place_map.references, asked.similarities)
    pool, _ = asked.top(k)
    evidence = from_pool(queries, references, pool, k, rerank=verify)
    return evidence, np.take_along_axis(asked.positives, evidence.matches.indices, axis=1)


def _blocks(rows: Indices, size: int) -> Iterator[Indices]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
