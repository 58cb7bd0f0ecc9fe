"""What a run begins with: the machine (device, processes, precision, through accelerate) and the model."""

from __future__ import annotations

import copy
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.models.backbones import backbone_spec
from kappaplace.models.checkpoint import TrainableModel, load_model, trainable
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import Head, HeadName, KappaHead, MirroredKappaHead
from kappaplace.models.network import default_preprocessing
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.loop import installed_trackers
from kappaplace.training.recipes import Recipe
from kappaplace.training.settings import RunSettings, Settings
from kappaplace.training.steps import autocast_for


def starting_model(settings: Settings, recipe: Recipe, given: TrainableModel | None = None) -> TrainableModel:
    """A new model, or a trained one with the recipe's head; what the recipe freezes is frozen."""
    torch.manual_seed(settings.run.seed)
    options = settings.model
    head: HeadName = options.head or recipe.head  # type: ignore[assignment]  # checked when it is built
    source = given or (trainable(load_model(options.start)) if options.start else None)
    if source is None:
        if recipe.needs_start:
            raise KappaPlaceError(
                f"The recipe {recipe.name} starts from a trained model; name it with model.start (--from)."
            )
        model: TrainableModel = PlaceModel.create(
            options.backbone, options.dim, head, pretrained=options.pretrained,
            preprocessing=_square(options.backbone, options.size),
        )  # fmt: skip
    elif isinstance(source, FrozenEncoder):
        model = _frozen_encoder(source, recipe, options.head)
    else:
        model = with_head(source, head)
    if isinstance(model, PlaceModel):
        _freeze(model, recipe, options.trainable)
    if (
        options.copy_aggregation
        and isinstance(model, PlaceModel)
        and isinstance(model.head, MirroredKappaHead)
    ):
        model.head.copy_aggregation(model.aggregation)
    return model


def with_head(source: PlaceModel, head: HeadName) -> PlaceModel:
    """The same encoder with another head; a head of the same kind goes on from where it is."""
    model = copy.deepcopy(source).requires_grad_(True)
    if source.architecture.head != head:
        model.architecture = replace(source.architecture, head=head)
        model.head = source.new_head(head)
    if isinstance(model.head, KappaHead):
        model.head.trained = source.architecture.head == head
    return model


def _square(backbone: str, size: int) -> Preprocessing:
    usual = default_preprocessing(backbone)
    if not size:
        return usual
    multiple = usual.multiple
    if size % multiple:
        raise KappaPlaceError(
            f"{backbone} needs sides that are multiples of {multiple}; model.size is {size}."
        )
    spec = backbone_spec(backbone)
    return Preprocessing(size, "exact", mean=spec.mean, std=spec.std, multiple=multiple)


def _frozen_encoder(source: FrozenEncoder, recipe: Recipe, head: str) -> FrozenEncoder:
    if not recipe.frozen or recipe.head == "variance":
        raise KappaPlaceError(
            f"The recipe {recipe.name} changes the encoder or its head's meaning; an encoder of another "
            "project takes kappa-pt, linear-head or contrastive-pt."
        )
    if recipe.head == "linear" and source.layer is not None:
        raise KappaPlaceError(
            "The recipe linear-head reads the descriptor alone; give a FrozenEncoder without a layer."
        )
    if head:
        raise KappaPlaceError(
            "The head of a FrozenEncoder follows from the layer it watches; leave model.head out."
        )
    model = copy.copy(source)  # the encoder is shared, the caller's head stays as it is
    model._modules = {**source._modules, "head": copy.deepcopy(source.head)}
    return model


def _freeze(model: PlaceModel, recipe: Recipe, trainable: str) -> None:
    if recipe.frozen:
        model.freeze_encoder()
    elif trainable == "partial":
        model.freeze_partially()
    else:
        model.requires_grad_(True)


PROCESS_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where launchers put the number of processes."""


class OneProcess:
    """One process without accelerate: as much of its ``Accelerator`` as a run uses.

    Args:
        cpu: Do not use a GPU.
    """

    process_index = 0
    num_processes = 1
    is_main_process = True
    trackers = ()

    def __init__(self, cpu: bool) -> None:
        gpu = None if cpu or not torch.accelerator.is_available() else torch.accelerator.current_accelerator()
        self.device = gpu or torch.device("cpu")

    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients."""
        loss.backward()

    def no_sync(self, net: nn.Module) -> AbstractContextManager[None]:
        """Do nothing: there are no other processes."""
        return nullcontext()

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of all processes: these."""
        return values

    def wait_for_everyone(self) -> None:
        """Return at once."""


@dataclass(frozen=True, eq=False)
class Engine:
    """One process of one or many; made by `create`."""

    accelerator: Any
    autocast: Any

    @classmethod
    def create(cls, settings: RunSettings, device: str, folder: Path) -> Engine:
        """Choose the device: a GPU if there is one; several under ``accelerate launch`` or ``torchrun``."""
        if device not in ("", "cpu"):
            raise KappaPlaceError(
                f"device must be 'cpu' or omitted, got '{device}'. A GPU is used if there is one."
            )
        trackers = installed_trackers(settings.trackers)
        try:
            from accelerate import Accelerator, InitProcessGroupKwargs
        except ImportError:
            if any(int(os.environ.get(name, 1)) > 1 for name in PROCESS_COUNTS):
                raise MissingExtra("Training in several processes", "train") from None
            alone = OneProcess(cpu=device == "cpu")
            return cls(alone, autocast_for(alone.device, settings.precision))
        # Precision and accumulation are the settings' alone, not those of accelerate's environment.
        accelerator = Accelerator(
            mixed_precision="no",
            cpu=device == "cpu",
            log_with=trackers or None,
            project_dir=str(folder),
            # Extraction shares nothing for hours; the usual ten minutes would end it.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=1))],
        )
        accelerator.gradient_accumulation_steps = 1
        if trackers:
            accelerator.init_trackers("log")
        return cls(accelerator, autocast_for(accelerator.device, settings.precision))

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def rank(self) -> int:
        return self.accelerator.process_index

    @property
    def processes(self) -> int:
        return self.accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this process writes and speaks."""
        return self.accelerator.is_main_process

    def wrap(self, net: nn.Module) -> nn.Module:
        """The network, averaging gradients over processes where there are several."""
        if self.processes == 1 or not any(parameter.requires_grad for parameter in net.parameters()):
            return net
        return self.accelerator.prepare(net)

    def wait(self) -> None:
        """Until all processes are here."""
        self.accelerator.wait_for_everyone()

    def finish(self) -> None:
        """Close the trackers; the processes stay together for another run."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.wait()


class TrainingNet(nn.Module):
    """What processes wrap: a model whose pass gives descriptors and the head's own output."""

    def __init__(self, model: TrainableModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.model.outputs(images)


class HeadNet(nn.Module):
    """The head alone, on features that were extracted before."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head: Head = head

    def forward(self, reduced: torch.Tensor) -> torch.Tensor:
        return self.head.from_reduced(reduced)
