"""All recipes on the synthetic city, over several seeds: recall, ECE@K, AUROC, and κ against degradation.

python benchmarks/city_recipes.py --seed 0 [--csv results/city_recipes.csv] [--images FILE] [--only kappa-pt]

One process trains and evaluates all recipes of one seed. The seed affects weights and order; the city is the
same. ``--images`` keeps the rendered city in a file for other processes. benchmarks/city_recipes_table.py
creates the table and plot over seeds.
"""

from __future__ import annotations

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
from record import DEVICE, log_row, parse_options

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
    "optimizer.batch_size=128",
    "optimizer.schedule=warm-cosine",
    "run.precision=bf16",
    "run.trackers=[]",
    "run.checkpoint_every=100000",
    "stop.patience=0",
]
ENCODER = [
    "optimizer.lr=2e-3",
    "optimizer.weight_decay=1e-3",
    "optimizer.epochs=32",
    "optimizer.iterations=50",
]
# κ must be trained on degraded images: half of the views are degraded, like some of the queries.
HEAD = ["optimizer.lr=5e-3", "optimizer.epochs=30", "anchors.views=4", "augment.damage=0.5"]
OPTIONS = {
    "retrieval": ENCODER,
    "kappa-pt": HEAD,
    "linear-head": HEAD,
    "gnll": HEAD,
    # Patience ends the first of its two phases.
    "kappa-jt": [*ENCODER, "augment.damage=0.3", "stop.patience=4"],
    "stun": ["optimizer.lr=5e-4", "optimizer.epochs=12", "optimizer.iterations=50", "augment.damage=0.3"],
    "contrastive": ENCODER,
    "contrastive-pt": HEAD,
    "mc-dropout": ENCODER,
    "btl": ["optimizer.lr=5e-4", "optimizer.epochs=12", "optimizer.iterations=50", "augment.damage=0.3"],
}
STARTS = dict.fromkeys(("kappa-pt", "linear-head", "gnll", "stun"), "retrieval") | {
    "contrastive-pt": "contrastive",
    "btl": "contrastive",
}


@dataclass(frozen=True)
class City:
    """Images in memory with positions."""

    training: TrainingSet
    validation: ValidationSet
    queries: torch.Tensor
    references: torch.Tensor
    positives: Positives
    reference_positions: np.ndarray


def pixels(views: CityViews) -> np.ndarray:
    return np.ascontiguousarray(views.render(SIZE).transpose(0, 3, 1, 2))


def make_city(file: Path | None, device: str) -> City:
    """Create a district for training, one for validation, and one for testing."""
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
    is_query, positions = torch.from_numpy(test.is_query).to(device), test.positions
    return City(
        TrainingSet(on_device["train"], train_views.positions, train_views.heading, name="synthetic city"),
        _validation(views["val"], on_device["val"]),
        on_device["test"][is_query],
        on_device["test"][~is_query],
        positives_within(positions[test.is_query], positions[~test.is_query], RADIUS),
        positions[~test.is_query],
    )


def _validation(views: CityViews, images: torch.Tensor) -> ValidationSet:
    query, reference = np.flatnonzero(views.is_query), np.flatnonzero(~views.is_query)
    return ValidationSet(
        images, query, reference, positives_within(views.positions[query], views.positions[reference], RADIUS)
    )


@torch.inference_mode()
def embed(model: AnyModel, images: torch.Tensor) -> Embeddings:
    """Embed images in memory, float or uint8."""
    parts = [model(model.preprocessing.normalize(part)) for part in images.split(256)]
    columns = zip(*parts, strict=True)
    return Embeddings(*(None if c[0] is None else torch.cat(c).float().cpu().numpy() for c in columns))


def certainty_against_damage(model: AnyModel, images: torch.Tensor) -> tuple[float, dict[str, float]]:
    """Return the Spearman correlation of certainty and level over all kinds, and the relative mean per level.

    Certainty is κ, or 1/variance for models without κ.
    """
    sample = images[:200].float() / 255
    table = np.empty((len(DEGRADATIONS), len(LEVELS), len(sample)))
    for i, kind in enumerate(DEGRADATIONS):
        for j, level in enumerate(LEVELS):
            keys = np.arange(len(sample))
            degraded = embed(model, degrade(sample, kind, level, keys=keys))
            table[i, j] = degraded.kappa if degraded.kappa is not None else 1.0 / degraded.variance
    levels = np.broadcast_to(np.array(LEVELS)[None, :, None], table.shape)
    mean = table.mean((0, 2))
    return float(spearmanr(table.ravel(), levels.ravel())[0]), {
        f"certainty at {level:g}": value / mean[0] for level, value in zip(LEVELS, mean, strict=True)
    }


def evaluate_recipe(
    recipe: str, seed: int, model: AnyModel, city: City
) -> list[dict[str, float | int | str]]:
    """Return one row per score."""
    query, reference = embed(model, city.queries), embed(model, city.references)
    matches = search(query.descriptor, reference.descriptor, 10)
    evidence = Evidence(Queries(query), ArrayReferences(reference), matches)
    names = ["l2", "pa"]
    names += ["inverse-kappa", "kappaplace"] if query.kappa is not None else []
    names += ["variance"] if query.variance is not None else []
    result = evaluate_scores(
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
            **{f"R@{k}": value for k, value in result.recall.items()},
            **{f"ECE@{k}": value for k, value in one.ece.items()},
            "AUROC": one.auroc,
            "Spearman of certainty and damage": rank,
            **damage,
        }
        for one in result.scores
    ]


def main() -> None:
    arguments = parse_options(__doc__, seed=0, csv=Path, images=Path, only=",".join(OPTIONS))
    device = DEVICE.type
    city = make_city(arguments.images, device)
    names = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as work:
        for recipe in OPTIONS:
            needed = recipe in names or any(STARTS.get(name) == recipe for name in names)
            if not needed:
                continue
            start = [f"model.start={work}/{STARTS[recipe]}/model"] if recipe in STARTS else []
            settings = settings_for(
                recipe, "", [*COMMON, *OPTIONS[recipe], *start, f"run.seed={arguments.seed}"]
            )
            assert recipe in RECIPES
            trained = train(settings, city.training, f"{work}/{recipe}", city.validation)
            for row in evaluate_recipe(recipe, arguments.seed, trained.model.to(device).eval(), city):
                log_row(arguments.csv, row)


if __name__ == "__main__":
    main()
