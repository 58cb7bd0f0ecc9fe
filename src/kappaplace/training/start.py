"""Start of a run: device, processes and precision, and the model to train."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from kappaplace.checks import choice
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.models.backbones import backbone_spec
from kappaplace.models.checkpoint import TrainableModel, load_model, trainable
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import Head, HeadName, KappaHead, MirroredKappaHead
from kappaplace.models.network import default_preprocessing
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.features import Autocast
from kappaplace.training.recipes import Recipe
from kappaplace.training.settings import ModelSettings, RunSettings, Settings
from kappaplace.training.steps import autocast_for

if TYPE_CHECKING:
    from accelerate import Accelerator


def starting_model(settings: Settings, recipe: Recipe, model: TrainableModel | None = None) -> TrainableModel:
    """Return a new or a trained model, with the head and the frozen parts that the recipe requires.

    Args:
        settings: Options of the run.
        recipe: The recipe.
        model: Model to start from. Default: ``model.start`` of the settings.

    Returns:
        The model to train.

    Raises:
        KappaPlaceError: If the recipe needs a trained model, or cannot train this one.
    """
    torch.manual_seed(settings.run.seed)
    options = settings.model
    head: HeadName = options.head or recipe.head  # type: ignore[assignment]  # checked when it is built
    source = model or (
        trainable(load_model(options.start, head=options.start_head or None)) if options.start else None
    )
    if source is None:
        if recipe.needs_start:
            raise KappaPlaceError(
                f"The recipe {recipe.name} starts from a trained model. Set model.start (--from)."
            )
        model = PlaceModel.create(
            options.backbone, options.dim, head, pretrained=options.pretrained,
            preprocessing=_square(options.backbone, options.size),
        )  # fmt: skip
    elif isinstance(source, FrozenEncoder):
        model = _frozen_encoder(source, recipe, options.head)
    else:
        model = with_head(source, head)
    if isinstance(model, PlaceModel):
        _freeze(model, recipe, options)
        model.preprocessing = replace(model.preprocessing, reduced_jpeg=options.reduced_jpeg)
    if (
        options.copy_aggregation
        and isinstance(model, PlaceModel)
        and isinstance(model.head, MirroredKappaHead)
    ):
        model.head.copy_aggregation(model.aggregation)
    return model


def with_head(source: PlaceModel, head: HeadName) -> PlaceModel:
    """Return the same encoder with another head. A head of the same kind keeps its weights."""
    model = copy.deepcopy(source).requires_grad_(True)
    if source.architecture.head != head:
        model.architecture = replace(source.architecture, head=head)
        model.head = source.new_head(head)
    if isinstance(model.head, KappaHead):
        model.head.trained = source.architecture.head == head
    return model


def _square(backbone: str, size: int) -> Preprocessing:
    preprocessing = default_preprocessing(backbone)
    if not size:
        return preprocessing
    multiple = preprocessing.multiple
    if size % multiple:
        raise KappaPlaceError(f"model.size must be a multiple of {multiple} for {backbone}, got {size}.")
    spec = backbone_spec(backbone)
    return Preprocessing(size, "exact", mean=spec.mean, std=spec.std, multiple=multiple)


def _frozen_encoder(source: FrozenEncoder, recipe: Recipe, head: str) -> FrozenEncoder:
    if not recipe.frozen or recipe.head == "variance":
        raise KappaPlaceError(
            f"The recipe {recipe.name} changes the encoder or the meaning of its head. For a FrozenEncoder, "
            "use kappa-pt, linear-head or contrastive-pt."
        )
    if recipe.head == "linear" and source.layer is not None:
        raise KappaPlaceError(
            "The recipe linear-head uses only the descriptor. Pass a FrozenEncoder without a layer."
        )
    if head:
        raise KappaPlaceError("The layer of a FrozenEncoder determines its head. Omit model.head.")
    model = copy.copy(source)  # the encoder is shared, but the head is a copy
    model._modules = {**source._modules, "head": copy.deepcopy(source.head)}
    return model


def _freeze(model: PlaceModel, recipe: Recipe, options: ModelSettings) -> None:
    if recipe.frozen:
        model.freeze_encoder()
    elif options.trainable == "partial":
        model.freeze_partially(statistics=options.frozen_statistics)
    else:
        model.requires_grad_(True)


_MODULES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}


def installed_trackers(names: Sequence[str]) -> list[str]:
    """Return the trackers to use. The default tracker is skipped if it is not installed.

    Args:
        names: Names of trackers.

    Returns:
        Names of the installed trackers.

    Raises:
        KappaPlaceError: If a tracker is unknown, or another one than the default is not installed.
    """
    for name in names:
        choice(name, _MODULES, "tracker")
    installed = [name for name in names if any(importlib.util.find_spec(module) for module in _MODULES[name])]
    missing = [name for name in names if name not in installed and name not in RunSettings().trackers]
    if missing:
        raise KappaPlaceError(
            f"run.trackers contains '{missing[0]}', which is not installed. Run `pip install {missing[0]}`, "
            "or remove it from run.trackers."
        )
    return installed


PROCESS_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which launchers store the number of processes."""


class OneProcess:
    """Replacement of ``Accelerator`` for one process without accelerate.

    Args:
        cpu: Whether to use the CPU even if there is a GPU.
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
        """Do nothing, because there are no other processes."""
        return nullcontext()

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values unchanged, because there are no other processes."""
        return values

    def reduce(self, value: torch.Tensor, reduction: str) -> torch.Tensor:
        """Return the value unchanged, because there are no other processes."""
        return value

    def prepare(self, net: nn.Module) -> nn.Module:
        """Return the network unchanged, because there is nothing to average."""
        return net

    def wait_for_everyone(self) -> None:
        """Return immediately, because there are no other processes."""


@dataclass(frozen=True, eq=False)
class Engine:
    """One process of the run; create it with `create`."""

    accelerator: Accelerator | OneProcess
    """Access to the other processes."""
    autocast: Autocast
    """Function that returns a context that sets the precision."""

    @classmethod
    def create(cls, settings: RunSettings, device: str, folder: Path) -> Engine:
        """Start on a GPU if there is one, or on several GPUs with ``accelerate launch`` or ``torchrun``.

        Args:
            settings: Options of the machine.
            device: "cpu" to force the CPU, otherwise empty.
            folder: Folder of the run.

        Returns:
            The process.

        Raises:
            KappaPlaceError: If the device is invalid, or accelerate is missing for several processes.
        """
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
            if others := set(trackers) - set(RunSettings().trackers):
                raise MissingExtra(f"The tracker {min(others)}", "train") from None
            alone = OneProcess(cpu=device == "cpu")
            return cls(alone, autocast_for(alone.device, settings.precision))
        # Only the settings define precision and accumulation, not the environment of accelerate.
        accelerator = Accelerator(
            mixed_precision="no",
            cpu=device == "cpu",
            log_with=trackers or None,
            project_dir=str(folder),
            # During extraction, processes do not communicate for hours, but the default limit is ten minutes.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=1))],
        )
        accelerator.gradient_accumulation_steps = 1
        if trackers:
            accelerator.init_trackers("log")
        return cls(accelerator, autocast_for(accelerator.device, settings.precision))

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self.accelerator.device

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return self.accelerator.process_index

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this process writes files and messages."""
        return self.accelerator.is_main_process

    def wrap(self, net: nn.Module) -> nn.Module:
        """Return the network, which averages gradients over several processes."""
        if self.processes == 1 or not any(parameter.requires_grad for parameter in net.parameters()):
            return net
        return self.accelerator.prepare(net)

    def wait(self) -> None:
        """Wait for all processes."""
        self.accelerator.wait_for_everyone()

    def finish(self) -> None:
        """Close the trackers. The processes stay connected for another run."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.wait()


class TrainingNet(nn.Module):
    """Network with the whole model, in the form that several processes can wrap."""

    def __init__(self, model: TrainableModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return descriptors and the output of the head."""
        return self.model.outputs(images)


class HeadNet(nn.Module):
    """Network with only the head, for extracted features."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head: Head = head

    def forward(self, reduced: torch.Tensor) -> torch.Tensor:
        """Return the output of the head."""
        return self.head.from_reduced(reduced)
