"""Every recipe on the synthetic city, over several seeds: recall, ECE@K, AUROC, and κ against damage.

python benchmarks/city_recipes.py --seed 0 [--csv results/city_recipes.csv] [--images FILE] [--only kappa-pt]

One process trains and judges all recipes of one seed; the seed is that of weights and order, the city is one.
``--images`` keeps the rendered city, so that several processes need to render it only once. The table over
seeds and its plot come from benchmarks/city_recipes_table.py.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from kappaplace.data.degradation import DEGRADATIONS, degrade
from kappaplace.data.positives import Positives, positives_within
from kappaplace.evaluation import evaluate_scores
from kappaplace.models.checkpoint import AnyModel
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.exact import search
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import RECIPES, settings_for
from kappaplace.training.run import train
from kappaplace.training.validation import ValidationSet
from kappaplace.types import Embeddings
from kappaplace.uncertainty import score_named
from kappaplace_city import CityViews, SyntheticCity
from record import append_row

SIZE, BLOCKS, RADIUS = 96, (4, 4), 25.0
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
COMMON = [
    "model.backbone=resnet18",
    "model.pretrained=false",
    "model.trainable=all",
    "model.dim=256",
    f"model.size={SIZE}",
    "classes.groups_per_axis=2",
    "classes.groups_per_heading=1",
    "augment.brightness=0.3",
    "augment.contrast=0.3",
    "augment.saturation=0.3",
    "augment.hue=0.05",
    "augment.scale=0.6",
    "optimiser.batch_size=128",
    "optimiser.schedule=warm-cosine",
    "run.precision=bf16",
    "run.trackers=[]",
    "run.checkpoint_every=100000",
    "stop.patience=0",
]
ENCODER = [
    "optimiser.lr=2e-3",
    "optimiser.weight_decay=1e-3",
    "optimiser.epochs=32",
    "optimiser.iterations=50",
]
# κ must see damage to learn what it does: half of the views are damaged, as some of the queries will be.
HEAD = ["optimiser.lr=5e-3", "optimiser.epochs=30", "anchors.views=4", "augment.damage=0.5"]
OPTIONS = {
    "retrieval": ENCODER,
    "kappa-pt": HEAD,
    "linear-head": HEAD,
    "gnll": HEAD,
    # Two phases need a patience to pass from one to the other.
    "kappa-jt": [*ENCODER, "augment.damage=0.3", "stop.patience=4"],
    "stun": ["optimiser.lr=5e-4", "optimiser.epochs=12", "optimiser.iterations=50", "augment.damage=0.3"],
    "contrastive": ENCODER,
    "contrastive-pt": HEAD,
    "mc-dropout": ENCODER,
    "btl": ["optimiser.lr=5e-4", "optimiser.epochs=12", "optimiser.iterations=50", "augment.damage=0.3"],
}
STARTS = dict.fromkeys(("kappa-pt", "linear-head", "gnll", "stun"), "retrieval") | {
    "contrastive-pt": "contrastive",
    "btl": "contrastive",
}


@dataclass(frozen=True)
class City:
    """Images in memory with their poses."""

    training: TrainingSet
    validation: ValidationSet
    queries: torch.Tensor
    references: torch.Tensor
    positives: Positives
    reference_positions: np.ndarray


def pixels(views: CityViews) -> np.ndarray:
    return np.ascontiguousarray(views.render(SIZE).transpose(0, 3, 1, 2))


def make_city(file: Path | None, device: str) -> City:
    """One district to learn from, one to choose models by, one to test in."""
    city = SyntheticCity(0, BLOCKS, aliased=0.12, featureless=0.12)
    views = {
        "train": city.views("train", spacing=20.0, strength=0.6, seed=0),
        "val": city.views("val", spacing=10.0, queries=400, query_strength=0.7, seed=0),
        "test": city.views("test", spacing=5.0, queries=1000, query_strength=0.7, seed=0),
    }
    if file is not None and file.is_file():
        images = dict(np.load(file))
    else:
        images = {name: pixels(part) for name, part in views.items()}
        if file is not None:
            np.savez(file, **images)
    on_device = {name: torch.from_numpy(array).to(device) for name, array in images.items()}
    train_views, test = views["train"], views["test"]
    asked = torch.from_numpy(test.is_query).to(device)
    where = test.positions
    return City(
        TrainingSet(on_device["train"], train_views.positions, train_views.heading, name="synthetic city"),
        _validation(views["val"], on_device["val"]),
        on_device["test"][asked],
        on_device["test"][~asked],
        positives_within(where[test.is_query], where[~test.is_query], RADIUS),
        where[~test.is_query],
    )


def _validation(views: CityViews, images: torch.Tensor) -> ValidationSet:
    query, reference = np.flatnonzero(views.is_query), np.flatnonzero(~views.is_query)
    return ValidationSet(
        images, query, reference, positives_within(views.positions[query], views.positions[reference], RADIUS)
    )


@torch.inference_mode()
def embed(model: AnyModel, images: torch.Tensor) -> Embeddings:
    """Embeddings of images in memory, float or uint8."""
    parts = [model(model.preprocessing.normalise(part)) for part in images.split(256)]
    columns = zip(*parts, strict=True)
    return Embeddings(*(None if c[0] is None else torch.cat(c).float().cpu().numpy() for c in columns))


def certainty_against_damage(model: AnyModel, images: torch.Tensor) -> tuple[float, dict[str, float]]:
    """Spearman of certainty with the level over all kinds, and its mean at each level relative to none.

    Certainty is κ, or one over the variance for models that have none.
    """
    chosen = images[:200].float() / 255
    table = np.empty((len(DEGRADATIONS), len(LEVELS), len(chosen)))
    for i, kind in enumerate(DEGRADATIONS):
        for j, level in enumerate(LEVELS):
            keys = np.arange(len(chosen))
            found = embed(model, degrade(chosen, kind, level, keys=keys))
            table[i, j] = found.kappa if found.kappa is not None else 1.0 / found.variance
    levels = np.broadcast_to(np.array(LEVELS)[None, :, None], table.shape)
    mean = table.mean((0, 2))
    return float(spearmanr(table.ravel(), levels.ravel())[0]), {
        f"certainty at {level:g}": value / mean[0] for level, value in zip(LEVELS, mean, strict=True)
    }


def judge(recipe: str, seed: int, model: AnyModel, city: City) -> list[dict[str, float | int | str]]:
    """A row a score."""
    query, reference = embed(model, city.queries), embed(model, city.references)
    matches = search(query.descriptor, reference.descriptor, 10)
    evidence = Evidence(Queries(query), ArrayReferences(reference), matches)
    names = ["l2", "pa"]
    names += ["inverse-kappa", "kappaplace"] if query.kappa is not None else []
    names += ["variance"] if query.variance is not None else []
    found = evaluate_scores(
        evidence, city.positives.hits(matches.indices), [score_named(name) for name in names]
    )
    damage: dict[str, float] = {f"certainty at {level:g}": float("nan") for level in LEVELS}
    rank = float("nan")
    if query.kappa is not None or query.variance is not None:
        rank, damage = certainty_against_damage(model, city.queries)
    return [
        {
            "recipe": recipe,
            "seed": seed,
            "score": one.score.name,
            **{f"R@{k}": value for k, value in found.recall.items()},
            **{f"ECE@{k}": value for k, value in one.ece.items()},
            "AUROC": one.auroc,
            "Spearman of certainty and damage": rank,
            **damage,
        }
        for one in found.scores
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--only", default=",".join(OPTIONS))
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    city = make_city(arguments.images, device)
    wanted = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as work:
        for recipe in OPTIONS:
            needed = recipe in wanted or any(STARTS.get(name) == recipe for name in wanted)
            if not needed:
                continue
            start = [f"model.start={work}/{STARTS[recipe]}/model"] if recipe in STARTS else []
            settings = settings_for(
                recipe, "", [*COMMON, *OPTIONS[recipe], *start, f"run.seed={arguments.seed}"]
            )
            assert recipe in RECIPES
            trained = train(settings, city.training, f"{work}/{recipe}", city.validation)
            for row in judge(recipe, arguments.seed, trained.model.to(device).eval(), city):
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
                if arguments.csv:
                    append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
