"""`model.optimize(device)` against the plain model, float32 and eager, in one run.

python benchmarks/inference.py [--backbone resnet50] [--size 512] [--batches 1 64 128] [--csv FILE]

Speed does not depend on the weights and is measured with fresh ones; descriptors, κ and R@K do, and are
compared on the synthetic city, also with the pretrained model that comes with the package (or ``--model``).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch

from kappaplace.bench.inference import Rounds, measure_fidelity, measure_speed
from kappaplace.bench.rows import as_text
from kappaplace.data.images import Preprocessing
from kappaplace.models.checkpoint import load_model
from kappaplace.models.place_model import PlaceModel
from record import append_row


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument(
        "--batches", type=int, nargs="*", default=[1, 64, 128] if device.type == "cuda" else [1, 8]
    )
    parser.add_argument("--runs", type=int, default=200 if device.type == "cuda" else 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="*", default=["auto"])
    parser.add_argument("--model", help="folder or name of a trained model whose answers are compared")
    parser.add_argument("--queries", type=int, default=1000 if device.type == "cuda" else 200)
    parser.add_argument(
        "--city-size", type=int, default=0, help="side of the city's images; 0: the model's own"
    )
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = PlaceModel.create(given.backbone, 512, "folded", preprocessing=Preprocessing(given.size, "exact"))
    rounds = Rounds(given.runs, given.rounds, 20 if device.type == "cuda" else 3)
    rows = measure_speed(model, device, given.batches, given.ways, rounds, partial(print, flush=True))
    trained = load_model(given.model)
    assert isinstance(trained, PlaceModel)
    for one in (trained, model):
        for way in given.ways:
            asked = {"queries": given.queries, "size": given.city_size, "recall": one is trained}
            rows += measure_fidelity(one, device, way=way, **asked)
    print(as_text(rows))
    for row in rows if given.csv else []:
        append_row(given.csv, row.record())


if __name__ == "__main__":
    main()
