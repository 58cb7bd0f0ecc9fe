"""Real queries damaged in known ways: does κ fall, and is the match still right?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.data.degradation import degrade
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.evaluation.inputs import Retrieved
from kappaplace.models.checkpoint import AnyModel

KINDS = ("night", "fog", "blur", "occlusion")
LEVELS = np.linspace(0.0, 1.0, 5)
VIEWS, SCATTERED = 16, 96
"""Queries of the curves, each at every kind and level; and of the scatter, each once."""


@dataclass(frozen=True, eq=False)
class Damage:
    """What became of κ."""

    curves: dict[str, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]
    """Per kind: levels, and mean and standard error of κ over the same queries."""
    level: NDArray[np.float64]
    """Of each scattered query, damaged once by a random kind and level."""
    kappa: NDArray[np.float64]
    right: NDArray[np.bool_]
    """Whether its best match is, damaged as it is."""


def kappa_under_damage(model: AnyModel, retrieved: Retrieved) -> Damage:
    """Curves over the same queries, and queries damaged at random; the references stay as they are."""
    count = len(retrieved.evidence.matches.indices)
    return Damage(_curves(model, retrieved, _spread(count, VIEWS)), *_scatter(model, retrieved, count))


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Up to so many queries, evenly along the set."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _curves(model: AnyModel, retrieved: Retrieved, rows: NDArray[np.int64]) -> dict[str, Any]:
    images = []
    for row in rows.tolist():
        for kind in range(len(KINDS)):
            images += _damaged(model, retrieved, row, [kind] * len(LEVELS), LEVELS)
    kappa = np.asarray(model.embed(images, progress=False).kappa).reshape(len(rows), len(KINDS), -1)
    error = kappa.std(axis=0) / np.sqrt(len(rows))
    return {kind: (LEVELS, kappa.mean(axis=0)[i], error[i]) for i, kind in enumerate(KINDS)}


def _scatter(model: AnyModel, retrieved: Retrieved, count: int) -> tuple[Any, Any, Any]:
    rows = _spread(count, SCATTERED)
    draws = item_uniforms(item_key(11, rows), 2)
    images = [
        _damaged(model, retrieved, row, [int(u * len(KINDS))], np.array([level]))[0]
        for row, (u, level) in zip(rows.tolist(), draws, strict=True)
    ]
    made = model.embed(images, progress=False)
    best = retrieved.evidence.references.search(made.descriptor, 1).indices
    right = retrieved.positives.hits(best, rows)[:, 0]
    return draws[:, 1], np.asarray(made.kappa, np.float64), right


def _damaged(
    model: AnyModel, retrieved: Retrieved, row: int, kinds: list[int], levels: NDArray[np.float64]
) -> list[NDArray[np.uint8]]:
    """One query at several levels, H×W×3 each; one key, so that a higher level only does more."""
    images: Any = retrieved.evidence.queries.images
    pixels = model.preprocessing.to_uint8(str(images[row])).float() / 255
    keys = item_key(7, np.full(len(levels), row), np.array(kinds))
    out = degrade(
        pixels.expand(len(levels), *pixels.shape).contiguous(),
        [KINDS[kind] for kind in kinds],
        torch.from_numpy(levels).float(),
        keys=keys,
    )
    return list((out * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())
