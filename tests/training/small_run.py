"""A run in a separate process, for tests that kill it or start several of them."""

from __future__ import annotations

import os
import sys
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import torch

from kappaplace.data.positives import positives_within
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import Trained, train
from kappaplace.training.validation import ValidationSet
from kappaplace_city import CityViews, SyntheticCity

SIZE = 24
THREADS = int(os.environ.get("KAPPAPLACE_TEST_THREADS", "1"))
OPTIONS = [
    "model.backbone=resnet_tiny",
    "model.pretrained=false",
    "model.trainable=all",
    "model.freeze_batchnorm=true",
    "model.dim=16",
    f"model.size={SIZE}",
    "classes.groups_per_axis=2",
    "classes.min_images=4",
    "classes.groups_per_heading=1",
    "optimizer.epochs=3",
    "optimizer.iterations=6",
    "optimizer.batch_size=16",
    "optimizer.lr=1e-3",
    "run.trackers=[]",
]


@cache
def small_data() -> tuple[TrainingSet, ValidationSet]:
    """Training images from a corner of the synthetic city, and validation images from another district."""
    city = SyntheticCity(0, (1, 1))
    training = city.views("train", spacing=30.0, per_class=6, strength=0.3, seed=0)
    test = city.views("val", spacing=10.0, queries=30, query_strength=0.5, seed=0)
    query, reference = np.flatnonzero(test.is_query), np.flatnonzero(~test.is_query)
    positives = positives_within(test.positions[query], test.positions[reference], 25.0)
    data = TrainingSet(_pixels(training), training.positions, training.heading, name="small city")
    return data, ValidationSet(_pixels(test), query, reference, positives)


def _pixels(views: CityViews) -> torch.Tensor:
    return torch.from_numpy(views.render(SIZE)).permute(0, 3, 1, 2).contiguous()


@cache
def small_encoder() -> PlaceModel:
    """A briefly trained encoder."""
    torch.set_num_threads(THREADS)
    options = [
        "optimizer.epochs=10",
        "optimizer.iterations=8",
        "optimizer.lr=4e-3",
        "model.freeze_batchnorm=false",
    ]
    settings = settings_for("retrieval", "", [*OPTIONS, *options])
    with TemporaryDirectory() as folder:
        model = train(settings, small_data()[0], folder, device="cpu").model
    assert isinstance(model, PlaceModel)
    return model


def small_run(recipe: str, folder: str, *options: str, start: bool = False) -> Trained:
    """Train on the small data; with ``start``, from the trained encoder."""
    torch.set_num_threads(THREADS)
    data, validation = small_data()
    settings = settings_for(recipe, "", [*OPTIONS, *options])
    return train(settings, data, folder, validation, model=small_encoder() if start else None, device="cpu")


if __name__ == "__main__":
    small_run(sys.argv[1], sys.argv[2], *sys.argv[3:])
