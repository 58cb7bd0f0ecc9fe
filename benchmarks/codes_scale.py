"""Loss of R@1 by the 128-byte codes of a map (`--storage pq`) among millions of references.

    python benchmarks/codes_scale.py --references 200000 2800000 10000000 --csv results/codes_scale.csv

Descriptors are drawn like those of `search_engines.py`, but on the GPU (a few gigabytes, two minutes). They
are encoded and compared there with the steps of `Codebook`; a sample is checked against `Codebook` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from kappaplace.retrieval.codes import SAMPLE, VALUES, Codebook, learn_codebook
from record import DEVICE, log_row, parse_options

DIM, DISTRICT, MOST_IMAGES = 512, 2000, 20
SHARES = {"district": 0.35, "place": 0.35, "image": 0.3}  # of the variance
PLACES, BLOCK, CHECKED = 20_000, 1 << 16, 2000


class City(NamedTuple):
    """References as float16 with their places, and queries with the places to find."""

    references: Tensor
    places: Tensor
    queries: Tensor
    answers: Tensor


class Random:
    """Random numbers of one seed on the device."""

    def __init__(self, seed: int) -> None:
        self.source = torch.Generator(DEVICE).manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.source, device=DEVICE)

    def integers(self, low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=self.source, device=DEVICE)


def make(count: int, query_count: int, seed: int = 0) -> City:
    """Create districts with places of 1 to 19 images; a query is another image of a place."""
    draw = Random(seed)
    energy = torch.arange(1, DIM + 1, device=DEVICE).float().rsqrt()
    mix = energy[:, None] * torch.linalg.qr(draw.normal(DIM, DIM))[0] / energy.norm()
    district, place, image = (share**0.5 for share in SHARES.values())
    districts = draw.normal(max(1, count // DISTRICT), DIM)

    def images(centers: Tensor) -> Tensor:
        return normalize((centers + image * draw.normal(*centers.shape)) @ mix, dim=1)

    references = torch.empty(count, DIM, dtype=torch.float16, device=DEVICE)
    places = torch.empty(count, dtype=torch.int64, device=DEVICE)
    queries, answers = [], []
    done = place_count = 0
    while done < count:
        centers = district * districts[draw.integers(0, len(districts), PLACES)]
        centers += place * draw.normal(PLACES, DIM)
        each = draw.integers(1, MOST_IMAGES, PLACES)
        of = torch.repeat_interleave(torch.arange(PLACES, device=DEVICE), each)[: count - done]
        references[done : done + len(of)] = images(centers[of]).half()
        places[done : done + len(of)] = place_count + of
        there = of.unique()
        selection = there[draw.integers(0, len(there), max(1, 2 * query_count * len(of) // count))]
        queries.append(images(centers[selection]))
        answers.append(place_count + selection)
        done, place_count = done + len(of), place_count + PLACES
    order = torch.randperm(sum(map(len, answers)), generator=draw.source, device=DEVICE)[:query_count]
    return City(references, places, torch.cat(queries)[order], torch.cat(answers)[order])


def search(queries: Tensor, blocks: Iterable[tuple[int, Tensor]], k: int = 10) -> Tensor:
    """Return the rows of the best matches."""
    best = torch.empty(len(queries), 0, device=DEVICE)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=DEVICE)
    for start, part in blocks:
        top = (queries @ part.T).topk(min(k, len(part)), 1)
        best, rows = torch.cat([best, top.values], 1), torch.cat([rows, top.indices + start], 1)
        best, order = best.topk(min(k, best.shape[1]), 1)
        rows = rows.gather(1, order)
    return rows


def blocks_of(references: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(references), BLOCK):
        yield start, references[start : start + BLOCK].float()


def coded(references: Tensor, book: Codebook) -> Iterator[tuple[int, Tensor]]:
    """Encode and decode references, in the space of the codes."""
    assert book.weights is not None
    rotation, values, weights = (
        torch.from_numpy(array).to(DEVICE) for array in (book.rotation, book.values, book.weights)
    )
    (lowest, highest), weak = book.gains, weights.min() / weights
    for start, block in blocks_of(references):
        turned, parts, column = block @ rotation, [], 0
        for size in book.sizes:
            mine = slice(column, column + size)
            scale = weights[mine].sqrt()
            centers = values[:, mine] * scale
            nearest = ((centers**2).sum(1) / 2 - (turned[:, mine] * scale) @ centers.T).argmin(1)
            parts.append(values[nearest, mine])
            column += size
        decoded = torch.cat(parts, 1)
        product = turned * decoded
        gain = ((block**2).sum(1) - product.sum(1)) / (product @ weak).clamp_min(1e-6)
        byte = ((gain - lowest) / (highest - lowest)).clamp(0, 1).mul(VALUES - 1).round()
        yield start, decoded * (1 + (lowest + byte / (VALUES - 1) * (highest - lowest))[:, None] * weak)


def agreement(references: Tensor, book: Codebook) -> float:
    """Return the fraction of references with the same result in `Codebook`; rounding may change it."""
    ours = book.decode(book.encode(references.float().cpu().numpy()), turned=True)
    theirs = torch.cat([part for _, part in coded(references, book)]).cpu().numpy()
    return float(np.mean(np.abs(ours - theirs).max(1) < 1e-3))


def measure(count: int, query_count: int) -> dict[str, float | int | str]:
    city = make(count, query_count)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(1))[:SAMPLE].sort().values
    book = learn_codebook(city.references[drawn.to(DEVICE)].float().cpu().numpy())
    truth = search(city.queries, blocks_of(city.references))
    turned = city.queries @ torch.from_numpy(book.rotation).to(DEVICE)
    matches = search(turned, coded(city.references, book))
    exact, codes = ((city.places[rows[:, 0]] == city.answers).float() for rows in (truth, matches))
    lost = 100 * (exact - codes)
    return {
        "references": count,
        "queries": query_count,
        "bytes": book.width,
        "exact R@1": float(exact.mean()),
        "R@1": float(codes.mean()),
        "points lost": float(lost.mean()),
        "standard error": float(lost.std()) / query_count**0.5,
        "recall@10": float((matches[:, :, None] == truth[:, None]).any(2).float().mean()),
        "same as Codebook": agreement(city.references[:CHECKED], book),
    }


def main() -> None:
    options = parse_options(__doc__, references=[200_000, 2_800_000, 10_000_000], queries=8000, csv=Path)
    for count in options.references:
        row = measure(count, options.queries)
        log_row(options.csv, row)


if __name__ == "__main__":
    main()
