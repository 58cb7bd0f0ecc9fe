"""Columns from which scores are computed, for every query of every dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kappaplace.data.degradation import DEGRADATIONS, degrade
from kappaplace.data.randomness import item_key, item_uniforms
from kappaplace.data.table import PlaceImages
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.exact import search
from kappaplace.retrieval.patches import patch_agreement
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.types import Embeddings
from kappaplace.uncertainty import score_named

Columns = dict[str, np.ndarray]
PLAIN = ("cosine", "pa", "tld-distribution", "tld-ratio-spread", "margin", "aliasing", "z-score")
DAMAGE = ("blur", "night", "occlusion", "fog", "noise")
UNHARMED = 0.4  # fraction of the degradation benchmark that is unchanged
MAP_STAGE = {"efficientnet_lite0": 4, "resnet50_v1": 2, "resnet50": 2}  # stride 16
DEEP = 10  # re-ranked matches


@dataclass(frozen=True)
class Pixels:
    """A dataset in memory."""

    table: PlaceImages
    query: torch.Tensor
    reference: torch.Tensor


@torch.inference_mode()
def embed(model: AnyModel, images: torch.Tensor, batch: int = 128) -> Embeddings:
    device = next(model.parameters()).device
    parts = [model(model.preprocessing.normalize(part.to(device))) for part in images.split(batch)]
    columns = zip(*parts, strict=True)
    return Embeddings(*(None if c[0] is None else torch.cat(c).float().cpu().numpy() for c in columns))


@torch.inference_mode()
def maps_of(model: PlaceModel, images: torch.Tensor, batch: int = 128) -> torch.Tensor:
    """Return the stride-16 feature map of each image, float16 on its device."""
    device = next(model.parameters()).device
    stage = MAP_STAGE[model.architecture.backbone]
    parts = []
    for part in images.split(batch):
        _, maps = model.backbone.forward_stages(model.preprocessing.normalize(part.to(device)))  # type: ignore[operator]
        parts.append(maps[stage].half())
    return torch.cat(parts)


def damaged(images: torch.Tensor, name: str) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Return degraded float images, kinds (−1: none) and levels, the same for every model."""
    keys = item_key(7, np.arange(len(images)), np.full(len(images), sum(map(ord, name))))
    draws = item_uniforms(keys, 3)
    is_degraded = draws[:, 0] >= UNHARMED
    kind = np.where(is_degraded, [DEGRADATIONS.index(DAMAGE[int(u * len(DAMAGE))]) for u in draws[:, 1]], -1)
    level = np.where(is_degraded, draws[:, 2], 0.0)
    parts = []
    for start in range(0, len(images), 64):
        rows = slice(start, start + 64)
        parts.append(
            degrade(
                images[rows].float() / 255,
                torch.from_numpy(kind[rows]),
                torch.from_numpy(level[rows]).float(),
                keys=keys[rows],
            )
        )
    return torch.cat(parts), kind, level


def plain_columns(query: Embeddings, reference: Embeddings, table: PlaceImages) -> Columns:
    """Compute the columns of descriptors, and which matches are correct."""
    k = min(50, len(reference.descriptor))
    matches = search(query.descriptor, reference.descriptor, k)
    evidence = Evidence(Queries(query), ArrayReferences(reference, neighborhood=table.is_near), matches)
    out: Columns = {name: score_named(name).query(evidence).astype(np.float32) for name in PLAIN}
    hits = table.positives().hits(matches.indices)
    for at in (1, 5, 10):
        out[f"hit@{at}"] = hits[:, :at].any(1)
    near = table.is_near(matches.indices[:, :1], matches.indices)
    for scale in (30.0, 100.0):  # a posterior over places with the same concentration for all
        weights = np.exp(scale * (matches.similarities - matches.similarities[:, :1]).astype(np.float64))
        share = (weights * near).sum(1) / weights.sum(1)
        out[f"softmax-{scale:g}"] = (1 - share).astype(np.float32)
    out["agree"] = (1 - near[:, 1:5].mean(1)).astype(np.float32)
    out["top"] = matches.indices[:, 0].astype(np.int32)
    out["indices"] = matches.indices[:, :DEEP].astype(np.int16)
    out["similarities"] = matches.similarities[:, :DEEP].astype(np.float32)
    out["hits"] = hits[:, :DEEP]
    out["near"] = near[:, :DEEP]
    return out


def patch_columns(query: torch.Tensor, reference: torch.Tensor, columns: Columns) -> Columns:
    """Compute the patch agreement with the top matches."""
    indices = torch.from_numpy(columns["indices"].astype(np.int64)).to(reference.device)
    ranks = [
        torch.cat(
            [
                patch_agreement(query[part], reference[indices[part, rank]])
                for part in torch.arange(len(query)).split(64)
            ]
        )
        for rank in range(indices.shape[1])
    ]
    agreement = torch.stack(ranks, 1).cpu().numpy()
    far = np.where(columns["near"], 0.0, agreement).max(1)
    best = agreement.argmax(1)
    return {
        "patches": (1 - agreement[:, 0]).astype(np.float32),
        "patch-margin": (far - agreement[:, 0]).astype(np.float32),
        "reranked": columns["hits"][np.arange(len(best)), best],
        "agreement": agreement.astype(np.float16),
    }


def kappa_columns(query: Embeddings, reference: Embeddings, table: PlaceImages, columns: Columns) -> Columns:
    """Compute the columns of a head: κ of queries and matches, and their scores."""
    if query.kappa is None:
        return {"variance": np.asarray(query.variance, np.float32)}
    matches = search(query.descriptor, reference.descriptor, 1)
    evidence = Evidence(Queries(query), ArrayReferences(reference, neighborhood=table.is_near), matches)
    out = {
        name: score_named(name).query(evidence).astype(np.float32)
        for name in ("inverse-kappa", "kappaplace", "expected-likelihood")
    }
    out["kappa_q"] = np.asarray(query.kappa, np.float32)
    out["kappa_r"] = np.asarray(reference.kappa, np.float32)[matches.indices[:, 0]]
    return out
