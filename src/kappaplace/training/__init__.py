"""Training of models: recipes, settings, places, batches, losses and the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.training.batches import ClassSampler as ClassSampler
    from kappaplace.training.batches import PlaceBatchSampler as PlaceBatchSampler
    from kappaplace.training.images import TrainingSet as TrainingSet
    from kappaplace.training.objectives import LossFunction as LossFunction
    from kappaplace.training.objectives import Objective as Objective
    from kappaplace.training.objectives import Step as Step
    from kappaplace.training.places import PlaceClasses as PlaceClasses
    from kappaplace.training.places import assign_classes as assign_classes
    from kappaplace.training.recipes import RECIPES as RECIPES
    from kappaplace.training.recipes import Parts as Parts
    from kappaplace.training.recipes import Recipe as Recipe
    from kappaplace.training.recipes import recipe_named as recipe_named
    from kappaplace.training.recipes import settings_for as settings_for
    from kappaplace.training.run import train as train
    from kappaplace.training.settings import Settings as Settings
    from kappaplace.training.settings import read_toml as read_toml
    from kappaplace.training.validation import ValidationSet as ValidationSet
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
