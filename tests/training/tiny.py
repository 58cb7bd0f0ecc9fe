"""Helpers of the training tests: a city of 240 small images, and settings that train on it in a second."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kappaplace.data.positives import positives_within
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import settings_for
from kappaplace.training.settings import Settings
from kappaplace.training.validation import ValidationSet
from kappaplace_city import SyntheticCity

SIDE, DIM = 32, 32
OPTIONS = (
    "model.backbone=resnet_tiny",
    "model.pretrained=false",
    f"model.dim={DIM}",
    f"model.size={SIDE}",
    "model.trainable=all",
    "classes.groups_per_axis=1",
    "classes.groups_per_heading=2",
    "classes.min_images=4",
    "optimizer.epochs=2",
    "optimizer.iterations=4",
    "optimizer.batch_size=16",
    "optimizer.lr=1e-3",
    "run.trackers=[]",
)


class City(NamedTuple):
    """Two groups of 20 places with six images each, and queries from another quarter."""

    data: TrainingSet
    validation: ValidationSet

    @property
    def without_places(self) -> TrainingSet:
        """The same images with unknown places."""
        return TrainingSet(self.data.images, np.full((len(self.data.images), 2), np.nan))


def tiny_settings(recipe: str, *options: str) -> Settings:
    """A recipe with a few small steps."""
    return settings_for(recipe, options=[*OPTIONS, *options])


def build_city() -> City:
    city = SyntheticCity(0, (1, 1))
    train = city.views("train", spacing=30.0, per_class=6, strength=0.5, seed=0)
    val = city.views("val", spacing=20.0, queries=24, query_strength=0.5, seed=0)
    queries, references = np.flatnonzero(val.is_query), np.flatnonzero(~val.is_query)
    positives = positives_within(val.positions[queries], val.positions[references], 25.0)
    return City(
        TrainingSet(_pixels(train.render(SIDE)), train.positions, train.heading, name="tiny city"),
        ValidationSet(_pixels(val.render(SIDE)), queries, references, positives),
    )


def _pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def plain_encoder() -> nn.Module:
    """A third-party encoder: a module that returns descriptors, with BatchNorm."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 12),
    )
