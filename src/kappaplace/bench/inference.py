"""`model.optimize(device)` against the plain eager model in float32: speed, fidelity, recall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from kappaplace.bench.rows import Row
from kappaplace.bench.timing import interleaved, ratio
from kappaplace.data.positives import positives_within
from kappaplace.metrics import recall_at
from kappaplace.models.fast import LEAST_COSINE, MOST_KAPPA, OptimizedModel, Way, fidelity
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.exact import search
from kappaplace.types import Embeddings
from kappaplace_city import SyntheticCity

PART = "inference"
LEAST_LATENCY, LEAST_THROUGHPUT = 8.0, 3.0  # on a GPU
RADIUS = 25.0  # metres within which a reference is right


@dataclass(frozen=True)
class Rounds:
    """How often what is run."""

    runs: int = 200
    rounds: int = 5
    warm_up: int = 20


def measure_speed(
    model: PlaceModel,
    device: torch.device,
    batches: Sequence[int],
    ways: Sequence[Way],
    rounds: Rounds,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[Row]:
    """Plain against optimised at each batch size: 1 as latency, more as images a second."""
    plain = model.to(device).eval()
    height, width = model.preprocessing.fixed_size or (512, 512)
    where = f"{model.architecture.backbone}, {height}×{width}, {device.type}"
    forms: dict[str, nn.Module] = {"plain": plain}
    for way in ways:
        fast = plain.optimize(device, way=way)
        forms[fast.way] = fast
        say(f"{way}: {fast.way}, {fast.dtype}")
    rows: list[Row] = []
    for batch in batches:
        images = torch.randn(batch, 3, height, width, device=device)
        runs = rounds.runs if batch == 1 else max(3, rounds.runs // batch)
        for name, form in forms.items():
            start = time.perf_counter()
            form(images)
            say(f"batch {batch}, {name}: first call {time.perf_counter() - start:.1f} s")
        with torch.inference_mode():
            taken = interleaved(
                {name: partial(form, images) for name, form in forms.items()},
                device,
                runs=runs,
                rounds=rounds.rounds,
                warm_up=rounds.warm_up if batch == 1 else 3,
            )
        rows += _speed_rows(taken, batch, where, device)
    return rows


def _speed_rows(taken: dict[str, list[float]], batch: int, where: str, device: torch.device) -> list[Row]:
    rows = []
    median = {name: sorted(values)[len(values) // 2] for name, values in taken.items()}
    for name in taken:
        if name == "plain":
            continue
        faster = ratio(taken["plain"], taken[name])
        limit = None if device.type != "cuda" else LEAST_LATENCY if batch == 1 else LEAST_THROUGHPUT
        if batch == 1:
            ours, peer, unit, what = 1e3 * median[name], 1e3 * median["plain"], "ms", "latency"
        else:
            ours, peer, unit, what = batch / median[name], batch / median["plain"], "images/s", "throughput"
        what = f"{what}, {name}, batch {batch}"
        rows.append(Row(PART, where, what, ours, peer, unit, "eager float32", faster, "higher", limit))
    return rows


def measure_fidelity(
    model: PlaceModel,
    device: torch.device,
    *,
    way: Way = "auto",
    queries: int = 200,
    size: int = 0,
    blocks: int = 2,
    spacing: float = 5.0,
    recall: bool = True,
) -> list[Row]:
    """Descriptors, κ and R@K of a synthetic city, plain against optimised.

    ``recall`` is for trained models: fresh weights hardly tell images apart, so that ranks are chance.
    """
    plain = model.to(device).eval()
    fast = plain.optimize(device, way=way)
    city = SyntheticCity(0, (blocks, blocks))
    views = city.views("test", spacing=spacing, queries=queries, query_strength=0.6)
    side = size or (model.preprocessing.fixed_size or (320, 320))[0]
    queried, known = views.select(views.is_query), views.select(~views.is_query)
    pictures = [queried.render(side), known.render(side)]
    positives = positives_within(queried.positions, known.positions, RADIUS)
    made, recalls = [], []
    for form in (plain, fast):
        query, reference = (form.embed(part, batch_size=64, progress=False) for part in pictures)
        hits = positives.hits(search(query.descriptor, reference.descriptor, 10).indices)
        recalls.append({k: 100 * recall_at(hits, k) for k in (1, 5, 10)})
        made.append((query, reference))
    where = f"{_name(fast)}, {model.architecture.backbone}, {queries} queries in the city, {device.type}"
    apart = [fidelity(_tensors(a), _tensors(b)) for a, b in zip(*made, strict=True)]
    cosine, spread = min(part.cosine for part in apart), max(part.spread for part in apart)
    rows = [
        Row(
            PART,
            where,
            "smallest cosine of descriptors",
            cosine,
            1.0,
            "",
            "eager float32",
            cosine,
            "higher",
            LEAST_COSINE,
        ),
        Row(
            PART,
            where,
            "largest change of κ",
            spread,
            MOST_KAPPA,
            "",
            "limit",
            spread / MOST_KAPPA,
            "lower",
            1.0,
        ),
    ]
    for k in (1, 5, 10) if recall else ():
        ours, peer = recalls[1][k], recalls[0][k]
        change = abs(ours - peer)
        rows.append(
            Row(PART, where, f"change of R@{k}", ours, peer, "%", "eager float32", change, "lower", 0.1)
        )
    return rows


def _name(model: OptimizedModel) -> str:
    return f"{model.way} {str(model.dtype).removeprefix('torch.')}"


def _tensors(made: Embeddings) -> Embeddings:
    return Embeddings(*(None if x is None else torch.from_numpy(np.asarray(x)) for x in made))
