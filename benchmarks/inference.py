"""`model.optimize(device)` against the plain model, float32 and eager, in one run.

python benchmarks/inference.py [--backbone resnet50] [--size 512] [--batches 1 64 128] [--csv FILE]

Speed does not depend on the weights and is measured with random ones. Descriptors, κ and R@K are compared on
the synthetic city, also with the shipped model (or ``--model``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from kappaplace import Embeddings, PlaceModel, Preprocessing, SyntheticCity, load_model
from kappaplace.cli.bench import Rounds, Row, measure_speed
from kappaplace.data import positives_within
from kappaplace.metrics import recall_at
from kappaplace.models.fast import LEAST_COSINE, MOST_KAPPA, fidelity
from kappaplace.retrieval.exact import search
from record import DEVICE, Option, parse_options, report

RADIUS = 25.0  # metres within which a reference is correct


def measure_fidelity(
    model: PlaceModel,
    device: torch.device,
    *,
    way: str = "auto",
    queries: int = 200,
    size: int = 0,
    district: tuple[int, float] = (2, 5.0),
    recall: bool = True,
) -> list[Row]:
    """Compare descriptors, κ and R@K of the plain and the optimized model on a synthetic city.

    ``district`` is the number of blocks along each side and the distance of references in metres. Pass
    ``recall=True`` only for trained models, because random weights hardly distinguish images.
    """
    plain = model.to(device).eval()
    fast = plain.optimize(device, form=way)
    blocks, spacing = district
    views = SyntheticCity(0, (blocks, blocks)).views(
        "test", spacing=spacing, queries=queries, query_strength=0.6
    )
    side = size or (model.preprocessing.fixed_size or (320, 320))[0]
    queried, references = views.select(views.is_query), views.select(~views.is_query)
    images = [queried.render(side), references.render(side)]
    positives = positives_within(queried.positions, references.positions, RADIUS)
    embedded, recalls = [], []
    for form in (plain, fast):
        query, reference = (form.embed(part, batch_size=64, progress=False) for part in images)
        hits = positives.hits(search(query.descriptor, reference.descriptor, 10).indices)
        recalls.append({k: 100 * recall_at(hits, k) for k in (1, 5, 10)})
        embedded.append([_tensors(query), _tensors(reference)])
    name = f"{fast.form} {str(fast.dtype).removeprefix('torch.')}, {model.architecture.backbone}"
    row = partial(Row, "inference", f"{name}, {queries} queries in the city, {device.type}")
    apart = [fidelity(a, b) for a, b in zip(*embedded, strict=True)]
    cosine, spread = min(part.cosine for part in apart), max(part.spread for part in apart)
    values = cosine, 1.0, "", "eager float32", cosine, "higher", LEAST_COSINE
    rows = [row("smallest cosine of descriptors", *values)]
    values = spread, MOST_KAPPA, "", "limit", spread / MOST_KAPPA, "lower", 1.0
    rows.append(row("largest change of κ", *values))
    for k in (1, 5, 10) if recall else ():
        ours, peer = recalls[1][k], recalls[0][k]
        values = ours, peer, "%", "eager float32", abs(ours - peer), "lower", 0.1
        rows.append(row(f"change of R@{k}", *values))
    return rows


def _tensors(embedded: Embeddings) -> Embeddings:
    return Embeddings(*(None if x is None else torch.as_tensor(x) for x in embedded))


def main() -> None:
    on_gpu = DEVICE.type == "cuda"
    arguments = parse_options(
        __doc__,
        backbone="resnet50",
        size=512,
        batches=[1, 64, 128] if on_gpu else [1, 8],
        runs=200 if on_gpu else 20,
        rounds=5,
        ways=["auto"],
        model=Option(str, help="name or folder of the trained model; default: the shipped model"),
        queries=1000 if on_gpu else 200,
        city_size=Option(0, help="side of the city's images; 0: the model's"),
        csv=Path,
    )
    torch.manual_seed(0)
    model = PlaceModel.create(
        arguments.backbone, 512, "folded", preprocessing=Preprocessing(arguments.size, "exact")
    )
    rounds = Rounds(arguments.runs, arguments.rounds, 20 if on_gpu else 3)
    rows = measure_speed(model, DEVICE, arguments.batches, rounds, ways=arguments.ways)
    trained = load_model(arguments.model)
    for one in (trained, model):
        for way in arguments.ways:
            options = {"queries": arguments.queries, "size": arguments.city_size, "recall": one is trained}
            rows += measure_fidelity(one, DEVICE, way=way, **options)
    report(rows, arguments.csv)


if __name__ == "__main__":
    main()
