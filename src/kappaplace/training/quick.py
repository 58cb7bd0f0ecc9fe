"""Training in memory, for sets that fit there: the demo and tests.

The encoder learns with the classification objective; then, frozen, it is run once and the kappa head is
fitted on the stored features, so that its epochs cost next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kappaplace import vmf
from kappaplace.data.classes import PlaceClasses
from kappaplace.data.sampler import ClassSampler
from kappaplace.errors import KappaPlaceError
from kappaplace.models.heads import MirroredKappaHead
from kappaplace.models.place_model import PlaceModel
from kappaplace.progress import track
from kappaplace.training.anchors import class_anchors
from kappaplace.training.losses import large_margin_cosine_loss, vmf_loss

Augment = Callable[[Tensor, torch.Generator], Tensor]


def new_prototypes(classes: PlaceClasses, dim: int, generator: torch.Generator) -> nn.ParameterList:
    """One matrix of class prototypes a group, Xavier-uniform."""
    prototypes = nn.ParameterList()
    for size in classes.group_sizes:
        bound = math.sqrt(6.0 / (int(size) + dim))
        prototypes.append(nn.Parameter((torch.rand(int(size), dim, generator=generator) * 2 - 1) * bound))
    return prototypes


def train_classifier(
    model: PlaceModel,
    images: Tensor,
    classes: PlaceClasses,
    *,
    steps: int,
    augment: Augment,
    batch_size: int = 64,
    lr: float = 2e-3,
    prototype_lr: float = 1e-2,
    seed: int = 0,
) -> nn.ParameterList:
    """Train the encoder on uint8 images N×3×H×W and return the prototypes of every group.

    Groups take turns step by step; the learning rate rises, then falls to zero on a cosine.
    """
    groups = [classes.group(index) for index in range(classes.n_groups)]
    used = [index for index, group in enumerate(groups) if len(group) > 1]
    if not used:
        raise KappaPlaceError("There are no two classes to tell apart; use more images or smaller cells.")
    device = next(model.parameters()).device
    images = images.to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster on a CPU
    samplers = {index: ClassSampler(groups[index], seed) for index in used}
    generator = torch.Generator().manual_seed(seed)
    prototypes = new_prototypes(classes, model.dim, generator).to(device)
    encoder = [*model.backbone.parameters(), *model.aggregation.parameters()]
    optimiser = torch.optim.AdamW(
        [{"params": encoder, "lr": lr}, {"params": list(prototypes), "lr": prototype_lr}], weight_decay=1e-3
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine(step, steps))
    model.train()
    with track("Training the encoder", steps) as bar:
        for step in range(steps):
            index = used[step % len(used)]
            rows = samplers[index].take(batch_size)
            labels = torch.from_numpy(groups[index].labels(rows)).to(device)
            batch = model.preprocessing.normalise(augment(images[rows], generator))
            descriptor = F.normalize(model.features(batch).raw, dim=-1)
            loss = large_margin_cosine_loss(descriptor, prototypes[index], labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            bar.advance()
    model.eval()
    return prototypes


def warm_cosine(step: int, steps: int) -> float:
    """Learning-rate factor: up over the first tenth, then down to zero on a cosine."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


@torch.inference_mode()
def cache_features(model: PlaceModel, images: Tensor, batch_size: int = 128) -> tuple[Tensor, Tensor]:
    """Pooled features N×C as the mirrored head sees them, and descriptors N×d, of the frozen model."""
    head = _mirrored(model)
    device = next(model.parameters()).device
    pooled, descriptors = [], []
    model.eval()
    with track("Extracting features", len(images)) as bar:
        for start in range(0, len(images), batch_size):
            batch = model.preprocessing.normalise(images[start : start + batch_size].to(device))
            features = model.features(batch)
            pooled.append(features.pooled if head.tied else head.aggregation.gem(features.normalised))  # type: ignore[operator]
            descriptors.append(F.normalize(features.raw, dim=-1))
            bar.advance(len(batch))
    return torch.cat(pooled).cpu(), torch.cat(descriptors).cpu()


def fit_kappa_head(
    model: PlaceModel,
    pooled: Tensor,
    descriptors: Tensor,
    anchors: Tensor,
    *,
    epochs: int = 60,
    batch_size: int = 256,
    lr: float = 1e-2,
    seed: int = 0,
) -> list[float]:
    """Post-training (PT) on cached features: only the head's linear layers move. Returns the losses.

    The learning rate is ten times the paper's 1e-3: κ must travel to some hundreds, and there are only some
    hundred steps to do it in.
    """
    head = _mirrored(model)
    # Inference-mode tensors cannot enter autograd; clones can.
    pooled, descriptors, anchors = pooled.clone(), descriptors.clone(), anchors.detach().clone()
    mean_cosine = (descriptors * anchors).sum(-1).mean().clamp(0.01, 0.99)
    head.start_at(float(vmf.best_kappa(mean_cosine, model.dim)))
    parameters = [*head.first.parameters(), *head.last.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=lr)
    steps = epochs * -(-len(pooled) // batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine(step, steps))
    generator = torch.Generator().manual_seed(seed)
    history: list[float] = []
    with track("Fitting κ", epochs) as bar:
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(pooled), generator=generator).split(batch_size):
                loss = vmf_loss(descriptors[rows], anchors[rows], head.from_pooled(pooled[rows]))
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                total += float(loss.detach()) * len(rows)
            history.append(total / len(pooled))
            bar.advance()
    return history


def image_anchors(prototypes: nn.ParameterList, classes: PlaceClasses, rows: np.ndarray) -> Tensor:
    """The class prototype of each image row, N×d; rows must belong to a class."""
    anchors = torch.empty(len(rows), prototypes[0].shape[1])
    group = classes.group_of_class[classes.class_of_image[rows]]
    for index, weights in enumerate(prototypes):
        mine = np.flatnonzero(group == index)
        if len(mine):
            labels = torch.from_numpy(classes.group(index).labels(rows[mine]))
            anchors[mine] = class_anchors(weights.detach(), labels)
    return anchors


def _mirrored(model: PlaceModel) -> MirroredKappaHead:
    if not isinstance(model.head, MirroredKappaHead):
        raise KappaPlaceError(
            f"Post-training needs a mirrored head, this model has '{model.architecture.head}'."
        )
    return model.head
