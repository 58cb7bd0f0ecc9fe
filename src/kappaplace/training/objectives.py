"""Objectives of recipes: losses as functions of descriptors and the output of the head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kappaplace import vmf
from kappaplace.errors import KappaPlaceError
from kappaplace.training.losses import (
    FixedAnchors,
    batch_centroids,
    bayesian_triplet_loss,
    class_anchors,
    compiled_nll,
    gaussian_nll,
    large_margin_cosine_loss,
    multi_similarity_loss,
    multi_similarity_pairs,
    stun_loss,
    vmf_loss,
)
from kappaplace.training.settings import LossSettings


class Step(NamedTuple):
    """Outputs of the network for one batch of images, with the labels of the images."""

    descriptor: Tensor
    """Unit vectors B×d."""
    spread: Tensor | None
    """Output of the head: κ or σ² of shape B, STUN's s of shape B×d. None without a head."""
    rows: Tensor
    """Image rows (B)."""
    labels: Tensor
    """Place of each image within the group (B)."""
    group: int
    """Number of the group."""
    images: Tensor | None = None
    """Input of the network. None if features are cached."""


Losses = dict[str, Tensor]


class Objective(nn.Module):
    """Base class of objectives, which return the loss to minimize as "loss", and its parts for the log."""

    has_anchors = True
    """Whether the best constant output of the head depends on the cosines of descriptors and anchors."""

    def forward(self, step: Step) -> Losses:
        """Return the losses of one batch by name."""
        raise NotImplementedError

    def parameters_of(self, group: int) -> list[nn.Parameter]:
        """Return the weights of the objective, such as prototypes, that a step in this group updates."""
        return []

    def cosine(self, step: Step) -> Tensor:
        """Return the cosine of each descriptor and its anchor; zeros without anchors."""
        return torch.zeros(len(step.descriptor), device=step.descriptor.device)

    def best_constant(self, cosine: float, dim: int) -> float:
        """Return the constant output of the head that fits a mean cosine best.

        Args:
            cosine: Mean cosine of descriptors and their anchors.
            dim: Dimension of the descriptors.

        Returns:
            The constant output.
        """
        return float(vmf.best_kappa(torch.tensor(min(max(cosine, 0.01), 0.99)), dim))


class LossFunction(Objective):
    """The objective of a loss that depends only on the batch.

    Args:
        loss: Function from a batch to the loss.
    """

    def __init__(self, loss: Callable[[Step], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, step: Step) -> Losses:
        """Return the loss of one batch."""
        return {"loss": self.loss(step)}


class Classification(Objective):
    """Large-margin cosine loss with the prototypes of a group, and for λ > 0 the vMF term (joint training).

    Args:
        group_sizes: Number of classes per group.
        dim: Dimension of the descriptors.
        settings: Constants of the losses.
        weight: Weight λ of the vMF term.
        seed: Random seed of the prototypes.
    """

    def __init__(
        self, group_sizes: Sequence[int], dim: int, settings: LossSettings, weight: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.prototypes = nn.ParameterList(_xavier_uniform(size, dim, generator) for size in group_sizes)
        self.settings, self.weight = settings, weight

    def forward(self, step: Step) -> Losses:
        """Return the classification loss of one batch, and the vMF term."""
        prototypes, settings = self.prototypes[step.group], self.settings
        classification = large_margin_cosine_loss(
            step.descriptor, prototypes, step.labels, settings.scale, settings.margin
        )
        if not self.weight:
            return {"loss": classification}
        anchors = class_anchors(prototypes, step.labels)
        spread = vmf_loss(step.descriptor, anchors, _spread(step), settings.vmf_dim or None)
        return {
            "loss": classification + self.weight * spread,
            "classification": classification,
            "vmf": spread,
        }

    def parameters_of(self, group: int) -> list[nn.Parameter]:
        return [self.prototypes[group]]

    def cosine(self, step: Step) -> Tensor:
        return _cosine(step.descriptor, class_anchors(self.prototypes[step.group], step.labels))


def _xavier_uniform(size: int, dim: int, generator: torch.Generator) -> nn.Parameter:
    bound = math.sqrt(6.0 / (size + dim))
    return nn.Parameter((torch.rand(size, dim, generator=generator) * 2 - 1) * bound)


class ToAnchors(Objective):
    """Post-training: the likelihood (vMF or Gaussian) of frozen descriptors around fixed anchors.

    Args:
        anchors: The anchors.
        settings: Constants of the losses.
        gaussian: Whether the likelihood is Gaussian.
        compiled: Whether to compile the vMF likelihood.
    """

    def __init__(
        self, anchors: FixedAnchors, settings: LossSettings, gaussian: bool = False, compiled: bool = False
    ) -> None:
        super().__init__()
        self.anchors, self.settings, self.gaussian = anchors, settings, gaussian
        self.nll = compiled_nll() if compiled else vmf.nll

    def forward(self, step: Step) -> Losses:
        """Return the mean negative log-likelihood of one batch."""
        anchors = self.anchors(step.rows, step.descriptor)
        if self.gaussian:
            return {"loss": gaussian_nll(step.descriptor, anchors, _spread(step))}
        dim = self.settings.vmf_dim or None
        return {"loss": vmf_loss(step.descriptor, anchors, _spread(step), dim, self.nll)}

    def cosine(self, step: Step) -> Tensor:
        return _cosine(step.descriptor, self.anchors(step.rows, step.descriptor))

    def best_constant(self, cosine: float, dim: int) -> float:
        # For the Gaussian, it is the mean squared distance per dimension, with vectors scaled by √d.
        return max(2 - 2 * cosine, 1e-4) if self.gaussian else super().best_constant(cosine, dim)


Gather = Callable[[Tensor], Tensor]


class Contrastive(Objective):
    """Multi-similarity loss with its miner, or the vMF term around batch centroids, or both.

    The parts of a batch on all processes are gathered first, so that every image is compared with all
    negatives.

    Args:
        settings: Constants of the losses.
        retrieval: Whether to include the multi-similarity loss.
        weight: Weight λ of the vMF term. 0 omits it.
        gather: Function that gathers the parts of a batch from all processes.
    """

    def __init__(self, settings: LossSettings, retrieval: bool, weight: float, gather: Gather) -> None:
        super().__init__()
        self.settings, self.retrieval, self.weight, self.gather = settings, retrieval, weight, gather

    def forward(self, step: Step) -> Losses:
        """Return the losses of one batch."""
        descriptors, places = self.gather(step.descriptor), self.gather(step.labels)
        losses: Losses = {}
        if self.retrieval:
            pairs = multi_similarity_pairs(descriptors, places)
            losses["similarity"] = multi_similarity_loss(descriptors, places, pairs)
        if self.weight:
            anchors, has_positive = batch_centroids(descriptors, places)
            dim = self.settings.vmf_dim or descriptors.shape[1]
            each = vmf.nll(_cosine(descriptors, anchors), self.gather(_spread(step)), dim)
            # Weighted instead of selected, because a shape that depends on the data would wait for the
            # device.
            losses["vmf"] = (each * has_positive).sum() / has_positive.sum().clamp(min=1)
        weights = {"similarity": 1.0, "vmf": self.weight}
        return {"loss": sum(weights[name] * value for name, value in losses.items()), **losses}  # type: ignore[dict-item]

    def cosine(self, step: Step) -> Tensor:
        descriptors, places = self.gather(step.descriptor), self.gather(step.labels)
        return _cosine(descriptors, batch_centroids(descriptors, places)[0])


class BayesianTriplet(Objective):
    """Bayesian triplet loss over all triplets of a batch.

    Args:
        settings: Constants of the losses.
        gather: Function that gathers the parts of a batch from all processes.
    """

    has_anchors = False

    def __init__(self, settings: LossSettings, gather: Gather) -> None:
        super().__init__()
        self.settings, self.gather = settings, gather

    def forward(self, step: Step) -> Losses:
        """Return the loss of one batch."""
        descriptors, variance, places = (
            self.gather(x) for x in (step.descriptor, _spread(step), step.labels)
        )
        margin, weight = self.settings.triplet_margin, self.settings.kl_weight
        return {"loss": bayesian_triplet_loss(descriptors, variance, places, margin, weight)}

    def best_constant(self, cosine: float, dim: int) -> float:
        return 1.0 / dim  # the variance of the prior


class Distillation(Objective):
    """Distillation (STUN): a student learns the descriptors of its teacher, and its distance to them.

    Args:
        teacher: The teacher.
        settings: Constants of the losses.
    """

    def __init__(self, teacher: nn.Module, settings: LossSettings) -> None:
        super().__init__()
        # In a list, so that the teacher is not trained, wrapped or saved with every state.
        self._teacher = [teacher.eval().requires_grad_(False)]
        self.settings = settings

    def forward(self, step: Step) -> Losses:
        """Return the loss of one batch."""
        assert step.images is not None
        with torch.no_grad():
            target = self._teacher[0](step.images).descriptor
        return {"loss": stun_loss(step.descriptor, target, _spread(step), self.settings.squared)}


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _spread(step: Step) -> Tensor:
    if step.spread is None:
        raise KappaPlaceError(
            "This recipe trains an uncertainty, but the model has no head for it. Set model.head."
        )
    return step.spread


def gather_batch(part: Tensor) -> Tensor:
    """Concatenate the parts of a batch from all processes. Gradients flow back to each part."""
    if not torch.distributed.is_initialized():
        return part
    if not part.requires_grad:
        parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts)
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(part.contiguous()))
