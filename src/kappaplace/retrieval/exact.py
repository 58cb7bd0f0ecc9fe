"""Exact search in blocks of references: bounded memory, CPU or GPU, no index to build."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.errors import KappaPlaceError
from kappaplace.types import Matches

BLOCK = 1 << 16  # references a block: 65,536 × 1,000 similarities are 262 MB


@torch.inference_mode()
def search(
    queries: NDArray[np.float32],
    references: NDArray[np.float32],
    k: int = 10,
    *,
    device: str | torch.device = "cpu",
    block: int = BLOCK,
) -> Matches:
    """The k most similar references of each query by cosine (both sides at unit length), best first.

    Equal similarities are ordered by the reference's row, so the result does not depend on ``block``.
    """
    if k < 1 or k > len(references):
        raise KappaPlaceError(
            f"Cannot retrieve {k} matches: there are {len(references)} references; choose k from 1 to that."
        )
    if queries.ndim != 2 or references.ndim != 2 or queries.shape[1] != references.shape[1]:
        raise KappaPlaceError(
            f"Queries of shape {queries.shape} and references of shape {references.shape} do not fit; "
            "both must be N×d with the same d, from the same model."
        )
    q = torch.as_tensor(queries, device=device)
    best = torch.empty((len(q), 0), device=device)
    rows = torch.empty((len(q), 0), dtype=torch.int64, device=device)
    for start in range(0, len(references), block):
        part = torch.as_tensor(references[start : start + block], device=device)
        similarity = q @ part.T
        own = torch.arange(start, start + len(part), device=device).expand(len(q), -1)
        best, rows = _top(torch.cat([best, similarity], 1), torch.cat([rows, own], 1), k)
    return Matches(rows.cpu().numpy(), best.cpu().numpy())


def _top(similarity: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best columns; earlier columns win ties, which `topk` alone does not promise."""
    k = min(k, similarity.shape[1])
    threshold = similarity.topk(k, dim=1).values[:, -1:]
    # Only columns at or above the k-th value can be chosen; a stable sort of those keeps their order.
    candidates = int((similarity >= threshold).sum(1).max())
    keep = (
        (similarity >= threshold).to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :candidates]
    )
    similarity, rows = similarity.gather(1, keep), rows.gather(1, keep)
    order = similarity.argsort(dim=1, descending=True, stable=True)[:, :k]
    return similarity.gather(1, order), rows.gather(1, order)
