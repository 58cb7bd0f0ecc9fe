"""The demo: train on one district, add κ, retrieve in a district never seen, and judge the scores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from kappaplace.data.positives import positives_within
from kappaplace.evaluation import Evaluation, evaluate
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.retrieval.retrieve import retrieve
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import train
from kappaplace.training.settings import Settings
from kappaplace.types import Embeddings, Matches
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.score import Scores
from kappaplace_city import CityViews, Conditions, SyntheticCity
from kappaplace_city.weather import harsh

RADIUS = 25.0  # metres within which a reference is a positive
MATCHES = 10
SHOWN = ("l2", "pa", "inverse-kappa", "kappaplace")  # the paper's, for a first look
Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoSettings:
    """Everything that shapes the demo; the defaults take about two minutes on two cores."""

    seed: int = 0
    size: int = 64
    """Side of the images in pixels."""
    blocks: tuple[int, int] = (3, 3)
    train_spacing: float = 20.0
    """Metres of road between classes: neighbouring ones would look alike."""
    reference_spacing: float = 5.0
    queries: int = 400
    query_strength: float = 0.6
    """Highest level of damage in a query."""
    dim: int = 128
    steps: int = 700
    batch_size: int = 64


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the report shows."""

    settings: DemoSettings
    model: PlaceModel
    queries: CityViews
    references: CityViews
    query: Embeddings
    matches: Matches
    evaluation: Evaluation
    match_uncertainty: Scores
    """U of every pair, N×K."""
    damage_curve: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Per condition: levels, and mean and standard error of κ over the same views."""
    seconds: float


def run_demo(settings: DemoSettings | None = None, say: Say = lambda sentence: None) -> DemoResult:
    """Run everything in memory; ``say`` is told what is going on."""
    settings = settings or DemoSettings()
    start = time.perf_counter()
    torch.manual_seed(settings.seed)
    city = SyntheticCity(settings.seed, settings.blocks, aliased=0.12, featureless=0.12)
    say("Building a synthetic city: one district to learn from, another one to be tested in")
    training = city.views("train", spacing=settings.train_spacing, strength=0.6, seed=settings.seed)
    model = _train(training, settings, say)
    say("Retrieving in the district that was never seen")
    views = city.views(
        "test",
        spacing=settings.reference_spacing,
        queries=settings.queries,
        query_strength=settings.query_strength,
        seed=settings.seed,
    )
    queries, references = views.select(views.is_query), views.select(~views.is_query)
    inference = model.fold().eval()
    query, reference = (
        inference.embed(part.render(settings.size), batch_size=128) for part in (queries, references)
    )
    evidence = retrieve(Queries(query), ArrayReferences(reference, references.positions), MATCHES)
    matches = evidence.matches
    positives = positives_within(queries.positions, references.positions, RADIUS)
    pairs = score_named("kappaplace").match
    assert pairs is not None
    return DemoResult(
        settings=settings,
        model=inference,
        queries=queries,
        references=references,
        query=query,
        matches=matches,
        evaluation=evaluate(evidence, positives.hits(matches.indices), [score_named(name) for name in SHOWN]),
        match_uncertainty=pairs(evidence),
        damage_curve=kappa_against_damage(inference, queries, settings.size),
        seconds=time.perf_counter() - start,
    )


def _train(views: CityViews, settings: DemoSettings, say: Say) -> PlaceModel:
    """Retrieval, then κ around its prototypes, with the recipes that ``kappaplace train`` offers."""
    with TemporaryDirectory() as folder:
        base = _train_encoder(views, settings, Path(folder) / "retrieval", say)
        return _train_kappa(views, settings, base, Path(folder) / "kappa", say)


def _train_encoder(views: CityViews, settings: DemoSettings, folder: Path, say: Say) -> Path:
    say(f"Training a small encoder to tell places apart ({len(views):,} images)")
    options = [
        "model.backbone=resnet_tiny",
        "model.pretrained=false",
        "model.trainable=all",
        f"model.dim={settings.dim}",
        # Groups take turns epoch by epoch: short epochs, so that none is forgotten.
        "optimiser.iterations=10",
        f"optimiser.epochs={settings.steps // 10}",
        f"optimiser.batch_size={settings.batch_size}",
        "optimiser.lr=4e-3",
        "optimiser.weight_decay=1e-3",
        "augment.scale=0.6",
    ]
    train(_settings("retrieval", settings, options), _training_set(views, settings), folder)
    return folder / "model"


def _train_kappa(views: CityViews, settings: DemoSettings, base: Path, folder: Path, say: Say) -> PlaceModel:
    """PT: the same poses under harsher conditions, so that κ learns what damage does to a descriptor."""
    say("Freezing it and fitting the kappa head on damaged views of the same places")
    damaged = replace(views, conditions=harsh(len(views), np.random.default_rng([settings.seed, 7])))
    options = [
        f"model.start={base}",
        "augment.scale=1.0",
        "optimiser.epochs=60",
        "optimiser.batch_size=256",
        # Ten times the paper's: κ must travel to some hundreds, and there are only some hundred steps for it.
        "optimiser.lr=1e-2",
    ]
    trained = train(_settings("kappa-pt", settings, options), _training_set(damaged, settings), folder)
    assert isinstance(trained.model, PlaceModel)
    return trained.model


def _settings(recipe: str, settings: DemoSettings, options: list[str]) -> Settings:
    common = [
        f"model.size={settings.size}",
        # Classes 20 m apart are never neighbours, so a few groups do; the cells are the usual 10 m and 30°.
        "classes.groups_per_axis=2",
        "classes.groups_per_heading=1",
        # The city brings its own light and weather, so crops are augmentation enough.
        "augment.brightness=0",
        "augment.contrast=0",
        "augment.saturation=0",
        "augment.hue=0",
        "optimiser.schedule=warm-cosine",
        f"run.seed={settings.seed}",
        "run.trackers=[]",
    ]
    return settings_for(recipe, "", [*common, *options])


def _training_set(views: CityViews, settings: DemoSettings) -> TrainingSet:
    images = torch.from_numpy(views.render(settings.size)).permute(0, 3, 1, 2).contiguous()
    return TrainingSet(images, views.positions, views.heading, name="synthetic city")


def kappa_against_damage(
    model: PlaceModel, queries: CityViews, size: int, *, views: int = 40, steps: int = 5
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """κ of the same views under one condition at a time, from none to the worst."""
    chosen = queries.select(np.arange(min(views, len(queries))))
    levels = np.linspace(0.0, 1.0, steps)
    curves = {}
    for condition in ("night", "fog", "blur", "occlusion"):
        kappas = np.stack(
            [
                model.embed(
                    replace(
                        chosen, conditions=Conditions.clear(len(chosen), **{condition: float(level)})
                    ).render(size),
                    progress=False,
                ).kappa
                for level in levels
            ]
        )
        curves[condition] = (levels, kappas.mean(1), kappas.std(1) / np.sqrt(len(chosen)))
    return curves
