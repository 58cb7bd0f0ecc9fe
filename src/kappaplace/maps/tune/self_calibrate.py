"""Self-calibration: degraded images of the map itself are the queries, so no labels are needed.

Each image gives two queries:

- *in-map*: without the image itself and its capture burst. References that remain within the radius are
  correct; if none remains, the query is out-of-map. Some in-map queries leave the image in the map.
- *out-of-map*: without all references within the radius, so no match is correct.

All scores are those of a map without the removed references.

The distance of a query from the nearest reference should be that of a real query. On a street with an image
every g metres, this is g/4 on average. The distance of a map image is 0 if it stays in the map, and g if it
is removed. On a sparse map, three of four images therefore stay, and one of four is removed with its capture
burst. On a dense map, where adjacent images are similar enough, fewer images stay. All images are cropped at
random to imitate another viewpoint. docs/maps.md lists the alternatives that were tried.

Degradation and viewpoint are artificial, so no risk is guaranteed, and a note in every answer tells the user.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.candidates import correct_places, place_numbers
from kappaplace.calibration.examples import Examples, examples_of, join
from kappaplace.calibration.fit import fit_calibration, reliability
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.checks import Bools, Rows
from kappaplace.data.augment import crop_resize, sample_crops
from kappaplace.data.degradation import random_degradation
from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Near
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.embed import preprocessing_of
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.store import Indices, parts
from kappaplace.maps.tune.calibrate import MATCHES, PAIRS, keep, similarities_to, with_errors
from kappaplace.progress import track
from kappaplace.retrieval.evidence import from_pool
from kappaplace.retrieval.exact import search_matrix
from kappaplace.retrieval.references import LeaveOut, draw
from kappaplace.types import Embeddings, Json


class SelfQueries(NamedTuple):
    """Queries from degraded references: M ≤ 2B queries, in-map queries first."""

    rows: Rows
    """Row of the block that each query comes from."""
    similarities: NDArray[np.floating]
    """Similarity of each query to each reference, M×R; −inf for removed references."""
    positives: Bools
    """Whether each reference is correct for a query, M×R; False for removed references."""
    outside: Bools
    """Whether each query is out-of-map, without a correct reference, M."""
    without_place: Bools
    """Whether all references within the radius were removed for a query, M."""


def self_queries(
    similarities: NDArray[np.floating],
    burst: NDArray[np.bool_],
    near: NDArray[np.bool_],
    *,
    present: NDArray[np.bool_] | None = None,
    at_least: int = 1,
) -> SelfQueries:
    """Return in-map and out-of-map queries from B degraded references.

    Args:
        similarities: Similarity of each degraded reference to all references, B×R.
        burst: Whether a reference is the degraded one or belongs to its capture burst, B×R.
        near: Whether a reference is within the radius of the degraded one, including itself, B×R.
        present: Whether all references stay in the map for the in-map query, B. Default: False for all.
        at_least: Drop queries with fewer remaining references.

    Returns:
        The queries.

    >>> sims = np.array([[0.9, 0.8, 0.3]])
    >>> queries = self_queries(sims, np.array([[True, False, False]]), np.array([[True, True, False]]))
    >>> queries.similarities
    array([[-inf,  0.8,  0.3],
           [-inf, -inf,  0.3]])
    >>> queries.outside
    array([False,  True])
    """
    count = len(similarities)
    left_out = burst if present is None else burst & ~present[:, None]
    removed = np.concatenate([left_out, burst | near])
    masked = np.where(removed, -np.inf, np.concatenate([similarities, similarities]))
    positives = np.concatenate([near & ~left_out, np.zeros_like(near)])
    usable = (~removed).sum(axis=1) >= at_least
    return SelfQueries(
        np.tile(np.arange(count), 2)[usable],
        masked[usable],
        positives[usable],
        ~positives[usable].any(axis=1),
        np.repeat([False, True], count)[usable],
    )


def burst_mask(
    rows: Indices, when: NDArray[np.float64], gap: float, sequence: NDArray[np.generic] | None = None
) -> Bools:
    """Return which references belong to the capture burst of each of B references, B×R.

    Args:
        rows: Numbers of B references.
        when: Time or frame number of each reference, R. If it is NaN, a burst has only the image itself.
        gap: Largest difference of ``when`` within a burst.
        sequence: Sequence of each reference, R. Images of different sequences never share a burst.

    Returns:
        The mask.

    >>> burst_mask(np.array([1]), np.array([0.0, 1.0, 2.0, 9.0]), 1.0)
    array([[ True,  True,  True, False]])
    """
    mask: Bools = np.abs(when[rows, None] - when[None, :]) <= gap
    if sequence is not None:
        mask &= sequence[rows, None] == sequence[None, :]
    mask[np.arange(len(rows)), rows] = True
    return mask


QUERIES = 1000
"""Largest number of references to use. Each gives two queries."""
BURST_SECONDS = 2.0
"""Images of a route within this time belong to the same capture burst."""
BURST_FRAMES = 1
"""Images of a route within this number of frames belong to the same capture burst."""
ORIGIN = "degraded images of the map itself"
PRESENT = 0.75
"""Largest fraction of in-map queries whose image stays in the map; see the module description."""
CROP = 0.5
"""Smallest fraction of the image area that remains after cropping."""
SPARSE = 0.5
"""Fraction of places that are recognized without their own image. A map with a lower fraction counts as
sparse."""
OUTSIDE_RATE = 0.1
"""Default fraction of out-of-map queries. Self-calibration uses one half, which is artificial."""


def self_calibrate_map(
    place_map: OpenMap, options: CalibrateOptions | None = None, *, queries: int = QUERIES
) -> Calibration:
    """Fit a calibration without labels and store it with the map.

    Args:
        place_map: The map.
        options: Options of the calibration. Default: `CalibrateOptions` with its defaults.
        queries: Largest number of references to use as queries.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If the map is too small, images are missing, or places are unknown.
    """
    options = options or CalibrateOptions()
    if options.outside_rate is None:
        options = replace(options, outside_rate=OUTSIDE_RATE)
    examples = self_examples(place_map, options, queries)
    calibration = fit_calibration(examples, options)
    origin = str(examples.facts["origin"])
    keep(place_map, calibration, origin, reliability=reliability(examples, options, calibration))
    return calibration


def self_examples(place_map: OpenMap, options: CalibrateOptions, queries: int = QUERIES) -> Examples:
    """Return degraded images of the map as queries with outcomes.

    Args:
        place_map: The map.
        options: Options of the calibration.
        queries: Largest number of references to use as queries.

    Returns:
        The examples.

    Raises:
        KappaPlaceError: If the map is too small, images are missing, or places are unknown.
    """
    store = place_map.store
    if store.manifest.near.kind == "self":
        raise KappaPlaceError(
            f"Self-calibration needs positions or frame numbers, and {store.folder} has neither. Calibrate "
            "on labelled queries instead."
        )
    if len(store) < 3:
        raise KappaPlaceError(f"Self-calibration needs at least 3 references, got {len(store)}. Add images.")
    rerank, most = place_map.rerank_count(options.rerank), max(1, len(store) // 4)
    if rerank > most:
        raise KappaPlaceError(
            f"Self-calibration with rerank={rerank} needs {4 * rerank:,} references, got {len(store):,}. "
            f"Pass a rerank of at most {most}."
        )
    numbers = _usable(place_map, queries)
    blocks, k = [], max(min(MATCHES, most), rerank)
    alone = distinct_rate(place_map, numbers)
    present_rate = min(PRESENT, 1 - alone)
    preprocessing = preprocessing_of(store.manifest.model)
    with track("Self-calibrating", len(numbers)) as bar:
        for part in parts(numbers, max(1, min(64, PAIRS // len(store)))):
            images = [_degraded(store.image_path(n), preprocessing, options.seed + n) for n in part.tolist()]
            embeddings = place_map.embed(images, patches=rerank > 0)
            present = item_uniforms(item_key(options.seed, part), 1)[:, 0] < present_rate
            similarities, masks = similarities_to(store, embeddings.descriptor), _masks(place_map, part)
            drawn = self_queries(similarities, *masks, present=present, at_least=max(k, 2))
            if len(drawn.rows):
                shown = [images[row] for row in drawn.rows.tolist()]
                sources = replace(
                    place_map.queries(embeddings.take(drawn.rows), shown), similarities=drawn.similarities
                )
                references = LeaveOut(place_map.references, drawn.similarities)
                pool = search_matrix(drawn.similarities, k, gaps=True)
                evidence = from_pool(sources, references, pool, k, rerank=rerank)
                correct = np.take_along_axis(drawn.positives, evidence.matches.indices, axis=1)
                assert evidence.pool is not None  # re-ranked
                listed = np.take_along_axis(drawn.positives, evidence.pool.indices, axis=1)
                place = correct_places(place_numbers(evidence), listed)
                examples = examples_of(evidence, correct, drawn.outside, part[drawn.rows], place=place)
                # The radius comes from images whose place was removed: an image in the map finds itself.
                poses = np.array(store.gather("poses", part[drawn.rows])[:, :3], np.float64)
                poses[present[drawn.rows] & ~drawn.without_place] = np.nan
                blocks.append(with_errors(place_map, examples, evidence, poses))
            bar.advance(len(part))
    if not blocks:
        raise KappaPlaceError(
            f"All references of {store.folder} show the same place, so self-calibration is not possible. Use "
            "labelled queries."
        )
    origin = f"{len(numbers):,} {ORIGIN}, assuming {options.outside_rate:.0%} out-of-map queries"
    facts: dict[str, Json] = {"origin": origin, "references": len(numbers), "found_alone": alone}
    return replace(join(blocks), labeled=False, facts=facts, rerank=rerank)


def distinct_rate(place_map: OpenMap, rows: Indices) -> float:
    """Return the fraction of references whose place is recognized after the reference itself is removed."""
    store, correct, total = place_map.store, 0, 0
    for part in parts(rows, max(1, min(1024, PAIRS // len(store)))):
        own = Embeddings(store.descriptors[part])
        queries = self_queries(similarities_to(store, own.descriptor), *_masks(place_map, part))
        inside = np.flatnonzero(~queries.without_place)
        best = queries.similarities[inside].argmax(axis=1)
        correct, total = correct + int(queries.positives[inside, best].sum()), total + len(inside)
    return correct / max(total, 1)


def sparse_note(calibration: Calibration) -> str:
    """Return a note if the map is sparse; otherwise an empty string."""
    rate = calibration.facts.get("found_alone")
    if not isinstance(rate, float) or rate >= SPARSE:
        return ""
    return (
        f"The map is sparse: without its own image, only {rate:.0%} of the places are recognized. The "
        "probabilities are rough; calibrate on labelled queries if you can."
    )


def _usable(place_map: OpenMap, most: int) -> Indices:
    """Return a fixed sample of the references whose place is known, after checking their images."""
    store = place_map.store
    numbers = np.arange(len(store))
    if store.manifest.near.kind == "metres":
        numbers = np.flatnonzero(np.isfinite(store.positions[:, 0]))
    numbers = numbers[draw(len(numbers), most)]
    paths = [store.image_path(number) for number in numbers.tolist()]
    missing = [i for i, path in enumerate(paths) if not path or not Path(path).is_file()]
    if missing:
        example = paths[missing[0]] or store.name(int(numbers[missing[0]]))
        raise KappaPlaceError(
            f"Self-calibration needs the images of the map, and {len(missing):,} of {len(numbers):,} no "
            f"longer exist (for example {example}). Restore them, or calibrate on labelled queries."
        )
    if len(numbers) < 2:
        raise KappaPlaceError(
            f"Self-calibration needs at least 2 references with a position, got {len(numbers)} in "
            f"{store.folder}. Calibrate on labelled queries instead."
        )
    return numbers


def _degraded(path: str, preprocessing: Preprocessing, seed: int) -> NDArray[np.uint8]:
    """Return the image from another viewpoint and degraded at random, as determined by the seed."""
    pixels = preprocessing.to_uint8(path).unsqueeze(0).float() / 255
    generator, size = torch.Generator().manual_seed(seed), (pixels.shape[2], pixels.shape[3])
    boxes = sample_crops(1, *size, scale=(CROP, 1.0), generator=generator)
    degraded = random_degradation(crop_resize(pixels, boxes, size).clamp(0, 1), generator).images[0]
    return (degraded * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def _masks(place_map: OpenMap, rows: Indices) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which references belong to the capture burst of each row, and which show its place."""
    store = place_map.store
    routes, everyone = store.whole("routes"), np.arange(len(store))
    rule = store.manifest.near
    if rule.kind == "metres":  # a correct match shows the same place
        near = Near.meters(store.positions, max(rule.value, store.manifest.radius))
        times = np.asarray(store.whole("poses")[:, 3])
        burst = burst_mask(rows, times, BURST_SECONDS, routes[:, 0])
    else:
        near = store.near
        burst = burst_mask(rows, routes[:, 1], BURST_FRAMES, routes[:, 0])
    return burst, near(rows[:, None], everyone[None, :])
